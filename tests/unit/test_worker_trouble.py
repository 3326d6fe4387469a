"""Sessions whose own connections fail."""

from coffer_worker.core.trouble import Troubles, Wait


def test_a_session_waits_longer_each_time_and_is_refused_in_the_end() -> None:
    """The crash of one session's connection backs off that session only."""
    troubles, now = Troubles(), 0.0
    delays = [troubles.failed("a", "it exited", now, 0.0).delay for _ in range(5)]
    assert delays == sorted(delays)
    assert troubles.wait("a", now) == Wait(delays[-1], False, "it exited")
    assert troubles.wait("b", now) is None
    assert troubles.wait("a", now + delays[-1]) is None
    assert troubles.failed("a", "again", now, 0.0).state == "failed"
    refused = troubles.wait("a", now)
    assert refused is not None
    assert refused.refused
    assert refused.cause == "again"
    troubles.forget("a")
    assert troubles.wait("a", now) is None


def test_what_worked_for_a_stable_time_is_forgiven() -> None:
    """Answers go on while the connection is up; only the first of them starts the clock."""
    troubles = Troubles()
    troubles.worked("a", 0.0)
    for _ in range(5):
        troubles.failed("a", "x", 0.0, 0.0)
    for now in range(1, 40, 3):
        troubles.worked("a", float(now))
    assert troubles.failed("a", "x", 40.0, 0.0).state == "backoff"
