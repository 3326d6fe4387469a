"""Envelopes: views over raw bytes (F07, H13, H14, I03, I04)."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coffer_common import jsonrpc
from coffer_common.jsonrpc import Malformed

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def refusal(data: bytes) -> Malformed:
    with pytest.raises(Malformed) as caught:
        jsonrpc.parse(data)
    return caught.value


@pytest.mark.parametrize("raw_id", ["1", '"1"', "0", '""', '"é"', "9007199254740993", "-3"])
def test_ids_keep_type_and_spelling(raw_id: str) -> None:
    """I03: 1 and "1" are never confused, and big ones stay exact."""
    envelope = jsonrpc.parse(f'{{"jsonrpc":"2.0","id":{raw_id},"method":"ping"}}'.encode())
    assert envelope.raw_id == raw_id.encode()
    assert envelope.kind == "request"


@pytest.mark.parametrize("raw_id", ["null", "1.5", "true", "[1]", "{}"])
def test_what_may_not_be_an_id_is_refused(raw_id: str) -> None:
    """I04: an id of null is an error, not a notification."""
    error = refusal(f'{{"jsonrpc":"2.0","id":{raw_id},"method":"tools/list"}}'.encode())
    assert (error.code, error.id) == (-32600, b"null")


@pytest.mark.parametrize(
    ("data", "code", "raw_id"),
    [
        (b"{oops", -32700, b"null"),
        (b"", -32700, b"null"),
        (b'{"jsonrpc":"2.0","id":1,"method":"x"', -32700, b"null"),
        (b'{"jsonrpc":"2.0","id":1,"method":"\xff"}', -32700, b"null"),
        (b"[1]", -32600, b"null"),
        (b'{"jsonrpc":"2.0","id":1,"method":7', -32600, b"null"),
        (b'"x"', -32600, b"null"),
        (b'{"jsonrpc":"2.0","id":1,"method":7}', -32600, b"1"),
        (b'{"jsonrpc":"2.0","id":true,"method":7}', -32600, b"null"),
        (b'{"jsonrpc":"1.0","id":1,"method":"x"}', -32600, b"1"),
        (b'{"id":1,"method":"x"}', -32600, b"1"),
        (b'{"jsonrpc":"2.0","id":1}', -32600, b"1"),
        (b'{"jsonrpc":"2.0","id":1,"result":{},"error":{}}', -32600, b"1"),
        (b'{"jsonrpc":"2.0","id":1,"method":"x","params":[]}', -32602, b"1"),
        (b'{"jsonrpc":"2.0","id":1,"method":"x","params":"s"}', -32602, b"1"),
        (b'{"jsonrpc":"2.0","id":"a","method":"x","params":5}', -32602, b'"a"'),
    ],
)
def test_each_malformed_message_gets_its_code_and_its_id(data: bytes, code: int, raw_id: bytes) -> None:
    """H14: an error with the request's id where it is known."""
    error = refusal(data)
    assert (error.code, error.id) == (code, raw_id)


def test_nesting_beyond_reason_is_an_error_and_no_crash() -> None:
    deep = b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}}"
    assert refusal(deep).code == -32700


@pytest.mark.parametrize(
    "data",
    [
        b'{"jsonrpc":"2.0","id":1,"id":2,"method":"x"}',
        b'{"jsonrpc":"2.0","id":1,"method":"x","method":"y"}',
        b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":1},"params":{"a":2}}',
        b'{"jsonrpc":"2.0","id":1,"method":"x","\\u006dethod":"y"}',
    ],
)
def test_duplicates_that_route_are_refused(data: bytes) -> None:
    """A peer may read the other one, so a member that routes stands once."""
    assert refusal(data).code == -32600


def test_names_of_the_envelope_inside_params_are_nobodys_business() -> None:
    data = b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"id":1,"method":"a","params":{"id":2}}}'
    assert bytes(jsonrpc.parse(data).params) == b'{"id":1,"method":"a","params":{"id":2}}'


