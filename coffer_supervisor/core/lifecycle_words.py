"""The words of a worker's life: its phases, what happens to it (events), what is to be done about it (effects).

Owns the vocabulary that ``lifecycle`` and its shell share; decides nothing. ``incarnation`` says which worker an
event is about; those of an older one are ignored.
"""

from dataclasses import dataclass
from typing import Literal

from coffer_common.frames import UpstreamState

Phase = Literal[
    "disabled",  # not wanted
    "queued",  # wanted; waits until few enough others are starting
    "forking",  # the fork server was asked
    "greeting",  # it runs; its Hello is awaited
    "running",  # configured; its own State frames say how the upstream is
    "suspect",  # silent or stuck: asked for its stacks, about to be killed
    "killed",  # killed for a reason; its exit is awaited
    "stopping",  # asked to stop; its exit is awaited
    "waiting",  # it crashed, or cannot be configured; tried again later
    "removed",
]
Next = Literal["start", "disabled", "removed"]
TimerName = Literal["hello", "dump", "stop", "retry", "slot"]

# ---- events


@dataclass(frozen=True, slots=True)
class Enable:
    """It is wanted."""


@dataclass(frozen=True, slots=True)
class Disable:
    """It is not wanted now."""


@dataclass(frozen=True, slots=True)
class Remove:
    """It is gone from the store."""


@dataclass(frozen=True, slots=True)
class Reconfigure:
    """Its configuration changed."""


@dataclass(frozen=True, slots=True)
class Restart:
    """A person asked for another try."""


@dataclass(frozen=True, slots=True)
class Granted:
    """Few enough others are starting."""


@dataclass(frozen=True, slots=True)
class Forked:
    """The fork server made it."""

    incarnation: int
    pid: int


@dataclass(frozen=True, slots=True)
class ForkFailed:
    """No worker came of it."""

    incarnation: int
    message: str


@dataclass(frozen=True, slots=True)
class Unconfigurable:
    """What it needs cannot be had (a missing credential); no use trying at once."""

    incarnation: int
    message: str


@dataclass(frozen=True, slots=True)
class Greeted:
    """Both its Hellos are there and good; it may say so before the fork server has named its ``pid``."""

    incarnation: int
    pid: int


@dataclass(frozen=True, slots=True)
class Reported:
    """Its State frame."""

    incarnation: int
    state: UpstreamState
    message: str = ""


@dataclass(frozen=True, slots=True)
class Unresponsive:
    """It missed its beats, or its loop stands still without using the CPU."""

    incarnation: int
    reason: str


@dataclass(frozen=True, slots=True)
class Dumped:
    """Its stacks are there."""

    incarnation: int


@dataclass(frozen=True, slots=True)
class Exited:
    """It is gone."""

    incarnation: int
    reason: str


@dataclass(frozen=True, slots=True)
class Fired:
    """A timer that SetTimer asked for."""

    incarnation: int
    timer: TimerName


Event = (
    Enable
    | Disable
    | Remove
    | Reconfigure
    | Restart
    | Granted
    | Forked
    | ForkFailed
    | Unconfigurable
    | Greeted
    | Reported
    | Unresponsive
    | Dumped
    | Exited
    | Fired
)


# ---- effects


@dataclass(frozen=True, slots=True)
class Queue:
    """Send Granted when few enough others are starting."""


@dataclass(frozen=True, slots=True)
class Unqueue:
    """No longer wanted."""


@dataclass(frozen=True, slots=True)
class Release:
    """Its place among those starting is free."""


@dataclass(frozen=True, slots=True)
class Fork:
    """Fork a worker; then Forked, ForkFailed or Unconfigurable."""

    incarnation: int


@dataclass(frozen=True, slots=True)
class Configure:
    """Send it its configuration; calls may follow."""

    incarnation: int


@dataclass(frozen=True, slots=True)
class SendStop:
    """Ask it to stop within ``drain`` seconds."""

    incarnation: int
    drain: float
    reason: str


@dataclass(frozen=True, slots=True)
class AskDump:
    """Ask for its stacks."""

    incarnation: int


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL it with all it started."""

    incarnation: int
    pid: int
    reason: str


@dataclass(frozen=True, slots=True)
class Lost:
    """That worker answers no more: what it was asked fails."""

    incarnation: int
    reason: str


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Send Fired after ``seconds``."""

    incarnation: int
    timer: TimerName
    seconds: float


@dataclass(frozen=True, slots=True)
class Announce:
    """What callers and operators see has changed."""


@dataclass(frozen=True, slots=True)
class Gone:
    """Nothing is left of it."""


Effect = Queue | Unqueue | Release | Fork | Configure | SendStop | AskDump | Kill | Lost | SetTimer | Announce | Gone
Effects = list[Effect]
