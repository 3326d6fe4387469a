"""The fork server's client: workers on request, their exits, and another fork server when one is lost.

Owns the workers' lifelines and every process below the supervisor. Never decides whether a worker is to
be started or replaced, and never blocks the loop: what cannot be sent is queued, what may take time
(killing a tree) runs in a thread.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coffer_common import forkproto
from coffer_common.forkproto import Event, Exited, Fork, Forked, ForkFailed, Kill, Quit
from coffer_supervisor.forklink import ForkLink

log = logging.getLogger(__name__)

FORKSERVER_LOST: Final = "forkserver lost"
_RESTART_PAUSES: Final = (0.0, 0.5, 1.0, 2.0, 5.0, 15.0)
_CLOCK_GAP: Final = 1.0


class ForkError(Exception):
    """No worker came of a request; the text says for which upstream, why, and what happens next."""


@dataclass(frozen=True, slots=True)
class WorkerExit:
    """A worker is gone: its exit code (None if unknown), the signal that killed it (0: none), and why."""

    pid: int
    name: str
    incarnation: int
    status: int | None
    signal: int
    reason: str


@dataclass(slots=True)
class _Worker:
    name: str
    incarnation: int
    lifeline: int


@dataclass(slots=True)
class _Pending:
    future: asyncio.Future[int]
    order: Fork
    lifeline: int


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds: to start (imports included), to fork, between pings, for the answer to one, and for the answer of one
    that is stopped."""

    start: float = 30.0
    fork: float = 10.0
    ping_every: float = 5.0
    ping: float = 10.0
    stopped: float = 2.0


DEFAULT_TIMING: Final = Timing()


