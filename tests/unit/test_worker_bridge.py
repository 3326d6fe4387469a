"""Decisions of era: what is declared, who is served how, what an upstream's asks get."""

import json
from typing import Any

import pytest

from coffer_common.frames import Caller
from coffer_worker.core import bridge

EVERYTHING = {
    "sampling": {"tools": {}, "context": {}, "more": {}},
    "elicitation": {"form": {}, "url": {}},
    "roots": {"listChanged": True},
    "tasks": {},
    "extensions": {
        "io.modelcontextprotocol/ui": {"mimeTypes": ["text/html"]},
        "io.modelcontextprotocol/tasks": {},
        "example/other": {"deep": [1]},
    },
}


def by(revision: str, capabilities: object = None) -> Caller:
    raw = b"{}" if capabilities is None else json.dumps(capabilities).encode()
    return Caller("s", "local", "/mcp", "prefixed", revision, "http", raw)


def test_nothing_is_declared_for_nobody() -> None:
    """Discovery acts for no client, and a client that declares nothing can be asked nothing."""
    assert bridge.declared(None) == bridge.declared(by("2025-11-25")) == {"experimental": {}}
    assert bridge.capability_set(None) == bridge.capability_set(by("2026-07-28"))
    assert not bridge.may_be_asked(by("2026-07-28"))
    assert bridge.may_be_asked(by("2026-07-28", {"roots": {}}))


def test_what_the_caller_declared_is_declared_in_the_words_of_the_hop() -> None:
    """E17: upstream sees the caller's capabilities, never more; what has no form on that hop is left out."""
    full = {
        "experimental": {},
        "sampling": {"tools": {}, "context": {}},
        "elicitation": {"form": {}, "url": {}},
        "extensions": {"io.modelcontextprotocol/ui": {"mimeTypes": ["text/html"]}, "example/other": {"deep": [1]}},
    }
    legacy, modern = by("2025-11-25", EVERYTHING), by("2026-07-28", EVERYTHING)
    assert bridge.declared(legacy) == {**full, "roots": {"listChanged": True}}
    assert bridge.declared(legacy, "modern") == {**full, "roots": {}}
    assert bridge.declared(modern) == {**full, "roots": {}}
    assert json.loads(bridge.encoded_for_modern(modern)) == {**full, "roots": {}}


@pytest.mark.parametrize(
    ("revision", "elicitation", "declared"),
    [
        ("2025-03-26", {"form": {}}, None),
        ("2025-06-18", {}, {}),
        ("2025-06-18", {"form": {}, "url": {}}, {"form": {}}),
        ("2025-06-18", {"url": {}}, None),
        ("2025-11-25", {"url": {}}, {"url": {}}),
        ("2025-11-25", {"unknown": {}}, None),
        ("2026-07-28", {}, {}),
    ],
)
def test_modes_of_elicitation_are_those_of_the_clients_revision(revision, elicitation, declared) -> None:
    assert bridge.declared(by(revision, {"elicitation": elicitation})).get("elicitation") == declared


@pytest.mark.parametrize("raw", [b"[]", b"nonsense", b'{"sampling":1,"roots":true,"elicitation":[],"extensions":[]}'])
def test_what_is_no_capability_declares_nothing(raw: bytes) -> None:
    caller = Caller("s", "local", "/mcp", "prefixed", "2025-11-25", "http", raw)
    assert bridge.declared(caller) == {"experimental": {}}


@pytest.mark.parametrize("name", ["tasks", "oauth-client-credentials", "enterprise-managed-authorization"])
def test_an_extension_that_cannot_be_carried_is_not_declared(name: str) -> None:
    """Tasks have methods of their own, which name no server; how a client authorizes itself is its own hop's matter."""
    declared: dict[str, Any] = {"extensions": {f"io.modelcontextprotocol/{name}": {}}}
    assert "extensions" not in bridge.declared(by("2026-07-28", declared))
    assert not bridge.extended(by("2026-07-28", declared))


def test_other_types_of_result_need_an_extension_that_may_bring_them() -> None:
    """An unknown resultType is invalid unless the caller declared its extension; that of MCP Apps brings none."""
    assert bridge.extended(by("2026-07-28", {"extensions": {"example/other": {}}}))
    assert not bridge.extended(by("2026-07-28", {"extensions": {"io.modelcontextprotocol/ui": {}}}))
    assert not bridge.extended(by("2026-07-28"))
    assert not bridge.extended(by("2025-11-25", {"extensions": {"example/other": {}}}))


