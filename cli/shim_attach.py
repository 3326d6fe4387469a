"""How the shim gets its connection: find or start a daemon, connect, say hello.

Owns one thread at a time that may block, and hands its outcome over through a pipe that wakes the loop. Never
touches the client's streams, and never decides when to attach: the core does.
"""

import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from coffer_cli.shim_effects import AttachMode, Why
from coffer_common import discovery, shimproto, spawn
from coffer_common.discovery import DiscoveryError, NotRunning, Running
from coffer_common.paths import Home

GREETING_SECONDS: Final = 15.0
_WATCH_SECONDS: Final = 1.0
_REFUSED_SECONDS: Final = 5.0
_ATTEMPTS: Final = 4
_LEAVE_SECONDS: Final = 30.0
_SUCCESSOR_SECONDS: Final = 3.0
_SUCCESSOR_STEP: Final = 0.25


@dataclass(frozen=True, slots=True)
class Attached:
    """A welcomed connection; ``rest`` is what the daemon sent after its welcome."""

    sock: socket.socket
    daemon_version: str
    rest: bytes


@dataclass(frozen=True, slots=True)
class Failed:
    """No connection, and why."""

    message: str
    why: Why = ""


class _Refusal(DiscoveryError):
    def __init__(self, refused: shimproto.Refused) -> None:
        super().__init__(refused.message)
        self.reason = refused.reason


class _Left(Exception):
    """The daemon went away during the greeting."""


class Attacher:
    """Runs attempts to attach, one at a time; the latest one counts."""

    def __init__(self, home: Home, hello: shimproto.Hello, *, may_spawn: bool, say: Callable[[str], None]) -> None:
        self._home, self._hello, self._may_spawn, self._say = home, hello, may_spawn, say
        self._outcomes: deque[tuple[threading.Event, Attached | Failed]] = deque()
        self.wake_fd, self._wake = os.pipe()
        self._cancel = threading.Event()
        self._pid = 0

    def begin(self, mode: AttachMode) -> None:
        """Starts an attempt; an earlier one no longer counts."""
        self._cancel.set()
        self._cancel = threading.Event()
        threading.Thread(target=self._run, args=(mode, self._cancel), name=f"attach-{mode}", daemon=True).start()

    def outcome(self) -> Attached | Failed | None:
        """Once ``wake_fd`` is readable: the outcome of the latest attempt, if it is its."""
        os.read(self.wake_fd, 64)
        latest: Attached | Failed | None = None
        while self._outcomes:
            cancel, found = self._outcomes.popleft()
            if cancel is self._cancel:
                latest = found
            elif isinstance(found, Attached):
                found.sock.close()
        return latest

    def _run(self, mode: AttachMode, cancel: threading.Event) -> None:
        outcome: Attached | Failed | None
        try:
            match mode:
                case "watch":
                    outcome = self._watch(cancel)
                case "look":
                    outcome = self._look()
                case _:
                    outcome = self._start(mode, cancel)
        except NotRunning as error:
            outcome = Failed(str(error), "not_running")
        except _Refusal as error:
            outcome = Failed(str(error), "no_group" if error.reason == "endpoint" else "")
        except (DiscoveryError, OSError) as error:
            outcome = Failed(str(error))
        except Exception as error:  # the client must hear of it: this thread has nobody else to tell
            outcome = Failed(f"the shim failed to attach: {type(error).__name__}: {error}")
        if outcome is not None:
            self._outcomes.append((cancel, outcome))
            os.write(self._wake, b"\0")

    def _start(self, mode: AttachMode, cancel: threading.Event) -> Attached:
        if mode == "restart":
            self._await_successor(cancel)
        leaving = 0
        for _ in range(_ATTEMPTS):
            running = spawn.detect_or_spawn(self._home, spawn=self._may_spawn, on_wait=self._say, ignore_pid=leaving)
            try:
                return self._greet(running)
            except _Refusal as refusal:
                if refusal.reason != "stopping":
                    raise
                leaving = running.info.pid
            except (_Left, ConnectionRefusedError, FileNotFoundError):
                leaving = 0
        raise DiscoveryError("the Coffer daemon ends again and again right after its start; see: coffer daemon logs")

    def _look(self) -> Attached | Failed:
        running = discovery.detect(self._home)
        if not isinstance(running, Running):
            return Failed("no Coffer daemon runs")
        try:
            return self._greet(running)
        except _Left:
            return Failed("the Coffer daemon is about to end")

    def _watch(self, cancel: threading.Event) -> Attached | None:
        pause = _WATCH_SECONDS
        while not cancel.wait(pause):
            try:
                running = discovery.detect(self._home)
                if isinstance(running, Running):
                    return self._greet(running)
                pause = _WATCH_SECONDS
            except (DiscoveryError, _Left, OSError):
                pause = _REFUSED_SECONDS
        return None

    def _await_successor(self, cancel: threading.Event) -> None:
        """Leaves the restart to who asked for it, for a while."""
        _await_end(self._pid, _LEAVE_SECONDS)
        deadline = time.monotonic() + _SUCCESSOR_SECONDS
        while time.monotonic() < deadline and not isinstance(discovery.detect(self._home), Running):
            if cancel.wait(_SUCCESSOR_STEP):
                return

    def _greet(self, running: Running) -> Attached:
        sock = discovery.connect(running.home.mcp_sock)
        try:
            sock.settimeout(GREETING_SECONDS)
            sock.sendall(shimproto.encode(self._hello))
            line, rest = _first_line(sock)
            greeting = shimproto.decode(line)
            if isinstance(greeting, shimproto.Refused):
                raise _Refusal(greeting)
            if not isinstance(greeting, shimproto.Welcome):
                raise DiscoveryError("the Coffer daemon did not greet as expected; restart it: coffer daemon restart")
        except TimeoutError:
            sock.close()
            raise DiscoveryError(
                f"the Coffer daemon (pid {running.info.pid}) accepts connections and says nothing; "
                f"look at it with: coffer daemon status"
            ) from None
        except msgspec.DecodeError as error:
            sock.close()
            raise DiscoveryError(
                f"the Coffer daemon speaks another protocol ({error}): coffer daemon restart"
            ) from None
        except (ConnectionResetError, BrokenPipeError) as error:
            sock.close()
            raise _Left from error
        except BaseException:
            sock.close()
            raise
        self._pid = running.info.pid
        sock.setblocking(False)
        return Attached(sock, greeting.daemon_version, rest)


def _first_line(sock: socket.socket) -> tuple[bytes, bytes]:
    got = bytearray()
    while b"\n" not in got:
        chunk = sock.recv(65536)
        if not chunk:
            raise _Left
        got += chunk
        if len(got) > shimproto.MAX_HELLO and b"\n" not in got:
            raise DiscoveryError("the Coffer daemon greets without end; restart it: coffer daemon restart")
    line, _, rest = bytes(got).partition(b"\n")
    return line, rest


def _await_end(pid: int, seconds: float) -> None:
    """Until the process is gone, at most ``seconds``. The kernel says so where it can (Linux)."""
    if pid <= 0:
        return
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except (AttributeError, OSError):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and discovery.is_daemon(pid):
            time.sleep(1.0)
        return
    try:
        select.select([fd], [], [], seconds)
    finally:
        os.close(fd)
