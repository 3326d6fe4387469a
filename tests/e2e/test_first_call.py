"""The main path, end to end: one endpoint in front of many servers, for both eras, over HTTP and over the shim.

What was forwarded is asserted at the upstream, by a text that nothing else can have sent.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from tests.support import clients, upstreams
from tests.support.clients import ERAS, json_of, text_of
from tests.support.daemon import BIN, Daemon
from tests.support.upstreams import ROOT, Upstream
from tests.support.wait import wait_for

pytestmark = pytest.mark.e2e
Connect = Callable[..., AbstractAsyncContextManager[Client]]


@pytest.fixture(params=["http", "shim"])
def connect(request: pytest.FixtureRequest) -> Connect:
    """Either way to the endpoint."""

    @asynccontextmanager
    async def over(daemon: Daemon, mode: str, **more: Any) -> AsyncIterator[Client]:
        opened = clients.http_client if request.param == "http" else clients.shim_client
        async with opened(daemon, mode, **more) as client:
            yield client

    return over


@pytest.fixture
def pair(daemon: Daemon, tmp_path: Path) -> tuple[Upstream, Upstream]:
    """Two upstreams, `one` (dual-era) and `two` (legacy), both ready."""
    one = upstreams.fake("--name", "one", log=tmp_path / "one")
    two = upstreams.fake("--name", "two", "--era", "legacy", log=tmp_path / "two")
    daemon.add_server("one", one)
    daemon.add_server("two", two)
    daemon.wait_state("one")
    daemon.wait_state("two")
    return one, two


@pytest.mark.parametrize("mode", ERAS)
async def test_one_endpoint_lists_all_servers_and_routes_to_the_right_one(
    daemon: Daemon, pair: tuple[Upstream, Upstream], connect: Connect, mode: str
) -> None:
    """Tools, resources and prompts are named by server; a call reaches that server only, under its own name."""
    one, two = pair
    nonce = secrets.token_hex(8)
    async with connect(daemon, mode) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert {"one__echo", "two__echo"} <= set(names)
        assert json_of(await client.call_tool("two__echo", {"text": nonce})) == {"text": nonce}
        uris = [str(entry.uri) for entry in (await client.list_resources()).resources]
        assert {"coffer://one/memo://notes/1", "coffer://two/memo://notes/1"} <= set(uris)
        read = await client.read_resource("coffer://one/memo://notes/1")
        assert str(read.contents[0].uri) == "coffer://one/memo://notes/1"
        assert {"one__greet", "two__greet"} <= {p.name for p in (await client.list_prompts()).prompts}
        prompt = await client.get_prompt("one__greet", {"name": nonce})
        assert nonce in prompt.messages[0].content.text  # type: ignore[union-attr]
    calls = two.messages("tools/call")
    assert [(call["params"]["name"], call["params"]["arguments"]) for call in calls] == [("echo", {"text": nonce})]
    assert one.messages("tools/call") == []
    assert one.messages("prompts/get")[0]["params"]["name"] == "greet"
    assert [entry["params"]["uri"] for entry in one.messages("resources/read")] == ["memo://notes/1"]


@pytest.mark.parametrize("mode", ERAS)
async def test_results_pass_as_the_upstream_made_them(
    daemon: Daemon, pair: tuple[Upstream, Upstream], connect: Connect, mode: str
) -> None:
    """S04, S05: structured content with falsy members and `_meta` pass both ways; isError stays isError."""
    async with connect(daemon, mode) as client:
        await client.list_tools()
        result = await client.call_tool("one__structured", {"a": 1}, meta=cast(Any, {"x.example/trace": "t1"}))
        content = result.structured_content
        assert content["arguments"] == {"a": 1}
        assert (content["empty"], content["nothing"], content["list"], content["zero"]) == ({}, None, [], 0)
        assert result.meta is not None
        assert result.meta["fake.example/cost"] == 3
        assert result.meta["fake.example/seen"]["x.example/trace"] == "t1"
        failed = await client.call_tool("one__fail", {"text": "denied"})
        assert failed.is_error
        assert text_of(failed) == "denied"


@pytest.mark.parametrize("mode", ERAS)
async def test_errors_keep_their_code_and_data(
    daemon: Daemon, pair: tuple[Upstream, Upstream], connect: Connect, mode: str
) -> None:
    """S09, S10: an upstream's error arrives as it was; an unknown tool is named in a protocol error."""
    async with connect(daemon, mode) as client:
        with pytest.raises(MCPError) as caught:
            await client.call_tool("two__raise", {"code": -32050, "message": "m", "data": {"k": [1]}})
        assert caught.value.error.code == -32050
        assert caught.value.error.message == "m"
        assert caught.value.error.data == {"k": [1]}
        with pytest.raises(MCPError, match="one__nothing"):
            await client.call_tool("one__nothing", {})


