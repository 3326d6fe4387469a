"""Calls in flight: order, limits, numbers, cancellation."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coffer_common.frames import Caller
from coffer_common.resources import Limits
from coffer_worker.core.relay import Flight, Refusal, Relay

BY = Caller("s1", "local", "/mcp", "prefixed", "2025-11-25", "http")


def limits(**values: Any) -> Limits:
    return msgspec.convert(values, Limits)


def admit(relay: Relay, corr: int, now: float = 0.0, session: str = "s1", **more: Any) -> Flight:
    found = relay.admit(corr, msgspec.structs.replace(BY, session=session), "tools/call", "t", b"{}", now=now, **more)
    assert isinstance(found, Flight)
    return found


def sent(relay: Relay, flight: Flight, conn: int = 1, now: float = 0.0) -> int:
    number = relay.number()
    relay.sent(flight, conn, number, now)
    return number


def test_a_call_from_admission_to_end() -> None:
    relay = Relay("up", Limits())
    flight = admit(relay, 5)
    assert (len(relay), relay.in_flight, relay.queued, relay.oldest(), relay.get(5)) == (1, 1, 0, flight, flight)
    number = sent(relay, flight)
    assert relay.of_connection(1) == [flight]
    assert relay.of_connection(2) == []
    assert relay.of_session("s1") == list(relay) == [flight]
    assert relay.finish(flight) == []
    assert relay.finish(flight) == []
    assert (len(relay), relay.in_flight, relay.oldest(), relay.get(5)) == (0, 0, None, None)
    assert relay.progress(1, number, 1.0) is None


@given(st.integers(1, 50))
def test_numbers_are_never_used_twice(count: int) -> None:
    """I01: ids and tokens towards the upstream are our own."""
    relay = Relay("up", Limits())
    assert len({relay.number() for _ in range(count)}) == count


def test_calls_beyond_the_places_wait_and_beyond_the_queue_are_refused() -> None:
    relay = Relay("up", limits(in_flight=1, queue=2))
    first, second, third = admit(relay, 1), admit(relay, 2), admit(relay, 3)
    assert [f.stage for f in (first, second, third)] == ["waiting", "queued", "queued"]
    refused = relay.admit(4, BY, "tools/call", "t", b"{}", now=0.0)
    assert isinstance(refused, Refusal)
    assert refused.reason.name == "queue_full"
    assert "'up'" in refused.message
    assert relay.finish(second) == []
    assert (relay.in_flight, relay.queued) == (1, 1)
    assert relay.finish(first) == [third]
    assert third.stage == "waiting"
    assert relay.in_flight == 1


def test_progress_is_known_by_token_and_connection() -> None:
    """L02: a token that was never issued, or of a finished call, or from another connection, is nobody's."""
    relay = Relay("up", Limits())
    flight = admit(relay, 1)
    token = sent(relay, flight, conn=3)
    assert relay.progress(3, token, 7.0) is flight
    assert flight.active == 7.0
    assert relay.progress(4, token, 9.0) is None
    assert relay.progress(3, 999, 9.0) is None
    assert flight.active == 7.0


def test_progress_resets_the_idle_limit_but_not_the_total() -> None:
    """L10: the limit between signs of life begins anew; an absolute one ends the endless call."""
    relay = Relay("up", limits(idle_seconds=2, total_seconds=5))
    flight = admit(relay, 1)
    token = sent(relay, flight)
    assert relay.idle_seconds == 2
    assert relay.next_deadline() == 2.0
    relay.progress(1, token, 1.5)
    assert relay.next_deadline() == 3.5
    assert relay.expired(3.4) == []
    late = relay.expired(3.5)
    assert [(item.flight, item.refusal.reason.name) for item in late] == [(flight, "idle_limit")]
    assert "'up'" in late[0].refusal.message
    assert "2 s" in late[0].refusal.message
    relay.progress(1, token, 4.9)
    total = relay.expired(5.0)[0].refusal
    assert total.reason.name == "total_limit"
    assert "5.0 s" in total.message


def test_what_waits_has_no_idle_limit_but_a_total_one() -> None:
    relay = Relay("up", limits(idle_seconds=1, total_seconds=20))
    admit(relay, 1)
    assert relay.next_deadline() == 20.0
    assert relay.expired(10.0) == []
    assert "still waiting" in relay.expired(20.0)[0].refusal.message


def test_limits_can_be_off_and_a_callers_budget_counts() -> None:
    relay = Relay("up", limits(idle_seconds=None, total_seconds=None))
    sent(relay, admit(relay, 1))
    assert relay.next_deadline() is None
    assert relay.expired(1e9) == []
    admit(relay, 2, now=10.0, budget=3.0)
    assert relay.next_deadline() == 13.0


