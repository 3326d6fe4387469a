"""The life of one upstream's worker as one table: (phase, event) -> effects.

Owns when a worker is forked, configured, stopped, killed and replaced, and what callers are told meanwhile. The
phase changes in this module only. Never forks, sends, logs or reads a clock: time (monotonic seconds) and jitter
in [0, 1) come with each event. Only the worker's own exits count here: an upstream's failed start is its business.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from coffer_common.frames import UpstreamState
from coffer_common.restart import Policy, Restarts
from coffer_supervisor.core.lifecycle_words import (
    Announce,
    AskDump,
    Configure,
    Disable,
    Dumped,
    Effects,
    Enable,
    Event,
    Exited,
    Fired,
    Fork,
    Forked,
    ForkFailed,
    Gone,
    Granted,
    Greeted,
    Kill,
    Lost,
    Next,
    Phase,
    Queue,
    Reconfigure,
    Release,
    Remove,
    Reported,
    Restart,
    SendStop,
    SetTimer,
    Unconfigurable,
    Unqueue,
    Unresponsive,
)

HELLO_SECONDS: Final = 30.0
SLOT_SECONDS: Final = 3.0  # how long a start may keep others waiting: a few that hang hold up nobody else
DUMP_SECONDS: Final = 1.0
STOP_GRACE: Final = 15.0
DRAIN_CHANGE: Final = 60.0
DRAIN_RESTART: Final = 5.0
DRAIN_DISABLE: Final = 10.0
_HISTORY: Final = 40
_ANSWERED: Final = frozenset({"ready", "backoff", "failed", "needs_login"})


class IllegalEvent(Exception):
    """An event that cannot happen in this phase; the text holds that upstream's recent history."""


@dataclass(slots=True)
class Lifecycle:
    """One upstream. ``start_seconds``: how long it may hold a place among those starting."""

    name: str
    start_seconds: float = 30.0
    phase: Phase = "disabled"
    incarnation: int = 0
    pid: int = 0
    reported: UpstreamState = "starting"
    message: str = ""
    retry_at: float | None = None
    given_up: bool = False
    next: Next = "start"
    slot: bool = False
    restarts: Restarts = field(default_factory=lambda: Restarts(Policy()))
    history: deque[str] = field(default_factory=lambda: deque(maxlen=_HISTORY))
    ignored: int = 0

    @property
    def state(self) -> UpstreamState:
        """What an operator sees."""
        match self.phase:
            case "disabled" | "removed":
                return "disabled"
            case "queued":
                return "stopped"
            case "forking" | "greeting":
                return "starting"
            case "stopping":
                return "stopping"
            case "waiting":
                return "failed" if self.given_up else "backoff"
            case _:
                return self.reported

    def handle(self, event: Event, now: float, jitter: float = 0.5) -> Effects:
        """What is to be done about ``event``. Raises IllegalEvent for a pair that is not in the table."""
        about = getattr(event, "incarnation", self.incarnation)
        if about != self.incarnation:
            self.ignored += 1
            return []
        handler = _TABLE.get((self.phase, type(event)))
        if handler is None:
            story = "\n  ".join(self.history)
            raise IllegalEvent(f"upstream '{self.name}': {event} while {self.phase}; its history:\n  {story}")
        before = self.phase
        effects = handler(self, event, now, jitter)
        self.history.append(f"{now:.3f} {before} --{event}--> {self.phase}")
        return effects

    # ---- moves, used by the table's handlers only

    def queue(self) -> Effects:
        self.phase, self.retry_at, self.given_up, self.message = "queued", None, False, ""
        return [Queue(), Announce()]

    def release(self) -> Effects:
        if not self.slot:
            return []
        self.slot = False
        return [Release()]

    def down(self, reason: str, now: float, jitter: float) -> Effects:
        """The worker is gone though it was wanted."""
        verdict = self.restarts.down(now, jitter)
        return self.wait(reason, now, verdict.delay, given_up=verdict.state == "failed")

    def wait(self, reason: str, now: float, delay: float, *, given_up: bool) -> Effects:
        self.phase, self.message, self.given_up, self.pid = "waiting", reason, given_up, 0
        self.retry_at = now + delay
        return [*self.release(), Lost(self.incarnation, reason), SetTimer(self.incarnation, "retry", delay), Announce()]

    def stop(self, then: Next, drain: float, reason: str) -> Effects:
        """Ask a running worker to stop."""
        self.phase, self.next, self.message = "stopping", then, reason
        if self.reported != "ready":
            drain = 0.0  # what waits for a start that may never be has not begun: it need not end
        send = SendStop(self.incarnation, drain, reason)
        timer = SetTimer(self.incarnation, "stop", drain + STOP_GRACE)
        return [*self.release(), send, timer, Announce()]

    def kill_for(self, then: Next, reason: str) -> Effects:
        """End a worker that can no longer, or not yet, be asked."""
        self.phase, self.next, self.message = "stopping", then, reason
        return [*self.release(), Kill(self.incarnation, self.pid, reason), Announce()]

    def rest(self) -> Effects:
        """The worker is gone, as was wanted."""
        self.pid = 0
        lost = Lost(self.incarnation, self.message)
        if self.next == "start":
            return [lost, *self.queue()]
        self.phase = self.next
        return [lost, Announce(), Gone()] if self.next == "removed" else [lost, Announce()]


