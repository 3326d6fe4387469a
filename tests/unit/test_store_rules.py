"""The rules a resource must meet before anything is written."""

from typing import Any

import pytest

from coffer_common.resources import ClientConfig, CredentialConfig, GroupConfig, HttpServer, StdioServer
from coffer_supervisor.store.errors import Invalid
from coffer_supervisor.store.resources import changed_fields, checked_config

STDIO = {"transport": "stdio", "command": "npx"}


@pytest.mark.parametrize(
    ("kind", "config", "expected"),
    [
        ("mcp_server", STDIO, StdioServer(command="npx")),
        ("mcp_server", StdioServer(command="npx", args=("-y",)), StdioServer(command="npx", args=("-y",))),
        ("mcp_server", {"transport": "http", "url": "https://x.test/mcp"}, HttpServer(url="https://x.test/mcp")),
        (
            "credential",
            {"backend": "keychain", "updated_at": "2026-01-01T00:00:00Z"},
            CredentialConfig(backend="keychain", updated_at="2026-01-01T00:00:00Z"),
        ),
        ("client", {"token_sha256": "0" * 64}, ClientConfig(token_sha256="0" * 64)),
        ("group", {"servers": ["files"]}, GroupConfig(servers=("files",))),
    ],
)
def test_every_kind_has_its_schema(kind: str, config: Any, expected: Any) -> None:
    """Four kinds are registered, each with a schema of its own; a Struct and its JSON form are taken alike."""
    assert checked_config(kind, "files", config) == expected


@pytest.mark.parametrize(
    ("kind", "name", "config", "code", "told"),
    [
        ("planet", "files", STDIO, "unknown_kind", "planet"),
        ("mcp_server", "Files", STDIO, "invalid_name", "Files"),
        ("mcp_server", "a__b", STDIO, "invalid_name", "a__b"),
        ("mcp_server", "coffer", STDIO, "invalid_name", "coffer"),
        ("mcp_server", "files\n", STDIO, "invalid_name", "files"),
        ("mcp_server", "files", {"transport": "stdio"}, "invalid_config", "command"),
        ("mcp_server", "files", {"transport": "pigeon"}, "invalid_config", "pigeon"),
        ("mcp_server", "files", {**STDIO, "colour": "red"}, "invalid_config", "colour"),
        ("mcp_server", "files", {**STDIO, "limits": {"in_flight": 0}}, "invalid_config", "limits.in_flight"),
        *(
            ("mcp_server", "files", {**STDIO, "limits": {"idle_seconds": bad}}, "invalid_config", "limits.idle_seconds")
            for bad in (0, -1, "x")
        ),
        ("mcp_server", "files", StdioServer(command=""), "invalid_config", "command"),
        ("mcp_server", "files", {**STDIO, "env": {"A": object()}}, "invalid_config", "object"),
        ("client", "laptop", {"token_sha256": "short"}, "invalid_config", "token_sha256"),
    ],
)
def test_what_breaks_a_rule_is_refused_by_name(kind: str, name: str, config: Any, code: str, told: str) -> None:
    """Invalid configuration meets a clear error that names the place. L11: limits too."""
    with pytest.raises(Invalid) as raised:
        checked_config(kind, name, config)
    assert raised.value.code == code
    assert told in raised.value.message
    assert raised.value.hint


def test_a_change_is_told_by_the_names_of_its_fields() -> None:
    """Audit details carry names, never values."""
    before = {"command": "a", "args": ["x"], "cwd": "/"}
    after = {"command": "b", "args": ["x"], "env": {}}
    assert changed_fields(before, after) == ["command", "cwd", "env"]
    assert changed_fields(before, before) == []
