"""Logins of a person to the upstream: begun by the supervisor, one at a time.

Owns their course from Login to LoginResult. Nothing else begins one: a call that lacks a login fails and says so.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from coffer_common import frames
from coffer_worker.keeping import NotKept
from coffer_worker.outlet import Outlet
from coffer_worker.upstream import oauth_login
from coffer_worker.upstream.oauth import Bearer

PERSON_SECONDS: Final = 600.0


class Logins:
    """``bearer`` is None where the upstream takes none; ``done`` is called when a login went well.

    ``post`` takes control frames: LoginResult goes after the State that ``done`` brings about, on the same pair, so
    that who was told of the login does not find the state of before it. ``mask`` takes secrets out of a text.
    """

    def __init__(
        self,
        bearer: Bearer | None,
        outlet: Outlet,
        post: Callable[[Any], None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        done: Callable[[], None],
        *,
        server: str,
        mask: Callable[[str], str],
    ) -> None:
        self._bearer, self._outlet, self._post, self._spawn, self._done = bearer, outlet, post, spawn, done
        self._server, self._mask = server, mask
        self._login = ""
        self._code: asyncio.Future[frames.LoginCode] | None = None

    def begin(self, frame: frames.Login) -> None:
        """A person wishes to log in; a login that was under way is over."""
        if self._bearer is None:
            text = "it is no server at a URL, or its Authorization header is configured"
            self._post(frames.LoginResult(frame.login, text))
            return
        if self._code is not None and not self._code.done():
            self._code.cancel()
        self._login, self._code = frame.login, asyncio.get_running_loop().create_future()
        self._spawn(self._run(self._bearer, frame, self._code))

    def code(self, frame: frames.LoginCode) -> None:
        """What the browser brought."""
        if frame.login == self._login and self._code is not None and not self._code.done():
            self._code.set_result(frame)

    async def _run(self, bearer: Bearer, frame: frames.Login, code: "asyncio.Future[frames.LoginCode]") -> None:
        error = ""
        try:
            async with asyncio.timeout(PERSON_SECONDS):
                await self._flow(bearer, frame, code)
        except TimeoutError:
            error = f"nobody logged in within {PERSON_SECONDS / 60:g} min"
        except (oauth_login.LoginFailed, NotKept) as failed:
            error = str(failed)
        except Exception as failed:  # else whoever waits for its end would not hear of it
            self._post(frames.LoginResult(frame.login, f"Coffer itself failed in it: {type(failed).__name__}"))
            raise
        if self._login == frame.login:
            self._code = None
        if not error:
            self._done()
            await asyncio.sleep(0)  # what it set going says its state first
        self._post(frames.LoginResult(frame.login, self._mask(error)))

    async def _flow(self, bearer: Bearer, frame: frames.Login, code: "asyncio.Future[frames.LoginCode]") -> None:
        async def brought() -> frames.LoginCode:
            await asyncio.wait([code])
            if code.cancelled():
                raise oauth_login.LoginFailed("another login was begun")
            return code.result()

        def show(url: str) -> None:
            self._outlet.send(frames.LoginUrl(frame.login, url))

        before = await bearer.before()
        wish = oauth_login.Wish(bearer.url, frame, before, bearer.challenge, show, brought, bearer.client, self._server)
        await bearer.adopt(await oauth_login.login(wish))
