"""Renewals in the worker, against a real authorization server; what is kept goes to a stand-in for the supervisor."""

from __future__ import annotations

import asyncio

import pytest

from coffer_worker.keeping import NotKept
from coffer_worker.upstream import oauth
from coffer_worker.upstream.http_client import Trouble
from tests.fixtures.oauth_server import OAuthServer, agreed
from tests.support.logins import CHALLENGE, Shelf, good, log_in, worker

# ---- who decides between two that renew


async def test_a_renewal_looks_first_whether_another_has_renewed(server: OAuthServer, shelf: Shelf) -> None:
    """K09: two incarnations of a worker hold one login; the second to need it takes what the first has stored, so that
    the refresh token is used once and the grant lives."""
    first, second = worker(shelf, server), worker(shelf, server)
    await log_in(server, first)
    old = await second.instead("", CHALLENGE)
    assert old == await first.token()
    server.expire()
    renewed = await first.instead(old, CHALLENGE)
    assert await second.instead(old, CHALLENGE) == renewed
    assert (server.refreshes, good(server, renewed)) == (1, True)


async def test_a_refusal_is_believed_once_nothing_newer_is_stored(server: OAuthServer, shelf: Shelf) -> None:
    """Between the look and the request another has renewed: the refused one takes that, and nobody must log in."""
    server.strict = False
    first, second = worker(shelf, server), worker(shelf, server)
    await log_in(server, first)
    old = await second.instead("", CHALLENGE)
    server.expire()

    async def meanwhile() -> None:
        await first.instead(old, CHALLENGE)

    server.interlude = meanwhile
    found = await second.instead(old, CHALLENGE)
    assert (found, good(server, found)) == (await first.token(), True)
    assert server.refreshes == 2


@pytest.mark.parametrize("relogged", [False, True])
async def test_a_renewal_undoes_no_logout_and_no_login(server: OAuthServer, shelf: Shelf, relogged: bool) -> None:
    """What was stored while the token endpoint was thinking stays, and is what counts."""
    bearer = worker(shelf, server)
    await log_in(server, bearer)
    old = await bearer.token()
    server.expire()

    async def meanwhile() -> None:
        shelf.text = ""
        if relogged:
            await log_in(server, worker(shelf, server))

    server.interlude = meanwhile
    found = await bearer.instead(old, CHALLENGE)
    assert (found != "", good(server, found)) == (relogged, relogged)
    assert (shelf.text != "") == relogged
    assert await bearer.token() == found


async def test_after_a_logout_nothing_is_renewed(server: OAuthServer, shelf: Shelf) -> None:
    """The worker that still holds the token neither renews it nor stores it again."""
    bearer = worker(shelf, server)
    await log_in(server, bearer)
    shelf.text = ""
    assert await bearer.instead(await bearer.token(), CHALLENGE) == ""
    assert (shelf.text, server.refreshes, await bearer.token()) == ("", 0, "")


async def test_what_could_not_be_stored_is_not_replaced_by_what_is_older(server: OAuthServer, shelf: Shelf) -> None:
    """The keychain was locked at a renewal: the next one uses the refresh token that is known, not the stored one,
    whose second use would end the login."""
    bearer = worker(shelf, server)
    await log_in(server, bearer)
    shelf.broken = "the keychain is locked"
    server.expire()
    token = await bearer.instead(await bearer.token(), CHALLENGE)
    assert good(server, token)
    assert "could not be stored: the keychain is locked" in bearer.why
    shelf.broken = ""
    server.expire()
    token = await bearer.instead(token, CHALLENGE)
    assert (good(server, token), bearer.why, server.refreshes) == (True, "", 2)
    assert token in shelf.text


async def test_a_store_that_cannot_be_read_is_told_and_asked_again(server: OAuthServer, shelf: Shelf) -> None:
    await log_in(server, worker(shelf, server))
    bearer = worker(shelf, server)
    shelf.broken = "the keychain is locked"
    assert await bearer.instead("", CHALLENGE) == ""
    assert "cannot be read: the keychain is locked" in bearer.why
    shelf.broken = ""
    found = await asyncio.gather(bearer.instead("", CHALLENGE), bearer.instead("", CHALLENGE))
    assert good(server, found[0])
    assert found[0] == found[1]


async def test_a_login_that_cannot_be_stored_is_told_and_used(server: OAuthServer, shelf: Shelf) -> None:
    bearer = worker(shelf, server)
    await bearer.instead("", CHALLENGE)

    async def browser(url: str) -> dict[str, str]:
        shelf.broken = "the keychain is locked"
        return await agreed(url)

    with pytest.raises(NotKept, match="locked"):
        await log_in(server, bearer, browser)
    assert good(server, await bearer.token())


