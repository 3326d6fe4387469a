"""The control thread: what must go on even when the event loop does not.

Owns heartbeats, the process's title, stack dumps of a loop that does not answer, and the lifeline: when the
supervisor is gone, everything below is killed here. Hands all other control frames to the loop. Never touches an
upstream or a call.
"""

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import setproctitle

from coffer_common import frames
from coffer_worker.link import Control, Link
from coffer_worker.stacks import thread_stacks

BEAT_SECONDS: Final = 1.0
DUMP_SECONDS: Final = 1.0
EXIT_LIFELINE: Final = 75
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Figures:
    """What the loop knows of itself. ``oldest_since``: monotonic seconds, None without calls."""

    state: str = "starting"
    in_flight: int = 0
    queued: int = 0
    oldest_since: float | None = None
    oldest_key: str = ""
    connections: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    pids: tuple[int, ...] = ()
    projects: tuple[str, ...] = ()


class ControlThread:
    """One per worker. ``figures`` runs on the loop; ``deliver`` gets each frame there; ``kill`` ends all below."""

    def __init__(
        self,
        name: str,
        link: Link,
        lifeline: int,
        loop: asyncio.AbstractEventLoop,
        *,
        deliver: Callable[[Any], None],
        figures: Callable[[], Figures],
        kill: Callable[[], None],
    ) -> None:
        self._name = name
        self._link = link
        self._lifeline = lifeline
        self._loop = loop
        self._deliver = deliver
        self._figures_of_loop = figures
        self._kill = kill
        self._out: deque[tuple[Any, bytes]] = deque()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._figures = Figures()
        self._asked_at = 0.0
        self._lag = 0.0
        self._outstanding = False
        self._dumps: dict[int, float] = {}
        self._lock = threading.Lock()
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def post(self, frame: Any, payload: bytes = b"") -> None:
        """Send a control frame; from the loop."""
        if isinstance(frame, frames.Dumped):
            with self._lock:
                if self._dumps.pop(frame.corr, None) is None:
                    return  # the thread has answered already, in its own way
        if isinstance(frame, frames.State):
            self._figures = self._figures_of_loop()  # the next beat belongs to this state, not to the one before
        self._out.append((frame, payload))
        self._wake()

    def finish(self, seconds: float) -> None:
        """Send what is queued and end the thread."""
        self._ending = True
        self._wake()
        self._thread.join(seconds)

    def _wake(self) -> None:
        try:
            os.write(self._wake_write, b"x")
        except BlockingIOError:
            return  # it is awake

    # ---- the thread

    def _run(self) -> None:
        socket = self._link.control()
        watched = (self._wake_read, self._lifeline)
        next_beat = time.monotonic()
        while True:
            now = time.monotonic()
            if now >= next_beat:
                self._beat(socket, now)
                next_beat = max(next_beat + BEAT_SECONDS, now)
            ready = socket.wait(watched, min([next_beat, *self._dumps.values()]) - now)
            if self._wake_read in ready:
                self._drain_wakeups()
            for frame in socket.receive():
                self._obey(frame)
            if self._lifeline in ready:
                self._lost()
            self._answer_dumps(socket)
            while self._out:
                socket.send(*self._out.popleft())
            if self._ending:
                socket.close()
                return

    def _drain_wakeups(self) -> None:
        try:
            while os.read(self._wake_read, 4096):
                pass
        except BlockingIOError:
            return

    def _obey(self, frame: Any) -> None:
        if isinstance(frame, frames.Dump):
            with self._lock:
                self._dumps[frame.corr] = time.monotonic() + DUMP_SECONDS
        self._on_loop(self._deliver, frame)

    def _on_loop(self, action: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(action, *arguments)
        except RuntimeError:
            return  # the loop is closed: the process is about to end

    def _lost(self) -> None:
        """The supervisor is gone: so is the reason for everything below."""
        try:
            self._kill()
        finally:  # out of descriptors, say: the fork server ends what is left of a dead worker
            os._exit(EXIT_LIFELINE)

    # ---- heartbeats

    def _beat(self, socket: Control, now: float) -> None:
        if self._outstanding:
            self._lag = now - self._asked_at
        else:
            self._outstanding, self._asked_at = True, now
            self._on_loop(self._stamp)
        figures = self._figures
        oldest = now - figures.oldest_since if figures.oldest_since is not None else 0.0
        socket.send(
            frames.Heartbeat(
                in_flight=figures.in_flight,
                oldest=oldest,
                oldest_key=figures.oldest_key,
                connections=figures.connections,
                bytes_in=figures.bytes_in,
                bytes_out=figures.bytes_out,
                rss=_rss(),
                loop_lag=self._lag,
                cpu_seconds=time.process_time(),
                queued=figures.queued,
                pids=figures.pids,
                projects=figures.projects,
            )
        )
        self._title(figures, oldest)

    def _stamp(self) -> None:
        """On the loop: it turns, and this is how things stand."""
        self._figures = self._figures_of_loop()
        self._lag = time.monotonic() - self._asked_at
        self._outstanding = False

    def _title(self, figures: Figures, oldest: float) -> None:
        parts = [
            f"coffer-worker: {self._name} {figures.state} conns={figures.connections} inflight={figures.in_flight}"
        ]
        if figures.oldest_since is not None:
            parts.append(f"oldest={oldest:.0f}s")
        parts.append(time.strftime("@%H:%M:%S"))
        setproctitle.setproctitle(" ".join(parts))

    # ---- dumps

    def _answer_dumps(self, socket: Control) -> None:
        now = time.monotonic()
        with self._lock:
            due = [corr for corr, at in self._dumps.items() if at <= now]
            for corr in due:
                del self._dumps[corr]
        for corr in due:
            note = f"the event loop has not answered for {DUMP_SECONDS:g} s; these are the stacks of its threads"
            body = {"calls": [], "tasks": [note, *thread_stacks()], "tree": [], "stderr": [], "loop": "stuck"}
            socket.send(frames.Dumped(corr), msgspec.json.encode(body))


def _rss() -> int:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0
