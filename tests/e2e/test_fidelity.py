"""What an upstream says reaches the client as it was said: odd schemas, odd results, and very large ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import upstreams
from tests.support.clients import ERAS, http_client, raw_http, shim_client, text_of
from tests.support.daemon import Daemon

pytestmark = pytest.mark.e2e

RECURSIVE = {
    "type": "object",
    "$defs": {"N": {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/N"}}}}},
    "properties": {"root": {"$ref": "#/$defs/N"}, "any": True},
}
TOOLS: list[dict[str, Any]] = [
    {
        "name": "odd",
        "title": "Odd",
        "icons": [{"src": "data:image/png;base64,AA==", "sizes": ["1x1"]}],
        "annotations": {"readOnlyHint": True, "vendorHint": 1},
        "execution": {"taskSupport": "optional"},
        "xVendor": {"a": 1},
        "inputSchema": RECURSIVE,
        "outputSchema": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
    },
    {"name": "hopeless", "inputSchema": {"type": "object"}, "outputSchema": {"type": "object", "$ref": "#/nowhere"}},
]
RESULTS: dict[str, dict[str, Any]] = {
    "denied": {"isError": True, "content": [{"type": "text", "text": "denied"}]},
    "breaks the schema": {"content": [], "structuredContent": {"n": "not a number"}},
    "falsy": {"content": [], "structuredContent": {"n": 0, "null": None, "list": [], "object": {}}},
    "unknown kinds": {
        "content": [
            {"type": "hologram", "z": 1},
            {"type": "audio", "data": "AA==", "mimeType": "audio/wav", "_meta": {"x.example/a": 0}},
        ],
        "_meta": {"x.example/cost": 3},
        "xVendor": [],
    },
}


async def test_tools_and_results_pass_as_the_upstream_wrote_them(daemon: Daemon, tmp_path: Path) -> None:
    """S02, S04, S05, S06, S07, S12: nothing is checked, taken out or added, save the name; whatever the schema says."""
    replies = {
        "tools/list": {"result": {"tools": TOOLS}},
        "tools/call odd": [{"result": result} for result in RESULTS.values()],
        "tools/call hopeless": {"result": RESULTS["breaks the schema"]},
    }
    daemon.add_server("s", upstreams.raw(script={"replies": replies}, at=tmp_path))
    daemon.wait_state("s")
    async with raw_http(daemon) as client:
        await client.initialize()
        listed = (await client.request("tools/list")).result["tools"]
        assert listed == [{**tool, "name": f"s__{tool['name']}"} for tool in TOOLS]
        for what, result in RESULTS.items():
            answer = await client.request("tools/call", {"name": "s__odd", "arguments": {}})
            assert answer.result == result, what
        answer = await client.request("tools/call", {"name": "s__hopeless", "arguments": {}})
        assert answer.result == RESULTS["breaks the schema"]


async def test_contents_of_resources_and_prompts_pass(daemon: Daemon, tmp_path: Path) -> None:
    """S11, S12: a blob stays a blob, no MIME type is made up, the order is the upstream's, unknown kinds pass."""
    contents = [{"uri": "x:1", "blob": "AAEC/w=="}, {"uri": "x:2", "text": "t"}]
    messages = [{"role": "user", "content": {"type": "hologram", "z": [None]}}]
    script = {
        "capabilities": {"resources": {}, "prompts": {}},
        "replies": {
            "resources/list": {"result": {"resources": [{"uri": "x:1", "name": "one"}]}},
            "resources/read": {"result": {"contents": contents}},
            "prompts/list": {"result": {"prompts": [{"name": "p", "xVendor": 1}]}},
            "prompts/get": {"result": {"messages": messages, "description": ""}},
        },
    }
    daemon.add_server("s", upstreams.raw(script=script, at=tmp_path))
    daemon.wait_state("s")
    async with raw_http(daemon) as client:
        await client.initialize()
        assert (await client.request("prompts/list")).result["prompts"] == [{"name": "s__p", "xVendor": 1}]
        read = (await client.request("resources/read", {"uri": "coffer://s/x:1"})).result["contents"]
        assert read == [{**item, "uri": f"coffer://s/{item['uri']}"} for item in contents]
        got = (await client.request("prompts/get", {"name": "s__p"})).result
        assert got == {"messages": messages, "description": ""}


async def test_a_broken_upstream_is_named_in_a_protocol_error(daemon: Daemon) -> None:
    """S10: neither a success nor an empty text: server and state are named."""
    daemon.add_server("gone", upstreams.raw("--stderr-at-start", "no licence", "--die-at-start", "3"))
    async with raw_http(daemon) as client:
        await client.initialize()
        error = (await client.request("tools/call", {"name": "gone__echo", "arguments": {}})).error
    assert "gone" in error["message"]
    assert error["data"]["server"] == "gone"
    assert error["data"]["reason"]


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("connect", [http_client, shim_client], ids=["http", "shim"])
async def test_thirty_megabytes_pass_whole(daemon: Daemon, mode: str, connect: Any) -> None:
    """Q01: intact over either transport in either era; the next call is served."""
    daemon.add_server("s", upstreams.fake("--tools", "big", "echo"))
    daemon.wait_state("s")
    size = 30 * 1024 * 1024
    async with connect(daemon, mode) as client:
        text = text_of(await client.call_tool("s__big", {"n_bytes": size}))
        assert len(text) == size
        assert text.count("x") == size
        assert json.loads(text_of(await client.call_tool("s__echo", {"n": 1}))) == {"n": 1}


async def test_half_a_surrogate_pair_from_a_client_reaches_the_upstream(daemon: Daemon) -> None:
    """JavaScript clients emit one where they cut a text in two: the call is made with it, in either era."""
    arguments = {"text": "\ud83d cut", "whole": "\U0001f600"}
    daemon.add_server("s", upstreams.raw())
    daemon.wait_state("s")
    async with raw_http(daemon) as client:
        modern = await client.modern("tools/call", {"name": "s__echo", "arguments": arguments})
        await client.initialize()
        legacy = await client.request("tools/call", {"name": "s__echo", "arguments": arguments})
    for answer in (legacy, modern):
        assert json.loads(answer.result["content"][0]["text"]) == arguments
