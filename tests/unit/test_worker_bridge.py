"""Decisions of era: what is declared, who is served how, what an upstream's asks get."""

import json

import pytest

from coffer_common.frames import Caller
from coffer_worker.core import bridge


def by(revision: str) -> Caller:
    return Caller("s", "local", "/mcp", "prefixed", revision, "http")


def test_no_asks_are_declared() -> None:
    """Until asks are carried, no client capability is declared that could not be served."""
    assert bridge.declared(by("2025-11-25")) == {"experimental": {}}
    assert bridge.capability_set(None) == bridge.capability_set(by("2026-07-28"))


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
