"""Logins in the worker, against a real authorization server: who Coffer is there, what it asks for, what it refuses."""

from __future__ import annotations

import pytest

from coffer_common.resources import OAuthClient
from coffer_worker.upstream.http_client import Trouble
from coffer_worker.upstream.oauth_login import LoginFailed
from tests.fixtures.oauth_server import OAuthServer
from tests.support.logins import CHALLENGE, REDIRECT, Shelf, good, log_in, worker

# ---- a client that a person registered


@pytest.mark.parametrize(
    ("methods", "secret", "shown"),
    [
        (None, "s/1 ?", "basic"),
        (["client_secret_post"], "s/1 ?", "post"),
        (["client_secret_basic", "client_secret_post"], "s/1 ?", "basic"),
        (["none"], "", "none"),
    ],
)
async def test_a_client_id_that_was_given_is_used_and_nobody_registers(
    server: OAuthServer, shelf: Shelf, methods: list[str] | None, secret: str, shown: str
) -> None:
    """Login and renewal show the secret as the authorization server wants it; it is stored nowhere else."""
    server.registers, server.registered = False, {"by-hand": secret}
    if methods is not None:
        server.metadata = {"token_endpoint_auth_methods_supported": methods}
    client = OAuthClient(client_id="by-hand", client_secret=secret)
    bearer = worker(shelf, server, client)
    found = await log_in(server, bearer)
    server.expire()
    assert good(server, await bearer.instead(found.access, CHALLENGE))
    assert server.shown == [shown, shown]
    assert server.registrations == 0
    assert not secret or secret not in shelf.text
    # The next worker finds it; one that is configured otherwise does not.
    assert good(server, await worker(shelf, server, client).instead("", CHALLENGE))
    assert await worker(shelf, server, OAuthClient(client_id="another")).instead("", CHALLENGE) == ""
    assert await worker(shelf, server).instead("", CHALLENGE) == ""


async def test_a_changed_secret_needs_no_new_login(server: OAuthServer, shelf: Shelf) -> None:
    """It was renewed at the provider: until the new one is stored, calls say so and the login is kept."""
    server.registered = {"by-hand": "old"}
    bearer = worker(shelf, server, OAuthClient(client_id="by-hand", client_secret="old"))
    found = await log_in(server, bearer)
    server.registered = {"by-hand": "new"}
    server.expire()
    with pytest.raises(Trouble, match="does not take its client id and secret"):
        await bearer.instead(found.access, CHALLENGE)
    successor = worker(shelf, server, OAuthClient(client_id="by-hand", client_secret="new"))
    stale = await successor.instead("", CHALLENGE)
    assert good(server, await successor.instead(stale, CHALLENGE))


async def test_a_wrong_secret_fails_the_login(server: OAuthServer, shelf: Shelf) -> None:
    server.registered = {"by-hand": "right"}
    with pytest.raises(LoginFailed, match="invalid_client"):
        await log_in(server, worker(shelf, server, OAuthClient(client_id="by-hand", client_secret="wrong")))
    assert shelf.text == ""


@pytest.mark.parametrize("configured", [False, True])
async def test_a_client_id_is_shown_to_its_own_authorization_server_alone(
    server: OAuthServer, shelf: Shelf, configured: bool
) -> None:
    """The server names another authorization server than before, or than was configured: neither id nor secret goes
    there."""
    server.registered = {"by-hand": "secret"}
    issuer = server.base if configured else ""
    bearer = worker(shelf, server, OAuthClient(client_id="by-hand", client_secret="secret", issuer=issuer))
    if not configured:
        await log_in(server, bearer)  # which fixes it
    async with OAuthServer() as other:
        server.authorization_server = other.base
        with pytest.raises(LoginFailed, match="not the authorization server that its client id is for"):
            await log_in(server, bearer)
        assert (other.authorized, other.forms, other.registrations) == ([], [], 0)


async def test_where_nobody_can_register_the_way_out_is_named(server: OAuthServer, shelf: Shelf) -> None:
    server.registers = False
    with pytest.raises(LoginFailed) as failed:
        await log_in(server, worker(shelf, server))
    assert f"with the redirect URL {REDIRECT}" in str(failed.value)
    assert "coffer mcp update NAME --oauth-client-id ID" in str(failed.value)


@pytest.mark.parametrize("change", ["described", "named"])
async def test_a_secret_is_not_sent_to_an_address_that_was_guessed(
    server: OAuthServer, shelf: Shelf, change: str
) -> None:
    """The authorization server cannot be asked where its endpoints are, or the upstream names none: where the provider
    would guess at addresses of the upstream's own, the login ends."""
    server.registered = {"by-hand": "secret"}
    issuer = "" if change == "described" else "https://as.example"
    client = OAuthClient(client_id="by-hand", client_secret="secret", issuer=issuer)
    server.missing = {change}
    with pytest.raises(LoginFailed, match=r"does not say where|not the authorization server"):
        await log_in(server, worker(shelf, server, client))
    assert (server.authorized, server.forms, server.registrations) == ([], [], 0)


