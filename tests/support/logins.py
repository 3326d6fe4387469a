"""A worker's logins without the worker: its bearer, a stand-in for where the supervisor keeps what a login brings, and
a person with a browser."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

from coffer_common import frames
from coffer_common.resources import OAuthClient
from coffer_worker.core import grant as grants
from coffer_worker.core.grant import Grant
from coffer_worker.keeping import Keeping
from coffer_worker.upstream import oauth_login
from coffer_worker.upstream.oauth import Bearer
from tests.fixtures.oauth_server import OAuthServer, agreed

REDIRECT = "http://127.0.0.1:8000/oauth/callback"
CHALLENGE = "Bearer"


class Shelf:
    """One stored text, and a way to it for each worker. `broken`: why it cannot be used; `interlude`: what happens
    once, before the next text is stored."""

    def __init__(self) -> None:
        self.text, self.broken = "", ""
        self.interlude: Callable[[], None] | None = None


class _Way:
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self.keeping: Keeping | None = None

    def send(self, frame: Any, payload: bytes = b"") -> None:
        """What the supervisor answers."""
        shelf, value, changed = self._shelf, "", False
        if isinstance(frame, frames.StoreSecret) and shelf.interlude is not None:
            interlude, shelf.interlude = shelf.interlude, None
            interlude()
        if isinstance(frame, frames.StoreSecret) and not shelf.broken:
            changed = frame.over not in ("", frames.secret_digest(shelf.text))
            shelf.text = shelf.text if changed else frame.value
        elif not shelf.broken:
            value = shelf.text
        answer = frames.Secret(frame.corr, value, shelf.broken, changed)
        assert self.keeping is not None
        asyncio.get_running_loop().call_soon(self.keeping.answered, answer)


def worker(shelf: Shelf, server: OAuthServer, client: OAuthClient = grants.NOBODY) -> Bearer:
    """What one incarnation of a worker holds."""
    way = _Way(shelf)
    way.keeping = Keeping(way, itertools.count(1).__next__)
    return Bearer(server.url, way.keeping, lambda _: None, client)


async def log_in(
    server: OAuthServer,
    bearer: Bearer,
    browser: Callable[[str], Awaitable[dict[str, str]]] = agreed,
    published: str = "",
) -> Grant:
    """A person's login, with everything between worker and browser taken as granted."""
    visits: list[str] = []

    async def brought() -> frames.LoginCode:
        found = await browser(visits[0])
        return frames.LoginCode(
            "l", found.get("code", ""), found.get("state", ""), found.get("iss", ""), found.get("error", "")
        )

    wish = oauth_login.Wish(
        server.url,
        frames.Login("l", REDIRECT, published),
        await bearer.before(),
        bearer.challenge,
        visits.append,
        brought,
        bearer.client,
    )
    found = await oauth_login.login(wish)
    await bearer.adopt(found)
    return found


def good(server: OAuthServer, token: str) -> bool:
    """Whether the protected server takes it."""
    return any(token in family.access for family in server.families)
