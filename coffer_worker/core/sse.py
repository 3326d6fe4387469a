"""Bytes of an event stream in, events out.

Owns the event-stream rules: LF, CR and CRLF (also cut between two chunks), many ``data`` lines, comments, ``id`` and
``retry``, the byte order mark, and the limit on one event. An event that is not ended by a blank line is none. Data
stays bytes. Never reads a stream, never decodes JSON. Source: WHATWG HTML, Server-sent events, parsing an event stream.
"""

from dataclasses import dataclass
from typing import Final

from coffer_common.jsonrpc import BOM
from coffer_worker.core.framing import TooLong

# What a line may be longer than the event's limit: its field name.
_FIELD_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class Event:
    """One event. ``type`` is ``b"message"`` where the stream named none; ``id`` the last id seen up to it."""

    type: bytes
    data: bytes
    id: bytes


class Events:
    """The events of one stream, ``limit`` bytes of data each at most.

    ``last_id`` is what a resumption names, empty where there was none; ``retry`` the server's wish in milliseconds.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._line = bytearray()
        self._after_cr = False
        self._first = True
        self._type = b""
        self._data: list[bytes] = []
        self._size = 0
        self._over = False
        self._skipping = False
        self.last_id = b""
        self.retry: int | None = None

    def feed(self, chunk: bytes) -> list[Event | TooLong]:
        """The events that ``chunk`` completes; a TooLong as soon as one has passed the limit."""
        out: list[Event | TooLong] = []
        if self._after_cr and chunk[:1] == b"\n":
            chunk, self._after_cr = chunk[1:], False
        if chunk:
            self._after_cr = chunk[-1:] == b"\r"
        for piece in chunk.splitlines(keepends=True):
            if piece[-1] not in b"\r\n":
                self._hold(piece, out)
                continue
            text = piece.rstrip(b"\r\n")
            if not self._line and not self._skipping:
                self._end_line(text, out)
                continue
            self._hold(text, out)
            line, self._line = bytes(self._line), bytearray()
            if self._skipping:
                self._skipping = False
            else:
                self._end_line(line, out)
        return out

    def _hold(self, text: bytes, out: list[Event | TooLong]) -> None:
        """The beginning of a line; nothing is kept of one that is over the limit."""
        if self._skipping:
            return
        self._line += text
        if len(self._line) > self._limit + _FIELD_BYTES:
            self._too_long(len(self._line), out)
            self._line, self._skipping = bytearray(), True

    def _too_long(self, size: int, out: list[Event | TooLong]) -> None:
        """Told once for an event, as soon as it is known."""
        if not self._over:
            self._over = True
            out.append(TooLong(None, size, final=True))
        self._data = []

    def _end_line(self, line: bytes, out: list[Event | TooLong]) -> None:
        if self._first:
            self._first = False
            line = line.removeprefix(BOM)
        if line:
            self._field(line, out)
        else:
            self._dispatch(out)

    def _field(self, line: bytes, out: list[Event | TooLong]) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._size += len(value) + bool(self._data)  # lines without data are bytes too: their joints
            self._data.append(value)
            if self._size > self._limit or self._over:
                self._too_long(self._size, out)
        elif name == b"event":
            self._type = value
        elif name == b"id" and b"\0" not in value:
            self.last_id = value
        elif name == b"retry" and value.isdigit() and len(value) < 10:
            self.retry = int(value)

    def _dispatch(self, out: list[Event | TooLong]) -> None:
        if self._data:
            out.append(Event(self._type or b"message", b"\n".join(self._data), self.last_id))
        self._type, self._data, self._size, self._over = b"", [], 0, False

    def restart(self) -> None:
        """The stream broke and another one goes on after ``last_id``: what was half received is dropped."""
        self._line, self._after_cr, self._first, self._skipping = bytearray(), False, True, False
        self._type, self._data, self._size, self._over = b"", [], 0, False
