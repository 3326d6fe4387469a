"""Calls counted: how many ended how, and how long they took, by server and type.

Owns the counters that ``/metrics`` shows. They start at nothing with the daemon and only grow. A call costs about a
microsecond here; nothing is named that a client could invent without end.
"""

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Upper bounds of the durations' classes in seconds; one more class has none."""
MOST: Final = 2048
OTHER: Final = ""
"""The server under which is counted what comes after the first ``MOST`` pairs of server and type."""


@dataclass(slots=True)
class Figures:
    """Of one server and type. ``classes``: calls whose duration is in each class (not cumulated)."""

    statuses: dict[str, int] = field(default_factory=dict)
    classes: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    seconds: float = 0.0

    @property
    def calls(self) -> int:
        """All of them."""
        return sum(self.classes)

    def cumulated(self) -> list[tuple[str, float]]:
        """(upper bound, calls up to it) for each class, the last one ``+Inf``."""
        found: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip((*map(str, BOUNDS), "+Inf"), self.classes, strict=True):
            total += count
            found.append((bound, float(total)))
        return found


class Tally:
    """The counters of one daemon."""

    def __init__(self) -> None:
        self.figures: dict[tuple[str, str], Figures] = {}

    def count(self, server: str, type_: str, status: str, seconds: float) -> None:
        """A call ended."""
        found = self.figures.get((server, type_))
        if found is None:
            found = self._new(server, type_)
        found.statuses[status] = found.statuses.get(status, 0) + 1
        found.classes[bisect_left(BOUNDS, seconds)] += 1
        found.seconds += seconds

    def _new(self, server: str, type_: str) -> Figures:
        key = (server if len(self.figures) < MOST else OTHER, type_)
        return self.figures.setdefault(key, Figures())
