"""Run the benchmark: `python -m bench [--quick] [--json FILE] [--only direct,relay,http,shim,url,http-url]`.

Prints a table and writes JSON. Exit code 1 only where something is wrong (errors, a mixed-up answer, rows that
do not equal calls), never for being slow.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from bench.gateway import BIG, LISTS, PER_LIST, TOOL, URL_TOOL, Gateway
from bench.load import Load, list_tools, load, timed_big
from bench.report import Report
from bench.wire import BenchError, Http, Pipe, Wire

UPSTREAM = [sys.executable, "-m", "bench.upstream"]
WAYS = ("direct", "relay", "http", "shim", "url", "http-url")
THROUGH = ("http", "shim", "http-url")
BIG_BYTES = 10_000_000


@contextlib.asynccontextmanager
async def relay() -> AsyncIterator[Http]:
    """The bare relay's two processes and a client of it."""
    folder = tempfile.mkdtemp(prefix="cb-", dir="/tmp")
    endpoint = f"ipc://{folder}/relay"
    front = subprocess.Popen([sys.executable, "-m", "bench.relay", endpoint], stdout=subprocess.PIPE, text=True)
    assert front.stdout is not None
    port = int(await asyncio.to_thread(front.stdout.readline))
    back = subprocess.Popen([sys.executable, "-m", "bench.relay_worker", endpoint, *UPSTREAM])
    client = Http(port, "/mcp", {})
    try:
        await asyncio.wait_for(client.open(), 10)
        yield client
    finally:
        await client.close()
        for process in (back, front):
            process.terminate()
            process.wait()
        shutil.rmtree(folder)


