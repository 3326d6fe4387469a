"""When to try a failing thing again: Erlang's restart intensity with exponential backoff and a slow retry after it.

Owns the counting and the delays. Never reads a clock, sleeps or starts anything: time (monotonic seconds) and
randomness are passed in.
"""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Policy:
    """At most ``attempts`` failures in ``window`` seconds, delays from ``base`` doubling to ``cap``; after more than
    that one try every ``slow`` seconds. A run of ``stable`` seconds forgets all failures."""

    attempts: int = 5
    window: float = 60.0
    base: float = 0.5
    cap: float = 15.0
    slow: float = 60.0
    stable: float = 30.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """``backoff``: try again after ``delay`` seconds. ``failed``: the same, but calls are refused meanwhile."""

    state: Literal["backoff", "failed"]
    delay: float


@dataclass(slots=True)
class Restarts:
    """The failures of one thing under one policy."""

    policy: Policy = field(default_factory=Policy)
    failures: list[float] = field(default_factory=list)
    total: int = 0
    _up_since: float | None = None

    def up(self, now: float) -> None:
        """The thing runs."""
        self._up_since = now

    def down(self, now: float, jitter: float) -> Verdict:
        """The thing failed; ``jitter`` in [0, 1) spreads the delay over its upper half."""
        policy = self.policy
        if self._up_since is not None and now - self._up_since >= policy.stable:
            self.failures.clear()
        self._up_since = None
        self.total += 1
        recent = [t for t in self.failures if now - t < policy.window]
        self.failures = [*recent[-policy.attempts :], now]
        if len(self.failures) > policy.attempts:
            return Verdict("failed", policy.slow * (0.75 + jitter / 2))
        delay = min(policy.cap, policy.base * 2 ** (len(self.failures) - 1))
        return Verdict("backoff", delay * (0.5 + jitter / 2))

    def forgive(self) -> None:
        """A person asked for another try, or the configuration changed."""
        self.failures.clear()
        self._up_since = None
