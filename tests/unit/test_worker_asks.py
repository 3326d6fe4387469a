"""Asks and answers in the form of the other side."""

import json
from typing import Any

import pytest

from coffer_worker.core import asks
from coffer_worker.core.asks import Required, UrlWish, Wish
from coffer_worker.core.translate import View

AGGREGATE, PASSED = View("legacy", "prefixed", "up"), View("legacy", "raw", "up")
ELICIT = "elicitation/create"


def raw(value: Any) -> bytes:
    return json.dumps(value).encode()


def test_on_the_aggregate_a_person_is_told_who_asks_and_elsewhere_nothing_changes() -> None:
    params = b'{"message":"Why?", "requestedSchema":{"x":1.0e2}}'
    wish = Wish(ELICIT, params)
    assert json.loads(asks.for_legacy_client(wish, AGGREGATE))["message"] == "[up] Why?"
    assert b'"requestedSchema":{"x":1.0e2}' in asks.for_legacy_client(wish, AGGREGATE)
    assert json.loads(asks.for_legacy_client(wish, PASSED))["message"] == "Why?"
    assert asks.for_legacy_client(Wish(ELICIT, b'{"message":1}'), AGGREGATE) == b'{"message":1}'


@pytest.mark.parametrize(
    ("meta", "kept"),
    [({"progressToken": 1}, None), ({"progressToken": 1, "x/y": 2}, {"x/y": 2}), ({"x/y": 2}, {"x/y": 2}), (3, 3)],
)
def test_what_belongs_to_the_upstreams_hop_stays_there(meta: Any, kept: Any) -> None:
    sent = json.loads(asks.for_legacy_client(Wish("roots/list", raw({"_meta": meta})), PASSED))
    assert sent.get("_meta") == kept


def test_a_link_gets_an_id_of_ours_where_a_legacy_client_needs_one() -> None:
    sent = asks.for_legacy_client(Wish(ELICIT, b'{"mode":"url","url":"https://x/%41"}'), PASSED, "mine")
    assert json.loads(sent) == {"mode": "url", "url": "https://x/%41", "elicitationId": "mine"}


def test_an_input_request_has_no_meta_no_task_and_no_id() -> None:
    wish = Wish(ELICIT, raw({"message": "m", "_meta": {}, "task": {}, "elicitationId": "e"}))
    assert json.loads(asks.for_modern_client(wish, AGGREGATE)) == {"method": ELICIT, "params": {"message": "[up] m"}}
    with pytest.raises(ValueError, match="object"):
        asks.for_modern_client(Wish(ELICIT, b"[]"), AGGREGATE)


def test_the_result_that_asks() -> None:
    made = json.loads(asks.input_required({"ask-1": b'{"method":"roots/list"}'}, 'a"b'))
    assert made == {
        "resultType": "input_required",
        "inputRequests": {"ask-1": {"method": "roots/list"}},
        "requestState": 'a"b',
    }


def test_a_wish_is_judged_by_its_params() -> None:
    assert Wish(ELICIT, b'{"mode":"url","url":"u"}').url == "u"
    assert Wish(ELICIT, b'{"url":"u"}').url == ""
    assert Wish("roots/list", b'{"mode":"url","url":"u"}').url == ""
    assert Wish(ELICIT, b"[]").view() == Wish(ELICIT, b"{").view() == {}


@pytest.mark.parametrize(
    ("result", "asking"),
    [
        (b'{"resultType":"input_required"}', True),
        (b'{"resultType":"complete","content":"input_required"}', False),
        (b'{"content":[]}', False),
        (b'["input_required"]', False),
    ],
)
def test_which_result_asks(result: bytes, asking: bool) -> None:
    assert asks.asks_for_input(result) is asking


def test_an_upstreams_input_required_taken_apart() -> None:
    found = asks.required(
        b'{"inputRequests":{"k":{"method":"roots/list"},"l":{"params":{"a":1}}},"requestState":"s\\u0041"}'
    )
    assert found == Required({"k": Wish("roots/list", b"{}"), "l": Wish("", b'{"a":1}')}, b'"s\\u0041"')
    assert asks.required(b'{"requestState":"s"}') == Required({}, b'"s"')
    for bad in (b"{}", b'{"inputRequests":[]}', b'{"inputRequests":{"k":1}}', b'{"inputRequests":{"k":{"params":[]}}}'):
        with pytest.raises(ValueError, match=r"\S"):
            asks.required(bad)


