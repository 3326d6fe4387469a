"""Upstreams that say too much, or what is none."""

from __future__ import annotations

import asyncio

import psutil

from tests.fault.suite.case import Cases
from tests.fault.suite.stage import Stage

CASES = Cases()
MIB = 1024 * 1024


async def _flood(stage: Stage, what: str) -> None:
    await stage.victim()
    worker, supervisor = psutil.Process(await stage.worker_pid()), psutil.Process(stage.pid)
    before = worker.memory_info().rss + supervisor.memory_info().rss
    cpu = sum(worker.cpu_times()[:2])
    async with stage.fault():
        await stage.call({"do": "storm", "what": what, "n": 100_000})
        for _ in range(8):
            await stage.burst(2)
            await asyncio.sleep(stage.stormy / 10)
        stage.expect("ok")
        stage.within(2)
    grown = (worker.memory_info().rss + supervisor.memory_info().rss - before) / MIB
    used = sum(worker.cpu_times()[:2]) - cpu
    stage.note(f"supervisor and worker grew by {grown:.0f} MiB; the worker used {used:.1f} s of CPU")
    if grown > 100:
        stage.row.faults.append(f"supervisor and worker grew by {grown:.0f} MiB")


@CASES("floods stdout with 100,000 log messages a second", quick=True)
async def flood_of_messages(stage: Stage) -> None:
    await _flood(stage, "notifications/message")


@CASES("floods stdout with 100,000 list_changed a second")
async def flood_of_changes(stage: Stage) -> None:
    await _flood(stage, "notifications/tools/list_changed")


@CASES("floods stdout with 100,000 stray progress a second")
async def flood_of_progress(stage: Stage) -> None:
    await _flood(stage, "notifications/progress")


@CASES("floods stdout with 100,000 lines of text a second")
async def flood_of_text(stage: Stage) -> None:
    await _flood(stage, "text")


@CASES("writes a line of 100 MB")
async def huge_line(stage: Stage) -> None:
    await stage.victim(limits={"line_bytes": 64 * MIB, "idle_seconds": 10.0, "total_seconds": 15.0})
    worker, supervisor = psutil.Process(await stage.worker_pid()), psutil.Process(stage.pid)
    async with stage.fault():
        before = worker.memory_info().rss + supervisor.memory_info().rss
        await stage.call({"n_bytes": 100_000_000}, tool="huge")
        stage.expect("line_limit")
        stage.within(10)
        grown = (worker.memory_info().rss + supervisor.memory_info().rss - before) / MIB
        await stage.works()
    stage.note(f"supervisor and worker had grown by {grown:.0f} MiB afterwards; the next call was answered")
    if grown > 160:
        stage.row.faults.append(f"supervisor and worker grew by {grown:.0f} MiB")


@CASES("writes 256 KB of stderr before each answer")
async def chatty_stderr(stage: Stage) -> None:
    await stage.victim("--stderr-before-answer", "262144")
    async with stage.fault():
        for _ in range(10):
            await stage.burst(2)
        stage.expect("ok")
        stage.within(2)


@CASES("invalid UTF-8 before each answer")
async def invalid(stage: Stage) -> None:
    await stage.victim("--invalid-utf8")
    async with stage.fault():
        await stage.burst(8)
        stage.expect("ok")


@CASES("half a line, then silence")
async def half(stage: Stage) -> None:
    await stage.victim()
    async with stage.fault():
        await stage.call({"do": "half"})
        stage.expect("idle_limit", "bad_answer")
        stage.within(2)
        # What it says next is glued to the half: no answer may be given to the wrong call for that.
        await stage.burst(4)
        stage.expect("idle_limit", "bad_answer", "ok")
        stage.note(f"a call was answered again after {await stage.works():.2f} s")


@CASES("answers twice")
async def twice(stage: Stage) -> None:
    await stage.victim("--double-answers")
    async with stage.fault():
        for _ in range(5):
            await stage.burst(8)
        stage.expect("ok")


@CASES("answers unknown ids")
async def strangers(stage: Stage) -> None:
    await stage.victim("--wrong-ids")
    async with stage.fault():
        await stage.burst(3)
        stage.expect("idle_limit")
        stage.within(2)
        await stage.burst(8)
        stage.expect("idle_limit", "ok")
        stage.note(f"a call was answered again after {await stage.works():.2f} s")
