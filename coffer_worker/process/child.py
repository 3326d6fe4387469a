"""One upstream process: its pipes as bytes, its exit, and ending it with all it started.

Owns the three pipes, the wait for its exit and the escalation from end-of-input to SIGKILL. Never reads
meaning into the bytes, never decides when to start or stop. Everything runs on the event loop; only the
killing of a tree, which waits for exits, runs in a thread.
"""

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from typing import IO, Final, Protocol, cast

from coffer_common.proctree import Proc, kill_until_gone

log = logging.getLogger(__name__)

_KILL_SECONDS: Final = 5.0
_LAST_OUTPUT_SECONDS: Final = 1.0
_END_OF_INPUT_SHARE: Final = 0.4
_WRITE_HIGH_WATER: Final = 256 * 1024


class Listener(Protocol):
    """Who is told what the process does. Called on the loop; must neither block nor raise."""

    def stdout(self, data: bytes) -> None:
        """The next bytes of its standard output, in order, in chunks of any size."""

    def stderr(self, data: bytes) -> None:
        """The next bytes of its standard error."""

    def stderr_closed(self) -> None:
        """Its standard error has ended, and all of it was passed on."""

    def stdout_closed(self) -> None:
        """Its standard output has ended (it may live on)."""

    def drained(self) -> None:
        """What was queued for its standard input has gone below the low-water mark again."""

    def exited(self, returncode: int) -> None:
        """It ended: its exit code, or minus the signal that killed it. Output may still follow."""


class ChildGone(Exception):
    """The process takes no more input: it ended, or closed its standard input."""


