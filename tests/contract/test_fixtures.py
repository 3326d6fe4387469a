"""The fixture servers do what their flags say, seen by the official SDK's client and by raw lines."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.shared.exceptions import MCPError

from tests.support import upstreams
from tests.support.clients import json_of, text_of
from tests.support.lines import lines
from tests.support.procs import alive, all_gone
from tests.support.upstreams import Upstream
from tests.support.wait import wait_for, wait_until


def client(upstream: Upstream, mode: str, **more: Any) -> Client:
    """The SDK's client of an upstream, directly."""
    parameters = StdioServerParameters(command=upstream.command, args=upstream.args, env=upstream.env)
    return Client(stdio_client(parameters), mode=mode, **more)


@pytest.mark.parametrize("era", ["legacy", "modern", "dual"])
async def test_each_era_of_the_fake_server_is_found_by_the_sdk(era: str, tmp_path: Path) -> None:
    """basic echoes arguments, in the era that was asked for."""
    upstream = upstreams.fake("--era", era, log=tmp_path / "log")
    async with client(upstream, "auto") as session:
        assert json_of(await session.call_tool("echo", {"a": 1})) == {"a": 1}
        assert session.protocol_version == ("2025-11-25" if era == "legacy" else "2026-07-28")
        assert "fake" in (session.instructions or "")
    assert upstream.messages("tools/call")[0]["params"]["arguments"] == {"a": 1}
    assert upstream.log()[-1]["event"] == "end"


async def test_fake_server_over_http_serves_its_era_only() -> None:
    """--transport http prints its URL; the other era is refused at the door."""
    upstream = upstreams.fake("--transport", "http", "--era", "legacy")
    process = upstream.popen()
    assert process.stdin and process.stdout
    try:
        url = process.stdout.readline().decode().strip()
        async with Client(url, mode="auto") as session:
            assert session.protocol_version == "2025-11-25"
            assert text_of(await session.call_tool("counter", {})) == "1"
        async with Client(url, mode="legacy") as session:
            assert text_of(await session.call_tool("counter", {})) == "1"
    finally:
        process.terminate()
        process.wait()
        process.stdin.close()
        process.stdout.close()


async def test_flags_decide_the_lists_and_the_pages() -> None:
    """--tools, --resources and --prompts list exactly what they name; --page-size pages."""
    upstream = upstreams.fake(
        *("--tools", "a", "b", "c", "--resources", "x:1", "x:{n}", "--prompts", "p", "--page-size", "2")
    )
    async with client(upstream, "legacy") as session:
        first = await session.list_tools()
        assert [tool.name for tool in first.tools] == ["a", "b"]
        second = await session.list_tools(cursor=first.next_cursor)
        assert [tool.name for tool in second.tools] == ["c"] and second.next_cursor is None
        assert [str(one.uri) for one in (await session.list_resources()).resources] == ["x:1"]
        assert [p.name for p in (await session.list_prompts()).prompts] == ["p"]
        with pytest.raises(MCPError):
            await session.list_tools(cursor="nonsense")


async def test_crash_scenario_answers_n_calls_and_dies_in_the_next() -> None:
    """crash: the call after the last allowed one gets no answer, the process exits with 3."""
    upstream = upstreams.fake("--scenario", "crash", "--crash-after-calls", "2", "--era", "legacy")
    async with lines(upstream.argv, env=upstream.env) as server:
        await server.initialize()
        for mid in (1, 2):
            assert "result" in await server.request(mid, "tools/call", {"name": "echo", "arguments": {}})
        await server.send({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "echo"}})
        assert await server.ended() == 3
    assert b"crashing after 2 calls" in server.errors


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_mutating_scenario_announces_and_lists_a_different_set(mode: str) -> None:
    """mutating: after N calls the lists differ and the client is told, in its era's form."""
    seen: list[str] = []

    async def note(message: Any) -> None:
        seen.append(type(message).__name__)

    upstream = upstreams.fake("--scenario", "mutating", "--notify-list-changed-after", "2")
    async with client(upstream, mode, message_handler=note) as session:
        before = [tool.name for tool in (await session.list_tools()).tools]
        await session.call_tool("counter", {})
        await session.call_tool("counter", {})
        after = [tool.name for tool in (await session.list_tools()).tools]
        assert after != before and after[-1] == "added_1"
        if mode == "legacy":
            await wait_for(lambda: "ToolListChangedNotification" in seen)


