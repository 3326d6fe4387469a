"""Upstreams' asks at real clients: whose they are, what happens when roots change, or a call is given up meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp import Client
from pydantic import FileUrl

from tests.support import clients
from tests.support.clients import ERAS, LEGACY, json_of
from tests.support.daemon import Daemon
from tests.support.upstreams import Upstream, raw
from tests.support.wait import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("ignore:.*removed as of 2026-07-28.*")]
Connect = Callable[..., AbstractAsyncContextManager[Client]]
ASK_ROOTS = {"do": "ask", "asks": [{"method": "roots/list"}]}
FORM = {"message": "Which?", "requestedSchema": {"type": "object", "properties": {}}}


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
def upstream(daemon: Daemon, tmp_path: Path) -> Upstream:
    """A legacy server over a pipe that asks what it is told to."""
    server = raw(log=tmp_path / "log.jsonl")
    daemon.add_server("up", server)
    daemon.wait_state("up", "ready")
    return server


def roots(path: str) -> Callable[[Any], Any]:
    async def listed(context: Any) -> types.ListRootsResult:
        return types.ListRootsResult(roots=[types.Root(uri=FileUrl(f"file://{path}"))])

    return listed


def answers(upstream: Upstream) -> list[dict[str, Any]]:
    """What the upstream was answered to its own requests."""
    received = [entry["message"] for entry in upstream.log() if entry["event"] == "received"]
    return [message for message in received if "method" not in message]


@pytest.mark.parametrize("mode", ERAS)
async def test_each_client_is_asked_for_its_own_roots(
    daemon: Daemon, upstream: Upstream, connect: Connect, mode: str
) -> None:
    """V03: A's roots for A's call, B's for B's; for C, who has none, a quick error, and its call goes on."""
    async with (
        connect(daemon, mode, list_roots_callback=roots("/w/a")) as a,
        connect(daemon, mode, list_roots_callback=roots("/w/b")) as b,
        connect(daemon, mode) as c,
    ):
        for client, path in ((a, "/w/a"), (b, "/w/b"), (a, "/w/a")):
            [answer] = json_of(await client.call_tool("up__echo", ASK_ROOTS))
            assert [root["uri"] for root in answer["result"]["roots"]] == [f"file://{path}"]
        [answer] = json_of(await c.call_tool("up__echo", ASK_ROOTS))
        assert answer["error"]["code"] == -32601
    assert len(answers(upstream)) == 4


async def test_changed_roots_reach_the_sessions_own_connection(
    daemon: Daemon, upstream: Upstream, connect: Connect
) -> None:
    """V03: the server hears of the change and asks anew, outside any call: that client is asked, nobody else."""
    asked: list[str] = []

    def listed(name: str) -> Callable[[Any], Any]:
        async def callback(context: Any) -> types.ListRootsResult:
            asked.append(name)
            return types.ListRootsResult(roots=[types.Root(uri=FileUrl(f"file:///{name}"))])

        return callback

    async with (
        connect(daemon, LEGACY, list_roots_callback=listed("a")) as a,
        connect(daemon, LEGACY, list_roots_callback=listed("b")) as b,
    ):
        for client in (a, b):
            await client.call_tool("up__echo", {})
        await a.send_roots_list_changed()
        await wait_for(lambda: answers(upstream), what="an answer for the upstream")
    assert asked == ["a"]
    assert [answer["result"]["roots"][0]["uri"] for answer in answers(upstream)] == ["file:///a"]


async def test_a_call_that_is_given_up_takes_its_question_along(
    daemon: Daemon, upstream: Upstream, connect: Connect
) -> None:
    """The client cancels while a person is being asked: the question ends, the upstream hears of it, once."""
    asking, ended = anyio.Event(), anyio.Event()

    async def person(context: Any, params: Any) -> types.ElicitResult:
        asking.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()
        raise AssertionError("unreachable")

    ask = {"do": "ask", "asks": [{"method": "elicitation/create", "params": FORM}]}
    async with connect(daemon, LEGACY, elicitation_callback=person) as client:
        async with anyio.create_task_group() as group:
            group.start_soon(client.call_tool, "up__echo", ask)
            with anyio.fail_after(20):
                await asking.wait()
            group.cancel_scope.cancel()
        with anyio.fail_after(20):
            await ended.wait()
        await wait_for(lambda: upstream.messages("notifications/cancelled"), what="the upstream to hear of it")
        assert (await client.call_tool("up__echo", {"a": 1})).content
    assert len(upstream.messages("notifications/cancelled")) == 1


async def test_a_question_is_shown_once_though_its_call_was_mistaken(
    daemon: Daemon, upstream: Upstream, connect: Connect
) -> None:
    """I07: two calls of one session overlap, one of which asks over a pipe, where nothing says which. The other one
    ends first: the person goes on with the same question, and the answer reaches the call that asked."""
    shown: list[str] = []
    other_done = anyio.Event()

    async def person(context: Any, params: Any) -> types.ElicitResult:
        shown.append(params.message)
        with anyio.fail_after(20):
            await other_done.wait()
        return types.ElicitResult(action="accept", content={})

    ask = {"do": "ask", "after": 0.3, "asks": [{"method": "elicitation/create", "params": FORM}]}
    async with connect(daemon, LEGACY, elicitation_callback=person) as client:
        await client.call_tool("up__echo", {})
        results: list[Any] = []

        async def asking() -> None:
            results.append(json_of(await client.call_tool("up__echo", ask)))

        async with anyio.create_task_group() as group:
            group.start_soon(asking)
            await wait_for(lambda: len(upstream.messages("tools/call")) == 2, what="the call that asks")
            await client.call_tool("up__echo", {"delay": 1})
            other_done.set()
    assert results == [[{"result": {"action": "accept", "content": {}}}]]
    assert shown == ["[up] Which?"]
    assert len(answers(upstream)) == 1


async def test_a_restarted_upstream_is_ready_for_the_client_it_had(
    daemon: Daemon, upstream: Upstream, connect: Connect
) -> None:
    """E17: the connection that is made for the lists declares what the client seen last did, and that client gets it:
    one start, not two."""
    async with connect(daemon, LEGACY, list_roots_callback=roots("/w/a")) as client:
        await client.call_tool("up__echo", {})
        starts = len([entry for entry in upstream.log() if entry["event"] == "start"])
        assert daemon.cli("mcp", "restart", "up").returncode == 0
        daemon.wait_state("up", "ready")
        declared = upstream.messages("initialize")[-1]["params"]["capabilities"]
        assert "roots" in declared
        [answer] = json_of(await client.call_tool("up__echo", ASK_ROOTS))
        assert answer["result"]["roots"][0]["uri"] == "file:///w/a"
        assert len([entry for entry in upstream.log() if entry["event"] == "start"]) == starts + 1