def test_roots_hold_until_the_client_says_that_they_changed() -> None:
    """They may be kept only for a client that declared it would say so; a modern one never does."""
    assert bridge.tells_roots(by("2025-11-25", {"roots": {"listChanged": True}}))
    assert not bridge.tells_roots(by("2025-11-25", {"roots": {}}))
    assert not bridge.tells_roots(by("2025-11-25"))
    assert not bridge.tells_roots(by("2026-07-28", {"roots": {"listChanged": True}}))


def test_a_legacy_client_keeps_its_own_revision_upstream() -> None:
    assert bridge.legacy_revision(by("2025-03-26")) == "2025-03-26"
    assert bridge.legacy_revision(by("2026-07-28")) == "2025-11-25"
    assert bridge.legacy_revision(None) == "2025-11-25"


@pytest.mark.parametrize(
    ("caller", "upstream", "side", "served"),
    [
        ("legacy", "legacy", None, "legacy"),
        ("modern", "legacy", None, "legacy"),
        ("modern", "modern", True, "modern"),
        ("legacy", "modern", True, "legacy"),
        ("legacy", "modern", None, "legacy"),
        ("legacy", "modern", False, "modern"),
    ],
)
def test_a_dual_era_upstream_serves_each_client_in_its_era(caller, upstream, side, served) -> None:
    assert bridge.served_in(caller, upstream, legacy_side=side) == served


@pytest.mark.parametrize(
    ("method", "params", "declared", "code"),
    [
        ("roots/list", {}, {"roots": {}}, None),
        ("roots/list", {}, {}, -32601),
        ("sampling/createMessage", {}, {"sampling": {}}, None),
        ("sampling/createMessage", {}, {}, -32601),
        ("sampling/createMessage", {"tools": []}, {"sampling": {}}, -32602),
        ("sampling/createMessage", {"toolChoice": {}}, {"sampling": {}}, -32602),
        ("sampling/createMessage", {"tools": []}, {"sampling": {"tools": {}}}, None),
        ("elicitation/create", {}, {}, -32602),
        ("elicitation/create", {}, {"elicitation": {}}, None),
        ("elicitation/create", {"mode": "url"}, {"elicitation": {}}, -32602),
        ("elicitation/create", {"mode": "url"}, {"elicitation": {"url": {}}}, None),
        ("elicitation/create", {}, {"elicitation": {"url": {}}}, -32602),
    ],
)
def test_an_ask_needs_what_was_declared(method, params, declared, code) -> None:
    """Undeclared roots and sampling are unknown methods; an undeclared mode or tools are invalid params."""
    found = bridge.unlawful(method, params, declared)
    assert (found.code if found is not None else None) == code


@pytest.mark.parametrize(
    ("method", "code"),
    [
        ("roots/list", -32601),
        ("sampling/createMessage", -32601),
        ("elicitation/create", -32602),
        ("foo/bar", -32601),
    ],
)
def test_an_ask_nobody_declared_is_refused_at_once(method: str, code: int) -> None:
    """V02: an unknown request gets method-not-found; roots and sampling too; elicitation invalid params."""
    answer = bridge.answer(method)
    assert answer.error
    assert json.loads(answer.payload)["code"] == code


def test_ping_is_answered() -> None:
    assert bridge.answer("ping") == bridge.Answer(b"{}", error=False)


@pytest.mark.parametrize(
    ("capabilities", "kept"),
    [
        (b'{"sampling":{},"experimental":{"x":"\\ud800"}}', {"experimental": {}, "sampling": {}}),
        (b'{"sampling":{},"x":' + b"[" * 5000 + b"]" * 5000 + b"}", {"experimental": {}}),
        (b'{"sampling":', {"experimental": {}}),
    ],
)
def test_capabilities_that_are_hard_to_read_trip_nobody(capabilities: bytes, kept: dict[str, Any]) -> None:
    """What one client declared is told to every new worker, as that of the client seen last."""
    declaring = Caller("s", "local", "/mcp", "prefixed", "2025-11-25", "http", capabilities)
    assert bridge.declared(declaring) == kept
    assert json.loads(bridge.capability_set(declaring)) == kept
