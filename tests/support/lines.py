"""A process that speaks newline-delimited JSON, driven line by line: the shim or a server, without any SDK."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tests.support.wait import BOUND

MIB = 1024 * 1024


class Lines:
    """The process's pipes. What it prints is kept, in order, as bytes and as messages."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.raw: list[bytes] = []
        self.errors = bytearray()
        self._messages: asyncio.Queue[Any] = asyncio.Queue()
        self._aside: list[Any] = []
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._read_errors())]

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            self.raw.append(line)
            try:
                self._messages.put_nowait(json.loads(line))
            except ValueError:
                self._messages.put_nowait({"not json": line})

    async def _read_errors(self) -> None:
        assert self.process.stderr is not None
        while data := await self.process.stderr.read(65536):
            self.errors += data

    async def send(self, *messages: Any) -> None:
        """Write messages (bytes as they are) in one go."""
        assert self.process.stdin is not None
        lines = [m if isinstance(m, bytes) else json.dumps(m).encode() + b"\n" for m in messages]
        self.process.stdin.write(b"".join(lines))
        await self.process.stdin.drain()

    async def next(self, bound: float = BOUND) -> Any:
        """The next message, whatever it is."""
        if self._aside:
            return self._aside.pop(0)
        try:
            return await asyncio.wait_for(self._messages.get(), bound)
        except TimeoutError:
            raise AssertionError(f"no message within {bound:g} s; stderr: {bytes(self.errors)[-2000:]!r}") from None

    async def answer(self, mid: Any, bound: float = BOUND) -> Any:
        """The answer to request `mid` (typed); other messages are kept for `next`."""
        kept: list[Any] = []
        while True:
            message = await self.next(bound)
            found = isinstance(message, dict) and "method" not in message and "id" in message
            if found and message["id"] == mid and type(message["id"]) is type(mid):
                self._aside[:0] = kept
                return message
            kept.append(message)

    async def request(self, mid: Any, method: str, params: Any = None) -> Any:
        """Send a request and wait for its answer."""
        message = {"jsonrpc": "2.0", "id": mid, "method": method}
        await self.send(message if params is None else {**message, "params": params})
        return await self.answer(mid)

    async def initialize(self, version: str = "2025-11-25") -> Any:
        """The legacy handshake; the answer."""
        client = {"name": "lines", "version": "1"}
        params = {"protocolVersion": version, "capabilities": {}, "clientInfo": client}
        answer = await self.request("init", "initialize", params)
        await self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return answer

    def close_stdin(self) -> None:
        """End of file for the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    async def ended(self, bound: float = BOUND) -> int:
        """The exit code, once it has ended and all its output is read."""
        code = await asyncio.wait_for(self.process.wait(), bound)
        await asyncio.wait_for(asyncio.gather(*self._tasks), bound)
        return code

    async def stop(self) -> None:
        """End the process, by force if need be."""
        self.close_stdin()
        try:
            await self.ended(5)
        except TimeoutError:
            self.process.kill()
            await self.ended(5)
        # The pipe transports close themselves a turn later.
        await asyncio.sleep(0)


@asynccontextmanager
async def lines(argv: Sequence[str], env: Mapping[str, str] | None = None, **more: Any) -> AsyncIterator[Lines]:
    """Start the process, yield its pipes, end it."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=80 * MIB,
        env=env,
        **more,
    )
    spoken = Lines(process)
    try:
        yield spoken
    finally:
        await spoken.stop()
