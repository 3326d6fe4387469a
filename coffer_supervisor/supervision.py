"""Brings the workers to what the store says: starts, configures, watches, replaces and ends them.

Owns the upstreams' records and carries out what ``core.lifecycle`` decides. Never decides a phase by itself, never
touches a call: what callers must be told goes through ``Dispatcher``. The one place where wishes (store), workers
(fork server) and their frames (channel) meet.
"""

import asyncio
import logging
import random
import secrets
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol, cast

import msgspec

from coffer_common import forkproto, frames
from coffer_common.paths import Home
from coffer_common.version import VERSION
from coffer_supervisor import templates
from coffer_supervisor.channel import Channel, Peer
from coffer_supervisor.core import lifecycle_words as words
from coffer_supervisor.core.calls import Failure
from coffer_supervisor.core.catalogue import Catalogues, Key
from coffer_supervisor.core.lifecycle import IllegalEvent, Lifecycle
from coffer_supervisor.core.liveness import BEAT_SECONDS, Liveness
from coffer_supervisor.credentials import CredentialError, CredentialVault
from coffer_supervisor.forks import ForkError, ForkServer, WorkerExit
from coffer_supervisor.pending import Calls
from coffer_supervisor.pulse import Pulse
from coffer_supervisor.store import NotFound, Resource, Store, StoreError
from coffer_supervisor.upstream import (
    CallView,
    CapabilityView,
    Upstream,
    UpstreamView,
    base_of,
    call_view,
    capabilities,
    needs_restart,
    utc_now,
)


class RefusedByWorker(Exception):
    """A worker answered a request of the supervisor's own with an error (``failure``), or was lost before it did."""

    def __init__(self, message: str, failure: Failure | None = None) -> None:
        super().__init__(message)
        self.failure = failure


STARTING_AT_ONCE: Final = 4
FIRST_DISCOVERY_SECONDS: Final = 15.0
REFRESH_SECONDS: Final = 60.0
DUMP_SECONDS: Final = 3.0

_log: Final = logging.getLogger(__name__)


class Dispatcher(Protocol):
    """Who answers callers (the router). Called on the loop; must not raise."""

    def gate_changed(self, name: str) -> None:
        """What a call for that upstream meets has changed, or its catalogue has."""

    def worker_lost(self, name: str, peer: Peer, reason: str) -> None:
        """That worker answers no more."""

    def ready(self, name: str) -> None:
        """A worker's upstream became ready."""

    def lists_changed(self, name: str, kinds: frozenset[str]) -> None:
        """Clients see other lists of that upstream now."""

    def call_type(self, method: str) -> str:
        """The noun of a call's method."""

    def end_call(self, corr: int) -> bool:
        """An operator ends a call."""


