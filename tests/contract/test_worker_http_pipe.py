"""The SDK's own client session runs on the worker's HTTP pipe: same server, same behaviour, same headers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as types
import msgspec
import pytest
import uvicorn
from mcp import ClientSession
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.lowlevel.server import Server
from mcp.server.sse import SseServerTransport
from mcp.shared import inbound
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from coffer_common.resources import Limits
from coffer_worker.core import headers
from coffer_worker.log import UpstreamLog
from coffer_worker.upstream.connection import Connection
from coffer_worker.upstream.dispatch import ConnectionDispatcher
from coffer_worker.upstream.http import HttpPipe
from coffer_worker.upstream.http_client import BadConfig, House
from tests.fixtures.raw_http_server import Exchange, RawHttp
from tests.support.http_upstreams import fake_http
from tests.support.transcript import transcript
from tests.support.wait import wait_for

SCHEMA = {
    "type": "object",
    "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "deep": {"type": "object", "properties": {"n": {"type": "integer", "x-mcp-header": "Deep-N"}}},
        "flag": {"type": "boolean", "x-mcp-header": "Flag"},
    },
}
OF_THE_PROTOCOL = ("accept", "content-type", "last-event-id")


@asynccontextmanager
async def ours(
    url: str, home: Path, mirrors: Mapping[str, headers.Mirrors] | None = None, **more: Any
) -> AsyncIterator[ClientSession]:
    """A session of the SDK on our pipe."""
    ids = itertools.count(1)
    dispatcher = ConnectionDispatcher(lambda: next(ids))
    connection = Connection(1, "up", lambda: next(ids), dispatcher)
    log = UpstreamLog(home / "up.log")
    house = House(url, {}, Limits())
    connection.pipe = HttpPipe(
        "up",
        house.client(),
        connection,
        log=log,
        line_bytes=1 << 24,
        mirrors=mirrors or {},
        new_id=lambda: next(ids),
    )
    dispatcher.attach(connection)
    try:
        async with ClientSession(dispatcher=dispatcher, **more) as session:
            yield session
    finally:
        await connection.pipe.close(2.0, "the test is over")
        await house.close()
        log.close()


@asynccontextmanager
async def theirs(url: str, **more: Any) -> AsyncIterator[ClientSession]:
    """The same session on the SDK's own transport."""
    async with streamable_http_client(url) as (read, write), ClientSession(read, write, **more) as session:
        yield session


def wire(entries: list[dict[str, Any]]) -> list[tuple[str, dict[str, str]]]:
    """Method and the protocol's own headers of what arrived, sessions apart."""
    found = []
    for entry in entries:
        if entry["event"] in ("request", "notification") and entry["headers"] is not None:
            kept = {k: v for k, v in entry["headers"].items() if k.startswith("mcp-") or k in OF_THE_PROTOCOL}
            if "mcp-session-id" in kept:
                kept["mcp-session-id"] = "some"
            found.append((entry["method"], kept))
    return found


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_the_sdks_session_sees_the_same_on_our_pipe_as_on_its_own(tmp_path: Path, era: str) -> None:
    transcripts, wires = [], []
    for name in ("ours", "theirs"):
        home = tmp_path / name
        home.mkdir()
        async with fake_http("--era", era, log=home / "log.jsonl") as upstream:
            opened = ours(upstream.url, home) if name == "ours" else theirs(upstream.url)
            async with opened as session:
                transcripts.append(await transcript(session, era))
            wires.append(wire(upstream.upstream.log()))
    assert transcripts[0] == transcripts[1]
    assert wires[0] == wires[1]