@pytest.mark.parametrize(
    ("raw", "twice"),
    [
        (b'{"name":"a","arguments":{"name":"b"}}', None),
        (b'{"name":"a","name":"b"}', "name"),
        (b'{"name":"a","n\\u0061me":"b"}', "name"),
        (b'{"arguments":{"uri":"a"},"uri":"b","uri":"c"}', "uri"),
        (b'{"a":"\\u00e9"}', None),
    ],
)
def test_duplicate_members_are_found_at_the_top_level_only(raw: bytes, twice: str | None) -> None:
    assert jsonrpc.duplicate_member(raw, "name", "uri") == twice


BIG = b'{"name":"b","uri":"c","t":"' + b"x" * 20_000 + b'"}'


@pytest.mark.parametrize(
    ("raw", "twice"),
    [
        (b'{"name":"a","arguments":' + BIG + b"}", None),
        (b'{"name":"a","arguments":' + BIG + b',"name":"b"}', "name"),
        (b'{"arguments":' + BIG + b',"arguments":' + BIG + b',"name":"a"}', None),
        (b'{"name":' + BIG + b',"name":"b"}', "name"),
        (
            b'{"note":{"name":"b","uri":"c","t":"'
            + b"x" * 99
            + b'"},"name":"a","arguments":'
            + BIG
            + b',"uri":"a","uri":"b"}',
            "uri",
        ),
        (b'{"name":"a","n\\u0061me":' + BIG + b"}", "name"),
    ],
)
def test_duplicates_are_found_around_large_values_which_are_not_looked_through(raw: bytes, twice: str | None) -> None:
    assert jsonrpc.duplicate_member(raw, "name", "uri") == twice


def test_large_bytes_that_are_no_object_are_no_reason_to_fail() -> None:
    """Whoever asks has parsed them; what cannot be taken apart is looked through whole."""
    assert jsonrpc.duplicate_member(b'["' + b"x" * 20_000 + b'"]', "name") is None


@pytest.mark.parametrize(
    "line",
    [
        b"Server v1 ready",
        b"{ starting }",
        b'"ready"',
        b'{"level":"info"}',
        b"[]",
        b"",
        b'{"id":1,"result":{}}',
    ],
)
def test_chatter_is_no_message(line: bytes) -> None:
    """F01: a line that is not a JSON-RPC message is not one because it begins with a brace."""
    assert jsonrpc.view(line) is None


def test_a_byte_order_mark_is_passed_over() -> None:
    """F07."""
    envelope = jsonrpc.view(jsonrpc.BOM + b'{"jsonrpc":"2.0","id":1,"result":{"a":1e2}}')
    assert envelope is not None
    assert envelope.kind == "response"
    assert bytes(envelope.result) == b'{"a":1e2}'


@given(JSON)
def test_one_line_is_the_same_json(value: object) -> None:
    pretty = json.dumps(value, indent=2).encode().replace(b"\n", b"\r\n")
    line = jsonrpc.one_line(pretty)
    assert b"\n" not in line
    assert b"\r" not in line
    assert json.loads(line) == value


def test_what_is_built_is_what_was_meant() -> None:
    built = [
        jsonrpc.request(b"7", "tools/call", b'{"a":1}'),
        jsonrpc.request(b'"x"', "ping"),
        jsonrpc.notification("notifications/progress", b'{"b":2}'),
        jsonrpc.notification("notifications/initialized"),
        jsonrpc.response(b"7", b"{}"),
        jsonrpc.error_response(b"null", jsonrpc.error(-1, "m", {"k": [1]})),
        jsonrpc.error_response(b"null", jsonrpc.error(-1, "m")),
    ]
    assert [msgspec.json.decode(message) for message in built] == [
        {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"a": 1}},
        {"jsonrpc": "2.0", "id": "x", "method": "ping"},
        {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"b": 2}},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 7, "result": {}},
        {"jsonrpc": "2.0", "id": None, "error": {"code": -1, "message": "m", "data": {"k": [1]}}},
        {"jsonrpc": "2.0", "id": None, "error": {"code": -1, "message": "m"}},
    ]


