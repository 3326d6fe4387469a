"""coffer_worker.process.family: which processes belong to one upstream process."""

from __future__ import annotations

from coffer_common.proctree import Proc
from coffer_worker.process.family import family

ME = 50


def proc(pid: int, ppid: int, session: int | None = None) -> Proc:
    return Proc(pid, ppid, pid, session or pid, "S", 1)


PROCS = {
    p.pid: p
    for p in (
        proc(ME, 1),
        proc(60, ME),  # the upstream
        proc(61, 60, 60),  # its child
        proc(62, 61),  # a grandchild with a session of its own
        proc(63, ME, 60),  # adopted, still of its session
        proc(64, ME),  # adopted, left its session, carries the cookie
        proc(65, 64),  # below that one
        proc(66, ME),  # adopted, of nobody known
        proc(70, ME),  # another upstream
        proc(71, 70),
        proc(90, 1),
    )
}


def found(pid: int, others: list[int], marked: set[int]) -> list[int]:
    return sorted(p.pid for p in family(ME, pid, others, PROCS, marked.__contains__))


def test_descent_session_and_mark_each_suffice() -> None:
    assert found(60, [70], {64}) == [60, 61, 62, 63, 64, 65]


def test_other_upstreams_are_never_taken() -> None:
    assert found(60, [70], {64, 70}) == [60, 61, 62, 63, 64, 65]
    assert found(70, [60], set()) == [70, 71]


def test_a_reused_pid_leaves_the_mark_alone_to_count() -> None:
    assert found(60, [60, 70], {64}) == [64, 65]


def test_nothing_is_left_of_one_that_is_gone() -> None:
    assert found(80, [60, 70], set()) == []
