"""How much an upstream may say that nobody waits for, before it is made to wait.

Owns that allowance. An answer to an open request costs nothing; notifications, requests, stray answers and lines that
are no messages do, so that one that floods takes a share of the machine that is bounded. Nothing is dropped: while we
rest, its pipe fills and it blocks. Never reads a clock: times are monotonic seconds.
"""

from typing import Final

RATE: Final = 15_000.0
"""Messages a second, in the long run."""
BURST: Final = 5_000.0
BYTES: Final = 4096
"""So many bytes weigh as much as one more message."""
PASSED_ON: Final = 5 * BYTES
"""What is passed on to the supervisor, whose loop serves all upstreams, weighs as much more as this."""
REST: Final = 0.02
LONGEST_REST: Final = 0.5


class Intake:
    """The allowance of one connection."""

    def __init__(self) -> None:
        self._left = BURST
        self._at = 0.0

    def heard(self, size: int, now: float) -> float:
        """A message of ``size`` bytes that nobody waited for: for how many seconds to take nothing more in."""
        self._left = min(BURST, self._left + (now - self._at) * RATE) - 1 - size / BYTES
        self._at = now
        if self._left > 0:
            return 0.0
        return min(LONGEST_REST, REST - self._left / RATE)
