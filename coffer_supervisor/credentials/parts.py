"""Secrets that are larger than one entry of a keychain may be: how they are cut, named and put together again.

Owns the marker that stands in a secret's own entry and the names of its parts. Two sets of parts take turns, so that
the old value stays whole until the marker names the new set; what is left of a write that was cut off is never read.
Pure: nothing is asked of a keychain here.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

Turn = Literal["a", "b"]
TURNS: Final[tuple[Turn, ...]] = ("a", "b")
MARKER: Final = "coffer-parts:1:"
PART_BYTES: Final = 2400
"""Of UTF-16, as Windows' store counts; macOS and the Secret Service take more."""
MAX_PARTS: Final = 4096


@dataclass(frozen=True, slots=True)
class Head:
    """What stands in a secret's own entry when it is kept in parts. ``digest``: SHA-256 (hex) of the whole."""

    turn: Turn
    count: int
    digest: str

    def __str__(self) -> str:
        return f"{MARKER}{self.turn}:{self.count}:{self.digest}"


def cut(secret: str) -> list[str]:
    """``secret`` in parts that fit; an empty list where it may stand in its own entry as it is."""
    if _bytes(secret) <= PART_BYTES and not secret.startswith(MARKER):
        return []
    size = PART_BYTES // 2 if _bytes(secret) == 2 * len(secret) else PART_BYTES // 4
    return [secret[at : at + size] for at in range(0, len(secret), size)]


def head_of(parts: Sequence[str], before: Head | None) -> Head:
    """The marker for ``parts``, in the turn that ``before`` does not hold."""
    turn: Turn = "b" if before is not None and before.turn == "a" else "a"
    return Head(turn, len(parts), _digest("".join(parts)))


def read_head(entry: str | None) -> Head | None:
    """The marker in an entry; None for a secret that stands there itself, and for nothing."""
    if entry is None or not entry.startswith(MARKER):
        return None
    words = entry.removeprefix(MARKER).split(":")
    if len(words) != 3 or words[0] not in TURNS or not words[1].isdecimal() or int(words[1]) > MAX_PARTS:
        return Head("a", 0, "")  # a marker that cannot be read: no parts have its digest, so it reads as absent
    return Head("a" if words[0] == "a" else "b", int(words[1]), words[2])


def joined(parts: Sequence[str | None], head: Head) -> str | None:
    """The secret; None where a part is missing or belongs to another value."""
    found = [part for part in parts if part is not None]
    whole = "".join(found)
    return whole if len(found) == head.count and _digest(whole) == head.digest else None


def part_name(reference: str, turn: Turn, number: int) -> str:
    """The entry of one part; no reference can be spelt like it."""
    return f"{reference}.{turn}.{number}"


def _bytes(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass"))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
