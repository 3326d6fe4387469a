"""The pool of sockets to one upstream: reused, bounded, closed when idle, never handed out broken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest

from coffer_worker.upstream.http_pool import OneOrigin
from tests.fixtures.raw_http_server import Exchange, RawHttp
from tests.support.wait import wait_for

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


@asynccontextmanager
async def pool(server: RawHttp, *, most: int = 4, idle_seconds: float = 30.0) -> AsyncIterator[httpx2.AsyncClient]:
    """A client on a pool."""
    made = OneOrigin(httpx2.URL(server.url), None, most=most, idle_seconds=idle_seconds, options=[])
    async with httpx2.AsyncClient(transport=made, trust_env=False, timeout=None) as client:
        yield client


async def ping(client: httpx2.AsyncClient, server: RawHttp) -> int:
    """One exchange; its status."""
    return (await client.post(server.url, json=PING)).status_code


async def test_one_socket_after_another_is_one_socket() -> None:
    async with RawHttp(session=None) as server, pool(server) as client:
        for _ in range(5):
            assert await ping(client, server) == 200
        assert server.accepted == 1


async def test_at_most_so_many_at_once() -> None:
    release = asyncio.Event()

    async def slow(exchange: Exchange) -> None:
        await release.wait()
        await exchange.server.plain(exchange)

    async with RawHttp(session=None) as server, pool(server, most=2) as client:
        server.on("ping", slow)
        tasks = [asyncio.create_task(ping(client, server)) for _ in range(5)]
        await wait_for(lambda: len(server.seen) == 2)
        release.set()
        assert await asyncio.gather(*tasks) == [200] * 5
        assert server.accepted == 2


async def test_a_cancelled_exchange_leaves_room_and_no_socket() -> None:
    async def never(exchange: Exchange) -> None:
        await exchange.forever()

    async with RawHttp(session=None) as server, pool(server, most=1) as client:
        server.on("ping", never)
        for _ in range(3):
            task = asyncio.create_task(ping(client, server))
            await wait_for(lambda: server.connections == 1)
            task.cancel()
            await asyncio.wait([task])
            await wait_for(lambda: server.connections == 0)
        server.handlers.clear()
        assert await ping(client, server) == 200


async def test_idle_sockets_are_closed_in_time() -> None:
    async with RawHttp(session=None) as server, pool(server, idle_seconds=0.05) as client:
        await ping(client, server)
        await wait_for(lambda: server.connections == 0)
        assert await ping(client, server) == 200
        assert server.accepted == 2


async def test_a_socket_that_the_server_closed_is_not_used() -> None:
    async with RawHttp(session=None) as server, pool(server) as client:
        for _ in range(3):
            assert await ping(client, server) == 200
            server.drop_idle()
            await wait_for(lambda: server.connections == 0)
        assert server.accepted == 3


async def test_errors_bear_the_librarys_names() -> None:
    async with RawHttp(session=None) as server, pool(server) as client:

        async def reset(exchange: Exchange) -> None:
            exchange.reset()

        server.on("ping", reset)
        with pytest.raises((httpx2.ReadError, httpx2.RemoteProtocolError)):
            await ping(client, server)
        url = server.url
        await server.close()
        with pytest.raises(httpx2.ConnectError):
            await client.post(url, json=PING)
        await server.open()
        server.handlers.clear()
        assert await ping(client, server) == 200