HALVES = rb'{"a":"\ud83d cut","b":1e2,"c":"\\ud800 \ud83d\ude00","d":"\\\udc00\ud83d\ude00"}'


@pytest.mark.parametrize("member", ["params", "result", "error"])
@pytest.mark.parametrize("padding", [0, 20_000])
def test_half_a_surrogate_pair_passes_within_a_payload(member: str, padding: int) -> None:
    """JavaScript clients emit them where they cut a text: the call must not be refused, nor its id be lost."""
    payload = HALVES[:-1] + b',"name":"x","p":"%b"}' % (b"p" * padding)
    method = b'"method":"x",' if member == "params" else b""
    envelope = jsonrpc.parse(b'{"jsonrpc":"2.0","id":1,%b"%b":%b}' % (method, member.encode(), payload))
    assert envelope.raw_id == b"1"
    assert bytes(getattr(envelope, member)) == payload
    if member == "params":
        assert json.loads(envelope.outline)["a"] == "\ufffd cut"
        assert msgspec.json.decode(envelope.outline)["c"] == "\\ud800 \U0001f600"


def test_a_view_of_params_reads_past_half_a_surrogate_pair() -> None:
    """JavaScript leaves such halves where it cuts a text; what stands beside one must be read all the same."""
    decode = msgspec.json.Decoder(dict[str, str]).decode
    assert jsonrpc.read(rb'{"a":"\ud83d cut","b":"x"}', decode) == {"a": "\ufffd cut", "b": "x"}
    assert jsonrpc.read(b'{"b":"x"}', decode) == {"b": "x"}
    for raw in (b'{"b":1}', rb'{"b":1,"a":"\ud83d"}', b"{", rb'{"a":"\ud83d"'):
        with pytest.raises(msgspec.DecodeError):
            jsonrpc.read(raw, decode)


def test_half_a_surrogate_pair_excuses_nothing_else() -> None:
    """An id must be echoed; other faults stay faults."""
    assert refusal(rb'{"jsonrpc":"2.0","id":"\ud800","method":"x"}').code == -32600
    assert refusal(rb'{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":"\ud800"}').code == -32700
    assert refusal(rb'{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":"\ud8"}}').code == -32700
    twice = refusal(rb'{"jsonrpc":"2.0","id":1,"id":1,"method":"x","params":{"a":"\ud800"}}')
    assert (twice.code, twice.id) == (-32600, b"1")


@pytest.mark.parametrize("depth", range(980, 1000))
def test_the_look_for_duplicates_ends_at_no_number_and_no_depth(depth: int) -> None:
    """What one decoder still reads and the other does not is refused, or passes; nothing else is raised."""
    digits, nested = b"9" * 5000, b"[" * depth + b"]" * depth
    for beside in (digits, nested):
        raw = rb'{"jsonrpc":"2.0","id":1,"method":"x","params":{"name":"a\u0041"},"x":' + beside + b"}"
        try:
            envelope = jsonrpc.parse(raw)
        except Malformed:
            assert beside is nested
        else:
            assert jsonrpc.duplicate_member(bytes(envelope.params), "name") is None
    assert jsonrpc.duplicate_member(b'{"name":1,"x":{"name":%b}}' % digits, "name") is None
    assert jsonrpc.duplicate_member(b'{"name":1,"x":{"name":%b}}' % nested, "name") in (None, "name")


@pytest.mark.parametrize("half", [b"", b'"b":"\\ud83d",'])
def test_reading_what_is_nested_too_deeply_fails_as_any_reading_does(half: bytes) -> None:
    """Whoever reads a part of a message is called deeper than who parsed it: what passed the door may be too deep."""
    deep = b'{%b"a":%b}' % (half, b"[" * 100_000 + b"]" * 100_000)
    with pytest.raises(msgspec.DecodeError, match="deep"):
        jsonrpc.read(deep, msgspec.json.Decoder(dict[str, msgspec.Raw]).decode)
