"""Client identities at the door: tokens, scopes, revocation, rotation, and who the log says it was."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest

from tests.support import upstreams
from tests.support.clients import RawHttp, http_client, json_of, modern_message, raw_http, shim_client
from tests.support.daemon import ApiError, Daemon
from tests.support.wait import wait_for, wait_until


@pytest.fixture(scope="module")
def house() -> Iterator[Daemon]:
    """One daemon with two servers for all tests of this file."""
    daemon = Daemon()
    try:
        daemon.start()
        for name in ("one", "two"):
            # One process each, so that no test is the one that started it.
            daemon.add_server(
                name, upstreams.fake("--era", "legacy", "--tools", "echo", "hang", "add"), isolation="shared"
            )
        for name in ("one", "two"):
            daemon.wait_state(name)
        yield daemon
    finally:
        daemon.close()


async def new_client(house: Daemon, name: str, **scope: Any) -> str:
    """A client's token."""
    made = await house.call("POST", "/clients", {"name": name, **scope})
    return str(made["token"])


@contextlib.asynccontextmanager
async def bare(house: Daemon, path: str) -> AsyncIterator[RawHttp]:
    """A client that sends no token in a header."""
    async with raw_http(house, path) as raw:
        del raw.headers["Authorization"]
        yield raw


async def denied(raw: RawHttp) -> bool:
    """Whether a request of that client is refused at the door."""
    message, headers = modern_message(raw.new_id(), "tools/list")
    return (await raw.post(message, headers)).status == 401


async def test_a_token_is_shown_once_and_only_its_hash_is_kept(house: Daemon) -> None:
    """32 URL-safe characters; neither token nor hash is in any later answer or in the store's files."""
    token = await new_client(house, "once")
    assert len(token) == 32
    assert token.replace("-", "a").replace("_", "a").isalnum()
    listed = json.dumps(await house.call("GET", "/resources"))
    shown = json.dumps(await house.call("GET", "/resources/client/once"))
    assert "token" not in shown
    assert token not in listed + shown
    for path in house.home.rglob("*"):
        if path.is_file():
            assert token.encode() not in path.read_bytes(), path
    with pytest.raises(ApiError) as twice:
        await new_client(house, "once")
    assert twice.value.status == 409


@pytest.mark.parametrize("scope", [{"servers": ["nobody"]}, {"groups": ["nobody"]}, {"servers": ["A b"]}])
async def test_a_scope_names_what_there_is(house: Daemon, scope: dict[str, Any]) -> None:
    """A slip of the pen is refused, with nothing stored."""
    with pytest.raises(ApiError) as refused:
        await new_client(house, "slip", **scope)
    assert refused.value.status == 400
    with pytest.raises(ApiError) as absent:
        await house.call("GET", "/resources/client/slip")
    assert absent.value.status == 404


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_client_sees_its_scope_and_the_log_names_it(house: Daemon, mode: str) -> None:
    """A scoped client lists and calls its own servers only; the invocation log names the identity."""
    name = f"scoped-{mode}"
    token = await new_client(house, name, servers=["one"])
    async with http_client(house, mode, token=token) as client:
        tools = {tool.name for tool in (await client.list_tools()).tools}
        assert tools == {"one__echo", "one__hang", "one__add"}
        assert json_of(await client.call_tool("one__add", {"a": 1})) == {"a": 1}
        with pytest.raises(Exception, match="two"):
            await client.call_tool("two__add", {"a": 1, "b": 2})
    rows = await wait_for(lambda: [row for row in house.invocations("one") if row["client"] == name])
    assert {row["status"] for row in rows} == {"ok"}
    async with raw_http(house, "/servers/two/mcp", token) as raw:
        answer = await raw.modern("tools/list")
        assert answer.status == 403


async def test_a_token_in_the_path_is_a_clients_only(house: Daemon) -> None:
    """Where a client can send no header, the path carries its token; never the daemon's, and no log shows it."""
    token = await new_client(house, "pathed")
    async with bare(house, f"/key/{token}/mcp") as raw:
        assert (await raw.modern("tools/list")).status == 200
        await raw.initialize()
        assert (await raw.request("tools/list")).result["tools"]
    async with bare(house, f"/key/{token}/servers/one/mcp") as raw:
        assert (await raw.modern("tools/list")).status == 200
    async with bare(house, f"/key/{house.token}/mcp") as raw:
        assert await denied(raw)
    async with bare(house, f"/key/{token}/nowhere") as raw:
        answer = await raw.modern("tools/list")
        assert answer.status == 404
        assert token not in answer.body.decode()
    for path in (house.home / "logs").iterdir():
        assert token not in path.read_text()


async def opened(raw: RawHttp, house: Daemon) -> asyncio.Task[bytes]:
    """A session's standing stream, read until it ends."""
    headers = {**raw.headers, "Accept": "text/event-stream"}
    response = await raw.session.get(house.url(), headers=headers)
    assert response.status == 200

    async def read() -> bytes:
        try:
            return await response.read()
        except aiohttp.ClientError:
            return b"cut"

    return asyncio.create_task(read())


async def calling(raw: RawHttp, tool: str, *, modern: bool) -> asyncio.Task[Any]:
    """A call that runs until it is ended."""
    params = {"name": tool, "arguments": {"seconds": 50}}
    work = raw.modern("tools/call", params) if modern else raw.request("tools/call", params)

    async def ended() -> Any:
        try:
            return await work
        except aiohttp.ClientError as error:
            return error

    return asyncio.create_task(ended())


