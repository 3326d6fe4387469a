"""What changes shape between a client and a server, and what must not, through the installed daemon on the wire."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import RawHttp, modern_message, raw_http
from tests.support.daemon import Daemon
from tests.support.upstreams import Upstream, raw

pytestmark = pytest.mark.e2e
MODERN = "2026-07-28"
COMPLETION = {"values": ["eins", "zwölf"], "total": 7, "hasMore": True}
RESOURCE = {"uri": "time://info", "name": "info"}
TEMPLATE = {"uriTemplate": "coffee://{kind}/now", "name": "cups"}
TOOL = {"name": "echo", "inputSchema": {"type": "object"}}


def legacy_server(at: Path, name: str) -> Upstream:
    """A legacy server with one of everything; `name` is in the text of its resource."""
    replies = {
        "tools/list": {"result": {"tools": [TOOL]}},
        "resources/list": {"result": {"resources": [RESOURCE]}},
        "resources/templates/list": {"result": {"resourceTemplates": [TEMPLATE]}},
        "resources/read": {"result": {"contents": [{"uri": "time://info", "text": f"it is {name} o'clock"}]}},
        "prompts/list": {"result": {"prompts": [{"name": "brew"}]}},
        "completion/complete": {"result": {"completion": COMPLETION}},
    }
    capabilities: dict[str, Any] = {"tools": {}, "resources": {}, "prompts": {}, "completions": {}}
    at.mkdir()
    return raw(log=at / "log", script={"capabilities": capabilities, "replies": replies}, at=at)


def modern_server(at: Path, **replies: Any) -> Upstream:
    """A server that speaks 2026-07-28 only."""
    discovered = {"supportedVersions": [MODERN], "capabilities": {"tools": {}}, "resultType": "complete"}
    script = {"replies": {"server/discover": {"result": discovered}, **replies}}
    return raw("--probe", "script", "--modern-only", log=at / "log", script=script, at=at)


async def both(daemon: Daemon, client: RawHttp, method: str, params: Any) -> tuple[Any, Any]:
    """The answers to one request in the legacy and in the modern form."""
    return await client.request(method, params), await client.modern(method, params)


async def test_two_servers_own_the_same_uri(daemon: Daemon, tmp_path: Path) -> None:
    """R02: two entries, and each reads its own text, in both eras; without a prefix nobody can tell, and it says so."""
    for name in ("east", "west"):
        daemon.add_server(name, legacy_server(tmp_path / name, name))
    for name in ("east", "west"):
        daemon.wait_state(name, "ready")
    async with raw_http(daemon) as client:
        await client.initialize()
        for listed in await both(daemon, client, "resources/list", {}):
            uris = [resource["uri"] for resource in listed.result["resources"]]
            assert uris == ["coffer://east/time://info", "coffer://west/time://info"]
        for name in ("east", "west"):
            for read in await both(daemon, client, "resources/read", {"uri": f"coffer://{name}/time://info"}):
                [part] = read.result["contents"]
                assert part == {"uri": f"coffer://{name}/time://info", "text": f"it is {name} o'clock"}
        for answer in await both(daemon, client, "resources/read", {"uri": "time://info"}):
            assert answer.error["code"] == -32602
            assert "east" in answer.error["message"]


async def test_completions_go_to_their_owner_under_its_own_names(daemon: Daemon, tmp_path: Path) -> None:
    """R08: prompts and templates, with the context; the answer passes as it is; an unknown one is a clear error."""
    server = legacy_server(tmp_path / "one", "one")
    daemon.add_server("one", server)
    daemon.add_server("two", legacy_server(tmp_path / "two", "two"))
    for name in ("one", "two"):
        daemon.wait_state(name, "ready")
    argument = {"name": "kind", "value": "z"}
    context = {"arguments": {"cups": "2"}}
    references = [
        ({"type": "ref/prompt", "name": "one__brew"}, {"type": "ref/prompt", "name": "brew"}),
        (
            {"type": "ref/resource", "uri": "coffer://one/coffee://{kind}/now"},
            {"type": "ref/resource", "uri": "coffee://{kind}/now"},
        ),
    ]
    async with raw_http(daemon) as client:
        await client.initialize()
        for shown, own in references:
            params = {"ref": shown, "argument": argument, "context": context}
            for answer in await both(daemon, client, "completion/complete", params):
                assert answer.result["completion"] == COMPLETION
            for message in server.messages("completion/complete")[-2:]:
                sent = message["params"]
                assert (sent["ref"], sent["argument"], sent["context"]) == (own, argument, context)
        for unknown in ("one__tea", "three__brew"):
            params = {"ref": {"type": "ref/prompt", "name": unknown}, "argument": argument}
            for answer in await both(daemon, client, "completion/complete", params):
                assert answer.error["code"] == -32602
                assert unknown in answer.error["message"]


async def test_headers_that_disagree_with_the_body_run_nothing(daemon: Daemon, tmp_path: Path) -> None:
    """E10: 400 and -32020 at the door of a server that is there; the same message with its own headers is run; and a
    legacy request needs none of them."""
    server = raw(log=tmp_path / "log")
    daemon.add_server("up", server)
    daemon.wait_state("up", "ready")
    message, headers = modern_message(1, "tools/call", {"name": "up__echo", "arguments": {"a": 1}})
    async with raw_http(daemon) as client:
        for wrong in ({"Mcp-Name": "safe"}, {"Mcp-Method": None}, {"Mcp-Name": "=?base64??="}, {"Mcp-Name": None}):
            answer = await client.post(message, {**headers, **wrong})
            assert (answer.status, answer.error["code"], answer.message["id"]) == (400, -32020, 1)
        assert not server.messages("tools/call")
        assert (await client.post(message, headers)).status == 200
        await client.initialize()
        assert (await client.request("tools/call", {"name": "up__echo", "arguments": {}})).result
    assert len(server.messages("tools/call")) == 2


async def test_a_servers_missing_capability_reaches_the_client_unchanged(daemon: Daemon, tmp_path: Path) -> None:
    """E17: code, message and data as the server said them, with status 400 on the modern wire; a legacy client reads
    the same in a body of status 200."""
    error = {
        "code": -32021,
        "message": "elicitation is needed",
        "data": {"requiredCapabilities": {"elicitation": {"form": {}}}, "x": 1e2},
    }
    daemon.add_server("up", modern_server(tmp_path, **{"tools/call": {"error": error}}))
    daemon.wait_state("up", "ready")
    async with raw_http(daemon) as client:
        await client.initialize()
        legacy, modern = await both(daemon, client, "tools/call", {"name": "up__echo", "arguments": {}})
        assert (modern.status, modern.error) == (400, error)
        assert (legacy.status, legacy.error) == (200, error)


async def test_a_missing_resource_is_told_in_each_clients_words(daemon: Daemon, tmp_path: Path) -> None:
    """-32002 on a legacy wire, -32602 with the URI on a modern one, whichever era the server speaks."""
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    resources = {"resources/list": {"result": {"resources": [{"uri": "x:1", "name": "x"}], "resultType": "complete"}}}
    old = {**resources, "resources/read": {"error": {"code": -32002, "message": "gone"}}}
    new = {**resources, "resources/read": {"error": {"code": -32602, "message": "gone", "data": {"uri": "x:1"}}}}
    script = {"capabilities": {"resources": {}}, "replies": old}
    daemon.add_server("old", raw(script=script, at=tmp_path / "old"))
    discovered = {"supportedVersions": [MODERN], "capabilities": {"resources": {}}, "resultType": "complete"}
    daemon.add_server("new", modern_server(tmp_path / "new", **new, **{"server/discover": {"result": discovered}}))
    async with raw_http(daemon) as client:
        await client.initialize()
        for name in ("old", "new"):
            daemon.wait_state(name, "ready")
            uri = f"coffer://{name}/x:1"
            legacy, modern = await both(daemon, client, "resources/read", {"uri": uri})
            assert (legacy.status, legacy.error["code"], legacy.error["message"]) == (200, -32002, "gone")
            assert (modern.status, modern.error["code"]) == (400, -32602)
            assert modern.error["data"] == {"uri": uri}


async def test_lists_and_results_have_the_shape_of_each_client(daemon: Daemon, tmp_path: Path) -> None:
    """E12: a modern server's `resultType` and caching members are no legacy client's business; what is no object is
    text there, an output schema that describes none is not listed; a modern client gets what is left of the time."""
    tools = [{**TOOL, "outputSchema": {"type": "array"}}]
    listed = {"tools": tools, "resultType": "complete", "ttlMs": 60_000, "cacheScope": "public"}
    result = {"resultType": "complete", "content": [], "structuredContent": [1, 2]}
    replies = {"tools/list": {"result": listed}, "tools/call": {"result": result}}
    daemon.add_server("up", modern_server(tmp_path, **replies))
    daemon.wait_state("up", "ready")
    async with raw_http(daemon) as client:
        await client.initialize()
        legacy, modern = await both(daemon, client, "tools/list", {})
        assert set(legacy.result) == {"tools"}
        assert legacy.result["tools"] == [{**TOOL, "name": "up__echo"}]
        assert modern.result["tools"] == [{**tools[0], "name": "up__echo"}]
        assert (modern.result["resultType"], modern.result["cacheScope"]) == ("complete", "public")
        assert 0 < modern.result["ttlMs"] < 60_000
        legacy, modern = await both(daemon, client, "tools/call", {"name": "up__echo", "arguments": {}})
        assert legacy.result == {"content": [{"type": "text", "text": json.dumps([1, 2])}]}
        assert modern.result.pop("_meta")["io.modelcontextprotocol/serverInfo"]["name"] == "coffer"
        assert modern.result == result