# ---- scopes


async def test_scopes_that_were_given_come_before_the_servers(server: OAuthServer, shelf: Shelf) -> None:
    server.metadata = {"scopes_supported": ["everything"]}
    await log_in(server, worker(shelf, server, OAuthClient(scope="read offline")))
    assert server.authorized[-1]["scope"] == "read offline"
    await log_in(server, worker(Shelf(), server))
    assert server.authorized[-1]["scope"] == "everything"


async def test_a_login_is_widened_by_what_was_lacking(server: OAuthServer, shelf: Shelf) -> None:
    """After a 403 the new login asks for the old scopes and the new; what it has then is not asked for again."""
    bearer = worker(shelf, server, OAuthClient(scope="read"))
    await log_in(server, bearer)
    challenge = 'Bearer error="insufficient_scope", scope="write"'
    assert bearer.wants_more(challenge)
    found = await log_in(server, bearer)
    assert (server.authorized[-1]["scope"], found.scope) == ("read write", "read write")
    assert not bearer.wants_more(challenge)


# ---- what a login may meet


async def test_a_server_that_wants_no_login_says_so(server: OAuthServer, shelf: Shelf) -> None:
    """Nothing was refused before, so the upstream is asked, and answers."""
    bearer = worker(shelf, server)
    await log_in(server, bearer)
    server.open_to_all = True
    bearer.challenge = None
    with pytest.raises(LoginFailed, match=r"asks for no login \(it answered HTTP 200\)"):
        await log_in(server, bearer)


@pytest.mark.parametrize("url", ["http://example.org/client.json", "https://example.org"])
async def test_a_description_that_cannot_be_published_there_is_told(
    server: OAuthServer, shelf: Shelf, url: str
) -> None:
    with pytest.raises(LoginFailed, match="COFFER_CLIENT_METADATA_URL names no HTTPS address"):
        await log_in(server, worker(shelf, server), published=url)


async def test_a_published_description_takes_the_place_of_a_registration(server: OAuthServer, shelf: Shelf) -> None:
    """Where the authorization server looks such documents up; it is asked under the same id at a renewal."""
    server.metadata = {"client_id_metadata_document_supported": True}
    bearer = worker(shelf, server)
    found = await log_in(server, bearer, published="https://example.org/client.json")
    server.expire()
    assert good(server, await bearer.instead(found.access, CHALLENGE))
    assert {form["client_id"] for form in server.forms} == {"https://example.org/client.json"}
    assert server.registrations == 0


async def test_an_authorization_server_without_tls_elsewhere_is_not_used(server: OAuthServer, shelf: Shelf) -> None:
    server.authorization_server = "http://as.example"
    with pytest.raises(LoginFailed, match="it has no TLS"):
        await log_in(server, worker(shelf, server))


async def test_nonsense_in_the_place_of_tokens_fails_the_login(server: OAuthServer, shelf: Shelf) -> None:
    server.metadata = {"token_endpoint": f"{server.base}/.well-known/oauth-authorization-server"}
    with pytest.raises(LoginFailed, match=r"405|answer cannot be used"):
        await log_in(server, worker(shelf, server))


async def test_a_browser_is_sent_to_web_addresses_alone(server: OAuthServer, shelf: Shelf) -> None:
    """K13: what a shell could take for something else is refused before it is shown to anybody."""
    server.metadata = {"authorization_endpoint": f"{server.base}/$(id)"}
    with pytest.raises(LoginFailed, match="no web address"):
        await log_in(server, worker(shelf, server))
    assert server.authorized == []


async def test_a_login_without_pkce_is_not_begun(server: OAuthServer, shelf: Shelf) -> None:
    """MCP, Authorization: an authorization server that takes no S256 challenge is refused; a silent one is tried."""
    server.metadata = {"code_challenge_methods_supported": ["plain"]}
    with pytest.raises(LoginFailed, match="PKCE with S256"):
        await log_in(server, worker(shelf, server))
    assert server.authorized == []
    server.metadata = {"code_challenge_methods_supported": None}
    assert good(server, (await log_in(server, worker(shelf, server))).access)


async def test_a_refusal_of_the_person_is_told(server: OAuthServer, shelf: Shelf) -> None:
    server.denied = True
    with pytest.raises(LoginFailed, match="did not allow it: access_denied"):
        await log_in(server, worker(shelf, server))
