"""The other half of the bare relay: ZeroMQ on one side, an upstream's pipes on the other.

`python -m bench.relay_worker ENDPOINT COMMAND...` runs until SIGTERM or until the upstream ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from typing import cast

import zmq

from bench.relay import decode
from bench.relay_channel import Channel


class Worker(asyncio.SubprocessProtocol):
    """Bytes from the channel go to the pipe, lines from the pipe go to the channel."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.context = zmq.Context()
        self.buffer = bytearray()
        self.searched = 0
        self.stop = asyncio.Event()
        self.stdin: asyncio.WriteTransport
        self.channel: Channel

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        pipes = cast(asyncio.SubprocessTransport, transport)
        self.stdin = cast(asyncio.WriteTransport, pipes.get_pipe_transport(0))
        # Messages may be there as soon as it is connected: only now is there a pipe to put them into.
        socket = self.context.socket(zmq.DEALER)
        socket.connect(self.endpoint)
        self.channel = Channel(socket, self.received)

    def received(self, parts: list[bytes]) -> None:
        """A message for the upstream."""
        self.stdin.write(parts[0] + b"\n")

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self.buffer += data
        begin = 0
        while (end := self.buffer.find(b"\n", max(self.searched, begin))) >= 0:
            line = bytes(self.buffer[begin:end])
            begin = end + 1
            self.channel.send((b"%d" % (decode(line).id or 0), line))
        if begin:
            del self.buffer[:begin]
        self.searched = len(self.buffer)

    def process_exited(self) -> None:
        self.stop.set()


async def serve(endpoint: str, argv: list[str]) -> None:
    """Run until told to stop."""
    worker = Worker(endpoint)
    loop = asyncio.get_running_loop()
    process, _ = await loop.subprocess_exec(lambda: worker, *argv, stderr=None)
    loop.add_signal_handler(signal.SIGTERM, worker.stop.set)
    await worker.stop.wait()
    process.close()
    worker.channel.close()
    worker.context.term()


def main() -> None:
    """Run on uvloop where there is one."""
    endpoint, *argv = sys.argv[1:]
    with contextlib.suppress(ImportError):
        import uvloop

        uvloop.run(serve(endpoint, argv))
        return
    asyncio.run(serve(endpoint, argv))


if __name__ == "__main__":
    main()
