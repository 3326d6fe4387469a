"""The SDK's own client session runs on the worker's pipe and connection: same bytes, same behaviour."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.shared.dispatcher import Dispatcher
from mcp.shared.exceptions import MCPError

from coffer_worker.log import UpstreamLog
from coffer_worker.process.spawn import Launch, Spawner
from coffer_worker.upstream.connection import Connection
from coffer_worker.upstream.dispatch import ConnectionDispatcher
from coffer_worker.upstream.stdio import StdioPipe
from tests.support.transcript import transcript
from tests.support.upstreams import Upstream, fake, raw


@asynccontextmanager
async def ours(
    upstream: Upstream, home: Path, **more: Any
) -> AsyncIterator[tuple[ClientSession, ConnectionDispatcher]]:
    """A session of the SDK on our pipe."""
    ids = itertools.count(1)
    dispatcher = ConnectionDispatcher(lambda: next(ids))
    connection = Connection(1, "up", lambda: next(ids), dispatcher)
    launch = Launch(upstream.command, upstream.args, upstream.env, os.environ["PATH"])
    log = UpstreamLog(home / "up.log")
    connection.pipe = await StdioPipe.start("up", Spawner("up", home), launch, connection, log=log, line_bytes=1 << 24)
    dispatcher.attach(connection)
    try:
        async with ClientSession(dispatcher=dispatcher, **more) as session:
            yield session, dispatcher
    finally:
        await connection.pipe.close(2.0, "the test is over")
        log.close()


@asynccontextmanager
async def theirs(upstream: Upstream, **more: Any) -> AsyncIterator[ClientSession]:
    """The same session on the SDK's own transport."""
    parameters = StdioServerParameters(command=upstream.command, args=upstream.args, env=upstream.env)
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        async with (
            stdio_client(parameters, errlog=nowhere) as (read, write),
            ClientSession(read, write, **more) as session,
        ):
            yield session


async def test_the_seam_is_implemented() -> None:
    assert all(hasattr(ConnectionDispatcher, name) for name in ("send_raw_request", "notify", "run"))
    seam: Dispatcher[Any] = ConnectionDispatcher(lambda: 1)  # the type checker holds the signatures
    assert seam


async def test_the_sdks_session_sees_the_same_on_our_pipe_as_on_its_own(tmp_path: Path) -> None:
    upstream = fake("--era", "legacy")
    async with ours(upstream, tmp_path) as (session, dispatcher):
        mine = await transcript(session, "legacy")
        assert dispatcher.strays == []
    async with theirs(upstream) as session:
        assert await transcript(session, "legacy") == mine


async def test_asks_reach_the_sdks_handlers(tmp_path: Path) -> None:
    async def roots(context: Any) -> types.ListRootsResult:
        return types.ListRootsResult(roots=[types.Root.model_validate({"uri": "file:///w"})])

    async with ours(fake("--era", "legacy"), tmp_path, list_roots_callback=roots) as (session, _):
        await session.initialize()
        answer = await session.call_tool("ask", {"kind": "roots"})
        assert "file:///w" in str(answer.content)


async def test_notifications_reach_the_sdks_handlers(tmp_path: Path) -> None:
    heard: asyncio.Queue[Any] = asyncio.Queue()

    async def handler(message: Any) -> None:
        heard.put_nowait(message)

    async with ours(fake("--era", "legacy"), tmp_path, message_handler=handler) as (session, _):
        await session.initialize()
        await session.call_tool("add_tool", {"name": "fresh"})
        message = await asyncio.wait_for(heard.get(), 10)
        assert "list_changed" in str(message) or "ListChanged" in type(message).__name__


async def test_a_timeout_and_an_ended_connection_are_the_sdks_errors(tmp_path: Path) -> None:
    upstream = raw("--never", "tools/list", log=tmp_path / "log.jsonl")
    async with ours(upstream, tmp_path, read_timeout_seconds=0.3) as (session, dispatcher):
        await session.initialize()
        with pytest.raises(MCPError) as caught:
            await session.list_tools()
        assert caught.value.code == types.REQUEST_TIMEOUT
        assert dispatcher.connection is not None
        assert dispatcher.connection.pipe is not None
        await dispatcher.connection.pipe.close(1.0, "on purpose")
        with pytest.raises(MCPError) as caught:
            await session.list_resources()
        assert caught.value.code == types.CONNECTION_CLOSED
