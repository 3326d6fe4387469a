"""Response streams: messages waiting for one reader, and their form as server-sent events.

Owns the outbox (a message log that wakes its reader), the sink that a call's answer falls into, and the writing of
event streams with keep-alive comments. Never decides what is sent.
Source: MCP 2025-11-25 and 2026-07-28, Transports, Streamable HTTP; HTML Living Standard, Server-sent events.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from aiohttp import web

from coffer_common import jsonrpc
from coffer_supervisor.core import pieces
from coffer_supervisor.core.calls import Failure
from coffer_supervisor.core.messages import REPLAY_BYTES, REPLAY_MESSAGES, MessageLog
from coffer_supervisor.core.pieces import Message

QUIET_SECONDS: Final = 10.0
"""After so long without anything to send, a response becomes a stream, so that it can be kept alive."""
KEEPALIVE_SECONDS: Final = 15.0
RETRY_MS: Final = 1000
_COMMENT: Final = b": keep-alive\n\n"
_EVENT_END: Final = b"\n\n"
_SSE_HEADERS: Final = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",
    "Server": "coffer",
}


class Outbox(MessageLog):
    """A message log with one reader at a time. ``status``: of a JSON answer. ``written``: the last number that went
    out. ``answers_only``: the client takes no stream, so what is no answer is dropped."""

    __slots__ = ("_pausing", "_reader", "_wake", "answers_only", "status", "written")

    def __init__(self, expected: int = 1, *, answers_only: bool = False) -> None:
        super().__init__(expected)
        self.answers_only = answers_only
        self.status = 200
        self.written = 0
        self._pausing = False
        self._wake: asyncio.Future[bool] | None = None
        self._reader = 0

    def append(self, message: Message, *, answer: bool = False) -> bool:
        """Adds a message and wakes the reader."""
        if self.answers_only and not answer:
            return False
        added = super().append(message, answer=answer)
        self._poke()
        return added

    def end(self) -> None:
        """Nothing follows; the reader ends."""
        super().end()
        self._poke()

    def pause(self) -> None:
        """The reader may end when it has written what there is; another one comes for the rest."""
        self._pausing = not self.ended
        self._poke()

    def paused(self) -> bool:
        """Whether the reader is to end now; asked for once."""
        pausing, self._pausing = self._pausing, False
        return pausing

    def attach(self) -> int:
        """A new reader, which replaces the one before. Its number."""
        self._reader += 1
        self._pausing = False
        self._poke()
        return self._reader

    def is_reader(self, reader: int) -> bool:
        """Whether that reader has not been replaced."""
        return reader == self._reader

    async def changed(self, seconds: float) -> bool:
        """Waits until something was added or the stream ended; False after ``seconds`` of silence."""
        loop = asyncio.get_running_loop()
        wake: asyncio.Future[bool] = loop.create_future()
        self._wake = wake
        timer = loop.call_later(seconds, _give_up, wake)
        try:
            return await wake
        finally:
            timer.cancel()
            if self._wake is wake:
                self._wake = None

    def _poke(self) -> None:
        wake, self._wake = self._wake, None
        if wake is not None and not wake.done():
            wake.set_result(True)


def _give_up(wake: "asyncio.Future[bool]") -> None:
    if not wake.done():
        wake.set_result(False)


class HttpSink:
    """The sink of one call over HTTP: what comes falls into the outbox. ``on_end`` runs once, with the answer."""

    __slots__ = ("_id", "done", "on_ask", "on_end", "on_withdraw", "outbox")

    def __init__(self, raw_id: bytes, outbox: Outbox) -> None:
        self._id = raw_id
        self.outbox = outbox
        self.done = False
        self.on_end: Callable[[], None] | None = None
        self.on_ask: Callable[[int, str, bytes], None] | None = None
        self.on_withdraw: Callable[[int, str], None] | None = None

    def progress(self, params: bytes) -> None:
        self.outbox.append(jsonrpc.notification("notifications/progress", params))

    def notify(self, method: str, params: bytes) -> None:
        self.outbox.append(jsonrpc.notification(method, params))

    def pause(self) -> None:
        """A client that could not come back is not sent away."""

    def ask(self, ask: int, method: str, params: bytes) -> None:
        if self.on_ask is not None:
            self.on_ask(ask, method, params)

    def withdraw(self, ask: int, reason: str) -> None:
        if self.on_withdraw is not None:
            self.on_withdraw(ask, reason)

    def release(self, ask: int) -> None:
        """Only a legacy session's asks move."""

    def adopt(self, ask: int) -> None:
        """No ask outlives its call here: that is a legacy session's."""

    def reply(self, result: pieces.Buffer) -> None:
        self._finish(pieces.response(self._id, result), 200)

    def fail(self, failure: Failure) -> None:
        self._finish(jsonrpc.error_response(self._id, failure.error), failure.status)

    def _finish(self, message: Message, status: int) -> None:
        if self.done:
            return
        self.done = True
        self.outbox.status = status
        self.outbox.append(message, answer=True)
        if self.on_end is not None:
            self.on_end()


