"""Upstreams that end: in a call, at their start, never, or not alone."""

from __future__ import annotations

import asyncio
import shlex
import sys

import psutil

from tests.fault.suite.case import Cases
from tests.fault.suite.stage import VICTIM, Stage
from tests.support.upstreams import FIXTURES, Upstream
from tests.support.wait import wait_for

CASES = Cases()
SERVER = [sys.executable, "-S", str(FIXTURES / "raw_server.py")]
# As npx and uvx do it: the launcher stays, the server is its child and has its pipes.
LAUNCHER = "import subprocess,sys;sys.exit(subprocess.call(sys.argv[1:]))"


@CASES("closes stdout but lives")
async def mute(stage: Stage) -> None:
    await stage.victim()
    async with stage.fault():
        await stage.call({"do": "mute"})
        stage.expect("upstream_exited")
        stage.within(2)
        stage.note(f"the next call was answered after {await stage.works():.2f} s")


@CASES("exits in mid-call", quick=True)
async def leaves(stage: Stage) -> None:
    await stage.victim()
    async with stage.fault():
        waiting = asyncio.create_task(stage.burst(4, {"delay": 20}))
        log = stage.upstream
        assert log is not None
        await wait_for(lambda: len(log.messages("tools/call")) == 4, 10)
        await stage.call({"do": "exit"})
        await waiting
        stage.expect("upstream_exited")
        stage.within(2)
        stage.note(f"the next call was answered after {await stage.works():.2f} s")


@CASES("exits at start")
async def dies_at_start(stage: Stage) -> None:
    async with stage.fault():
        await stage.victim("--stderr-at-start", "no licence found", "--die-at-start", "3", wait=False)
        await stage.burst(4)
        stage.expect("start_failed", "upstream_backoff", "upstream_failed", "upstream_exited")
        stage.within(3)
        if not all("no licence found" in seen.message for seen in stage.seen):
            stage.row.faults.append("the error does not hold the last lines of its stderr")


@CASES("crash loop (dies 200 ms after its start)")
async def crash_loop(stage: Stage) -> None:
    async with stage.fault():
        upstream = await stage.victim("--die-after-ms", "200", "--exit-code", "9", wait=False)
        end = asyncio.get_running_loop().time() + stage.stormy - 1
        while asyncio.get_running_loop().time() < end:
            await stage.call({"delay": 1})
        stage.expect("upstream_exited", "start_failed", "upstream_failed", "upstream_backoff")
        starts = sum(entry["event"] == "start" for entry in upstream.log())
        stage.note(f"{starts} starts in {stage.stormy:.0f} s; then `{stage.ps().get('state')}`")
        if starts > 16:
            stage.row.faults.append(f"{starts} starts are a storm")


@CASES("ignores SIGTERM and end of input")
async def will_not_stop(stage: Stage) -> None:
    await stage.victim("--ignore-term", "--ignore-eof")
    async with stage.fault():
        await stage.burst(2)
        began = asyncio.get_running_loop().time()
        await stage.daemon.call("DELETE", f"/resources/mcp_server/{VICTIM}")
        await wait_for(lambda: not stage.marked(), 15, "the upstream to end")
        stage.note(f"removed, it was gone after {asyncio.get_running_loop().time() - began:.2f} s")
        stage.expect("ok")


def _shape(name: str, upstream: Upstream, least: int) -> None:
    @CASES(f"leaves grandchildren ({name}) and is killed")
    async def grandchildren(stage: Stage) -> None:
        pids = stage.folder / "pids"
        pids.unlink(missing_ok=True)
        argv = [part.replace("PIDS", str(pids)) for part in upstream.args]
        await stage.register(Upstream(upstream.command, argv))
        await wait_for(lambda: len(stage.marked()) >= least, 10, f"{least} processes")
        async with stage.fault():
            await stage.burst(2)
            stage.expect("ok")
            family = stage.marked()
            root = psutil.Process(await stage.upstream_pid())
            began = asyncio.get_running_loop().time()
            root.kill()
            await wait_for(lambda: not set(family) & set(stage.marked()), 10, "the whole family to end")
            took = asyncio.get_running_loop().time() - began
            if took > 5:
                stage.row.faults.append(f"its {len(family)} processes were gone after {took:.1f} s only")
            stage.note(f"{len(family)} processes gone {took:.2f} s after the kill of the first")
            await stage.works()


_COMMAND = " ".join(map(shlex.quote, [*SERVER, "--grandchildren", "2", "--pid-file", "PIDS"]))
_shape("sh -c", Upstream("sh", ["-c", f"{_COMMAND}; true"]), 4)
_shape("npx and uvx", Upstream(sys.executable, ["-c", LAUNCHER, "sh", "-c", f"{_COMMAND}; true"]), 5)
_shape("setsid", Upstream("sh", ["-c", f"setsid sleep 3600 & setsid sleep 3601 & exec {_COMMAND}"]), 5)


@CASES("leaks memory to a cap")
async def leak(stage: Stage) -> None:
    await stage.victim(limits={"max_rss_bytes": 120_000_000, "idle_seconds": 20.0, "total_seconds": 20.0})
    async with stage.fault():
        await stage.call({"do": "leak", "mb": 2000})
        stage.expect("memory_limit")
        stage.within(6)
        if not all("max_rss" in seen.message for seen in stage.seen):
            stage.row.faults.append("the error does not name the limit")
        stage.note(f"the next call was answered after {await stage.works():.2f} s")


@CASES("starts processes to a cap")
async def forks(stage: Stage) -> None:
    async with stage.fault():
        many = "for n in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 3600 & done; exec "
        upstream = Upstream("sh", ["-c", many + " ".join(map(shlex.quote, SERVER))])
        await stage.register(upstream, wait=False, limits={"max_processes": 8})
        await stage.call({"delay": 5})
        stage.expect("process_limit", "upstream_failed")
        if not all("max_processes" in seen.message for seen in stage.seen):
            stage.row.faults.append("the error does not name the limit")
