"""Raw JSON taken apart at its top level and joined again, so that what is not changed stays byte for byte.

Owns the one way in which the worker changes payloads: members and items as raw slices, rebuilt only along the path to
a changed value. Never passes a number or an untouched string through a decoder and encoder.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from json import decoder
from typing import Final

import msgspec
from msgspec import Raw

from coffer_common import jsonrpc

Slice = bytes | Raw

_decode_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_items: Final = msgspec.json.Decoder(list[Raw]).decode
_decode_text: Final = msgspec.json.Decoder(str).decode
_encode: Final = msgspec.json.encode
_TOO_DEEP: Final = "nested too deeply to be read"
_SPACE: Final = " \t\r\n"
_scan_string: Final[Callable[[str, int, bool], tuple[str, int]]] = vars(decoder)["scanstring"]


def members(raw: Slice) -> dict[str, Slice]:
    """The members of a JSON object as raw slices, in order. Raises ValueError for what is no object."""
    try:
        return _decode_members(raw)  # type: ignore[return-value]
    except msgspec.ValidationError as error:
        raise ValueError(f"not a JSON object: {error}") from None
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except msgspec.DecodeError as error:
        if b"\\u" not in bytes(raw):
            raise ValueError(f"not JSON: {error}") from None
    return _slow_members(bytes(raw))


def items(raw: Slice) -> list[Slice]:
    """The items of a JSON array as raw slices. Raises ValueError for what is no array."""
    try:
        return _decode_items(raw)  # type: ignore[return-value]
    except msgspec.ValidationError as error:
        raise ValueError(f"not a JSON array: {error}") from None
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except msgspec.DecodeError as error:
        if b"\\u" not in bytes(raw):
            raise ValueError(f"not JSON: {error}") from None
    return _slow_items(bytes(raw))


def join(parts: Mapping[str, Slice]) -> bytes:
    """A JSON object of raw members."""
    return b"{" + b",".join([b"%b:%b" % (key_bytes(key), bytes(value)) for key, value in parts.items()]) + b"}"


def join_items(parts: Iterable[Slice]) -> bytes:
    """A JSON array of raw items."""
    return b"[" + b",".join([bytes(part) for part in parts]) + b"]"


def key_bytes(key: str) -> bytes:
    """A member's name as JSON; lone surrogates stay escapes."""
    try:
        return _encode(key)
    except UnicodeEncodeError:
        return json.dumps(key).encode()


def text(raw: Slice | None) -> str | None:
    """The value of a JSON string; None where it is none, or holds what UTF-8 cannot carry."""
    if raw is None:
        return None
    try:
        return _decode_text(raw)
    except msgspec.DecodeError:
        return None


def is_object(raw: Slice | None) -> bool:
    """Whether a raw value is an object."""
    return raw is not None and bytes(raw)[:1] == b"{"


def message(line: bytes) -> jsonrpc.Envelope | None:
    """The envelope of one line from an upstream, or None for what is no message.

    As ``jsonrpc.view``, but also for messages that hold lone surrogates, which JavaScript servers do emit.
    """
    envelope = jsonrpc.view(line)
    if envelope is not None or b"\\u" not in line or line.lstrip()[:1] != b"{":
        return envelope
    try:
        found = _slow_members(line)
    except ValueError:
        return None
    method = found.get("method")
    made = jsonrpc.Envelope(
        method=msgspec.UNSET if method is None else (text(method) or ""),
        id=Raw(found.get("id", b"")),
        params=Raw(found.get("params", b"")),
        result=Raw(found.get("result", b"")),
        error=Raw(found.get("error", b"")),
        jsonrpc=text(found.get("jsonrpc")) or "",
    )
    return None if made.jsonrpc != "2.0" or made.kind == "invalid" else made


# ---- the slow way, for what msgspec refuses (lone surrogates): the standard library's decoder finds the ends


def _skip(source: str, at: int) -> int:
    while at < len(source) and source[at] in _SPACE:
        at += 1
    return at


def _value_end(source: str, at: int) -> int:
    try:
        return int(json.JSONDecoder().raw_decode(source, at)[1])
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def _slow_members(raw: bytes) -> dict[str, Slice]:
    source = raw.decode()
    at = _skip(source, 0)
    if source[at : at + 1] != "{":
        raise ValueError("not a JSON object")
    found: dict[str, Slice] = {}
    at = _skip(source, at + 1)
    while source[at : at + 1] != "}":
        if source[at : at + 1] != '"':
            raise ValueError(f"not JSON: a name is missing at {at}")
        key, at = _scan_string(source, at + 1, True)
        at = _skip(source, at)
        if source[at : at + 1] != ":":
            raise ValueError(f"not JSON: ':' is missing at {at}")
        start = _skip(source, at + 1)
        end = _value_end(source, start)
        found[key] = source[start:end].encode()
        at = _next(source, end)
    return found


def _slow_items(raw: bytes) -> list[Slice]:
    source = raw.decode()
    at = _skip(source, 0)
    if source[at : at + 1] != "[":
        raise ValueError("not a JSON array")
    found: list[Slice] = []
    at = _skip(source, at + 1)
    while source[at : at + 1] != "]":
        end = _value_end(source, at)
        found.append(source[at:end].encode())
        at = _next(source, end)
    return found


def _next(source: str, at: int) -> int:
    at = _skip(source, at)
    if source[at : at + 1] == ",":
        return _skip(source, at + 1)
    if source[at : at + 1] not in ("}", "]"):
        raise ValueError(f"not JSON: ',' is missing at {at}")
    return at
