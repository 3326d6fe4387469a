"""Raw JSON taken apart and joined: what is not touched stays byte for byte."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coffer_worker.core import splice

LONE = rb'{"a":"\ud800 x","b":[1e2,12345678901234567890123]}'
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


def plain(found: dict[str, splice.Slice]) -> dict[str, bytes]:
    return {name: bytes(value) for name, value in found.items()}


def test_numbers_keep_their_spelling() -> None:
    raw = b'{ "big" : 12345678901234567890123, "f":1e2,\n"x": [1.0 , 2] }'
    found = splice.members(raw)
    assert plain(found) == {"big": b"12345678901234567890123", "f": b"1e2", "x": b"[1.0 , 2]"}
    assert splice.join(found) == b'{"big":12345678901234567890123,"f":1e2,"x":[1.0 , 2]}'


@pytest.mark.parametrize(
    "raw", [b"[]", b"1", b'"x"', b"", b"{", b'{"a":}', rb'{"\u0041":}', rb'["\u0041"]', rb"x\u0041"]
)
def test_what_is_no_object(raw: bytes) -> None:
    with pytest.raises(ValueError):
        splice.members(raw)


@pytest.mark.parametrize("raw", [b"{}", b"1", b"[1", rb'{"a":"\ud800"}', rb'["\ud800" 1]', rb'["\ud800"', rb"x\u0041"])
def test_what_is_no_array(raw: bytes) -> None:
    with pytest.raises(ValueError):
        splice.items(raw)


def test_lone_surrogates_pass_as_they_came() -> None:
    """JavaScript servers emit them; a strict decoder would lose the whole message."""
    assert plain(splice.members(LONE)) == {"a": rb'"\ud800 x"', "b": b"[1e2,12345678901234567890123]"}
    assert splice.items(rb'[ "\ud800" , 1e2 ]') == [rb'"\ud800"', b"1e2"]
    assert splice.members(rb'{"\ud800":1 , "b":2}') == {"\ud800": b"1", "b": b"2"}
    assert splice.join({"\ud800": b"1"}) == rb'{"\ud800":1}'
    assert splice.text(rb'"\ud800"') is None


@pytest.mark.parametrize(
    "raw",
    [rb'{"\ud800" 1}', rb'{"\ud800":1 2}', rb'{1:"\ud800"}', rb'{"a":"\ud800"', rb'["\ud800"]', rb'{"a":\ud800}'],
)
def test_the_slow_way_refuses_what_is_no_json(raw: bytes) -> None:
    with pytest.raises(ValueError):
        splice.members(raw)


@pytest.mark.parametrize("lone", ["", r'"b":"\ud800",'])
def test_what_is_nested_too_deeply_is_refused_and_ends_nothing(lone: str) -> None:
    deep = "[" * 200_000 + "]" * 200_000
    with pytest.raises(ValueError, match="deep"):
        splice.members(b'{%b"a":%b}' % (lone.encode(), deep.encode()))
    with pytest.raises(ValueError, match="deep"):
        splice.items(b'["",%b]' % deep.encode())


def test_text_and_objects() -> None:
    assert splice.text(b'"x"') == "x"
    assert splice.text(b"1") is None
    assert splice.text(None) is None
    assert splice.is_object(b"{}")
    assert not splice.is_object(b"[]")
    assert not splice.is_object(None)


def test_messages_with_and_without_lone_surrogates() -> None:
    line = rb'{"jsonrpc":"2.0","id":1,"result":{"t":"\udc00"}}'
    found = splice.message(line)
    assert found is not None
    assert (found.raw_id, bytes(found.result), found.kind) == (b"1", rb'{"t":"\udc00"}', "response")
    note = splice.message(rb'{"jsonrpc":"2.0","method":"m","params":{"t":"\udc00"}}')
    assert note is not None
    assert (note.method, bytes(note.params)) == ("m", rb'{"t":"\udc00"}')
    plain_one = splice.message(b'{"jsonrpc":"2.0","id":2,"result":{}}')
    assert plain_one is not None
    assert plain_one.raw_id == b"2"


@pytest.mark.parametrize(
    "line",
    [
        b"Server ready",
        b'"ready"',
        b'{"level":"info"}',
        rb'{"jsonrpc":"2.0","x":"\udc00"}',
        rb'{"x":"\udc00"',
        rb'"\udc00"',
        rb'{"id":1,"result":{"x":"\udc00"}}',
    ],
)
def test_chatter_is_no_message(line: bytes) -> None:
    """F01."""
    assert splice.message(line) is None


@given(st.dictionaries(st.text(), VALUES))
def test_taking_apart_and_joining_changes_nothing(value: dict[str, Any]) -> None:
    raw = json.dumps(value).encode()
    if any(0xD800 <= ord(c) <= 0xDFFF for c in json.dumps(value, ensure_ascii=False)):
        return
    assert msgspec.json.decode(splice.join(splice.members(raw))) == msgspec.json.decode(raw)
    items = splice.items(json.dumps(list(value.values())).encode())
    assert splice.join_items(items) == b"[" + b",".join(json.dumps(v).encode() for v in value.values()) + b"]"
