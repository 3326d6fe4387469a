"""Calls in flight: which there are, in what order they may start, and when each has taken too long.

Owns the in-flight table of one upstream, its queue, the limits (idle, total, start, in flight, queue), the numbers
under which calls go upstream (ids and progress tokens: our own, never reused) and the memory of calls cancelled before
they came. Never sends, reads a clock or looks into a payload. Times are monotonic seconds.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

from coffer_common import errors
from coffer_common.errors import Reason
from coffer_common.frames import Caller
from coffer_common.resources import Limits
from coffer_worker.core.splice import Slice

_REMEMBERED_CANCELS: Final = 1024

Stage = Literal["queued", "waiting", "sent", "done"]


@dataclass(slots=True, eq=False)
class Flight:
    """One call. ``id`` is its number (and progress token) upstream, 0 until sent; ``conn`` the connection's number;
    ``again``: it was sent a second time, which is the last. ``keep``: its params may be needed again, ``extra`` goes
    with them. ``asked_at``: since when its client is being asked something, which stops its clocks; ``rounds``: how
    often it was; ``top``: the highest progress so far. ``parked``: no request of its client is open meanwhile."""

    corr: int
    caller: Caller
    method: str
    key: str
    params: bytes
    log_level: str
    admitted: float
    total_at: float | None
    stage: Stage = "waiting"
    client_token: bytes | None = None
    conn: int = 0
    id: int = 0
    active: float = 0.0
    progress: bytes = b""
    again: bool = False
    keep: bool = False
    extra: dict[str, Slice] = field(default_factory=dict)
    asked_at: float | None = None
    rounds: int = 0
    top: float | None = None
    parked: bool = False


@dataclass(frozen=True, slots=True)
class Refusal:
    """A call that is not, or no longer, carried: why, for the client."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Late:
    """A call that reached a limit."""

    flight: Flight
    refusal: Refusal


