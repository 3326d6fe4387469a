"""Nothing outlives its owner: supervisor, fork server and workers are killed, and all below them must go."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.fork_supervisor import ForkSupervisor, alive, marked
from tests.support.wait import wait_for

pytestmark = [
    pytest.mark.fault,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="best effort where there is no /proc"),
]


@pytest.fixture
async def supervisor(tmp_path: Path) -> AsyncIterator[ForkSupervisor]:
    """A stand-in supervisor whose fork server is ready; a lost ping shows within a second."""
    started = await ForkSupervisor.start(tmp_path, ping_every=0.2, ping=0.8)
    await started.next("ready")
    yield started
    await started.close()


async def test_supervisor_killed_with_a_worker_stopped(supervisor: ForkSupervisor) -> None:
    """P02. SIGKILL of the supervisor, one worker stopped: every worker and upstream process is gone, grandchildren
    that called setsid included."""
    stopped, first = await supervisor.fork_family("stopped")
    running, second = await supervisor.fork_family("running")
    os.kill(stopped, signal.SIGSTOP)
    supervisor.process.kill()
    await wait_for(lambda: not (marked(first) or marked(second)), bound=5, what="all upstream processes gone")
    await wait_for(lambda: not (alive(stopped) or alive(running)), bound=5, what="both workers gone")


@pytest.mark.parametrize("stop_it", [False, True])
async def test_worker_killed(supervisor: ForkSupervisor, stop_it: bool) -> None:
    """P02. SIGKILL of a worker, running or stopped: what it had started is gone, it is reported, and the others do
    not notice."""
    pid, mark = await supervisor.fork_family("up")
    other, kept = await supervisor.fork_family("other")
    if stop_it:
        os.kill(pid, signal.SIGSTOP)
    os.kill(pid, signal.SIGKILL)
    assert (await supervisor.next("exit", pid=pid))["reason"] == "killed by signal 9"
    await wait_for(lambda: not marked(mark), bound=5, what="its upstream processes gone")
    assert alive(other)
    assert len(marked(kept)) == 3


async def test_fork_server_killed(supervisor: ForkSupervisor) -> None:
    """SIGKILL of the fork server: all below it is gone, every worker is reported as lost, and another forks on."""
    stopped, first = await supervisor.fork_family("stopped")
    running, second = await supervisor.fork_family("running")
    os.kill(stopped, signal.SIGSTOP)
    supervisor.do(do="look")
    before = (await supervisor.next("look"))["pid"]
    os.kill(before, signal.SIGKILL)
    for pid in (stopped, running):
        gone = await supervisor.next("exit", pid=pid)
        assert (gone["reason"], gone["status"]) == ("forkserver lost", None)
    assert not (marked(first) or marked(second) or alive(stopped) or alive(running))
    again = await supervisor.fork("again", incarnation=2)
    supervisor.do(do="look")
    after = await supervisor.next("look")
    assert after["pid"] != before
    assert after["restarts"] == 1
    assert alive(again)


async def test_fork_server_misses_its_deadline(supervisor: ForkSupervisor) -> None:
    """A fork server that does not answer in time is killed with all below it and replaced; a fork that was waiting
    for it fails with the reason, or is made by the next one."""
    pid, mark = await supervisor.fork_family("up")
    supervisor.do(do="look")
    before = (await supervisor.next("look"))["pid"]
    os.kill(before, signal.SIGSTOP)
    supervisor.do(do="fork", name="waiting", incarnation=1, target="idle", opaque="")
    assert (await supervisor.next("exit", pid=pid))["reason"] == "forkserver lost"
    assert not marked(mark)
    assert "fork server was lost" in (await supervisor.next("failed", name="waiting"))["message"]
    assert alive(await supervisor.fork("again"))
    assert not alive(before)
