"""Protocol extensions through the installed daemon: who is told of which, and what their members become."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import LEGACY, http_client, raw_http, shim_client
from tests.support.daemon import Daemon
from tests.support.upstreams import fake, raw

pytestmark = pytest.mark.e2e
UI, TASKS, OTHER = "io.modelcontextprotocol/ui", "io.modelcontextprotocol/tasks", "com.example/partial"
MODERN = "2026-07-28"
MINE: dict[str, Any] = {UI: {"mimeTypes": ["text/html;profile=mcp-app"]}, OTHER: {"v": 1e2, "deep": {"ü": [None]}}}


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_an_upstream_is_told_of_the_callers_extensions_in_both_eras(daemon: Daemon, era: str) -> None:
    """E17: as the client declared them, for that request; not of one that Coffer cannot carry, nor of another's."""
    daemon.add_server("up", fake("--era", era))
    daemon.wait_state("up", "ready")
    call = {"name": "up__whoami", "arguments": {}}
    declared: dict[str, Any] = {"extensions": {**MINE, TASKS: {}}}

    def told(answer: Any) -> Any:
        return json.loads(answer.result["content"][0]["text"])["capabilities"].get("extensions")

    async with raw_http(daemon) as client:
        assert told(await client.modern("tools/call", call, capabilities=declared)) == MINE
        assert told(await client.modern("tools/call", call)) is None
    async with raw_http(daemon) as client:
        await client.initialize(**declared)
        assert told(await client.request("tools/call", call)) == MINE


def server(tmp_path: Path) -> Any:
    """A modern server that has extensions, and whose tool answers with a type of result of one of them."""
    capabilities = {"tools": {}, "extensions": {UI: {}, OTHER: {"v": 2}, TASKS: {}}}
    discovered = {"supportedVersions": [MODERN], "capabilities": capabilities, "resultType": "complete"}
    partial = {"resultType": "com.example/part", "of": 3, "content": [], "_meta": {"com.example/x": 1}}
    replies = {
        "server/discover": {"result": discovered},
        "tools/call": [{"result": partial}, {"result": partial}, {"result": {"resultType": "task", "taskId": "t"}}],
    }
    return raw("--probe", "script", "--modern-only", script={"replies": replies}, at=tmp_path)


async def test_a_type_of_result_passes_to_who_declared_an_extension_alone(daemon: Daemon, tmp_path: Path) -> None:
    """An unknown resultType without a declared extension is refused; a task always is, for it leads nowhere here."""
    daemon.add_server("up", server(tmp_path))
    daemon.wait_state("up", "ready")
    call = {"name": "up__echo", "arguments": {}}
    async with raw_http(daemon) as client:
        refused = await client.modern("tools/call", call)
        assert "com.example/part" in refused.error["message"]
        answer = await client.modern("tools/call", call, capabilities={"extensions": MINE})
        assert answer.result["resultType"] == "com.example/part"
        assert (answer.result["of"], answer.result["_meta"]["com.example/x"]) == (3, 1)
        declared = {"extensions": {**MINE, TASKS: {}}}
        assert "task" in (await client.modern("tools/call", call, capabilities=declared)).error["message"]


async def test_what_is_advertised_is_the_union_of_what_can_be_carried(daemon: Daemon, tmp_path: Path) -> None:
    """On the aggregate all upstreams' extensions, on a pass-through endpoint its own, in either era, on either way."""
    daemon.add_server("up", server(tmp_path))
    daemon.add_server("plain", raw())
    for name in ("up", "plain"):
        daemon.wait_state(name, "ready")
    mine = {UI: {}, OTHER: {"v": 2}}
    for mode in (LEGACY, "auto"):
        for connect in (http_client, shim_client):
            async with connect(daemon, mode) as client:
                assert client.server_capabilities is not None
                assert client.server_capabilities.extensions == mine
        async with http_client(daemon, mode, path="/servers/up/mcp") as client:
            assert client.server_capabilities is not None
            assert client.server_capabilities.extensions == mine
        async with http_client(daemon, mode, path="/servers/plain/mcp") as client:
            assert not (client.server_capabilities and client.server_capabilities.extensions)


async def test_apps_resources_are_found_where_hosts_look_for_them(daemon: Daemon, tmp_path: Path) -> None:
    """R06: `ui://` keeps its scheme: in the tool's `_meta`, in the `_meta` of its result, and in the list of resources;
    what stands there can be read."""
    app = {"ui": {"resourceUri": "ui://app/v.html"}}
    view = {"uri": "ui://app/v.html", "mimeType": "text/html;profile=mcp-app", "text": "<p>hi</p>"}
    script = {
        "capabilities": {"tools": {}, "resources": {}, "extensions": {UI: {}}},
        "replies": {
            "tools/list": {"result": {"tools": [{"name": "show", "inputSchema": {"type": "object"}, "_meta": app}]}},
            "tools/call": {"result": {"content": [], "_meta": app}},
            "resources/list": {"result": {"resources": [{"uri": "ui://app/v.html", "name": "v"}]}},
            "resources/templates/list": {"result": {"resourceTemplates": []}},
            "resources/read": {"result": {"contents": [view]}},
        },
    }
    server = raw(log=tmp_path / "log", script=script, at=tmp_path)
    daemon.add_server("up", server)
    daemon.wait_state("up", "ready")
    shown = "ui://up/app/v.html"
    for mode in (LEGACY, "auto"):
        async with http_client(daemon, mode) as client:
            [tool] = (await client.list_tools()).tools
            result = await client.call_tool("up__show", {})
            for meta in (tool.meta, result.meta):
                assert meta is not None
                assert meta["ui"] == {"resourceUri": shown}
            [resource] = (await client.list_resources()).resources
            assert str(resource.uri) == shown
            [part] = (await client.read_resource(shown)).contents
            assert (str(part.uri), part.mime_type) == (shown, view["mimeType"])
    assert {message["params"]["uri"] for message in server.messages("resources/read")} == {"ui://app/v.html"}
