"""The fork server and its client, as real processes: forking, marks, exits, deadlines, the end."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coffer_common.proctree import environment_value, read_one
from coffer_worker.forkserver.child import EXIT_FAILED_TO_START
from tests.support.fork_supervisor import ForkSupervisor, alive, marked
from tests.support.wait import wait_for


@pytest.fixture(params=["asyncio", "uvloop"])
async def supervisor(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ForkSupervisor]:
    """A stand-in supervisor whose fork server is ready, on either loop."""
    started = await ForkSupervisor.start(tmp_path, loop=request.param)
    await started.next("ready")
    yield started
    await started.close()


def title(pid: int) -> str:
    """The command line as ps shows it."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode()


async def test_a_worker_bears_its_marks(supervisor: ForkSupervisor, tmp_path: Path) -> None:
    """Title `coffer-worker: NAME ...`, comm `cw/NAME` of 15 characters, a group of its own, COFFER_HOME as working
    directory, an environment that setproctitle has not wiped, and the fork server as parent."""
    pid = await supervisor.fork("a-rather-long-name")
    await wait_for(lambda: title(pid) == "coffer-worker: a-rather-long-name starting")
    supervisor.do(do="look")
    forkserver = (await supervisor.next("look"))["pid"]

    await wait_for(lambda: Path(f"/proc/{pid}/comm").read_text() == "cw/a-rather-lon\n")
    assert title(forkserver) == "coffer-forkserver"
    proc = read_one(pid)
    assert proc is not None
    assert (proc.ppid, proc.group) == (forkserver, pid)
    assert os.readlink(f"/proc/{pid}/cwd") == str(tmp_path)
    assert environment_value(pid, "PATH") == os.environ["PATH"]


async def test_a_worker_keeps_no_descriptor_of_the_fork_server(supervisor: ForkSupervisor) -> None:
    """Workers keep none of the fork server's descriptors: only the standard three and their own lifeline, also
    when others were forked before."""
    await supervisor.fork("one")
    pid = await supervisor.fork("two")

    def kept() -> list[str]:
        return [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd") if int(fd) > 2]

    await wait_for(lambda: len(kept()) == 1, what=lambda: f"one descriptor: {kept()}")
    assert kept()[0].startswith("pipe:")


@pytest.mark.parametrize(
    ("target", "opaque", "status"),
    [("leave", "0", 0), ("leave", "7", 7), ("leave_by_exit", "9", 9), ("fail", "", EXIT_FAILED_TO_START)],
)
async def test_exit_codes_are_reported(supervisor: ForkSupervisor, target: str, opaque: str, status: int) -> None:
    """A worker's exit is reaped and reported with its code; one that raises has a code of its own."""
    pid = await supervisor.fork("up", target, opaque, incarnation=4)
    gone = await supervisor.next("exit", pid=pid)
    assert (gone["name"], gone["incarnation"], gone["status"], gone["signal"]) == ("up", 4, status, 0)
    assert gone["reason"] == f"exited with code {status}"
    assert read_one(pid) is None


async def test_a_target_that_does_not_exist_ends_the_worker_only(supervisor: ForkSupervisor) -> None:
    """A worker that cannot start costs nobody else anything."""
    other = await supervisor.fork("other")
    pid = await supervisor.fork("up", "no_such_function")
    assert (await supervisor.next("exit", pid=pid))["status"] == EXIT_FAILED_TO_START
    assert alive(other)


async def test_workers_do_not_share_random_numbers(supervisor: ForkSupervisor, tmp_path: Path) -> None:
    """Forks of one process must not draw the same numbers."""
    files = [tmp_path / name for name in ("one", "two")]
    for file in files:
        await supervisor.fork(file.name, "draw", str(file))
    await wait_for(lambda: all(file.exists() and file.stat().st_size for file in files))
    first, second = (json.loads(file.read_text()) for file in files)
    assert first[0] != second[0]
    assert first[1] != second[1]


async def test_killing_takes_the_worker_with_all_it_started(supervisor: ForkSupervisor) -> None:
    """A worker that is killed goes with its upstream processes, grandchildren with sessions of their own included;
    a stale incarnation is not hit."""
    pid, mark = await supervisor.fork_family("up")
    supervisor.do(do="kill", pid=pid, incarnation=99)
    supervisor.do(do="look")
    await supervisor.next("look")
    assert alive(pid)
    supervisor.do(do="kill", pid=pid, incarnation=1)
    gone = await supervisor.next("exit", pid=pid)
    assert (gone["status"], gone["signal"]) == (None, signal.SIGKILL)
    await wait_for(lambda: not marked(mark), bound=5)


async def test_stop_ends_everything(supervisor: ForkSupervisor) -> None:
    """Stopping ends the fork server and all below it, a stopped worker included, and reports each worker."""
    pid, mark = await supervisor.fork_family("up")
    os.kill(pid, signal.SIGSTOP)
    supervisor.do(do="stop", seconds=5)
    assert (await supervisor.next("exit", pid=pid))["reason"] == "stopped"
    await supervisor.next("stopped")
    assert not marked(mark)
    supervisor.do(do="fork", name="late", incarnation=1, target="idle", opaque="")
    assert "stopping" in (await supervisor.next("failed"))["message"]


async def test_a_fork_that_nobody_waits_for_any_more_is_killed(supervisor: ForkSupervisor) -> None:
    """A deadline passes while the fork server is slow: the caller is told, and no worker is left over from it."""
    supervisor.do(do="look")
    forkserver = (await supervisor.next("look"))["pid"]
    os.kill(forkserver, signal.SIGSTOP)
    supervisor.do(do="fork", name="late", incarnation=1, target="idle", opaque="", seconds=0.05)
    assert "in time" in (await supervisor.next("failed", name="late"))["message"]
    os.kill(forkserver, signal.SIGCONT)
    other = await supervisor.fork("other")

    def below() -> list[int]:
        return [int(pid) for pid in Path(f"/proc/{forkserver}/task/{forkserver}/children").read_text().split()]

    await wait_for(lambda: below() == [other], what=lambda: f"only {other}: {below()}")
    supervisor.do(do="look")
    assert list((await supervisor.next("look"))["workers"]) == [str(other)]


async def test_a_large_boot_message_arrives_whole(supervisor: ForkSupervisor, tmp_path: Path) -> None:
    """What the socket does not take at once follows, in order, with its own lifeline."""
    supervisor.do(do="fork", name="big", incarnation=1, target="leave", opaque="5" + " " * 3_000_000)
    pid = await supervisor.fork("small")
    big = (await supervisor.next("forked", name="big"))["pid"]
    assert (await supervisor.next("exit", pid=big))["status"] == 5
    assert alive(pid)


async def test_a_start_that_fails_says_so(tmp_path: Path) -> None:
    """No fork server: an error, not a hang."""
    started = await ForkSupervisor.start(tmp_path / "missing")
    assert "cannot start the fork server" in (await started.next("failed"))["message"]
    await started.close()


async def test_a_start_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    """The start has a deadline, and what was started is not left behind."""
    started = await ForkSupervisor.start(tmp_path, start=0.01)
    assert "not ready within" in (await started.next("failed"))["message"]
    await started.close()


async def test_all_that_a_worker_imports_is_there_already(supervisor: ForkSupervisor, tmp_path: Path) -> None:
    """A worker starts in milliseconds and shares its pages because the fork server has imported everything for it."""
    await supervisor.fork("up", "imports", str(tmp_path / "found"))
    await wait_for((tmp_path / "found").exists)
    late = json.loads((tmp_path / "found").read_text())
    assert [name for name in late if not name.startswith("coffer_worker")] == []
