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
from tests.support.clients import ERAS, json_of, shim_client, text_of
from tests.support.daemon import SHIM, Daemon
from tests.support.lines import lines
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
        assert "nonce-1" in text_of(result) or json_of(result)


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
