"""traceparent: read from _meta or the header, carried on, and never at the cost of another byte."""

from __future__ import annotations

import json

import pytest

from coffer_supervisor.core.tracing import trace_id, traced

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
OTHER = f"00-{'a' * 32}-{'b' * 16}-00"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (PARENT, TRACE),
        (f"01{PARENT[2:]}-what-comes-later", TRACE),
        (f"ff{PARENT[2:]}", ""),
        (PARENT.upper(), ""),
        (f"00-{'0' * 32}-00f067aa0ba902b7-01", ""),
        (f"00-{TRACE}-{'0' * 16}-01", ""),
        (PARENT + '"', ""),
        ("", ""),
    ],
)
def test_what_is_a_traceparent(text: str, found: str) -> None:
    """Lower-case hexadecimal in four parts, neither id all zero, no version ff."""
    assert trace_id(text) == found


def test_meta_comes_before_the_header_and_is_passed_on_as_it_is() -> None:
    params = b'{"_meta": {"traceparent":"%s"},"name":"x"}' % PARENT.encode()
    assert traced(params) == (params, TRACE)
    assert traced(params, OTHER) == (params, TRACE)


def test_nothing_is_touched_without_a_trace() -> None:
    """No trace, one that is none, or params that are none: the same bytes, and no id."""
    for params in (b"", b"{}", b'{"name":"traceparent"}', b'{"arguments":{"traceparent":"%s"}}' % PARENT.encode()):
        assert traced(params) == (params, "")
        assert traced(params, "nonsense") == (params, "")
    for params in (b"[1]", b'{"_meta":3}', b'{"_meta":{"traceparent":3}}', b'{"_meta":null}', b'{"_meta'):
        assert traced(params, PARENT) == (params, "")


@pytest.mark.parametrize(
    "params", [b"", b"{}", b'{ "name" : "x", "n": 1e2 }', b'{"_meta":{ },"name":"x"}', b'{"a":1,"_meta":{"k": "v"}}']
)
def test_a_header_alone_is_carried_in_meta(params: bytes) -> None:
    """What the client sent stays, byte for byte, around the new member."""
    out, found = traced(params, PARENT)
    assert found == TRACE
    before, after = json.loads(params or b"{}"), json.loads(out)
    assert after["_meta"].pop("traceparent") == PARENT
    assert after["_meta"] == before.get("_meta", {})
    assert {**after, "_meta": None} == {**before, "_meta": None}
    assert b"1e2" not in params or b"1e2" in out


def test_where_meta_cannot_be_told_apart_nothing_is_changed() -> None:
    """The id is logged all the same."""
    params = b'{"_meta":{},"arguments":{}}'
    assert traced(params, PARENT) == (params, TRACE)


def test_what_is_nested_too_deeply_passes_as_it_is() -> None:
    body = b'{"x":%b}' % (b"[" * 100_000 + b"]" * 100_000)
    assert traced(body, PARENT) == (body, "")
