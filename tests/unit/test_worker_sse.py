"""The event-stream parser: every rule, however the bytes are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coffer_worker.core.framing import TooLong
from coffer_worker.core.sse import Event, Events


def parse(data: bytes, *, limit: int = 1 << 16, step: int = 0) -> list[Event | TooLong]:
    """All events of a whole stream, fed in pieces of `step` bytes (0: at once)."""
    events = Events(limit)
    size = step or max(len(data), 1)
    return [found for at in range(0, len(data), size) for found in events.feed(data[at : at + size])]


def data_of(data: bytes, step: int = 0) -> list[bytes]:
    """The data of each event."""
    return [found.data for found in parse(data, step=step) if isinstance(found, Event)]


@pytest.mark.parametrize("step", [0, 1, 2, 3, 7])
@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_line_ends_wherever_they_are_cut(end: bytes, step: int) -> None:
    """H10: LF, CR and CRLF, cut anywhere; many data lines; comments; no space after the colon; a cut character."""
    lines = [
        *(b": hello", b"", b'data: {"a":', b"data:1,", b'data: "b":2}', b""),
        *(b"data: \xc3\xa9", b"", b"event: other", b"id: 7", b"retry: 1500", b"data: x", b""),
    ]
    stream = end.join(lines) + end
    assert parse(stream, step=step) == [
        Event(b"message", b'{"a":\n1,\n"b":2}', b""),
        Event(b"message", b"\xc3\xa9", b""),
        Event(b"other", b"x", b"7"),
    ]


@pytest.mark.parametrize("step", [0, 1, 2])
def test_a_blank_line_after_a_cut_crlf_ends_the_event(step: int) -> None:
    """The LF of a CRLF is passed over once: the next one is a line of its own, in whatever piece it comes."""
    assert data_of(b"data: 1\r\n\ndata: 2\r\n\n", step=step) == [b"1", b"2"]


@pytest.mark.parametrize("step", [0, 5])
def test_empty_data_lines_without_end_are_over_the_limit_too(step: int) -> None:
    assert [type(each) for each in parse(b"data\n" * 101 + b"\n", limit=100, step=step)] == [Event]
    assert [type(each) for each in parse(b"data\n" * 102 + b"\n", limit=100, step=step)] == [TooLong]


def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    assert data_of(b"\xef\xbb\xbfdata: 1\n\ndata: 2\n\n") == [b"1", b"2"]


def test_an_event_without_its_blank_line_is_none() -> None:
    assert data_of(b"data: 1\n\ndata: 2\n") == [b"1"]


def test_an_event_without_data_is_none_but_its_id_counts() -> None:
    events = Events(100)
    assert events.feed(b"id: 5\n\n") == []
    assert events.last_id == b"5"
    assert events.feed(b"id: 6\ndata:\n\n") == [Event(b"message", b"", b"6")]


def test_odd_fields_are_ignored() -> None:
    events = Events(100)
    assert events.feed(b"id: a\0b\nretry: soon\nretry: 99999999999\nfoo: bar\ndata\ndata: y\n\n") == [
        Event(b"message", b"\ny", b"")
    ]
    assert (events.last_id, events.retry) == (b"", None)
    events.feed(b"retry: 250\n")
    assert events.retry == 250


@pytest.mark.parametrize("step", [0, 1, 10])
@pytest.mark.parametrize(
    "long", [b"data: " + b"x" * 300, b"data: " + b"x" * 60 + b"\ndata: " + b"x" * 60 + b"\ndata: z"]
)
def test_an_event_over_the_limit_is_told_once_and_skipped(step: int, long: bytes) -> None:
    """The others are not harmed, and nothing of it is kept."""
    found = parse(b"data: 1\n\n" + long + b"\nid: 9\n\ndata: 2\n\n", limit=100, step=step)
    assert [type(each) for each in found] == [Event, TooLong, Event]
    assert isinstance(found[1], TooLong)
    assert found[1].size > 100
    assert (found[2].data, found[2].id) == (b"2", b"9")  # type: ignore[union-attr]


def test_the_limit_is_told_before_the_event_ends() -> None:
    events = Events(100)
    found = events.feed(b"data: " + b"x" * 400)
    assert [type(each) for each in found] == [TooLong]
    assert events.feed(b"x" * 400) == []


def test_after_a_break_the_half_event_is_dropped_and_the_id_is_kept() -> None:
    events = Events(100)
    events.feed(b"id: 3\ndata: 1\n\ndata: half")
    events.restart()
    assert events.feed(b"data: whole\n\n") == [Event(b"message", b"whole", b"3")]


@given(st.binary(max_size=200), st.lists(st.integers(1, 20), max_size=30))
def test_the_cuts_do_not_matter(stream: bytes, cuts: list[int]) -> None:
    whole, pieces = Events(64), Events(64)
    expected, found, at = whole.feed(stream), [], 0
    for cut in cuts:
        found += pieces.feed(stream[at : at + cut])
        at += cut
    found += pieces.feed(stream[at:])
    assert [each for each in found if isinstance(each, Event)] == [each for each in expected if isinstance(each, Event)]
