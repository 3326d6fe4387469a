"""The short form of the fault suite and of the soak: the same cases, in short windows, on every run of the tests.

What a busy machine alone may bring about (a p99 of a few hundred calls) is judged with more slack than `make fault`
does; everything else, and above all that nothing is left behind and every call ends rightly, is not.
"""

from __future__ import annotations

import pytest

from tests.fault import soak
from tests.fault.suite import measure, report
from tests.fault.suite.case import Case
from tests.fault.suite.faults import CASES
from tests.fault.suite.measure import Call, Row
from tests.fault.suite.play import play

pytestmark = [pytest.mark.fault, pytest.mark.alone]

QUICK = [case for case in CASES if case.quick]
SLACK_MS = 200.0
RECOVERY_SLACK = 8.0


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_the_healthy_do_not_notice() -> None:
    """One upstream misbehaves, or a process of Coffer dies: healthy calls go on or are back at once, the faulty one's
    callers get clear errors in time, no call is sent twice, and nothing is left behind."""
    rows = await play(QUICK, calm=1.0, stormy=2.0, slack=SLACK_MS)
    held = [row for row in rows if not _excused(row)]
    assert not held, "\n".join(f"{row.name}: {'; '.join(row.faults)}" for row in held)
    assert [row.name for row in rows] == [case.name for case in QUICK]


def _excused(row: Row) -> bool:
    late = row.back is not None and row.back <= RECOVERY_SLACK
    return not row.faults or (late and all(fault.startswith(measure.TIMES) for fault in row.faults))


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_a_short_soak_leaves_nothing() -> None:
    """Clients of all kinds come and go, things go wrong at random: in the end there is no more than at the start."""
    assert await soak.soak(minutes=0.1, seed=20261201, upstreams=5, clients=6) == []


# ---------------------------------------------------------------- the measuring itself


def test_percentiles_and_errors_of_a_window() -> None:
    calls = [Call(n / 10, 0.001 * (n + 1), "ok") for n in range(100)] + [Call(20.0, 9.0, "ok")]
    calls[5] = Call(0.5, 0.006, "HTTP 500")
    found = measure.window(calls, 0.0, 10.0)
    assert (found.calls, found.failed, found.errors) == (100, 1, ("HTTP 500",))
    assert (round(found.p50), round(found.p99), round(found.worst)) == (51, 100, 100)


def test_recovery_counts_until_the_last_call_that_failed_or_was_held_up() -> None:
    good = [Call(n / 10, 0.01, "ok") for n in range(100)]
    assert measure.recovery(good, 2.0, 9.0) == 0.0
    failed = [Call(2.0 + n / 10, 0.0, "refused") for n in range(5)]
    assert measure.recovery([*good[:20], *failed, *good[25:]], 2.0, 9.0) == pytest.approx(0.4)
    held = [*good[:20], Call(2.0, 1.5, "ok"), *good[21:]]
    assert measure.recovery(held, 2.0, 9.0) == pytest.approx(1.5)
    assert measure.recovery(failed, 2.0, 9.0) is None


def test_lines_that_are_not_complete_are_left_out() -> None:
    assert measure.read(["1.0\t0.5\tok\n", "2.0\t0.5\tHTTP", "3.0"]) == [Call(1.0, 0.5, "ok")]


def test_the_page_shows_every_case_and_what_does_not_hold() -> None:
    window = measure.Window(100, 1.0, 2.0, 3.0, 0, ())
    good = Row("upstream stopped", "upstream", ["1 × idle_limit after 2.00 s"], window, window)
    slow = Row("floods", "upstream", [], window, measure.Window(100, 1.0, 9.0, 9.0, 1, ("HTTP 500",)))
    for row in (good, slow):
        row.judge(0.0)
    text = report.page([good, slow], rate=210, seconds=30)
    assert "| upstream stopped | 1 × idle_limit after 2.00 s | 2.0 | 2.0 | 1.00 |  | nothing | yes |" in text
    assert "floods: 1 healthy calls failed: HTTP 500; p99 of the healthy grew by 4.50, more than 1.5" in text


def test_every_case_has_a_name_of_its_own() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    assert all(isinstance(case, Case) for case in CASES)
    assert len(QUICK) >= 8
