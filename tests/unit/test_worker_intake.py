"""The allowance of what nobody waits for: bounded in the long run, generous in the short one, and nothing is lost."""

from __future__ import annotations

import pytest

from coffer_worker.core.intake import BURST, BYTES, LONGEST_REST, RATE, REST, Intake


def test_a_burst_is_taken_in_at_once() -> None:
    intake = Intake()
    assert not any(intake.heard(100, 100.0) for _ in range(int(BURST) // 2))


@pytest.mark.parametrize(("size", "chunk"), [(0, 500), (130, 500), (8, 4000), (100_000, 1)])
def test_a_flood_is_held_to_the_rate(size: int, chunk: int) -> None:
    """However fast it writes: what has come is taken in whole, then nothing for a while."""
    intake, now, heard = Intake(), 0.0, 0.0
    while now < 20.0:
        rests = [intake.heard(size, now) for _ in range(chunk)]
        heard += chunk * (1 + size / BYTES)
        now += max(rests) or 0.001
    assert heard <= BURST + RATE * now + 2 * chunk * (1 + size / BYTES)


def test_one_that_has_rested_may_go_on() -> None:
    """The rest is short, so that an answer behind the flood is not long in coming."""
    intake, now = Intake(), 50.0
    while not (rest := intake.heard(130, now)):
        pass
    assert REST <= rest < 2 * REST
    assert not intake.heard(130, now + rest)


def test_one_enormous_message_costs_no_more_than_the_longest_rest() -> None:
    assert Intake().heard(100_000_000, 1.0) == LONGEST_REST
