"""Clients that cost little: JSON-RPC over one HTTP connection or over a process's pipes, on bare asyncio protocols.

They decode no more of an answer than its id. Loopback, HTTP/1.1 with keep-alive, JSON or event-stream answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

import msgspec


class BenchError(Exception):
    """An answer that was an error, late, or not the one asked for."""


class Answer(msgspec.Struct):
    """An answer's envelope; payloads stay as they are."""

    id: int | str | None = None
    result: msgspec.Raw = msgspec.Raw(b"")
    error: msgspec.Raw = msgspec.Raw(b"")


decode_answer = msgspec.json.Decoder(Answer).decode


class Wire(Protocol):
    """One way to the server: `request` sends a whole message and returns the raw result."""

    async def request(self, mid: int, message: bytes) -> bytes: ...

    async def notify(self, message: bytes) -> None: ...

    async def close(self) -> None: ...


def checked(answer: Answer, mid: int) -> bytes:
    """The result; an error or another call's answer raises."""
    if answer.id != mid:
        raise BenchError(f"answer to {answer.id!r} came for {mid}")
    if bytes(answer.error):
        raise BenchError(bytes(answer.error).decode(errors="replace")[:300])
    return bytes(answer.result)


def message(mid: int | None, method: str, params: Any) -> bytes:
    """A request, or a notification where there is no id."""
    body = {"jsonrpc": "2.0", "method": method, "params": params}
    return msgspec.json.encode(body if mid is None else {**body, "id": mid})


# ------------------------------------------------------------------ HTTP


class _Exchange(asyncio.Protocol):
    """One connection, one exchange at a time."""

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.need = -1  # bytes of head and body together; -1: head not complete; 0: chunked
        self.head = b""
        self.done: asyncio.Future[tuple[bytes, bytes]] | None = None
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def start(self, data: bytes) -> asyncio.Future[tuple[bytes, bytes]]:
        """Send a request; the future brings (head, body)."""
        self.done = asyncio.get_running_loop().create_future()
        self.buffer.clear()
        self.need = -1
        self.transport.write(data)
        return self.done

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if self.need < 0 and not self._read_head():
            return
        if self.need > 0 and len(self.buffer) >= self.need:
            self._finish(bytes(self.buffer[len(self.head) : self.need]))
        elif self.need == 0 and self.buffer.endswith(b"0\r\n\r\n"):
            self._finish(self._dechunked())

    def _read_head(self) -> bool:
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return False
        self.head = bytes(self.buffer[: end + 4])
        lower = self.head.lower()
        at = lower.find(b"\r\ncontent-length:")
        if at >= 0:
            self.need = len(self.head) + int(lower[at + 17 : lower.index(b"\r\n", at + 2)])
        else:
            self.need = 0 if b"chunked" in lower else len(self.head)
        return True

    def _dechunked(self) -> bytes:
        out, at = bytearray(), len(self.head)
        while True:
            end = self.buffer.index(b"\r\n", at)
            size = int(self.buffer[at:end], 16)
            if not size:
                return bytes(out)
            out += self.buffer[end + 2 : end + 2 + size]
            at = end + 4 + size

    def _finish(self, body: bytes) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_result((self.head, body))

    def connection_lost(self, exc: Exception | None) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_exception(BenchError(f"connection lost: {exc}"))