@contextlib.asynccontextmanager
async def at_a_url() -> AsyncIterator[int]:
    """The port of the upstream that is reached over HTTP."""
    process = subprocess.Popen([sys.executable, "-m", "bench.url_upstream"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield int(await asyncio.to_thread(process.stdout.readline))
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


class Run:
    """One run: its options, the ways that are open, and what it found."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.report = Report()
        self.gateway: Gateway | None = None
        self.wires: dict[str, tuple[Wire, str]] = {}
        self.through = 0  # tools/call that Coffer must have logged

    async def all(self) -> None:
        """Open the ways, measure, close."""
        wanted = self.options.only
        async with contextlib.AsyncExitStack() as stack:
            if "direct" in wanted:
                direct = Pipe(UPSTREAM)
                await direct.open()
                stack.push_async_callback(direct.close)
                self.wires["direct"] = (direct, "echo")
            if "relay" in wanted:
                self.wires["relay"] = (await stack.enter_async_context(relay()), "echo")
            port = await stack.enter_async_context(at_a_url()) if {"url", "http-url"} & set(wanted) else 0
            if "url" in wanted:
                await self.opened(stack, "url", Http(port, "/mcp", {}), "echo")
            if set(THROUGH) & set(wanted):
                await self.open_gateway(stack, wanted, port)
            await self.loads()
            await self.big()
            if self.gateway is not None:
                await self.rest(self.gateway)

    async def opened(self, stack: contextlib.AsyncExitStack, way: str, wire: Http | Pipe, tool: str) -> None:
        """Open one way, and close it in the end."""
        await asyncio.wait_for(wire.open(), 20)
        stack.push_async_callback(wire.close)
        self.wires[way] = (wire, tool)

    async def open_gateway(self, stack: contextlib.AsyncExitStack, wanted: list[str], port: int) -> None:
        """Start Coffer; its idle memory is taken before any load."""
        gateway = Gateway()
        stack.push_async_callback(asyncio.to_thread, gateway.stop)
        await asyncio.to_thread(gateway.start)
        self.gateway = gateway
        idle = gateway.memory()
        self.report.figures |= {
            "supervisor_mb": idle.supervisor,
            "fork_server_mb": idle.fork_server,
            "worker_mb": idle.worker,
        }
        for way, wire in (("http", gateway.http()), ("shim", gateway.shim())):
            if way in wanted:
                await self.opened(stack, way, wire, TOOL)
        if "http-url" in wanted:
            await asyncio.to_thread(gateway.add_url, port)
            await self.opened(stack, "http-url", gateway.http(), URL_TOOL)

    async def loads(self) -> None:
        """Every way at every concurrency; the ways take turns, the median round (by calls/s) counts."""
        for at_once in (1, 16, 64):
            calls = (500 if at_once == 1 else 2_000) if self.options.quick else (3_000 if at_once == 1 else 12_000)
            rounds: dict[str, list[Load]] = {way: [] for way in self.wires}
            for way, (wire, tool) in self.wires.items():
                await load(wire, tool, 100, at_once)  # warm up
                self.count(way, 100)
            for _ in range(1 if self.options.quick else 3):
                for way, (wire, tool) in self.wires.items():
                    one = await load(wire, tool, calls, at_once)
                    rounds[way].append(one)
                    self.count(way, one.calls)
                    if one.errors:
                        self.fault(f"{way}, {at_once} at once: {one.errors} errors, first: {one.first_error}")
            for way, some in rounds.items():
                middle = sorted(some, key=lambda one: one.per_second)[len(some) // 2]
                self.report.loads.setdefault(way, []).append(middle)
                print(f"{way}, {at_once} at once: {middle.per_second:,.0f} calls/s", file=sys.stderr)

    def count(self, way: str, calls: int) -> None:
        """Keep the sum of what Coffer must have logged."""
        if way in THROUGH:
            self.through += calls

    def fault(self, text: str) -> None:
        """Something that is wrong, not slow."""
        self.report.faults.append(text)

    async def big(self) -> None:
        """10 MB results: time through the relay and through Coffer, and Coffer's extra memory."""
        rounds = 3 if self.options.quick else 7
        figures = self.report.figures
        for way, tool in (("relay", "big"), ("http", BIG)):
            if way not in self.wires:
                continue
            wire = self.wires[way][0]
            if way == "http" and self.gateway is not None:
                # Measured first: the allocator keeps what a first big result made it fetch.
                extra = await self.gateway.peak(functools.partial(timed_big, wire, tool, BIG_BYTES))
                figures["big_memory_ratio"] = round(extra / BIG_BYTES, 1)
                self.count(way, 1)
            times = [await timed_big(wire, tool, BIG_BYTES) for _ in range(rounds)]
            self.count(way, rounds)
            figures[f"big_{way}_ms"] = round(statistics.median(times) * 1e3, 1)
        if "big_relay_ms" in figures and "big_http_ms" in figures:
            figures["big_ratio"] = round(figures["big_http_ms"] / figures["big_relay_ms"], 2)

    async def rest(self, gateway: Gateway) -> None:
        """Lists, starts and rows."""
        figures = self.report.figures
        figures["shim_start_ms"] = await gateway.shim_starts(5 if self.options.quick else 20)
        figures["calls"], figures["rows"] = self.through, await gateway.rows(self.through)
        if figures["calls"] != figures["rows"]:
            self.fault(f"{figures['calls']} calls were made, {figures['rows']} rows are in mcp_invocations")
        await gateway.add_lists()
        figures["worker_mb"] = max(figures["worker_mb"], gateway.memory().worker)
        figures["supervisor_after_mb"] = gateway.memory().supervisor
        await self.lists(gateway)
        figures["worker_start_ms"] = await gateway.worker_start(3 if self.options.quick else 9)

    async def lists(self, gateway: Gateway) -> None:
        """tools/list of all upstreams."""
        wire = gateway.http()
        await wire.open()
        expected = LISTS * PER_LIST + (4 if "http-url" in self.wires else 2)
        times = []
        for _ in range(10 if self.options.quick else 50):
            tools, size, took = await list_tools(wire)
            times.append(took)
        await wire.close()
        if tools != expected:
            self.fault(f"{tools} tools listed instead of {expected}")
        self.report.figures |= {"list_ms": round(statistics.median(times) * 1e3, 2), "list_bytes": size}


def machine() -> dict[str, Any]:
    """What the figures were taken on."""
    return {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round: shows that it works, not how fast")
    parser.add_argument("--json", type=Path, default=Path("build/bench.json"), metavar="FILE")
    parser.add_argument("--only", default=",".join(WAYS), help="ways to measure, comma-separated")
    options = parser.parse_args()
    options.only = [way for way in options.only.split(",") if way in WAYS]
    return options


async def measure(options: argparse.Namespace) -> Report:
    """The run, with what ended it early among its faults."""
    run = Run(options)
    try:
        await asyncio.wait_for(run.all(), 900)
    except (BenchError, AssertionError, OSError, TimeoutError) as error:
        run.fault(f"ended early: {type(error).__name__}: {error}")
    return run.report


def main() -> int:
    """Measure, print, write; 0 if nothing is wrong."""
    options = parse()
    try:
        import uvloop

        report = uvloop.run(measure(options))
    except ImportError:
        report = asyncio.run(measure(options))
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps({"machine": machine(), **report.as_json()}, indent=2) + "\n")
    print(report.table())
    print(f"\nas JSON: {options.json}")
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
