"""How often lists are read again when an upstream keeps saying that they changed.

Owns the spacing of re-reads: at once when it was quiet, further and further apart while reading shows no change, so
that a server that announces a change in answer to every list is not asked for ever faster. Never reads a clock.
"""

from typing import Final

FIRST: Final = 0.05
LIMIT: Final = 30.0
GROWTH: Final = 2.0
QUIET: Final = 60.0


class Pace:
    """One upstream connection's re-reads. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._gap = FIRST
        self._last = float("-inf")
        self.due: float | None = None

    def announced(self, now: float) -> float:
        """The upstream says its lists changed; returns when to read (kept in ``due`` until ``read``)."""
        if now - self._last > QUIET:
            self._gap = FIRST
        if self.due is None:
            self.due = max(now + FIRST, self._last + self._gap)
        return self.due

    def read(self, now: float, *, changed: bool) -> None:
        """The lists were read; ``changed``: they differ from before."""
        self.due = None
        self._last = now
        self._gap = max(1.0, FIRST) if changed else min(LIMIT, max(1.0, self._gap * GROWTH))
