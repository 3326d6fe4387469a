"""The same fast upstream at a URL: legacy Streamable HTTP with JSON answers, as `bench.upstream` does it on stdio.

One asyncio protocol a connection, no SDK, no HTTP library. Prints its port; runs until SIGTERM.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal

from bench.upstream import Server

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)


class Exchange(asyncio.Protocol):
    """One connection, kept alive."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.buffer = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Remember where answers go."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer every whole request."""
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            found = _LENGTH.search(self.buffer, 0, end + 2)
            size = end + 4 + (int(found[1]) if found else 0)
            if len(self.buffer) < size:
                return
            request, self.buffer = self.buffer[:size], self.buffer[size:]
            self.transport.write(self.answer(request[:end], request[end + 4 :]))

    def answer(self, head: bytes, body: bytes) -> bytes:
        """One response."""
        if not head.startswith(b"POST"):
            return b"HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\n\r\n"
        out = self.server.answer(body)
        if not out:
            return b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"
        return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(out), out)


async def serve() -> None:
    """Listen on a free port."""
    loop = asyncio.get_running_loop()
    server = Server(0)
    listener = await loop.create_server(lambda: Exchange(server), "127.0.0.1", 0)
    print(listener.sockets[0].getsockname()[1], flush=True)
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()
    listener.close()


if __name__ == "__main__":
    with contextlib.suppress(ImportError):
        import uvloop

        uvloop.install()
    asyncio.run(serve())
