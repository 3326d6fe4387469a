"""Params in, results and errors out: what changes, and that nothing else does."""

import json
from typing import Any

import pytest

from coffer_worker.core import translate
from coffer_worker.core.translate import BadResult, Hop, View

LEGACY = Hop("legacy", "2025-11-25", b'{"name":"coffer"}', b'{"experimental":{}}')
MODERN = Hop("modern", "2026-07-28", b'{"name":"coffer"}', b'{"experimental":{}}')
AGGREGATE = View("legacy", "prefixed", "s")
MODERN_AGGREGATE = View("modern", "prefixed", "s")
RAW = View("legacy", "raw", "s")
MODERN_RAW = View("modern", "raw", "s")
META = "io.modelcontextprotocol/"


def test_a_call_gets_its_own_name_and_our_token_and_keeps_its_arguments() -> None:
    """S05: unknown members of ``_meta`` pass, those of the hop are built anew; argument bytes are untouched."""
    params = b"""{"_meta":{"x.example/trace":"t1","progressToken":0, "io.modelcontextprotocol/clientInfo":{}},
      "name":"s__echo","arguments":{"n": 12345678901234567890123, "f":1e2},"extra":[1.0]}"""
    made, token = translate.request_params("tools/call", "echo", params, LEGACY, 7)
    assert token == b"0"
    assert b"\n" not in made
    assert b'"arguments":{"n": 12345678901234567890123, "f":1e2}' in made
    assert json.loads(made) == {
        "_meta": {"x.example/trace": "t1", "progressToken": 7},
        "name": "echo",
        "arguments": {"n": 12345678901234567890123, "f": 100.0},
        "extra": [1.0],
    }


@pytest.mark.parametrize("raw", [b'"7"', b"7", b'""', b'"\xc3\xa9"'])
def test_tokens_keep_their_type(raw: bytes) -> None:
    """L02, I03."""
    params = b'{"name":"x","_meta":{"progressToken":' + raw + b"}}"
    assert translate.request_params("prompts/get", "x", params, LEGACY, 1)[1] == raw


def test_a_token_always_goes_upstream() -> None:
    """L10: progress resets the idle limit even where the client gave no token."""
    made, token = translate.request_params("resources/read", "x:1", b"{}", LEGACY, 9)
    assert token is None
    assert json.loads(made) == {"uri": "x:1", "_meta": {"progressToken": 9}}


def test_a_modern_hop_carries_its_envelope_in_each_request() -> None:
    """E07, E15: version and level of this hop, whatever the client's was."""
    params = json.dumps({"name": "a", "_meta": {META + "protocolVersion": "x", META + "logLevel": "debug"}}).encode()
    meta = json.loads(translate.request_params("tools/call", "a", params, MODERN, 3, log_level="info")[0])["_meta"]
    assert meta == {
        "progressToken": 3,
        META + "protocolVersion": "2026-07-28",
        META + "clientInfo": {"name": "coffer"},
        META + "clientCapabilities": {"experimental": {}},
        META + "logLevel": "info",
    }


@pytest.mark.parametrize(
    ("ref", "key", "member"),
    [
        ({"type": "ref/prompt", "name": "s__p"}, "p", "name"),
        ({"type": "ref/resource", "uri": "coffer://s/x"}, "x", "uri"),
    ],
)
def test_a_completion_names_the_upstreams_own(ref: dict[str, Any], key: str, member: str) -> None:
    """R08."""
    params = json.dumps({"ref": ref, "argument": {"name": "n", "value": "v"}}).encode()
    made = json.loads(translate.request_params("completion/complete", key, params, LEGACY, 1)[0])
    assert made["ref"] == {**ref, member: key}
    assert made["argument"] == {"name": "n", "value": "v"}


def test_requests_of_our_own() -> None:
    assert LEGACY.params() == b"{}"
    assert json.loads(MODERN.params(cursor=b'"c"')) == {
        "cursor": "c",
        "_meta": {META + "protocolVersion": "2026-07-28", META + "clientInfo": {"name": "coffer"},
                  META + "clientCapabilities": {"experimental": {}}},
    }  # fmt: skip


def test_the_callers_capabilities_travel_with_each_modern_request_alone() -> None:
    """E17: in the place of the connection's own; a legacy hop fixed them in its handshake."""
    for hop, told in ((MODERN, {"roots": {}}), (LEGACY, None)):
        made = translate.request_params("tools/call", "a", b"{}", hop, 1, capabilities=b'{"roots":{}}')[0]
        assert json.loads(made)["_meta"].get(META + "clientCapabilities") == told


