"""Which workers are to be replaced for silence or a stuck loop, judged from their heartbeats.

Owns the judgement alone. Never reads a clock, never kills: times (monotonic seconds) are passed in. A gap in the
supervisor's own clock (sleep, suspend, a stopped process) is forgiven: nobody could be heard meanwhile.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

BEAT_SECONDS: Final = 1.0
MISSED_BEATS: Final = 10
STUCK_SECONDS: Final = 30.0
GAP_SECONDS: Final = 3.0
SILENT_SECONDS: Final = 1.5
_CPU_PROGRESS: Final = 0.01
"""Share of a CPU: more than the control thread needs by itself, less than a starved but honest loop gets."""

Who = TypeVar("Who", bound=Hashable)


@dataclass(slots=True)
class _Worker:
    heard: float
    cpu: float = 0.0
    stuck_since: float | None = None
    cpu_then: float = 0.0


@dataclass(frozen=True, slots=True)
class Verdict(Generic[Who]):
    """``who`` is to be replaced; ``reason`` says why in words for an operator."""

    who: Who
    reason: str


@dataclass(slots=True)
class Liveness(Generic[Who]):
    """Ask ``check`` every second."""

    _workers: dict[Who, _Worker] = field(default_factory=dict)
    _checked: float | None = None

    def watch(self, who: Who, now: float) -> None:
        """It lives from now on, as far as is known."""
        self._workers[who] = _Worker(now)

    def forget(self, who: Who) -> None:
        """It is gone, or is being ended."""
        self._workers.pop(who, None)

    def beat(self, who: Who, now: float, *, loop_lag: float, cpu_seconds: float) -> None:
        """A heartbeat: seconds its loop has not turned, CPU seconds it has used in all."""
        worker = self._workers.get(who)
        if worker is None:
            return
        worker.heard, worker.cpu = now, cpu_seconds
        if loop_lag < MISSED_BEATS * BEAT_SECONDS:
            worker.stuck_since = None
        elif worker.stuck_since is None or cpu_seconds - worker.cpu_then >= _CPU_PROGRESS * (now - worker.stuck_since):
            # A loop that computes is busy, not stuck: the time counts from when it last made progress.
            worker.stuck_since = now - (loop_lag if worker.stuck_since is None else 0.0)
            worker.cpu_then = cpu_seconds

    def silent(self, now: float) -> list[Who]:
        """Those whose last beat is late: worth a look at whether their processes live. Ask after ``check``."""
        return [who for who, worker in self._workers.items() if now - worker.heard > SILENT_SECONDS]

    def check(self, now: float) -> list[Verdict[Who]]:
        """Those to be replaced; they are no longer watched."""
        gap = 0.0 if self._checked is None else now - self._checked - BEAT_SECONDS
        self._checked = now
        if gap > GAP_SECONDS:
            self._forgive(gap)
        found = [v for who, worker in self._workers.items() if (v := _judge(who, worker, now)) is not None]
        for verdict in found:
            del self._workers[verdict.who]
        return found

    def _forgive(self, gap: float) -> None:
        for worker in self._workers.values():
            worker.heard += gap
            if worker.stuck_since is not None:
                worker.stuck_since += gap


def _judge(who: Who, worker: _Worker, now: float) -> Verdict[Who] | None:
    silent = now - worker.heard
    if silent > MISSED_BEATS * BEAT_SECONDS:
        return Verdict(who, f"the worker missed {int(silent / BEAT_SECONDS)} heartbeats")
    if worker.stuck_since is not None and now - worker.stuck_since >= STUCK_SECONDS:
        stuck = now - worker.stuck_since
        return Verdict(who, f"the worker's loop has not turned for {stuck:.0f} s, without using the CPU")
    return None
