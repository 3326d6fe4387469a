"""Both eras' face on one line transport: the era is decided per request, the session lasts as long as the connection.

Owns what one shim's client has open: calls, listens, requests to it. Messages go to the connection it was given.
Source: MCP 2025-11-25 and 2026-07-28, Transports, stdio; Cancellation; Subscriptions.
"""

import itertools
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, Protocol

from coffer_common import errors, jsonrpc, protocol
from coffer_supervisor.core import pieces
from coffer_supervisor.core.calls import CallError, CallRequest, Failure, failure
from coffer_supervisor.core.envelope import MODERN_METHODS as MODERN_ONLY
from coffer_supervisor.core.envelope import era_of, ladder
from coffer_supervisor.core.session import Session, id_key
from coffer_supervisor.core.subscriptions import KINDS
from coffer_supervisor.endpoint import listen
from coffer_supervisor.endpoint.asked import ask_id, withdrawal
from coffer_supervisor.endpoint.methods import CALLS, LISTEN, Client, Methods, cancelled_id, modern_client
from coffer_supervisor.endpoint.notices import Hearer, Notices

if TYPE_CHECKING:
    import asyncio

    from coffer_supervisor.router import Router

_numbers: Final = itertools.count(1)
Work = Callable[[], Coroutine[Any, Any, bytes]]


class Connection(Protocol):
    """What a face needs of its connection."""

    def send(self, message: pieces.Message) -> None:
        """One message to the client; never blocks."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Runs beside the connection, and ends with it."""


class ShimCall:
    """The sink of one call: what comes is written at once."""

    __slots__ = ("_asks", "_era", "_face", "_id", "corr", "done", "key")

    def __init__(self, face: "ShimFace", raw_id: bytes, era: protocol.Era) -> None:
        self._face, self._id, self._era = face, raw_id, era
        self._asks: list[bytes] = []
        self.key = id_key(raw_id)
        self.corr = 0
        self.done = False

    def progress(self, params: bytes) -> None:
        self._face.connection.send(jsonrpc.notification("notifications/progress", params))

    def notify(self, method: str, params: bytes) -> None:
        self._face.connection.send(jsonrpc.notification(method, params))

    def ask(self, ask: int, method: str, params: bytes) -> None:
        if self._era == "modern":
            message = f"{method} cannot be asked of a client of this protocol version"
            self._face.router.answer(ask, jsonrpc.error(protocol.METHOD_NOT_FOUND, message), True)
            return
        raw_id = ask_id(ask)
        self._face.session.asks[raw_id] = ask
        self._asks.append(raw_id)
        self._face.connection.send(jsonrpc.request(raw_id, method, params))

    def pause(self) -> None:
        """A shim's connection is no stream of one call."""

    def withdraw(self, ask: int, reason: str) -> None:
        raw_id = ask_id(ask)
        if self._face.session.asks.pop(raw_id, None) is not None:
            self._face.connection.send(withdrawal(raw_id))

    def release(self, ask: int) -> None:
        self._asks.remove(ask_id(ask))

    def adopt(self, ask: int) -> None:
        self._asks.append(ask_id(ask))

    def withdraw_all(self) -> None:
        """What the client is still asked on this call's behalf is taken back."""
        for raw_id in self._asks:
            if self._face.session.asks.pop(raw_id, None) is not None:
                self._face.connection.send(withdrawal(raw_id))

    def reply(self, result: pieces.Buffer) -> None:
        if self.end():
            self._face.connection.send(pieces.response(self._id, result))

    def fail(self, failure: Failure) -> None:
        if self.end():
            self._face.connection.send(jsonrpc.error_response(self._id, failure.error))

    def end(self) -> bool:
        """It is no longer open; False where it was not."""
        if self.done:
            return False
        self.done = True
        for raw_id in self._asks:
            self._face.session.asks.pop(raw_id, None)
        if self._face.calls.get(self.key) is self:
            del self._face.calls[self.key]
        return True


