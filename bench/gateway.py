"""Coffer as the benchmark sees it: an installed daemon in a home of its own with shipping defaults.

Registers the fast upstream once for load and twenty times for long lists; reads memory and rows from outside.
"""

from __future__ import annotations

import asyncio
import sqlite3
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench.wire import INITIALIZE, BenchError, Http, Pipe, message
from tests.support import procs
from tests.support.daemon import SHIM, Daemon
from tests.support.wait import NotReached, wait_for

ROOT = Path(__file__).resolve().parents[1]
MIB = 1024 * 1024
NAME = "bench"
TOOL = "bench__echo"
BIG = "bench__big"
URL_NAME = "benchurl"
URL_TOOL = "benchurl__echo"
LISTS = 20
PER_LIST = 50


def config(fillers: int = 0) -> dict[str, Any]:
    """The registration of one fast upstream that lists `fillers` tools beside its two."""
    args = ["-m", "bench.upstream", "--tools", str(fillers)]
    return {"transport": "stdio", "command": sys.executable, "args": args, "env": {"PYTHONPATH": str(ROOT)}}


@dataclass(frozen=True)
class Memory:
    """Proportional set sizes in MB, of idle processes."""

    supervisor: float
    fork_server: float
    worker: float
    workers: int


class Gateway:
    """The daemon under measurement."""

    def __init__(self) -> None:
        self.daemon = Daemon()

    def start(self) -> None:
        """Start it and register the upstream that is loaded."""
        self.daemon.start()
        self.daemon.add_server(NAME, config())
        self.daemon.wait_state(NAME)

    def add_url(self, port: int) -> None:
        """Register the fast upstream that is reached over HTTP."""
        self.daemon.add_server(URL_NAME, {"transport": "http", "url": f"http://127.0.0.1:{port}/mcp"})
        self.daemon.wait_state(URL_NAME)

    def stop(self) -> None:
        """Stop it and remove its home."""
        self.daemon.close()

    def http(self) -> Http:
        """A client of /mcp with the daemon's token; `open` it."""
        return Http(self.daemon.port, "/mcp", {"Authorization": f"Bearer {self.daemon.token}"})

    def shim(self) -> Pipe:
        """A client over the installed shim; `open` it."""
        return Pipe([SHIM], self.daemon.env)

    async def add_lists(self) -> None:
        """Twenty upstreams of fifty tools; waits until every one is listed."""
        names = [f"list{n:02d}" for n in range(LISTS)]
        for name in names:
            await asyncio.to_thread(self.daemon.add_server, name, config(PER_LIST - 2))

        async def ready() -> bool:
            rows = (await self.daemon.call("GET", "/ps"))["workers"]
            return {row["name"] for row in rows if row["state"] == "ready"} >= set(names)

        await wait_for(ready, 120, "twenty upstreams to be ready")

    # -------------------------------------------------------------- from outside

    def processes(self) -> dict[str, list[psutil.Process]]:
        """The daemon, its fork server and its workers, by their titles."""
        assert self.daemon.process is not None
        found: dict[str, list[psutil.Process]] = {"supervisor": [psutil.Process(self.daemon.process.pid)]}
        for process in procs.descendants(self.daemon.process.pid):
            try:
                title = " ".join(process.cmdline())
            except psutil.NoSuchProcess:
                continue
            if title.startswith("coffer-forkserver"):
                found.setdefault("fork_server", []).append(process)
            elif title.startswith("coffer-worker: "):
                found.setdefault("worker", []).append(process)
        return found

    def worker_of(self, name: str) -> psutil.Process:
        """The worker of one upstream."""
        for process in self.processes().get("worker", []):
            if " ".join(process.cmdline()).startswith(f"coffer-worker: {name} "):
                return process
        raise BenchError(f"no worker of {name}")

    def memory(self) -> Memory:
        """What the processes take now; of the workers, the largest."""
        sizes = {kind: [procs.pss(one.pid) / MIB for one in some] for kind, some in self.processes().items()}
        workers = sizes.get("worker", [0.0])
        return Memory(
            supervisor=round(sizes["supervisor"][0], 1),
            fork_server=round(sum(sizes.get("fork_server", [0.0])), 1),
            worker=round(max(workers), 1),
            workers=len(workers),
        )

    async def peak(self, work: Callable[[], Any]) -> float:
        """By how many bytes supervisor and worker together grew at their peaks while `work` ran."""
        assert self.daemon.process is not None
        pids = [self.daemon.process.pid, self.worker_of(NAME).pid]
        before = 0
        for pid in pids:
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak starts again from what is resident now
            before += _status(pid, "VmRSS")
        await work()
        return sum(_status(pid, "VmHWM") for pid in pids) - before

    async def worker_start(self, rounds: int) -> float:
        """Milliseconds from the request to enable an upstream until its worker bears its title, at the median."""
        times = []
        path = f"/resources/mcp_server/list{0:02d}"
        title = f"coffer-worker: list{0:02d} "
        for _ in range(rounds):
            await self.daemon.call("POST", f"{path}/disable")
            await wait_for(lambda: not procs.titled(self.daemon.home, title), 20, "the worker to end")
            parent = self.processes()["fork_server"][0]
            start = time.perf_counter()
            enabling = asyncio.create_task(self.daemon.call("POST", f"{path}/enable"))
            while not any(_titled(child, title) for child in parent.children()):
                if time.perf_counter() - start > 20:
                    raise BenchError("no worker within 20 s")
                await asyncio.sleep(0)
            times.append((time.perf_counter() - start) * 1e3)
            await enabling
        return round(statistics.median(times), 1)

    async def shim_starts(self, rounds: int) -> float:
        """Milliseconds from the start of a shim to its first answered initialize, at the median."""
        times = []
        for _ in range(rounds):
            shim = self.shim()
            start = time.perf_counter()
            await shim.start()
            await shim.request(0, message(0, "initialize", INITIALIZE))
            times.append((time.perf_counter() - start) * 1e3)
            await shim.close()
        return round(statistics.median(times), 1)

    async def rows(self, expected: int) -> int:
        """How many calls the store logged; waits for the writer, then tells the truth."""
        try:
            await wait_for(lambda: self._count() >= expected, 10)
        except NotReached:
            pass
        return self._count()

    def _count(self) -> int:
        database = sqlite3.connect(f"file:{self.daemon.home}/coffer.db?mode=ro", uri=True)
        try:
            return int(database.execute("SELECT count(*) FROM mcp_invocations").fetchone()[0])
        finally:
            database.close()


def _titled(process: psutil.Process, title: str) -> bool:
    try:
        return " ".join(process.cmdline()).startswith(title)
    except psutil.NoSuchProcess:
        return False


def _status(pid: int, key: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise BenchError(f"no {key} of {pid}")
