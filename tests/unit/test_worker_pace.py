"""How often lists are read again (C10: an upstream that announces a change in answer to every list)."""

from coffer_worker.core.pace import FIRST, LIMIT, Pace


def test_a_quiet_upstream_is_read_at_once() -> None:
    pace = Pace()
    assert pace.announced(100.0) == 100.0 + FIRST
    assert pace.announced(100.01) == 100.0 + FIRST
    pace.read(100.1, changed=True)
    assert pace.due is None
    assert pace.announced(100.2) == 101.1
    pace.read(101.1, changed=True)
    assert pace.announced(500.0) == 500.0 + FIRST


def test_a_storm_without_change_is_read_ever_more_rarely() -> None:
    """C10, with any delay of the upstream's."""
    for delay in (0.005, 1.5):
        pace, now, reads = Pace(), 0.0, 0
        while now < 600:
            now = pace.announced(now + delay)
            pace.read(now, changed=False)
            reads += 1
        assert reads < 30
        assert pace.announced(now) <= now + LIMIT
