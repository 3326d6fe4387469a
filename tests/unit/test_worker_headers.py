"""Arguments repeated as headers (E10)."""

import json
from typing import Any

import pytest

from coffer_common.protocol import encode_header
from coffer_worker.core import headers

SCHEMA = {
    "type": "object",
    "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "deep": {"type": "object", "properties": {"n": {"type": "integer", "x-mcp-header": "N"}}},
        "plain": {"type": "string"},
        "odd": True,
    },
}
WANTED = {("region",): "mcp-param-region", ("deep", "n"): "mcp-param-n"}


def tool(schema: Any) -> bytes:
    return json.dumps({"name": "t", "inputSchema": schema}).encode()


def test_annotated_arguments_are_found_along_properties_only() -> None:
    assert headers.mirrors(tool(SCHEMA)) == WANTED
    assert headers.mirrors(tool({"type": "object"})) == {}
    assert headers.mirrors(tool({"x-mcp-header": "Root", "properties": {"a": {"x-mcp-header": 5}}})) == {}
    assert headers.mirrors(b'["x-mcp-header"]') == {}
    assert headers.mirrors(b'{"a":"x-mcp-header"}') == {}
    nested: Any = {"x-mcp-header": "Deep"}
    for _ in range(40):
        nested = {"properties": {"a": nested}}
    assert headers.mirrors(tool(nested)) == {}


@pytest.mark.parametrize(
    ("arguments", "sent", "fault"),
    [
        ({"region": "eu"}, {"mcp-param-region": "eu"}, None),
        ({"region": "éu"}, {"mcp-param-region": encode_header("éu")}, None),
        ({"region": "eu", "deep": {"n": 7}}, {"mcp-param-region": "eu", "mcp-param-n": "7"}, None),
        ({"deep": {"n": 100.0}}, {"mcp-param-n": "1e2"}, None),
        ({}, {}, None),
        ({"region": None, "deep": 5}, {}, None),
        ({"region": "eu"}, {}, "missing"),
        ({"region": "eu"}, {"mcp-param-region": "us"}, "does not agree"),
        ({"region": "eu"}, {"mcp-param-region": "=?base64??=x?="}, "does not agree"),
        ({}, {"mcp-param-region": "eu"}, "does not agree"),
        ({"deep": {"n": 7}}, {"mcp-param-n": "8"}, "does not agree"),
    ],
)
def test_headers_must_agree_with_the_arguments(arguments: Any, sent: dict[str, str], fault: str | None) -> None:
    """E10: a mismatch or an absence is refused before anything is executed."""
    found = headers.mismatch(WANTED, json.dumps({"arguments": arguments}).encode(), sent)
    assert found is None if fault is None else found is not None and fault in found


@pytest.mark.parametrize("params", [b"[]", b'{"arguments":"\xff"}'])
def test_what_cannot_be_read_is_left_to_the_upstream(params: bytes) -> None:
    assert headers.mismatch(WANTED, params, {}) is None
