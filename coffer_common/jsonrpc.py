"""JSON-RPC envelopes as views over raw bytes, and the messages Coffer writes around raw payloads.

Owns the envelope's shape and the checks that raw bytes need before they may travel on (UTF-8, duplicate members,
line breaks). Never decodes a payload: ``params``, ``result`` and ``error`` stay bytes.
Source: JSON-RPC 2.0; MCP base protocol, Messages.
"""

import codecs
import functools
import json
from collections.abc import Callable
from typing import Any, Final, Literal, TypeVar, cast

import msgspec
from msgspec import UNSET, Raw, UnsetType

from coffer_common import protocol, surrogates

BOM: Final = b"\xef\xbb\xbf"
_LINE_BREAKS: Final = bytes.maketrans(b"\r\n", b"  ")
_EMPTY: Final = Raw(b"")
_LARGE: Final = 16 * 1024
_STEP: Final = 256 * 1024
_DUPLICATES: Final = "duplicate member "
_ENVELOPE_NAMES: Final = ("id", "method", "params", "result", "error")
_ROUTING_NAMES: Final = frozenset({"_meta", "name", "uri", "ref"})
_T = TypeVar("_T")
UNREADABLE: Final = (msgspec.DecodeError, RecursionError)
"""What a msgspec decoder raises for what it cannot read. How deep JSON may be nested hangs on how deep the reader is
called: what was parsed at the door may be too deep further in."""


class Malformed(Exception):
    """A message that is no JSON-RPC message. ``id`` is the request's own as raw JSON, ``b"null"`` where unknown."""

    def __init__(self, code: int, message: str, id: bytes = b"null") -> None:
        super().__init__(message)
        self.code, self.message, self.id = code, message, id


class Envelope(msgspec.Struct, frozen=True):
    """One message; absent members are UNSET or empty. ``id`` keeps the peer's JSON type and spelling."""

    method: str | UnsetType = UNSET
    id: Raw = _EMPTY
    params: Raw = _EMPTY
    result: Raw = _EMPTY
    error: Raw = _EMPTY
    jsonrpc: str | UnsetType = UNSET

    @property
    def raw_id(self) -> bytes:
        """The id as raw JSON; empty for a notification."""
        return bytes(self.id)

    @property
    def outline(self) -> bytes:
        """``params`` for whoever looks up what names or describes the request: large values of other members may stand
        as 0 in it, so that a megabyte of arguments is not looked through for each name."""
        return bytes(self.params)

    @property
    def kind(self) -> Literal["request", "notification", "response", "invalid"]:
        """What the message is, by the members it has."""
        if self.method is not UNSET:
            return "request" if self.id else "notification"
        return "response" if self.id and bool(self.result) != bool(self.error) else "invalid"


class _Large(Envelope, frozen=True):
    """A large message, taken apart once: its payload is ``bytes`` already, so that no look at it is a copy."""

    outline: bytes = b""


_decode_envelope: Final = msgspec.json.Decoder(Envelope).decode
_decode_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_any: Final = msgspec.json.Decoder().decode


def is_id(raw: bytes) -> bool:
    """Whether raw JSON may be a request id: a string or an integer (MCP: never null)."""
    return raw[:1] == b'"' or (raw.lstrip(b"-").isdigit() and raw != b"")


def parse(data: bytes | bytearray | memoryview) -> Envelope:
    """The envelope of one message from a peer that calls us.

    Raises ``Malformed``: -32700 for what is no JSON, -32600 for JSON that is no message (arrays are the caller's
    business), with the id where it can be read. Checks UTF-8, and duplicates of the members that route. Halves of
    surrogate pairs, which JavaScript clients emit, pass within payloads; the outline has U+FFFD for them.
    """
    raw = bytes(data)
    try:
        return _parse(raw)
    except Malformed as error:
        if error.code != protocol.PARSE_ERROR or b"\\u" not in raw:
            raise
        whole = surrogates.without_halves(raw)
        if whole == raw:
            raise
    return _with_halves(_parse(whole), whole, raw)


