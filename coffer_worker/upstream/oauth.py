"""The token that goes with each request to an upstream that wanted a login.

Owns the grant in this worker, its renewal (one at a time, stored before it is used) and what a 401 means for it. What
the supervisor has stored counts before what is known here. Never begins a login, and never loads the SDK: that is
``oauth_login``'s. Source: MCP, Authorization; RFC 6749, section 6.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Final, NoReturn

from coffer_common.resources import OAuthClient
from coffer_worker.core import grant as grants
from coffer_worker.core.grant import Grant, NotRenewed
from coffer_worker.keeping import Changed, Keeping, NotKept
from coffer_worker.upstream.http_client import Trouble, outside

_RENEW_SECONDS: Final = 10.0
# After a failure that may pass, the calls that come at once are told the same without asking again.
_PAUSE_SECONDS: Final = 3.0


class Bearer:
    """The login to the upstream at ``url``, by ``client`` where a person registered Coffer there. Nothing is loaded
    before the upstream asks for a login: one that never does costs no question to the keychain. ``learn`` is told of
    secrets that no log may show."""

    def __init__(
        self, url: str, keeping: Keeping, learn: Callable[[Iterable[str]], None], client: OAuthClient = grants.NOBODY
    ) -> None:
        self.url, self.client = url, client
        self._keeping, self._learn = keeping, learn
        self.grant: Grant | None = None
        self.challenge: tuple[int, str] | None = None
        self.why = ""
        self._seen = ""  # the text that was stored when this worker last looked
        self._loaded = False
        self._loading = asyncio.Lock()
        self._changing = asyncio.Lock()
        self._flight: asyncio.Task[str] | None = None
        self._failed: tuple[float, str] | None = None

    async def token(self) -> str:
        """The token for the next request; empty where there is none. Raises Trouble (nothing was sent)."""
        grant = self.grant
        if grant is None or not grant.access:
            return ""
        if grants.stale(grant, time.time()) and grant.refresh:
            return await self._renew(grant.access)
        return grant.access

    async def instead(self, used: str, challenge: str) -> str:
        """After a 401 to a request with the token ``used``: another one to try, or nothing. Raises Trouble."""
        self.challenge = (401, challenge)
        if not self._loaded:
            await self._load_once()
        current = "" if self.grant is None else await self.token()
        if current and current != used:
            return current
        return await self._renew(used) if used else ""

    def wants_more(self, challenge: str) -> bool:
        """After a 403: whether another login could bring what this one lacks."""
        if not grants.beyond(self.grant or Grant(url=self.url), challenge):
            return False
        self.challenge = (403, challenge)
        return True

    async def adopt(self, grant: Grant) -> None:
        """A login went well. Raises NotKept where its outcome cannot be stored; it is used all the same."""
        async with self._changing:  # a renewal of what was there before must not be stored after it
            self._take(grant)
            self.why, self._failed, self._loaded = "", None, True
            text = grants.dump(grant)
            await self._keeping.store(text)
            self._seen = text

    async def before(self) -> Grant | None:
        """What is stored, for a login that is about to begin. Raises NotKept."""
        return self._read(await self._keeping.load())

    def _read(self, text: str) -> Grant | None:
        return grants.load(text, self.url, self.client)

    def _take(self, grant: Grant) -> None:
        self.grant = grant
        self._learn(grant.secrets())

    async def _load_once(self) -> None:
        async with self._loading:
            if self._loaded:
                return
            try:
                text = await self._keeping.load()
            except NotKept as error:
                self.why = f"what was stored of a login cannot be read: {error}"
                return
            self._loaded, self._seen = True, text
            found = self._read(text)
            if found is not None:
                self._take(found)

    # ---- renewal

    async def _renew(self, used: str) -> str:
        """Another token than ``used``: all that ask at once share one request."""
        if self._flight is None:
            loop = asyncio.get_running_loop()
            if self._failed is not None and loop.time() < self._failed[0]:
                raise Trouble(self._failed[1], unsent=True)
            self._flight = loop.create_task(self._fly(used))
            self._flight.add_done_callback(self._landed)
        return await asyncio.shield(self._flight)

    def _landed(self, flight: "asyncio.Task[str]") -> None:
        self._flight = None
        if not flight.cancelled():
            flight.exception()  # seen: those who waited may be gone

    async def _fly(self, used: str) -> str:
        """Renew what is stored now. A refusal is believed once the same is stored still."""
        async with self._changing:
            refused: NotRenewed | None = None
            for _ in range(2):
                before = self.grant
                await self._look()
                grant = self.grant
                if grant is None or not grant.access:
                    return ""
                if grant.access != used and not grants.stale(grant, time.time()):
                    return grant.access  # somebody else was faster
                if refused is not None and grant is before:
                    break
                outcome = await self._asked(grant)
                if isinstance(outcome, Grant):
                    return await self._keep(outcome)
                if outcome.kind == "passing":
                    self._pause(outcome)
                refused = outcome
            assert refused is not None
            self.why = refused.text
            return await self._forget(registered=refused.kind != "unknown")

    async def _asked(self, grant: Grant) -> Grant | NotRenewed:
        """What the authorization server makes of it."""
        if not grant.refresh:
            return NotRenewed("refused", "its login has run out, and cannot be renewed")
        headers, form = grants.renewal(grant)
        try:
            async with asyncio.timeout(_RENEW_SECONDS):
                status, body = await outside("POST", grant.token_endpoint, self.url, headers=headers, form=form)
        except TimeoutError:
            return NotRenewed("passing", f"the authorization server did not answer within {_RENEW_SECONDS:g} s")
        except Trouble as trouble:
            return NotRenewed("passing", trouble.text)
        return grants.renewed(grant, status, body, time.time())

    def _pause(self, outcome: NotRenewed) -> NoReturn:
        text = f"its login could not be renewed: {outcome.text}. The login is kept"
        self._failed = (asyncio.get_running_loop().time() + _PAUSE_SECONDS, text)
        raise Trouble(text, unsent=True)

    async def _look(self) -> None:
        """What is stored counts where it has changed: somebody has renewed it, logged in anew, or logged out. Where it
        has not, it may be older than what is known here, which could not be stored."""
        try:
            text = await self._keeping.load()
        except NotKept:
            return
        if text == self._seen:
            return
        self._seen, self.grant = text, self._read(text)
        if self.grant is not None:
            self._learn(self.grant.secrets())

    async def _keep(self, grant: Grant) -> str:
        """Stored before it is used: what it replaces may be void from now on."""
        self._failed, self.why = None, ""
        self._learn(grant.secrets())
        text = grants.dump(grant)
        try:
            await self._keeping.store(text, over=self._seen)
            self._seen = text
        except NotKept as error:
            self.why = f"its renewed login could not be stored: {error}"
        except Changed:
            await self._look()
            return "" if self.grant is None else self.grant.access
        self.grant = grant
        return grant.access

    async def _forget(self, *, registered: bool) -> str:
        """Forget the tokens that were refused, but never newer ones; those, if there are any."""
        if self.grant is None:
            return ""
        left = grants.without_tokens(self.grant, registered=registered)
        text = grants.dump(left)
        try:
            await self._keeping.store(text, over=self._seen)
            self._seen = text
        except NotKept:
            pass
        except Changed:
            await self._look()
            return "" if self.grant is None else self.grant.access
        self.grant = left
        return ""
