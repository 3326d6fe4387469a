"""The parked call: a modern client's call whose legacy upstream asks something meanwhile.

Owns what follows from ``asked``, ``retry``, ``replied`` and their like: which asks are shown in which round, which
answers go where, which retry is good. Pure: times are passed in, nothing is sent. Never looks into an ask.
Source: MCP 2026-07-28, Multi Round-Trip Requests.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

Stage = Literal["running", "asked", "resumed", "done"]
AskT = TypeVar("AskT")
OutcomeT = TypeVar("OutcomeT")


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose call it is, and which: a retry must agree in all of it. ``digest``: of method, name and arguments."""

    principal: str
    endpoint: str
    digest: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A retry that is none; the parked call is untouched."""

    why: str


@dataclass(frozen=True, slots=True)
class Resumed(Generic[AskT]):
    """A good retry. ``given``: asks with the client's answers, for the upstream."""

    given: tuple[tuple[AskT, bytes], ...]


@dataclass(slots=True, eq=False)
class Parked(Generic[AskT, OutcomeT]):
    """One call. ``shown``: asks of the current round without an answer; ``fresh``: those the client has not seen."""

    owner: Owner
    max_rounds: int
    stage: Stage = "running"
    round: int = 0
    expiry: float = 0.0
    shown: dict[str, AskT] = field(default_factory=dict)
    fresh: dict[str, AskT] = field(default_factory=dict)
    outcome: OutcomeT | None = None
    _asks: int = 0

    def asked(self, ask: AskT) -> tuple[str, bool]:
        """The upstream asks: the ask's key, and whether the client's open request is to be answered with it."""
        self._asks += 1
        key = f"ask-{self._asks}"
        self.fresh[key] = ask
        return key, self.stage in ("running", "resumed")

    def show(self, now: float, seconds: float) -> dict[str, AskT] | None:
        """A round begins: the asks to show, to be answered within ``seconds``. None where there were too many."""
        if self.round >= self.max_rounds:
            return None
        self.round += 1
        self.stage = "asked"
        self.expiry = now + seconds
        self.shown.update(self.fresh)
        self.fresh.clear()
        return dict(self.shown)

    def withdrawn(self, key: str) -> None:
        """The upstream cancelled that ask: a later answer to it is ignored."""
        self.shown.pop(key, None)
        self.fresh.pop(key, None)

    def replied(self, outcome: OutcomeT) -> bool:
        """The upstream's reply, error or death: True where the open request is answered with it now; else it is kept
        for the retry."""
        if self.stage == "asked":
            self.outcome = outcome
            return False
        self.stage = "done"
        return True

    def retry(self, round: int, owner: Owner, answers: Mapping[str, bytes], now: float) -> Refused | Resumed[AskT]:
        """The client's retry with what it answered; answers to what was not asked are ignored."""
        if owner.principal != self.owner.principal or owner.endpoint != self.owner.endpoint:
            return Refused("it belongs to another client")
        if owner.digest != self.owner.digest:
            return Refused("it belongs to a call with other arguments")
        if self.stage != "asked" or round != self.round:
            return Refused("it was used already")
        if now >= self.expiry:
            return Refused("it has expired")
        given = tuple((self.shown.pop(key), answer) for key, answer in answers.items() if key in self.shown)
        self.stage = "resumed"
        return Resumed(given)

    @property
    def unanswered(self) -> bool:
        """Whether another round is due."""
        return bool(self.shown or self.fresh)

    @property
    def waiting(self) -> tuple[AskT, ...]:
        """The asks without an answer, shown or not."""
        return (*self.shown.values(), *self.fresh.values())

    def end(self) -> tuple[AskT, ...]:
        """It is over; the asks that nobody will answer."""
        self.stage = "done"
        left = self.waiting
        self.shown.clear()
        self.fresh.clear()
        return left
