"""The shim's only loop: bytes between the client's pipes and the daemon's socket.

Owns the descriptors, their buffers and back-pressure: the client is not read while the daemon does not take its
bytes, nor the daemon while the client does not. Never decides what a line means.
"""

import os
import select
import socket
import stat
import time
from collections import deque
from typing import Final

from coffer_cli.shim_attach import Attached, Attacher
from coffer_cli.shim_core import Core
from coffer_cli.shim_effects import Attach, Detach, Effect, Exit, Log, ToClient, ToDaemon
from coffer_cli.shim_lines import Splitter
from coffer_common import shimproto

_READ: Final = 256 * 1024
_HIGH_WATER: Final = 1024 * 1024
_PIPE_BUF: Final = 4096
_JOIN: Final = 16 * 1024
_PARENT_SECONDS: Final = 5.0
_LAST_WRITE_SECONDS: Final = 5.0
_DAEMON_LINE: Final = shimproto.MAX_LINE + 8 * 1024 * 1024
_GONE: Final = select.POLLERR | select.POLLNVAL


class Outbox:
    """Bytes on their way to a descriptor that may not take them all at once."""

    def __init__(self) -> None:
        self._chunks: deque[memoryview] = deque()
        self.size = 0

    def put(self, line: bytes) -> None:
        """Adds a line and its LF."""
        chunks = (line + b"\n",) if len(line) < _JOIN else (line, b"\n")
        for chunk in chunks:
            self._chunks.append(memoryview(chunk))
            self.size += len(chunk)

    def head(self) -> memoryview:
        """The next bytes to write."""
        return self._chunks[0]

    def took(self, count: int) -> None:
        """``count`` bytes of the head are written."""
        self.size -= count
        head = self._chunks[0]
        if count == len(head):
            self._chunks.popleft()
        else:
            self._chunks[0] = head[count:]

    def clear(self) -> None:
        """Forgets what was not written."""
        self._chunks.clear()
        self.size = 0


