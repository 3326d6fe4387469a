"""Calls of a legacy session over HTTP: started, cancelled, asked about, ended with the session.

Owns the tie between a client's request id, the router's number and the stream that the answer goes to. Never writes
to a socket.
Source: MCP 2025-11-25, Cancellation; Transports (a dropped stream is no cancellation).
"""

from typing import TYPE_CHECKING

from coffer_common import errors, jsonrpc, protocol
from coffer_supervisor.core.calls import failure
from coffer_supervisor.core.session import Session, id_key
from coffer_supervisor.endpoint.asked import ask_id, withdrawal
from coffer_supervisor.endpoint.methods import Methods, refused
from coffer_supervisor.endpoint.sessions import Live
from coffer_supervisor.endpoint.streams import HttpSink, Outbox

if TYPE_CHECKING:
    from coffer_supervisor.router import Router


class OpenCall(HttpSink):
    """One call in flight."""

    __slots__ = ("_asks", "_key", "_router", "_session", "corr", "starter")

    def __init__(self, starter: "CallStarter", session: Session, raw_id: bytes, outbox: Outbox) -> None:
        super().__init__(raw_id, outbox)
        self.starter = starter
        self._router = starter.router
        self._session = session
        self._key = id_key(raw_id)
        self._asks: list[bytes] = []
        self.corr = 0
        self.on_end = self.forget

    def ask(self, ask: int, method: str, params: bytes) -> None:
        """An upstream's request, on this call's stream under an id of ours."""
        raw_id = ask_id(ask)
        if self.outbox.answers_only or not self.outbox.append(jsonrpc.request(raw_id, method, params)):
            message = f"{method}: the client takes no stream on which it could be asked"
            self._router.answer(ask, jsonrpc.error(protocol.METHOD_NOT_FOUND, message), True)
            return
        self._session.asks[raw_id] = ask
        self._asks.append(raw_id)

    def pause(self) -> None:
        """The upstream closed its stream in mid-call: this call's may end likewise, for it can be taken up again."""
        self.outbox.pause()

    def withdraw(self, ask: int, reason: str) -> None:
        """The upstream cancelled its request."""
        raw_id = ask_id(ask)
        if self._session.asks.pop(raw_id, None) is not None:
            self.outbox.append(withdrawal(raw_id))

    def release(self, ask: int) -> None:
        """It was another call's."""
        self._asks.remove(ask_id(ask))

    def adopt(self, ask: int) -> None:
        """It was shown on another call's stream; its answer comes in a message of its own in any case."""
        self._asks.append(ask_id(ask))

    def withdraw_all(self) -> None:
        """What the client is still asked on this call's behalf is taken back."""
        for raw_id in self._asks:
            if self._session.asks.pop(raw_id, None) is not None:
                self.outbox.append(withdrawal(raw_id))

    def forget(self) -> None:
        """It is no longer in flight."""
        for raw_id in self._asks:
            self._session.asks.pop(raw_id, None)
        if self._session.calls.get(self._key) == self.corr:
            del self._session.calls[self._key]
        self.starter.open.pop(self.corr, None)


class CallStarter:
    """Starts calls and keeps those in flight. One per endpoint."""

    def __init__(self, router: "Router", methods: Methods) -> None:
        self.router = router
        self._methods = methods
        self.open: dict[int, OpenCall] = {}

    def start(self, live: Live, envelope: jsonrpc.Envelope, outbox: Outbox, traceparent: str = "") -> OpenCall:
        """Sends a call on its way. Raises CallError where it is no call of this session."""
        session, raw_id = live.session, envelope.raw_id
        call = OpenCall(self, session, raw_id, outbox)
        key = id_key(raw_id)
        if key in session.calls:
            raise refused(errors.INVALID_REQUEST, "a request with this id is still open", "legacy")
        params, outline = bytes(envelope.params), envelope.outline
        request = self._methods.legacy_call(session, str(envelope.method), params, traceparent, outline=outline)
        corr = self.router.start_call(request, call)
        if not call.done:
            call.corr = corr
            session.calls[key] = corr
            self.open[corr] = call
        return call

    def cancel(self, session: Session, raw_id: bytes, reason: str) -> None:
        """The client cancelled a request: nothing answers it. Unknown ids are ignored (the answer was first)."""
        corr = session.calls.get(id_key(raw_id))
        call = None if corr is None else self.open.get(corr)
        if call is None or corr is None:
            return
        call.done = True
        call.withdraw_all()
        call.forget()
        self.router.cancel(corr, reason)
        call.outbox.expected -= 1
        if call.outbox.answers >= call.outbox.expected:
            call.outbox.end()

    def answered(self, session: Session, envelope: jsonrpc.Envelope) -> None:
        """The client's response to something it was asked; one that answers nothing of this session is dropped."""
        ask = session.asks.pop(id_key(envelope.raw_id), None)
        if ask is not None:
            self.router.answer(ask, bytes(envelope.result or envelope.error), bool(envelope.error))

    def end_all(self, session: Session, reason: str) -> None:
        """The session is over; the router cancels its calls, the streams end here."""
        for corr in list(session.calls.values()):
            call = self.open.get(corr)
            if call is not None:
                call.fail(failure(errors.CANCELLED, f"the call was cancelled: {reason}", "legacy"))
