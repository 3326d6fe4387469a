"""Servers at a URL, through the installed commands and the daemon: registered, called, shown, broken."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coffer_common import exits
from tests.fixtures.raw_http_server import Exchange, RawHttp
from tests.support import upstreams
from tests.support.clients import http_client, json_of, raw_http
from tests.support.daemon import Daemon
from tests.support.http_upstreams import fake_http

pytestmark = [pytest.mark.e2e, pytest.mark.fault]


@pytest.fixture
async def server() -> AsyncIterator[RawHttp]:
    """A plain legacy server at a URL."""
    async with RawHttp() as found:
        yield found


async def cli(daemon: Daemon, *args: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    done = await asyncio.to_thread(daemon.cli, *args)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("era", ["legacy", "modern", "dual"])
async def test_a_server_at_a_url_is_added_and_called(daemon: Daemon, tmp_path: Path, era: str) -> None:
    """Two commands: one registers, discovers and prints what was found, the other calls a tool."""
    async with fake_http("--era", era, "--tools", "echo", log=tmp_path / "log") as upstream:
        code, out, _ = await cli(daemon, "mcp", "add", "web", "--url", upstream.url, "--header", "X-Team=blue")
        assert (code, "✓ web is ready: 1 tool" in out) == (exits.OK, True), out
        code, out, _ = await cli(daemon, "mcp", "call", "web", "echo", "--arg", "n=3")
        assert (code, json.loads(out)) == (exits.OK, {"n": 3})
        for mode in ("legacy", "auto"):
            async with http_client(daemon, mode=mode) as client:
                assert json_of(await client.call_tool("web__echo", {"a": 1})) == {"a": 1}
        seen = upstream.messages("tools/call")
        assert len(seen) == 3
        assert {call["headers"]["x-team"] for call in seen} == {"blue"}
        # K04: nothing of the client's own headers arrives.
        token = daemon.token
        assert all(token not in json.dumps(call["headers"]) for call in upstream.upstream.log() if "headers" in call)


async def test_a_server_that_cannot_be_reached_is_registered_and_says_why(daemon: Daemon) -> None:
    code, out, err = await cli(daemon, "mcp", "add", "away", "--url", "http://127.0.0.1:1/mcp")
    assert code == exits.OK, err
    assert "✗ away is registered, but not ready" in out
    assert "refused the connection" in out


async def test_a_server_that_wants_a_login_says_how(daemon: Daemon, server: RawHttp) -> None:
    """K10: the gateway's own answer is no 401; other servers go on; nothing is hammered."""

    async def refused(exchange: Exchange) -> None:
        await exchange.status(401, "", www_authenticate="Bearer")

    await asyncio.to_thread(daemon.add_server, "fine", upstreams.raw())
    await asyncio.to_thread(daemon.wait_state, "fine", "ready")
    await asyncio.to_thread(daemon.add_server, "web", server.config())
    await asyncio.to_thread(daemon.wait_state, "web", "ready")
    server.on("tools/call", refused)
    async with raw_http(daemon) as client:
        await client.initialize()
        answer = await client.request("tools/call", {"name": "web__echo", "arguments": {}})
        assert answer.status == 200
        assert answer.message["error"]["data"]["reason"] == "needs_login"
        assert answer.message["error"]["data"]["server"] == "web"
        await asyncio.to_thread(daemon.wait_state, "web", "needs_login")
        # What it listed is still listed, and the others work.
        tools = (await client.request("tools/list", {})).result["tools"]
        assert {tool["name"] for tool in tools} >= {"web__echo", "fine__echo"}
        fine = await client.request("tools/call", {"name": "fine__echo", "arguments": {"a": 1}})
        assert "result" in fine.message
    _, out, _ = await cli(daemon, "mcp", "list")
    assert "needs_login" in out
    # With another credential it is tried again at once.
    server.handlers.clear()
    code, out, err = await cli(daemon, "mcp", "update", "web", "--header", "X-Key=other")
    assert code == exits.OK, err
    await asyncio.to_thread(daemon.wait_state, "web", "ready")


async def test_a_server_that_forgets_its_sessions_goes_unnoticed(daemon: Daemon, server: RawHttp) -> None:
    """H01, through the whole house: the client sees one answer and no handshake."""
    await asyncio.to_thread(daemon.add_server, "web", server.config())
    await asyncio.to_thread(daemon.wait_state, "web", "ready")
    async with raw_http(daemon) as client:
        await client.initialize()
        for number in (1, 2):
            server.session = f"later-{number}"
            answer = await client.request("tools/call", {"name": "web__echo", "arguments": {"n": number}})
            assert json.loads(answer.result["content"][0]["text"]) == {"n": number}
    assert server.calls == 2