def test_stray_answers_are_counted_and_named_when_the_call_gives_up() -> None:
    """I05."""
    relay = Relay("up", limits(idle_seconds=2))
    number = sent(relay, admit(relay, 1), conn=6)
    assert relay.stray(6, 0)
    assert relay.stray(6, None)
    assert relay.stray(6, "stray")
    assert relay.strays == {6: 3}
    assert "3 answer(s)" in relay.expired(2.0)[0].refusal.message
    assert not relay.stray(6, number)
    assert relay.late == 1


def test_a_cancel_may_overtake_its_call() -> None:
    relay = Relay("up", Limits())
    assert relay.cancelled(7) is None
    assert relay.admit(7, BY, "tools/call", "t", b"{}", now=0.0) is None
    flight = admit(relay, 7)
    assert relay.cancelled(7) is flight


def test_early_cancels_are_remembered_within_a_bound() -> None:
    relay = Relay("up", Limits())
    for corr in range(2000):
        relay.cancelled(corr)
    assert isinstance(relay.admit(0, BY, "tools/call", "t", b"{}", now=0.0), Flight)
    assert relay.admit(1999, BY, "tools/call", "t", b"{}", now=0.0) is None


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 0, 2]])
def test_counts_add_up_whatever_the_order_of_ends(order: list[int]) -> None:
    relay = Relay("up", limits(in_flight=1, queue=5))
    flights = [admit(relay, corr) for corr in range(3)]
    for position in order:
        relay.finish(flights[position])
    assert (len(relay), relay.in_flight, relay.queued) == (0, 0, 0)


def test_a_call_that_was_surely_not_executed_goes_once_more_and_only_once() -> None:
    relay = Relay("up", Limits())
    flight = admit(relay, 5)
    assert not relay.once_more(flight)
    first = relay.number()
    relay.sent(flight, 1, first, 0.0, keep=True)
    assert relay.once_more(flight)
    assert (flight.stage, relay.progress(1, first, 1.0), relay.of_connection(1)) == ("waiting", None, [])
    second = relay.number()
    relay.sent(flight, 1, second, 2.0, keep=True)
    assert relay.progress(1, second, 3.0) is flight
    assert not relay.once_more(flight)
    relay.finish(flight)
    assert len(relay) == 0


def test_a_call_whose_params_were_not_kept_cannot_go_again() -> None:
    relay = Relay("up", Limits())
    flight = admit(relay, 5)
    sent(relay, flight)
    assert not relay.once_more(flight)


def test_while_a_client_is_asked_its_limits_stand_still_and_that_for_answers_runs() -> None:
    """Being asked stops the idle and the total limit of a call; a limit of its own ends the asking."""
    relay = Relay("up", limits(idle_seconds=10, total_seconds=30, answer_seconds=100))
    flight = admit(relay, 1)
    sent(relay, flight, now=0.0)
    relay.asking(flight, 5.0)
    relay.asking(flight, 50.0)  # the first ask counts
    assert relay.next_deadline() == 105.0
    assert relay.expired(104.0) == []
    late = relay.expired(105.0)
    assert [(entry.flight, entry.refusal.reason.name) for entry in late] == [(flight, "answer_limit")]
    relay.answered(flight, 85.0)
    relay.answered(flight, 90.0)
    assert (flight.total_at, flight.active, relay.next_deadline()) == (110.0, 85.0, 95.0)


def test_limits_that_are_off_stay_off_when_an_answer_comes() -> None:
    relay = Relay("up", limits(total_seconds=None))
    flight = admit(relay, 1)
    relay.asking(flight, 1.0)
    relay.answered(flight, 2.0)
    assert flight.total_at is None


def test_a_parked_call_is_nobodys_number_until_its_retry() -> None:
    """The client's request was answered with an ask; the retry has another number and is the same call."""
    relay = Relay("up", limits())
    flight = admit(relay, 1)
    id = sent(relay, flight)
    relay.park(flight)
    assert relay.get(1) is None
    assert (flight.parked, len(relay), relay.of_connection(1)) == (True, 1, [flight])
    relay.cancelled(9)
    assert not relay.resume(flight, 9, BY), "the cancel of the retry came first"
    other = msgspec.structs.replace(BY, session="s2")
    assert relay.resume(flight, 2, other)
    assert (relay.get(2), flight.caller, flight.parked) == (flight, other, False)
    assert relay.progress(1, id, 1.0) is flight
    assert relay.finish(flight) == []
    assert len(relay) == 0


def test_between_two_rounds_a_call_is_not_on_its_way() -> None:
    relay = Relay("up", limits())
    flight = admit(relay, 1)
    flight.keep = True
    id = sent(relay, flight)
    relay.between(flight)
    assert (flight.stage, flight.params, relay.of_connection(1)) == ("waiting", b"{}", [])
    assert relay.progress(1, id, 1.0) is None