def test_only_the_message_of_an_elicitation_is_changed_for_a_modern_client() -> None:
    result = (
        b'{"resultType":"input_required","inputRequests":{"a":{"method":"elicitation/create","params":{"message":"m"}},'
        b'"b":{"method":"roots/list"}},"requestState":"s"}'
    )
    assert asks.shown_required(result, PASSED) == result
    plain = b'{"inputRequests":{"b":{"method":"roots/list"}}}'
    assert asks.shown_required(plain, AGGREGATE) == plain
    shown = json.loads(asks.shown_required(result, AGGREGATE))
    assert shown["inputRequests"]["a"]["params"] == {"message": "[up] m"}
    assert shown["inputRequests"]["b"] == {"method": "roots/list"}
    assert shown["requestState"] == "s"


def test_what_a_retry_carries() -> None:
    assert asks.retried({"a": b"{}"}, b'"s"') == {"inputResponses": b'{"a":{}}', "requestState": b'"s"'}
    assert asks.retried({}, None) == {}


def test_an_answer_passes_without_what_is_of_its_hop() -> None:
    same = b'{"action": "accept"}'
    assert asks.answer(same) is same
    assert json.loads(asks.answer(b'{"action":"x","_meta":{"progressToken":1},"resultType":"complete"}')) == {
        "action": "x"
    }
    with pytest.raises(ValueError, match="object"):
        asks.answer(b"1")


def test_a_retry_is_read() -> None:
    params = b'{"name":"t","arguments":{"a":1},"inputResponses":{"k":{"b":1},"l":2},"requestState":"s"}'
    assert asks.retry_state(params) == "s"
    assert asks.retry_answers(params) == {"k": b'{"b":1}'}
    assert asks.is_retry(params)
    assert json.loads(asks.first_try(params)) == {"name": "t", "arguments": {"a": 1}}
    assert asks.retry_state(b'{"arguments":{"requestState":1}}') is None
    assert not asks.is_retry(b'{"arguments":{"requestState":1}}')
    assert not asks.is_retry(b"{}")
    assert asks.retry_state(b"{}") is asks.retry_state(b'"requestState"') is None
    assert asks.retry_answers(b"[]") == asks.retry_answers(b'{"inputResponses":[]}') == {}


@pytest.mark.parametrize(
    ("params", "token"),
    [(b'{"_meta":{"progressToken":0}}', b"0"), (b'{"_meta":{}}', None), (b"{}", None), (b'{"_meta":1}', None)],
)
def test_the_progress_token_of_a_retry(params: bytes, token: bytes | None) -> None:
    assert asks.progress_token(params) == token


def test_equal_calls_have_equal_digests_and_others_have_not() -> None:
    def digest(params: bytes, method: str = "tools/call", key: str = "t") -> str:
        return asks.digest(method, key, params)

    one = digest(b'{"arguments":{"a":1,"b":"\\u00e9"}}')
    assert one == digest('{"arguments": {"b": "é", "a": 1}, "requestState": "s"}'.encode())
    assert len({one, digest(b'{"arguments":{"a":2,"b":"\\u00e9"}}'), digest(b"{}"), digest(b"{}", key="u")}) == 4
    assert digest(b"{}") != digest(b"{}", "prompts/get")
    assert digest(b"[1]") != digest(b"[2]")


def test_the_links_of_a_refusal() -> None:
    entry = {"elicitationId": "e", "url": "https://x", "message": "m"}
    error = raw({"code": -32042, "data": {"elicitations": [entry, {"url": "https://y"}]}})
    one, two = asks.url_wishes(error)
    assert one == UrlWish(Wish(ELICIT, one.wish.params), "e")
    assert json.loads(one.wish.params) == {**entry, "mode": "url"}
    assert (json.loads(two.wish.params)["message"], two.elicitation_id) == ("", "")
    for bad in ({}, {"data": 1}, {"data": {"elicitations": [{"message": "no URL"}]}}, {"data": {"elicitations": 1}}):
        assert asks.url_wishes(raw(bad)) == []


def test_small_readings_of_what_may_be_anything() -> None:
    assert asks.completed_id(b'{"elicitationId":"e"}') == "e"
    assert asks.completed_id(b"{}") is asks.completed_id(b"") is None
    assert asks.action(b'{"action":"accept"}') == "accept"
    assert asks.action(b"{}") == asks.action(b"[]") == "cancel"
    assert asks.cancelled_request(b'{"requestId":"a"}') == b'"a"'
    assert asks.cancelled_request(b"{}") == asks.cancelled_request(b"") == b""
    assert asks.message_of(b'{"message":"m"}') == "m"
    assert asks.message_of(b"{}") == asks.message_of(b"") == ""
