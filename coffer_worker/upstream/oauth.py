"""The token that goes with each request to an upstream that wanted a login.

Owns the grant in this worker, its renewal (one at a time, stored before it is used) and what a 401 means for it. Never
begins a login, and never loads the SDK: that is ``oauth_login``'s. Source: MCP, Authorization; RFC 6749, section 6.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Final

from coffer_worker.core import grant as grants
from coffer_worker.core.grant import Grant, NotRenewed
from coffer_worker.keeping import Keeping, NotKept
from coffer_worker.upstream.http_client import Trouble, outside

_RENEW_SECONDS: Final = 10.0
# After a failure that may pass, the calls that come at once are told the same without asking again.
_PAUSE_SECONDS: Final = 3.0


class Bearer:
    """The login to the upstream at ``url``. Nothing is loaded before the upstream asks for a login: one that never
    does costs no question to the keychain. ``learn`` is told of secrets that no log may show."""

    def __init__(self, url: str, keeping: Keeping, learn: Callable[[Iterable[str]], None]) -> None:
        self.url = url
        self._keeping, self._learn = keeping, learn
        self.grant: Grant | None = None
        self.challenge: tuple[int, str] | None = None
        self.why = ""
        self._loaded = False
        self._loading = asyncio.Lock()
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
        """After a 403: whether the login is good, but not for this."""
        if "insufficient_scope" not in challenge:
            return False
        self.challenge = (403, challenge)
        return True

    async def adopt(self, grant: Grant) -> None:
        """A login went well. Raises NotKept where its outcome cannot be stored; it is used all the same."""
        self._take(grant)
        self.why, self._failed, self._loaded = "", None, True
        await self._keeping.store(grants.dump(grant))

    async def stored(self) -> Grant | None:
        """What is stored now. Raises NotKept."""
        return grants.load(await self._keeping.load(), self.url)

    def _take(self, grant: Grant) -> None:
        self.grant = grant
        self._learn(grant.secrets())

    async def _load_once(self) -> None:
        async with self._loading:
            if self._loaded:
                return
            try:
                found = await self.stored()
            except NotKept as error:
                self.why = f"what was stored of a login cannot be read: {error}"
                return
            self._loaded = True
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
        grant = await self._newest(used)
        if grant is None or not grant.access:
            return ""
        if grant.access != used and not grants.stale(grant, time.time()):
            return grant.access  # somebody else was faster
        if not grant.refresh:
            self.why = "its login has run out, and cannot be renewed"
            await self._forget(grant)
            return ""
        headers, form = grants.renewal(grant)
        try:
            async with asyncio.timeout(_RENEW_SECONDS):
                status, body = await outside("POST", grant.token_endpoint, self.url, headers=headers, form=form)
            outcome = grants.renewed(grant, status, body, time.time())
        except TimeoutError:
            outcome = NotRenewed("passing", f"the authorization server did not answer within {_RENEW_SECONDS:g} s")
        except Trouble as trouble:
            outcome = NotRenewed("passing", trouble.text)
        if isinstance(outcome, Grant):
            return await self._keep(outcome)
        return await self._not_renewed(grant, outcome)

    async def _newest(self, used: str) -> Grant | None:
        """What is stored counts, where it is another one: it may have been renewed elsewhere."""
        try:
            found = await self.stored()
        except NotKept:
            return self.grant
        if found is not None and found.access and found != self.grant:
            self._take(found)
        return self.grant

    async def _keep(self, grant: Grant) -> str:
        """Stored before it is used: what it replaces may be void from now on."""
        self._failed, self.why = None, ""
        self._learn(grant.secrets())
        try:
            await self._keeping.store(grants.dump(grant))
        except NotKept as error:
            self.why = f"its renewed login could not be stored: {error}"
        self.grant = grant
        return grant.access

    async def _not_renewed(self, grant: Grant, outcome: NotRenewed) -> str:
        if outcome.kind == "passing":
            text = f"its login could not be renewed: {outcome.text}. The login is kept"
            self._failed = (asyncio.get_running_loop().time() + _PAUSE_SECONDS, text)
            raise Trouble(text, unsent=True)
        self.why = f"{outcome.text}: it was revoked, or has run out"
        await self._forget(grant)
        return "" if self.grant is None else self.grant.access

    async def _forget(self, dead: Grant) -> None:
        """Forget the tokens of ``dead``, but never newer ones."""
        try:
            found = await self.stored()
            if found is not None and found.access and found.refresh != dead.refresh:
                self._take(found)
                return
            self.grant = grants.without_tokens(dead)
            await self._keeping.store(grants.dump(self.grant))
        except NotKept:
            self.grant = grants.without_tokens(dead)
