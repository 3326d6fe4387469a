"""Which era a message is of, and the checks of a modern request in their order."""

import json
from typing import Any

import msgspec
import pytest

from coffer_common import jsonrpc, protocol
from coffer_supervisor.core.calls import Failure
from coffer_supervisor.core.envelope import Modern, client_name, era_of, ladder

META = {protocol.META_PROTOCOL_VERSION: "2026-07-28", protocol.META_CLIENT_CAPABILITIES: {}}
HEADERS = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "s__t"}


def params(meta: Any = None, **more: Any) -> bytes:
    return json.dumps({"name": "s__t", "_meta": META if meta is None else meta, **more}).encode()


def message(method: str, body: bytes = b"") -> jsonrpc.Envelope:
    return jsonrpc.parse(jsonrpc.request(b"1", method, body))


def code(verdict: Modern | Failure) -> int:
    assert isinstance(verdict, Failure)
    return verdict.code


@pytest.mark.parametrize(
    ("method", "body", "header", "era"),
    [
        ("tools/call", params(), None, "modern"),
        ("tools/call", b'{"_meta":{"io.modelcontextprotocol\\/protocolVersion":"2026-07-28"}}', None, "modern"),
        ("tools/call", b'{"arguments":{"a":"io.modelcontextprotocol/protocolVersion"}}', None, "legacy"),
        ("tools/call", b'{"_meta":["/protocolVersion"]}', None, "legacy"),
        ("tools/call", b'{"x":"/protocolVersion"}', None, "legacy"),
        ("tools/call", b"", None, "legacy"),
        ("tools/call", b"", "2026-07-28", "modern"),
        ("tools/call", b"", "2025-11-25", "legacy"),
        ("server/discover", b"", None, "modern"),
        ("subscriptions/listen", b"", None, "modern"),
        ("initialize", b'{"protocolVersion":"2025-11-25"}', "2026-07-28", "legacy"),
        ("initialize", params(), None, "modern"),
    ],
)
def test_the_era_is_decided_by_each_body(method: str, body: bytes, header: str | None, era: str) -> None:
    """E06: neither era locks the other out; a header alone never makes a handshake modern."""
    assert era_of(message(method, body), header) == era


def test_a_request_that_passes_says_what_the_client_is() -> None:
    """Capabilities, client and log level are the caller's own, byte for byte."""
    meta = {**META, protocol.META_CLIENT_INFO: {"name": "c"}, protocol.META_LOG_LEVEL: "info"}
    meta[protocol.META_CLIENT_CAPABILITIES] = {"roots": {}}
    verdict = ladder("tools/call", params(meta), HEADERS)
    assert verdict == Modern("2026-07-28", b'{"roots": {}}', b'{"name": "c"}', "c", "info")
    assert isinstance(ladder("tools/call", params(), None), Modern)
    assert isinstance(ladder("completion/complete", params(), {**HEADERS, "mcp-method": "completion/complete"}), Modern)
    null = {**META, protocol.META_CLIENT_INFO: None, protocol.META_LOG_LEVEL: None}
    assert ladder("tools/call", params(null), None) == Modern("2026-07-28", b"{}", b"{}", "", "")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b'{"_meta":7}',
        b'{"_meta":{}}',
        params({protocol.META_PROTOCOL_VERSION: "2026-07-28"}),
        params({protocol.META_CLIENT_CAPABILITIES: {}}),
        params({**META, protocol.META_CLIENT_CAPABILITIES: []}),
        params({**META, protocol.META_CLIENT_INFO: "x"}),
        params({**META, protocol.META_LOG_LEVEL: "loud"}),
        params({**META, protocol.META_LOG_LEVEL: 7}),
        params({**META, protocol.META_PROTOCOL_VERSION: 7}),
        params()[:-1] + b',"_meta":{}}',
    ],
)
def test_an_incomplete_envelope_is_invalid_params(body: bytes) -> None:
    """E11: missing or misshapen members of `_meta` are -32602 and HTTP 400."""
    verdict = ladder("tools/call", body, None)
    assert code(verdict) == protocol.INVALID_PARAMS
    assert isinstance(verdict, Failure)
    assert verdict.status == 400


def test_meta_within_arguments_is_no_duplicate() -> None:
    """A member of the same name deeper down is the tool's own business."""
    assert isinstance(ladder("tools/call", params(arguments={"_meta": 1}), HEADERS), Modern)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {**HEADERS, "mcp-protocol-version": "2025-11-25"},
        {**HEADERS, "mcp-method": "tools/list"},
        {k: v for k, v in HEADERS.items() if k != "mcp-method"},
        {**HEADERS, "mcp-name": "safe"},
        {**HEADERS, "mcp-name": "=?base64??="},
        {k: v for k, v in HEADERS.items() if k != "mcp-name"},
    ],
)
def test_headers_that_disagree_with_the_body_are_refused(headers: dict[str, str]) -> None:
    """E10: a header that is absent or names something else than the body is -32020."""
    assert code(ladder("tools/call", params(), headers)) == protocol.HEADER_MISMATCH


def test_a_name_outside_ascii_travels_encoded() -> None:
    """E09: the base64 form of a header equals the body's name; a URI is the name of a read."""
    headers = {**HEADERS, "mcp-method": "resources/read", "mcp-name": protocol.encode_header("x:é")}
    assert isinstance(ladder("resources/read", params(uri="x:é"), headers), Modern)
    assert isinstance(ladder("resources/read", params(uri=7), {**headers, "mcp-name": "7"}), Modern)
    assert isinstance(ladder("resources/read", params(), headers), Modern)


def test_an_unknown_version_is_told_the_known_ones() -> None:
    """E11: -32022 with the supported list, once the headers agree."""
    body = params({**META, protocol.META_PROTOCOL_VERSION: "2099-01-01"})
    verdict = ladder("tools/call", body, {**HEADERS, "mcp-protocol-version": "2099-01-01"})
    assert code(verdict) == protocol.UNSUPPORTED_VERSION
    assert isinstance(verdict, Failure)
    data = json.loads(verdict.error)["data"]
    assert (data["supported"], data["requested"]) == (["2026-07-28"], "2099-01-01")
    assert code(ladder("tools/call", body, HEADERS)) == protocol.HEADER_MISMATCH


def test_the_name_of_a_client_is_bounded() -> None:
    """What a client calls itself is shown in logs: it is text, and short."""
    assert client_name(b'{"name":"' + b"x" * 500 + b'"}') == "x" * 128
    assert client_name(b'{"name":7}') == client_name(b"{}") == ""


def test_what_is_nested_too_deeply_further_in_is_refused_in_words() -> None:
    """The door may have been called less deep in the program than these checks are."""
    deep = b"[" * 100_000 + b"]" * 100_000
    body = b'{"x":%b,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}' % deep
    refused = ladder("tools/call", body, None)
    assert code(refused) == protocol.INVALID_PARAMS
    assert isinstance(refused, Failure)
    assert "cannot be read" in refused.message
    envelope = jsonrpc.Envelope(method="tools/call", id=msgspec.Raw(b"1"), params=msgspec.Raw(body))
    assert era_of(envelope, None) == "legacy"
    assert client_name(b'{"name":"c","x":%b}' % deep) == ""