class ForkServer:
    """Workers on request, for as long as the supervisor lives.

    ``on_exit`` is called on the loop, once for each worker that ``fork`` returned; it must not raise.
    ``spare`` names children of the supervisor that have nothing to do with workers: they, and all below
    them, are left alone when everything below the fork server has to be killed. ``stderr`` is where the
    fork server and the workers write what nothing else catches (None: where the supervisor does).
    """

    def __init__(
        self,
        home: Path,
        on_exit: Callable[[WorkerExit], None],
        *,
        timing: Timing = DEFAULT_TIMING,
        stderr: int | None = None,
        spare: Callable[[], Collection[int]] = tuple,
    ) -> None:
        self._home = home
        self._on_exit = on_exit
        self._timing = timing
        self._stderr = stderr
        self._spare = spare
        self._link: ForkLink | None = None
        self._up = asyncio.Event()
        self._asked = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._burial: asyncio.Task[None] | None = None
        self._stopping = False
        self._pending: dict[int, _Pending] = {}
        self._workers: dict[int, _Worker] = {}
        self._requests = 0
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        """The fork server's PID, None while there is none."""
        return self._link.pid if self._link is not None else None

    @property
    def workers(self) -> dict[int, tuple[str, int]]:
        """PID -> (name, incarnation) of each worker that lives as far as is known."""
        return {pid: (worker.name, worker.incarnation) for pid, worker in self._workers.items()}

    async def start(self) -> None:
        """Start the fork server and wait until it can fork. Raises ForkError when it cannot."""
        await self._launch()
        self._keeper = asyncio.create_task(self._keep(), name="fork server keeper")

    async def fork(
        self,
        name: str,
        incarnation: int,
        title: str,
        opaque: bytes,
        *,
        target: str = forkproto.DEFAULT_TARGET,
        seconds: float | None = None,
    ) -> int:
        """Fork a worker and return its PID; waits for a fork server that is being replaced, within the
        deadline. Raises ForkError."""
        self._requests += 1
        order = Fork(self._requests, name, incarnation, title, opaque, target)
        try:
            async with asyncio.timeout(self._timing.fork if seconds is None else seconds):
                return await self._request(await self._live_link(name), order)
        except TimeoutError:
            raise ForkError(f"the fork server did not start a worker for '{name}' in time") from None

    def kill(self, pid: int, incarnation: int, reason: str) -> None:
        """SIGKILL that worker, and with it all it started; ``on_exit`` follows. A stale PID is left alone."""
        worker = self._workers.get(pid)
        name = worker.name if worker is not None else "(unknown)"
        log.warning("killing worker '%s' (pid %d, incarnation %d): %s", name, pid, incarnation, reason)
        if self._link is not None:
            self._link.send(Kill(pid, incarnation))
            self._asked.set()

    def unreported(self) -> None:
        """A worker has ended a while ago, and no word of it came: a stopped fork server is of no more use."""
        if self._link is not None and self._link.stopped():
            self._link.lose("it is stopped, and does not report that a worker has ended")
        self._asked.set()

    async def stop(self, seconds: float) -> None:
        """End the fork server with all below it; returns when nothing of it lives (or cannot be killed)."""
        self._stopping = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
            self._keeper = None
        if self._burial is not None:
            await self._burial
        self._up.set()
        link = self._link
        if link is None:
            return
        link.send(Quit())
        await _set_within(link.lost, seconds)
        await self._end(link, "stopped")

    # --- one fork server after another ----------------------------------------------------

    async def _launch(self) -> None:
        try:
            link = self._link = ForkLink(self._home, self._stderr, self._take)
        except OSError as error:
            raise ForkError(f"cannot start the fork server: {error}") from error
        if not await _first(link.ready, link.lost, self._timing.start):
            why = link.why or f"it was not ready within {self._timing.start:g} s"
            await self._end(link, why)
            raise ForkError(f"the fork server did not start: {why}; its standard error says more")
        self._up.set()

    async def _keep(self) -> None:
        """Watch over the fork server; replace it whenever it is lost, and never give up."""
        failures = 0
        while True:
            if (link := self._link) is not None:
                await self._watch(link)
                log.error("fork server (pid %d) lost: %s; killing all below it", link.pid, link.why)
                self._up.clear()
                await self._end(link, FORKSERVER_LOST)
            await asyncio.sleep(_RESTART_PAUSES[min(failures, len(_RESTART_PAUSES) - 1)])
            try:
                await self._launch()
            except ForkError as error:
                failures += 1
                log.error("%s; trying again", error)
            else:
                failures = 0
                self.restarts += 1

    async def _watch(self, link: ForkLink) -> None:
        """Return when the link is lost, by its own end or by a ping without an answer. What is asked of it brings the
        next ping at once; answers come in order, and in milliseconds."""
        stopped, ping = self._timing.stopped, self._timing.ping
        while not await _first(link.lost, self._asked, self._timing.ping_every):
            self._asked.clear()
            asked = asyncio.get_running_loop().time()
            link.ping()
            if await _answered(link, asked, stopped):
                continue
            if link.stopped():
                link.lose(f"it is stopped (SIGSTOP), and has not answered for {stopped:g} s")
            elif not await _answered(link, asked, ping):
                link.lose(f"no answer to a ping within {ping:g} s")

    async def _end(self, link: ForkLink, reason: str) -> None:
        """Bury a link; to cancel this is not to leave its processes half killed."""
        self._burial = asyncio.create_task(self._bury(link, reason), name="fork server burial")
        await asyncio.shield(self._burial)

    async def _bury(self, link: ForkLink, reason: str) -> None:
        """Kill a lost fork server and all below it, then report its workers."""
        self._link = None
        pending, self._pending = self._pending, {}
        workers, self._workers = self._workers, {}
        left = await link.bury(tuple(self._spare()))
        if left:
            log.error("these processes do not die: %s", ", ".join(str(proc.pid) for proc in left))
        for waiting in pending.values():
            os.close(waiting.lifeline)
            if not waiting.future.done():
                name = waiting.order.name
                waiting.future.set_exception(ForkError(f"the fork server was lost while starting '{name}'"))
        for pid, worker in workers.items():
            os.close(worker.lifeline)
            self._on_exit(WorkerExit(pid, worker.name, worker.incarnation, None, 0, reason))

    # --- workers ------------------------------------------------------------------------------

    async def _live_link(self, name: str) -> ForkLink:
        while (link := self._link) is None or not self._up.is_set() or self._stopping:
            if self._stopping:
                raise ForkError(f"no worker for '{name}': Coffer is stopping")
            await self._up.wait()
        return link

    async def _request(self, link: ForkLink, order: Fork) -> int:
        try:
            theirs, ours = os.pipe()
        except OSError as error:
            raise ForkError(f"no worker for '{order.name}': {error.strerror}") from error
        waiting = _Pending(asyncio.get_running_loop().create_future(), order, ours)
        self._pending[order.request] = waiting
        link.send(order, theirs)
        self._asked.set()
        try:
            return await waiting.future
        except asyncio.CancelledError:
            future = waiting.future
            if future.done() and not future.cancelled() and future.exception() is None:
                self._abandon(future.result(), order)
            raise

    def _take(self, event: Event) -> None:
        match event:
            case Forked(request=request, pid=pid):
                waiting = self._pending.pop(request)
                self._workers[pid] = _Worker(waiting.order.name, waiting.order.incarnation, waiting.lifeline)
                if waiting.future.done():
                    self._abandon(pid, waiting.order)
                else:
                    waiting.future.set_result(pid)
            case ForkFailed(request=request, message=message):
                waiting = self._pending.pop(request)
                os.close(waiting.lifeline)
                if not waiting.future.done():
                    waiting.future.set_exception(ForkError(f"no worker for '{waiting.order.name}': {message}"))
            case Exited():
                self._exited(event)

    def _abandon(self, pid: int, order: Fork) -> None:
        """Nobody waits for this worker any more: without an owner it must not live, nor be reported."""
        worker = self._workers.pop(pid, None)
        if worker is not None:
            os.close(worker.lifeline)
            if self._link is not None:
                self._link.send(Kill(pid, order.incarnation))

    def _exited(self, event: Exited) -> None:
        worker = self._workers.pop(event.pid, None)
        if worker is None:
            return
        os.close(worker.lifeline)
        how = f"killed by signal {event.signal}" if event.signal else f"exited with code {event.status}"
        status = None if event.signal else event.status
        self._on_exit(WorkerExit(event.pid, event.name, event.incarnation, status, event.signal, how))


async def _answered(link: ForkLink, asked: float, seconds: float) -> bool:
    """Whether the ping of ``asked`` (loop time) needs no more waiting within ``seconds`` of then: it is answered, or
    the link is lost, or our own clock jumped (suspend, SIGSTOP), when the fork server may have slept as well."""
    loop = asyncio.get_running_loop()
    if await _first(link.pong, link.lost, asked + seconds - loop.time()) or link.lost.is_set():
        return True
    return loop.time() - asked > seconds + _CLOCK_GAP


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


async def _first(wanted: asyncio.Event, other: asyncio.Event, seconds: float) -> bool:
    """Wait until either is set or the time is up; whether ``wanted`` is."""
    waits = [asyncio.create_task(event.wait()) for event in (wanted, other)]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
    return wanted.is_set()
