"""The counters behind /metrics: classes of durations, outcomes, and a bound on names."""

from __future__ import annotations

from coffer_supervisor.core.tally import BOUNDS, MOST, OTHER, Tally


def test_calls_are_counted_by_outcome_and_duration() -> None:
    """A duration that equals a bound belongs below it; the longest belong to the class without one."""
    tally = Tally()
    for status, seconds in (("ok", 0.001), ("ok", 0.005), ("error", 0.006), ("timeout", 10_000.0)):
        tally.count("files", "tool", status, seconds)
    tally.count("files", "prompt", "ok", 1.0)
    found = tally.figures["files", "tool"]
    assert found.statuses == {"ok": 2, "error": 1, "timeout": 1}
    assert found.calls == 4
    assert abs(found.seconds - 10_000.012) < 1e-6
    cumulated = found.cumulated()
    assert cumulated[:2] == [("0.005", 2.0), ("0.01", 3.0)]
    assert cumulated[-2:] == [(str(BOUNDS[-1]), 3.0), ("+Inf", 4.0)]
    assert tally.figures["files", "prompt"].calls == 1


def test_names_are_bounded() -> None:
    """Whatever clients ask for, the table does not grow for ever; no call goes uncounted."""
    tally = Tally()
    for number in range(MOST + 10):
        tally.count(f"s{number}", "tool", "ok", 0.1)
    assert len(tally.figures) == MOST + 1
    assert tally.figures[OTHER, "tool"].calls == 10
