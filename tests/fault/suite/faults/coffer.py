"""Coffer's own processes killed and stopped. What is measured is how soon the healthy are back."""

from __future__ import annotations

import asyncio
import os
import signal
import time

from coffer_common.pidrecord import COOKIE_VARIABLE
from coffer_common.proctree import environment_value, snapshot
from tests.fault.suite.case import Cases
from tests.fault.suite.stage import Stage
from tests.support import procs
from tests.support.wait import wait_for

CASES = Cases()


async def _family(stage: Stage) -> None:
    """A victim with a grandchild in a session of its own."""
    await stage.victim("--grandchildren", "1")
    await wait_for(lambda: len(stage.marked()) == 2, 10, "the victim's two processes")


def _below(pid: int) -> set[int]:
    return {process.pid for process in procs.descendants(pid)}


def _gone_after(pids: set[int]) -> bool:
    return not [pid for pid in pids if procs.alive(pid)]


async def _wait_gone(stage: Stage, pids: set[int], what: str, began: float) -> None:
    await wait_for(lambda: _gone_after(pids), 15, lambda: f"{what}: {[pid for pid in pids if procs.alive(pid)]} live")
    took = time.monotonic() - began
    stage.note(f"{len(pids)} {what} gone {took:.2f} s after the kill")
    if took > 5:
        stage.row.faults.append(f"{what} were gone after {took:.1f} s only")


def _fork_server(stage: Stage) -> int:
    return procs.titled(stage.daemon.home, "coffer-forkserver")[0].pid


@CASES("worker killed (SIGKILL)", "upstream", quick=True)
async def worker_killed(stage: Stage) -> None:
    await _family(stage)
    pid = await stage.worker_pid()
    async with stage.fault():
        waiting = asyncio.create_task(stage.burst(4, {"delay": 20}))
        upstream = stage.upstream
        assert upstream is not None
        await wait_for(lambda: len(upstream.messages("tools/call")) == 4, 10)
        family, began = set(stage.marked()), time.monotonic()
        os.kill(pid, signal.SIGKILL)
        await waiting
        stage.expect("worker_lost")
        await _wait_gone(stage, family, "processes of its upstream", began)
        stage.note(f"the next call was answered after {await stage.works():.2f} s")


@CASES("fork server killed (SIGKILL)", "coffer", quick=True)
async def forkserver_killed(stage: Stage) -> None:
    await _family(stage)
    async with stage.fault():
        pids = _below(_fork_server(stage))
        stage.healed()
        began = time.monotonic()
        os.kill(_fork_server(stage), signal.SIGKILL)
        await stage.burst(2)
        stage.expect("worker_lost", "ok", "upstream_backoff")
        await _wait_gone(stage, pids, "processes below it", began)
        await stage.back()


@CASES("fork server stopped (SIGSTOP)", "coffer")
async def forkserver_stopped(stage: Stage) -> None:
    await _family(stage)
    async with stage.fault(least=22):
        old = _fork_server(stage)
        os.kill(old, signal.SIGSTOP)
        stage.note("calls go on while it is stopped; it is replaced, with the workers, when it misses its deadline")
        await wait_for(lambda: not procs.alive(old), 30, "the stopped fork server to be replaced")
        stage.healed()
        await stage.back()
        await stage.works()


@CASES("supervisor killed (SIGKILL) with a worker stopped", "coffer", quick=True)
async def supervisor_killed(stage: Stage) -> None:
    await _family(stage)
    worker = await stage.worker_pid()
    async with stage.fault():
        pids = _below(stage.pid)
        os.kill(worker, signal.SIGSTOP)
        began = time.monotonic()
        await asyncio.to_thread(stage.daemon.kill)
        await _wait_gone(stage, pids, "workers and upstream processes", began)
        await _again(stage)


@CASES("everything of Coffer killed at once (SIGKILL)", "coffer")
async def everything_killed(stage: Stage) -> None:
    await _family(stage)
    async with stage.fault():
        orphans = _orphans_to_be(stage)
        ours = [stage.pid, *(pid for pid in _below(stage.pid) if pid not in orphans)]
        for pid in ours:
            os.kill(pid, signal.SIGSTOP)  # so that none can act on the death of another
        for pid in ours:
            os.kill(pid, signal.SIGKILL)
        assert stage.daemon.process is not None
        await asyncio.to_thread(stage.daemon.process.wait)
        left = [pid for pid in orphans if procs.alive(pid)]
        await _again(stage)
        still = [pid for pid in left if procs.alive(pid)]
        stage.note(f"{len(left)} upstream processes outlived it; the next start left {len(still)} of them")
        if still:
            stage.row.left.append(f"{len(still)} upstream processes of before")


def _orphans_to_be(stage: Stage) -> set[int]:
    """The upstream processes: what Coffer is not itself."""
    found = _below(stage.pid)
    return {pid for pid in found if pid in snapshot() and environment_value(pid, COOKIE_VARIABLE)}


async def _again(stage: Stage) -> None:
    """Start the daemon; from its start the healthy must be back soon."""
    stage.healed()
    began = time.monotonic()
    await asyncio.to_thread(stage.daemon.start)
    stage.note(f"the daemon answered {time.monotonic() - began:.2f} s after its new start")
    await stage.back()
    await stage.works()


@CASES("all of Coffer stopped for 60 s, then continued", "coffer", own_daemon=True)
async def all_stopped(stage: Stage) -> None:
    await _family(stage)
    seconds = 60.0
    restarts = {row["name"]: row["restarts"] for row in stage.daemon.api("GET", "/ps")["workers"]}
    async with stage.fault(least=seconds + 5):
        pids = [stage.pid, *_below(stage.pid)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(seconds)
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)
        stage.healed()
        await stage.back()
        rows = stage.daemon.api("GET", "/ps")["workers"]
        again = [row["name"] for row in rows if row["restarts"] > restarts[row["name"]]]
        if again:
            stage.row.faults.append(f"restarted for nothing: {', '.join(again)}")
        await stage.works()
        stage.note("no worker was replaced" if not again else "")
