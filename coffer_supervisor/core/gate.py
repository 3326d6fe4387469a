"""What a call for an upstream meets now: an open way, a wait, or a refusal that names the cause.

Owns that decision and its words. Never sends, waits or reads a clock.
"""

from dataclasses import dataclass
from typing import Final, Literal

from coffer_common import errors, frames
from coffer_supervisor.core.lifecycle import Lifecycle

_SHOWN_LINES: Final = 5
_SHOWN_CHARS: Final = 2000


@dataclass(frozen=True, slots=True)
class Gate:
    """``open``: send it to the worker; ``hold``: keep it until that changes; ``refuse``: with this reason.

    An ``open`` way with a message is one for calls that the worker can place; who would only wait for the upstream's
    first catalogue is better told the reason.
    """

    way: Literal["open", "hold", "refuse"]
    reason: errors.Reason = errors.INTERNAL
    message: str = ""


OPEN: Final = Gate("open")
HOLD: Final = Gate("hold")


def gate(life: Lifecycle, facts: frames.State | None) -> Gate:
    """For an upstream in this phase of its worker, with these facts from the worker."""
    match life.phase:
        case "disabled" | "removed":
            return _disabled(life.name)
        case "stopping":
            return HOLD if life.next == "start" else _disabled(life.name)
        case "waiting":
            if not life.given_up:
                return HOLD
            text = f"server '{life.name}' cannot be run: {life.message}; see: coffer mcp show {life.name}"
            return Gate("refuse", errors.UPSTREAM_FAILED, text)
        case "running":
            return OPEN if facts is None else _by_facts(life.name, facts)
        case _:
            return HOLD


def _by_facts(name: str, facts: frames.State) -> Gate:
    if facts.state == "failed":
        text = f"server '{name}' failed: {_cause(name, facts)}; try again with: coffer mcp restart {name}"
        return Gate("refuse", errors.UPSTREAM_FAILED, text)
    if facts.state == "needs_login":
        return Gate("refuse", errors.NEEDS_LOGIN, f"server '{name}' needs a login: {facts.message}")
    if facts.state == "backoff":
        when = "" if facts.retry_in is None else f"; the next try is in {facts.retry_in:.1f} s"
        return Gate("open", errors.UPSTREAM_BACKOFF, f"server '{name}' is not there: {_cause(name, facts)}{when}")
    # Starting and backoff: the worker holds the call until the attempt is decided. Stopping: it says so itself.
    return OPEN


def _cause(name: str, facts: frames.State) -> str:
    said = facts.message.removeprefix(f"Upstream '{name}' ") or "no reason given"
    quoted = bool(facts.stderr) and facts.stderr[-1] in said
    return said if quoted else f"{said}{last_lines(facts.stderr)}"


def last_lines(stderr: tuple[str, ...]) -> str:
    """The end of an upstream's stderr as part of a message; empty where it wrote nothing."""
    shown = [line for line in stderr if line.strip()][-_SHOWN_LINES:]
    return f"; its last output: {' | '.join(shown)[-_SHOWN_CHARS:]}" if shown else ""


def _disabled(name: str) -> Gate:
    return Gate("refuse", errors.SERVER_DISABLED, f"server '{name}' is disabled; enable it: coffer mcp enable {name}")