@pytest.mark.parametrize("params", [b"[]", b'{"_meta":1}', b"x"])
def test_params_that_are_no_object_are_refused(params: bytes) -> None:
    with pytest.raises(ValueError, match="not"):
        translate.request_params("tools/call", "a", params, LEGACY, 1)


def test_progress_goes_on_with_the_clients_token() -> None:
    made = translate.progress_params(b'{"progressToken":7,"progress":0.10,"message":"m","total":1e1}', b'"mine"')
    assert made == b'{"progressToken":"mine","progress":0.10,"message":"m","total":1e1}'


def test_notifications_lose_what_belongs_to_the_hop() -> None:
    assert translate.notification_params(b"") == b"{}"
    assert translate.notification_params(b'{"data":1}') == b'{"data":1}'
    raw = b'{"_meta":{"io.modelcontextprotocol/subscriptionId":1},"data": 1e2}'
    assert translate.notification_params(raw) == b'{"data":1e2}'
    assert translate.notification_params(b'{"_meta":{"v/k":1},"data":1}') == b'{"_meta":{"v/k":1},"data":1}'
    assert translate.notification_params(b'{"_meta":1}') == b'{"_meta":1}'


# ---- results


PLAIN = b'{"content":[{"type":"text","text":"1e2 \xc3\xa9"}], "structuredContent":{"n":1e2,"z":null}}'


def test_a_result_without_names_passes_untouched() -> None:
    """S04, S12: nothing is decoded that need not be."""
    assert translate.result("tools/call", PLAIN, "legacy", AGGREGATE) is PLAIN
    assert translate.result("tools/call", PLAIN, "legacy", RAW) is PLAIN


def test_names_in_a_tools_result_become_coffers() -> None:
    """R01, R06: links, embedded resources, references of MCP Apps; text, unknown kinds and structured content stay."""
    result: dict[str, Any] = {
        "content": [
            {"type": "resource_link", "uri": "file:///a b", "name": "n", "x": 1},
            {"type": "resource", "resource": {"uri": "x:1", "text": "uri"}},
            {"type": "text", "text": '{"uri":"x:1"}'},
            {"type": "hologram", "uri": "x:1"},
            {"type": "resource", "resource": 1},
            {"type": "resource_link", "uri": 5},
            {"type": "text", "text": "t", "_meta": {"ui": {"resourceUri": "ui://b/v"}}},
            1,
        ],
        "structuredContent": {"uri": "x:1"},
        "_meta": {"ui": {"resourceUri": "ui://a/v.html"}, "ui/resourceUri": "ui://a/v", "v/uri": "x:1"},
    }
    raw = json.dumps(result).encode()
    assert translate.result("tools/call", raw, "legacy", RAW) == raw
    made = json.loads(translate.result("tools/call", raw, "legacy", AGGREGATE))
    content = made["content"]
    assert content[0] == {"type": "resource_link", "uri": "coffer://s/file:///a b", "name": "n", "x": 1}
    assert content[1]["resource"] == {"uri": "coffer://s/x:1", "text": "uri"}
    assert content[2:6] == result["content"][2:6]
    assert content[6]["_meta"]["ui"]["resourceUri"] == "ui://s/b/v"
    assert made["structuredContent"] == {"uri": "x:1"}
    assert made["_meta"] == {"ui": {"resourceUri": "ui://s/a/v.html"}, "ui/resourceUri": "ui://s/a/v", "v/uri": "x:1"}


def test_an_escape_cannot_hide_a_name() -> None:
    raw = rb'{"contents":[{"\u0075ri":"x:1","blob":"AAEC/w=="}]}'
    assert json.loads(translate.result("resources/read", raw, "legacy", AGGREGATE)) == {
        "contents": [{"uri": "coffer://s/x:1", "blob": "AAEC/w=="}]
    }
    raw = rb'{"content":[{"type":"text","text":"http:\/\/x"}]}'
    assert translate.result("tools/call", raw, "legacy", AGGREGATE) is raw


def test_resources_read() -> None:
    """S11: order, kinds and missing MIME types stay."""
    raw = b'{"contents":[{"uri":"x:1","blob":"AAEC/w=="},{"uri":"x:2","text":"t","_meta":{"ui":{"resourceUri":"ui://q"}}}]}'
    made = json.loads(translate.result("resources/read", raw, "legacy", AGGREGATE))
    assert made == {
        "contents": [
            {"uri": "coffer://s/x:1", "blob": "AAEC/w=="},
            {"uri": "coffer://s/x:2", "text": "t", "_meta": {"ui": {"resourceUri": "ui://s/q"}}},
        ]
    }