def event(data: bytes, event_id: str = "") -> bytes:
    """One ``message`` event."""
    return _event_head(event_id) + jsonrpc.one_line(data) + _EVENT_END


def _event_head(event_id: str) -> bytes:
    return (f"id: {event_id}\n".encode() if event_id else b"") + b"event: message\ndata: "


def priming(event_id: str) -> bytes:
    """The first event of a stream that can be resumed: an id without data, and how soon to come back."""
    return f"id: {event_id}\nretry: {RETRY_MS}\ndata: \n\n".encode()


async def open_stream(request: web.BaseRequest, headers: dict[str, str] | None = None) -> web.StreamResponse:
    """Sends the headers of an event stream."""
    response = web.StreamResponse(headers={**_SSE_HEADERS, **headers} if headers else _SSE_HEADERS)
    response.enable_chunked_encoding()
    await response.prepare(request)
    return response


async def pump(
    response: web.StreamResponse,
    outbox: Outbox,
    *,
    name: str = "",
    start: int | None = None,
    primed: bool = False,
) -> None:
    """Writes the outbox's messages after ``start`` (None: what no reader has written yet) until it has ended, the
    client is gone (OSError) or another reader took over. ``name``: the stream's own, for event ids. ``primed``: the
    client knows how to come back, so that the stream may be closed in between."""
    reader = outbox.attach()
    at = outbox.written if start is None else start
    while outbox.is_reader(reader):
        batch = outbox.after(at)
        if batch:
            at = batch[-1][0]
            if not await _write_events(response, batch, name, lambda: outbox.is_reader(reader)):
                break
            outbox.written = max(outbox.written, at)
            if name:
                outbox.release(at, keep=REPLAY_MESSAGES, keep_bytes=REPLAY_BYTES)
            else:
                outbox.release(at)
        elif outbox.ended or (primed and outbox.paused()):
            break
        elif not await outbox.changed(KEEPALIVE_SECONDS):
            await response.write(_COMMENT)
    await response.write_eof()


async def _write_events(
    response: web.StreamResponse, batch: list[tuple[int, Message]], name: str, wanted: Callable[[], bool]
) -> bool:
    """Writes each message as an event; False where another reader took over in the midst of a large one."""
    small: list[bytes] = []
    for number, message in batch:
        event_id = f"{name}-{number}" if name else ""
        if isinstance(message, bytes):
            small.append(event(message, event_id))
            continue
        await response.write(b"".join((*small, _event_head(event_id))))
        if not await write_slices(response, message.lines(), wanted):
            return False
        small = [_EVENT_END]
    await response.write(b"".join(small) if len(small) > 1 else small[0])
    return True


async def write_slices(
    response: web.StreamResponse, slices: Iterable[pieces.Buffer], wanted: Callable[[], bool] = lambda: True
) -> bool:
    """Writes a large message as fast as the client reads, and no faster than others can be served beside it; False
    where it was not wanted to its end."""
    for piece in slices:
        if not wanted():
            return False
        await response.write(piece)
        await asyncio.sleep(0)
    return True
