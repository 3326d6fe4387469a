"""The 2026-07-28 face over HTTP: one POST, one request, one answer; no session.

Owns header agreement on the wire, the form of the answer (JSON with its status, or a stream), cancellation by a
closed response, and listen streams. Never keeps anything between requests.
Source: MCP 2026-07-28, Transports, Streamable HTTP; Subscriptions; Cancellation.
"""

import asyncio
import itertools
import logging
from typing import TYPE_CHECKING, Final

from aiohttp import web

from coffer_common import errors, jsonrpc, protocol
from coffer_supervisor.core import tracing
from coffer_supervisor.core.calls import CallError, Failure, failure
from coffer_supervisor.core.envelope import Modern, ladder, unsupported
from coffer_supervisor.endpoint import listen
from coffer_supervisor.endpoint.http import Entry, Rejected, accepted, answered, error_response, message_response
from coffer_supervisor.endpoint.methods import CALLS, LISTEN, MODERN_METHODS, Client, Methods, modern_client
from coffer_supervisor.endpoint.notices import Notices
from coffer_supervisor.endpoint.streams import QUIET_SECONDS, HttpSink, Outbox, open_stream, pump

if TYPE_CHECKING:
    from coffer_supervisor.router import Router

_log: Final = logging.getLogger(__name__)
_ROUTING: Final = (protocol.HEADER_VERSION, protocol.HEADER_METHOD, protocol.HEADER_NAME)


