"""Bytes of a line transport in, messages out.

Owns splitting at LF, CRLF, blank lines, byte order marks, a last line without its newline, and the limit on a line's
length. Never decodes JSON, never keeps more than one line (up to the limit) in memory.
Source: MCP, Transports, stdio (messages are delimited by newlines and contain none).
"""

import re
from dataclasses import dataclass
from typing import Final

from coffer_common.jsonrpc import BOM

_HEAD: Final = 512
_ID: Final = re.compile(rb'^\s*\{(?:\s*"jsonrpc"\s*:\s*"2\.0"\s*,)?\s*"id"\s*:\s*("?)(\d{1,18})\1\s*[,}]')
_TAIL_ID: Final = re.compile(rb'[,}\]"\d]\s*,\s*"id"\s*:\s*("?)(\d{1,18})\1\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')


@dataclass(frozen=True, slots=True)
class TooLong:
    """A line passed the limit. ``id``: of the answer it seems to be, None where that cannot be told yet.

    ``final``: the line has ended (or the stream has), so no later event will tell more.
    """

    id: int | None
    size: int
    final: bool


class Lines:
    """The lines of one stream, ``limit`` bytes each at most."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._skipped = 0
        self._told = False
        self._tail = b""

    def unfinished(self) -> bytes:
        """The beginning of a line that is not complete, for people to see."""
        return bytes(self._buffer[:_HEAD])

    def feed(self, data: bytes) -> list[bytes | TooLong]:
        """The lines that ``data`` completes, without their ends, blank ones left out."""
        out: list[bytes | TooLong] = []
        first, newline, rest = data.partition(b"\n")
        if not newline:
            self._append(first, out)
            return out
        if self._buffer or self._skipped or len(first) > self._limit:
            self._append(first, out)
            self._end(out)
        else:
            self._line(first, out)
        if rest:
            *whole, last = rest.split(b"\n")
            for line in whole:
                if len(line) > self._limit:
                    self._append(line, out)
                    self._end(out)
                else:
                    self._line(line, out)
            if last:
                self._append(last, out)
        return out

    def finish(self) -> list[bytes | TooLong]:
        """The stream has ended: the last line, where it had no newline."""
        out: list[bytes | TooLong] = []
        self._end(out)
        return out

    def _append(self, piece: bytes, out: list[bytes | TooLong]) -> None:
        if not self._skipped:
            self._buffer += piece
            if len(self._buffer) <= self._limit:
                return
            match = _ID.match(self._buffer[:_HEAD])
            self._skipped = len(self._buffer)
            self._tail = bytes(self._buffer[-_HEAD:])
            self._buffer = bytearray()
            if match is not None:
                self._told = True
                out.append(TooLong(int(match.group(2)), self._skipped, final=False))
            return
        self._skipped += len(piece)
        self._tail = (self._tail + piece[-_HEAD:])[-_HEAD:]

    def _end(self, out: list[bytes | TooLong]) -> None:
        if self._skipped:
            if not self._told:
                match = _TAIL_ID.search(self._tail)
                out.append(TooLong(int(match.group(2)) if match else None, self._skipped, final=True))
            self._skipped, self._told, self._tail = 0, False, b""
        elif self._buffer:
            line, self._buffer = bytes(self._buffer), bytearray()
            self._line(line, out)

    @staticmethod
    def _line(line: bytes, out: list[bytes | TooLong]) -> None:
        if line[-1:] == b"\r":
            line = line[:-1]
        if line[:3] == BOM:
            line = line[3:]
        if line and not line.isspace():
            out.append(line)