class Child:
    """A running upstream process. Made by ``Spawner.spawn`` only.

    ``exited`` holds the return code once it has ended; ``cleaned`` is done when nothing that it started
    lives any more either. ``kin`` finds all processes that belong to it.
    """

    def __init__(
        self,
        popen: subprocess.Popen[bytes],
        name: str,
        cookie: str,
        listener: Listener,
        kin: Callable[[], list[Proc]],
    ) -> None:
        loop = asyncio.get_running_loop()
        self.name = name
        self.cookie = cookie
        self.pid = popen.pid
        self.started_at = loop.time()
        self.exited: asyncio.Future[int] = loop.create_future()
        self.stdout_closed: asyncio.Future[None] = loop.create_future()
        self.cleaned: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._popen = popen
        self._listener = listener
        self._kin = kin
        self._stdin: asyncio.WriteTransport | None = None
        self._protocols = (
            _Output(loop, listener.stdout, self._output_ended),
            _Output(loop, listener.stderr, listener.stderr_closed),
        )
        self._connected = 0
        self._pidfd: int | None = None
        self._tasks: set[asyncio.Task[object]] = set()
        self._stopping: asyncio.Task[str] | None = None

    # --- input and output -------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Queue bytes for its standard input; never blocks. Raises ChildGone."""
        if self._stdin is None or self._stdin.is_closing():
            raise ChildGone(f"upstream '{self.name}' (pid {self.pid}) takes no more input")
        self._stdin.write(data)

    @property
    def queued(self) -> int:
        """Bytes that the process has not taken yet."""
        return self._stdin.get_write_buffer_size() if self._stdin is not None else 0

    def close_stdin(self) -> None:
        """Send end-of-input after what is queued."""
        if self._stdin is not None:
            self._stdin.close()

    def pause_output(self) -> None:
        """Stop reading its standard output; the process blocks when the pipe is full."""
        if (transport := self._protocols[0].transport) is not None and transport.is_reading():
            transport.pause_reading()

    def resume_output(self) -> None:
        """Read its standard output again."""
        if (transport := self._protocols[0].transport) is not None and not transport.is_reading():
            transport.resume_reading()

    def pause_errors(self) -> None:
        """Stop reading its standard error, likewise."""
        if (transport := self._protocols[1].transport) is not None and transport.is_reading():
            transport.pause_reading()

    def resume_errors(self) -> None:
        """Read its standard error again."""
        if (transport := self._protocols[1].transport) is not None and not transport.is_reading():
            transport.resume_reading()

    # --- ending it ----------------------------------------------------------------------------

    async def stop(self, grace: float, reason: str) -> str:
        """End it and all it started: end-of-input, then SIGTERM, then SIGKILL, within ``grace`` seconds
        plus the killing. Returns how it ended. Cancelling the wait does not cancel the stopping; a second
        call joins the first."""
        if self._stopping is None:
            self._stopping = self._loop.create_task(self._stop(grace, reason))
        return await asyncio.shield(self._stopping)

    async def _stop(self, grace: float, reason: str) -> str:
        how = await self._escalate(grace, reason)
        await asyncio.wait([self.cleaned], timeout=_KILL_SECONDS + 1)
        return how

    async def _escalate(self, grace: float, reason: str) -> str:
        if self.exited.done():
            return "had ended already"
        self.close_stdin()
        if await self._ends_within(grace * _END_OF_INPUT_SHARE):
            return "ended at end of input"
        self._signal_group(signal.SIGTERM)
        # A stopped process acts on SIGTERM only once it goes on.
        self._signal_group(signal.SIGCONT)
        if await self._ends_within(grace * (1 - _END_OF_INPUT_SHARE)):
            return "ended on SIGTERM"
        why = "it ignored SIGTERM; " if grace else ""
        log.warning("killing upstream '%s' (pid %d): %s%s", self.name, self.pid, why, reason)
        await asyncio.to_thread(self._kill_kin)
        await self._ends_within(_KILL_SECONDS)
        return "killed"

    async def _ends_within(self, seconds: float) -> bool:
        await asyncio.wait([self.exited], timeout=seconds)
        return self.exited.done()

    def _signal_group(self, number: int) -> None:
        # Not reaped yet, so neither its PID nor its group can be another's.
        if not self.exited.done():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def _kill_kin(self) -> None:
        try:
            left = kill_until_gone(self._kin, seconds=_KILL_SECONDS)
        except OSError as error:
            # Out of descriptors: what can be reached without reading the process table must do.
            log.error("cannot look for processes of upstream '%s': %s", self.name, error)
            self._signal_group(signal.SIGKILL)
            return
        if left:
            pids = ", ".join(str(proc.pid) for proc in left)
            log.error("processes of upstream '%s' do not die: %s", self.name, pids)

    # --- the spawner's side -------------------------------------------------------------------

    async def attach(self) -> None:
        """Connect the pipes; for the spawner."""
        popen = self._popen
        assert popen.stdin is not None
        # Input first: the first line of output may be answered at once.
        writer, _ = await self._loop.connect_write_pipe(lambda: _Input(self._listener.drained), popen.stdin)
        writer.set_write_buffer_limits(high=_WRITE_HIGH_WATER)
        self._stdin = writer
        for pipe, output in zip(self._output_pipes(), self._protocols, strict=True):
            await self._loop.connect_read_pipe(_giving(output), pipe)
            self._connected += 1

    def reap(self) -> None:
        """Take its exit status if it has ended; safe to call at any time; for the spawner."""
        returncode = self._popen.poll()
        if returncode is None or self.exited.done():
            return
        self._unwatch_exit()
        self.exited.set_result(returncode)
        self._listener.exited(returncode)
        task = self._loop.create_task(self._clean_up())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def abort(self) -> None:
        """Kill and reap at once a process whose pipes could not be connected; for the spawner."""
        self._unwatch_exit()
        self._kill_kin()
        self._popen.kill()
        if not self.exited.done():
            self.exited.set_result(self._popen.wait())
            self.cleaned.set_result(None)
        self._close_pipes()
        for pipe in self._output_pipes()[self._connected :]:
            # The loop may have closed the pipe that it could not connect.
            with contextlib.suppress(OSError):
                pipe.close()
        if self._stdin is None and self._popen.stdin is not None:
            with contextlib.suppress(OSError):
                self._popen.stdin.close()

    async def _clean_up(self) -> None:
        """End what an ended process left behind, then let go of its pipes."""
        try:
            await asyncio.to_thread(self._kill_kin)
            # An escaped process may hold a pipe open for ever; what is in it is read by now.
            await asyncio.wait([output.closed for output in self._protocols], timeout=_LAST_OUTPUT_SECONDS)
        finally:
            self._close_pipes()
            if not self.cleaned.done():
                self.cleaned.set_result(None)

    def _close_pipes(self) -> None:
        for output in self._protocols:
            if output.transport is not None:
                output.transport.close()
        self.close_stdin()

    def _output_pipes(self) -> list[IO[bytes]]:
        assert self._popen.stdout is not None
        assert self._popen.stderr is not None
        return [self._popen.stdout, self._popen.stderr]

    def _output_ended(self) -> None:
        if not self.stdout_closed.done():
            self.stdout_closed.set_result(None)
            self._listener.stdout_closed()

    def watch(self) -> None:
        """Watch for its exit. Before anything else may run: once it is reaped it can be watched no more."""
        if hasattr(os, "pidfd_open"):
            self._pidfd = os.pidfd_open(self.pid)
            self._loop.add_reader(self._pidfd, self.reap)
        else:
            threading.Thread(target=self._wait_in_thread, name=f"wait {self.pid}", daemon=True).start()

    def _wait_in_thread(self) -> None:
        self._popen.wait()
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.reap)

    def _unwatch_exit(self) -> None:
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None


def _giving(output: "_Output") -> Callable[[], asyncio.Protocol]:
    return lambda: output


class _Output(asyncio.Protocol):
    """One output pipe. ``closed`` is done when it has ended and all of it was passed on."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, feed: Callable[[bytes], None], ended: Callable[[], None]
    ) -> None:
        self.closed: asyncio.Future[None] = loop.create_future()
        self.transport: asyncio.ReadTransport | None = None
        self._feed = feed
        self._ended = ended

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.ReadTransport, transport)

    def data_received(self, data: bytes) -> None:
        self._feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)
        self._ended()


class _Input(asyncio.BaseProtocol):
    def __init__(self, drained: Callable[[], None]) -> None:
        self._drained = drained

    def resume_writing(self) -> None:
        self._drained()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing to do: ``Child.write`` sees that the transport is closing."""
