"""The bare relay: aiohttp Application -> ZeroMQ -> worker -> pipe and back, and nothing else.

No token, no session, no names, no log, no limits: what is left is the cost of this shape, the measure for
Coffer's own. `python -m bench.relay ENDPOINT` prints its port and runs until SIGTERM.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys

import msgspec
import zmq
from aiohttp import web

from bench.relay_channel import Channel


class Head(msgspec.Struct):
    """The one member the relay looks at."""

    id: int | None = None


decode = msgspec.json.Decoder(Head).decode
LIMIT = 64 * 1024 * 1024


class Relay:
    """Pending requests by id (the load client never repeats one)."""

    def __init__(self, endpoint: str) -> None:
        self.context = zmq.Context()
        socket = self.context.socket(zmq.DEALER)
        socket.bind(endpoint)
        self.pending: dict[int, asyncio.Future[bytes]] = {}
        self.channel = Channel(socket, self.received)

    def received(self, parts: list[bytes]) -> None:
        """An answer: its id and the line."""
        waiter = self.pending.pop(int(parts[0]), None)
        if waiter is not None and not waiter.done():
            waiter.set_result(parts[1])

    async def post(self, request: web.Request) -> web.Response:
        """One message in; one answer out."""
        body = await request.read()
        mid = decode(body).id
        if mid is None:
            self.channel.send((body,))
            return web.Response(status=202)
        # Before the send: it also receives, and the answer may be there already.
        waiter = self.pending[mid] = asyncio.get_running_loop().create_future()
        self.channel.send((body,))
        return web.Response(body=await waiter, content_type="application/json")


async def serve(endpoint: str) -> None:
    """Run until SIGTERM."""
    relay = Relay(endpoint)
    app = web.Application(client_max_size=LIMIT)
    app.router.add_post("/mcp", relay.post)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    await runner.cleanup()
    relay.channel.close()
    relay.context.term()


def main() -> None:
    """Run on uvloop where there is one."""
    with contextlib.suppress(ImportError):
        import uvloop

        uvloop.run(serve(sys.argv[1]))
        return
    asyncio.run(serve(sys.argv[1]))


if __name__ == "__main__":
    main()
