"""Large messages are looked through once: what names them is read from an outline, whatever they carry."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from coffer_common import jsonrpc, protocol
from coffer_supervisor.core import envelope, routing, tracing
from coffer_supervisor.core.calls import Failure, Scope
from coffer_supervisor.core.catalogue import EVERYTHING
from tests.support.clients import modern_message

BLOB = "x" * 100_000


def body(params: Any, **members: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params, **members}).encode()


def test_the_outline_holds_what_names_the_request_and_params_stay_as_they_are() -> None:
    params = {"name": "s__t", "arguments": {"blob": BLOB, "name": "other"}, "_meta": {"progressToken": 1}}
    found = jsonrpc.parse(body(params))
    assert json.loads(found.outline) == {**params, "arguments": 0}
    assert json.loads(bytes(found.params)) == params
    assert bytes(found.params) is bytes(found.params), "each look would be a copy"


@pytest.mark.parametrize("name", ["_meta", "name", "uri", "ref"])
def test_what_names_or_describes_a_request_is_never_left_out(name: str) -> None:
    params = {name: {"k": BLOB}, "arguments": [BLOB]}
    found = jsonrpc.parse(body(params))
    assert json.loads(found.outline) == {**params, "arguments": 0}


def test_of_small_messages_the_outline_is_all() -> None:
    found = jsonrpc.parse(body({"name": "s__t", "arguments": {"a": "b"}}))
    assert found.outline == bytes(found.params)
    assert jsonrpc.parse(b'{"jsonrpc":"2.0","id":1,"method":"ping"}').outline == b""


def test_equal_large_values_are_left_out_each() -> None:
    found = jsonrpc.parse(body({"a": BLOB, "b": BLOB, "name": "n"}))
    assert json.loads(found.outline) == {"a": 0, "b": 0, "name": "n"}


@pytest.mark.parametrize("text", ["é" * 300_000, "\U0001f600" * 200_000, "a" + "é" * 300_000])
def test_large_text_outside_ascii_passes(text: str) -> None:
    """A character that stands across the seam of two pieces is none that is broken."""
    raw = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "m", "params": {"t": text}}, ensure_ascii=False).encode()
    assert json.loads(bytes(jsonrpc.parse(raw).params)) == {"t": text}


@pytest.mark.parametrize("at", [50, 300_000, -60])
def test_invalid_utf8_in_a_large_message_is_told_with_its_place(at: int) -> None:
    raw = bytearray(json.dumps(json.loads(body({"t": "é" * 300_000})), ensure_ascii=False).encode())
    at = raw.index("é".encode(), at % len(raw))
    raw[at + 1] = 0x20
    with pytest.raises(jsonrpc.Malformed) as caught:
        jsonrpc.parse(bytes(raw))
    assert (caught.value.code, str(caught.value)) == (protocol.PARSE_ERROR, f"not UTF-8: byte {at}")


def test_a_large_message_that_is_cut_off_in_a_character_is_refused() -> None:
    raw = json.dumps({"t": "é" * 300_000}, ensure_ascii=False).encode()
    with pytest.raises(jsonrpc.Malformed, match="not UTF-8"):
        jsonrpc.parse(raw[:-3])


@pytest.mark.parametrize(
    "raw",
    [
        body({"a": BLOB})[:-1] + b',"id":2}',
        body({"a": BLOB})[:-1] + b',"params":{"a":1}}',
        body({"a": BLOB})[:-1] + b',"\\u006dethod":"y"}',
    ],
)
def test_duplicates_beside_large_params_are_refused(raw: bytes) -> None:
    with pytest.raises(jsonrpc.Malformed, match="duplicate member"):
        jsonrpc.parse(raw)


def test_large_params_that_are_no_object_and_large_answers() -> None:
    with pytest.raises(jsonrpc.Malformed) as caught:
        jsonrpc.parse(body([BLOB]))
    assert caught.value.code == protocol.INVALID_PARAMS
    answer = jsonrpc.parse(jsonrpc.response(b"7", json.dumps({"r": BLOB}).encode()))
    assert (answer.kind, json.loads(bytes(answer.result)), answer.outline) == ("response", {"r": BLOB}, b"")


def test_a_trace_in_the_outline_is_found() -> None:
    parent = f"00-{'a' * 32}-{'b' * 16}-01"
    found = jsonrpc.parse(body({"arguments": BLOB, "_meta": {"traceparent": parent}}))
    assert tracing.traced(bytes(found.params), "", found.outline) == (bytes(found.params), "a" * 32)
    bare = jsonrpc.parse(body({"arguments": BLOB}))
    params, trace = tracing.traced(bytes(bare.params), parent, bare.outline)
    assert (trace, json.loads(params)["_meta"]) == ("a" * 32, {"traceparent": parent})


def _fastest(work: Callable[[], object], times: int = 5) -> float:
    """Seconds of the quickest of some runs: what the work costs where nothing disturbs it."""
    found = []
    for _ in range(times):
        begun = time.perf_counter()
        work()
        found.append(time.perf_counter() - begun)
    return min(found)


class _Skipped(msgspec.Struct):
    params: msgspec.Raw


@pytest.mark.parametrize("blob", ["x" * 8_000_000, '\n"' * 2_000_000, "é" * 4_000_000])
def test_all_looks_at_a_large_message_cost_little_more_than_reading_it_once(blob: str) -> None:
    """A megabyte of arguments must not hold up others' calls: it is not read again for each thing that is looked up."""
    message, headers = modern_message(1, "tools/call", {"name": "s__t", "arguments": {"blob": blob}})
    raw = json.dumps(message, ensure_ascii=False).encode()
    lower = {name.lower(): value for name, value in headers.items()}
    once = msgspec.json.Decoder(_Skipped).decode
    where = routing.Where(Scope("/mcp"), EVERYTHING, "modern")

    def look() -> None:
        found = jsonrpc.parse(raw)
        assert envelope.era_of(found, protocol.LATEST_MODERN) == "modern"
        assert not isinstance(envelope.ladder("tools/call", found.outline, lower), Failure)
        tracing.traced(bytes(found.params), "", found.outline)
        routing.resolve({}, where, "tools/call", found.outline)

    # Read once, check that it is UTF-8, copy once.
    needed = _fastest(lambda: once(raw)) + _fastest(raw.decode) + _fastest(lambda: raw + b" ")
    took = min(_fastest(look) for _ in range(3))
    assert took < 3 * needed, f"{took:.4f} s, where reading it once takes {needed:.4f}"