class Supervision:
    """All upstreams. ``attach`` a dispatcher, then ``start``; ``stop`` at the end."""

    def __init__(  # noqa: PLR0917 the rooms it connects
        self,
        store: Store,
        vault: CredentialVault,
        channel: Channel,
        calls: Calls,
        catalogues: Catalogues,
        home: Home,
        *,
        fork_stderr: int | None = None,
    ) -> None:
        self._store, self._vault, self._home = store, vault, home
        self._channel, self._calls, self.catalogues = channel, calls, catalogues
        self._forks = ForkServer(home.root, self._exited, stderr=fork_stderr)
        self._loop = asyncio.get_running_loop()
        self.upstreams: dict[str, Upstream] = {}
        self.pulse = Pulse()
        self.stopping = False
        self._dispatcher: Dispatcher
        self._incarnations: dict[str, int] = {}
        self._queue: deque[str] = deque()
        self._starting: set[str] = set()
        self._events: deque[tuple[Upstream, words.Event]] = deque()
        self._handling = False
        self._liveness: Liveness[tuple[str, int]] = Liveness()
        self._locks: dict[str, asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._first_discovery_ends = 0.0
        for frame_type, handler in (
            (frames.State, self._on_state),
            (frames.Heartbeat, self._on_heartbeat),
            (frames.Catalogue, self._on_catalogue),
            (frames.Dumped, self._on_dumped),
            (frames.LoadSecret, self._on_secret_request),
            (frames.StoreSecret, self._on_secret_request),
        ):
            channel.on(frame_type, handler)

    # ---- life of the supervision itself

    def attach(self, dispatcher: Dispatcher) -> None:
        """Who is told what callers must know."""
        self._dispatcher = dispatcher

    async def start(self) -> None:
        """Start the fork server and every enabled upstream. Raises ForkError or StoreError."""
        await asyncio.gather(self._forks.start(), self._load())
        self._background(self._watch(), "worker heartbeats")

    async def _load(self) -> None:
        preferences = await self._store.preferences.load_all()
        self._first_discovery_ends = self._loop.time() + FIRST_DISCOVERY_SECONDS
        for resource in await self._store.resources.list("mcp_server"):
            self._adopt(resource, preferences.get(resource.name, {}))

    async def stop(self, seconds: float) -> None:
        """End every worker, politely for ``seconds``, then the fork server with all that is left."""
        self.stopping = True
        for upstream in list(self.upstreams.values()):
            self._event(upstream, words.Disable())
        await self.pulse.until(self._all_rest, self._loop.time() + seconds)
        await self._forks.stop(2.0)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for upstream in self.upstreams.values():
            for timer in upstream.timers.values():
                timer.cancel()

    def _all_rest(self) -> bool:
        return all(upstream.life.phase in ("disabled", "removed") for upstream in self.upstreams.values())

    @property
    def first_discovery_ends(self) -> float:
        """Loop time at which lists stop waiting for the daemon's first discovery."""
        return self._first_discovery_ends

    # ---- what management asks

    def views(self) -> list[UpstreamView]:
        """Every registered upstream, by name."""
        return [view for name in sorted(self.upstreams) if (view := self.view(name)) is not None]

    def view(self, name: str) -> UpstreamView | None:
        """One upstream; None if no such server is registered."""
        upstream = self.upstreams.get(name)
        if upstream is None or name not in self.catalogues.servers:
            return None
        return upstream.view(self.catalogues.servers[name], self._loop.time())

    def calls(self, name: str | None = None) -> list[CallView]:
        """The calls in flight, oldest first."""
        now = self._loop.time()
        return [
            call_view(call, self._dispatcher.call_type(call.request.method), now)
            for call in self._calls.table.values()
            if name is None or call.server == name
        ]

    def kill_call(self, call_id: str) -> bool:
        """End the call ``c-NUMBER``; False if there is none."""
        number = call_id.removeprefix("c-")
        return number.isascii() and number.isdigit() and self._dispatcher.end_call(int(number))

    def capabilities(self, name: str) -> list[CapabilityView]:
        """What a server lists or once listed; nothing for an unknown one."""
        server = self.catalogues.servers.get(name)
        return [] if server is None else capabilities(server)

    async def apply(self, name: str) -> None:
        """Bring an upstream to what the store says of it now. Raises StoreError."""
        async with self._locks.setdefault(name, asyncio.Lock()):
            try:
                resource = await self._store.resources.get("mcp_server", name)
            except NotFound:
                self._drop(name)
                return
            self._adopt(resource, await self._store.preferences.load(name))

    async def preference_changed(self, name: str) -> None:
        """Read again what is switched on of a server, and bring the lists to it. Raises StoreError."""
        upstream = self.upstreams.get(name)
        if upstream is not None:
            choices = await self._store.preferences.load(name)
            self._register(upstream, on=self.catalogues.servers[name].on, choices=choices)

    async def restart(self, name: str) -> None:
        """End an upstream's worker and start it again, whatever failed before."""
        if (upstream := self.upstreams.get(name)) is not None:
            self._event(upstream, words.Restart())

    async def refresh(self, name: str, era: str = "") -> None:
        """Have an upstream's lists read again, and wait for it within limits. Does nothing without a worker."""
        upstream = self.upstreams.get(name)
        if upstream is None or upstream.life.phase != "running" or upstream.refreshing or upstream.peer is None:
            return
        upstream.refreshing = True
        corr, answer = self._calls.request(name)
        try:
            self._channel.send(upstream.peer, frames.Refresh(corr, era))  # type: ignore[arg-type]
            async with asyncio.timeout(REFRESH_SECONDS):
                await answer
        except (TimeoutError, RefusedByWorker) as error:
            _log.info("the lists of '%s' were not read again: %s", name, error or "no answer in time")
        finally:
            upstream.refreshing = False
            self._calls.requests.pop(corr, None)

    def refresh_soon(self, name: str, era: str = "") -> None:
        """The same, in the background."""
        self._background(self.refresh(name, era), f"refresh {name}")

    async def wait_discovered(self, name: str, deadline: float) -> UpstreamView | None:
        """Wait (to loop time ``deadline``) until an upstream's start has an outcome; then its view."""

        def outcome() -> bool:
            upstream, server = self.upstreams.get(name), self.catalogues.servers.get(name)
            if upstream is None or server is None:
                return True
            return upstream.settled and (upstream.life.state != "ready" or bool(server.bases))

        await self.pulse.until(outcome, deadline)
        return self.view(name)

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

    # ---- wishes

    def _adopt(self, resource: Resource, choices: dict[Any, bool]) -> None:
        """A server is in the store, as ``resource`` says."""
        upstream = self.upstreams.get(resource.name)
        before = None if upstream is None else upstream.config
        if upstream is None:
            life = Lifecycle(resource.name, incarnation=self._incarnations.get(resource.name, 0))
            upstream = self.upstreams[resource.name] = Upstream(resource.name, resource.config, life)
        upstream.config = resource.config
        upstream.life.start_seconds = resource.config.limits.start_seconds
        self._register(upstream, on=resource.enabled, choices=choices)
        if not resource.enabled:
            self._event(upstream, words.Disable())
            return
        self._event(upstream, words.Enable())
        if before is not None and needs_restart(before, resource.config):
            upstream.known = None
            self._event(upstream, words.Reconfigure())

    def _register(self, upstream: Upstream, *, on: bool, choices: dict[Any, bool]) -> None:
        kinds = self.catalogues.register(upstream.name, on=on, auto_enable=upstream.config.auto_enable, choices=choices)
        self._announce_lists(upstream.name, kinds)

    def _drop(self, name: str) -> None:
        kinds = self.catalogues.remove(name)
        self._announce_lists(name, kinds)
        if (upstream := self.upstreams.get(name)) is not None:
            self._event(upstream, words.Remove())

    def _announce_lists(self, name: str, kinds: frozenset[str]) -> None:
        if kinds:
            self._dispatcher.lists_changed(name, kinds)
        self._dispatcher.gate_changed(name)
        self.pulse.beat()

    # ---- events in, effects out

    def _event(self, upstream: Upstream, event: words.Event) -> None:
        """Feed the lifecycle. An effect may bring about another event: that one waits for its turn."""
        self._events.append((upstream, event))
        if self._handling:
            return
        self._handling = True
        try:
            while self._events:
                self._handle(*self._events.popleft())
        finally:
            self._handling = False

    def _handle(self, upstream: Upstream, event: words.Event) -> None:
        try:
            effects = upstream.life.handle(event, self._loop.time(), random.random())
        except IllegalEvent:
            _log.exception("an event was ignored that cannot happen")
            return
        self._incarnations[upstream.name] = upstream.life.incarnation
        for effect in effects:
            _CARRY_OUT[type(effect)](self, upstream, effect)

    def _queue_start(self, upstream: Upstream, effect: words.Effect) -> None:
        self._queue.append(upstream.name)
        self._grant()

    def _unqueue(self, upstream: Upstream, effect: words.Effect) -> None:
        self._queue = deque(name for name in self._queue if name != upstream.name)

    def _release(self, upstream: Upstream, effect: words.Effect) -> None:
        self._starting.discard(upstream.name)
        self._grant()

    def _grant(self) -> None:
        while self._queue and len(self._starting) < STARTING_AT_ONCE and not self.stopping:
            upstream = self.upstreams.get(self._queue.popleft())
            if upstream is not None and upstream.life.phase == "queued":
                self._starting.add(upstream.name)
                self._event(upstream, words.Granted())

    def _fork(self, upstream: Upstream, effect: words.Effect) -> None:
        assert isinstance(effect, words.Fork)
        self._background(self._start_worker(upstream, effect.incarnation), f"start {upstream.name}")

    async def _start_worker(self, upstream: Upstream, incarnation: int) -> None:
        name = upstream.name
        try:
            upstream.resolved = await templates.resolve(upstream.config, name, self._vault)
        except CredentialError as error:
            self._fail(upstream, str(error))
            self._event(upstream, words.Unconfigurable(incarnation, str(error)))
            return
        secret = secrets.token_urlsafe(24)
        upstream.facts = upstream.beat = None
        upstream.peer = self._channel.expect(name, incarnation, secret)
        boot = forkproto.Boot(name, incarnation, secret, self._home.control_ipc, self._home.bulk_ipc)
        try:
            pid = await self._forks.fork(
                name, incarnation, f"coffer-worker: {name} starting", msgspec.msgpack.encode(boot)
            )
        except ForkError as error:
            self._fail(upstream, str(error))
            self._event(upstream, words.ForkFailed(incarnation, str(error)))
            return
        upstream.started_at = utc_now()
        self._event(upstream, words.Forked(incarnation, pid))

    def greeted(self, peer: Peer) -> None:
        """A worker said Hello on both sockets (the channel's callback)."""
        if (upstream := self._of(peer)) is not None:
            self._event(upstream, words.Greeted(peer.incarnation, peer.pid))

    def _configure(self, upstream: Upstream, effect: words.Effect) -> None:
        assert upstream.peer is not None
        hint = upstream.known.era if upstream.known is not None else ""
        frame = frames.Configure(
            config=upstream.resolved or upstream.config,
            run=f"{self._home.root.name}-{upstream.peer.incarnation}",
            coffer_version=VERSION,
            logs_dir=str(self._home.logs),
            records_dir=str(self._home.upstream_pids),
            era_hint=hint,
        )
        upstream.resolved = None
        self._channel.send(upstream.peer, frame)
        self._liveness.watch((upstream.name, upstream.peer.incarnation), self._loop.time())

    def _send_stop(self, upstream: Upstream, effect: words.Effect) -> None:
        assert isinstance(effect, words.SendStop)
        if upstream.peer is not None:
            drain = 0.0 if self.stopping else effect.drain
            self._channel.send(upstream.peer, frames.Stop(drain, effect.reason))

    def _ask_dump(self, upstream: Upstream, effect: words.Effect) -> None:
        if upstream.peer is not None:
            _log.error(
                "worker '%s': %s; asking for its stacks, then replacing it", upstream.name, upstream.life.message
            )
            self._channel.send(upstream.peer, frames.Dump(0))

    def _kill(self, upstream: Upstream, effect: words.Effect) -> None:
        assert isinstance(effect, words.Kill)
        self._fail(upstream, effect.reason)
        self._forks.kill(effect.pid, effect.incarnation, effect.reason)

    def _lost(self, upstream: Upstream, effect: words.Effect) -> None:
        assert isinstance(effect, words.Lost)
        self._liveness.forget((upstream.name, effect.incarnation))
        peer, upstream.peer = upstream.peer, None
        upstream.facts = upstream.beat = upstream.resolved = upstream.up_since = None
        if upstream.life.phase == "waiting":
            self._fail(upstream, effect.reason)
            self.catalogues.settle(upstream.name)
        if peer is not None:
            self._channel.forget(peer)
            self._dispatcher.worker_lost(upstream.name, peer, effect.reason)

    def _set_timer(self, upstream: Upstream, effect: words.Effect) -> None:
        assert isinstance(effect, words.SetTimer)
        if (old := upstream.timers.pop(effect.timer, None)) is not None:
            old.cancel()
        fired = words.Fired(effect.incarnation, effect.timer)
        seconds = min(effect.seconds, 5.0) if self.stopping and effect.timer == "stop" else effect.seconds
        upstream.timers[effect.timer] = self._loop.call_later(seconds, self._event, upstream, fired)

    def _announce(self, upstream: Upstream, effect: words.Effect) -> None:
        self._dispatcher.gate_changed(upstream.name)
        self.pulse.beat()

    def _gone(self, upstream: Upstream, effect: words.Effect) -> None:
        for timer in upstream.timers.values():
            timer.cancel()
        if self.upstreams.get(upstream.name) is upstream:
            del self.upstreams[upstream.name]
        self._dispatcher.gate_changed(upstream.name)
        self.pulse.beat()

    # ---- what workers say

    def _of(self, peer: Peer) -> Upstream | None:
        upstream = self.upstreams.get(peer.name)
        return upstream if upstream is not None and upstream.peer is peer else None

    def _exited(self, exit_: WorkerExit) -> None:
        upstream = self.upstreams.get(exit_.name)
        if upstream is not None:
            self._event(upstream, words.Exited(exit_.incarnation, f"its worker ended: {exit_.reason}"))

    def _on_state(self, peer: Peer, frame: frames.State, _: bytes) -> None:
        upstream = self._of(peer)
        if upstream is None:
            return
        before, upstream.facts = upstream.facts, frame
        if frame.state == "ready":
            upstream.known = frame
            upstream.slow = False
            if upstream.up_since is None:
                upstream.up_since = self._loop.time()
        elif frame.state in ("backoff", "failed", "needs_login"):
            upstream.up_since = None
            self._fail(upstream, frame.message)
            self.catalogues.settle(upstream.name)
        self._event(upstream, words.Reported(peer.incarnation, frame.state, frame.message))
        if frame.state == "ready" and (before is None or before.state != "ready"):
            self._dispatcher.ready(upstream.name)

    def _on_heartbeat(self, peer: Peer, frame: frames.Heartbeat, _: bytes) -> None:
        if (upstream := self._of(peer)) is not None:
            upstream.beat = frame
            who = (peer.name, peer.incarnation)
            now = self._loop.time()
            self._liveness.beat(who, now, loop_lag=frame.loop_lag, cpu_seconds=frame.cpu_seconds)

    def _on_catalogue(self, peer: Peer, frame: frames.Catalogue, payload: bytes) -> None:
        upstream = self._of(peer)
        server = self.catalogues.servers.get(peer.name)
        if upstream is None or server is None:
            return
        base = base_of(frame, payload, self._loop.time())
        if frame.session:
            kinds = self.catalogues.overlay(peer.name, frame.session, base)
        else:
            kinds = self.catalogues.put(peer.name, frame.era, base)
        self._announce_lists(peer.name, kinds)
        seen = [(entry.type, entry.key) for entry in base]
        upstream.refreshed_at = base.read_at
        self._background(self._remember(upstream, seen), f"remember {peer.name}")

    async def _remember(self, upstream: Upstream, seen: list[Any]) -> None:
        """Record what was listed; what is new follows the server's policy from now on, even if that changes."""
        async with self._locks.setdefault(upstream.name, asyncio.Lock()):
            auto = upstream.config.auto_enable
            try:
                new = await self._store.preferences.seen(upstream.name, seen, auto)
            except NotFound:
                return  # removed meanwhile
            except StoreError as error:
                _log.warning("what '%s' lists was not recorded: %s", upstream.name, error)
                return
            server = self.catalogues.servers.get(upstream.name)
            if server is not None:
                server.choices = {**{cast(Key, key): auto for key in new}, **server.choices}

    def _on_dumped(self, peer: Peer, frame: frames.Dumped, payload: bytes) -> None:
        if frame.corr in self._calls.requests:
            answer = self._calls.requests[frame.corr][1]
            if not answer.done():
                answer.set_result(payload)
            return
        upstream = self._of(peer)
        if upstream is not None and frame.corr == 0:
            _log.error("the stacks of worker '%s': %s", peer.name, payload[:20_000].decode("utf-8", "replace"))
            self._event(upstream, words.Dumped(peer.incarnation))

    def _on_secret_request(self, peer: Peer, frame: frames.LoadSecret | frames.StoreSecret, _: bytes) -> None:
        self._channel.send(peer, frames.Secret(frame.corr, error="upstreams cannot keep secrets of their own yet"))

    async def _watch(self) -> None:
        """Once a second: who has gone silent, or stands still."""
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            for verdict in self._liveness.check(self._loop.time()):
                name, incarnation = verdict.who
                if (upstream := self.upstreams.get(name)) is not None:
                    self._event(upstream, words.Unresponsive(incarnation, verdict.reason))

    # ---- small things

    def _fail(self, upstream: Upstream, message: str) -> None:
        if message and message != upstream.last_error:
            upstream.last_error = message
            _log.warning("upstream '%s': %s", upstream.name, message)

    def _background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        if self.stopping:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("%s failed", task.get_name(), exc_info=error)


_CARRY_OUT: Final[dict[type, Callable[[Supervision, Upstream, Any], None]]] = {
    words.Queue: Supervision._queue_start,
    words.Unqueue: Supervision._unqueue,
    words.Release: Supervision._release,
    words.Fork: Supervision._fork,
    words.Configure: Supervision._configure,
    words.SendStop: Supervision._send_stop,
    words.AskDump: Supervision._ask_dump,
    words.Kill: Supervision._kill,
    words.Lost: Supervision._lost,
    words.SetTimer: Supervision._set_timer,
    words.Announce: Supervision._announce,
    words.Gone: Supervision._gone,
}
