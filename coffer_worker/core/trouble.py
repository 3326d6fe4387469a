"""The failures of single sessions' connections, apart from those of the upstream as a whole.

Owns who must wait how long before a connection is opened for a session again, and when that is refused. Never opens
one. Times are monotonic seconds.
"""

from dataclasses import dataclass, field

from coffer_common.restart import Restarts, Verdict


@dataclass(slots=True)
class _Session:
    restarts: Restarts = field(default_factory=Restarts)
    up: bool = False
    until: float = 0.0
    failed: bool = False
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Wait:
    """Open nothing for that session for ``seconds``; ``refused``: refuse its calls meanwhile, naming ``cause``."""

    seconds: float
    refused: bool
    cause: str


@dataclass(slots=True)
class Troubles:
    """The sessions of one upstream whose own connections failed."""

    _sessions: dict[str, _Session] = field(default_factory=dict)

    def failed(self, session: str, cause: str, now: float, jitter: float) -> Verdict:
        """A connection of that session alone was lost, or could not be opened."""
        trouble = self._sessions.setdefault(session, _Session())
        verdict = trouble.restarts.down(now, jitter)
        trouble.up = False
        trouble.until, trouble.failed, trouble.cause = now + verdict.delay, verdict.state == "failed", cause
        return verdict

    def wait(self, session: str, now: float) -> Wait | None:
        """Whether opening for that session must wait."""
        trouble = self._sessions.get(session)
        if trouble is None or now >= trouble.until:
            return None
        return Wait(trouble.until - now, trouble.failed, trouble.cause)

    def worked(self, session: str, now: float) -> None:
        """Its connection answered a call; if that lasts, its failures are forgotten."""
        trouble = self._sessions.get(session)
        if trouble is not None and not trouble.up:
            trouble.up = True
            trouble.restarts.up(now)

    def forget(self, session: str) -> None:
        """The session has ended."""
        self._sessions.pop(session, None)
