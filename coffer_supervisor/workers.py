"""Carries out what ``core.lifecycle`` decides about each upstream's worker: fork, configure, stop, kill, replace.

Owns the upstreams' records, the fork server, timers, the places among those starting, and the watch over heartbeats.
Never decides a phase by itself, and never touches a call: what callers must be told goes through ``Dispatcher``.
"""

import asyncio
import logging
import random
import secrets
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

import msgspec

from coffer_common import forkproto, frames
from coffer_common.paths import Home
from coffer_common.proctree import has_ended, is_stopped
from coffer_common.version import VERSION
from coffer_supervisor import sweep, templates
from coffer_supervisor.channel import Channel, Peer
from coffer_supervisor.core import lifecycle_words as words
from coffer_supervisor.core.catalogue import Catalogues
from coffer_supervisor.core.lifecycle import IllegalEvent
from coffer_supervisor.core.liveness import BEAT_SECONDS, Liveness
from coffer_supervisor.credentials import CredentialError, CredentialVault
from coffer_supervisor.forks import ForkError, ForkServer, WorkerExit
from coffer_supervisor.pulse import Pulse
from coffer_supervisor.upstream import Upstream, utc_now

STARTING_AT_ONCE: Final = 4
LAST_WORDS_SECONDS: Final = 0.1
_STOP_SECONDS: Final = 5.0
_FORKSERVER_SECONDS: Final = 2.0

_log: Final = logging.getLogger(__name__)


class Dispatcher(Protocol):
    """Who answers callers (the router). Called on the loop; must not raise."""

    def gate_changed(self, name: str) -> None:
        """What a call for that upstream meets has changed, or its catalogue has."""

    def worker_lost(self, name: str, peer: Peer, reason: str) -> None:
        """That worker answers no more."""

    def ready(self, name: str) -> None:
        """A worker's upstream became ready."""

    def lists_changed(self, name: str, kinds: frozenset[str], session: str = "") -> None:
        """Clients see other lists of that upstream now."""

    def call_type(self, method: str) -> str:
        """The noun of a call's method."""

    def end_call(self, corr: int) -> bool:
        """An operator ends a call."""


