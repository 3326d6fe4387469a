"""The fork server's loop: commands in, workers forked, exits reaped and reported.

Owns the supervisor's socket, SIGCHLD and every child of this process. Never blocks on the supervisor
(what it does not take yet is kept) and never lives on without it.
"""

import contextlib
import os
import selectors
import signal
import socket
import sys
from collections import deque
from typing import Final

from coffer_common import forkproto
from coffer_common.forkproto import (
    Command,
    Event,
    Exited,
    Fork,
    Forked,
    ForkFailed,
    Kill,
    Ping,
    Pong,
    Quit,
    Ready,
)
from coffer_common.proctree import Proc, descendants, kill_until_gone, send, snapshot
from coffer_worker.forkserver.child import become_worker
from coffer_worker.forkserver.core import Roster

_READ_BYTES: Final = 64 * 1024
_FDS_A_READ: Final = 64
_KILL_ROUND_SECONDS: Final = 60.0


class Server:
    """Serves one supervisor over ``sock`` until its end closes, then kills every descendant."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sock.setblocking(False)
        self._wake_read, self._wake_write = os.pipe()
        for fd in (self._wake_read, self._wake_write):
            os.set_blocking(fd, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._sock, selectors.EVENT_READ)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._framer = forkproto.Framer()
        self._lifelines: deque[int] = deque()
        self._out = bytearray()
        self._roster = Roster()
        self._open = True

    def run(self) -> None:
        """Serve; returns when the supervisor is gone or said Quit and nothing below lives any more."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        self._say(Ready(os.getpid()))
        while self._open:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._out else 0)
            self._selector.modify(self._sock, events)
            for key, ready in self._selector.select():
                if key.fileobj is not self._sock:
                    self._drain_wakeups()
                    self._reap()
                    continue
                if ready & selectors.EVENT_READ:
                    self._receive()
                if ready & selectors.EVENT_WRITE:
                    self._flush()
        self._kill_everything()

    # --- the supervisor -----------------------------------------------------------------

    def _receive(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._sock, _READ_BYTES, _FDS_A_READ)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        for fd in fds:
            os.set_inheritable(fd, False)
        self._lifelines.extend(fds)
        if not data:
            self._open = False
            return
        try:
            for body in self._framer.feed(data):
                self._obey(forkproto.decode_command(body))
        except forkproto.FramingError as error:
            print(f"coffer-forkserver: {error}; giving up", file=sys.stderr, flush=True)
            self._open = False

    def _obey(self, command: Command) -> None:
        match command:
            case Fork():
                self._fork(command)
            case Kill(pid=pid, incarnation=incarnation):
                if self._roster.may_kill(pid, incarnation):
                    os.kill(pid, signal.SIGKILL)
            case Ping(number=number):
                self._say(Pong(number, len(self._roster)))
            case Quit():
                self._open = False

    def _say(self, event: Event) -> None:
        self._out += forkproto.encode(event)
        self._flush()

    def _flush(self) -> None:
        try:
            while self._out:
                del self._out[: self._sock.send(self._out)]
        except BlockingIOError:
            return
        except OSError:
            # The read side will see the end too, but there is no reason to wait for it.
            self._open = False

    # --- children -----------------------------------------------------------------------

    def _fork(self, order: Fork) -> None:
        if not self._lifelines:
            self._say(ForkFailed(order.request, "the order came without a lifeline descriptor"))
            return
        lifeline = self._lifelines.popleft()
        try:
            pid = os.fork()
        except OSError as error:
            self._say(ForkFailed(order.request, f"cannot fork: {error.strerror}"))
            os.close(lifeline)
            return
        if pid == 0:
            become_worker(order, lifeline, self._own_fds())
        os.close(lifeline)
        with contextlib.suppress(OSError):
            # From both sides, so that neither can act before the group exists.
            os.setpgid(pid, pid)
        self._roster.born(pid, order.name, order.incarnation)
        self._say(Forked(order.request, pid))

    def _own_fds(self) -> list[int]:
        selector = self._selector.fileno() if hasattr(self._selector, "fileno") else -1
        owned = [self._sock.fileno(), self._wake_read, self._wake_write, selector, *self._lifelines]
        return [fd for fd in owned if fd >= 0]

    def _drain_wakeups(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_read, 4096):
                pass

    def _reap(self) -> None:
        """Take every exit, report the workers', and kill what a dead one left behind.

        Orphans have moved here before their worker can be reaped, and the exit of each one killed brings
        the next SIGCHLD, so what it leaves in turn is found then.
        """
        gone = self._reap_all()
        for event in gone:
            self._say(event)
        for orphan in self._roster.orphans(os.getpid(), snapshot()):
            self._kill(orphan)

    def _reap_all(self) -> list[Exited]:
        events: list[Exited] = []
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if (event := self._roster.died(pid, status)) is not None:
                    events.append(event)
        return events

    def _reap_quietly(self) -> None:
        self._reap_all()

    def _kill(self, proc: Proc) -> None:
        if not proc.dead and (fd := send(proc, signal.SIGKILL)) is not None:
            os.close(fd)

    def _kill_everything(self) -> None:
        me = os.getpid()

        def below() -> list[Proc]:
            return descendants(me, snapshot())

        while kill_until_gone(below, seconds=_KILL_ROUND_SECONDS, between=self._reap_quietly):
            # Only a process in uninterruptible sleep can be left; to exit now would lose track of it.
            print("coffer-forkserver: some descendants do not die yet; trying on", file=sys.stderr, flush=True)
