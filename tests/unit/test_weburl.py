"""Which addresses a browser may be sent to."""

from __future__ import annotations

import pytest

from coffer_common.weburl import MOST_CHARS, browsable, fault


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://as.example/authorize?a=b&state=x%20y", "as.example"),
        ("http://127.0.0.1:8000/a", "127.0.0.1:8000"),
        ("http://[::1]:80/a", "[::1]:80"),
        ("https://AS.example/~me/*!", "as.example"),
    ],
)
def test_web_addresses_show_their_host(url: str, host: str) -> None:
    assert browsable(url) == host


@pytest.mark.parametrize(
    "url",
    [
        "",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "http://x/$(touch p)",
        'https://h/";id;"',
        "https://h/`id`",
        "https://h/a b",
        "https://h/\x1b[2J",
        "https://h/\u202e",
        "https:///nobody",
        "https://bank.example@evil.example/",
        "https://h:port/",
        "https://h[/",
        "ftp://h/",
        "https://h/" + "a" * MOST_CHARS,
    ],
)
def test_all_else_is_refused(url: str) -> None:
    """K13: hostile authorization addresses: other schemes, shell words, control characters, forged hosts."""
    assert browsable(url) is None


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("https://h/mcp", ""),
        ("http://[::1]:8000/mcp", ""),
        ("http://${host}:${port}/mcp", ""),
        ("https://h/${secret}?a=${b}", ""),
        ("http://[::1", "its host is malformed"),
        ("http:///mcp", "it names no host"),
        ("http://:80/mcp", "it names no host"),
        ("http://h:99999/", "its port is no number from 1 to 65535"),
        ("http://h:0/", "its port is no number from 1 to 65535"),
        ("http://h:abc/", "its port is no number from 1 to 65535"),
    ],
)
def test_what_no_server_can_be_reached_at_is_told(url: str, why: str) -> None:
    assert fault(url) == why
