"""What HTTP's statuses, headers and redirects mean towards an upstream."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

import pytest

from coffer_worker.core import http_rules as rules

MODERN = "2026-07-28"


def modern(**members: Any) -> bytes:
    """Params of a modern request."""
    return json.dumps({**members, "_meta": {"io.modelcontextprotocol/protocolVersion": MODERN}}).encode()


# ---- what is sent


def test_configured_headers_are_taken_lower_case() -> None:
    assert rules.configured({"Authorization": "Bearer a b", "X-Key": ""}) == {
        "authorization": "Bearer a b",
        "x-key": "",
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Bad Name", "secret-value"),
        ("", "secret-value"),
        ("Content-Type", "secret-value"),
        ("Host", "secret-value"),
        ("Mcp-Session-Id", "secret-value"),
        ("Mcp-Param-X", "secret-value"),
        ("X-Key", "secret-value\r\nX-More: 1"),
        ("X-Key", "secret-value\x7f"),
        ("X-Key", " secret-value"),
    ],
)
def test_a_header_that_cannot_be_sent_is_named_and_not_shown(name: str, value: str) -> None:
    with pytest.raises(ValueError) as caught:
        rules.configured({name: value})
    assert "secret-value" not in str(caught.value)
    assert name in str(caught.value)


def test_a_legacy_post_names_session_and_revision_after_the_handshake() -> None:
    """E07: each hop sends the revision agreed on there; E09: nothing of the modern era goes to a legacy upstream."""
    assert rules.posted("initialize", b"{}", "2025-06-18", "", {}) == {
        "accept": rules.ACCEPT,
        "content-type": rules.JSON,
    }
    found = rules.posted("tools/call", b'{"name":"t"}', "2025-06-18", "s", {"t": {("a",): "mcp-param-a"}})
    assert found["mcp-protocol-version"] == "2025-06-18"
    assert found["mcp-session-id"] == "s"
    assert "mcp-method" not in found
    assert "mcp-protocol-version" not in rules.posted("tools/call", b"{}", "", "", {})


def test_a_modern_post_repeats_its_body_in_headers() -> None:
    """E09: method, name and annotated arguments, in the base64 form where plain text would not survive; H11: both
    types are accepted."""
    mirrors = {"töl": {("region",): "mcp-param-region", ("n", "x"): "mcp-param-x", ("none",): "mcp-param-none"}}
    params = modern(name="töl", arguments={"region": "é", "n": {"x": 7}, "none": None})
    found = rules.posted("tools/call", params, "2025-11-25", "", mirrors)
    assert found == {
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
        "mcp-protocol-version": MODERN,
        "mcp-method": "tools/call",
        "mcp-name": "=?base64?dMO2bA==?=",
        "mcp-param-region": "=?base64?w6k=?=",
        "mcp-param-x": "7",
    }
    assert rules.posted("resources/read", modern(uri="memo://1"), "", "", {})["mcp-name"] == "memo://1"
    assert "mcp-name" not in rules.posted("tools/list", modern(), "", "", {})
    assert "mcp-name" not in rules.posted("tools/call", modern(name=7), "", "", {})


def test_only_a_modern_request_names_its_revision() -> None:
    assert rules.modern_revision(modern()) == MODERN
    assert rules.modern_revision(b"{}") is None
    assert rules.modern_revision(b'{"x":"io.modelcontextprotocol/protocolVersion"}') is None


# ---- what comes back


@pytest.mark.parametrize(
    ("status", "session", "code", "text", "meant"),
    [
        (200, False, None, "", "answer"),
        (202, True, None, "", "answer"),
        (307, True, None, "", "redirect"),
        (401, True, -32000, "session expired", "login"),
        (404, True, None, "", "lost session"),
        (404, True, -32601, "", "lost session"),
        (404, False, None, "", "refused"),
        (404, False, -32601, "", "answer"),
        (400, True, -32000, "Bad Request: No valid session ID provided", "lost session"),
        (400, True, -32600, "Session not found", "lost session"),
        (400, True, -32602, "bad arguments", "answer"),
        (400, False, -32000, "No valid session", "answer"),
        (400, True, -32020, "unknown session header", "answer"),
        (400, True, None, "nope", "refused"),
        (403, True, -32000, "", "forbidden"),
        (407, False, None, "", "forbidden"),
        (408, False, None, "", "busy"),
        (429, True, None, "", "busy"),
        (503, False, -32000, "", "busy"),
        (500, True, -32603, "", "broken"),
        (502, False, None, "", "broken"),
    ],
)
def test_statuses(status: int, session: bool, code: int | None, text: str, meant: str) -> None:
    assert rules.meaning(status, in_session=session, code=code, text=text) == meant


def test_what_is_a_verdict_on_the_era() -> None:
    """Only a 4xx (or an answer that is none) means the older era; refusals and failures mean nothing."""
    legacy = {
        status
        for status in (200, 202, 400, 401, 403, 404, 405, 407, 408, 422, 429, 500, 503)
        if rules.means_legacy(status)
    }
    assert legacy == {200, 202, 400, 404, 405, 422}
    assert not rules.means_legacy(0)
    assert rules.means_old_transport(405)
    assert not rules.means_old_transport(401)


def test_retry_after_is_seconds_or_a_date() -> None:
    now = 1_700_000_000.0
    assert rules.retry_after("7", now) == 7
    assert rules.retry_after("999999999999", now) == 3600
    date = format_datetime(datetime.fromtimestamp(now + 30, UTC), usegmt=True)
    assert rules.retry_after(date, now) == 30
    assert rules.retry_after(date, now + 60) == 0
    assert rules.retry_after("soon", now) is None
    assert rules.retry_after("\u00b2", now) is None, "a digit to Python, and no number"
    assert rules.retry_after(None, now) is None


def test_a_standing_stream_is_opened_again_ever_later() -> None:
    assert [rules.reopen_delay(n, None) for n in range(-1, 4)] == [1, 1, 1, 2, 4]
    assert rules.reopen_delay(99, None) == 60
    assert rules.reopen_delay(0, 250) == 0.25
    assert rules.reopen_delay(1, 5000) == 5


def test_media_types_and_excerpts() -> None:
    assert rules.media_type("Text/Event-Stream; charset=utf-8") == rules.EVENTS
    assert rules.media_type(None) == ""
    assert rules.excerpt(b"<p>\r\n a\x1b[31m  b\xff</p>") == "<p> a [31m b\ufffd</p>"
    assert len(rules.excerpt(b"x" * 5000)) == rules.EXCERPT_CHARS + 1


# ---- where to


def test_only_the_origin_of_a_url_is_shown() -> None:
    assert rules.origin("https://u:secret@Example.com:8443/s/token?key=secret") == "https://example.com:8443"
    assert rules.origin("http://[::1]:80/x") == "http://[::1]:80"
    assert rules.origin("http://h:99999/x") == "http://h"
    assert rules.origin("file:///etc/passwd") == "file://?"
    assert rules.target_origin("http://h/x", "/y") == "http://h"
    assert rules.target_origin("http://h/x", None) == "nowhere"
    assert rules.target_origin("http://h/x", "http://[bad") == "what is no URL"


def test_what_of_a_url_may_be_a_secret() -> None:
    assert rules.url_values("https://u:p@h/x?key=abc&empty=") == {"key": "abc", "password": "p", "auth": "u"}
    assert rules.url_values("https://h/") == {}
    assert rules.url_values("https://[h/?key=abc") == {}


def test_origins_are_compared_with_their_default_ports() -> None:
    assert rules.same_origin("http://h/x", "http://H:80/y")
    assert not rules.same_origin("http://h/", "https://h/")
    assert not rules.same_origin("http://h/", "http://h:81/")
    assert not rules.same_origin("http://h/", "http://h:99999/")


@pytest.mark.parametrize(
    ("status", "location", "method", "target"),
    [
        (307, "/other", "POST", "http://h/other"),
        (308, "http://h:80/mcp/", "POST", "http://h:80/mcp/"),
        (302, "/other", "POST", None),
        (302, "/other", "GET", "http://h/other"),
        (303, "/other", "GET", "http://h/other"),
        (304, "/other", "GET", None),
        (307, None, "POST", None),
        (307, "http://other/mcp", "POST", None),
        (307, "https://h/mcp", "POST", None),
        (307, "http://user:pw@h/mcp", "POST", None),
        (307, "file:///x", "POST", None),
    ],
)
def test_redirects(status: int, location: str | None, method: str, target: str | None) -> None:
    """K05: everything on a request was configured for one origin."""
    assert rules.redirected("http://h/mcp", status, location, method) == target


def test_a_redirect_that_is_no_url_leads_nowhere() -> None:
    assert rules.redirected("http://h/mcp", 307, "http://[bad", "POST") is None


def test_a_user_name_that_was_configured_stays() -> None:
    assert rules.redirected("http://u:p@h/mcp", 307, "/x", "POST") == "http://u:p@h/x"


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://localhost:1/", True),
        ("http://LOCALHOST./", True),
        ("http://a.localhost/", True),
        ("http://127.9.9.9/", True),
        ("http://[::1]/", True),
        ("http://10.0.0.1/", False),
        ("https://example.com/", False),
        ("http:///x", False),
    ],
)
def test_loopback(url: str, local: bool) -> None:
    """H16."""
    assert rules.is_loopback(url) is local
