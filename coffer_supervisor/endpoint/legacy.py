"""The face with sessions over HTTP: 2025-03-26 to 2025-11-25 (and 2024-11-05 where a client asks for it).

Owns POST, GET and DELETE of a session, the form of each answer, and what becomes of streams that break. The rules of
sessions are ``core.session``'s; the methods are ``methods``'s.
Source: MCP 2025-11-25, Transports, Streamable HTTP; MCP 2025-03-26, Base protocol, Batching.
"""

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec
from aiohttp import web

from coffer_common import errors, jsonrpc, protocol
from coffer_supervisor.core import batch, pieces, tracing
from coffer_supervisor.core.calls import CallError
from coffer_supervisor.core.session import Session
from coffer_supervisor.endpoint.http import (
    Entry,
    accepted,
    answered,
    json_response,
    malformed,
    message_response,
    rejected,
)
from coffer_supervisor.endpoint.legacy_calls import CallStarter
from coffer_supervisor.endpoint.methods import CALLS, Methods, cancelled_id
from coffer_supervisor.endpoint.sessions import Live, Sessions
from coffer_supervisor.endpoint.streams import QUIET_SECONDS, Outbox, open_stream, priming, pump

if TYPE_CHECKING:
    from coffer_supervisor.router import Router

_PRIMED: Final = protocol.LATEST_LEGACY
REPLAY_ENDED_BYTES: Final = 256 * 1024
_EMPTY_BATCH: Final = "an empty batch"


