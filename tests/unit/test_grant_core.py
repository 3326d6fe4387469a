"""What a login brought: its stored form, its renewal, and what a token endpoint's answers mean."""

from __future__ import annotations

import base64
import json

import msgspec
import pytest

from coffer_worker.core import grant as grants
from coffer_worker.core.grant import Grant, NotRenewed

URL = "https://mcp.example/mcp"
GRANT = Grant(
    url=URL, token_endpoint="https://as.example/token", client_id="c:1", access="at", refresh="rt", expires_at=100.0
)


def answer(**members: object) -> bytes:
    return json.dumps({"access_token": "at2", "token_type": "Bearer", **members}).encode()


def test_it_is_read_back_for_its_own_address_alone() -> None:
    """A token for one address is never sent to another, as after an update of the server's URL."""
    stored = grants.dump(GRANT)
    assert grants.load(stored, URL) == GRANT
    assert grants.load(stored, "https://evil.example/mcp") is None
    for broken in ("", "{", "{}", "[]"):
        assert grants.load(broken, URL) is None


def test_its_secrets_and_what_is_left_without_them() -> None:
    full = msgspec.structs.replace(GRANT, client_secret="cs")
    assert full.secrets() == ["at", "rt", "cs"]
    left = grants.without_tokens(full)
    assert (left.secrets(), left.client_id, left.expires_at) == (["cs"], "c:1", None)


def test_when_it_has_run_out() -> None:
    assert grants.expiry(None, 50.0) is None
    assert grants.expiry(10.0, 50.0) == 59.0  # a tenth early
    assert grants.expiry(3600.0, 0.0) == 3590.0  # at most ten seconds
    assert not grants.stale(GRANT, 99.0)
    assert grants.stale(GRANT, 100.0)
    assert not grants.stale(msgspec.structs.replace(GRANT, expires_at=None), 1e12)


def test_the_request_that_renews_it() -> None:
    """The client shows who it is as it was registered; the token is asked for the same server."""
    headers, form = grants.renewal(GRANT)
    assert form == {"grant_type": "refresh_token", "refresh_token": "rt", "client_id": "c:1"}
    assert "authorization" not in headers
    secret = msgspec.structs.replace(GRANT, client_secret="s/1", resource=URL)
    _, form = grants.renewal(secret)
    assert (form["client_secret"], form["resource"]) == ("s/1", URL)
    headers, form = grants.renewal(msgspec.structs.replace(secret, auth_method="client_secret_basic"))
    assert headers["authorization"] == "Basic " + base64.b64encode(b"c%3A1:s%2F1").decode()
    assert "client_secret" not in form


def test_a_renewal_keeps_what_the_answer_leaves_out() -> None:
    found = grants.renewed(GRANT, 200, answer(), 1000.0)
    assert isinstance(found, Grant)
    assert (found.access, found.refresh, found.expires_at) == ("at2", "rt", None)
    found = grants.renewed(GRANT, 200, answer(refresh_token="rt2", expires_in="100", scope="a b"), 1000.0)
    assert isinstance(found, Grant)
    assert (found.refresh, found.expires_at, found.scope) == ("rt2", 1090.0, "a b")


@pytest.mark.parametrize("body", [b"", b"<html>", b"{}", b'{"access_token":"x","expires_in":"soon"}'])
def test_no_token_in_a_200_may_pass(body: bytes) -> None:
    found = grants.renewed(GRANT, 200, body, 0.0)
    assert isinstance(found, NotRenewed)
    assert found.kind == "passing"


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        (400, b'{"error":"invalid_grant"}', "refused", "(invalid_grant)"),
        (401, b'{"error":"invalid_client"}', "refused", "(invalid_client)"),
        (400, b'{"error":"temporarily_unavailable"}', "passing", "HTTP 400"),
        (400, b"nothing", "passing", "HTTP 400"),
        (400, b"{}", "passing", "HTTP 400"),
        (429, b'{"error":"slow_down"}', "passing", "HTTP 429"),
        (503, b'{"error":"invalid_grant"}', "passing", "HTTP 503"),
        (400, b'{"error":"<b>rt</b>"}', "refused", "ended the login"),
    ],
)
def test_refused_for_good_or_for_now(status: int, body: bytes, kind: str, words: str) -> None:
    """Revoked and transient are told apart; what the server wrote is shown only where it is a plain code."""
    found = grants.renewed(GRANT, status, body, 0.0)
    assert isinstance(found, NotRenewed)
    assert (found.kind, words in found.text) == (kind, True)
    assert "<" not in found.text
