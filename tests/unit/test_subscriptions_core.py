"""Filters of listen streams, and how storms of changes become few notices."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from coffer_supervisor.core.subscriptions import (
    FIRST_SETTLE_SECONDS,
    INTERVAL_SECONDS,
    KINDS,
    MAX_URIS,
    SETTLE_SECONDS,
    Coalescer,
    Filter,
)

T, R = b"tools", b"resources"


def test_a_filter_honours_what_was_asked_for_and_is_possible() -> None:
    """An acknowledgement names the part of the filter that is asked for and possible, and nothing else."""
    asked = msgspec.json.decode(
        b'{"toolsListChanged":true,"promptsListChanged":false,"resourceSubscriptions":["a","b","a"],"taskIds":["t"]}',
        type=Filter,
    )
    assert asked.kinds == {"tools"}
    assert asked.wanted_uris == ("a", "b")
    assert msgspec.json.encode(asked.possible(KINDS, ["b", "c"])) == (
        b'{"toolsListChanged":true,"resourceSubscriptions":["b"]}'
    )
    assert msgspec.json.encode(asked.possible([], [])) == b"{}"


def test_the_number_of_subscriptions_is_bounded() -> None:
    """A listener cannot make the table grow without limit."""
    asked = Filter(resource_subscriptions=tuple(str(n) for n in range(MAX_URIS + 5)))
    assert len(asked.wanted_uris) == MAX_URIS


def test_a_storm_is_one_notice_and_then_one_a_second() -> None:
    """C10: the rate stays bounded however often a list changes."""
    c: Coalescer[str] = Coalescer()
    assert c.next_due() is None
    for _ in range(100):
        c.mark("a", T, 0.0)
    assert c.take(0.0) == []
    assert c.take(SETTLE_SECONDS) == [("a", T)]
    assert c.take(10.0) == []
    c.mark("a", T, 0.1)
    c.mark("a", R, 0.1)
    assert c.take(0.1 + SETTLE_SECONDS) == [("a", R)]
    assert c.next_due() == SETTLE_SECONDS + INTERVAL_SECONDS
    assert c.take(SETTLE_SECONDS + INTERVAL_SECONDS) == [("a", T)]


def test_what_comes_in_a_row_at_the_start_is_one_notice() -> None:
    """C10: while servers are discovered one after the other, a change waits longer for the others."""
    c: Coalescer[str] = Coalescer()
    for tenth in range(5):
        c.mark("a", T, tenth / 10, settle=FIRST_SETTLE_SECONDS)
    c.mark("a", T, 0.6)
    c.mark("a", R, 0.6)
    assert c.take(0.6 + SETTLE_SECONDS) == [("a", R)]
    assert c.take(FIRST_SETTLE_SECONDS) == [("a", T)]
    assert c.next_due() is None


def test_what_is_held_follows_when_it_is_released() -> None:
    """C11: a change before a stream is open is announced when it opens, once."""
    c: Coalescer[str] = Coalescer(settle=0.0)
    c.mark("a", T, 0.0, held=True)
    c.mark("a", T, 1.0, held=True)
    assert c.next_due() is None
    c.release("nobody", 2.0)
    c.release("a", 2.0)
    c.release("a", 2.0)
    assert c.take(2.0) == [("a", T)]
    assert c.take(9.0) == []


def test_a_held_notice_becomes_due_by_another_change() -> None:
    """What was held does not wait for ever when the hearer is there again."""
    c: Coalescer[str] = Coalescer(settle=0.0)
    c.mark("a", T, 0.0, held=True)
    c.mark("a", T, 1.0)
    assert c.take(1.0) == [("a", T)]


def test_who_has_gone_is_told_nothing() -> None:
    """R07: a client that left gets no notice."""
    c: Coalescer[str] = Coalescer()
    c.mark("a", T, 0.0)
    c.mark("b", T, 0.0)
    c.forget("a")
    c.forget("a")
    assert c.take(1.0) == [("b", T)]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([T, R]), st.floats(0, 0.3), st.booleans())))
def test_every_change_is_told_and_never_too_often(steps: list[tuple[str, bytes, float, bool]]) -> None:
    """Whatever happens in whatever order: each change is followed by a notice, and notices keep their distance."""
    c: Coalescer[str] = Coalescer()
    now = 0.0
    told: dict[tuple[str, bytes], float] = {}
    marked: set[tuple[str, bytes]] = set()
    for hearer, notice, wait, held in steps:
        now += wait
        for who, what in c.take(now):
            assert now - told.get((who, what), -9.0) >= INTERVAL_SECONDS - 1e-9
            told[who, what] = now
            marked.discard((who, what))
        c.mark(hearer, notice, now, held=held)
        marked.add((hearer, notice))
    c.release("a", now)
    c.release("b", now)
    assert {pair for pair in c.take(now + 10)} == marked
