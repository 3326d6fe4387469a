"""Large messages in pieces: cut, joined and put into arrays without another copy of the whole."""

from __future__ import annotations

import json

from coffer_supervisor.core import pieces
from coffer_supervisor.core.pieces import SLICE_BYTES, Pieces

RESULT = json.dumps({"text": "x" * (3 * SLICE_BYTES)}).encode()


def test_small_results_are_joined_and_large_ones_stay_where_they_are() -> None:
    assert pieces.response(b"1", b"{}") == b'{"jsonrpc":"2.0","id":1,"result":{}}'
    large = pieces.response(b'"a"', memoryview(RESULT))
    assert isinstance(large, Pieces)
    assert large.pieces[1].obj is RESULT  # type: ignore[union-attr]
    assert json.loads(bytes(large)) == {"jsonrpc": "2.0", "id": "a", "result": json.loads(RESULT)}
    assert len(large) == len(bytes(large))


def test_slices_are_bounded_and_make_up_the_whole() -> None:
    """Nobody who writes one holds the loop for longer than one slice takes."""
    large = pieces.response(b"1", memoryview(RESULT))
    assert isinstance(large, Pieces)
    found = list(large.slices())
    assert max(map(len, found)) == SLICE_BYTES
    assert b"".join(found) == bytes(large)
    assert all(isinstance(one, memoryview) for one in found), "none is a copy"


def test_lines_hold_no_line_break() -> None:
    """A line break that stands between tokens becomes a space, wherever the cut falls."""
    pretty = b'{\r\n"a":\n1' + b" " * (2 * SLICE_BYTES) + b"\n}"
    found = b"".join(Pieces(pretty).lines())
    assert b"\n" not in found
    assert b"\r" not in found
    assert json.loads(found) == {"a": 1}
    assert len(found) == len(pretty)


def test_an_array_of_messages() -> None:
    large = Pieces(b"[", b"2]")
    assert pieces.array([b"1", b"2"]) == b"[1,2]"
    assert pieces.array([]) == b"[]"
    assert bytes(pieces.array([b"1", large, b"3"])) == b"[1,[2],3]"
    assert bytes(pieces.array([large])) == b"[[2]]"