class LegacyHttp:
    """Serves legacy requests. One per endpoint."""

    def __init__(self, router: "Router", methods: Methods, sessions: Sessions) -> None:
        self._router, self._methods, self._sessions = router, methods, sessions
        self._starter = CallStarter(router, methods)

    # ---- POST

    async def post(self, entry: Entry, envelope: jsonrpc.Envelope) -> web.StreamResponse:
        """Answers one message. Raises Rejected."""
        raw_id, kind, method = envelope.raw_id, envelope.kind, envelope.method
        if kind == "request" and method == "initialize":
            return await self._initialize(entry, envelope)
        live = self._live(entry, raw_id or b"null")
        if kind == "response":
            self._starter.answered(live.session, envelope)
            return accepted()
        if kind == "notification":
            self._notified(live, str(method), bytes(envelope.params))
            return accepted()
        if method in CALLS:
            return await self._call(entry, live, envelope)
        try:
            result = await self._methods.legacy(live.session, str(method), bytes(envelope.params))
            answer = jsonrpc.response(raw_id, result)
        except CallError as error:
            answer = jsonrpc.error_response(raw_id, error.failure.error)
        if not _streams_at_once(entry, live):
            return await answered(entry, answer)
        outbox = Outbox()
        outbox.append(answer, answer=True)
        return await self._respond(entry, live, outbox, at_once=True)

    async def post_batch(self, entry: Entry, body: bytes) -> web.StreamResponse:
        """Answers a JSON array, where the session's revision has batches. Raises Rejected."""
        live = self._live(entry, b"null") if protocol.HEADER_SESSION in entry.request.headers else None
        if live is None or live.session.revision != protocol.BATCH_REVISION:
            raise rejected(400, f"a JSON array is no message: batches exist at {protocol.BATCH_REVISION} only")
        try:
            items = batch.items(body)
        except batch.TooMany as error:
            raise rejected(400, str(error)) from None
        except (msgspec.DecodeError, RecursionError) as error:
            raise rejected(400, f"not JSON: {error}", reason=errors.PARSE_ERROR) from None
        if not items:
            raise rejected(400, _EMPTY_BATCH)
        return await self._batch(entry, live, items)

    async def _initialize(self, entry: Entry, envelope: jsonrpc.Envelope) -> web.StreamResponse:
        live = self._sessions.open(entry.principal, entry.scope)
        try:
            self._methods.begin(live.session, bytes(envelope.params))
            result = await self._methods.initialize(live.session)
        except CallError as error:
            self._sessions.close(live.session.id, "initialize failed")
            return await answered(entry, jsonrpc.error_response(envelope.raw_id, error.failure.error))
        except asyncio.CancelledError:
            self._sessions.close(live.session.id, "the client left before initialize was answered")
            raise
        headers = {"Mcp-Session-Id": live.session.id}
        return await answered(entry, jsonrpc.response(envelope.raw_id, result), headers=headers)

    def _notified(self, live: Live, method: str, params: bytes) -> None:
        if method == "notifications/initialized":
            live.session.initialized = True
            self._sessions.ready(live)
        elif method == "notifications/cancelled":
            raw_id, reason = cancelled_id(params)
            if raw_id:
                self._starter.cancel(live.session, raw_id, reason or "cancelled by the client")
        elif method == "notifications/roots/list_changed":
            self._router.roots_changed(live.session.id)

    # ---- calls

    async def _call(self, entry: Entry, live: Live, envelope: jsonrpc.Envelope) -> web.StreamResponse:
        outbox = Outbox(answers_only=not entry.takes_stream)
        try:
            self._starter.start(live, envelope, outbox, entry.request.headers.get(tracing.HEADER, ""))
        except CallError as error:
            return await answered(entry, jsonrpc.error_response(envelope.raw_id, error.failure.error))
        return await self._respond(entry, live, outbox, at_once=_streams_at_once(entry, live))

    async def _respond(
        self, entry: Entry, live: Live, outbox: Outbox, *, at_once: bool = False, array: bool = False
    ) -> web.StreamResponse:
        """The first thing decides the form. A client that drops this response has cancelled nothing."""
        while not at_once and not outbox.ended and not (len(outbox) > outbox.answers):
            quiet = not await outbox.changed(QUIET_SECONDS)
            if quiet and entry.takes_stream:
                break
        plain = entry.takes_json or not len(outbox)
        if not at_once and plain and outbox.ended and len(outbox) == outbox.answers:
            return _plain(outbox, array=array)
        name = live.logs.add(outbox)
        response = await open_stream(entry.request)
        primed = live.session.revision == _PRIMED
        if primed:
            await response.write(priming(f"{name}-0"))
        await pump(response, outbox, name=name, start=0, primed=primed)
        if outbox.ended and outbox.size > REPLAY_ENDED_BYTES:
            # It was written whole: a large one is not kept for a second time.
            live.logs.drop(name)
        live.logs.trim()
        return response

    async def _batch(self, entry: Entry, live: Live, items: list[bytes]) -> web.StreamResponse:
        messages = [_parsed(item) for item in items]
        expected = sum(isinstance(m, jsonrpc.Malformed) or m.kind == "request" for m in messages)
        outbox = Outbox(expected, answers_only=not entry.takes_stream)
        for message in messages:
            await self._batch_item(live, message, outbox)
        return await self._respond(entry, live, outbox, array=True) if expected else accepted()

    async def _batch_item(self, live: Live, message: jsonrpc.Envelope | jsonrpc.Malformed, outbox: Outbox) -> None:
        if isinstance(message, jsonrpc.Malformed):
            outbox.append(jsonrpc.error_response(message.id, malformed(message).error), answer=True)
            return
        raw_id, method, params = message.raw_id, str(message.method), bytes(message.params)
        if message.kind == "response":
            self._starter.answered(live.session, message)
        elif message.kind == "notification":
            self._notified(live, method, params)
        else:
            try:
                if method in CALLS:
                    self._starter.start(live, message, outbox)
                    return
                answer = jsonrpc.response(raw_id, await self._methods.legacy(live.session, method, params))
            except CallError as error:
                answer = jsonrpc.error_response(raw_id, error.failure.error)
            outbox.append(answer, answer=True)

    # ---- GET and DELETE

    async def get(self, entry: Entry) -> web.StreamResponse:
        """The session's standing stream, or the rest of a broken one. Raises Rejected."""
        if not entry.takes_stream:
            raise rejected(406, "GET answers with an event stream: accept text/event-stream")
        live = self._live(entry, b"null")
        event_id = entry.request.headers.get("Last-Event-ID", "")
        found = live.logs.find(event_id) if event_id else None
        name, outbox, start = found if found is not None else (live.name, live.outbox, None)
        response = await open_stream(entry.request)
        standing = outbox is live.outbox
        self._sessions.attached(live, standing=standing)
        try:
            primed = live.session.revision == _PRIMED and not standing
            await pump(response, outbox, name=name, start=start, primed=primed)
        finally:
            self._sessions.detached(live, standing=standing)
        return response

    def delete(self, entry: Entry) -> web.Response:
        """Ends the session. Raises Rejected."""
        live = self._live(entry, b"null")
        self._sessions.close(live.session.id, "the client ended the session")
        return json_response(b"{}")

    # ---- sessions

    def _live(self, entry: Entry, raw_id: bytes) -> Live:
        headers = entry.request.headers
        session_id = headers.get(protocol.HEADER_SESSION)
        if session_id is None:
            raise rejected(400, "Mcp-Session-Id is missing: send initialize first", raw_id)
        live = self._sessions.use(session_id, entry.principal, entry.scope)
        if live is None:
            raise rejected(404, "there is no such session (it has ended): send initialize again", raw_id)
        version = headers.get(protocol.HEADER_VERSION)
        if version is not None and version not in protocol.LEGACY_REVISIONS:
            known = ", ".join(protocol.LEGACY_REVISIONS)
            raise rejected(400, f"MCP-Protocol-Version {version[:32]!r} is not one of {known}", raw_id)
        return live

    def end_calls(self, session: Session, reason: str) -> None:
        """The session is over: its open streams end with an error."""
        self._starter.end_all(session, reason)


def _streams_at_once(entry: Entry, live: Live) -> bool:
    passed_through = entry.scope.server is not None
    return passed_through and entry.takes_stream and live.session.revision == _PRIMED


def _plain(outbox: Outbox, *, array: bool) -> web.StreamResponse:
    answers = [message for _, message in outbox.after(0)]
    if not answers:  # cancelled by the client: nothing answers it
        return accepted()
    return message_response(pieces.array(answers) if array else answers[0])


def _parsed(item: bytes) -> jsonrpc.Envelope | jsonrpc.Malformed:
    try:
        return jsonrpc.parse(item)
    except jsonrpc.Malformed as error:
        return error
