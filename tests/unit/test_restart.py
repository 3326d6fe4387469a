"""Restart intensity: backoff, then failed on a slow schedule, and forgetting after a stable time (P10, P11)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coffer_common.restart import Policy, Restarts


def test_delays_double_up_to_the_cap() -> None:
    restarts = Restarts(Policy(attempts=10, base=1, cap=4, window=1000))
    delays = [restarts.down(float(n), 1.0).delay for n in range(5)]
    assert delays == [1, 2, 4, 4, 4]


def test_more_than_the_attempts_in_the_window_is_failed_and_still_tried_slowly() -> None:
    """At most 5 in 60 s, then failed; it is tried again on a slow schedule, never given up."""
    restarts = Restarts()
    verdicts = [restarts.down(float(n), 0.5) for n in range(7)]
    assert [v.state for v in verdicts] == ["backoff"] * 5 + ["failed"] * 2
    assert verdicts[-1].delay == Policy().slow
    assert restarts.total == 7


def test_blips_far_apart_do_not_add_up() -> None:
    """P11: five short blips over a day."""
    restarts = Restarts()
    assert {restarts.down(n * 3600.0, 0.0).delay for n in range(20)} == {0.25}


def test_a_stable_run_forgets_what_was_before() -> None:
    restarts = Restarts(Policy(stable=10))
    for n in range(5):
        restarts.down(float(n), 0.0)
    restarts.up(5.0)
    assert restarts.down(15.0, 0.0).delay == 0.25
    restarts.up(16.0)
    assert restarts.down(17.0, 0.0).delay == 0.5


def test_a_person_may_ask_for_another_try() -> None:
    restarts = Restarts()
    for n in range(9):
        restarts.down(float(n), 0.0)
    restarts.forgive()
    assert restarts.down(9.0, 0.0).state == "backoff"


@given(st.lists(st.floats(0, 30), max_size=60), st.floats(0, 1, exclude_max=True))
def test_never_a_storm_and_never_for_ever(gaps: list[float], jitter: float) -> None:
    restarts, now = Restarts(), 0.0
    for gap in gaps:
        now += gap
        verdict = restarts.down(now, jitter)
        assert 0.25 <= verdict.delay <= 1.25 * Policy().slow
        now += verdict.delay
    assert len(restarts.failures) <= Policy().attempts + 1


@pytest.mark.parametrize("jitter", [0.0, 0.999])
def test_jitter_stays_in_the_upper_half(jitter: float) -> None:
    assert 0.25 <= Restarts().down(0.0, jitter).delay <= 0.5