def test_prompts_with_one_and_with_many_contents() -> None:
    messages = [
        {"role": "user", "content": {"type": "resource_link", "uri": "x:1"}},
        {"role": "user", "content": [{"type": "resource", "resource": {"uri": "x:2"}}, {"type": "text", "text": "t"}]},
        {"role": "user", "content": "uri"},
    ]
    raw = json.dumps({"messages": messages}).encode()
    made = json.loads(translate.result("prompts/get", raw, "legacy", AGGREGATE))["messages"]
    assert made[0]["content"]["uri"] == "coffer://s/x:1"
    assert made[1]["content"][0]["resource"]["uri"] == "coffer://s/x:2"
    assert made[2] == messages[2]
    odd = b'{"messages":"uri","x":{"uri":1},"_meta":{"ui":{},"v":"resourceUri"}}'
    assert translate.result("prompts/get", odd, "legacy", AGGREGATE) == odd
    completion = b'{"completion":{"values":["uri"]},"uri":"x"}'
    assert translate.result("completion/complete", completion, "legacy", AGGREGATE) == completion


# ---- the shapes of the eras


def test_a_legacy_result_for_a_modern_client_says_that_it_is_complete() -> None:
    """E12."""
    assert json.loads(translate.result("tools/call", PLAIN, "legacy", MODERN_RAW)) == {
        "resultType": "complete",
        **json.loads(PLAIN),
    }
    assert translate.result("tools/call", b"{ }", "legacy", MODERN_RAW) == b'{"resultType":"complete" }'
    read = json.loads(translate.result("resources/read", b'{"contents":[]}', "legacy", MODERN_RAW))
    assert read == {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", "contents": []}


def test_what_a_legacy_upstream_said_itself_is_not_said_twice() -> None:
    raw = b'{"contents":[],"ttlMs":5,"resultType":"complete"}'
    made = translate.result("resources/read", raw, "legacy", MODERN_RAW)
    assert made == b'{"contents":[],"ttlMs":5,"resultType":"complete","cacheScope":"private"}'
    inner = b'{"content":[{"type":"text","text":"\\"ttlMs\\""}],"structuredContent":{"ttlMs":1}}'
    assert json.loads(translate.result("tools/call", inner, "legacy", MODERN_RAW))["resultType"] == "complete"


def test_a_modern_result_for_a_legacy_client_loses_what_that_client_does_not_know() -> None:
    raw = b'{"contents":[{"uri":"x:1","text":"1e2"}],"resultType":"complete","ttlMs":5,"cacheScope":"public"}'
    assert translate.result("resources/read", raw, "modern", RAW) == b'{"contents":[{"uri":"x:1","text":"1e2"}]}'


@pytest.mark.parametrize("content", [b'"content":[],', b""])
def test_structured_content_that_is_no_object_becomes_text_for_a_legacy_client(content: bytes) -> None:
    raw = b"{" + content + b'"structuredContent":[1e2, "\xc3\xa9"]}'
    made = json.loads(translate.result("tools/call", raw, "modern", RAW))
    assert made == {"content": [{"type": "text", "text": '[1e2, "é"]'}]}
    kept = b'{"content":[{"type":"text","text":"x"}],"structuredContent":7}'
    assert translate.result("tools/call", kept, "modern", RAW) == b'{"content":[{"type":"text","text":"x"}]}'
    good = b'{"content":[],"structuredContent":{"a":1}}'
    assert translate.result("tools/call", good, "modern", RAW) == good


def test_between_modern_hops_a_result_passes_untouched() -> None:
    raw = b'{"resultType":"complete","content":[],"structuredContent":[1]}'
    assert translate.result("tools/call", raw, "modern", MODERN_RAW) is raw
    inner = b'{"content":[],"structuredContent":{"resultType":"task"}}'
    assert translate.result("tools/call", inner, "modern", MODERN_RAW) is inner
    both = b'{"resultType": "complete","structuredContent":{"resultType":5}}'
    assert translate.result("tools/call", both, "modern", MODERN_RAW) is both


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b'{"resultType":"input_required","inputRequests":{}}', "asks for input"),
        (b'{"resultType":"task"}', "is not known"),
        (b"[]", "not an object"),
        (b'{"resultType":5,', "JSON"),
    ],
)
def test_a_result_that_breaks_the_protocol_is_refused(raw: bytes, why: str) -> None:
    """An undeclared ask of a modern upstream is a breach; an unknown resultType is invalid."""
    with pytest.raises(BadResult, match=why):
        translate.result("tools/call", raw, "modern", MODERN_RAW)


