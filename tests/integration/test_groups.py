"""Groups: an endpoint that offers a chosen part of everything, in words of its own."""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import PIPE
from collections.abc import Callable
from typing import Any

import pytest
from mcp import Client

from tests.support import upstreams
from tests.support.clients import json_of, modern_message, raw_http, shim_client
from tests.support.daemon import SHIM, Daemon
from tests.support.wait import wait_for


@pytest.fixture
def house(make_daemon: Callable[..., Daemon]) -> Daemon:
    """Two servers, and a group with one of them whole and a part of the other."""
    daemon = make_daemon().start()
    daemon.add_server("one", upstreams.fake("--tools", "echo", "read_a", "read_b", "write_a"))
    daemon.add_server("two", upstreams.fake("--tools", "echo", "add"))
    for name in ("one", "two"):
        daemon.wait_state(name)
    return daemon


def legacy_params() -> dict[str, Any]:
    """What a client of the handshake's era says of itself."""
    return {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}


def add(house: Daemon, *words: str) -> None:
    done = house.cli("group", "add", "office", *words)
    assert done.returncode == 0, done


async def tools(client: Client) -> dict[str, str | None]:
    return {tool.name: tool.description for tool in (await client.list_tools()).tools}


async def test_a_group_shows_its_part_and_refuses_the_rest(house: Daemon) -> None:
    """Whole servers, glob patterns and a tool's own description; over HTTP and the shim; calls outside are refused."""
    add(house, "--server", "two", "--only", "one/read_*", "--describe", "one/read_b=Reads B at work.")
    async with shim_client(house, "legacy", "--group", "office") as client:
        found = await tools(client)
        assert set(found) == {"two__echo", "two__add", "one__read_a", "one__read_b"}
        assert found["one__read_b"] == "Reads B at work."
        assert found["one__read_a"] != "Reads B at work."
        assert json_of(await client.call_tool("one__read_b", {"x": 1})) == {"x": 1}
        with pytest.raises(Exception, match="write_a"):
            await client.call_tool("one__write_a", {})
    async with raw_http(house, "/groups/office/mcp") as raw:
        answer = await raw.modern("tools/list")
        shown = {tool["name"]: tool.get("description") for tool in answer.result["tools"]}
        assert shown == found
        refused = await raw.modern("tools/call", {"name": "one__write_a", "arguments": {}})
        assert refused.error["code"] == -32602
    async with raw_http(house) as raw:
        whole = {tool["name"]: tool.get("description") for tool in (await raw.modern("tools/list")).result["tools"]}
        assert "one__write_a" in whole
        assert whole["one__read_b"] != "Reads B at work."


async def test_a_group_that_does_not_exist_is_refused_with_words(house: Daemon) -> None:
    """As an unknown server is: no absent daemon, nothing to try again; and it is served once the group is there."""

    async def refusal(*flags: str) -> tuple[str, bool, str]:
        process = await asyncio.create_subprocess_exec(
            SHIM, *flags, env=house.env, stdin=PIPE, stdout=PIPE, stderr=PIPE
        )
        ask = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": legacy_params()}
        out, _ = await asyncio.wait_for(process.communicate(json.dumps(ask).encode() + b"\n"), 30)
        error = json.loads(out.splitlines()[0])["error"]
        return error["data"]["reason"], error["data"]["retryable"], error["message"]

    reason, again, message = await refusal("--group", "office")
    assert (reason, again) == ("unknown_group", False)
    assert "no group named office" in message and "coffer group list" in message
    reason, again, message = await refusal("--server", "nobody")
    assert (reason, again) == ("unknown_server", False)
    assert "coffer mcp list" in message
    async with raw_http(house, "/groups/office/mcp") as raw:
        assert (await raw.modern("tools/list")).status == 404
    await asyncio.to_thread(add, house, "--server", "two")
    async with shim_client(house, "legacy", "--group", "office") as client:
        assert "two__echo" in await tools(client)


