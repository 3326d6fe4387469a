"""One MCP connection to an upstream: requests out, answers to whom they belong, the rest to its owner.

Owns the table of open requests, and what a line is (answer, request, notification, chatter). Never decides about eras,
limits or restarts, and never decodes a result. Source: JSON-RPC 2.0; MCP base protocol, Messages.
"""

import asyncio
import re
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from coffer_common import errors, jsonrpc
from coffer_common.jsonrpc import Envelope
from coffer_worker.core import bridge, intake, splice
from coffer_worker.core.framing import TooLong
from coffer_worker.core.translate import Hop
from coffer_worker.upstream.pipe import Gone, Pipe, Problem

__all__ = ["Connection", "Events", "Problem", "Unanswered", "UpstreamError", "ignored", "number_of", "resolve"]


_ANSWER: Final = re.compile(rb'\{\s*"jsonrpc"\s*:\s*"2\.0"\s*,\s*"id"\s*:\s*(\d{1,18})\s*,\s*"(?:result|error)"')
_RESTING: Final = "it says too much"
Handler = Callable[[Any, Envelope | Problem], None]


class Events(Protocol):
    """The owner of connections; called on the loop."""

    def notification(self, connection: "Connection", method: str, params: bytes) -> None:
        """The upstream's notification; ``params`` is raw JSON, empty where absent."""

    def chatter(self, connection: "Connection", line: bytes) -> None:
        """A line that is no message."""

    def stray(self, connection: "Connection", id: bytes) -> None:
        """An answer to nothing that is open."""

    def paused(self, connection: "Connection", id: int | str) -> None:
        """The upstream closed that request's event stream for a while."""

    def renewed(self, connection: "Connection") -> None:
        """The upstream's session was lost and made anew."""

    def gone(self, connection: "Connection", gone: Gone) -> None:
        """The connection has ended; its open requests have been told."""