class ModernHttp:
    """Serves modern requests. One per endpoint."""

    def __init__(self, router: "Router", methods: Methods, notices: Notices) -> None:
        self._router, self._methods, self._notices = router, methods, notices
        self._listens: dict[str, tuple[Outbox, bytes]] = {}
        self._numbers = itertools.count(1)

    async def post(self, entry: Entry, envelope: jsonrpc.Envelope) -> web.StreamResponse:
        """Answers one message. Raises Rejected."""
        raw_id, kind = envelope.raw_id, envelope.kind
        if kind == "notification":
            return self._notification(entry)
        if kind == "response":
            message = "a client sends no responses at this protocol version"
            raise Rejected(400, failure(errors.INVALID_REQUEST, message, "modern"), raw_id)
        method = str(envelope.method)
        verdict = self._verdict(entry, method, envelope.outline)
        if isinstance(verdict, Failure):
            return error_response(verdict, verdict.status, raw_id)
        if method not in MODERN_METHODS:
            problem = failure(errors.METHOD_NOT_FOUND, f"Method not found: {method[:128]}", "modern")
            return error_response(problem, problem.status, raw_id)
        session = f"modern:{entry.principal.id}:{entry.scope.path}"
        client = modern_client(verdict, session, entry.principal, entry.scope, "http")
        if method in CALLS:
            return await self._call(entry, envelope, client, verdict)
        if method == LISTEN:
            return await self._listen(entry, envelope, client)
        return await self._answer(entry, envelope, client)

    def close(self) -> None:
        """Ends every listen stream gracefully: its result is the last thing on it."""
        for outbox, result in list(self._listens.values()):
            outbox.append(result, answer=True)
            outbox.end()

    # ---- checks

    def _verdict(self, entry: Entry, method: str, outline: bytes) -> Modern | Failure:
        headers = entry.request.headers
        for name in _ROUTING:
            if len(headers.getall(name, ())) > 1:
                return failure(errors.HEADER_MISMATCH, f"{name} header appears more than once", "modern")
        return ladder(method, outline, headers)

    @staticmethod
    def _notification(entry: Entry) -> web.Response:
        version = entry.request.headers.get(protocol.HEADER_VERSION, "")
        if version not in protocol.MODERN_REVISIONS:
            problem = unsupported(version)
            return error_response(problem, problem.status)
        return accepted()

    # ---- requests

    async def _answer(self, entry: Entry, envelope: jsonrpc.Envelope, client: Client) -> web.StreamResponse:
        raw_id = envelope.raw_id
        try:
            result = await self._methods.modern(client, str(envelope.method), bytes(envelope.params))
        except CallError as error:
            return await answered(entry, jsonrpc.error_response(raw_id, error.failure.error), error.failure.status)
        return await answered(entry, jsonrpc.response(raw_id, result))

    async def _call(
        self, entry: Entry, envelope: jsonrpc.Envelope, client: Client, verdict: Modern
    ) -> web.StreamResponse:
        outbox = Outbox(answers_only=not entry.takes_stream)
        sink = HttpSink(envelope.raw_id, outbox)
        sink.on_ask = self._refuse_ask
        headers = param_headers(entry.request)
        method, params, outline = str(envelope.method), bytes(envelope.params), envelope.outline
        parent = entry.request.headers.get(tracing.HEADER, "")
        call = self._methods.modern_call(client, method, params, verdict, headers, traceparent=parent, outline=outline)
        corr = self._router.start_call(call, sink)
        try:
            return await self._respond(entry, outbox)
        finally:
            if not sink.done:  # the client closed the response: that is its cancellation
                sink.done = True
                self._router.cancel(corr, "the client closed the response")

    @staticmethod
    async def _respond(entry: Entry, outbox: Outbox) -> web.StreamResponse:
        while not len(outbox):
            quiet = not await outbox.changed(QUIET_SECONDS)
            if quiet and entry.takes_stream:
                break
        if outbox.ended and len(outbox) == 1 and (entry.takes_json or outbox.status != 200):
            return message_response(outbox.after(0)[0][1], outbox.status)
        response = await open_stream(entry.request)
        await pump(response, outbox)
        return response

    def _refuse_ask(self, ask: int, method: str, params: bytes) -> None:
        message = f"{method} cannot be asked of a client of this protocol version"
        self._router.answer(ask, jsonrpc.error(protocol.METHOD_NOT_FOUND, message), True)

    # ---- listen streams

    async def _listen(self, entry: Entry, envelope: jsonrpc.Envelope, client: Client) -> web.StreamResponse:
        raw_id = envelope.raw_id
        wanted = listen.wanted(bytes(envelope.params))
        if isinstance(wanted, Failure):
            return error_response(wanted, wanted.status, raw_id)
        if not entry.takes_stream:
            message = "subscriptions/listen answers with an event stream: accept text/event-stream"
            raise Rejected(406, failure(errors.INVALID_REQUEST, message, "modern"), raw_id)
        name = f"listen-http-{next(self._numbers)}"
        outbox = Outbox(expected=0)

        def deliver(message: bytes) -> None:
            if not outbox.append(message):  # a client that does not read: it listens again and refetches
                outbox.end()

        listening = listen.Listen(name, raw_id, client, deliver)
        opening = asyncio.ensure_future(listening.open(self._router, self._notices, wanted))
        opening.add_done_callback(lambda task: _ended_badly(task, outbox))
        self._listens[name] = (outbox, jsonrpc.response(raw_id, listening.result))
        try:
            await asyncio.wait({opening}, timeout=QUIET_SECONDS)
            response = await open_stream(entry.request)
            await pump(response, outbox)
            return response
        finally:
            opening.cancel()
            self._listens.pop(name, None)
            listening.close(self._router, self._notices)


def _ended_badly(task: "asyncio.Future[None]", outbox: Outbox) -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.error("a listen failed", exc_info=task.exception())
        outbox.end()


def param_headers(request: web.BaseRequest) -> dict[str, str]:
    """The ``mcp-param-*`` headers, in lower case. Bytes that are no UTF-8 are U+FFFD in them: no frame carries them."""
    prefix = protocol.HEADER_PARAM_PREFIX
    found: dict[str, str] = {}
    for name, value in request.headers.items():
        if len(name) > len(prefix) and name[: len(prefix)].lower() == prefix:
            found[name.lower()] = value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return found