class Workers:
    """All upstreams' workers. ``dispatcher`` is set before ``start``; ``answers_awaited`` says whether a server's
    worker has calls that are open."""

    dispatcher: Dispatcher
    answers_awaited: Callable[[str], bool]

    def __init__(self, vault: CredentialVault, channel: Channel, catalogues: Catalogues, home: Home) -> None:
        self._vault, self._channel, self._catalogues, self._home = vault, channel, catalogues, home
        self._forks = ForkServer(home.root, self._exited)
        self._loop = asyncio.get_running_loop()
        self.upstreams: dict[str, Upstream] = {}
        self.pulse = Pulse()
        self.stopping = False
        self.seen: frames.Caller | None = None
        """The client seen last: its revision and capabilities."""
        self.liveness: Liveness[tuple[str, int]] = Liveness()
        self._incarnations: dict[str, int] = {}
        self._queue: deque[str] = deque()
        self._starting: set[str] = set()
        self._events: deque[tuple[Upstream, words.Event]] = deque()
        self._handling = False
        self._tasks: set[asyncio.Task[None]] = set()

    # ---- life

    async def start(self) -> None:
        """Start the fork server; workers that are wished meanwhile wait for it. Raises ForkError."""
        await self._forks.start()
        self.background(self._watch(), "worker heartbeats")

    async def stop(self, seconds: float) -> None:
        """End every worker, politely for ``seconds``, then the fork server with all that is left."""
        self.stopping = True
        for upstream in list(self.upstreams.values()):
            self.event(upstream, words.Disable())
        await self.pulse.until(self._all_rest, self._loop.time() + seconds)
        await self._forks.stop(_FORKSERVER_SECONDS)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for upstream in self.upstreams.values():
            _cancel_timers(upstream)

    def _all_rest(self) -> bool:
        return all(upstream.life.phase in ("disabled", "removed") for upstream in self.upstreams.values())

    def background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run ``work`` beside everything else; what it raises is logged."""
        if self.stopping:
            work.close()
            return
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("%s failed", task.get_name(), exc_info=error)

    def last_incarnation(self, name: str) -> int:
        """The number of the last worker of that name: numbers are never used twice."""
        return self._incarnations.get(name, 0)

    def of(self, peer: Peer) -> Upstream | None:
        """The upstream whose present worker that is; None for an earlier one's."""
        upstream = self.upstreams.get(peer.name)
        return upstream if upstream is not None and upstream.peer is peer else None

    def failed(self, upstream: Upstream, message: str) -> None:
        """Keep and log why something went wrong, once."""
        if message and message != upstream.last_error:
            upstream.last_error = message
            _log.warning("upstream '%s': %s", upstream.name, message.removeprefix(f"Upstream '{upstream.name}' "))

    def changed(self, name: str, kinds: frozenset[str] = frozenset(), session: str = "") -> None:
        """Tell everyone who waits, and everyone who listens (of lists that one session alone sees: that session)."""
        if kinds:
            self.dispatcher.lists_changed(name, kinds, session)
        self.dispatcher.gate_changed(name)
        self.pulse.beat()

    # ---- events in

    def event(self, upstream: Upstream, event: words.Event) -> None:
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
            try:
                _CARRY_OUT[type(effect)](self, upstream, effect)
            except Exception:
                # The next effects count all the same: a worker that is to be killed must not live on.
                _log.exception("upstream '%s': %s was not carried out", upstream.name, type(effect).__name__)

    def greeted(self, peer: Peer) -> None:
        """A worker said Hello on both sockets (the channel's callback)."""
        if (upstream := self.of(peer)) is not None:
            self.event(upstream, words.Greeted(peer.incarnation, peer.pid))

    def _exited(self, exit_: WorkerExit) -> None:
        """The news of an end comes by another road than the worker's last words, and may be faster: a call that it has
        just answered is not lost."""
        if exit_.status == 0 and self.answers_awaited(exit_.name) and not self.stopping:
            self._loop.call_later(LAST_WORDS_SECONDS, self._ended_for_good, exit_)
        else:
            self._ended_for_good(exit_)

    def _ended_for_good(self, exit_: WorkerExit) -> None:
        if (upstream := self.upstreams.get(exit_.name)) is not None:
            reason = f"its worker ended: {exit_.reason}"
            if exit_.status == forkproto.EXIT_UNCONFIGURED and upstream.life.message:
                reason = upstream.life.message  # its own last word
            self.event(upstream, words.Exited(exit_.incarnation, reason))
        if exit_.status != 0:
            self.background(self._sweep(exit_.pid), f"sweep after {exit_.name}")

    async def _sweep(self, pid: int) -> None:
        """A worker that was killed could not take away its records of processes, nor see that they are gone."""
        await asyncio.to_thread(sweep.sweep, self._home.upstream_pids, worker=pid)

    async def _watch(self) -> None:
        """Once a second: who has gone silent, or stands still."""
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            for verdict in self.liveness.check(self._loop.time()):
                name, incarnation = verdict.who
                if (upstream := self.upstreams.get(name)) is not None:
                    self.event(upstream, words.Unresponsive(incarnation, verdict.reason))
            if any(self._ended_unheard(name) for name, _ in self.liveness.silent(self._loop.time())):
                self._forks.unreported()

    def _ended_unheard(self, name: str) -> bool:
        """Whether a worker that has gone silent is no more, which its fork server should have told."""
        upstream = self.upstreams.get(name)
        return upstream is not None and upstream.life.pid > 0 and has_ended(upstream.life.pid)

    # ---- effects out

    def _queue_start(self, upstream: Upstream, effect: words.Queue) -> None:
        self._queue.append(upstream.name)
        self._grant()

    def _unqueue(self, upstream: Upstream, effect: words.Unqueue) -> None:
        self._queue = deque(name for name in self._queue if name != upstream.name)

    def _release(self, upstream: Upstream, effect: words.Release) -> None:
        self._starting.discard(upstream.name)
        self._grant()

    def _grant(self) -> None:
        while self._queue and len(self._starting) < STARTING_AT_ONCE and not self.stopping:
            upstream = self.upstreams.get(self._queue.popleft())
            if upstream is not None and upstream.life.phase == "queued":
                self._starting.add(upstream.name)
                self.event(upstream, words.Granted())

    def hasten(self, name: str) -> None:
        """Somebody waits for this server now: it starts at once if it is queued, beside the few that may otherwise."""
        upstream = self.upstreams.get(name)
        if upstream is not None and upstream.life.phase == "queued" and name in self._queue and not self.stopping:
            self._queue.remove(name)
            self.event(upstream, words.Granted())

    def _fork(self, upstream: Upstream, effect: words.Fork) -> None:
        self.background(self._start(upstream, effect.incarnation), f"start {upstream.name}")

    async def _start(self, upstream: Upstream, incarnation: int) -> None:
        """A start has an outcome, whatever happens: without one its upstream would be left forking for ever."""
        try:
            await self._start_worker(upstream, incarnation)
        except Exception as error:
            self.event(upstream, words.ForkFailed(incarnation, f"its worker was not started: {type(error).__name__}"))
            raise

    async def _start_worker(self, upstream: Upstream, incarnation: int) -> None:
        name = upstream.name
        try:
            upstream.resolved = await templates.resolve(upstream.config, name, self._vault)
        except CredentialError as error:
            self.event(upstream, words.Unconfigurable(incarnation, str(error)))
            return
        secret = secrets.token_urlsafe(24)
        upstream.facts = upstream.beat = None
        upstream.peer = self._channel.expect(name, incarnation, secret)
        boot = forkproto.Boot(name, incarnation, secret, self._home.control_ipc, self._home.bulk_ipc)
        opaque = msgspec.msgpack.encode(boot)
        try:
            pid = await self._forks.fork(name, incarnation, f"coffer-worker: {name} starting", opaque)
        except ForkError as error:
            self.event(upstream, words.ForkFailed(incarnation, str(error)))
            return
        upstream.started_at = utc_now()
        self.event(upstream, words.Forked(incarnation, pid))

    def _configure(self, upstream: Upstream, effect: words.Configure) -> None:
        assert upstream.peer is not None
        filled = upstream.resolved or templates.Filled(upstream.config, ())
        frame = frames.Configure(
            config=filled.config,
            run=f"{self._home.root.name}-{effect.incarnation}",
            coffer_version=VERSION,
            logs_dir=str(self._home.logs),
            records_dir=str(self._home.upstream_pids),
            era_hint=upstream.known.era if upstream.known is not None else "",
            secrets=filled.secrets,
            seen=self.seen,
        )
        upstream.resolved = None
        self._channel.send(upstream.peer, frame)
        self.liveness.watch((upstream.name, effect.incarnation), self._loop.time())

    def _send_stop(self, upstream: Upstream, effect: words.SendStop) -> None:
        if upstream.peer is not None:
            drain = 0.0 if self.stopping else effect.drain
            self._channel.send(upstream.peer, frames.Stop(drain, effect.reason))
        if is_stopped(upstream.life.pid):
            reason = "it is stopped (SIGSTOP), and cannot end in good order"
            self.event(upstream, words.Unresponsive(effect.incarnation, reason))

    def _ask_dump(self, upstream: Upstream, effect: words.AskDump) -> None:
        if upstream.peer is not None:
            _log.error("worker '%s': %s; its stacks follow", upstream.name, upstream.life.message)
            self._channel.send(upstream.peer, frames.Dump(0))

    def _kill(self, upstream: Upstream, effect: words.Kill) -> None:
        self.failed(upstream, effect.reason)
        self._forks.kill(effect.pid, effect.incarnation, effect.reason)

    def _lost(self, upstream: Upstream, effect: words.Lost) -> None:
        self.liveness.forget((upstream.name, effect.incarnation))
        peer, upstream.peer = upstream.peer, None
        upstream.facts = upstream.beat = upstream.resolved = upstream.up_since = None
        if upstream.life.phase == "waiting":
            self.failed(upstream, effect.reason)
            self._catalogues.settle(upstream.name)
        if peer is not None:
            self._channel.forget(peer)
            self.dispatcher.worker_lost(upstream.name, peer, effect.reason)

    def _set_timer(self, upstream: Upstream, effect: words.SetTimer) -> None:
        if (old := upstream.timers.pop(effect.timer, None)) is not None:
            old.cancel()
        fired = words.Fired(effect.incarnation, effect.timer)
        hurry = self.stopping and effect.timer == "stop"
        seconds = min(effect.seconds, _STOP_SECONDS) if hurry else effect.seconds
        upstream.timers[effect.timer] = self._loop.call_later(seconds, self.event, upstream, fired)

    def _announce(self, upstream: Upstream, effect: words.Announce) -> None:
        self.changed(upstream.name)

    def _gone(self, upstream: Upstream, effect: words.Gone) -> None:
        _cancel_timers(upstream)
        if self.upstreams.get(upstream.name) is upstream:
            del self.upstreams[upstream.name]
        self.changed(upstream.name)


def _cancel_timers(upstream: Upstream) -> None:
    for timer in upstream.timers.values():
        timer.cancel()


_CARRY_OUT: Final[dict[type, Callable[[Workers, Upstream, Any], None]]] = {
    words.Queue: Workers._queue_start,
    words.Unqueue: Workers._unqueue,
    words.Release: Workers._release,
    words.Fork: Workers._fork,
    words.Configure: Workers._configure,
    words.SendStop: Workers._send_stop,
    words.AskDump: Workers._ask_dump,
    words.Kill: Workers._kill,
    words.Lost: Workers._lost,
    words.SetTimer: Workers._set_timer,
    words.Announce: Workers._announce,
    words.Gone: Workers._gone,
}