async def test_asks_reach_the_sdks_handlers(tmp_path: Path) -> None:
    async def roots(context: Any) -> types.ListRootsResult:
        return types.ListRootsResult(roots=[types.Root.model_validate({"uri": "file:///w"})])

    async with (
        fake_http("--era", "legacy") as upstream,
        ours(upstream.url, tmp_path, list_roots_callback=roots) as session,
    ):
        await session.initialize()
        assert "file:///w" in str((await session.call_tool("ask", {"kind": "roots"})).content)


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_what_comes_on_the_stream_of_a_call_is_known_to_belong_to_it(tmp_path: Path, era: str) -> None:
    """An ask, or a log message, on the response stream of one of two calls names that call."""
    asked: list[tuple[str, Any]] = []
    heard: list[Any] = []
    release = asyncio.Event()

    async def act(exchange: Exchange) -> None:
        if exchange.seen.params["name"] == "quiet":
            await release.wait()
            await exchange.server.plain(exchange)
            return
        await exchange.stream()
        await exchange.event({"jsonrpc": "2.0", "id": "ask-1", "method": "roots/list"})
        await exchange.event({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": 1}})
        await exchange.answer_event({"content": []})
        exchange.close()

    class Ears(ConnectionDispatcher):
        def notification(self, connection: Connection, method: str, params: bytes) -> None:
            heard.append(connection.related)

    ids = itertools.count(1)
    ears = Ears(lambda: next(ids))
    log = UpstreamLog(tmp_path / "up.log")
    async with RawHttp(era=era) as server:
        server.on("tools/call", act)
        house = House(server.url, {}, Limits())
        connection = Connection(1, "up", lambda: next(ids), ears)
        connection.pipe = HttpPipe(
            "up", house.client(), connection, log=log, line_bytes=1 << 20, mirrors={}, new_id=lambda: next(ids)
        )
        connection.on_request = lambda id, method, params, related: asked.append((method, related))
        try:
            meta = b',"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}' if era == "modern" else b""
            if era == "legacy":
                await connection.ask("initialize", b'{"protocolVersion":"2025-11-25"}')
                connection.notify("notifications/initialized")
            _, quiet = connection.begin("tools/call", b'{"name":"quiet"%b}' % meta)
            number, loud = connection.begin("tools/call", b'{"name":"loud"%b}' % meta)
            await loud
            assert asked == [("roots/list", number)]
            assert heard == [number]
            release.set()
            await quiet
        finally:
            await connection.pipe.close(1.0, "the test is over")
            await house.close()
            log.close()


async def test_arguments_are_repeated_as_the_sdk_repeats_them(tmp_path: Path) -> None:
    """Each annotated argument has the header that the SDK's client sends, in the SDK's spelling."""
    arguments = {"region": "Zürich ", "deep": {"n": 12345678901234567890}, "flag": False}
    sent = []
    for name in ("ours", "theirs"):
        async with RawHttp(era="modern", tools=[{"name": "echo", "inputSchema": SCHEMA}]) as server:
            mirrors = {"echo": headers.mirrors(msgspec.json.encode({"inputSchema": SCHEMA}))}
            opened = ours(server.url, tmp_path, mirrors) if name == "ours" else theirs(server.url)
            async with opened as session:
                await session.discover()
                await session.list_tools()
                await session.call_tool("echo", arguments)
            call = server.of("tools/call")[0]
            sent.append({k: v for k, v in call.headers.items() if k.startswith("mcp-")})
    assert sent[0] == sent[1]


@pytest.mark.parametrize(
    "schema",
    [
        SCHEMA,
        {"x-mcp-header": "A"},
        {"properties": {"a": {"type": "number", "x-mcp-header": "A"}}},
        {"properties": {"a": {"type": "string", "x-mcp-header": ""}}},
        {"properties": {"a": {"type": "string", "x-mcp-header": "a:b"}}},
        {"properties": {"a": {"type": "string", "x-mcp-header": "A"}, "b": {"type": "string", "x-mcp-header": "a"}}},
        {"properties": {"a": {"items": {"type": "string", "x-mcp-header": "A"}}}},
        {"properties": {"a": {"enum": [{"x-mcp-header": ""}]}}},
        {"$defs": {"d": {"properties": {"a": {"type": "string", "x-mcp-header": "A"}}}}},
        {"if": {"properties": {"a": {"type": "string", "x-mcp-header": "A"}}}},
        {"properties": {"x-mcp-header": {"type": "string"}}},
    ],
)
def test_the_sdk_and_we_leave_out_the_same_tools(schema: dict[str, Any]) -> None:
    raw = msgspec.json.encode(schema)
    assert (headers.malformed(raw) is None) == (inbound.find_invalid_x_mcp_header(schema) is None)


async def test_the_older_transport_is_the_sdks(tmp_path: Path) -> None:
    """HTTP+SSE as the SDK serves it: our pipe and the SDK's own client see the same."""

    async def call(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        return types.CallToolResult(content=[types.TextContent(type="text", text=params.name)])

    async def tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[types.Tool(name="t", input_schema={"type": "object"})])

    server: Server[Any] = Server("old", on_call_tool=call, on_list_tools=tools)
    transport = SseServerTransport("/messages/")

    async def stream(request: Request) -> Response:
        async with transport.connect_sse(request.scope, request.receive, request._send) as (read, write):
            await server.run(read, write, server.create_initialization_options())
        return Response()

    app = Starlette(routes=[Route("/sse", stream), Mount("/messages/", app=transport.handle_post_message)])
    running = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", timeout_graceful_shutdown=1))
    task = asyncio.create_task(running.serve())
    try:
        await wait_for(lambda: running.started)
        url = f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}/sse"
        async with sse_client(url) as (read, write), ClientSession(read, write) as session:
            expected = [await session.initialize(), await session.call_tool("t", {})]
        async with ours(url, tmp_path) as session:
            assert [await session.initialize(), await session.call_tool("t", {})] == expected
    finally:
        running.should_exit = True
        await task


@pytest.mark.parametrize("url", ["http:///mcp", "http://[::1", "http://h:99999/"])
def test_an_address_that_a_reference_spoilt_is_the_configuration_s_fault(url: str) -> None:
    """No worker crashes over it, nor blames the server."""
    with pytest.raises(BadConfig, match="its URL is not valid: "):
        House(url, {}, Limits())