class ClientOut:
    """Standard output without ever blocking on it, and without changing the flags it shares with the client."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        mode = os.fstat(fd).st_mode
        self._sock = socket.socket(fileno=os.dup(fd)) if stat.S_ISSOCK(mode) else None
        self._piecewise = False
        if self._sock is None and not stat.S_ISREG(mode):
            try:  # an open file description of our own, where /proc offers one
                self.fd = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
            except OSError:
                self._piecewise = True

    def write(self, data: memoryview) -> int:
        """How many bytes it took; 0 where it takes none now. Raises OSError where nobody reads any more."""
        try:
            if self._sock is not None:
                return self._sock.send(data, socket.MSG_DONTWAIT)
            if self._piecewise:  # a pipe that polls as writable has room for PIPE_BUF bytes
                ready = select.select([], [self.fd], [], 0)[1]
                return os.write(self.fd, data[:_PIPE_BUF]) if ready else 0
            return os.write(self.fd, data)
        except BlockingIOError:
            return 0


class Loop:
    """Feeds the core and carries out its effects, until it says how to exit."""

    def __init__(self, core: Core, attacher: Attacher, stdin: int, stdout: int, stderr: int) -> None:
        self._core, self._attacher = core, attacher
        self._stdin, self._stderr = stdin, stderr
        self._client_out = ClientOut(stdout)
        self._to_client, self._to_daemon = Outbox(), Outbox()
        self._client_lines = Splitter(shimproto.MAX_LINE)
        self._daemon_lines = Splitter(_DAEMON_LINE)
        self._oversized = 0
        self._daemon: socket.socket | None = None
        self._client_open = True
        self._exit: int | None = None
        self._parent = os.getppid()
        self._parent_fd = _pidfd(self._parent)
        self._poll = select.poll()
        self._masks: dict[int, int] = {}

    def run(self) -> int:
        """The exit code."""
        self._do(self._core.start())
        while (code := self._exit) is None:
            self._watch_what_matters()
            for fd, event in self._poll.poll(self._patience()):
                self._handle(fd, event)
            self._on_time()
        self._last_words()
        return code

    def say(self, text: str) -> None:
        """One line on stderr; dropped where nobody reads it, rather than waited for."""
        try:
            if select.select([], [self._stderr], [], 0)[1]:
                os.write(self._stderr, f"coffer-shim: {text}\n".encode(errors="replace"))
        except (OSError, ValueError):
            pass

    # -- what to wait for ---------------------------------------------------------------------------------------

    def _watch_what_matters(self) -> None:
        room = self._to_client.size < _HIGH_WATER
        wanted: dict[int, int] = {self._attacher.wake_fd: select.POLLIN}
        # With nothing to write it is watched all the same: it tells when the client has gone.
        wanted[self._client_out.fd] = select.POLLOUT if self._to_client.size else 0
        if self._client_open and room and self._to_daemon.size < _HIGH_WATER and self._core.reads_client:
            wanted[self._stdin] = select.POLLIN
        if self._daemon is not None:
            mask = (select.POLLIN if room else 0) | (select.POLLOUT if self._to_daemon.size else 0)
            if mask:
                wanted[self._daemon.fileno()] = mask
        if self._parent_fd is not None:
            wanted[self._parent_fd] = select.POLLIN
        for fd in self._masks.keys() - wanted.keys():
            self._poll.unregister(fd)
        for fd, mask in wanted.items():
            if self._masks.get(fd) != mask:
                self._poll.register(fd, mask)
        self._masks = wanted

    def _patience(self) -> float | None:
        limits = [] if self._parent_fd is not None else [_PARENT_SECONDS]
        if self._core.deadline is not None:
            limits.append(max(0.0, self._core.deadline - time.monotonic()))
        return min(limits) * 1000 + 1 if limits else None

    def _on_time(self) -> None:
        now = time.monotonic()
        if self._core.deadline is not None and now >= self._core.deadline:
            self._do(self._core.tick(now))
        if self._parent_fd is None and os.getppid() != self._parent:
            self._exit = 0

    # -- what happened ------------------------------------------------------------------------------------------

    def _handle(self, fd: int, event: int) -> None:
        if fd == self._stdin:
            self._read_client()
        elif fd == self._client_out.fd:
            if event & _GONE:
                self._exit = 0
            else:
                self._write_client()
        elif fd == self._attacher.wake_fd:
            self._attach_outcome()
        elif fd == self._parent_fd:
            self._exit = 0
        elif self._daemon is not None and fd == self._daemon.fileno():
            if event & select.POLLOUT:
                self._write_daemon()
            if event & ~select.POLLOUT:
                self._read_daemon()

    def _read_client(self) -> None:
        try:
            data = os.read(self._stdin, _READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        lines = self._client_lines.feed(data) if data else self._client_lines.end()
        for line in lines:
            self._do(self._core.client_line(line, time.monotonic()))
        if self._client_lines.oversized > self._oversized:
            self._oversized = self._client_lines.oversized
            self._do(self._core.client_oversize(shimproto.MAX_LINE))
        if not data:
            self._client_open = False
            self._do(self._core.client_end(time.monotonic()))

    def _read_daemon(self) -> None:
        daemon = self._daemon
        if daemon is None:
            return
        try:
            data = daemon.recv(_READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._daemon_bytes(data)
        else:
            self._do(self._core.daemon_lost(time.monotonic()))

    def _daemon_bytes(self, data: bytes) -> None:
        splitter = self._daemon_lines
        for line in splitter.feed(data):
            self._do(self._core.daemon_line(line, time.monotonic()))
        if splitter.oversized and self._daemon is not None:
            self.say(f"the daemon sent a line of more than {_DAEMON_LINE} bytes; the connection is given up")
            self._do(self._core.daemon_lost(time.monotonic()))

    def _attach_outcome(self) -> None:
        outcome = self._attacher.outcome()
        now = time.monotonic()
        if isinstance(outcome, Attached):
            self._daemon = outcome.sock
            self._daemon_lines = Splitter(_DAEMON_LINE)
            self._do(self._core.attached(outcome.daemon_version))
            if outcome.rest:
                self._daemon_bytes(outcome.rest)
        elif outcome is not None:
            self._do(self._core.attach_failed(outcome.message, now, outcome.why))

    # -- what is to be done -------------------------------------------------------------------------------------

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case ToClient(line):
                    self._to_client.put(line)
                case ToDaemon(line):
                    self._to_daemon.put(line)
                case Attach(mode):
                    self._attacher.begin(mode)
                case Detach():
                    self._detach()
                case Log(text):
                    self.say(text)
                case Exit(code):
                    self._exit = code if self._exit is None else self._exit
        if self._to_client.size:
            self._write_client()
        if self._to_daemon.size:
            self._write_daemon()

    def _detach(self) -> None:
        if self._daemon is not None:
            self._poll_forget(self._daemon.fileno())
            self._daemon.close()
            self._daemon = None
        self._to_daemon.clear()

    def _poll_forget(self, fd: int) -> None:
        if self._masks.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def _write_client(self) -> None:
        try:
            while self._to_client.size:
                count = self._client_out.write(self._to_client.head())
                if not count:
                    return
                self._to_client.took(count)
        except OSError:
            self._to_client.clear()
            self._exit = 0  # nobody reads our answers: the client is gone

    def _write_daemon(self) -> None:
        if self._daemon is None:
            return
        try:
            while self._to_daemon.size:
                self._to_daemon.took(self._daemon.send(self._to_daemon.head()))
        except BlockingIOError:
            return
        except OSError:
            self._to_daemon.clear()  # what it said before it went is still to be read; that read meets its end

    def _last_words(self) -> None:
        deadline = time.monotonic() + _LAST_WRITE_SECONDS
        while self._to_client.size and time.monotonic() < deadline:
            if not select.select([], [self._client_out.fd], [], deadline - time.monotonic())[1]:
                return
            self._write_client()


def _pidfd(pid: int) -> int | None:
    """A descriptor that is readable once the process is gone; None where there is no such thing.

    Who was started without a parent of its own (pid 1 adopts it, or is the client) ends by its streams alone.
    """
    try:
        fd = os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None
    if os.getppid() != pid:
        os.close(fd)
        return None
    return fd
