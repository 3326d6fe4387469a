"""How often lists are read again when an upstream keeps saying that they changed, and whether it is believed.

Owns the spacing of re-reads: at once when it was quiet, further and further apart while reading shows no change, so
that a server that announces a change in answer to every list is not asked for ever faster, and further apart, too,
where one that is believed announces without end. Owns, too, whether an announcement is passed on where reading shows
no change: it is, unless our own reading explains it. Never reads a clock.
"""

from typing import Final

FIRST: Final = 0.05
SHORT: Final = 0.25
LIMIT: Final = 30.0
GROWTH: Final = 2.0
ROW: Final = 8
"""So many readings may follow each other closely before they are spaced."""
SUSTAINED: Final = 2.0
"""The widest spacing of what is believed; shorter than `ECHO`."""
QUIET: Final = 60.0
ECHO: Final = 3.0
"""An announcement this soon after our reading may be the reading's own doing."""
PATIENCE: Final = 32
"""So often in a row one that is believed may announce, soon after a reading, what is no change."""


class Pace:
    """One upstream connection's re-reads. Times are monotonic seconds.

    An upstream earns belief by an announcement that has another cause than our reading: nothing was read lately, or a
    call is under way. It loses belief by `PATIENCE` fruitless ones in a row; then only the first cause restores it.
    """

    def __init__(self) -> None:
        self.believed = False
        self.due: float | None = None
        self._gap = FIRST
        self._last: float | None = None
        self._reading = False
        self._explained = False
        self._fruitless = 0
        self._row = 0
        self._answering = False

    def announced(self, now: float, *, busy: bool = False) -> float:
        """The upstream says its lists changed; returns when to read (kept in ``due`` until ``read``).

        ``busy``: calls are under way, one of which may have changed them.
        """
        explained = self._reading or (self._last is not None and now - self._last <= ECHO)
        if not explained:
            self.believed, self._fruitless, self._row = True, 0, 0
        elif busy and self._fruitless < PATIENCE:
            self.believed = True
        if self._last is not None and now - self._last > QUIET:
            self._gap = FIRST
        if self.due is None:
            self._explained = explained
            self.due = now + FIRST if self._last is None else max(now + FIRST, self._last + self._gap)
        else:
            self._explained = self._explained and explained
        return self.due

    def began(self) -> None:
        """The lists are being read."""
        self._answering = self.due is not None
        self._reading, self.due = True, None

    def read(self, now: float, *, changed: bool) -> None:
        """The lists were read; ``changed``: they differ from before."""
        self._reading, self._last = False, now
        if changed and self.believed:
            self._fruitless = 0
        elif not changed and self._explained:
            self._fruitless = min(self._fruitless + 1, PATIENCE)
            self.believed = self.believed and self._fruitless < PATIENCE
        self._explained = False
        self._row += self._answering
        if self.believed:
            self._gap = SHORT if self._row <= ROW else min(SUSTAINED, self._gap * GROWTH)
        else:
            self._gap = 1.0 if changed else min(LIMIT, max(1.0, self._gap * GROWTH))