@pytest.mark.parametrize("type_", [b'"example/partial"', b'{"a":1}'])
def test_a_type_of_result_that_an_extension_may_have_brought_passes(type_: bytes) -> None:
    """Where the caller declared an extension; a task does not pass in any case, for its methods lead nowhere here."""
    raw = b'{"resultType":' + type_ + b',"x":1e2}'
    extended = View("modern", "raw", "s", extended=True)
    assert translate.result("tools/call", raw, "modern", extended) is raw
    with pytest.raises(BadResult, match="is not known"):
        translate.result("tools/call", b'{"resultType":"task"}', "modern", extended)


def test_who_answers_stands_in_a_bridged_result() -> None:
    """A modern server says who it is in each result; a legacy one cannot, so it is said for it."""
    view = View("modern", "raw", "s", b'{"name":"n"}')
    stamp = {META + "serverInfo": {"name": "n"}}
    made = json.loads(translate.result("tools/call", PLAIN, "legacy", view))
    assert made == {"resultType": "complete", **json.loads(PLAIN), "_meta": stamp}
    kept = b'{"contents":[],"_meta":{"x/y":1e2}}'
    made_bytes = translate.result("resources/read", kept, "legacy", view)
    assert json.loads(made_bytes)["_meta"] == {**stamp, "x/y": 100.0}
    assert b'"x/y":1e2' in made_bytes
    own = b'{"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"own"}}}'
    assert json.loads(translate.result("tools/call", own, "legacy", view))["_meta"] == {
        META + "serverInfo": {"name": "own"}
    }
    assert json.loads(translate.result("tools/call", b'{"_meta":1}', "legacy", view))["_meta"] == 1


@pytest.mark.parametrize("upstream", ["legacy", "modern"])
@pytest.mark.parametrize("key", ["io.modelcontextprotocol/serverInfo", "io.modelcontextprotocol\\/serverInfo"])
def test_on_the_aggregate_no_server_names_itself(upstream: Any, key: str) -> None:
    """Its clients see one server: Coffer stands in a modern result, nobody in a legacy one. What is passed through
    keeps what the server says."""
    own = b'{"resultType":"complete","_meta":{"%b":{"name":"own"}},"x":1e2}' % key.encode()
    more = own.replace(b'"_meta":{', b'"_meta":{"x/y":1,')
    coffer = View("modern", "prefixed", "s", b'{"name":"coffer"}')
    for raw, rest in ((own, {}), (more, {"x/y": 1})):
        made = translate.result("tools/call", raw, upstream, coffer)
        assert json.loads(made)["_meta"] == {META + "serverInfo": {"name": "coffer"}, **rest}
        assert b'"x":1e2' in made
        assert json.loads(translate.result("tools/call", raw, upstream, AGGREGATE)).get("_meta", {}) == rest
        for view in (RAW, MODERN_RAW):
            kept = json.loads(translate.result("tools/call", raw, upstream, view))["_meta"]
            assert kept == {META + "serverInfo": {"name": "own"}, **rest}


@pytest.mark.parametrize("raw", [b'{"resultType":"complete"}', b"{ }", b'{"_meta":{}}'])
def test_on_the_aggregate_a_modern_result_that_names_nobody_names_coffer(raw: bytes) -> None:
    view = View("modern", "prefixed", "s", b'{"name":"coffer"}')
    made = json.loads(translate.result("tools/call", raw, "modern", view))
    assert made == {**json.loads(raw), "_meta": {META + "serverInfo": {"name": "coffer"}}}
    assert translate.result("tools/call", raw, "modern", MODERN_AGGREGATE) == raw
    for odd in (b'{"_meta":1}', b'{"_meta":1,"a":"serverInfo"}'):
        assert translate.result("tools/call", odd, "modern", view) == odd
    elsewhere = b'{"_meta":{},"a":"serverInfo"}'
    assert translate.result("tools/call", elsewhere, "legacy", AGGREGATE) == elsewhere


