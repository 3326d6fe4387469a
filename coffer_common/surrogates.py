"""Halves of surrogate pairs, which JavaScript leaves as escapes where it cuts a text, and UTF-8 cannot carry.

Owns finding them in raw JSON. Never decodes what it looks through.
Source: RFC 8259, section 8.2; ECMA-262, JSON.stringify.
"""

import re
from collections.abc import Callable
from typing import Final

# An escape begins behind an even number of backslashes. A high half with its low one is a character.
_ESCAPED: Final = re.compile(
    rb"(?<!\\)((?:\\\\)*)\\u[dD](?:[89abAB][0-9a-fA-F]{2}(\\u[dD][c-fC-F][0-9a-fA-F]{2})?|[c-fC-F][0-9a-fA-F]{2})"
)
_REPLACED: Final = b"\\ufffd"


def without_halves(raw: bytes) -> bytes:
    """The same JSON, of the same length, with U+FFFD for each half of a surrogate pair."""
    return _ESCAPED.sub(_replacement, raw)


def items(raw: bytes, cut: Callable[[bytes], list[bytes]]) -> list[bytes]:
    """The items that ``cut`` finds in a JSON array, as they stand in ``raw``, halves of surrogate pairs included.

    ``cut`` raises ValueError for what is no JSON, and so does this where halves are not the reason.
    """
    try:
        return cut(raw)
    except ValueError:
        whole = without_halves(raw) if b"\\u" in raw else raw
        if whole == raw:
            raise
    found: list[bytes] = []
    at = 0
    for item in cut(whole):
        at = whole.index(item, at)
        found.append(raw[at : at + len(item)])
        at += len(item)
    return found


def _replacement(found: re.Match[bytes]) -> bytes:
    return found.group() if found.group(2) else found.group(1) + _REPLACED