async def test_a_client_of_a_group_enters_there_alone(house: Daemon) -> None:
    """A client that was given a group sees what the group offers, and neither servers nor the aggregate's tools."""
    add(house, "--only", "one/read_*")
    token = json.loads(house.cli("client", "add", "phone", "--group", "office", "--json").stdout)["token"]
    async with raw_http(house, "/groups/office/mcp", token) as raw:
        listed = (await raw.modern("tools/list")).result["tools"]
        assert {tool["name"] for tool in listed} == {"one__read_a", "one__read_b"}
    async with raw_http(house, "/servers/one/mcp", token) as raw:
        assert (await raw.modern("tools/list")).status == 403
    async with raw_http(house, token=token) as raw:
        assert (await raw.modern("tools/list")).result["tools"] == []


async def test_members_change_while_clients_are_connected(house: Daemon) -> None:
    """Those at the group's endpoint are told of a change of the group and of its servers, and of no other's."""
    add(house, "--server", "two")
    async with raw_http(house, "/groups/office/mcp") as raw:
        wanted = {"notifications": {"toolsListChanged": True}}
        message, headers = modern_message(1, "subscriptions/listen", wanted)
        async with raw.session.post(raw.url, json=message, headers={**raw.headers, **headers}) as listen:
            heard: list[str] = []

            async def hear() -> None:
                async for line in listen.content:
                    if line.startswith(b"data: {"):
                        heard.append(json.loads(line[6:]).get("method", ""))

            hearing = asyncio.create_task(hear())
            try:
                await wait_for(lambda: len(heard) == 1)  # the acknowledgement
                await asyncio.to_thread(house.cli, "mcp", "tools", "one", "--disable", "echo")
                await asyncio.to_thread(house.cli, "mcp", "tools", "two", "--disable", "add")
                await wait_for(lambda: len(heard) == 2)
                await asyncio.to_thread(house.cli, "group", "update", "office", "--server", "one")
                await wait_for(lambda: len(heard) == 3)
                assert set(heard[1:]) == {"notifications/tools/list_changed"}
            finally:
                hearing.cancel()
                await asyncio.gather(hearing, return_exceptions=True)
        listed = (await raw.modern("tools/list")).result["tools"]
        assert {tool["name"] for tool in listed} == {"one__read_a", "one__read_b", "one__write_a"}
        await house.call("DELETE", "/resources/group/office")
        gone = await raw.modern("tools/list")
        assert gone.status == 404
        assert "no group named office" in gone.error["message"]


def test_the_commands(house: Daemon) -> None:
    """`coffer group`: made, shown, listed, changed, switched, removed; slips of the pen are refused."""
    add(house, "--server", "two", "--only", "one:tool/read_*", "--describe", "one/echo=Says it again.")
    shown = house.cli("group", "show", "office").stdout
    assert "/groups/office/mcp" in shown
    assert "one:tool/read_*" in shown
    assert "Says it again." in shown
    assert "two, one:tool/read_*, one:tool/echo" in house.cli("group", "list").stdout
    assert house.cli("group", "ls", "-q").stdout == "office\n"
    for words, code in (
        (["add", "office", "--server", "two"], 5),
        (["add", "other"], 2),
        (["add", "other", "--server", "nobody"], 2),
        (["add", "other", "--only", "one"], 2),
        (["add", "other", "--only", "one:thing/x"], 2),
        (["update", "office"], 2),
        (["remove", "office"], 2),
        (["show", "other"], 4),
    ):
        assert house.cli("group", *words).returncode == code, words
    assert house.cli("group", "update", "office", "--server", "one", "--description", "d").returncode == 0
    listed = json.loads(house.cli("group", "list", "--json").stdout)["resources"]
    assert [(one["config"]["servers"], one["config"]["capabilities"]) for one in listed] == [(["one"], [])]
    for word, state in (("disable", "disabled"), ("enable", "enabled")):
        assert house.cli("group", word, "office").returncode == 0
        assert state in house.cli("group", "list").stdout
    assert house.cli("group", "rm", "office", "--yes").returncode == 0
