"""Lists and identities, answered from memory; an upstream that is slow is waited for no longer than its budget.

Owns that waiting, and who is asked to read its lists again. Never builds a list (``core.catalogue`` does) and never
speaks to a worker.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from coffer_common import errors, frames, protocol
from coffer_common.version import SERVER_INFO
from coffer_supervisor.core.calls import CallError, Identity, Principal, Scope, failure
from coffer_supervisor.core.catalogue import EVERYTHING, Catalogues, Query, Server, UnknownCursor
from coffer_supervisor.core.identity import aggregate, presented
from coffer_supervisor.core.instructions import instructions
from coffer_supervisor.core.subscriptions import FIRST_SETTLE_SECONDS, SETTLE_SECONDS
from coffer_supervisor.scoping import Scoping
from coffer_supervisor.supervision import Supervision
from coffer_supervisor.upstream import Upstream

DISCOVERY_SECONDS: Final = 5.0
FRESH_SECONDS: Final = 60.0

_META_KEY: Final = msgspec.json.encode(protocol.META_SERVER_INFO)

_log: Final = logging.getLogger(__name__)


class Lists:
    """Part of the router."""

    def __init__(self, supervision: Supervision, scoping: Scoping) -> None:
        self._supervision, self._scoping = supervision, scoping
        self._catalogues: Catalogues = supervision.catalogues
        self._loop = asyncio.get_running_loop()

    def budget(self) -> float:
        """Seconds that a list may wait for a slow upstream now."""
        return max(DISCOVERY_SECONDS, self._supervision.first_discovery_ends - self._loop.time())

    def settle(self) -> float:
        """For how many seconds a change of lists waits for others, to be told with them: longer while the daemon's
        first discovery is under way, in which one server comes after the other."""
        if self._loop.time() >= self._supervision.first_discovery_ends:
            return SETTLE_SECONDS
        expected = any(one.waiting and one.on and not one.bases for one in self._catalogues.servers.values())
        return FIRST_SETTLE_SECONDS if expected else SETTLE_SECONDS

    async def page(
        self, caller: frames.Caller, principal: Principal, scope: Scope, kind: frames.CapabilityType, cursor: str | None
    ) -> bytes:
        """One page as a result object in the client's era. Raises CallError."""
        era = caller.era
        narrowing = self._scoping.narrowing(principal, scope)
        self._admit(scope, narrowing.server, era)
        query = Query(kind, scope.naming, era, scope.server, caller.session, narrowing)
        concerned = self._catalogues.concerned(query)
        if scope.server is not None:
            # Without its one upstream there is no list to answer with: never an empty success.
            await self._known(scope.server, era, lambda: bool(self._bases(scope.server)))
        elif any(server.waiting and not server.bases for server in concerned):
            await self._wait_for(concerned)
            concerned = self._catalogues.concerned(query)
        self._freshen(concerned, era)
        complete = all(server.bases for server in concerned)
        meta = b"{" + _META_KEY + b":" + self._server_info(scope) + b"}" if era == "modern" else b""
        try:
            return self._catalogues.page(query, cursor, self._loop.time(), complete=complete, meta=meta)
        except UnknownCursor:
            text = "this cursor was not given out by this list; begin again without one"
            raise CallError(failure(errors.UNKNOWN_CURSOR, text, era)) from None

    async def identity(self, scope: Scope, era: protocol.Era = "legacy", who: Principal | None = None) -> Identity:
        """What an endpoint says it is; a pass-through upstream is waited for within its start limit. ``who``: a
        principal hears only of what it may see (None: of everything)."""
        if scope.server is None:
            return self._aggregate(scope, who)
        self._admit(scope, lambda _: True, era)
        upstream = self._supervision.upstreams[scope.server]
        await self._known(scope.server, era, lambda: upstream.known is not None)
        assert upstream.known is not None
        facts = upstream.known
        return Identity(presented(facts.server_info, scope.server), facts.capabilities, facts.instructions)

    def _aggregate(self, scope: Scope, who: Principal | None) -> Identity:
        narrowing = EVERYTHING if who is None else self._scoping.narrowing(who, scope)
        known = {
            name: upstream.known
            for name, upstream in sorted(self._supervision.upstreams.items())
            if upstream.known is not None and narrowing.server(name) and upstream.life.state != "disabled"
        }
        told = {name: facts.instructions for name, facts in known.items()}
        return Identity(SERVER_INFO, aggregate(facts.capabilities for facts in known.values()), instructions(told))

    def _admit(self, scope: Scope, seen: Callable[[str], bool], era: protocol.Era) -> None:
        """Whether the endpoint exists for this principal."""
        name = scope.server
        if name is None:
            return
        server = self._catalogues.servers.get(name)
        if server is None or name not in self._supervision.upstreams:
            text = f"no server is named '{name}'; see: coffer mcp list"
            raise CallError(failure(errors.UNKNOWN_SERVER, text, era, server=name))
        if not seen(name):
            raise CallError(failure(errors.DENIED, f"server '{name}' is outside this client's scope", era, server=name))
        if not server.on:
            text = f"server '{name}' is disabled; enable it with: coffer mcp enable {name}"
            raise CallError(failure(errors.SERVER_DISABLED, text, era, server=name))

    def _bases(self, name: str | None) -> object:
        server = self._catalogues.servers.get(name or "")
        return None if server is None else server.bases

    def _server_info(self, scope: Scope) -> bytes:
        name = scope.server or ""
        upstream = self._supervision.upstreams.get(name)
        known = None if upstream is None else upstream.known
        return SERVER_INFO if known is None else presented(known.server_info, name)

    async def _wait_for(self, servers: list[Server]) -> None:
        """Wait for first catalogues; an upstream that is too slow is not waited for a second time."""

        def done() -> bool:
            return not any(server.waiting and server.on and not server.bases for server in servers)

        if await self._supervision.pulse.until(done, self._loop.time() + self.budget()):
            return
        for server in servers:
            if server.waiting and not server.bases:
                self._catalogues.settle(server.name)
                upstream = self._supervision.upstreams.get(server.name)
                if upstream is not None and not upstream.slow:
                    upstream.slow = True
                    _log.warning("lists are answered without '%s', which has not listed anything yet", server.name)

    async def _known(self, name: str, era: protocol.Era, known: Callable[[], bool]) -> None:
        """Wait for something of a pass-through upstream, within its start limit. Raises CallError."""
        supervision = self._supervision
        upstream: Upstream | None = supervision.upstreams.get(name)

        def decided() -> bool:
            return known() or name not in supervision.upstreams or supervision.upstreams[name].gate().way == "refuse"

        seconds = 0.0 if upstream is None else upstream.config.limits.start_seconds
        await supervision.pulse.until(decided, self._loop.time() + seconds)
        if known():
            return
        upstream = supervision.upstreams.get(name)
        if upstream is None:
            text = f"server '{name}' was removed meanwhile"
            raise CallError(failure(errors.UNKNOWN_SERVER, text, era, server=name))
        gate = upstream.gate()
        if gate.way == "refuse":
            raise CallError(failure(gate.reason, gate.message, era, server=name))
        text = f"server '{name}' was not ready within its start limit of {seconds:g} s ({upstream.message()})"
        raise CallError(failure(errors.START_LIMIT, text, era, server=name))

    def _freshen(self, servers: list[Server], era: protocol.Era) -> None:
        """Have lists that are no longer fresh read again, for the next who asks."""
        now = self._loop.time()
        for server in servers:
            upstream = self._supervision.upstreams.get(server.name)
            if upstream is None or upstream.facts is None or upstream.facts.state != "ready":
                continue
            unseen = era == "legacy" and upstream.facts.era == "modern" and era not in server.bases
            if unseen and upstream.legacy_asked != upstream.life.incarnation:
                # It may have a legacy side with lists of its own; the worker finds out, once.
                upstream.legacy_asked = upstream.life.incarnation
                self._supervision.refresh_soon(server.name, era)
                continue
            read_at = max((base.read_at for base in server.bases.values()), default=now)
            connected = upstream.beat is not None and upstream.beat.connections > 0
            if connected and now - max(read_at, upstream.refreshed_at) > FRESH_SECONDS:
                upstream.refreshed_at = now
                self._supervision.refresh_soon(server.name)