Handler = Callable[[Lifecycle, Event, float, float], Effects]


def _nothing(life: Lifecycle, event: Event, now: float, jitter: float) -> Effects:
    return []


def _queue(life: Lifecycle, event: Event, now: float, jitter: float) -> Effects:
    return life.queue()


def _queue_forgiven(life: Lifecycle, event: Event, now: float, jitter: float) -> Effects:
    life.restarts.forgive()
    return life.queue()


def _granted(life: Lifecycle, event: Event, now: float, jitter: float) -> Effects:
    life.phase, life.slot = "forking", True
    life.incarnation += 1
    life.pid, life.reported, life.message = 0, "starting", ""
    seconds = min(life.start_seconds, SLOT_SECONDS)
    return [Fork(life.incarnation), SetTimer(life.incarnation, "slot", seconds), Announce()]


def _release(life: Lifecycle, event: Event, now: float, jitter: float) -> Effects:
    return life.release()


def _unqueue(life: Lifecycle, event: Event, now: float, jitter: float) -> Effects:
    life.phase = "disabled"
    return [Unqueue(), Announce()]


def _unqueue_gone(life: Lifecycle, event: Event, now: float, jitter: float) -> Effects:
    life.phase = "removed"
    return [Unqueue(), Announce(), Gone()]


def _disabled(life: Lifecycle, event: Event, now: float, jitter: float) -> Effects:
    life.phase, life.retry_at, life.message = "disabled", None, ""
    return [Announce()]


def _gone(life: Lifecycle, event: Event, now: float, jitter: float) -> Effects:
    life.phase = "removed"
    return [Announce(), Gone()]


def _forked(life: Lifecycle, event: Event, now: float, jitter: float) -> Effects:
    assert isinstance(event, Forked)
    life.phase, life.pid = "greeting", event.pid
    return [SetTimer(life.incarnation, "hello", HELLO_SECONDS), Announce()]


def _forked_unwanted(life: Lifecycle, event: Event, now: float, jitter: float) -> Effects:
    assert isinstance(event, Forked)
    life.pid = event.pid
    return [Kill(life.incarnation, event.pid, "no longer wanted when its fork was done")]


def _down(life: Lifecycle, event: Event, now: float, jitter: float) -> Effects:
    assert isinstance(event, Exited)
    return life.down(event.reason, now, jitter)


def _fork_failed(life: Lifecycle, event: Event, now: float, jitter: float) -> Effects:
    assert isinstance(event, ForkFailed)
    return life.down(event.message, now, jitter)


def _killed_down(life: Lifecycle, event: Event, now: float, jitter: float) -> Effects:
    return life.down(life.message, now, jitter)  # why it was killed says more than that it was


def _unconfigurable(life: Lifecycle, event: Event, now: float, jitter: float) -> Effects:
    assert isinstance(event, Unconfigurable)
    return life.wait(event.message, now, life.restarts.policy.slow, given_up=True)


def _greeted(life: Lifecycle, event: Event, now: float, jitter: float) -> Effects:
    assert isinstance(event, Greeted)
    life.phase, life.pid = "running", event.pid
    life.restarts.up(now)
    return [Configure(life.incarnation), Announce()]


def _no_hello(life: Lifecycle, event: Event, now: float, jitter: float) -> Effects:
    life.phase, life.message = "killed", f"the worker said no Hello within {HELLO_SECONDS:g} s"
    return [*life.release(), Kill(life.incarnation, life.pid, life.message)]


def _reported(life: Lifecycle, event: Event, now: float, jitter: float) -> Effects:
    assert isinstance(event, Reported)
    life.reported, life.message = event.state, event.message
    return [*(life.release() if event.state in _ANSWERED else []), Announce()]


def _suspect(life: Lifecycle, event: Event, now: float, jitter: float) -> Effects:
    assert isinstance(event, Unresponsive)
    life.phase, life.message = "suspect", event.reason
    return [*life.release(), AskDump(life.incarnation), SetTimer(life.incarnation, "dump", DUMP_SECONDS), Announce()]


def _kill(life: Lifecycle, event: Event, now: float, jitter: float) -> Effects:
    life.phase = "killed"
    return [Kill(life.incarnation, life.pid, life.message)]


def _kill_stopping(life: Lifecycle, event: Event, now: float, jitter: float) -> Effects:
    reason = event.reason if isinstance(event, Unresponsive) else "the worker did not stop in time"
    return [Kill(life.incarnation, life.pid, reason)] if life.pid else []


def _rest(life: Lifecycle, event: Event, now: float, jitter: float) -> Effects:
    return life.rest()


