"""coffer_common.forkproto: framing whatever the chunks, and messages that come back as they were."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coffer_common import forkproto
from coffer_common.forkproto import (
    Boot,
    Exited,
    Fork,
    Forked,
    ForkFailed,
    Framer,
    FramingError,
    Kill,
    Ping,
    Pong,
    Quit,
    Ready,
)

COMMANDS = [Fork(1, "up", 2, "title", b"\x00\xff"), Kill(7, 2), Ping(9), Quit()]
EVENTS = [Ready(5), Forked(1, 7), ForkFailed(1, "no memory"), Exited(7, "up", 2, 0, 9), Pong(9, 1)]


@given(st.lists(st.sampled_from(COMMANDS), max_size=5), st.lists(st.integers(1, 40), min_size=1))
def test_any_chunks_give_the_same_messages(messages: list[forkproto.Command], sizes: list[int]) -> None:
    stream = b"".join(forkproto.encode(message) for message in messages)
    framer, found, at, turn = Framer(), [], 0, 0
    while at < len(stream):
        size = sizes[turn % len(sizes)]
        found += [forkproto.decode_command(body) for body in framer.feed(stream[at : at + size])]
        at, turn = at + size, turn + 1
    assert found == messages


@pytest.mark.parametrize("event", EVENTS)
def test_events_come_back_as_they_were(event: forkproto.Event) -> None:
    (body,) = Framer().feed(forkproto.encode(event))
    assert forkproto.decode_event(body) == event


def test_a_length_beyond_the_limit_is_refused_before_it_is_waited_for() -> None:
    with pytest.raises(FramingError, match="the limit"):
        list(Framer().feed(b"\xff\xff\xff\xff"))
    with pytest.raises(FramingError, match="exceeds"):
        forkproto.encode(Fork(1, "up", 1, "t", bytes(forkproto.MAX_MESSAGE)))


@pytest.mark.parametrize("body", [b"", b"\x93\x01\x02\x03", b"\xc1", b"\x92\xa5Other\x01"])
def test_what_is_no_message_is_refused(body: bytes) -> None:
    with pytest.raises(FramingError):
        forkproto.decode_command(body)
    with pytest.raises(FramingError):
        forkproto.decode_event(body)


def test_boot_comes_back_and_its_error_keeps_the_secret() -> None:
    boot = Boot("up", 3, "s3cret", "ipc://c", "ipc://b")
    assert forkproto.decode_boot(forkproto.encode_boot(boot)) == boot
    with pytest.raises(FramingError) as caught:
        forkproto.decode_boot(b"s3cret")
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None
