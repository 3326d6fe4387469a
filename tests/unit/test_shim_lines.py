"""Bytes into lines and lines into a shallow look: any chunking, any JSON value, nothing of the payload touched."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from coffer_cli.shim_lines import Malformed, Splitter, batch, key_of, look, member

PARSE, INVALID = -32700, -32600


def split(data: bytes, *cuts: int, limit: int = 1000) -> tuple[list[bytes], Splitter]:
    splitter = Splitter(limit)
    lines: list[bytes] = []
    at = 0
    for cut in (*sorted(cuts), len(data)):
        lines += splitter.feed(data[at:cut])
        at = max(at, cut)
    return lines + splitter.end(), splitter


@given(st.lists(st.text(st.characters(exclude_characters="\n\r\ufeff \t"), min_size=1)), st.lists(st.integers(0, 99)))
def test_lines_do_not_depend_on_chunks(texts: list[str], cuts: list[int]) -> None:
    wanted = [text.encode("utf-8", "surrogatepass") for text in texts]
    assert split(b"".join(line + b"\n" for line in wanted), *cuts)[0] == wanted


def test_bom_crlf_blank_lines_and_a_last_line_without_its_end() -> None:
    """F08."""
    assert split(b'\xef\xbb\xbf{"a":1}\r\n\r\n \t\n{"b":2}')[0] == [b'{"a":1}', b'{"b":2}']


@pytest.mark.parametrize("cuts", [(), (5,), (5, 12, 13), range(30)])
def test_a_line_over_the_limit_is_dropped_and_counted_and_the_next_one_kept(cuts: tuple[int, ...]) -> None:
    lines, splitter = split(b"a\n" + b"x" * 25 + b"\nb\n", *cuts, limit=10)
    assert lines == [b"a", b"b"]
    assert splitter.oversized == 1


def test_an_oversized_line_that_never_ends() -> None:
    lines, splitter = split(b"x" * 25, 12, limit=10)
    assert (lines, splitter.oversized) == ([], 1)


@pytest.mark.parametrize(
    ("line", "kind", "method", "key"),
    [
        (b'{"jsonrpc":"2.0","id":1,"method":"a"}', "request", "a", ("number", "1")),
        (b'{"id":"1","method":"a"}', "request", "a", ("text", "1")),
        (b'{"id":"\\u0031","method":"\\u0061"}', "request", "a", ("text", "1")),
        (b'{"id":null,"method":"a"}', "request", "a", None),
        (b'{"id":{},"method":7}', "request", "", None),
        (b'{"method":"a"}', "notification", "a", None),
        (b'{"id":1.5,"method":"a"}', "request", "a", None),
        (b'{"id":1,"result":{}}', "response", "", ("number", "1")),
        (b'{"id":1,"error":{}}', "response", "", ("number", "1")),
        (b'{"id":1,"result":{},"error":{}}', "other", "", ("number", "1")),
        (b'{"id":1}', "other", "", ("number", "1")),
        (b'{"coffer":"goodbye"}', "control", "", None),
        (b"{}", "other", "", None),
        ('{"method":"ä"}'.encode(), "notification", "ä", None),
    ],
)
def test_what_a_message_is(line: bytes, kind: str, method: str, key: object) -> None:
    seen = look(line)
    assert (seen.kind, seen.method, seen.id) == (kind, method, key)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"{oops", PARSE),
        (b'{"id":1} x', PARSE),
        (b'{"a":"\xff"}', PARSE),
        (b'{"a":NaN}', PARSE),
        (b'{"a":' * 100_000, PARSE),
        (b"7", INVALID),
        (b"[]", INVALID),
        (b'"\\ud800"', INVALID),
    ],
)
def test_what_is_no_message(line: bytes, code: int) -> None:
    with pytest.raises(Malformed) as caught:
        look(line)
    assert caught.value.code == code


def test_lone_surrogates_that_node_emits_are_taken() -> None:
    seen = look(b'{"id":"a","method":"b","params":{"x":"\\ud800"}}')
    assert (seen.kind, seen.method, seen.id) == ("request", "b", ("text", "a"))
    assert json.loads(bytes(seen.params)) == {"x": "\ufffd"}
    assert look(b'{"method":"\\ud800"}').method == "\ufffd"


def test_half_a_surrogate_pair_within_an_id_makes_it_none() -> None:
    """It cannot be repeated in an answer."""
    seen = look(b'{"id":"\\ud800","method":"b"}')
    assert (seen.kind, seen.id, seen.raw_id) == ("request", None, b"null")


def test_a_batch_with_half_a_surrogate_pair() -> None:
    """JavaScript clients send them: each message is passed on with its own bytes."""
    items = [rb'{"id":1,"method":"a","params":{"t":"\ud83d cut"}}', b'{"id":2,"method":"b"}']
    assert [(item, seen.raw_id) for item, seen in batch(b"[" + b",".join(items) + b"]")] == [
        (items[0], b"1"),
        (items[1], b"2"),
    ]


def test_batches() -> None:
    """H13."""
    found = batch(b'[{"id":1,"method":"a"}, {"method":"b"}]')
    assert [(item, seen.kind) for item, seen in found] == [
        (b'{"id":1,"method":"a"}', "request"),
        (b'{"method":"b"}', "notification"),
    ]
    for line, code in ((b"[]", INVALID), (b"[1]", INVALID), (b"[", PARSE), (b"[" * 100_000, PARSE)):
        with pytest.raises(Malformed) as caught:
            batch(line)
        assert caught.value.code == code


def test_ids_keep_their_type() -> None:
    assert key_of(b"7") != key_of(b'"7"')
    assert key_of(b"0") == ("number", "0")
    assert key_of(b"%d" % 2**64) != key_of(b"%d" % (2**64 + 1))
    assert [key_of(raw) for raw in (b"true", b"null", b"[]", b"", b"1.5", b"1e2", b'"\xff"')] == [None] * 7


def test_members_by_path() -> None:
    raw = Raw(b'{"a":{"b":1e2},"c":[]}')
    assert bytes(member(raw, "a", "b")) == b"1e2"
    assert [bytes(member(raw, *path)) for path in (("x",), ("c", "d"), ("x", "y"))] == [b""] * 3
