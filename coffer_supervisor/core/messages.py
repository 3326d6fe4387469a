"""The messages of one response stream in their order, kept as long as a client may still ask for them again.

Owns numbering, bounds and replay; event ids are ``STREAM-NUMBER``. Pure: no socket, no clock.
Source: MCP 2025-11-25, Transports, Resumability and Redelivery.
"""

from collections import OrderedDict, deque
from itertools import islice
from typing import Final, Generic, TypeVar

from coffer_supervisor.core.pieces import Message

MAX_MESSAGES: Final = 1024
MAX_BYTES: Final = 8 * 1024 * 1024
MAX_LOGS: Final = 32
MAX_KEPT_BYTES: Final = 64 * 1024 * 1024
REPLAY_MESSAGES: Final = 256
REPLAY_BYTES: Final = 1024 * 1024


class MessageLog:
    """Messages numbered from 1. ``final`` messages are answers: they are never dropped; of the others the newest
    give way when the log is full (``dropped`` counts them). The log is ``ended`` when ``expected`` answers are in."""

    __slots__ = ("_bytes", "_first", "_messages", "answers", "dropped", "ended", "expected")

    def __init__(self, expected: int = 1) -> None:
        self._messages: deque[Message] = deque()
        self._first = 1
        self._bytes = 0
        self.expected = expected
        self.answers = 0
        self.dropped = 0
        self.ended = False

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def last(self) -> int:
        """The number of the newest message; 0 where there was none."""
        return self._first + len(self._messages) - 1

    @property
    def size(self) -> int:
        """Bytes kept."""
        return self._bytes

    def append(self, message: Message, *, answer: bool = False) -> bool:
        """Adds one; False where it was dropped, or came after the end."""
        if self.ended:
            return False
        if not answer and (len(self._messages) >= MAX_MESSAGES or self._bytes >= MAX_BYTES):
            self.dropped += 1
            return False
        self._messages.append(message)
        self._bytes += len(message)
        if answer:
            self.answers += 1
            self.ended = self.answers >= self.expected > 0
        return True

    def end(self) -> None:
        """Nothing follows."""
        self.ended = True

    def after(self, number: int) -> list[tuple[int, Message]]:
        """The messages kept that follow ``number``."""
        start = max(number + 1, self._first)
        return list(enumerate(islice(self._messages, start - self._first, None), start))

    def release(self, number: int, *, keep: int = 0, keep_bytes: int = 0) -> None:
        """Messages up to ``number`` were written: they may go, but for the newest ``keep`` of them within
        ``keep_bytes``."""
        while self._messages and self._first <= number and (self._first <= number - keep or self._bytes > keep_bytes):
            self._bytes -= len(self._messages.popleft())
            self._first += 1


L = TypeVar("L", bound=MessageLog)


class ReplayLogs(Generic[L]):
    """The resumable streams of one session by name, the longest untouched going first beyond the bounds."""

    __slots__ = ("_logs", "_next")

    def __init__(self) -> None:
        self._logs: OrderedDict[str, L] = OrderedDict()
        self._next = 0

    def add(self, log: L) -> str:
        """Keeps ``log``; its name among this session's streams."""
        self._next += 1
        name = f"{self._next}"
        self._logs[name] = log
        self.trim()
        return name

    def trim(self) -> None:
        """Lets finished streams go beyond the bounds (an open one is bounded by itself)."""
        total = sum(log.size for log in self._logs.values())
        for name, log in list(self._logs.items()):
            if len(self._logs) <= MAX_LOGS and total <= MAX_KEPT_BYTES:
                return
            if log.ended:
                total -= log.size
                del self._logs[name]

    def drop(self, name: str) -> None:
        """That stream will not be asked for again."""
        self._logs.pop(name, None)

    def find(self, event_id: str) -> tuple[str, L, int] | None:
        """(stream, log, number) of an event id that this session was given; None for any other."""
        name, dash, number = event_id.rpartition("-")
        log = self._logs.get(name)
        if not dash or log is None or not (number.isascii() and number.isdigit()) or len(number) > 12:
            return None
        self._logs.move_to_end(name)
        return name, log, int(number)