# ---- what the token endpoint says


async def test_a_token_is_renewed_before_it_ends(server: OAuthServer, shelf: Shelf) -> None:
    """Where its life is known, no request is spent on finding out that it is over; all that ask share one renewal."""
    server.lifetime = 0
    bearer = worker(shelf, server)
    old = (await log_in(server, bearer)).access
    server.lifetime = 3600
    found = await asyncio.gather(*(bearer.token() for _ in range(5)))
    assert (len(set(found)), server.refreshes) == (1, 1)
    assert old not in found
    assert found[0] in shelf.text  # stored before it is used


async def test_a_trouble_that_passes_keeps_the_login_and_is_not_asked_about_at_once(
    server: OAuthServer, shelf: Shelf
) -> None:
    bearer = worker(shelf, server)
    old = (await log_in(server, bearer)).access
    server.expire()
    server.token_status = 503
    for _ in range(2):
        with pytest.raises(Trouble, match=r"HTTP 503.*The login is kept") as trouble:
            await bearer.instead(old, CHALLENGE)
        assert trouble.value.unsent
    assert server.refreshes == 1
    assert "rt-" in shelf.text


async def test_a_silent_authorization_server_is_not_waited_for(
    server: OAuthServer, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oauth, "_RENEW_SECONDS", 0.2)
    bearer = worker(shelf, server)
    old = (await log_in(server, bearer)).access
    server.held = asyncio.Event()
    with pytest.raises(Trouble, match=r"did not answer within 0\.2 s"):
        await bearer.instead(old, CHALLENGE)
    server.held.set()


async def test_an_authorization_server_that_is_away_keeps_the_login(server: OAuthServer, shelf: Shelf) -> None:
    bearer = worker(shelf, server)
    old = (await log_in(server, bearer)).access
    assert bearer.grant is not None
    shelf.text = shelf.text.replace(f"{server.base}/token", "http://127.0.0.1:1/token")
    with pytest.raises(Trouble, match="refused the connection"):
        await bearer.instead(old, CHALLENGE)


async def test_a_login_that_cannot_be_renewed_has_run_out(server: OAuthServer, shelf: Shelf) -> None:
    server.renewable = False
    bearer = worker(shelf, server)
    old = (await log_in(server, bearer)).access
    server.expire()
    assert await bearer.instead(old, CHALLENGE) == ""
    assert "cannot be renewed" in bearer.why
    assert (server.refreshes, old in shelf.text) == (0, False)


async def test_a_registration_that_is_forgotten_is_made_anew(server: OAuthServer, shelf: Shelf) -> None:
    """The authorization server lost its clients: the next login registers again, instead of failing for ever."""
    bearer = worker(shelf, server)
    found = await log_in(server, bearer)
    server.expire()
    server.forgotten = {found.client_id}
    assert await bearer.instead(found.access, CHALLENGE) == ""
    assert "does not know Coffer any more" in bearer.why
    again = await log_in(server, bearer)
    assert (server.registrations, again.client_id != found.client_id) == (2, True)
    assert bearer.why == ""


async def test_a_revoked_login_keeps_its_registration(server: OAuthServer, shelf: Shelf) -> None:
    bearer = worker(shelf, server)
    found = await log_in(server, bearer)
    server.revoke()
    shelf.broken = ""
    assert await bearer.instead(found.access, CHALLENGE) == ""
    assert "revoked" in bearer.why
    again = await log_in(server, bearer)
    assert (server.registrations, again.client_id) == (1, found.client_id)


@pytest.mark.parametrize("relogged", [False, True])
async def test_a_refused_login_is_forgotten_but_no_newer_one(server: OAuthServer, shelf: Shelf, relogged: bool) -> None:
    """While the refusal was on its way a person logged in, or out: that stays."""
    bearer, other = worker(shelf, server), Shelf()
    found = await log_in(server, bearer)
    server.revoke()
    if relogged:
        await log_in(server, worker(other, server))

    def meanwhile() -> None:
        shelf.text = other.text

    shelf.interlude = meanwhile
    token = await bearer.instead(found.access, CHALLENGE)
    assert (token != "", good(server, token)) == (relogged, relogged)
    assert shelf.text == other.text


async def test_a_refused_login_is_over_where_nothing_can_be_stored(server: OAuthServer, shelf: Shelf) -> None:
    """The keychain went away meanwhile: this worker does not ask again and again."""
    bearer = worker(shelf, server)
    found = await log_in(server, bearer)
    server.revoke()
    shelf.interlude = lambda: setattr(shelf, "broken", "the keychain is locked")
    assert await bearer.instead(found.access, CHALLENGE) == ""
    assert await bearer.token() == ""
    assert server.refreshes == 1