class ShimFace:
    """One client behind a shim. ``received`` takes its lines."""

    def __init__(
        self, router: "Router", methods: Methods, notices: Notices, session: Session, connection: Connection
    ) -> None:
        self.router, self.session, self.connection = router, session, connection
        self._methods, self._notices = methods, notices
        self.calls: dict[bytes, ShimCall] = {}
        self._requests: dict[bytes, asyncio.Task[None]] = {}
        self._handshakes: set[bytes] = set()
        self._greeted = False
        self._listens: dict[bytes, tuple[listen.Listen, asyncio.Task[None]]] = {}
        notices.add(
            Hearer(
                id=session.id,
                principal=session.principal,
                scope=session.scope,
                deliver=connection.send,
                ready=self._ready,
                kinds=frozenset(KINDS),
                uris=session.subscriptions,
                asks=session.asks,
            )
        )

    def _ready(self) -> bool:
        return self.session.initialized and self._greeted

    def received(self, line: bytes) -> None:
        """One line of the client's."""
        if line[:1] == b"[":
            self._refuse(b"null", protocol.INVALID_REQUEST, "a JSON array is no message on this transport")
            return
        try:
            envelope = jsonrpc.parse(line)
        except jsonrpc.Malformed as error:
            self._refuse(error.id, error.code, error.message)
            return
        kind = envelope.kind
        if kind == "request":
            self._request(envelope)
        elif kind == "notification":
            self._notified(str(envelope.method), bytes(envelope.params))
        else:
            ask = self.session.asks.pop(id_key(envelope.raw_id), None)
            if ask is not None:
                self.router.answer(ask, bytes(envelope.result or envelope.error), bool(envelope.error))

    def close(self, reason: str) -> None:
        """The connection is gone: nothing is written any more, and what was open is cancelled."""
        for key in list(self._listens):
            self._end_listen(key)
        for call in list(self.calls.values()):
            call.end()
        self._notices.remove(self.session.id)
        self.router.close_session(self.session.id, reason)

    # ---- requests

    def _request(self, envelope: jsonrpc.Envelope) -> None:
        raw_id, method, params = envelope.raw_id, str(envelope.method), bytes(envelope.params)
        key = id_key(raw_id)
        if key in self.calls or key in self._requests or key in self._listens:
            self._refuse(raw_id, protocol.INVALID_REQUEST, "a request with this id is still open")
            return
        if era_of(envelope, None) == "modern":
            self._modern(key, envelope)
        elif method in CALLS:
            try:
                call = self._methods.legacy_call(self.session, method, params, outline=envelope.outline)
                self._start(raw_id, call, "legacy")
            except CallError as error:
                self.connection.send(jsonrpc.error_response(raw_id, error.failure.error))
        elif method == "initialize":
            self._methods.begin(self.session, params)
            self._requests[key] = self.connection.spawn(self._initialized(key, raw_id))
            self._handshakes.add(key)
        else:
            self._answer(key, raw_id, lambda: self._methods.legacy(self.session, method, params))

    def _modern(self, key: bytes, envelope: jsonrpc.Envelope) -> None:
        raw_id, method, params, outline = (
            envelope.raw_id,
            str(envelope.method),
            bytes(envelope.params),
            envelope.outline,
        )
        verdict = ladder(method, outline, None)
        if isinstance(verdict, Failure):
            self.connection.send(jsonrpc.error_response(raw_id, verdict.error))
            return
        session = self.session
        client = modern_client(verdict, session.id, session.principal, session.scope, "shim", cwd=session.cwd)
        if method in CALLS:
            call = self._methods.modern_call(client, method, params, verdict, {}, outline=outline)
            self._start(raw_id, call, "modern")
        elif method == LISTEN:
            self._listen(key, raw_id, client, params)
        else:
            self._answer(key, raw_id, lambda: self._methods.modern(client, method, params))

    def _start(self, raw_id: bytes, request: CallRequest, era: protocol.Era) -> None:
        call = ShimCall(self, raw_id, era)
        corr = self.router.start_call(request, call)
        if not call.done:
            call.corr = corr
            self.calls[call.key] = call

    def _answer(self, key: bytes, raw_id: bytes, work: Work) -> None:
        self._requests[key] = self.connection.spawn(self._answered(key, raw_id, work))

    async def _initialized(self, key: bytes, raw_id: bytes) -> None:
        await self._answered(key, raw_id, lambda: self._methods.initialize(self.session))
        self._handshakes.discard(key)
        self._greeted = True
        self._notices.released(self.session.id)

    async def _answered(self, key: bytes, raw_id: bytes, work: Work) -> None:
        try:
            answer = jsonrpc.response(raw_id, await work())
        except CallError as error:
            answer = jsonrpc.error_response(raw_id, error.failure.error)
        except Exception:
            problem = failure(errors.INTERNAL, "Coffer failed to answer: see logs/daemon.log", "legacy")
            self.connection.send(jsonrpc.error_response(raw_id, problem.error))
            raise
        finally:
            self._requests.pop(key, None)
        self.connection.send(answer)

    # ---- listens

    def _listen(self, key: bytes, raw_id: bytes, client: Client, params: bytes) -> None:
        wanted = listen.wanted(params)
        if isinstance(wanted, Failure):
            self.connection.send(jsonrpc.error_response(raw_id, wanted.error))
            return
        name = f"listen-shim-{next(_numbers)}"
        listening = listen.Listen(name, raw_id, client, self.connection.send)
        task = self.connection.spawn(listening.open(self.router, self._notices, wanted))
        self._listens[key] = (listening, task)

    def _end_listen(self, key: bytes) -> None:
        listening, task = self._listens.pop(key)
        task.cancel()
        listening.close(self.router, self._notices)

    # ---- notifications

    def _notified(self, method: str, params: bytes) -> None:
        if method in MODERN_ONLY:  # a request sent as a notification: nothing answers it
            return
        if method == "notifications/initialized":
            self.session.initialized = True
            if self._greeted:
                self._notices.released(self.session.id)
        elif method == "notifications/cancelled":
            raw_id, reason = cancelled_id(params)
            if raw_id:
                self._cancel(id_key(raw_id), reason or "cancelled by the client")
        elif method == "notifications/roots/list_changed":
            self.router.roots_changed(self.session.id)

    def _cancel(self, key: bytes, reason: str) -> None:
        call = self.calls.get(key)
        if call is not None:
            call.withdraw_all()
            call.end()
            self.router.cancel(call.corr, reason)
        elif key in self._listens:
            self._end_listen(key)
        elif key in self._requests and key not in self._handshakes:  # initialize is never cancelled
            self._requests[key].cancel()

    def _refuse(self, raw_id: bytes, code: int, message: str) -> None:
        self.connection.send(jsonrpc.error_response(raw_id, errors.error_object(errors.MALFORMED[code], message)))
