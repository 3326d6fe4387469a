"""Bytes of a pipe to lines (F04, F05, F07, F08)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coffer_worker.core.framing import Lines, TooLong


def fed(lines: Lines, *chunks: bytes) -> list[bytes | TooLong]:
    return [item for chunk in chunks for item in lines.feed(chunk)]


def test_one_chunk_one_line() -> None:
    assert fed(Lines(100), b'{"a":1}\n') == [b'{"a":1}']


def test_crlf_blank_lines_and_byte_order_marks_are_taken_off() -> None:
    """F07, F08."""
    lines = Lines(100)
    assert fed(lines, b"\xef\xbb\xbfone\r\n\n  \r\n\xef\xbb\xbftwo\n", b"\r\n", b"three") == [b"one", b"two"]
    assert lines.unfinished() == b"three"
    assert lines.finish() == [b"three"]
    assert lines.finish() == []


def test_a_line_over_the_limit_is_told_at_once_by_its_id_and_skipped() -> None:
    """F05: the tail is never parsed as a new frame, and the next line is whole again."""
    lines = Lines(64)
    head = b'{"jsonrpc":"2.0","id":5,"result":"' + b"x" * 40
    assert fed(lines, head) == [TooLong(5, 74, final=False)]
    assert fed(lines, b"y" * 200, b'"}\n{"ok":1}\n') == [b'{"ok":1}']


def test_where_the_id_stands_last_it_is_told_at_the_end() -> None:
    lines = Lines(64)
    long = b'{"result":{"t":"' + b"x" * 100 + b'"},"id":7,"jsonrpc":"2.0"}\n'
    assert fed(lines, long) == [TooLong(7, len(long) - 1, final=True)]
    assert fed(lines, b"z" * 70 + b"\nnext\n") == [TooLong(None, 70, final=True), b"next"]


def test_a_long_line_among_others_in_one_chunk() -> None:
    lines = Lines(64)
    chunk = b"a\n" + b'{"id":3,"result":"' + b"x" * 80 + b'"}\nb\n'
    assert fed(lines, chunk) == [b"a", TooLong(3, 100, final=False), b"b"]


def test_the_stream_may_end_in_a_skipped_line() -> None:
    lines = Lines(64)
    assert fed(lines, b"q" * 65) == []
    assert lines.finish() == [TooLong(None, 65, final=True)]


def test_the_limit_itself_is_allowed() -> None:
    assert fed(Lines(64), b"x" * 64 + b"\n") == [b"x" * 64]
    assert fed(Lines(64), b"x" * 32, b"x" * 32, b"\n") == [b"x" * 64]


@pytest.mark.parametrize("size", [130 * 1024, 5 * 1024 * 1024])
def test_long_lines_below_the_limit_pass_whole(size: int) -> None:
    """F04."""
    lines, data = Lines(64 * 1024 * 1024), b"x" * size + b"\n"
    assert fed(lines, *(data[at : at + 65536] for at in range(0, len(data), 65536))) == [data[:-1]]


@given(st.lists(st.text(st.characters(min_codepoint=33, max_codepoint=0x2000), min_size=1), max_size=6), st.data())
def test_chunks_make_no_difference(bodies: list[str], data: st.DataObject) -> None:
    whole = [body.encode() for body in bodies if body.strip()]
    stream = b"".join(line + b"\n" for line in whole)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    pieces = (stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True))
    assert fed(Lines(10_000), *pieces) == whole
