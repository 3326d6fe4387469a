"""The stdio pipe: one upstream process, messages as lines.

Owns the process's pipes from the protocol's side: framing, coalesced writes, chatter and stderr into the log, and the
moment at which the connection is over (its exit, or a closed stdout). Never decides about restarts.
Source: MCP, Transports, stdio.
"""

import asyncio
import signal
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from coffer_common import errors, jsonrpc
from coffer_common.errors import Reason
from coffer_worker.core.framing import Lines, TooLong
from coffer_worker.core.intake import Intake
from coffer_worker.log import UpstreamLog
from coffer_worker.process.child import Child, ChildGone
from coffer_worker.process.spawn import Launch, Spawner
from coffer_worker.upstream.pipe import Gone, Receiver

# How long an exit waits for output still in the pipe, and a closed stdout for the exit that usually follows.
_SETTLE_SECONDS: Final = 0.3
_STOP_SECONDS: Final = 3.0
_STDERR_LINE: Final = 64 * 1024
_QUOTED: Final = 10


class StdioPipe:
    """One process. Made by ``start`` only."""

    forgets = False

    def __init__(self, server: str, receiver: Receiver, *, log: UpstreamLog, line_bytes: int) -> None:
        self._server = server
        self._receiver = receiver
        self._log = log
        self._lines = Lines(line_bytes)
        self._input_bytes = line_bytes
        self._errors = Lines(_STDERR_LINE)
        self._complaints = Intake()
        self._loop = asyncio.get_running_loop()
        self._child: Child | None = None
        self._out: list[bytes] = []
        self._in: deque[bytes | TooLong] = deque()
        self._paused = False
        self._settling: asyncio.TimerHandle | None = None
        self._code: int | None = None
        self._stdout_open = True
        self._stderr_open = True
        self._closed = False
        self._deliberate = ""
        self._tail: list[str] = []
        self._tasks: set[asyncio.Task[object]] = set()
        self.bytes_in = 0
        self.bytes_out = 0

    @classmethod
    async def start(
        cls, server: str, spawner: Spawner, launch: Launch, receiver: Receiver, *, log: UpstreamLog, line_bytes: int
    ) -> "StdioPipe":
        """Start the process. Raises SpawnError."""
        pipe = cls(server, receiver, log=log, line_bytes=line_bytes)
        pipe._child = await spawner.spawn(launch, pipe)
        return pipe

    @property
    def pids(self) -> tuple[int, ...]:
        """The process, while it lives."""
        return () if self._child is None or self._code is not None else (self._child.pid,)

    # ---- to the upstream

    def send(self, message: bytes) -> None:
        """Queue one message; all of a loop turn go out in one write.

        What a client wrote on several lines is one line here: the rest of it would be read as messages of their own.
        """
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(jsonrpc.one_line(message))

    def _flush(self) -> None:
        self._out.append(b"")
        data = b"\n".join(self._out)
        self._out.clear()
        self.bytes_out += len(data)
        try:
            if self._child is not None:
                self._child.write(data)
                self._check_input(self._child, len(data))
        except ChildGone:
            return  # its end is reported by itself

    def _check_input(self, child: Child, written: int) -> None:
        """One that does not read must not fill our memory: calls that are given up are bytes in its pipe still."""
        queued = child.queued - written
        if queued > self._input_bytes:
            text = f"Upstream {self._server!r} does not read its input: {queued} bytes wait for it"
            self.fail(errors.INPUT_LIMIT, f"{text}, over its limit line_bytes ({self._input_bytes}); it was ended")

    def cancel(self, id: int | str, reason: str) -> None:
        """``notifications/cancelled``, in either era."""
        members = b'{"requestId":' + msgspec.json.encode(id)
        if reason:
            members += b',"reason":' + msgspec.json.encode(reason)
        self.send(jsonrpc.notification("notifications/cancelled", members + b"}"))

    def pause(self) -> None:
        """Take nothing more in, also of what has been read already; the process blocks when the pipe is full."""
        if self._code is not None or not self._stdout_open:
            return  # it can be made to wait no more: what there is is all there will be
        self._paused = True
        if self._child is not None and not self._closed:
            self._child.pause_output()

    def resume(self) -> None:
        """Go on with what has been read, then read on."""
        self._paused = False
        self._go_on()
        if not self._paused and self._child is not None and self._stdout_open and not self._closed:
            self._child.resume_output()

    def fail(self, reason: Reason, message: str) -> None:
        """End the process without grace; every open call is told why."""
        if not self._closed:
            self._stop_soon(message, 0.0)
            self._finish(message, reason)

    async def close(self, grace: float, reason: str) -> None:
        """End the process: end of input, SIGTERM, SIGKILL."""
        self._deliberate = self._deliberate or reason
        if self._child is not None:
            if self._out:
                self._flush()
            await self._child.stop(grace, reason)
        self._finish(f"Upstream {self._server!r} was stopped: {reason}")

    # ---- from the upstream (Listener)

    def stdout(self, data: bytes) -> None:
        """The next bytes of its standard output."""
        self.bytes_in += len(data)
        self._pass_on(self._lines.feed(data))

    def stderr(self, data: bytes) -> None:
        """The next bytes of its standard error."""
        rest = 0.0
        for line in self._errors.feed(data):
            self._error_line(b"(a line over 64 KiB)" if isinstance(line, TooLong) else line)
            rest = self._complaints.heard(0, self._loop.time())
        if rest and self._child is not None and self._code is None:
            self._child.pause_errors()
            self._loop.call_later(rest, self._hear_errors)

    def _hear_errors(self) -> None:
        if self._child is not None and self._stderr_open and not self._closed:
            self._child.resume_errors()

    def _error_line(self, line: bytes) -> None:
        self._log.stderr(line)
        self._tail.append(self._log.tail[-1])
        del self._tail[:-_QUOTED]

    def _pass_on(self, found: list[bytes | TooLong]) -> None:
        self._in.extend(found)
        self._go_on()

    def _go_on(self) -> None:
        """Hand over what has come, until told to pause: a flood comes in chunks of thousands of lines."""
        while self._in and not self._closed and not self._paused:
            item = self._in.popleft()
            try:
                if isinstance(item, TooLong):
                    self._receiver.too_long(item)
                else:
                    self._receiver.line(item)
            except Exception as error:
                # A fault of ours in one message must not lose the others.
                self._log.note(f"internal error in reading a message: {type(error).__name__}: {error}")
                self._loop.call_exception_handler({"message": "a message was not handled", "exception": error})

    def stdout_closed(self) -> None:
        """No more messages will come; usually its exit follows at once."""
        self._stdout_open = self._paused = False
        self._pass_on(self._lines.finish())
        self._settle(self._settled, now=self._over)

    def stderr_closed(self) -> None:
        """All of its last words are here."""
        self._stderr_open = False
        if self._over:
            self._settle(self._ended, now=True)

    @property
    def _over(self) -> bool:
        """It has ended, and nothing more can come of it."""
        return self._code is not None and not self._stdout_open and not self._stderr_open

    def drained(self) -> None:
        """Nothing waits for it: what goes upstream is bounded by the limits on calls."""

    def exited(self, returncode: int) -> None:
        """The process ended; what it wrote last may still be in the pipe."""
        self._code = returncode
        self.resume()
        self._hear_errors()
        self._settle(self._ended, now=self._over)

    def _settle(self, then: Callable[[], None], *, now: bool) -> None:
        if self._settling is not None:
            self._settling.cancel()
        self._settling = self._loop.call_later(0 if now else _SETTLE_SECONDS, then)

    def _settled(self) -> None:
        """stdout is closed, and no exit followed: it lives on, mute."""
        if self._code is None:
            message = f"Upstream {self._server!r} closed its standard output but did not exit; it is being stopped"
            self._finish(message + self._quoted())
            self._stop_soon("it closed its standard output", _STOP_SECONDS)
        else:
            self._ended()

    def _ended(self) -> None:
        for line in self._errors.finish():
            self._error_line(line if isinstance(line, bytes) else b"(a line over 64 KiB)")
        self._finish(f"Upstream {self._server!r} {exit_text(self._code or 0)}{self._quoted()}")

    def _stop_soon(self, reason: str, grace: float) -> None:
        if self._child is not None:
            task = self._loop.create_task(self._child.stop(grace, reason))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _finish(self, message: str, reason: Reason | None = None) -> None:
        if self._closed:
            return
        self._closed = True
        if self._settling is not None:
            self._settling.cancel()
        self._receiver.closed(Gone(message, self._code, bool(self._deliberate), tuple(self._tail), reason))

    def _quoted(self) -> str:
        lines = self.last_output()
        return f". The last lines of its stderr: {' | '.join(lines)}" if lines else ""

    def last_output(self) -> tuple[str, ...]:
        """The last stderr lines, and what it began to write on either output without a newline."""
        rest = [
            self._log.mask(held.decode(errors="replace"))
            for held in (self._errors.unfinished(), self._lines.unfinished())
            if held and held[:1] != b"{"
        ]
        return (*self._tail, *rest)


def exit_text(code: int) -> str:
    """``exited with code 3``, ``was killed by SIGKILL``."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