class UpstreamError(Exception):
    """The upstream answered a request of Coffer's own with an error; ``raw`` is its error object."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        try:
            found = splice.members(raw)
            self.code = int(bytes(found.get("code", b"0")))
            self.message = splice.text(found.get("message")) or ""
        except ValueError:
            self.code, self.message = 0, raw[:200].decode(errors="replace")
        super().__init__(f"error {self.code}: {self.message}")


class Unanswered(Exception):
    """A request of Coffer's own got no usable answer."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class Connection:
    """``number`` is unique in the worker's life; what negotiation found stands in the other attributes."""

    def __init__(self, number: int, server: str, new_id: Callable[[], int], events: Events) -> None:
        self.number = number
        self.server = server
        self.pipe: Pipe | None = None
        self.hop = Hop("legacy", "", b"{}", b"{}")
        self.server_info = b"{}"
        self.capabilities = b"{}"
        self.instructions = ""
        self.deviations = ""
        self.negotiated = False
        self.log_level = ""
        self.gone: Gone | None = None
        self._new_id = new_id
        self._events = events
        self._pending: dict[int | str, tuple[Handler, Any]] = {}
        self._intake = intake.Intake()
        self._held: set[str] = set()
        self.on_request: Callable[[bytes, str, bytes, int | str | None], None] | None = None
        """Who answers the upstream's requests instead of Coffer itself: (raw id, method, raw params, the request of
        ours on whose stream it came, where the transport tells)."""
        self.line_bytes = 0
        """The limit on one message of the upstream's, for what is said where it was passed."""
        self.related: int | str | None = None
        """The request of ours on whose stream the message came that is being handled now, where that is known."""

    # ---- out

    def request(self, id: int | str, method: str, params: bytes, handler: Handler, context: Any) -> None:
        """Send a request under ``id``; ``handler(context, answer or Problem)`` is called exactly once, unless it is
        cancelled."""
        self._pending[id] = (handler, context)
        if self.gone is not None or self.pipe is None:
            gone = self.gone
            reason = errors.UPSTREAM_EXITED if gone is None or gone.reason is None else gone.reason
            problem = Problem(reason, "not connected" if gone is None else gone.message)
            asyncio.get_running_loop().call_soon(self._settle, id, problem)
            return
        raw = b"%d" % id if isinstance(id, int) else msgspec.json.encode(id)
        self.pipe.send(jsonrpc.request(raw, method, params))

    def notify(self, method: str, params: bytes = b"") -> None:
        """Send a notification."""
        if self.pipe is not None and self.gone is None:
            self.pipe.send(jsonrpc.notification(method, params))

    def cancel(self, id: int | str, reason: str) -> None:
        """Give up an open request: its answer will be dropped, the upstream is told once."""
        if self._pending.pop(id, None) is not None and self.pipe is not None and self.gone is None:
            self.pipe.cancel(id, reason)

    def forget(self, id: int | str) -> None:
        """Give up an open request in silence (``initialize`` and the probe are never cancelled)."""
        self._pending.pop(id, None)

    async def ask(self, method: str, params: bytes, timeout: float | None = None, *, cancel: bool = True) -> bytes:
        """A request of Coffer's own: the raw result. Raises UpstreamError, Unanswered, TimeoutError."""
        async with asyncio.timeout(timeout):
            try:
                return await self._ask(method, params, cancel=cancel)
            except Unanswered as error:
                if not error.problem.again:
                    raise
            return await self._ask(method, params, cancel=cancel)

    async def _ask(self, method: str, params: bytes, *, cancel: bool) -> bytes:
        id, future = self.begin(method, params)
        try:
            return await future
        finally:
            if cancel:
                self.cancel(id, "no longer wanted")
            else:
                self.forget(id)

    def begin(self, method: str, params: bytes) -> tuple[int, "asyncio.Future[bytes]"]:
        """Send a request of Coffer's own; its id, and the future of its raw result."""
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        id = self._new_id()
        self.request(id, method, params, resolve, future)
        return id, future

    # ---- in (Receiver)

    def line(self, line: bytes) -> None:
        """One line from the upstream."""
        envelope = splice.message(line)
        if envelope is None:
            if line[:1] != b"[" or not self._batch(line):
                self._unreadable(line)
            return
        self.message(envelope, line)

    def message(self, envelope: Envelope, raw: bytes, related: int | str | None = None) -> None:
        """One message; ``related`` is the request on whose stream it came."""
        if not raw.isascii():
            try:
                raw.decode()
            except UnicodeDecodeError:
                self._garbled(envelope, raw)
                return
        self.related = related
        try:
            if not self._message(envelope):
                self._unasked(len(raw))
        finally:
            self.related = None

    def _batch(self, line: bytes) -> bool:
        """A batch of messages, which the revision 2025-03-26 allows."""
        try:
            items = [bytes(item) for item in splice.items(line)]
        except ValueError:
            return False
        found = [(envelope, item) for item in items if (envelope := splice.message(item)) is not None]
        for envelope, item in found:
            self.message(envelope, item)
        return bool(found)

    def _message(self, envelope: Envelope) -> bool:
        """Whether somebody waited for it."""
        method = envelope.method
        if isinstance(method, str):
            if envelope.id:
                self._asked(envelope, method)
            else:
                self._events.notification(self, method, bytes(envelope.params))
            return False
        id = number_of(envelope.raw_id)
        if id is not None and self._settle(id, envelope):
            return True
        self._events.stray(self, envelope.raw_id)
        return False

    def _unasked(self, size: int) -> None:
        """Something came that nobody waited for; beyond its allowance the upstream must wait until we read on."""
        loop = asyncio.get_running_loop()
        rest = self._intake.heard(size, loop.time())
        if rest and _RESTING not in self._held:
            self.hold(_RESTING)
            loop.call_later(rest, self.let_go, _RESTING)

    def passed_on(self) -> None:
        """Something that it said went on to the supervisor."""
        self._unasked(intake.PASSED_ON)

    def hold(self, why: str) -> None:
        """Take nothing in until ``let_go`` of each reason."""
        self._held.add(why)
        if self.pipe is not None:
            self.pipe.pause()

    def let_go(self, why: str) -> None:
        """The reverse."""
        self._held.discard(why)
        if self.pipe is not None and not self._held:
            self.pipe.resume()

    def _settle(self, id: int | str, answer: Envelope | Problem) -> bool:
        entry = self._pending.pop(id, None)
        if entry is None:
            return False
        entry[0](entry[1], answer)
        return True

    def _asked(self, envelope: Envelope, method: str) -> None:
        """A request of the upstream: for ``on_request``, or answered here as long as nobody has set that."""
        id = envelope.raw_id
        if self.pipe is None or not jsonrpc.is_id(id):
            return
        if self.on_request is not None:
            self.on_request(id, method, bytes(envelope.params), self.related)
            return
        answer = bridge.answer(method)
        write = jsonrpc.error_response if answer.error else jsonrpc.response
        self.pipe.send(write(id, answer.payload))

    def _unreadable(self, line: bytes) -> None:
        """Chatter; but where it began as an answer, its call fails now rather than at its limit."""
        self._events.chatter(self, line)
        self._unasked(len(line))
        begun = _ANSWER.match(line, 0, 200)
        if begun is not None:
            what = "an answer that is no JSON, or is nested too deeply to be read"
            self._settle(int(begun.group(1)), Problem(errors.BAD_ANSWER, f"Upstream {self.server!r} sent {what}"))

    def _garbled(self, envelope: Envelope, line: bytes) -> None:
        self._events.chatter(self, line)
        id = number_of(envelope.raw_id)
        if id is not None and envelope.kind == "response":
            self._settle(id, Problem(errors.BAD_ANSWER, f"Upstream {self.server!r} answered with invalid UTF-8"))

    def too_long(self, found: TooLong) -> None:
        """An answer over the limit fails its call; where nobody knows whose it was, every open call."""
        limit = f"Upstream {self.server!r} sent a message over its limit line_bytes ({self.line_bytes})"
        problem = Problem(errors.LINE_LIMIT, limit)
        self._events.chatter(self, limit.encode())
        if found.id is not None:
            self._settle(found.id, problem)
        elif found.final:
            for id in list(self._pending):
                self._settle(id, problem)

    def failed(self, id: int | str, problem: Problem) -> None:
        """There will be no answer to that request."""
        self._settle(id, problem)

    def paused(self, id: int | str) -> None:
        """The upstream closed that request's event stream for a while."""
        self._events.paused(self, id)

    def waits_for(self, id: int | str) -> bool:
        """Whether that request is open."""
        return id in self._pending

    def renewed(self) -> None:
        """A new session in the place of a lost one: what was agreed on in the old one must be said again."""
        self.log_level = ""
        self._events.renewed(self)

    def closed(self, gone: Gone) -> None:
        """The pipe has ended: every open request fails at once."""
        self.gone = gone
        for id in list(self._pending):
            self._settle(id, Problem(gone.reason or errors.UPSTREAM_EXITED, gone.message))
        self._events.gone(self, gone)


def number_of(raw: bytes) -> int | str | None:
    """An id of ours; a number also where the peer made a string of it."""
    quoted = raw[:1] == b'"'
    digits = raw[1:-1] if quoted else raw
    if digits.isdigit() and len(digits) < 19:
        return int(digits)
    return splice.text(raw) if quoted else None


def resolve(future: "asyncio.Future[bytes]", answer: Envelope | Problem) -> None:
    """A handler for requests of Coffer's own: settle the future that waits for the raw result."""
    if future.done():
        return
    if isinstance(answer, Problem):
        future.set_exception(Unanswered(answer))
    elif answer.error:
        future.set_exception(UpstreamError(bytes(answer.error)))
    else:
        future.set_result(bytes(answer.result))


def ignored(context: None, answer: Envelope | Problem) -> None:
    """A handler for requests of Coffer's own whose refusal is no error of anybody's call."""