def test_an_entry_with_and_without_references() -> None:
    assert translate.renamed_meta(b'{"name":"a", "_meta":{}}', "s") == b'{"name":"a", "_meta":{}}'
    made = json.loads(translate.renamed_meta(b'{"_meta":{"ui":{"resourceUri":"ui://a/v"}}}', "s"))
    assert made == {"_meta": {"ui": {"resourceUri": "ui://s/a/v"}}}


def test_is_error() -> None:
    """S07: a tool's own error stays a result."""
    assert translate.is_error(b'{"content":[],"isError": true}')
    assert not translate.is_error(b'{"content":[],"isError":false}')
    assert not translate.is_error(b'{"structuredContent":{"isError":true}}')


# ---- errors


def test_errors_pass_unchanged() -> None:
    """S09: code, message and data reach the client as they are."""
    raw = b'{"code":-32042,"message":"m","data":{"k":[1e2]}}'
    failure = translate.error("tools/call", raw, "legacy", RAW, "t")
    assert (failure.code, failure.message, failure.error, failure.status) == (-32042, "m", raw, 200)
    for era in ("modern", "legacy"):
        assert translate.error("tools/call", b'{"code":-1}', era, MODERN_AGGREGATE, "t").error == b'{"code":-1}'


def test_a_missing_resource_in_the_words_of_each_era() -> None:
    failure = translate.error("resources/read", b'{"code":-32002,"message":"m"}', "legacy", MODERN_AGGREGATE, "x:1")
    assert (failure.code, failure.status) == (-32602, 400)
    assert json.loads(failure.error) == {"code": -32602, "message": "m", "data": {"uri": "coffer://s/x:1"}}
    raw = b'{"code":-32602,"message":"m","data":{"uri":"x:1"}}'
    failure = translate.error("resources/read", raw, "modern", RAW, "x:1")
    assert json.loads(failure.error) == {"code": -32002, "message": "m", "data": {"uri": "x:1"}}
    failure = translate.error("resources/read", b'{"code":-32602,"message":"m"}', "modern", RAW, "x:1")
    assert failure.code == -32602
    failure = translate.error("resources/read", b'{"code":-32602,"message":"m","data":{"x":1}}', "modern", RAW, "x:1")
    assert failure.code == -32602
    failure = translate.error("tools/call", raw, "legacy", AGGREGATE, "x:1")
    assert json.loads(failure.error)["data"] == {"uri": "coffer://s/x:1"}
    raw = b'{"code":-32002,"message":"m","data":{"uri":"x:2"}}'
    failure = translate.error("resources/read", raw, "legacy", MODERN_RAW, "x:1")
    assert json.loads(failure.error)["data"] == {"uri": "x:2"}


def test_a_modern_client_never_gets_the_legacy_code_of_a_missing_resource() -> None:
    """Not even where a server of its own era answers with it; other methods have no resource to miss."""
    raw = b'{"code":-32002,"message":"m"}'
    failure = translate.error("resources/read", raw, "modern", MODERN_RAW, "x:1")
    assert json.loads(failure.error) == {"code": -32602, "message": "m", "data": {"uri": "x:1"}}
    assert (failure.code, failure.status) == (-32602, 400)
    assert translate.error("resources/read", raw, "modern", RAW, "x:1").error == raw
    assert translate.error("tools/call", raw, "modern", MODERN_RAW, "t").error == raw


def test_a_url_elicitation_error_has_no_place_on_a_modern_wire() -> None:
    """A client that declared no URL elicitation is told which capability is missing, with status 400."""
    failure = translate.error("tools/call", b'{"code":-32042,"message":"m"}', "legacy", MODERN_RAW, "t")
    assert (failure.code, failure.status) == (-32021, 400)
    assert json.loads(failure.error)["data"] == {"requiredCapabilities": {"elicitation": {"url": {}}}}


@pytest.mark.parametrize("raw", [b"1", b"{}", b'{"code":"x"}', b'{"code":1.5}', b'{"code":1%b}' % (b"0" * 30), b"null"])
def test_a_malformed_error_is_still_an_error(raw: bytes) -> None:
    failure = translate.error("tools/call", raw, "legacy", RAW, "t")
    assert failure.code == -32603
    assert "malformed" in failure.message


def test_the_code_of_an_error() -> None:
    assert translate.code_of(b'{"code":-32020,"message":"m"}') == -32020
    assert translate.code_of(b'{"message":"m"}') == 0
    assert translate.code_of(b'{"code":"x"}') == 0
    assert translate.code_of(b'{"code":-1%b}' % (b"0" * 30)) == 0, "no frame could carry it"
    assert translate.code_of(b"[]") == 0
