"""What a login brought: its stored form, its renewal, and what a token endpoint's answers mean."""

from __future__ import annotations

import base64
import json

import msgspec
import pytest

from coffer_common.resources import OAuthClient
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
    known = msgspec.structs.replace(full, client="{}")
    assert grants.without_tokens(known).client == "{}"
    assert grants.without_tokens(known, registered=False).client == ""


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
        (401, b'{"error":"invalid_client"}', "unknown", "does not know Coffer any more (invalid_client)"),
        (400, b'{"error":"temporarily_unavailable"}', "passing", "HTTP 400"),
        (400, b"nothing", "passing", "HTTP 400"),
        (400, b"{}", "passing", "HTTP 400"),
        (429, b'{"error":"slow_down"}', "passing", "HTTP 429"),
        (503, b'{"error":"invalid_grant"}', "passing", "HTTP 503"),
        (400, b'{"error":"<b>rt</b>"}', "refused", "no more: it was revoked"),
    ],
)
def test_refused_for_good_or_for_now(status: int, body: bytes, kind: str, words: str) -> None:
    """Revoked and transient are told apart; what the server wrote is shown only where it is a plain code."""
    found = grants.renewed(GRANT, status, body, 0.0)
    assert isinstance(found, NotRenewed)
    assert (found.kind, words in found.text) == (kind, True)
    assert "<" not in found.text


def test_a_client_that_a_person_registered_can_be_mended() -> None:
    """Its secret may have been changed at the provider: the login is kept until the new one is stored."""
    preset = msgspec.structs.replace(GRANT, preset=True)
    found = grants.renewed(preset, 401, b'{"error":"invalid_client"}', 0.0)
    assert isinstance(found, NotRenewed)
    assert (found.kind, "client id and secret" in found.text) == ("passing", True)


def test_a_login_by_another_client_id_is_none() -> None:
    """The secret is not stored a second time, and is always the one that is configured now."""
    mine = OAuthClient(client_id="mine", client_secret="new")
    preset = msgspec.structs.replace(GRANT, client_id="mine", client_secret="old", preset=True, issuer="https://as")
    stored = grants.dump(preset)
    assert "old" not in stored
    found = grants.load(stored, URL, mine)
    assert found is not None
    assert found.client_secret == "new"
    assert grants.load(stored, URL) is None
    assert grants.load(stored, URL, OAuthClient(client_id="other")) is None
    assert grants.load(stored, URL, OAuthClient(client_id="mine", issuer="https://as/")) is not None
    assert grants.load(stored, URL, OAuthClient(client_id="mine", issuer="https://elsewhere")) is None
    assert grants.load(grants.dump(GRANT), URL, mine) is None


@pytest.mark.parametrize(
    ("supported", "method"),
    [
        (None, "client_secret_basic"),
        ([], "client_secret_basic"),
        (["client_secret_post"], "client_secret_post"),
        (["client_secret_post", "client_secret_basic"], "client_secret_basic"),
        (["private_key_jwt"], "client_secret_basic"),
    ],
)
def test_how_a_secret_is_shown(supported: list[str] | None, method: str) -> None:
    assert grants.secret_method(supported) == method


@pytest.mark.parametrize(
    ("challenge", "more"),
    [
        ('Bearer error="insufficient_scope", scope="a b c"', True),
        ("Bearer error=insufficient_scope, scope=c", True),
        ('Bearer error="insufficient_scope", scope="b a"', False),
        ('Bearer error="insufficient_scope"', True),
        ('Bearer error="insufficient_scope", x-scope="c"', True),
        ('Bearer error="invalid_token", scope="c"', False),
        ("", False),
    ],
)
def test_whether_another_login_brings_more(challenge: str, more: bool) -> None:
    """A login that has what is asked for is not asked for again: that would go on for ever."""
    assert grants.beyond(msgspec.structs.replace(GRANT, scope="a b"), challenge) is more
