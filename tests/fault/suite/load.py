"""The load of a fault run: calls at a steady rate, whatever becomes of them; a process of its own.

`python -m tests.fault.suite.load HOME RATE OUT` reads port and token from HOME's daemon.json and calls `echo` of
each healthy upstream in turn, every call with a text of its own that must come back. A call is due at its time
and is sent then, however many are open: latency counts from the intended send, so that a stall is seen by all
calls that it held up. A line a call goes to OUT: intended send (monotonic), seconds, `ok` or what was wrong.
End of file on stdin ends it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from bench.wire import BenchError, Http
from tests.support.clients import modern_message

HEALTHY = ("calm1", "calm2", "calm3")
CALL_SECONDS = 20.0
CONNECTIONS = 64
PLACE_SECONDS = 5.0
FLUSH_SECONDS = 0.2


class Lasting(Http):
    """An HTTP client that outlives the daemon it speaks to. Like any, it has a bounded number of connections: a call
    waits for one, which counts, and is given up where none is free in time. Without that bound a daemon that stands
    still would be met afterwards by thousands of connections whose clients have long gone."""

    def __init__(self, port: int, path: str, headers: Mapping[str, str]) -> None:
        super().__init__(port, path, headers)
        self._places = asyncio.Semaphore(CONNECTIONS)

    async def post(self, body: bytes) -> tuple[int, bytes, bytes]:
        """As the base, over a connection that is still open."""
        try:
            async with asyncio.timeout(PLACE_SECONDS):
                await self._places.acquire()
        except TimeoutError:
            raise BenchError(f"none of {CONNECTIONS} connections was free within {PLACE_SECONDS:g} s") from None
        try:
            while self.free and self.free[-1].transport.is_closing():
                self.free.pop()
            return await super().post(body)
        finally:
            self._places.release()


class Load:
    """The generator. Each healthy upstream has a client of its own, which bears its routing headers."""

    def __init__(self, home: Path, out: TextIO) -> None:
        self._info = json.loads((home / "daemon.json").read_text(encoding="utf-8"))
        self._out = out
        self._clients = [self._client(f"{name}__echo") for name in HEALTHY]
        self._tasks: set[asyncio.Task[None]] = set()
        self._number = 0

    def _client(self, tool: str) -> tuple[Lasting, bytes]:
        message, headers = modern_message("ID", "tools/call", {"name": tool, "arguments": {"text": "TEXT"}})
        headers["Authorization"] = f"Bearer {self._info['token']}"
        return Lasting(int(self._info["port"]), "/mcp", headers), json.dumps(message).encode()

    async def run(self, rate: float) -> None:
        """Call until end of file on stdin."""
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        loop.add_reader(0, lambda: None if os.read(0, 64) else ended.set())
        begin = time.monotonic()
        while not ended.is_set():
            due = begin + self._number / rate
            pause = due - time.monotonic()
            if pause > 0:
                await asyncio.sleep(pause)
            task = loop.create_task(self._call(self._number, due))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            self._number += 1
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CALL_SECONDS)

    async def _call(self, number: int, due: float) -> None:
        client, body = self._clients[number % len(self._clients)]
        text = f"text-{number}-"
        body = body.replace(b'"ID"', b"%d" % number).replace(b"TEXT", text.encode())
        outcome = "ok"
        try:
            async with asyncio.timeout(CALL_SECONDS):
                result = await client.request(number, body)
            if text.encode() not in result:
                outcome = f"another call's answer: {result[:80]!r}"
        except TimeoutError:
            outcome = f"no answer within {CALL_SECONDS:g} s"
        except (BenchError, OSError) as error:
            outcome = f"{type(error).__name__}: {error}"
        seconds = time.monotonic() - due
        self._out.write(f"{due:.6f}\t{seconds:.6f}\t{outcome.replace(chr(10), ' ')[:300]}\n")


async def _main(home: Path, rate: float, path: Path) -> None:
    with open(path, "w", encoding="utf-8") as out:
        load = Load(home, out)
        running = asyncio.create_task(load.run(rate))
        while not running.done():
            await asyncio.wait([running], timeout=FLUSH_SECONDS)
            out.flush()
        await running


if __name__ == "__main__":
    from uvloop import run

    run(_main(Path(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3])))
