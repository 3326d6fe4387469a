"""Bytes into lines, and lines into what the shim must know of them.

Owns the framing of newline-delimited JSON-RPC (CRLF, blank lines, a byte order mark and a missing last newline are
accepted; a line has a cap) and a shallow look at a message. Never decodes params or results, and does no I/O.
Source: MCP, Transports, stdio.
"""

from dataclasses import dataclass
from typing import Final, Literal

import msgspec
from msgspec import Raw

from coffer_common import jsonrpc, protocol, surrogates

Key = tuple[Literal["text", "number"], str]
"""A request id with its JSON type: ``7`` is not ``"7"``. A number is kept by its digits, however many."""

Kind = Literal["request", "notification", "response", "control", "other"]

_BOM: Final = b"\xef\xbb\xbf"
_BLANK: Final = b" \t\r"
_ABSENT: Final = Raw(b"")


class Malformed(Exception):
    """A line that is no message. ``code`` is the JSON-RPC error for whoever sent it."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Wire(msgspec.Struct):
    coffer: Raw = _ABSENT
    method: Raw = _ABSENT
    id: Raw = _ABSENT
    params: Raw = _ABSENT
    result: Raw = _ABSENT
    error: Raw = _ABSENT


@dataclass(slots=True)
class Look:
    """What one message is. ``id`` is None where there is none, or none that a request may have."""

    kind: Kind
    method: str
    id: Key | None
    raw_id: bytes
    params: Raw
    result: Raw


_decode_wire: Final = msgspec.json.Decoder(_Wire).decode
_decode_list: Final = msgspec.json.Decoder(list[Raw]).decode


class Splitter:
    """Cuts a byte stream into lines of at most ``limit`` bytes; longer ones are dropped and counted."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._seen = 0
        self._skipping = False
        self._first = True
        self.oversized = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that ``data`` completes, without line ends; blank ones are left out."""
        lines: list[bytes] = []
        buffer = self._buffer
        buffer += data
        start = 0
        while (end := buffer.find(b"\n", max(start, self._seen))) >= 0:
            self._take(lines, start, end)
            start = end + 1
            self._seen = start
        if start:
            del buffer[:start]
        self._seen = len(buffer)
        if len(buffer) > self._limit:
            if not self._skipping:
                self._skipping = True
                self.oversized += 1
            buffer.clear()
            self._seen = 0
        return lines

    def end(self) -> list[bytes]:
        """The last line, where the stream ended without a line end."""
        lines: list[bytes] = []
        self._take(lines, 0, len(self._buffer))
        self._buffer.clear()
        self._seen = 0
        return lines

    def _take(self, lines: list[bytes], start: int, end: int) -> None:
        if self._skipping:
            self._skipping = False
            return
        if end - start > self._limit:
            self.oversized += 1
            return
        line = bytes(memoryview(self._buffer)[start:end])
        if self._first:
            self._first = False
            line = line.removeprefix(_BOM)
        line = line.strip(_BLANK)
        if line:
            lines.append(line)


def look(line: bytes) -> Look:
    """The message of a line. Raises Malformed."""
    try:
        if not line.isascii():
            line.decode()
        return _seen(_decode_wire(line))
    except UnicodeDecodeError as error:
        raise Malformed(protocol.PARSE_ERROR, f"not UTF-8: byte {error.start} of the line") from None
    except msgspec.ValidationError:
        raise Malformed(protocol.INVALID_REQUEST, "a message is an object") from None
    except (msgspec.DecodeError, RecursionError) as error:
        whole = surrogates.without_halves(line)
        if whole == line:
            raise Malformed(protocol.PARSE_ERROR, f"not JSON: {error}") from None
    return _with_halves(line, whole)


def _with_halves(line: bytes, whole: bytes) -> Look:
    """JavaScript leaves halves of surrogate pairs as escapes, which msgspec refuses: ``whole`` has none."""
    seen = look(whole)
    if seen.raw_id not in line:
        seen.id, seen.raw_id = None, b"null"  # no answer could repeat it
    return seen


def batch(line: bytes) -> list[tuple[bytes, Look]]:
    """The messages of a JSON-RPC batch, each with its own bytes. Raises Malformed for all if one is none."""
    try:
        items = surrogates.items(line, _items)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Malformed(protocol.PARSE_ERROR, f"not JSON: {error}") from None
    if not items:
        raise Malformed(protocol.INVALID_REQUEST, "an empty batch")
    return [(item, look(item)) for item in items]


def _items(line: bytes) -> list[bytes]:
    return [bytes(item) for item in _decode_list(line)]


def key_of(raw: Raw | bytes) -> Key | None:
    """The typed form of a raw JSON id."""
    text = bytes(raw)
    if not jsonrpc.is_id(text):
        return None
    try:
        return ("text", msgspec.json.decode(text, type=str)) if text[:1] == b'"' else ("number", text.decode())
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def member(raw: Raw, *path: str) -> Raw:
    """A member of a raw object by its path; empty where there is none."""
    for name in path:
        try:
            raw = msgspec.json.decode(raw, type=dict[str, Raw]).get(name, _ABSENT)
        except jsonrpc.UNREADABLE:
            return _ABSENT
    return raw


def _seen(wire: _Wire) -> Look:
    raw_id = bytes(wire.id)
    key = key_of(raw_id) if raw_id else None
    kind: Kind
    if wire.coffer:
        kind = "control"
    elif wire.method:
        kind = "request" if raw_id else "notification"
    else:
        kind = "response" if raw_id and bool(wire.result) != bool(wire.error) else "other"
    try:
        method = msgspec.json.decode(wire.method, type=str) if wire.method else ""
    except msgspec.DecodeError:
        method = ""  # no text, or one that only the daemon need refuse
    return Look(kind, method, key, raw_id, wire.params, wire.result)
