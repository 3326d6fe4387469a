"""Upstreams that stand still: stopped, computing, mute, deaf. And a worker that stands still."""

from __future__ import annotations

import asyncio
import os
import signal

import psutil

from tests.fault.suite.case import Cases
from tests.fault.suite.stage import Stage
from tests.support.wait import wait_for

CASES = Cases()
MIB = 1024 * 1024


@CASES("upstream stopped (SIGSTOP)", quick=True)
async def stopped(stage: Stage) -> None:
    await stage.victim()
    pid = await stage.upstream_pid()
    async with stage.fault():
        os.kill(pid, signal.SIGSTOP)
        await stage.burst(8)
        stage.expect("idle_limit")
        stage.within(2)
        os.kill(pid, signal.SIGCONT)
        stage.note(f"continued, it answered again after {await stage.works():.2f} s")


@CASES("worker stopped (SIGSTOP)")
async def worker_stopped(stage: Stage) -> None:
    await stage.victim()
    pid = await stage.worker_pid()
    async with stage.fault(least=16):
        os.kill(pid, signal.SIGSTOP)
        await stage.burst(8)
        stage.expect("worker_lost")
        stage.within(13)
        stage.note(f"it was replaced; the next call was answered after {await stage.works():.2f} s")


@CASES("upstream spins at 100 % CPU", quick=True)
async def spinning(stage: Stage) -> None:
    await stage.victim()
    process = psutil.Process(await stage.upstream_pid())
    async with stage.fault():
        await stage.burst(4, {"do": "spin"})
        stage.expect("idle_limit")
        stage.within(2)
        await asyncio.sleep(max(0.0, stage.stormy - 4))
        if process.is_running() and process.nice() <= 0:
            stage.row.faults.append("Coffer gave it no lower priority")
        stage.note(f"nice {process.nice()}, set by Coffer; {sum(process.cpu_times()[:2]):.1f} s of CPU")


@CASES("never answers initialize")
async def no_initialize(stage: Stage) -> None:
    async with stage.fault():
        await stage.victim("--never", "initialize", wait=False)
        await stage.burst(8)
        stage.expect("start_limit", "upstream_backoff", "upstream_failed")
        stage.within(3 + 3 + 5)  # two starts may be met, and the pause between them


@CASES("never answers a call", quick=True)
async def no_answer(stage: Stage) -> None:
    upstream = await stage.victim("--never", "tools/call")
    async with stage.fault():
        await stage.burst(8)
        stage.expect("idle_limit")
        stage.within(2)
        await wait_for(lambda: len(upstream.messages("notifications/cancelled")) == 8, 10, "eight cancellations")


@CASES("progress for ever")
async def endless_progress(stage: Stage) -> None:
    await stage.victim()
    async with stage.fault():
        await stage.burst(4, {"do": "steps", "every": 0.5})
        stage.expect("total_limit")
        stage.within(6)


@CASES("stops reading stdin while 1 MB arguments arrive")
async def deaf(stage: Stage) -> None:
    await stage.victim()
    worker = psutil.Process(await stage.worker_pid())
    supervisor = psutil.Process(stage.pid)
    async with stage.fault():
        before = worker.memory_info().rss + supervisor.memory_info().rss
        waiting = [asyncio.create_task(stage.call({"do": "deaf"}))]
        peak = before
        end = asyncio.get_running_loop().time() + max(3.0, stage.stormy - 3)
        while asyncio.get_running_loop().time() < end:
            waiting.append(asyncio.create_task(stage.call({"blob": "x" * 1_000_000})))
            await asyncio.sleep(0.9)
            if worker.is_running():
                peak = max(peak, worker.memory_info().rss + supervisor.memory_info().rss)
        await asyncio.gather(*waiting)
        stage.expect("idle_limit")
        stage.within(2)
        grown = (peak - before) / MIB
        stage.note(f"{len(stage.seen) - 1} MB were sent; supervisor and worker grew by {grown:.0f} MiB at their peak")
        if grown > 150:
            stage.row.faults.append(f"supervisor and worker grew by {grown:.0f} MiB")
