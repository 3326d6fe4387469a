"""Drives `tests.fixtures.fork_supervisor`, and finds the processes that its workers started by their mark."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from coffer_common.proctree import Proc, environment_value, read_one, snapshot
from tests.fixtures.worker_targets import MARK
from tests.support.wait import BOUND, wait_for, wait_until

ROOT = Path(__file__).parents[2]
FAMILY_SIZE = 3


def alive(pid: int) -> bool:
    """Whether that process lives (a zombie does not)."""
    proc = read_one(pid)
    return proc is not None and not proc.dead


def carrying(name: str, value: str) -> list[Proc]:
    """The living processes with that variable in their environment."""
    return [proc for pid, proc in snapshot().items() if not proc.dead and environment_value(pid, name) == value]


def marked(mark: str) -> list[Proc]:
    """The living processes of that mark's family."""
    return carrying(MARK, mark)


class ForkSupervisor:
    """One stand-in supervisor. Its events are kept by kind and handed out in order."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.pids: set[int] = set()
        self.events: list[dict[str, Any]] = []

    @classmethod
    async def start(cls, home: Path, *, loop: str = "uvloop", **timing: float) -> ForkSupervisor:
        """Start it; the fork server may not be ready yet."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "tests.fixtures.fork_supervisor",
            str(home),
            json.dumps(timing),
            loop,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        return cls(process)

    async def next(self, kind: str, **fields: Any) -> dict[str, Any]:
        """The next event of that kind with those fields; others are kept."""
        while True:
            for event in self.events:
                if event["event"] == kind and all(event[key] == value for key, value in fields.items()):
                    self.events.remove(event)
                    return event
            assert self.process.stdout is not None
            line = await asyncio.wait_for(self.process.stdout.readline(), BOUND)
            assert line, f"the supervisor ended before it said {kind} {fields}"
            event = json.loads(line)
            self.events.append(event)
            if event.get("pid"):
                self.pids.add(event["pid"])

    def do(self, **order: Any) -> None:
        """Send a command."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order).encode() + b"\n")

    async def fork(self, name: str, target: str = "idle", opaque: str = "", incarnation: int = 1) -> int:
        """Fork a worker and wait for its PID."""
        self.do(do="fork", name=name, incarnation=incarnation, target=target, opaque=opaque)
        return int((await self.next("forked", name=name))["pid"])

    async def fork_family(self, name: str) -> tuple[int, str]:
        """A worker with a family of upstream processes; its PID and the family's mark."""
        mark = secrets.token_hex(8)
        pid = await self.fork(name, "family", mark)
        await wait_for(lambda: len(marked(mark)) == FAMILY_SIZE, what=f"the family of {name}")
        return pid, mark

    async def close(self) -> None:
        """End it whatever state it is in, and all that it told of."""
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        for pid in self.pids:
            # A stopped fork server cannot clean up; going on, it sees the end of its socket.
            if alive(pid):
                os.kill(pid, signal.SIGCONT)
        wait_until(lambda: not any(alive(pid) for pid in self.pids), what="everything below the supervisor gone")
        self.process._transport.close()  # type: ignore[attr-defined]
