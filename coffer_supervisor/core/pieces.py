"""A large message as the pieces it is made of, so that nobody copies it whole or holds the loop with it.

Owns where one is cut. Pure: whoever writes a message takes its slices in turn, and lets others go on in between.
"""

from collections.abc import Iterator
from typing import Final

from coffer_common import jsonrpc

SLICE_BYTES: Final = 256 * 1024

Buffer = bytes | memoryview


class Pieces:
    """A message too large to be joined. Its length is that of the whole; ``bytes`` joins it all the same."""

    __slots__ = ("_size", "pieces")

    def __init__(self, *pieces: Buffer) -> None:
        self.pieces = pieces
        self._size = sum(map(len, pieces))

    def __len__(self) -> int:
        return self._size

    def __bytes__(self) -> bytes:
        return b"".join(self.pieces)

    def slices(self) -> Iterator[Buffer]:
        """The message in order, ``SLICE_BYTES`` at a time at the most."""
        for piece in self.pieces:
            view = memoryview(piece)
            for at in range(0, len(view), SLICE_BYTES):
                yield view[at : at + SLICE_BYTES]

    def lines(self) -> Iterator[Buffer]:
        """The same on one line (see ``jsonrpc.one_line``)."""
        for piece in self.slices():
            flat = bytes(piece)
            line = jsonrpc.one_line(flat)
            yield piece if line is flat else line


Message = bytes | Pieces


def response(raw_id: bytes, result: Buffer) -> Message:
    """A successful response around a result: joined where it is small."""
    if isinstance(result, bytes):
        return jsonrpc.response(raw_id, result)
    return Pieces(*jsonrpc.response_parts(raw_id, result))


def array(messages: list[Message]) -> Message:
    """A JSON array of messages."""
    if all(isinstance(message, bytes) for message in messages):
        return b"[" + b",".join(map(bytes, messages)) + b"]"
    found: list[Buffer] = []
    for message in messages:
        found += (b"," if found else b"[", *((message,) if isinstance(message, bytes) else message.pieces))
    return Pieces(*found, b"]")
