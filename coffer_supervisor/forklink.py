"""One life of the fork server: its process, its socket, and the end of all that was below it.

Owns starting the process, the framing over the socketpair and the killing. Never knows what a worker is
to the supervisor and never starts itself again.
"""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from coffer_common import forkproto
from coffer_common.forkproto import Command, Event, Pong, Ready
from coffer_common.proctree import Proc, children, descendants, is_stopped, kill_until_gone, snapshot

_TITLE_ROOM: Final = "-" * 240
_READ_BYTES: Final = 64 * 1024
_KILL_SECONDS: Final = 5.0


class ForkLink:
    """A fork server that was just started; needs a running loop.

    ``take`` gets every event but Ready and Pong. ``ready``, ``pong`` (the answer to the latest ping) and
    ``lost`` are set as they happen; ``why`` says how it was lost.
    """

    def __init__(self, home: Path, stderr: int | None, take: Callable[[Event], None]) -> None:
        """Start the process. Raises OSError."""
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._framer = forkproto.Framer()
        self._outgoing: deque[tuple[memoryview, int | None]] = deque()
        self._pings = 0
        self.ready = asyncio.Event()
        self.pong = asyncio.Event()
        self.lost = asyncio.Event()
        self.why = ""
        self._sock, theirs = socket.socketpair()
        self._sock.setblocking(False)
        try:
            self._process = _popen(home, theirs.fileno(), stderr)
        except BaseException:
            self._sock.close()
            raise
        finally:
            theirs.close()
        self._loop.add_reader(self._sock.fileno(), self._readable)

    @property
    def pid(self) -> int:
        """The fork server's PID."""
        return self._process.pid

    def stopped(self) -> bool:
        """Whether somebody stopped its process (SIGSTOP)."""
        return is_stopped(self.pid)

    def send(self, command: Command, fd: int | None = None) -> None:
        """Queue a command, and a descriptor that travels with it and is closed here. Never blocks."""
        self._outgoing.append((memoryview(forkproto.encode(command)), fd))
        self._flush()

    def ping(self) -> None:
        """Ask whether it is there; ``pong`` tells."""
        self.pong.clear()
        self._pings += 1
        self.send(forkproto.Ping(self._pings))

    def lose(self, why: str) -> None:
        """From now on it is of no more use; the first reason stays."""
        if not self.lost.is_set():
            self.why = self.why or why
            self._loop.remove_reader(self._sock.fileno())
            self._loop.remove_writer(self._sock.fileno())
            self.lost.set()

    async def bury(self, spare: Collection[int]) -> list[Proc]:
        """Kill and reap it and all that was below it; returns what does not die."""
        self.lose("it was ended")
        self._sock.close()
        for _, fd in self._outgoing:
            if fd is not None:
                os.close(fd)
        self._outgoing.clear()
        return await asyncio.to_thread(_kill_below, self._process, spare)

    def _flush(self) -> None:
        if self.lost.is_set():
            return
        try:
            while self._outgoing:
                data, fd = self._outgoing[0]
                sent = socket.send_fds(self._sock, [data], [] if fd is None else [fd])
                # The descriptor travels with the first byte, whatever else was taken.
                if fd is not None:
                    os.close(fd)
                if sent == len(data):
                    self._outgoing.popleft()
                else:
                    self._outgoing[0] = (data[sent:], None)
            self._loop.remove_writer(self._sock.fileno())
        except BlockingIOError:
            self._loop.add_writer(self._sock.fileno(), self._flush)
        except OSError as error:
            self.lose(f"its socket failed: {error.strerror}")

    def _readable(self) -> None:
        try:
            data = self._sock.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.lose("it ended")
            return
        try:
            for body in self._framer.feed(data):
                self._received(forkproto.decode_event(body))
        except forkproto.FramingError as error:
            self.lose(str(error))

    def _received(self, event: Event) -> None:
        match event:
            case Ready():
                self.ready.set()
            case Pong(number=number):
                if number == self._pings:
                    self.pong.set()
            case _:
                self._take(event)


def _popen(home: Path, fd: int, stderr: int | None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "coffer_worker.forkserver", "--fd", str(fd), "--room", _TITLE_ROOM]
    # SPT_NOENV: without it setproctitle wipes the environment that marks our processes.
    return subprocess.Popen(
        command,
        cwd=home,
        env={**os.environ, "SPT_NOENV": "1"},
        stdin=subprocess.DEVNULL,
        stdout=stderr,
        stderr=stderr,
        pass_fds=(fd,),
        # A terminal's Ctrl-C reaches the supervisor alone, which then ends things in order.
        start_new_session=True,
    )


def _kill_below(process: subprocess.Popen[bytes], spare: Collection[int]) -> list[Proc]:
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