END = {
    "remove": ("DELETE", "/resources/client/{}", None),
    "disable": ("POST", "/resources/client/{}/disable", None),
    "rotate": ("POST", "/clients/{}/rotate", None),
}


@pytest.mark.parametrize("way", END)
async def test_revocation_is_immediate_and_cuts_what_is_open(house: Daemon, way: str) -> None:
    """Sessions, streams and calls of either era end at once, upstreams are told, and others notice nothing."""
    name = f"revoked-{way}"
    token, other = await new_client(house, name), await new_client(house, f"other-{way}")
    async with (
        raw_http(house, token=token) as legacy,
        raw_http(house, token=token) as modern,
        raw_http(house, token=other) as neighbour,
    ):
        await legacy.initialize()
        await neighbour.initialize()
        stream, still = await opened(legacy, house), await opened(neighbour, house)
        message, headers = modern_message(1, "subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        listen = await modern.session.post(house.url(), json=message, headers={**modern.headers, **headers})
        assert listen.status == 200
        calls = [await calling(legacy, "one__hang", modern=False), await calling(modern, "one__hang", modern=True)]
        await wait_for(lambda: house.server("one").get("in_flight") == 2)
        verb, path, body = END[way]
        await house.call(verb, path.format(name), body)
        async with asyncio.timeout(20):
            await stream
            with contextlib.suppress(aiohttp.ClientError):
                await listen.read()
            for answer in await asyncio.gather(*calls):
                refused = isinstance(answer, aiohttp.ClientError) or answer.status == 401
                assert refused or "error" in answer.message
        assert await denied(legacy)
        assert await denied(modern)
        await wait_for(lambda: house.server("one").get("in_flight") == 0)
        assert not still.done()
        assert (await neighbour.request("ping")).result == {}
        still.cancel()
        await asyncio.gather(still, return_exceptions=True)


async def test_a_changed_scope_holds_at_once(house: Daemon) -> None:
    """A session that began with a wider scope does not keep it."""
    token = await new_client(house, "narrowed")
    async with raw_http(house, token=token) as raw:
        await raw.initialize()
        await house.call("PATCH", "/resources/client/narrowed", {"config": {"servers": ["two"], "groups": []}})
        assert (await raw.request("ping")).status == 404
        del raw.headers["Mcp-Session-Id"], raw.headers["MCP-Protocol-Version"]
        await raw.initialize()
        tools = (await raw.request("tools/list")).result["tools"]
        assert {tool["name"].partition("__")[0] for tool in tools} == {"two"}
    with pytest.raises(ApiError) as refused:
        await house.call("PATCH", "/resources/client/narrowed", {"config": {"token_sha256": "a" * 64}})
    assert refused.value.status == 400


async def test_the_daemons_token_rotates_while_clients_are_connected(house: Daemon) -> None:
    """The old token and its sessions are worth nothing at once; clients with their own token and shims go on."""
    token, old = await new_client(house, "steady"), house.token
    async with (
        raw_http(house) as admin,
        raw_http(house, token=token) as steady,
        shim_client(house, "legacy") as local,
    ):
        await admin.initialize()
        await steady.initialize()
        stream = await opened(admin, house)
        await house.call("POST", "/daemon/rotate-token")
        async with asyncio.timeout(20):
            await stream
        assert await denied(admin)
        admin.headers["Authorization"] = f"Bearer {house.token}"
        assert house.token != old
        assert (await admin.request("ping")).status == 404
        del admin.headers["Mcp-Session-Id"], admin.headers["MCP-Protocol-Version"]
        await admin.initialize()
        assert (await steady.request("ping")).result == {}
        assert json_of(await local.call_tool("one__add", {"a": 2})) == {"a": 2}


def test_the_commands(house: Daemon) -> None:
    """`coffer client`: added with a token shown once, listed without, changed, rotated, removed."""
    added = json.loads(house.cli("client", "add", "cli", "--server", "one", "--json").stdout)
    assert len(added["token"]) == 32
    assert added["client"]["config"]["servers"] == ["one"]
    assert added["client"]["config"]["groups"] == []
    assert house.cli("client", "add", "cli").returncode == 5
    assert house.cli("client", "add", "other", "--server", "nobody").returncode == 2
    for words in (["list"], ["ls", "-q"], ["show", "cli"], ["list", "--json"], ["show", "cli", "--json"]):
        done = house.cli("client", *words)
        assert done.returncode == 0, done
        assert "cli" in done.stdout
        assert added["token"] not in done.stdout
    assert "servers: one" in house.cli("client", "show", "cli").stdout
    assert house.cli("client", "update", "cli").returncode == 2
    assert house.cli("client", "update", "cli", "--all").returncode == 0
    assert "servers: all" in house.cli("client", "show", "cli").stdout
    rotated = house.cli("client", "rotate", "cli", "-q").stdout.strip()
    assert len(rotated) == 32
    assert rotated != added["token"]
    assert "/key/TOKEN/mcp" in house.cli("client", "rotate", "cli").stdout
    assert house.cli("client", "disable", "cli").returncode == 0
    assert "disabled" in house.cli("client", "list").stdout
    assert house.cli("client", "enable", "cli").returncode == 0
    assert house.cli("client", "remove", "cli").returncode == 2  # nobody is there to say yes
    assert house.cli("client", "rm", "cli", "--yes").returncode == 0
    assert house.cli("client", "show", "cli").returncode == 4
    events = [row["event"] for row in house.api("GET", "/audit?kind=client&name=cli")["audit"]]
    assert wait_until(lambda: {"resource.created", "resource.updated", "resource.deleted"} <= set(events))
