"""coffer_worker.forkserver.core: who is a worker, what an exit means, who is an orphan."""

from __future__ import annotations

from coffer_common.forkproto import Exited
from coffer_common.proctree import Proc
from coffer_worker.forkserver.core import Roster

ME = 50


def proc(pid: int, ppid: int) -> Proc:
    return Proc(pid, ppid, pid, pid, "S", 1)


def test_an_exit_is_reported_once_with_code_or_signal() -> None:
    roster = Roster()
    roster.born(60, "up", 3)
    roster.born(61, "other", 1)
    assert len(roster) == 2
    assert roster.died(60, 7 << 8) == Exited(60, "up", 3, 7, 0)
    assert roster.died(60, 0) is None
    assert roster.died(61, 9 | 0x80) == Exited(61, "other", 1, 0, 9)


def test_only_the_same_incarnation_may_be_killed() -> None:
    roster = Roster()
    roster.born(60, "up", 3)
    assert roster.may_kill(60, 3)
    assert not roster.may_kill(60, 2)
    assert not roster.may_kill(61, 3)


def test_a_child_that_is_no_worker_is_an_orphan_with_its_tree() -> None:
    roster = Roster()
    roster.born(60, "up", 1)
    procs = {p.pid: p for p in (proc(ME, 1), proc(60, ME), proc(70, 60), proc(80, ME), proc(81, 80), proc(82, 81))}
    assert [p.pid for p in roster.orphans(ME, procs)] == [80, 81, 82]
    roster.died(60, 9)
    assert [p.pid for p in roster.orphans(ME, procs)] == [60, 70, 80, 81, 82]