@pytest.mark.parametrize("fake_server", [("--scenario", "slow", "--init-delay-ms", "300")], indirect=True)
def test_slow_scenario_and_the_popen_fixture(fake_server: subprocess.Popen[bytes]) -> None:
    """slow waits before it answers initialize; the fixture yields the Popen."""
    assert fake_server.stdin and fake_server.stdout
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    fake_server.stdin.write(json.dumps(request).encode() + b"\n")
    fake_server.stdin.flush()
    assert json.loads(fake_server.stdout.readline())["result"]["serverInfo"]["name"] == "fake"


async def test_subscriptions_in_both_forms() -> None:
    """touch reports a resource to those who subscribed, by notification or on the listen stream."""
    from mcp.client.subscriptions import ResourceUpdated

    upstream = upstreams.fake()
    async with client(upstream, "auto") as session, session.listen(resource_subscriptions=["x:1"]) as events:
        await session.call_tool("touch", {"uri": "x:2"})
        await session.call_tool("touch", {"uri": "x:1"})
        async for event in events:
            assert event == ResourceUpdated("x:1")
            break


async def test_raw_server_answers_out_of_order_and_chatters() -> None:
    """The raw server's delays, chatter and byte order marks are on the wire as asked."""
    async with lines(upstreams.raw("--chatter", "hello there", "--bom", "first", "--newline", "crlf").argv) as server:
        await server.send({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {}})
        await wait_for(lambda: len(server.raw) == 2)
        assert server.raw[0] == b"hello there\n"
        assert server.raw[1].startswith(b"\xef\xbb\xbf{") and server.raw[1].endswith(b"\r\n")
        slow = {"name": "echo", "arguments": {"delay": 0.2}}
        await server.send({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": slow})
        await server.request(2, "tools/call", {"name": "echo", "arguments": {}})
        assert (await server.answer(1))["id"] == 1


async def test_raw_server_says_word_for_word_what_its_script_says(tmp_path: Path) -> None:
    """--script: replies by method and key, lists used one after another, raw text with the id put in."""
    script = {
        "replies": {
            "tools/call a": [{"error": {"code": -32042, "message": "m"}}, {"result": {"content": []}}],
            "tools/call b": {"raw": '{"jsonrpc":"2.0","id":$ID,"result":{"n":1e2}}'},
        }
    }
    async with lines(upstreams.raw(script=script, at=tmp_path).argv) as server:
        await server.initialize()
        assert (await server.request(1, "tools/call", {"name": "a"}))["error"]["code"] == -32042
        assert (await server.request(2, "tools/call", {"name": "a"}))["result"] == {"content": []}
        await server.request("x", "tools/call", {"name": "b"})
        assert server.raw[-1] == b'{"jsonrpc":"2.0","id":"x","result":{"n":1e2}}\n'


def test_raw_server_ignores_its_end_and_keeps_grandchildren(tmp_path: Path) -> None:
    """--ignore-term, --ignore-eof and --grandchildren leave processes that only SIGKILL ends."""
    pids, log = tmp_path / "pids", tmp_path / "log"
    flags = ("--ignore-term", "--ignore-eof", "--grandchildren", "1", "--pid-file", str(pids))
    process = upstreams.raw(*flags, log=log).popen()
    assert process.stdin and process.stdout
    wait_until(pids.exists)
    server, grandchild = map(int, pids.read_text().split())
    process.stdin.close()
    process.terminate()
    wait_until(lambda: "sigterm" in log.read_text() and "eof" in log.read_text())
    assert alive(server) and alive(grandchild)
    import os

    os.kill(grandchild, 9)
    process.kill()
    process.wait()
    process.stdout.close()
    all_gone([server, grandchild])