def _stop(then: Next, drain: float, reason: str) -> Handler:
    def handler(life: Lifecycle, event: Event, now: float, jitter: float) -> Effects:
        if then == "start":
            life.restarts.forgive()
        return life.stop(then, drain, reason)

    return handler


def _kill_for(then: Next, reason: str) -> Handler:
    def handler(life: Lifecycle, event: Event, now: float, jitter: float) -> Effects:
        if then == "start":
            life.restarts.forgive()
        return life.kill_for(then, reason)

    return handler


def _then(then: Next, reason: str) -> Handler:
    """It is ending already; what comes after is another thing now."""

    def handler(life: Lifecycle, event: Event, now: float, jitter: float) -> Effects:
        life.phase, life.next, life.message = "stopping", then, reason
        return [*life.release(), Announce()]

    return handler


_WHY_DISABLED: Final = "the server was disabled"
_WHY_REMOVED: Final = "the server was removed"
_WHY_CHANGED: Final = "the server's configuration changed"
_WHY_RESTART: Final = "a restart was asked for"


def _wishes(
    phase: Phase, make: Callable[[Next, str], Handler], *, drains: bool = False
) -> dict[tuple[Phase, type], Handler]:
    def of(then: Next, drain: float, reason: str) -> Handler:
        return _stop(then, drain, reason) if drains else make(then, reason)

    return {
        (phase, Disable): of("disabled", DRAIN_DISABLE, _WHY_DISABLED),
        (phase, Remove): of("removed", DRAIN_DISABLE, _WHY_REMOVED),
        (phase, Reconfigure): of("start", DRAIN_CHANGE, _WHY_CHANGED),
        (phase, Restart): of("start", DRAIN_RESTART, _WHY_RESTART),
        (phase, Enable): _nothing,
    }


def _on_timers(phase: Phase, **handlers: Handler) -> dict[tuple[Phase, type], Handler]:
    """Timers cannot be unset: one that fires in a phase it was not set for says nothing."""

    def handler(life: Lifecycle, event: Event, now: float, jitter: float) -> Effects:
        assert isinstance(event, Fired)
        return handlers.get(event.timer, _nothing)(life, event, now, jitter)

    return {(phase, Fired): handler}


def _ignored(phase: Phase, *events: type) -> dict[tuple[Phase, type], Handler]:
    """They may come in that phase, and change nothing."""
    return {(phase, event): _nothing for event in events}


def _late(phase: Phase) -> dict[tuple[Phase, type], Handler]:
    """A worker may have ended before the news of its fork is heard."""
    return {**_ignored(phase, Forked, Greeted), **_on_timers(phase)}


_TABLE: Final[dict[tuple[Phase, type], Handler]] = {
    ("disabled", Enable): _queue,
    ("disabled", Remove): _gone,
    **_ignored("disabled", Disable, Reconfigure, Restart),
    **_late("disabled"),
    ("queued", Granted): _granted,
    ("queued", Disable): _unqueue,
    ("queued", Remove): _unqueue_gone,
    **_ignored("queued", Enable, Reconfigure, Restart),
    **_late("queued"),
    **_wishes("forking", _then),
    ("forking", Forked): _forked,
    ("forking", Greeted): _greeted,
    ("forking", Exited): _down,
    ("forking", ForkFailed): _fork_failed,
    ("forking", Unconfigurable): _unconfigurable,
    **_on_timers("forking", slot=_release),
    **_wishes("greeting", _kill_for),
    ("greeting", Greeted): _greeted,
    ("greeting", Exited): _down,
    **_on_timers("greeting", hello=_no_hello, slot=_release),
    **_wishes("running", _then, drains=True),
    ("running", Reported): _reported,
    ("running", Unresponsive): _suspect,
    ("running", Exited): _down,
    **_ignored("running", Forked, Dumped),
    **_on_timers("running", slot=_release),
    **_wishes("suspect", _kill_for),
    ("suspect", Dumped): _kill,
    ("suspect", Exited): _killed_down,
    **_ignored("suspect", Reported, Unresponsive),
    **_on_timers("suspect", dump=_kill),
    **_wishes("killed", _then),
    ("killed", Exited): _killed_down,
    **_ignored("killed", Greeted, Reported, Unresponsive, Dumped),
    **_on_timers("killed"),
    **_wishes("stopping", _then),
    ("stopping", Enable): _then("start", "the server was enabled again"),
    ("stopping", Forked): _forked_unwanted,
    ("stopping", ForkFailed): _rest,
    ("stopping", Unconfigurable): _rest,
    ("stopping", Unresponsive): _kill_stopping,
    ("stopping", Exited): _rest,
    **_ignored("stopping", Restart, Greeted, Reported, Dumped),
    **_on_timers("stopping", stop=_kill_stopping),
    ("waiting", Enable): _nothing,
    ("waiting", Disable): _disabled,
    ("waiting", Remove): _gone,
    ("waiting", Reconfigure): _queue_forgiven,
    ("waiting", Restart): _queue_forgiven,
    **_late("waiting"),
    **_on_timers("waiting", retry=_queue),
    **_late("removed"),
}
