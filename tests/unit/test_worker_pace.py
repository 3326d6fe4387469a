"""How often lists are read again, and when an announced change counts though nothing differs.

C10: an upstream that announces a change in answer to every list; its rate is bounded and it is not repeated.
"""

import pytest

from coffer_worker.core.pace import ECHO, FIRST, LIMIT, PATIENCE, QUIET, ROW, SHORT, SUSTAINED, Pace


def opened() -> Pace:
    """The lists were read once, and some time has passed."""
    pace = Pace()
    pace.began()
    pace.read(0.0, changed=True)
    return pace


def test_a_quiet_upstream_is_read_at_once() -> None:
    pace = opened()
    assert pace.announced(100.0) == 100.0 + FIRST
    assert pace.announced(100.01) == 100.0 + FIRST
    pace.began()
    pace.read(100.1, changed=True)
    assert pace.due is None
    assert pace.announced(100.15) == 100.1 + SHORT
    assert pace.announced(500.0) == 100.1 + SHORT
    pace.began()
    pace.read(501.0, changed=True)
    assert pace.announced(501.0 + QUIET + 1) == 501.0 + QUIET + 1 + FIRST


@pytest.mark.parametrize("delay", [0.005, 1.5])
def test_a_storm_without_change_is_read_ever_more_rarely(delay: float) -> None:
    """C10: what answers each of our readings is not believed, and its readings are spaced."""
    pace, now, reads = opened(), 0.0, 0
    while now < 600:
        now = pace.announced(now + delay)
        assert not pace.believed
        pace.began()
        pace.read(now, changed=False)
        reads += 1
    assert reads < 30
    assert pace.announced(now) <= now + LIMIT


def test_an_announcement_that_no_reading_explains_is_believed() -> None:
    pace = opened()
    pace.announced(ECHO / 2)
    assert not pace.believed
    pace.announced(ECHO + 0.1)
    assert pace.believed
    pace.began()
    pace.announced(ECHO + 0.2)
    pace.read(ECHO + 0.3, changed=False)
    assert pace.believed


def test_one_that_was_never_read_is_believed() -> None:
    """A session's own connection, of which nothing was listed yet."""
    pace = Pace()
    assert pace.announced(5.0) == 5.0 + FIRST
    assert pace.believed


def test_an_announcement_while_we_read_is_explained_by_the_reading() -> None:
    pace = Pace()
    pace.began()
    pace.announced(100.0)
    pace.read(100.1, changed=True)
    assert not pace.believed


def test_an_announcement_while_calls_are_under_way_may_be_their_doing() -> None:
    """A tool that changes the lists right after they were read is believed, until it has cried wolf too often."""
    pace, now = opened(), 0.0
    for turn in range(PATIENCE + 3):
        now = pace.announced(now, busy=True)
        assert pace.believed == (turn < PATIENCE)
        pace.began()
        pace.read(now, changed=False)


def test_belief_ends_with_patience_and_comes_back_with_a_change_of_ways() -> None:
    pace, now = opened(), 100.0
    for _ in range(PATIENCE + 1):
        now = pace.announced(now)
        assert pace.believed
        pace.began()
        pace.read(now, changed=False)
    assert not pace.believed
    assert pace.announced(now, busy=True) == now + 2 * SUSTAINED
    pace.began()
    pace.read(now + 1.0, changed=True)
    assert not pace.believed
    pace.announced(now + 1.0 + ECHO + 0.1)
    assert pace.believed


def test_a_change_renews_patience() -> None:
    pace, now = opened(), 100.0
    for turn in range(3 * PATIENCE):
        now = pace.announced(now)
        pace.began()
        pace.read(now, changed=turn % PATIENCE == 0)
        assert pace.believed


@pytest.mark.parametrize("changed", [True, False])
def test_one_that_is_believed_and_never_stops_is_read_less_often(changed: bool) -> None:
    """A storm of announcements during calls costs a bounded number of readings, changes or not."""
    pace, now, reads = opened(), 100.0, 0
    while now < 160.0:
        now = max(now, pace.announced(now, busy=True))
        pace.began()
        pace.read(now, changed=changed)
        reads += 1
        now += 0.001
    assert reads <= ROW + 60.0 / SUSTAINED + 5
    assert SUSTAINED < ECHO, "else each reading would be news, and the row begin anew"


def test_quiet_ends_the_row() -> None:
    """A change after a pause is seen at once again."""
    pace, now = opened(), 100.0
    for _ in range(2 * ROW):
        now = pace.announced(now)
        pace.began()
        pace.read(now, changed=True)
    assert pace.announced(now) == now + SUSTAINED
    pace.began()
    pace.read(now + SUSTAINED, changed=True)
    now += SUSTAINED + ECHO + 0.1
    assert pace.announced(now) == now + FIRST
    pace.began()
    pace.read(now, changed=True)
    assert pace.announced(now) == now + SHORT


def test_readings_that_nobody_announced_are_no_row() -> None:
    pace = opened()
    for n in range(3 * ROW):
        pace.began()
        pace.read(100.0 + n / 100, changed=True)
    assert pace.announced(200.0, busy=True) == 200.0 + FIRST
    pace.began()
    pace.read(200.0, changed=True)
    assert pace.announced(200.0) == 200.0 + SHORT
