"""Names, origins, tokens and paths at the endpoint's door, as pure functions."""

import hashlib

import pytest

from coffer_supervisor.core.calls import Principal, Scope
from coffer_supervisor.endpoint.http import accepts
from coffer_supervisor.endpoint.security import (
    DAEMON,
    Authenticator,
    host_allowed,
    masked,
    may_enter,
    origin_allowed,
    presented,
    scope_of,
    split_key,
)


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1:8000", True),
        ("localhost:8000", True),
        ("[::1]:8000", True),
        (None, False),
        ("", False),
        ("localhost", False),
        ("localhost:8001", False),
        ("localhost:08000", False),
        ("localhost.:8000", False),
        ("127.0.0.1.evil.example:8000", False),
        ("::1:8000", False),
        ("user@localhost:8000", False),
    ],
)
def test_hosts(host: str | None, allowed: bool) -> None:
    """K11: loopback's own names with our own port, and nothing that only looks like them."""
    assert host_allowed(host, 8000) is allowed


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        (None, True),
        ("http://localhost", True),
        ("https://127.0.0.1:443", True),
        ("HTTP://LOCALHOST:1", True),
        ("", False),
        ("null", False),
        ("file://", False),
        ("http://localhost/", False),
        ("http://localhost:80@evil.example", False),
        ("http://localhost\n", False),
        ("http://127.0.0.1.evil.example", False),
    ],
)
def test_origins(origin: str | None, allowed: bool) -> None:
    """K11: pages of this machine only."""
    assert origin_allowed(origin) is allowed


def test_tokens() -> None:
    """K12: the daemon's token in a header, a client's in a header or in the path; rotation refuses the old one."""
    client = Principal("client:a", "a", frozenset({"s"}))
    auth = Authenticator("first", lambda: {hashlib.sha256(b"theirs").hexdigest(): client})
    assert auth.principal("first") is DAEMON
    assert auth.principal("first", in_path=True) is None
    assert auth.principal("theirs") is auth.principal("theirs", in_path=True) is client
    for wrong in ("", "First", "first ", hashlib.sha256(b"first").hexdigest(), "\udcff"):
        assert auth.principal(wrong) is None
    auth.set_daemon_token("second")
    assert auth.principal("first") is None
    assert auth.principal("second") is DAEMON
    assert Authenticator("x").principal("y") is None


def test_where_a_token_may_stand() -> None:
    """`Authorization: Bearer` or `X-Coffer-Token`; in a path it is masked wherever the path is shown."""
    assert presented({"Authorization": "Bearer t"}) == presented({"Authorization": "BEARER  t "}) == "t"
    assert presented({"X-Coffer-Token": "t", "Authorization": "Bearer u"}) == "t"
    assert presented({"Authorization": "Basic t"}) == presented({}) == ""
    assert split_key("/key/t/servers/s/mcp") == ("t", "/servers/s/mcp")
    assert split_key("/key/t") == ("", "/key/t")
    assert (masked("/key/t/mcp"), masked("/mcp")) == ("/key/***/mcp", "/mcp")


def test_paths_and_scopes() -> None:
    """Each path names one endpoint or none; a principal's scope holds the ones it may enter."""
    assert scope_of("/mcp") == Scope("/mcp")
    assert scope_of("/servers/s/mcp") == Scope("/servers/s/mcp", server="s")
    assert scope_of("/groups/g/mcp") == Scope("/groups/g/mcp", group="g")
    for nowhere in (
        "/",
        "/mcp/",
        "/servers/mcp",
        "/servers/A/mcp",
        "/servers/a__b/mcp",
        "/servers/a/b/mcp",
        "/x/a/mcp",
    ):
        assert scope_of(nowhere) is None
    server, group = Scope("/servers/s/mcp", server="s"), Scope("/groups/g/mcp", group="g")
    narrow = Principal("client:a", "a", frozenset({"s"}), frozenset())
    assert may_enter(narrow, server)
    assert may_enter(narrow, Scope("/mcp"))
    assert not may_enter(narrow, group)
    assert not may_enter(narrow, Scope("/servers/t/mcp", server="t"))
    assert may_enter(DAEMON, server)
    assert may_enter(DAEMON, group)


@pytest.mark.parametrize(
    ("accept", "forms"),
    [
        (None, (True, True)),
        ("", (True, True)),
        ("*/*", (True, True)),
        ("application/json, text/event-stream", (True, True)),
        ("text/event-stream;q=0.9,application/json", (True, True)),
        ("APPLICATION/JSON", (True, False)),
        ("application/*;q=0.5", (True, False)),
        ("text/*", (False, True)),
        ("application/json; q = 0, text/event-stream", (False, True)),
        ("text/html", (False, False)),
    ],
)
def test_accept(accept: str | None, forms: tuple[bool, bool]) -> None:
    """H11: what an Accept header leaves possible."""
    assert accepts(accept) == forms
