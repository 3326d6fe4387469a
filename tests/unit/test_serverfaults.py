"""What keeps a configured server from ever being started or reached is told by its member, never by its value."""

from typing import Any

import msgspec
import pytest

from coffer_common.resources import McpServerConfig
from coffer_common.serverfaults import faults

STDIO = {"transport": "stdio", "command": "npx"}
HTTP = {"transport": "http", "url": "https://host/mcp"}


def found(config: dict[str, Any]) -> list[str]:
    typed: Any = msgspec.convert(config, McpServerConfig)
    return faults(typed)


def test_what_can_be_tried_has_none() -> None:
    env = {"A": "b=c", "B.C": "", "TOKEN": "${ref}"}
    assert found({**STDIO, "args": ["", "a=b", "line\nline"], "env": env, "cwd": "~/x", "path": "/bin"}) == []
    assert found({**HTTP, "headers": {"X-Key": "${ref}"}}) == []


@pytest.mark.parametrize(
    ("member", "said"),
    [
        ({"command": "a\x00"}, "command: it holds a NUL"),
        ({"args": ["x", "\x00secret"]}, "argument 2: it holds a NUL"),
        ({"cwd": "/\x00secret"}, "cwd: it holds a NUL"),
        ({"path": "/\x00secret"}, "path: it holds a NUL"),
        ({"env": {"": "secret"}}, "a variable has no name"),
        ({"env": {"A=B": "secret"}}, "the name 'A=B' holds a '='"),
        ({"env": {"A\x00": "secret"}}, "NUL character, which no variable's name may"),
        ({"env": {"A": "secret\x00"}}, "the value of 'A' holds a NUL"),
    ],
)
def test_what_no_process_can_be_given(member: dict[str, Any], said: str) -> None:
    (fault,) = found({**STDIO, **member})
    assert said in fault
    assert "secret" not in fault


@pytest.mark.parametrize(
    ("member", "said"),
    [
        ({"url": "https://:9/mcp"}, "url: it names no host"),
        ({"headers": {"Bad Name": "secret"}}, "the header name 'Bad Name'"),
        ({"headers": {"X-Key": "secret\n"}}, "the value of the header X-Key"),
    ],
)
def test_what_http_does_not_allow(member: dict[str, Any], said: str) -> None:
    (fault,) = found({**HTTP, **member})
    assert said in fault
    assert "secret" not in fault
