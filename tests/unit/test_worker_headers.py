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


# ---- towards an upstream


def test_arguments_are_repeated_for_an_upstream() -> None:
    """E09: strings, integers and booleans; base64 where plain text would not survive; null and absent have none."""
    arguments = {"region": "é", "deep": {"n": True}}
    params = json.dumps({"name": "t", "arguments": arguments}).encode()
    assert headers.repeated(WANTED, params) == {"mcp-param-region": "=?base64?w6k=?=", "mcp-param-n": "true"}
    assert headers.repeated(WANTED, b'{"arguments":{"region":null,"deep":[1]}}') == {}
    assert headers.repeated(WANTED, b"{}") == {}
    assert headers.repeated(WANTED, b'{"arguments":"\xff"}') == {}


def annotated(**more: Any) -> dict[str, Any]:
    return {"type": "string", "x-mcp-header": "A", **more}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"properties": {"a": annotated(), "b": {"properties": {"c": annotated(**{"x-mcp-header": "B"})}}}},
        {"properties": {"x-mcp-header": {"type": "string"}}},
        {"properties": {"a": {"type": "string", "default": {"x-mcp-header": ""}}}},
        {"properties": "none", "allOf": "none", "$defs": [], "items": True},
    ],
)
def test_annotations_in_order(schema: Any) -> None:
    assert headers.malformed(json.dumps(schema).encode()) is None


def test_half_a_surrogate_pair_in_a_schema_hides_no_annotation() -> None:
    """JavaScript servers cut texts in the midst of a pair: the tool is as usable as it was, and so are the others."""
    schema = rb'{"description":"\ud83d cut","properties":{"a":{"type":"string","x-mcp-header":"A"}}}'
    assert headers.malformed(schema) is None
    assert headers.mirrors(b'{"name":"t","inputSchema":%b}' % schema) == {("a",): "mcp-param-a"}


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (annotated(), "through properties alone"),
        ({"items": annotated()}, "through properties alone"),
        ({"anyOf": [{"properties": {"a": annotated()}}]}, "through properties alone"),
        ({"$defs": {"x": annotated()}}, "through properties alone"),
        ({"properties": {"a": {"type": "array", "items": annotated()}}}, "through properties alone"),
        ({"properties": {"a": annotated(**{"x-mcp-header": ""})}}, "no header name"),
        ({"properties": {"a": annotated(**{"x-mcp-header": "a b"})}}, "no header name"),
        ({"properties": {"a": annotated(**{"x-mcp-header": 7})}}, "no header name"),
        ({"properties": {"a": annotated(type="number")}}, "no string, integer or boolean"),
        ({"properties": {"a": annotated(type=["string"])}}, "no string, integer or boolean"),
        ({"properties": {"a": annotated(), "b": annotated(**{"x-mcp-header": "a"})}}, "the same"),
    ],
)
def test_annotations_that_make_a_tool_unusable(schema: Any, why: str) -> None:
    """A client over HTTP leaves such tools out."""
    found = headers.malformed(json.dumps(schema).encode())
    assert found is not None
    assert why in found
