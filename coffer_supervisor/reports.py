"""What workers say of themselves and their upstreams, taken into the records and the catalogues.

Owns the frames State, Heartbeat, Catalogue and Dumped. Never sends a worker away: it feeds the
lifecycle, which decides.
"""

import asyncio
import logging
from typing import Final, cast

import msgspec

from coffer_common import frames
from coffer_supervisor.channel import Channel, Peer
from coffer_supervisor.core import lifecycle_words as words
from coffer_supervisor.core.catalogue import Base, Catalogues, Key, Server
from coffer_supervisor.pending import Calls
from coffer_supervisor.store import NotFound, Store, StoreError
from coffer_supervisor.upstream import Upstream
from coffer_supervisor.workers import Workers

_SHOWN_STACKS: Final = 20_000

_log: Final = logging.getLogger(__name__)


class Reports:
    """Registers itself with the channel."""

    def __init__(self, store: Store, channel: Channel, calls: Calls, workers: Workers, catalogues: Catalogues) -> None:
        self._store, self._calls = store, calls
        self._workers, self._catalogues = workers, catalogues
        self._loop = asyncio.get_running_loop()
        self._remembering: dict[str, asyncio.Lock] = {}
        self._logins_wanted: dict[str, str] = {}
        channel.on(frames.State, self._state)
        channel.on(frames.Heartbeat, self._heartbeat)
        channel.on(frames.Catalogue, self._catalogue)
        channel.on(frames.Dumped, self._dumped)

    def _state(self, peer: Peer, frame: frames.State, _: bytes) -> None:
        upstream = self._workers.of(peer)
        if upstream is None:
            return
        before, upstream.facts = upstream.facts, frame
        if frame.state == "ready":
            upstream.known, upstream.slow = frame, False
            if upstream.up_since is None:
                upstream.up_since = self._loop.time()
            if upstream.last_error == self._logins_wanted.pop(upstream.name, None):
                upstream.last_error = ""  # no error any more: somebody has logged in
        elif frame.state in ("backoff", "failed", "needs_login"):
            upstream.up_since = None
            self._workers.failed(upstream, frame.message)
            if frame.state == "needs_login":
                self._logins_wanted[upstream.name] = frame.message
            self._catalogues.settle(upstream.name)
        self._workers.event(upstream, words.Reported(peer.incarnation, frame.state, frame.message))
        if frame.state == "ready" and (before is None or before.state != "ready"):
            self._workers.dispatcher.ready(upstream.name)

    def _heartbeat(self, peer: Peer, frame: frames.Heartbeat, _: bytes) -> None:
        if (upstream := self._workers.of(peer)) is not None:
            upstream.beat = frame
            who, now = (peer.name, peer.incarnation), self._loop.time()
            self._workers.liveness.beat(who, now, loop_lag=frame.loop_lag, cpu_seconds=frame.cpu_seconds)

    def _catalogue(self, peer: Peer, frame: frames.Catalogue, payload: bytes) -> None:
        upstream = self._workers.of(peer)
        if upstream is None or peer.name not in self._catalogues.servers:
            return
        if frame.same:
            self._workers.changed(peer.name, frozenset(frame.announced), frame.session)
            return
        try:
            base = _base(frame, payload, self._loop.time(), self._catalogues.servers[peer.name])
        except msgspec.MsgspecError as error:
            self._workers.failed(upstream, f"its worker sent a catalogue that cannot be read: {error}")
            return
        if frame.session:
            kinds = self._catalogues.overlay(peer.name, frame.session, base)
        else:
            kinds = self._catalogues.put(peer.name, frame.era, base)
            upstream.refreshed_at = base.read_at
        fresh = self._catalogues.servers[peer.name].records(base)
        upstream.remembering += fresh
        self._workers.changed(peer.name, kinds | frozenset(frame.announced), frame.session)
        if fresh:
            self._workers.background(self._remember(upstream, base), f"remember what {peer.name} lists")

    async def _remember(self, upstream: Upstream, base: Base) -> None:
        """Record what was listed; what is new follows the server's policy of now, even if that changes later."""
        try:
            await self._record(upstream, base)
        finally:
            upstream.remembering -= 1
            self._workers.pulse.beat()

    async def _record(self, upstream: Upstream, base: Base) -> None:
        async with self._remembering.setdefault(upstream.name, asyncio.Lock()):
            auto = upstream.config.auto_enable
            try:
                new = await self._store.preferences.seen(upstream.name, [(e.type, e.key) for e in base], auto)
            except NotFound:
                return  # removed meanwhile
            except StoreError as error:
                _log.warning("what '%s' lists was not recorded: %s", upstream.name, error)
                return
        server = self._catalogues.servers.get(upstream.name)
        if server is not None:
            server.recorded(base)
            server.choices = {**{cast(Key, key): auto for key in new}, **server.choices}

    def _dumped(self, peer: Peer, frame: frames.Dumped, payload: bytes) -> None:
        if self._calls.answered(peer.name, frame.corr, payload):
            return
        upstream = self._workers.of(peer)
        if upstream is not None and frame.corr == 0:
            stacks = payload[:_SHOWN_STACKS].decode("utf-8", "replace")
            _log.error("the stacks of worker '%s': %s", peer.name, stacks)
            self._workers.event(upstream, words.Dumped(peer.incarnation))


def _base(frame: frames.Catalogue, payload: bytes, now: float, server: Server) -> Base:
    entries = frames.decode_entries(payload) if payload else []
    known = server.base(frame.era, frame.session) if frame.unread else None
    if known is not None:
        entries += [entry for entry in known if entry.type in frame.unread]
    return Base(entries, read_at=now, ttl_ms=frame.ttl_ms, scope=frame.scope, left_out=frame.left_out)
