"""What the load's lines say about a window: percentiles, errors, and how long an outage lasted. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

RATIO = 1.5
"""How much the healthy's p99 may grow while another upstream misbehaves."""
RECOVERY_SECONDS = 2.0
"""How soon healthy calls work again after a fault of Coffer itself."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the load: when it was to be sent (monotonic), how long it took, ``ok`` or what was wrong."""

    due: float
    seconds: float
    outcome: str

    @property
    def ended(self) -> float:
        """When it had its outcome."""
        return self.due + self.seconds


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of the load. Milliseconds; ``errors`` are the different things that went wrong."""

    calls: int
    p50: float
    p99: float
    worst: float
    failed: int
    errors: tuple[str, ...]


def read(lines: Iterable[str]) -> list[Call]:
    """The load's lines; one that is not complete yet is left out."""
    found = []
    for line in lines:
        parts = line.rstrip("\n").split("\t")
        if len(parts) == 3 and line.endswith("\n"):
            found.append(Call(float(parts[0]), float(parts[1]), parts[2]))
    return found


def percentile(ordered: Sequence[float], part: float) -> float:
    """The value at a part (0 to 1) of an ordered sequence; NaN of nothing."""
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else float("nan")


def window(calls: Iterable[Call], begin: float, end: float) -> Window:
    """The calls that were to be sent between two moments."""
    within = [call for call in calls if begin <= call.due < end]
    times = sorted(call.seconds * 1e3 for call in within)
    bad = [call.outcome for call in within if call.outcome != "ok"]
    return Window(
        len(within),
        percentile(times, 0.5),
        percentile(times, 0.99),
        times[-1] if times else float("nan"),
        len(bad),
        tuple(dict.fromkeys(bad)),
    )


def recovery(calls: Iterable[Call], at: float, until: float, slow: float = 0.25) -> float | None:
    """Seconds from ``at`` until healthy calls work again for good, None if they did not before ``until``.

    That is when the last call that failed was sent, or the last that was held up (for more than ``slow`` seconds)
    was answered, whichever is later.
    """
    back, last = at, "none"
    for call in sorted((call for call in calls if call.ended >= at and call.due < until), key=lambda call: call.due):
        last = call.outcome
        if call.outcome != "ok":
            back = max(back, call.due)
        elif call.seconds > slow:
            back = max(back, call.ended)
    return back - at if last == "ok" else None


TIMES = ("p99 of the healthy grew", "healthy calls were back")
"""How faults begin that a busy machine alone may bring about."""


@dataclass(slots=True)
class Row:
    """What one case came to. ``kind``: ``upstream`` and ``client`` are held to the ratio; ``coffer`` and ``load`` to
    recovery (a load of its own takes its share of two cores like any other), ``load`` to no failed call besides."""

    name: str
    kind: str
    seen: list[str] = field(default_factory=list)
    before: Window | None = None
    during: Window | None = None
    back: float | None = None
    left: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    attempts: int = 1

    @property
    def outage(self) -> bool:
        """Whether recovery counts, not the ratio."""
        return self.kind in ("coffer", "load")

    @property
    def ratio(self) -> float:
        """p99 during the fault by p99 before."""
        assert self.before is not None
        assert self.during is not None
        return self.during.p99 / self.before.p99

    def judge(self, slack_ms: float) -> None:
        """Add to ``faults`` what does not hold. ``slack_ms``: what is too little to be told from noise."""
        assert self.before is not None
        assert self.during is not None
        if self.before.failed:
            self.faults.append(f"{self.before.failed} healthy calls failed before the fault: {self.before.errors[0]}")
        if self.outage and (self.back is None or self.back > RECOVERY_SECONDS):
            shown = "never" if self.back is None else f"after {self.back:.2f} s"
            self.faults.append(f"healthy calls were back {shown}, not within {RECOVERY_SECONDS:g} s")
        if self.kind != "coffer" and self.during.failed:
            self.faults.append(f"{self.during.failed} healthy calls failed: {self.during.errors[0]}")
        if not self.outage and self.ratio > RATIO and self.during.p99 > self.before.p99 + slack_ms:
            self.faults.append(f"p99 of the healthy grew by {self.ratio:.2f}, more than {RATIO:g}")
        self.faults.extend(f"left behind: {what}" for what in self.left)
