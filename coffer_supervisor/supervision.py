"""Brings the workers to what the store says, and says how they are.

Owns the way from a stored server to a wish for its worker, and the answers that management gives about upstreams.
``workers`` carries the wishes out, ``reports`` hears what comes of them.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final, Literal

from coffer_common import frames
from coffer_common.paths import Home
from coffer_supervisor.channel import Channel
from coffer_supervisor.core import lifecycle_words as words
from coffer_supervisor.core.catalogue import Catalogues
from coffer_supervisor.core.lifecycle import Lifecycle
from coffer_supervisor.credentials import CredentialVault
from coffer_supervisor.pending import Calls, RefusedByWorker
from coffer_supervisor.pulse import Pulse
from coffer_supervisor.reports import Reports
from coffer_supervisor.store import NotFound, Resource, Store
from coffer_supervisor.upstream import (
    CallView,
    CapabilityView,
    Upstream,
    UpstreamView,
    call_view,
    capabilities,
    needs_restart,
)
from coffer_supervisor.workers import Dispatcher, Workers

__all__ = ["CallView", "CapabilityView", "Supervision", "UpstreamView"]

FIRST_DISCOVERY_SECONDS: Final = 15.0
REFRESH_SECONDS: Final = 60.0
DUMP_SECONDS: Final = 3.0

_log: Final = logging.getLogger(__name__)


class Supervision:
    """All upstreams. ``attach`` a dispatcher, then ``start``; ``stop`` at the end."""

    def __init__(self, store: Store, vault: CredentialVault, channel: Channel, calls: Calls, home: Home) -> None:
        self._store, self._channel, self._calls = store, channel, calls
        self.catalogues = Catalogues()
        self._workers = Workers(vault, channel, self.catalogues, home)
        self._workers.answers_awaited = calls.awaited
        self._reports = Reports(store, channel, calls, self._workers, self.catalogues)
        self._loop = asyncio.get_running_loop()
        self._applying: dict[str, asyncio.Lock] = {}
        self.greeted = self._workers.greeted
        self.hasten = self._workers.hasten
        self.first_discovery_ends = 0.0
        """Loop time at which lists stop waiting for the daemon's first discovery."""

    @property
    def upstreams(self) -> dict[str, Upstream]:
        """The records, by name."""
        return self._workers.upstreams

    @property
    def pulse(self) -> Pulse:
        """Beats whenever a state or a catalogue changes."""
        return self._workers.pulse

    def attach(self, dispatcher: Dispatcher) -> None:
        """Who is told what callers must know."""
        self._workers.dispatcher = dispatcher

    def met(self, caller: frames.Caller) -> None:
        """A client said who it is: workers that start from now on prepare for one like it."""
        seen = self._workers.seen
        if seen is None or (seen.capabilities, seen.revision) != (caller.capabilities, caller.revision):
            alike = frames.Caller("", "", "", caller.naming, caller.revision, caller.wire, caller.capabilities)
            self._workers.seen = alike

    async def start(self) -> None:
        """Start the fork server and every enabled upstream. Raises ForkError or StoreError."""
        await asyncio.gather(self._workers.start(), self._load())

    async def _load(self) -> None:
        preferences = await self._store.preferences.load_all()
        self.first_discovery_ends = self._loop.time() + FIRST_DISCOVERY_SECONDS
        for resource in await self._store.resources.list("mcp_server"):
            self._adopt(resource, preferences.get(resource.name, {}))

    async def stop(self, seconds: float) -> None:
        """End every worker, politely for ``seconds``, then all that is left."""
        await self._workers.stop(seconds)

    # ---- how upstreams are

    def views(self) -> list[UpstreamView]:
        """Every registered upstream, by name."""
        return [view for name in sorted(self.upstreams) if (view := self.view(name)) is not None]

    def view(self, name: str) -> UpstreamView | None:
        """One upstream; None if no such server is registered."""
        upstream, server = self.upstreams.get(name), self.catalogues.servers.get(name)
        if upstream is None or server is None:
            return None
        now = self._loop.time()
        return upstream.view(server, now, self._calls.by_server.get(name, {}).values())

    def calls(self, name: str | None = None) -> list[CallView]:
        """The calls in flight, oldest first."""
        now, noun = self._loop.time(), self._workers.dispatcher.call_type
        found = self._calls.table.values() if name is None else self._calls.by_server.get(name, {}).values()
        configs = {name: upstream.config for name, upstream in self.upstreams.items()}
        return [call_view(call, noun(call.request.method), now, configs.get(call.server)) for call in found]

    def kill_call(self, call_id: str) -> bool:
        """End the call ``c-NUMBER``; False if there is none."""
        number = call_id.removeprefix("c-")
        known = number.isascii() and number.isdigit() and len(number) < 19
        return known and self._workers.dispatcher.end_call(int(number))

    def capabilities(self, name: str) -> list[CapabilityView]:
        """What a server lists or once listed; nothing for an unknown one."""
        server = self.catalogues.servers.get(name)
        return [] if server is None else capabilities(server)

    async def wait_discovered(self, name: str, deadline: float) -> UpstreamView | None:
        """Wait (to loop time ``deadline``) until an upstream's start has an outcome; then its view."""

        def outcome() -> bool:
            upstream, server = self.upstreams.get(name), self.catalogues.servers.get(name)
            if upstream is None or server is None:
                return True
            if upstream.life.state == "ready":
                return bool(server.bases) and not upstream.remembering  # so that what it lists can be switched
            return upstream.settled

        await self.pulse.until(outcome, deadline)
        return self.view(name)

    # ---- what is asked of them

    async def apply(self, name: str) -> None:
        """Bring an upstream to what the store says of it now. Raises StoreError."""
        async with self._applying.setdefault(name, asyncio.Lock()):
            try:
                resource = await self._store.resources.get("mcp_server", name)
            except NotFound:
                self._drop(name)
                return
            self._adopt(resource, await self._store.preferences.load(name))

    async def preference_changed(self, name: str) -> None:
        """Read again what is switched on of a server, and bring the lists to it. Raises StoreError."""
        choices = await self._store.preferences.load(name)
        upstream, server = self.upstreams.get(name), self.catalogues.servers.get(name)
        if upstream is not None and server is not None:
            self._register(upstream, on=server.on, choices=choices)

    async def restart(self, name: str) -> None:
        """End an upstream's worker and start it again, whatever failed before."""
        if (upstream := self.upstreams.get(name)) is not None:
            self._workers.event(upstream, words.Restart())

    def renew(self, name: str) -> None:
        """Have an upstream start again with the secrets as they are now, once its calls have drained."""
        if (upstream := self.upstreams.get(name)) is not None:
            self._workers.event(upstream, words.Reconfigure())

    async def refresh(self, name: str, era: Literal["", "legacy", "modern"] = "") -> None:
        """Have an upstream's lists read again, and wait for it within limits. Does nothing without a worker."""
        upstream = self.upstreams.get(name)
        if upstream is None or upstream.life.phase != "running" or upstream.refreshing or upstream.peer is None:
            return
        upstream.refreshing = True
        corr, answer = self._calls.request(name)
        try:
            self._channel.send(upstream.peer, frames.Refresh(corr, era))
            async with asyncio.timeout(REFRESH_SECONDS):
                await answer
        except (TimeoutError, RefusedByWorker) as error:
            _log.info("the lists of '%s' were not read again: %s", name, str(error) or "no answer in time")
        finally:
            upstream.refreshing = False
            self._calls.requests.pop(corr, None)

    def refresh_soon(self, name: str, era: Literal["", "legacy", "modern"] = "") -> None:
        """The same, in the background."""
        self._workers.background(self.refresh(name, era), f"refresh {name}")

    async def dump(self, name: str) -> bytes:
        """A worker's own account of itself, JSON ``{"calls", "tasks", "tree", "stderr"}``. Raises TimeoutError."""
        upstream = self.upstreams.get(name)
        if upstream is None or upstream.peer is None:
            raise TimeoutError
        corr, answer = self._calls.request(name)
        try:
            self._channel.send(upstream.peer, frames.Dump(corr))
            async with asyncio.timeout(DUMP_SECONDS):
                return await answer
        except RefusedByWorker:
            raise TimeoutError from None
        finally:
            self._calls.requests.pop(corr, None)

    # ---- from the store to a wish

    def _adopt(self, resource: Resource, choices: Mapping[Any, bool]) -> None:
        """A server is in the store, as ``resource`` says."""
        name, config = resource.name, resource.config
        upstream = self.upstreams.get(name)
        before = None if upstream is None else upstream.config
        if upstream is None:
            life = Lifecycle(name, incarnation=self._workers.last_incarnation(name))
            upstream = self.upstreams[name] = Upstream(name, config, life)
        upstream.config, upstream.life.start_seconds = config, config.limits.start_seconds
        self._register(upstream, on=resource.enabled, choices=choices)
        if not resource.enabled:
            self._workers.event(upstream, words.Disable())
            return
        self._workers.event(upstream, words.Enable())
        if before is not None and needs_restart(before, config):
            upstream.known = None
            self._workers.event(upstream, words.Reconfigure())

    def _register(self, upstream: Upstream, *, on: bool, choices: Mapping[Any, bool]) -> None:
        auto = upstream.config.auto_enable
        kinds = self.catalogues.register(upstream.name, on=on, auto_enable=auto, choices=choices)
        self._workers.changed(upstream.name, kinds)

    def _drop(self, name: str) -> None:
        self._workers.changed(name, self.catalogues.remove(name))
        if (upstream := self.upstreams.get(name)) is not None:
            self._workers.event(upstream, words.Remove())
