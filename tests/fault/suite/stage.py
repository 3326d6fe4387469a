"""Where a case plays: a daemon with three healthy upstreams under load, one victim, two windows, and the clean-up.

Owns the order (calm window, fault window, healing, looking for what was left) and what callers of the victim saw.
Never knows what the fault is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from coffer_common.proctree import environment_value, snapshot
from tests.fault.suite import measure
from tests.fault.suite.load import HEALTHY
from tests.fault.suite.measure import Row
from tests.support import procs
from tests.support.clients import RawHttp, raw_http
from tests.support.daemon import ApiError, Daemon
from tests.support.upstreams import ROOT, Upstream, raw
from tests.support.wait import NotReached, wait_for

VICTIM = "victim"
MARK = "FAULT_MARK"
SECONDS = float(os.environ.get("FAULT_SECONDS", "30"))
RATE = float(os.environ.get("FAULT_RATE", "210"))
SETTLE_SECONDS = 8.0
LIMITS = {"start_seconds": 3.0, "idle_seconds": 2.0, "total_seconds": 6.0, "in_flight": 32, "queue": 64}


@dataclass(frozen=True)
class Seen:
    """What one caller of the victim saw: ``ok``, an error's reason, or the HTTP layer's; after how many seconds."""

    what: str
    seconds: float
    message: str = ""
    body: Any = None


@dataclass
class Stage:
    """One daemon. ``calm`` and ``stormy`` are the lengths of the windows in seconds."""

    folder: Path
    daemon: Daemon = field(default_factory=Daemon)
    calm: float = SECONDS / 3
    stormy: float = SECONDS * 2 / 3
    row: Row = field(default_factory=lambda: Row("", "upstream"))
    upstream: Upstream | None = None
    mark: str = ""
    seen: list[Seen] = field(default_factory=list)
    removable: bool = True
    _load: subprocess.Popen[bytes] | None = None
    _began: float = 0.0
    _descriptors: int = 0
    _threads: int = 0
    _number: int = 0

    # -------------------------------------------------------------- life

    async def start(self) -> None:
        """The daemon, and three upstreams that behave."""
        await asyncio.to_thread(self.daemon.start)
        for name in HEALTHY:
            await asyncio.to_thread(self.daemon.add_server, name, raw())
        for name in HEALTHY:
            await asyncio.to_thread(self.daemon.wait_state, name)

    async def stop(self) -> None:
        """End load and daemon."""
        await self.end_load()
        await asyncio.to_thread(self.daemon.close)

    @property
    def pid(self) -> int:
        """The daemon's process."""
        return int(self.daemon.info["pid"])

    # -------------------------------------------------------------- the load

    async def begin_load(self) -> None:
        """Start the load and wait until it runs."""
        self._number += 1
        self._out = self.folder / f"load-{self._number}"
        argv = [sys.executable, "-m", "tests.fault.suite.load", str(self.daemon.home), str(RATE), str(self._out)]
        self._load = subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE)
        await wait_for(lambda: len(self.calls()) > RATE, 20, "the load to run")

    async def end_load(self) -> None:
        """No more calls; waits for those that are open."""
        if self._load is not None:
            load, self._load = self._load, None
            assert load.stdin is not None
            load.stdin.close()
            await asyncio.to_thread(load.wait, 30)

    def calls(self) -> list[measure.Call]:
        """What the load has seen so far."""
        if not self._out.exists():
            return []
        with open(self._out, encoding="utf-8") as file:
            return measure.read(file)

    # -------------------------------------------------------------- the victim

    async def victim(self, *flags: str, wait: bool = True, **more: Any) -> Upstream:
        """Register the victim with these flags; ``limits`` and further configuration over short defaults."""
        self._victims = self._number
        log = self.folder / f"victim-{secrets.token_hex(4)}.log"
        upstream = raw(*flags, log=log)
        return await self.register(upstream, wait=wait, **more)

    async def register(self, upstream: Upstream, *, wait: bool = True, **more: Any) -> Upstream:
        """Register any upstream as the victim."""
        self.upstream = upstream
        limits = {**LIMITS, **more.pop("limits", {})}
        env = {**upstream.env, MARK: self.mark}
        await asyncio.to_thread(self.daemon.add_server, VICTIM, {**upstream.config(limits=limits, **more), "env": env})
        if wait:
            await asyncio.to_thread(self.daemon.wait_state, VICTIM)
        return upstream

    def ps(self) -> dict[str, Any]:
        """The victim's row of `coffer ps`."""
        return self.daemon.server(VICTIM)

    async def upstream_pid(self) -> int:
        """The victim's own process."""
        return int((await wait_for(lambda: self.ps().get("upstreams"), 10, "an upstream process"))[0]["pid"])

    async def worker_pid(self) -> int:
        """The victim's worker."""
        return int(await wait_for(lambda: self.ps().get("worker_pid"), 10, "a worker"))

    # -------------------------------------------------------------- callers of the victim

    async def call(
        self, arguments: Mapping[str, Any] | None = None, *, tool: str = "echo", keep: bool = True, bound: float = 60
    ) -> Seen:
        """One modern tools/call of the victim from a client of its own."""
        nonce = secrets.token_hex(8)
        params = {"name": f"{VICTIM}__{tool}", "arguments": {"nonce": nonce, **(arguments or {})}}
        began = time.monotonic()
        try:
            async with asyncio.timeout(bound), raw_http(self.daemon) as client:
                seen = _judged(await client.modern("tools/call", params), nonce, began)
        except TimeoutError:
            seen = Seen(f"NO END within {bound:g} s", time.monotonic() - began)
        except aiohttp.ClientError as error:
            seen = Seen("connection lost", time.monotonic() - began, str(error))
        if keep:
            self.seen.append(seen)
        return seen

    async def burst(self, n: int, arguments: Mapping[str, Any] | None = None, **more: Any) -> list[Seen]:
        """So many calls at once."""
        return list(await asyncio.gather(*(self.call(arguments, **more) for _ in range(n))))

    async def works(self, bound: float = 30.0) -> float:
        """Wait until a call of the victim succeeds; after how many seconds."""
        began = time.monotonic()

        async def answered() -> bool:
            return (await self.call(keep=False)).what == "ok"

        await wait_for(answered, bound, lambda: f"the victim to answer again; it is {self.ps()}")
        return time.monotonic() - began

    @contextlib.asynccontextmanager
    async def legacy_client(self) -> AsyncIterator[RawHttp]:
        """A legacy session."""
        async with raw_http(self.daemon) as client:
            await client.initialize()
            yield client

    # -------------------------------------------------------------- the windows

    @contextlib.asynccontextmanager
    async def fault(self, least: float = 0.0) -> AsyncIterator[None]:
        """The calm window before the body, the fault's window around it (``least`` seconds at the least)."""
        await asyncio.sleep(self.calm)
        begin = time.monotonic()
        self.row.before = measure.window(self.calls(), begin - self.calm, begin)
        self._began = begin
        yield
        end = max(begin + max(self.stormy, least), time.monotonic())
        await asyncio.sleep(end - time.monotonic())
        # Calls that were sent in the window may still be open.
        await wait_for(lambda: self._told_until() >= end or self._stalled(), 25, "the load's last calls")
        self.row.during = measure.window(self.calls(), begin, end)

    def _told_until(self) -> float:
        return max((call.due for call in self.calls()[-50:]), default=0.0)

    def _stalled(self) -> bool:
        return self._load is None or self._load.poll() is not None

    def healed(self) -> None:
        """From now on healthy calls must come back: recovery counts from here, not from the fault."""
        self._began = time.monotonic()

    async def back(self) -> None:
        """Wait for the healthy to be back, and keep after how long."""
        await asyncio.sleep(3.5)
        self.row.back = measure.recovery(self.calls(), self._began, time.monotonic() - 1.0)

    # -------------------------------------------------------------- before and after

    async def prepare(self, row: Row) -> None:
        """A fresh row, and the state of things before it."""
        self.row, self.seen, self.mark, self.upstream = row, [], secrets.token_hex(8), None
        await wait_for(self._calm_daemon, 20, "every healthy upstream to be ready")
        self._descriptors, self._threads = self._figures()

    def _calm_daemon(self) -> bool:
        rows = {row["name"]: row["state"] for row in self.daemon.api("GET", "/ps")["workers"]}
        return all(rows.get(name) == "ready" for name in HEALTHY)

    def _figures(self) -> tuple[int, int]:
        process = psutil.Process(self.pid)
        return process.num_fds(), process.num_threads()

    async def finish(self) -> None:
        """Remove the victim; see that nothing of it is left; sum up what its callers saw."""
        row = self.row
        row.seen += _summary(self.seen)
        if any(seen.what.startswith("NO END") for seen in self.seen):
            row.faults.append("a call never ended")
        self._no_call_twice()
        if not self.removable:
            return
        with contextlib.suppress(ApiError):
            await self.daemon.call("DELETE", f"/resources/mcp_server/{VICTIM}")
        for what, gone in (
            ("processes of the upstream", lambda: not self.marked()),
            ("its worker", lambda: not procs.titled(self.daemon.home, f"coffer-worker: {VICTIM} ")),
            ("records of processes", lambda: not list(self.daemon.home.glob(f"upstream-pids/{VICTIM}.*"))),
        ):
            try:
                await wait_for(gone, SETTLE_SECONDS)
            except NotReached:
                row.left.append(what)
        try:
            await wait_for(lambda: self._figures()[0] <= self._descriptors + 8, SETTLE_SECONDS)
        except NotReached:
            row.left.append(f"{self._figures()[0] - self._descriptors} descriptors of the daemon")

    def marked(self) -> list[int]:
        """The living processes of the victim, grandchildren included."""
        return [pid for pid, proc in snapshot().items() if not proc.dead and environment_value(pid, MARK) == self.mark]

    def _no_call_twice(self) -> None:
        """Coffer never sends a tools/call a second time by itself."""
        if self.upstream is None or self.upstream.log_file is None or not self.upstream.log_file.exists():
            return
        if self.upstream.log_file.stat().st_size > 50_000_000:
            return
        calls = self.upstream.messages("tools/call")
        nonces = Counter((call["params"].get("arguments") or {}).get("nonce") for call in calls)
        twice = [nonce for nonce, n in nonces.items() if nonce and n > 1]
        if twice:
            self.row.faults.append(f"{len(twice)} calls were sent upstream twice")

    def expect(self, *reasons: str) -> None:
        """Every caller so far must have seen one of these."""
        for seen in self.seen:
            if seen.what not in reasons:
                self.row.faults.append(f"a caller saw {seen.what} ({seen.message[:200]}), not {' or '.join(reasons)}")
            own = seen.what != "ok" and not seen.what.startswith(("NO END", "connection", "daemon"))
            if own and VICTIM not in seen.message:
                self.row.faults.append(f"the error does not name the upstream: {seen.message[:200]}")

    def within(self, seconds: float) -> None:
        """No caller may have waited longer; a second is given for the machine."""
        worst = max((seen.seconds for seen in self.seen), default=0.0)
        if worst > seconds + 1.5:
            self.row.faults.append(f"a caller waited {worst:.1f} s where {seconds:g} s is the limit")

    def note(self, text: str) -> None:
        """Something worth a line under the table."""
        self.row.notes.append(text.replace(str(self.daemon.home), "~/.coffer"))


def _judged(answer: Any, nonce: str, began: float) -> Seen:
    seconds = time.monotonic() - began
    message = answer.message
    if "error" in message:
        error = message["error"]
        reason = (error.get("data") or {}).get("reason") or f"the upstream's own error {error['code']}"
        return Seen(reason, seconds, error["message"], error)
    body = json.dumps(message["result"])
    if nonce not in body:
        return Seen("another call's answer", seconds, body[:200])
    return Seen("ok", seconds, body=None if len(body) > 10_000 else message["result"])


def _summary(seen: list[Seen]) -> list[str]:
    groups: dict[str, list[float]] = {}
    for one in seen:
        groups.setdefault(one.what, []).append(one.seconds)
    found = []
    for what, times in groups.items():
        low, high = min(times), max(times)
        span = f"{high:.2f} s" if high - low < 0.1 else f"{low:.2f} to {high:.2f} s"
        found.append(f"{len(times)} × {what} after {span}")
    return found