def _with_halves(envelope: Envelope, whole: bytes, raw: bytes) -> Envelope:
    """The envelope of ``whole`` with its payload as it stands in ``raw``, which is as long."""
    if envelope.raw_id not in raw:
        raise Malformed(protocol.INVALID_REQUEST, "id holds half a surrogate pair")

    def own(value: Raw) -> Raw:
        at = whole.rfind(bytes(value))
        return cast(Raw, raw[at : at + len(bytes(value))])

    payload = {name: own(value) for name in ("params", "result", "error") if (value := getattr(envelope, name))}
    return _Large(envelope.method, envelope.id, jsonrpc=envelope.jsonrpc, outline=envelope.outline, **payload)


def _parse(raw: bytes) -> Envelope:
    try:
        _check_utf8(raw)
        envelope = _decode_envelope(raw)
    except UnicodeDecodeError as error:
        raise Malformed(protocol.PARSE_ERROR, f"not UTF-8: byte {error.start}") from None
    except msgspec.ValidationError as error:
        raise Malformed(protocol.INVALID_REQUEST, f"not a JSON-RPC message: {error}", _salvaged_id(raw)) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise Malformed(protocol.PARSE_ERROR, f"not JSON: {error}") from None
    if len(raw) >= _LARGE:
        envelope = _large(envelope)
    raw_id = envelope.raw_id
    if raw_id and not is_id(raw_id):
        raise Malformed(protocol.INVALID_REQUEST, "id must be a string or an integer")
    if envelope.jsonrpc != "2.0":
        raise Malformed(protocol.INVALID_REQUEST, 'jsonrpc must be "2.0"', raw_id or b"null")
    if envelope.kind == "invalid":
        raise Malformed(protocol.INVALID_REQUEST, "neither a request nor a response: no method", raw_id or b"null")
    twice = _duplicate_in_envelope(raw, envelope)
    if twice is not None:
        raise Malformed(protocol.INVALID_REQUEST, f"{_DUPLICATES}{twice!r}", raw_id or b"null")
    if envelope.params and bytes(envelope.params)[:1] != b"{":
        raise Malformed(protocol.INVALID_PARAMS, "params must be an object", raw_id or b"null")
    return envelope


def _check_utf8(raw: bytes) -> None:
    """Raises UnicodeDecodeError. A large text is decoded in pieces: as a whole it would be megabytes for nothing."""
    if len(raw) < _LARGE:
        raw.decode()
    if len(raw) < _LARGE or raw.isascii():
        return
    decoder, whole = codecs.getincrementaldecoder("utf-8")(), memoryview(raw)
    try:
        for at in range(0, len(raw), _STEP):
            decoder.decode(whole[at : at + _STEP])
        decoder.decode(b"", True)
    except UnicodeDecodeError:
        raw.decode()  # raises too, and says where from the beginning


def _large(envelope: Envelope) -> Envelope:
    members = {name: getattr(envelope, name) for name in ("params", "result", "error")}
    payloads = {name: cast(Raw, bytes(value)) for name, value in members.items() if value}
    outline = _without_large(bytes(payloads.get("params", b"")), keep=_ROUTING_NAMES)
    return _Large(envelope.method, envelope.id, jsonrpc=envelope.jsonrpc, outline=outline, **payloads)


def view(line: bytes) -> Envelope | None:
    """The envelope of a message from a peer we called, or None for what is no message (chatter on stdout)."""
    if line[:3] == BOM:
        line = line[3:]
    try:
        envelope = _decode_envelope(line)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return None if envelope.jsonrpc != "2.0" or envelope.kind == "invalid" else envelope


def read(raw: bytes, decode: Callable[[bytes], _T]) -> _T:
    """What ``decode``, a msgspec decoder's own, makes of a client's params. Raises msgspec.DecodeError, also for what
    is nested too deeply.

    It refuses half a surrogate pair even in members that it passes over, and so would hide the ones it is asked for:
    it sees U+FFFD for each, as the outline has.
    """
    try:
        try:
            return decode(raw)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            if b"\\u" not in raw:
                raise
        return decode(surrogates.without_halves(raw))
    except RecursionError:
        raise msgspec.DecodeError("it is nested too deeply") from None


