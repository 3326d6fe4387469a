"""coffer_common.proctree: reading processes, descent, and killing until none is left."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys

import pytest

from coffer_common import proctree
from coffer_common.proctree import Proc, children, descendants, environment_value, kill_until_gone, read_one, send
from tests.support.wait import wait_until


def proc(pid: int, ppid: int, state: str = "S", threads: int = 1) -> Proc:
    return Proc(pid, ppid, pid, pid, state, 100, threads)


TREE = {p.pid: p for p in (proc(1, 0), proc(10, 1), proc(11, 10), proc(12, 11, "Z"), proc(20, 1), proc(21, 20))}


@pytest.fixture
def sleeper():
    process = subprocess.Popen(["sleep", "600"], env={"MARK": "a=b", "PATH": os.environ["PATH"]})
    yield process
    process.kill()
    process.wait()


def test_a_name_with_brackets_and_spaces_does_not_confuse() -> None:
    line = "77 (a) b (c) ) T 5 6 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 3 0 4242 0 0"
    assert proctree.parse_stat(line) == Proc(77, 5, 6, 7, "T", 4242, 3)


def test_ps_where_there_is_no_proc() -> None:
    found = proctree.parse_ps("  1   0   1 Ss\n 20   1  19 T+\nodd line\n")
    assert found == {1: Proc(1, 0, 1, 1, "S", 0), 20: Proc(20, 1, 19, 19, "T", 0)}


def test_one_whose_main_thread_ended_is_not_dead() -> None:
    assert proc(1, 0, "Z").dead
    assert not proc(1, 0, "Z", threads=2).dead
    assert not proc(1, 0, "T").dead


def test_children_and_descendants_with_some_spared() -> None:
    assert [p.pid for p in children(1, TREE)] == [10, 20]
    assert [p.pid for p in descendants(1, TREE)] == [10, 20, 11, 21, 12]
    assert [p.pid for p in descendants(1, TREE, spare=[20, 11])] == [10]


def test_a_loop_in_a_torn_snapshot_ends() -> None:
    torn = {5: proc(5, 6), 6: proc(6, 5)}
    assert [p.pid for p in descendants(5, torn)] == [6]


def test_snapshot_holds_ourselves_and_our_child(sleeper: subprocess.Popen[bytes]) -> None:
    procs = proctree.snapshot()
    assert procs[sleeper.pid].ppid == os.getpid()
    assert procs[os.getpid()] == read_one(os.getpid())._replace(state=procs[os.getpid()].state)  # type: ignore[union-attr]


def test_a_variable_of_another_process(sleeper: subprocess.Popen[bytes]) -> None:
    wait_until(lambda: environment_value(sleeper.pid, "MARK") == "a=b")
    assert environment_value(sleeper.pid, "MAR") is None
    assert environment_value(2**22 + 1, "MARK") is None


def test_one_empty_look_proves_nothing() -> None:
    """A snapshot may miss a process whose parent ends meanwhile."""
    process = subprocess.Popen(["sleep", "600"])
    found = read_one(process.pid)
    assert found is not None
    looks = iter([[], [found], [], [found._replace(state="Z")]])
    assert kill_until_gone(lambda: next(looks), seconds=10) == []
    assert process.wait(10) == -signal.SIGKILL


def test_signals_reach_the_very_process_only(sleeper: subprocess.Popen[bytes]) -> None:
    """A reused PID is left alone: same number, another start."""
    found = read_one(sleeper.pid)
    assert found is not None
    assert send(found._replace(start=found.start + 1), signal.SIGKILL) is None
    assert read_one(sleeper.pid) is not None
    fd = send(found, signal.SIGKILL)
    assert fd is not None
    os.close(fd)
    assert sleeper.wait(10) == -signal.SIGKILL
    assert send(found, signal.SIGKILL) is None
    assert read_one(sleeper.pid) is None


def test_a_zombie_takes_no_signal(sleeper: subprocess.Popen[bytes]) -> None:
    found = read_one(sleeper.pid)
    assert found is not None
    sleeper.kill()
    wait_until(lambda: (now := read_one(sleeper.pid)) is not None and now.dead)
    assert send(found, signal.SIGTERM) is None


def test_a_process_of_another_user_is_reported_as_not_hit(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(signal, "pidfd_send_signal", refuse)
    found = read_one(sleeper.pid)
    assert found is not None
    assert send(found, signal.SIGTERM) is None


def test_what_forks_while_it_is_killed_is_found_again() -> None:
    """Each round looks anew, so the child of a process killed a moment ago goes too."""
    root = subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 600 & sleep 600 & wait"], start_new_session=True)
    session = root.pid

    def find() -> list[Proc]:
        # Only one a round, the youngest last: the others must be found by later rounds.
        return sorted(p for p in proctree.snapshot().values() if p.session == session)[:1]

    rounds = []

    def count() -> None:
        rounds.append(1)
        root.poll()

    wait_until(lambda: sum(p.session == session for p in proctree.snapshot().values()) == 3)
    left = kill_until_gone(
        lambda: [p for p in find() if not p.dead] or [p for p in proctree.snapshot().values() if p.session == session],
        seconds=10,
        between=count,
    )
    assert left == []
    assert len(rounds) >= 3
    assert root.wait(10) == -signal.SIGKILL


def test_what_cannot_be_killed_is_returned_in_the_end() -> None:
    ghost = Proc(2**22 + 1, 1, 1, 1, "D", 1)
    assert kill_until_gone(lambda: [ghost], seconds=0.05) == [ghost]


def test_out_of_descriptors_plain_signals_do(sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    found = read_one(sleeper.pid)
    assert found is not None
    assert send(found, signal.SIGKILL) is None
    assert sleeper.wait(10) == -signal.SIGKILL


def test_without_pidfds_plain_signals_do(sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    found = read_one(sleeper.pid)
    assert found is not None
    assert send(found, signal.SIGKILL) is None
    assert sleeper.wait(10) == -signal.SIGKILL
    assert send(found, signal.SIGKILL) is None


def test_without_proc_ps_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    fake = tmp_path / "ps"
    fake.write_text(f"#!{sys.executable}\nprint(' 7 1 7 S')\n")
    fake.chmod(0o755)
    monkeypatch.setattr(proctree, "_HAS_PROC", False)
    monkeypatch.setattr(proctree, "_PS", str(fake))
    assert read_one(7) == Proc(7, 1, 7, 7, "S", 0)
    assert read_one(8) is None
