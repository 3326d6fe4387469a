"""The installed shim and daemon together, with the official SDK's client in both eras."""

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest
from mcp import MCPError

from coffer_common.version import VERSION
from tests.support import procs, upstreams
from tests.support.clients import ERAS, json_of, shim_client
from tests.support.daemon import SHIM, Daemon
from tests.support.lines import Lines, lines
from tests.support.wait import wait_for

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("mode", ERAS)
async def test_the_sdk_s_client_uses_a_server_through_the_shim(daemon: Daemon, mode: str) -> None:
    daemon.add_server("files", upstreams.fake("--tools", "echo"))
    daemon.wait_state("files")
    async with shim_client(daemon, mode) as client:
        listed = [tool.name for tool in (await client.list_tools()).tools]
        assert "files__echo" in listed
        result = await client.call_tool("files__echo", {"text": "nonce-1"})
        assert json_of(result) == {"text": "nonce-1"}


async def test_a_first_client_starts_the_daemon(coffer: Daemon) -> None:
    async with shim_client(coffer, "legacy") as client:
        assert (await client.list_tools()).tools == []
        assert coffer.info["coffer_version"] == VERSION
        assert procs.titled(coffer.home, "coffer-daemon")


@pytest.mark.fault
async def test_one_client_s_stay_outlives_a_killed_daemon(coffer: Daemon) -> None:
    """H03: the SDK's client over the shim goes on; it never learns of the new daemon but for list_changed."""
    async with shim_client(coffer, "legacy") as client:
        await client.list_tools()
        first = coffer.info["pid"]
        os.kill(first, signal.SIGKILL)

        async def listed() -> bool:
            try:
                return (await client.list_tools()).tools == []
            except MCPError:  # it was on its way when the daemon died
                return False

        await wait_for(listed)
        assert coffer.info["pid"] != first
        await wait_for(lambda: len(procs.titled(coffer.home, "coffer-daemon")) == 1)


@pytest.mark.fault
async def test_a_stop_by_signal_is_a_deliberate_one(coffer: Daemon) -> None:
    """SIGTERM: connected shims fail their calls and start nothing; they attach when a daemon appears."""
    async with lines([SHIM], env=coffer.env, cwd="/") as shim:
        await shim.initialize()
        first = coffer.info["pid"]
        os.kill(first, signal.SIGTERM)
        await wait_for(lambda: b"was stopped" in shim.errors)
        error = (await shim.request(1, "tools/list"))["error"]
        assert error["data"]["reason"] == "daemon_absent"
        procs.all_gone([first])
        assert not procs.titled(coffer.home, "coffer-daemon")
        coffer.start()

        async def answered() -> bool:
            return "result" in await shim.request(os.urandom(4).hex(), "ping")

        await wait_for(answered)


@pytest.mark.fault
async def test_twenty_shims_and_commands_at_once(coffer: Daemon) -> None:
    """D03: twenty CLIs and shims at the same instant without a daemon end with exactly one, and all are answered."""

    async def shim() -> str:
        async with lines([SHIM], env=coffer.env, cwd="/") as one:
            return str((await one.initialize())["result"]["serverInfo"]["name"])

    async def command() -> bool:
        done = await asyncio.to_thread(coffer.cli, "mcp", "list", "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["resources"] == []

    answers = await asyncio.gather(*(shim() for _ in range(10)), *(command() for _ in range(10)))
    assert answers == ["coffer"] * 10 + [True] * 10
    assert len(procs.titled(coffer.home, "coffer-daemon")) == 1


async def test_any_number_of_clients_come_and_go(daemon: Daemon) -> None:
    """H08: two clients, each with its own session; the first drops without a word and comes back; both are served."""
    daemon.add_server("files", upstreams.fake("--tools", "echo"))
    daemon.wait_state("files")

    async def calls(shim: Lines, nonce: str) -> bool:
        params = {"name": "files__echo", "arguments": {"nonce": nonce}}
        return nonce in json.dumps((await shim.request(nonce, "tools/call", params))["result"])

    async with lines([SHIM], env=daemon.env, cwd="/") as stays:
        await stays.initialize()
        async with lines([SHIM], env=daemon.env, cwd="/") as leaves:
            await leaves.initialize()
            assert await calls(leaves, "one")
            leaves.process.kill()
        async with lines([SHIM], env=daemon.env, cwd="/") as again:
            await again.initialize()
            assert await calls(again, "two")
            assert await calls(stays, "three")


async def test_a_proxy_in_the_environment_is_not_asked_for_what_is_local(coffer: Daemon) -> None:
    """H16: with proxies that nobody serves, shim and commands reach the daemon, and start it, all the same."""
    dead = "http://127.0.0.1:9"
    names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
    coffer.extra_env |= dict.fromkeys(names, dead) | {"NO_PROXY": "", "no_proxy": ""}
    async with lines([SHIM], env=coffer.env, cwd="/") as shim:
        assert (await shim.initialize())["result"]["serverInfo"]["name"] == "coffer"
        coffer.add_server("files", upstreams.fake("--tools", "echo"))
        coffer.wait_state("files")
        assert coffer.cli("mcp", "call", "files", "echo").returncode == 0


@pytest.mark.parametrize("mode", ERAS)
async def test_a_long_list_comes_in_pages_and_its_last_tool_works(daemon: Daemon, mode: str) -> None:
    """Q02: Coffer's own cursors lead through all of it, nothing twice, in either era."""
    wanted = [f"tool{number:04}" for number in range(1200)]
    daemon.add_server("many", upstreams.fake("--tools", *wanted))
    daemon.wait_state("many")
    async with shim_client(daemon, mode) as client:
        found, cursor, pages = [], None, 0
        while pages == 0 or cursor is not None:
            page = await client.list_tools(cursor=cursor)
            found += [tool.name for tool in page.tools]
            cursor, pages = page.next_cursor, pages + 1
        assert pages > 1
        assert found == [f"many__{name}" for name in wanted]
        assert json_of(await client.call_tool(found[-1], {"n": 1})) == {"n": 1}


def test_the_daemon_has_not_loaded_the_sdk(daemon: Daemon) -> None:
    """The SDK's validation library is compiled, so that its file would be mapped."""
    maps = Path(f"/proc/{daemon.info['pid']}/maps").read_text(encoding="utf-8")
    assert "msgspec" in maps
    assert "pydantic" not in maps


@pytest.mark.fault
async def test_a_killed_shim_cancels_its_calls_at_the_upstream_once(daemon: Daemon) -> None:
    """L07, P02: the end of the shim is the end of its session."""
    upstream = upstreams.fake(log=daemon.home / "upstream.jsonl")
    daemon.add_server("files", upstream)
    daemon.wait_state("files")
    async with lines([SHIM], env=daemon.env, cwd="/") as shim:
        await shim.initialize()
        call = {"name": "files__sleep", "arguments": {"seconds": 600}}
        await shim.send({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call})
        await wait_for(lambda: upstream.messages("tools/call"))
        shim.process.kill()
    await wait_for(lambda: upstream.messages("notifications/cancelled"))
    assert len(upstream.messages("notifications/cancelled")) == 1
