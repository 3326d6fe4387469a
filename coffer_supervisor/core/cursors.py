"""Cursors of Coffer's own pages: where a page ended, in words that outlive a change of the list.

Owns their encoding. A cursor holds no secret; its check digits exist so that a made-up one is refused rather than
answered with some page. Never knows the list itself. Source: MCP utilities/pagination (invalid cursor: -32602).
"""

import base64
import binascii
import hashlib
from typing import Final, NamedTuple

import msgspec

from coffer_common.frames import CapabilityType

_CHECK_BYTES: Final = 6


class Position(NamedTuple):
    """The last entry of a page: its server, its place and key in that server's own list."""

    server: str
    place: int
    key: str


_decoder: Final = msgspec.msgpack.Decoder(tuple[str, Position])


def encode(type_: CapabilityType, position: Position) -> bytes:
    """The cursor after ``position`` in the list of ``type_``: characters that JSON needs not escape."""
    body = msgspec.msgpack.encode((type_, position))
    return base64.urlsafe_b64encode(_check(body) + body)


def decode(type_: CapabilityType, cursor: str) -> Position | None:
    """The position that a cursor of the list of ``type_`` names; None for any other text."""
    try:
        raw = base64.b64decode(cursor.encode("ascii"), altchars=b"-_", validate=True)
        found, position = _decoder.decode(raw[_CHECK_BYTES:])
    except (binascii.Error, UnicodeError, msgspec.MsgspecError):
        return None
    honest = raw[:_CHECK_BYTES] == _check(raw[_CHECK_BYTES:]) and found == type_
    return position if honest else None


def before(one: Position, other: Position) -> bool:
    """Whether ``one`` comes before ``other`` where both may have moved: by server, then by place."""
    return (one.server, one.place) < (other.server, other.place)


def _check(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_CHECK_BYTES, person=b"coffer-cursor").digest()
