"""A worker whose event loop is stuck still beats, shows its stacks, and dies with its supervisor."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest

from coffer_common import frames
from tests.support.upstreams import raw
from tests.support.wait import wait_for
from tests.support.worker import MAIN, Worker, server_config

pytestmark = pytest.mark.fault

# The real worker; SIGUSR2 blocks its main thread, and so its loop, for good.
STUCK = (
    "import signal, threading\n"
    "def stuck_here(*_):\n"
    "    while not threading.Event().wait(60): pass\n"
    "signal.signal(signal.SIGUSR2, stuck_here)\n" + MAIN
)


async def test_a_stuck_loop_is_seen_from_outside(tmp_path: Path) -> None:
    """Beats go on with a growing lag; after a second a dump holds the stacks of the threads instead of the tasks."""
    async with Worker.start(tmp_path, server_config(raw()), program=STUCK) as worker:
        worker.process.send_signal(signal.SIGUSR2)
        await wait_for(lambda: worker.beats[-1].loop_lag > 1.5)
        assert worker.beats[-1].cpu_seconds > 0
        seen = await worker.dump()
        assert any("stuck_here" in stack for stack in seen["tasks"])
        assert seen["loop"] == "stuck"
        assert worker.process.poll() is None


async def test_a_stuck_worker_still_dies_with_its_supervisor(tmp_path: Path) -> None:
    """The lifeline is watched beside the loop; what the worker had started goes too."""
    async with Worker.start(tmp_path, server_config(raw()), program=STUCK) as worker:
        await wait_for(lambda: worker.beats and worker.beats[-1].pids)
        pids = worker.beats[-1].pids
        worker.process.send_signal(signal.SIGUSR2)
        await wait_for(lambda: worker.beats[-1].loop_lag > 1.0)
        worker.lifeline.close()
        await wait_for(lambda: worker.process.poll() is not None)
        await wait_for(lambda: not any(psutil.pid_exists(pid) for pid in pids))


async def test_a_worker_told_to_end_ends_in_good_order(tmp_path: Path) -> None:
    """SIGTERM means the same as Stop without draining."""
    upstream = raw(log=tmp_path / "log.jsonl")
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        worker.process.terminate()
        await wait_for(lambda: worker.process.poll() is not None)
        assert worker.process.returncode == 0
        assert worker.all(frames.State)[-1].state == "stopping"
        assert upstream.log()[-1]["event"] == "end"
