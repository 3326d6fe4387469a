"""The fork server's client: starts it, asks it for workers, notices its death, and starts another.

Owns the socketpair, the workers' lifelines and every process below the supervisor. Never decides whether
a worker is to be started or replaced, and never blocks the loop: what cannot be sent is queued, what may
take time (killing a tree) runs in a thread.
"""

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coffer_common import forkproto
from coffer_common.forkproto import Command, Exited, Fork, Forked, ForkFailed, Kill, Ping, Pong, Quit, Ready
from coffer_common.proctree import Proc, children, descendants, kill_until_gone, snapshot

log = logging.getLogger(__name__)

FORKSERVER_LOST: Final = "forkserver lost"
_TITLE_ROOM: Final = "-" * 240
_READ_BYTES: Final = 64 * 1024
_KILL_SECONDS: Final = 5.0
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


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds: to start (imports included), to fork, between pings, for the answer to one."""

    start: float = 30.0
    fork: float = 10.0
    ping_every: float = 5.0
    ping: float = 10.0


DEFAULT_TIMING: Final = Timing()


class _Link:
    """One life of the fork server: the process, its socket, and what was asked of it."""

    def __init__(self, process: subprocess.Popen[bytes], sock: socket.socket) -> None:
        self.process = process
        self.sock = sock
        self.framer = forkproto.Framer()
        self.outgoing: deque[tuple[memoryview, int | None]] = deque()
        self.forks: dict[int, tuple[asyncio.Future[int], Fork, int]] = {}
        self.ready: asyncio.Event = asyncio.Event()
        self.lost: asyncio.Event = asyncio.Event()
        self.pong: asyncio.Event = asyncio.Event()
        self.ping_number = 0
        self.why = ""


class ForkServer:
    """Workers on request, for as long as the supervisor lives.

    ``on_exit`` is called on the loop, once for each worker that ``fork`` returned; it must not raise.
    ``spare`` names children of the supervisor that have nothing to do with workers: they, and all below
    them, are left alone when everything below the fork server has to be killed.
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
        self._link: _Link | None = None
        self._up = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._burial: asyncio.Task[None] | None = None
        self._stopping = False
        self._workers: dict[int, _Worker] = {}
        self._requests = 0
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        """The fork server's PID, None while there is none."""
        return self._link.process.pid if self._link is not None else None

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
        try:
            async with asyncio.timeout(self._timing.fork if seconds is None else seconds):
                link = await self._live_link(name)
                return await self._request(link, Fork(self._next(), name, incarnation, title, opaque, target))
        except TimeoutError:
            raise ForkError(f"the fork server did not start a worker for '{name}' in time") from None

    def kill(self, pid: int, incarnation: int, reason: str) -> None:
        """SIGKILL that worker, and with it all it started; ``on_exit`` follows. A stale PID is left alone."""
        log.warning("killing worker %s (pid %d, incarnation %d): %s", self._name(pid), pid, incarnation, reason)
        if self._link is not None:
            self._send(self._link, Kill(pid, incarnation))

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
        link.why = link.why or "stopping"
        self._send(link, Quit())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await link.lost.wait()
        await self._end(link, "stopped")

    # --- one life of the fork server ------------------------------------------------------

    async def _launch(self) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            process = self._popen(theirs)
        except OSError as error:
            ours.close()
            raise ForkError(f"cannot start the fork server: {error}") from error
        finally:
            theirs.close()
        link = self._link = _Link(process, ours)
        asyncio.get_running_loop().add_reader(ours.fileno(), self._readable, link)
        if not await _first(link.ready, link.lost, self._timing.start):
            why = link.why or f"it was not ready within {self._timing.start:g} s"
            await self._end(link, why)
            raise ForkError(f"the fork server did not start: {why}; its standard error says more")
        self._up.set()

    def _popen(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        fd = theirs.fileno()
        command = [
            sys.executable,
            "-P",
            "-m",
            "coffer_worker.forkserver",
            "--fd",
            str(fd),
            "--room",
            _TITLE_ROOM,
        ]
        # SPT_NOENV: without it setproctitle wipes the environment that marks our processes.
        return subprocess.Popen(
            command,
            cwd=self._home,
            env={**os.environ, "SPT_NOENV": "1"},
            stdin=subprocess.DEVNULL,
            stdout=self._stderr,
            stderr=self._stderr,
            pass_fds=(fd,),
            # A terminal's Ctrl-C reaches the supervisor alone, which then ends things in order.
            start_new_session=True,
        )

    async def _keep(self) -> None:
        """Watch over the fork server; replace it whenever it is lost, and never give up."""
        failures = 0
        while True:
            if (link := self._link) is not None:
                await self._watch(link)
                log.error("fork server (pid %d) lost: %s; killing all below it", link.process.pid, link.why)
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

    async def _watch(self, link: _Link) -> None:
        """Return when the link is lost, by its own end or by a ping without an answer."""
        loop = asyncio.get_running_loop()
        while not await _set_within(link.lost, self._timing.ping_every):
            link.pong.clear()
            link.ping_number += 1
            asked = loop.time()
            self._send(link, Ping(link.ping_number))
            if await _first(link.pong, link.lost, self._timing.ping) or link.lost.is_set():
                continue
            if loop.time() - asked > self._timing.ping + _CLOCK_GAP:
                # Our own clock jumped (suspend, SIGSTOP): the fork server may have slept as well.
                continue
            self._lose(link, f"no answer to a ping within {self._timing.ping:g} s")

    def _lose(self, link: _Link, why: str) -> None:
        if not link.lost.is_set():
            link.why = link.why or why
            loop = asyncio.get_running_loop()
            loop.remove_reader(link.sock.fileno())
            loop.remove_writer(link.sock.fileno())
            link.lost.set()

    async def _end(self, link: _Link, reason: str) -> None:
        """Bury a link; to cancel this is not to leave its processes half killed."""
        self._burial = asyncio.create_task(self._bury(link, reason), name="fork server burial")
        await asyncio.shield(self._burial)

    async def _bury(self, link: _Link, reason: str) -> None:
        """Kill and reap a lost fork server and all that was below it, then report its workers."""
        self._lose(link, reason)
        link.sock.close()
        self._link = None
        left = await asyncio.to_thread(_kill_below, link.process, tuple(self._spare()))
        if left:
            log.error("these processes do not die: %s", ", ".join(str(proc.pid) for proc in left))
        for future, order, lifeline in link.forks.values():
            os.close(lifeline)
            if not future.done():
                future.set_exception(ForkError(f"the fork server was lost while starting '{order.name}'"))
        link.forks.clear()
        for _, unsent in link.outgoing:
            if unsent is not None:
                os.close(unsent)
        link.outgoing.clear()
        workers, self._workers = self._workers, {}
        for pid, worker in workers.items():
            os.close(worker.lifeline)
            self._on_exit(WorkerExit(pid, worker.name, worker.incarnation, None, 0, reason))

    # --- messages ---------------------------------------------------------------------------

    async def _request(self, link: _Link, order: Fork) -> int:
        theirs, ours = os.pipe()
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        link.forks[order.request] = (future, order, ours)
        self._send(link, order, theirs)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self._abandon(link, future.result(), order)
            raise

    async def _live_link(self, name: str) -> _Link:
        while (link := self._link) is None or not self._up.is_set():
            if self._stopping:
                raise ForkError(f"no worker for '{name}': Coffer is stopping")
            await self._up.wait()
        return link

    def _send(self, link: _Link, command: Command, fd: int | None = None) -> None:
        link.outgoing.append((memoryview(forkproto.encode(command)), fd))
        self._flush(link)

    def _flush(self, link: _Link) -> None:
        if link.lost.is_set():
            return
        loop = asyncio.get_running_loop()
        try:
            while link.outgoing:
                data, fd = link.outgoing[0]
                sent = socket.send_fds(link.sock, [data], [] if fd is None else [fd])
                # The descriptor travels with the first byte, whatever else was taken.
                if fd is not None:
                    os.close(fd)
                if sent == len(data):
                    link.outgoing.popleft()
                else:
                    link.outgoing[0] = (data[sent:], None)
            loop.remove_writer(link.sock.fileno())
        except BlockingIOError:
            loop.add_writer(link.sock.fileno(), self._flush, link)
        except OSError as error:
            self._lose(link, f"its socket failed: {error.strerror}")

    def _readable(self, link: _Link) -> None:
        try:
            data = link.sock.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lose(link, "it ended")
            return
        try:
            for body in link.framer.feed(data):
                self._take(link, forkproto.decode_event(body))
        except forkproto.FramingError as error:
            self._lose(link, str(error))

    def _take(self, link: _Link, event: forkproto.Event) -> None:
        match event:
            case Ready():
                link.ready.set()
            case Pong(number=number):
                if number == link.ping_number:
                    link.pong.set()
            case Forked(request=request, pid=pid):
                self._forked(link, request, pid)
            case ForkFailed(request=request, message=message):
                future, order, lifeline = link.forks.pop(request)
                os.close(lifeline)
                if not future.done():
                    future.set_exception(ForkError(f"no worker for '{order.name}': {message}"))
            case Exited():
                self._exited(event)

    def _forked(self, link: _Link, request: int, pid: int) -> None:
        future, order, lifeline = link.forks.pop(request)
        self._workers[pid] = _Worker(order.name, order.incarnation, lifeline)
        if future.done():
            self._abandon(link, pid, order)
        else:
            future.set_result(pid)

    def _abandon(self, link: _Link, pid: int, order: Fork) -> None:
        """Nobody waits for this worker any more: without an owner it must not live, nor be reported."""
        worker = self._workers.pop(pid, None)
        if worker is not None:
            os.close(worker.lifeline)
            self._send(link, Kill(pid, order.incarnation))

    def _exited(self, event: Exited) -> None:
        worker = self._workers.pop(event.pid, None)
        if worker is None:
            return
        os.close(worker.lifeline)
        how = f"killed by signal {event.signal}" if event.signal else f"exited with code {event.status}"
        status = None if event.signal else event.status
        self._on_exit(WorkerExit(event.pid, event.name, event.incarnation, status, event.signal, how))

    def _next(self) -> int:
        self._requests += 1
        return self._requests

    def _name(self, pid: int) -> str:
        worker = self._workers.get(pid)
        return f"'{worker.name}'" if worker is not None else "(unknown)"


def _kill_below(process: subprocess.Popen[bytes], spare: tuple[int, ...]) -> list[Proc]:
    """Kill the fork server and, as the subreaper its descendants come to, all that was below it."""
    me = os.getpid()
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_KILL_SECONDS)

    def below() -> list[Proc]:
        return descendants(me, snapshot(), spare=spare)

    def reap() -> None:
        for child in children(me, snapshot()):
            if child.dead and child.pid not in spare and child.pid != process.pid:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(child.pid, os.WNOHANG)

    left = kill_until_gone(below, seconds=_KILL_SECONDS, between=reap)
    reap()
    return left


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


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
