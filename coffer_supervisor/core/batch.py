"""The messages of a JSON-RPC batch, cut out of its bytes and bounded in number.

Owns the bound: a body of the largest size holds millions of tiny items, each of which would be answered. Pure. Never
looks into a message.
Source: MCP 2025-03-26, Base protocol, Batching.
"""

from typing import Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from coffer_common import surrogates

MAX_ITEMS: Final = 1000
"""Messages of one batch. A server takes some 300 calls at once, open and queued, by default."""

# An array that is cut short at the item after the last, before the rest of it costs anything.
_Items: Final = msgspec.defstruct(
    "_Items",
    [(f"item{number}", Raw | UnsetType, UNSET) for number in range(MAX_ITEMS)],
    array_like=True,
    forbid_unknown_fields=True,
)
_decode: Final = msgspec.json.Decoder(_Items).decode


class TooMany(Exception):
    """A batch of more than ``MAX_ITEMS`` messages; says so."""


def items(body: bytes) -> list[bytes]:
    """The raw items of a JSON array. Raises TooMany; msgspec.DecodeError or RecursionError for what is no JSON."""
    return surrogates.items(body, _items)


def _items(body: bytes) -> list[bytes]:
    try:
        found = msgspec.structs.astuple(_decode(body))
    except msgspec.ValidationError:
        raise TooMany(f"a batch holds at most {MAX_ITEMS} messages: send the rest in another") from None
    return [bytes(item) for item in found if item is not UNSET]