class Relay:
    """The calls of one upstream named ``server`` under ``limits``."""

    def __init__(self, server: str, limits: Limits) -> None:
        self._server = server
        self._limits = limits
        self._calls: dict[int, Flight] = {}
        self._by_id: dict[int, Flight] = {}
        self._queue: deque[Flight] = deque()
        self._early: OrderedDict[int, None] = OrderedDict()
        self._open = 0
        self._next = 0
        self.strays: dict[int, int] = {}
        self.late = 0

    @property
    def idle_seconds(self) -> float | None:
        """The limit between two signs of life of a call."""
        return self._limits.idle_seconds

    def number(self) -> int:
        """A fresh id, for a request or a token; unique in the worker's life."""
        self._next += 1
        return self._next

    # ---- the table

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[Flight]:
        return iter(list(self._calls.values()))

    @property
    def in_flight(self) -> int:
        """Calls that are not queued."""
        return self._open

    @property
    def queued(self) -> int:
        """Calls that wait for others to end."""
        return len(self._calls) - self._open

    def oldest(self) -> Flight | None:
        """The call that is here longest."""
        return next(iter(self._calls.values()), None)

    def get(self, corr: int) -> Flight | None:
        """The call of that number, if it is open."""
        return self._calls.get(corr)

    def of_session(self, session: str) -> list[Flight]:
        """The open calls of one session."""
        return [f for f in self._calls.values() if f.caller.session == session]

    def of_connection(self, conn: int) -> list[Flight]:
        """The calls under way on one connection."""
        return [f for f in self._by_id.values() if f.conn == conn]

    # ---- a call's life

    def admit(
        self,
        corr: int,
        caller: Caller,
        method: str,
        key: str,
        params: bytes,
        *,
        now: float,
        budget: float | None = None,
        log_level: str = "",
    ) -> Flight | Refusal | None:
        """Take a call in: a Flight (``waiting`` or ``queued``), a Refusal, or None where its cancel came first."""
        if corr in self._early:
            del self._early[corr]
            return None
        total = _least(self._limits.total_seconds, budget)
        flight = Flight(corr, caller, method, key, params, log_level, now, None if total is None else now + total)
        if self._open < self._limits.in_flight:
            self._open += 1
        elif self.queued < self._limits.queue:
            flight.stage = "queued"
            self._queue.append(flight)
        else:
            return Refusal(
                errors.QUEUE_FULL,
                f"Upstream {self._server!r} already has {self._limits.in_flight} calls in flight and "
                f"{self._limits.queue} waiting; try again when some have ended",
            )
        self._calls[corr] = flight
        return flight

    def sent(self, flight: Flight, conn: int, id: int, now: float, *, keep: bool = False) -> None:
        """The call went upstream under ``id`` on connection ``conn``; ``keep`` its params: it may have to go again."""
        flight.stage, flight.conn, flight.id, flight.active = "sent", conn, id, now
        if not (keep or flight.keep):
            flight.params = b""
        self._by_id[id] = flight

    def once_more(self, flight: Flight) -> bool:
        """Whether a call that was surely not executed may be sent once more; it then waits to be."""
        if flight.stage != "sent" or flight.again or not flight.params:
            return False
        self._by_id.pop(flight.id, None)
        flight.stage, flight.again = "waiting", True
        return True

    # ---- a call whose client is being asked

    def asking(self, flight: Flight, now: float) -> None:
        """Its client is being asked: its limits stand still, the one for answers runs."""
        if flight.asked_at is None:
            flight.asked_at = now

    def answered(self, flight: Flight, now: float) -> None:
        """Nothing is being asked any more: its limits run on from where they stood."""
        if flight.asked_at is None:
            return
        if flight.total_at is not None:
            flight.total_at += now - flight.asked_at
        flight.asked_at, flight.active = None, now

    def between(self, flight: Flight) -> None:
        """The upstream has answered, but the call is not over: it will be sent again."""
        self._by_id.pop(flight.id, None)
        flight.stage, flight.conn, flight.id = "waiting", 0, 0

    def park(self, flight: Flight) -> None:
        """Its client's request was answered with an ask: its number is free, the call stays under one of ours."""
        del self._calls[flight.corr]
        flight.corr, flight.parked = -self.number(), True
        self._calls[flight.corr] = flight

    def resume(self, flight: Flight, corr: int, caller: Caller) -> bool:
        """Its client's retry came as ``corr``; False where the cancel of that came first."""
        if corr in self._early:
            del self._early[corr]
            return False
        del self._calls[flight.corr]
        flight.corr, flight.caller, flight.parked = corr, caller, False
        self._calls[corr] = flight
        return True

    def progress(self, conn: int, token: int, now: float) -> Flight | None:
        """The call whose progress this is, its idle limit begun anew; None for a token that is not open there."""
        flight = self._by_id.get(token)
        if flight is None or flight.conn != conn:
            return None
        flight.active = now
        return flight

    def finish(self, flight: Flight) -> list[Flight]:
        """The call has ended, in whatever way; returns queued calls that may start now."""
        if flight.stage == "done":
            return []
        del self._calls[flight.corr]
        self._by_id.pop(flight.id, None)
        was_queued, flight.stage = flight.stage == "queued", "done"
        if was_queued:
            return []
        self._open -= 1
        started: list[Flight] = []
        while self._queue and self._open < self._limits.in_flight:
            following = self._queue.popleft()
            if following.stage == "queued":
                following.stage = "waiting"
                self._open += 1
                started.append(following)
        return started

    def cancelled(self, corr: int) -> Flight | None:
        """The call to cancel; where it is not here its number is kept, for the call may still be under way to us."""
        flight = self._calls.get(corr)
        if flight is None:
            self._early[corr] = None
            while len(self._early) > _REMEMBERED_CANCELS:
                self._early.popitem(last=False)
        return flight

    def stray(self, conn: int, id: int | str | None) -> bool:
        """An answer came to nothing that is open; whether it is to nothing that ever was (else it is merely late)."""
        if isinstance(id, int) and 0 < id <= self._next:
            self.late += 1
            return False
        self.strays[conn] = self.strays.get(conn, 0) + 1
        return True

    # ---- limits

    def _idle_at(self, flight: Flight) -> float | None:
        idle = self._limits.idle_seconds
        asked = flight.asked_at is not None
        return flight.active + idle if flight.stage == "sent" and idle is not None and not asked else None

    def _due(self, flight: Flight) -> tuple[float | None, ...]:
        if flight.asked_at is not None:
            return (flight.asked_at + self._limits.answer_seconds,)
        return flight.total_at, self._idle_at(flight)

    def next_deadline(self) -> float | None:
        """When the first limit is reached, if nothing happens before."""
        times = [t for f in self._calls.values() for t in self._due(f) if t is not None]
        return min(times, default=None)

    def expired(self, now: float) -> list[Late]:
        """The calls that have reached a limit; the shell ends each."""
        found: list[Late] = []
        for flight in self._calls.values():
            idle_at = self._idle_at(flight)
            if flight.asked_at is not None:
                if flight.asked_at + self._limits.answer_seconds <= now:
                    found.append(Late(flight, self._too_late(flight)))
            elif flight.total_at is not None and flight.total_at <= now:
                found.append(Late(flight, self._too_long(flight, now)))
            elif idle_at is not None and idle_at <= now:
                found.append(Late(flight, self._too_silent(flight)))
        return found

    def _too_long(self, flight: Flight, now: float) -> Refusal:
        seconds = f"{now - flight.admitted:.0f}" if now - flight.admitted >= 10 else f"{now - flight.admitted:.1f}"
        where = "" if flight.stage == "sent" else " (it was still waiting to be sent)"
        return Refusal(
            errors.TOTAL_LIMIT,
            f"Upstream {self._server!r} did not finish {_what(flight)} within {seconds} s, the limit for a whole "
            f"call{where}; the call was cancelled{self._about_strays(flight)}",
        )

    def _too_silent(self, flight: Flight) -> Refusal:
        return Refusal(
            errors.IDLE_LIMIT,
            f"Upstream {self._server!r} neither answered {_what(flight)} nor reported progress for "
            f"{self._limits.idle_seconds:g} s, its idle limit; the call was cancelled{self._about_strays(flight)}",
        )

    def _too_late(self, flight: Flight) -> Refusal:
        return Refusal(
            errors.ANSWER_LIMIT,
            f"Upstream {self._server!r} asked for input during {_what(flight)}, and nobody gave it within "
            f"{self._limits.answer_seconds:g} s, the limit for answers; the call was cancelled",
        )

    def _about_strays(self, flight: Flight) -> str:
        count = self.strays.get(flight.conn, 0)
        return f". It sent {count} answer(s) that belong to no request: its ids may be wrong" if count else ""


def _what(flight: Flight) -> str:
    return f"{flight.method} {flight.key!r}"


def _least(*limits: float | None) -> float | None:
    return min((limit for limit in limits if limit is not None), default=None)