@pytest.mark.parametrize("mode", ERAS)
async def test_progress_reaches_the_caller_and_nobody_else(
    daemon: Daemon, pair: tuple[Upstream, Upstream], connect: Connect, mode: str
) -> None:
    """L02: progress comes back under the caller's token; a bystander sees nothing."""
    steps: list[float] = []
    overheard: list[str] = []

    async def progressed(progress: float, total: float | None, message: str | None) -> None:
        steps.append(progress)

    async def bystander_sees(message: Any) -> None:
        overheard.append(type(message).__name__)

    async with (
        connect(daemon, mode) as client,
        connect(daemon, mode, message_handler=bystander_sees) as bystander,
    ):
        await bystander.list_tools()
        await client.call_tool("one__progress", {"n": 3}, progress_callback=progressed)
        await wait_for(lambda: len(steps) == 3, what="three progress messages")
        await bystander.call_tool("one__echo", {})
    assert steps == [1, 2, 3]
    assert "ProgressNotification" not in overheard


@pytest.mark.parametrize("mode", ERAS)
async def test_a_hundred_calls_at_once_get_their_own_answers(
    daemon: Daemon, pair: tuple[Upstream, Upstream], connect: Connect, mode: str
) -> None:
    """I01, I06: answers are matched to their calls, across clients whose request ids are equal."""
    async with connect(daemon, mode) as first, connect(daemon, mode) as second:

        async def one(client: Client, n: int) -> None:
            text = f"{id(client)}-{n}"
            assert json_of(await client.call_tool(f"{('one', 'two')[n % 2]}__echo", {"text": text})) == {"text": text}

        await asyncio.gather(*(one(client, n) for n in range(50) for client in (first, second)))
    await wait_for(lambda: len(daemon.invocations("one")) == 50, what="a row for every call")
    assert {row["status"] for row in daemon.invocations("two")} == {"ok"}


@pytest.mark.parametrize("mode", ERAS)
async def test_the_pass_through_endpoint_renames_nothing(
    daemon: Daemon, pair: tuple[Upstream, Upstream], mode: str
) -> None:
    """/servers/NAME/mcp shows the upstream's own identity, names and URIs."""
    async with clients.http_client(daemon, mode, path="/servers/two/mcp") as client:
        assert client.instructions == "This is the fake server two."
        assert "echo" in [tool.name for tool in (await client.list_tools()).tools]
        assert json_of(await client.call_tool("echo", {"n": 2**60})) == {"n": 2**60}
        assert str((await client.read_resource("memo://notes/1")).contents[0].uri) == "memo://notes/1"


@pytest.mark.slow
@pytest.mark.skipif(not (BIN / "mcp-server-time").exists(), reason="the demo servers are not installed")
async def test_real_servers_answer_through_the_gateway(daemon: Daemon, connect: Connect) -> None:
    """mcp-server-time and mcp-server-git from the package index, beside each other."""
    plain: dict[str, Any] = {"transport": "stdio"}
    daemon.add_server("time", {**plain, "command": str(BIN / "mcp-server-time"), "args": ["--local-timezone", "UTC"]})
    daemon.add_server("git", {**plain, "command": str(BIN / "mcp-server-git"), "args": ["--repository", str(ROOT)]})
    daemon.wait_state("time", bound=40)
    daemon.wait_state("git", bound=40)
    async with connect(daemon, "auto") as client:
        assert json_of(await client.call_tool("time__get_current_time", {"timezone": "UTC"}))["timezone"] == "UTC"
        assert "git__git_status" in [tool.name for tool in (await client.list_tools()).tools]


ODD_TOOLS = [
    "cal.read",
    "files/list",
    "two words",
    "zoé",
    "__NOTE",
    "search-a",
    "search_a",
    "a" * 65,
    "a" * 64 + "y",
    "b" * 128,
]
ODD_URIS = ["file:///docs/café/a", "file:///my docs/a", "x:opaque", "http://Host.Example", "demo://A/../b", "urn:a:b"]
ODD_URIS += ["users/me", "file:///a%2Fb%25c", "ui://app/v.html"]


@pytest.mark.parametrize("mode", ERAS)
async def test_whatever_is_listed_can_be_used(daemon: Daemon, tmp_path: Path, connect: Connect, mode: str) -> None:
    """N01, N02, N05, R04, R05, R06: odd names are legal and distinct in the list and reach the upstream in their own
    spelling; every URI is read as it was listed."""
    odd = upstreams.fake("--tools", *ODD_TOOLS, "--resources", *ODD_URIS, log=tmp_path / "odd")
    daemon.add_server("analytics-platform-eu", odd)
    daemon.wait_state("analytics-platform-eu")
    async with connect(daemon, mode) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert len(set(names)) == len(ODD_TOOLS)
        assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in names)
        for name in names:
            assert json_of(await client.call_tool(name, {"via": name})) == {"via": name}
        uris = [str(resource.uri) for resource in (await client.list_resources()).resources]
        for uri in uris:
            assert str((await client.read_resource(uri)).contents[0].uri) == uri
    called = [message["params"]["name"] for message in odd.messages("tools/call")]
    assert called == ODD_TOOLS
    assert [message["params"]["uri"] for message in odd.messages("resources/read")] == ODD_URIS