def duplicate_member(raw: bytes, *names: str) -> str | None:
    """The first of ``names`` that stands more than once at the top level of a JSON object, or None.

    Peers may read the other one, so a name that routes must stand once. Cheap unless a name occurs twice
    anywhere, or an escape could hide one; what large values hold is not looked through. Where one is needed and the
    nesting is too deep for it, the first name counts as such.
    """
    raw = _without_large(raw)
    if not _may_repeat(raw, names):
        return None
    found: list[str] = []

    def pairs(members: list[tuple[str, Any]]) -> dict[str, Any]:
        found[:] = [key for key, _ in members]  # the outermost object is built last
        return {}

    try:
        json.loads(raw, object_pairs_hook=pairs, parse_int=str)  # Python refuses to read integers of 4300 digits
    except RecursionError:
        return names[0]
    return next((name for name in names if found.count(name) > 1), None)


def _may_repeat(raw: bytes, names: tuple[str, ...]) -> bool:
    """Whether a look is needed: a name stands twice somewhere, or an escape could hide one."""
    return (b"\\" in raw and b"\\u" in raw) or max(map(raw.count, _quoted(names))) > 1


@functools.cache
def _quoted(names: tuple[str, ...]) -> tuple[bytes, ...]:
    return tuple(b'"%s"' % name.encode() for name in names)


def _without_large(raw: bytes, *, keep: frozenset[str] = frozenset()) -> bytes:
    """The same object with 0 for each large value, save for those of ``keep``: a name within is none of the object's
    own."""
    if len(raw) < _LARGE:
        return raw
    try:
        members = _decode_members(raw)
    except (msgspec.DecodeError, RecursionError):
        return raw
    for name, value in members.items():
        if name not in keep and len(found := memoryview(value)) >= _LARGE:
            raw = _without(raw, found)
    return raw


def _without(raw: bytes, value: bytes | memoryview) -> bytes:
    """``raw`` with 0 for one occurrence of ``value``, which is cheap to find by its beginning. Copies neither."""
    at = raw.find(value[:64])
    if not raw.startswith(value, at):
        at = raw.find(value)
    return raw[:at] + b"0" + raw[at + len(value) :]


def _duplicate_in_envelope(raw: bytes, envelope: Envelope) -> str | None:
    payload = bytes(envelope.params or envelope.result or envelope.error)
    return duplicate_member(_without(raw, payload) if payload else raw, *_ENVELOPE_NAMES)


def _salvaged_id(raw: bytes) -> bytes:
    try:
        message = _decode_any(raw)
    except (msgspec.DecodeError, RecursionError):
        return b"null"
    found = message.get("id") if isinstance(message, dict) else None
    usable = isinstance(found, str | int) and not isinstance(found, bool)
    return msgspec.json.encode(found) if usable else b"null"


def one_line(raw: bytes) -> bytes:
    """The same JSON on one line: a literal CR or LF can only stand between tokens, so each becomes a space."""
    return raw.translate(_LINE_BREAKS) if b"\n" in raw or b"\r" in raw else raw


def request(id: bytes, method: str, params: bytes = b"") -> bytes:
    """A request; ``id`` and ``params`` are raw JSON (no params where empty)."""
    tail = b',"params":' + params if params else b""
    return b'{"jsonrpc":"2.0","id":' + id + b',"method":' + msgspec.json.encode(method) + tail + b"}"


def notification(method: str, params: bytes = b"") -> bytes:
    """A notification; ``params`` is raw JSON (none where empty)."""
    tail = b',"params":' + params if params else b""
    return b'{"jsonrpc":"2.0","method":' + msgspec.json.encode(method) + tail + b"}"


def response(id: bytes, result: bytes) -> bytes:
    """A successful response around raw result bytes."""
    return b"".join(response_parts(id, result))


def response_parts(id: bytes, result: bytes | memoryview) -> tuple[bytes, bytes | memoryview, bytes]:
    """The same, not joined yet."""
    return b'{"jsonrpc":"2.0","id":%b,"result":' % id, result, b"}"


def error_response(id: bytes, error: bytes) -> bytes:
    """An error response around a raw error object."""
    return b'{"jsonrpc":"2.0","id":' + id + b',"error":' + error + b"}"


def error(code: int, message: str, data: Any = None) -> bytes:
    """A raw error object."""
    body: dict[str, Any] = {"code": code, "message": message}
    if data is not None:
        body["data"] = data
    return msgspec.json.encode(body)