class Http:
    """JSON-RPC by POST; as many connections as there are requests at one time."""

    def __init__(self, port: int, path: str, headers: Mapping[str, str]) -> None:
        self.port = port
        self.path = path
        self.headers = {"Host": f"127.0.0.1:{port}", "Content-Type": "application/json", **headers}
        self.headers["Accept"] = "application/json, text/event-stream"
        self.free: list[_Exchange] = []
        self._render()

    def _render(self) -> None:
        lines = "".join(f"{key}: {value}\r\n" for key, value in self.headers.items())
        self.prefix = f"POST {self.path} HTTP/1.1\r\n{lines}Content-Length: ".encode()

    def set_header(self, name: str, value: str) -> None:
        """Send it from now on."""
        self.headers[name] = value
        self._render()

    async def post(self, body: bytes) -> tuple[int, bytes, bytes]:
        """Status, head and body."""
        if self.free:
            exchange = self.free.pop()
        else:
            loop = asyncio.get_running_loop()
            _, exchange = await loop.create_connection(_Exchange, "127.0.0.1", self.port)
        try:
            head, answer = await exchange.start(self.prefix + str(len(body)).encode() + b"\r\n\r\n" + body)
        except asyncio.CancelledError:
            exchange.transport.close()  # given up: what comes on it now is nobody's
            raise
        self.free.append(exchange)
        return int(head[9:12]), head, answer

    async def request(self, mid: int, message: bytes) -> bytes:
        """The raw result of a request."""
        status, head, body = await self.post(message)
        if status != 200:
            raise BenchError(f"HTTP {status}: {body[:300]!r}")
        if b"text/event-stream" not in head:
            return checked(decode_answer(body), mid)
        for line in body.split(b"\n"):
            if line.startswith(b"data:") and line[5:].strip():
                answer = decode_answer(line[5:])
                if answer.id == mid:
                    return checked(answer, mid)
        raise BenchError(f"event stream without the answer: {body[:300]!r}")

    async def notify(self, message: bytes) -> None:
        """Send a notification."""
        await self.post(message)

    async def open(self) -> None:
        """The legacy handshake; keeps the session's header."""
        first = message(0, "initialize", INITIALIZE)
        status, head, body = await self.post(first)
        if status != 200:
            raise BenchError(f"initialize: HTTP {status}: {body[:300]!r}")
        for line in head.decode("latin-1").split("\r\n"):
            key, _, value = line.partition(":")
            if key.lower() == "mcp-session-id":
                self.set_header("Mcp-Session-Id", value.strip())
        self.set_header("MCP-Protocol-Version", INITIALIZE["protocolVersion"])
        await self.notify(message(None, "notifications/initialized", {}))

    async def close(self) -> None:
        """Close every connection."""
        for exchange in self.free:
            exchange.transport.close()
        self.free.clear()


INITIALIZE: dict[str, Any] = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "bench", "version": "1"},
}


# ------------------------------------------------------------------ pipes


class Pipe(asyncio.SubprocessProtocol):
    """JSON-RPC with a process, one message a line."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        self.argv = list(argv)
        self.env = dict(env) if env is not None else None
        self.buffer = bytearray()
        self.searched = 0
        self.waiting: dict[int | str | None, asyncio.Future[Answer]] = {}
        self.ended: asyncio.Future[None]
        self.process: asyncio.SubprocessTransport

    async def start(self) -> None:
        """Start the process."""
        loop = asyncio.get_running_loop()
        self.ended = loop.create_future()
        self.process, _ = await loop.subprocess_exec(lambda: self, *self.argv, stderr=None, env=self.env)
        # uvloop's transports do not derive from asyncio's classes.
        self.stdin = cast(asyncio.WriteTransport, self.process.get_pipe_transport(0))

    async def open(self) -> None:
        """Start it, and the legacy handshake."""
        await self.start()
        await self.request(0, message(0, "initialize", INITIALIZE))
        await self.notify(message(None, "notifications/initialized", {}))

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self.buffer += data
        begin = 0
        while (end := self.buffer.find(b"\n", max(self.searched, begin))) >= 0:
            answer = decode_answer(memoryview(self.buffer)[begin:end])
            waiter = self.waiting.pop(answer.id, None)
            if waiter is not None and not waiter.done():
                # The payload is a view into the buffer, which moves on.
                answer.result = msgspec.Raw(bytes(answer.result))
                answer.error = msgspec.Raw(bytes(answer.error))
                waiter.set_result(answer)
            del answer
            begin = end + 1
        if begin:
            self.buffer = self.buffer[begin:]
        self.searched = len(self.buffer)

    def process_exited(self) -> None:
        for waiter in self.waiting.values():
            if not waiter.done():
                waiter.set_exception(BenchError(f"{self.argv[0]} ended"))
        if not self.ended.done():
            self.ended.set_result(None)

    async def request(self, mid: int, message: bytes) -> bytes:
        """The raw result of a request."""
        waiter = self.waiting[mid] = asyncio.get_running_loop().create_future()
        self.stdin.write(message + b"\n")
        return checked(await waiter, mid)

    async def notify(self, message: bytes) -> None:
        """Send a notification."""
        self.stdin.write(message + b"\n")

    async def close(self) -> None:
        """End of file, then the end of the process."""
        self.stdin.close()
        try:
            await asyncio.wait_for(asyncio.shield(self.ended), 10)
        except TimeoutError:
            self.process.kill()
            await self.ended
        self.process.close()
