"""Waiting for a server to start, with progress a person can follow, and saying how it came out."""

import math
import os
import time
from typing import TYPE_CHECKING, Final

from coffer_cli import client, render
from coffer_cli.errors import CliError
from coffer_cli.text import counted, duration, listed, shortened
from coffer_common.api import SETTLED, CapabilityList, LogLines, ResourceView, ServerStatus, TestServer
from coffer_common.resources import Limits

if TYPE_CHECKING:
    from coffer_cli.client import Client

REFRESH_SECONDS: Final = 660.0
_STEP_SECONDS: Final = 1.0
_GRACE_SECONDS: Final = 20.0
_SLOW_START: Final = 3.0
_SHOWN_NAMES: Final = 6
_STDERR_FOLLOWS: Final = "The last lines of its stderr"
_PATH_FOLLOWS: Final = " (PATH searched"
_NOT_FOUND: Final = "command not found"
_DOWNLOADERS: Final = {"npx": "npx is downloading the server", "uvx": "uvx is downloading the server"}


def settle(daemon: "Client", found: ResourceView, *, quiet: bool) -> tuple[ResourceView, float]:
    """Waits until the server is ready or is known not to be; the answer, and the seconds that took.

    The daemon answers as soon as there is an outcome; in between it is asked once a second for the progress line.
    """
    limit = _start_limit(found)
    began = time.monotonic()
    progress = render.Progress(quiet)
    path = client.server_path(found.name, "test")
    try:
        while True:
            waited = time.monotonic() - began
            settled = found.status is not None and found.status.state in SETTLED
            if settled or waited > limit + _GRACE_SECONDS:
                return found, waited
            progress.show(f"starting {found.name} …", _figures(daemon, found, waited, limit))
            found = daemon.send("POST", path, ResourceView, TestServer(timeout=_STEP_SECONDS))
    except KeyboardInterrupt:
        progress.clear()
        render.note(f"not waited for: {found.name} stays registered and goes on starting")
        render.note(f"  see how it goes: coffer mcp test {found.name}; take it away: coffer mcp remove {found.name}")
        raise
    finally:
        progress.clear()


def _start_limit(found: ResourceView) -> float:
    seconds = found.config.get("limits", {}).get("start_seconds", Limits().start_seconds)
    return float(seconds)


def _figures(daemon: "Client", found: ResourceView, waited: float, limit: float) -> str:
    words = f"({waited:.0f} s of {limit:.0f})"
    if waited < _SLOW_START:
        return words
    said = _last_line(daemon, found.name)
    program = os.path.basename(str(found.config.get("command", "")))
    phase = _DOWNLOADERS.get(program, "")
    return "  ".join(part for part in (phase, words, said) if part)


def _last_line(daemon: "Client", name: str) -> str:
    try:
        lines = daemon.get(client.server_path(name, "logs"), LogLines, {"lines": 1}).lines
    except CliError:
        return ""
    return lines[-1] if lines else ""


def report(found: ResourceView, waited: float, *, as_json: bool, quiet: bool, verb: str, daemon: "Client") -> None:
    """Says how the server is and what it offers, or why it does not."""
    if as_json:
        render.data(found)
        return
    status = found.status
    if status is None or quiet:
        return
    if status.state == "ready":
        render.line(_ready(found, status, waited))
        _names(daemon, found.name)
    elif status.state == "stopped" and found.enabled:
        render.line(f"✓ {found.name} is {verb} and is about to start; see how it goes: coffer mcp test {found.name}")
    elif status.state in ("disabled", "stopped"):
        render.line(f"✓ {found.name} is {verb}, and {status.state}")
    elif status.state == "starting":
        render.line(f"✓ {found.name} is {verb} and is starting; see how it goes: coffer mcp test {found.name}")
    else:
        unhealthy(found, status, verb)


def _ready(found: ResourceView, status: ServerStatus, waited: float) -> str:
    totals = {kind: count.total for kind, count in status.counts.items()}
    resources = totals.get("resource", 0) + totals.get("template", 0)
    facts = [status.transport, f"MCP {status.revision}" if status.revision else ""]
    facts.append(duration(waited) if waited >= 0.05 else "")
    return (
        f"✓ {found.name} is ready: {counted(totals.get('tool', 0), 'tool')}, {counted(resources, 'resource')}, "
        f"{counted(totals.get('prompt', 0), 'prompt')}  ({', '.join(fact for fact in facts if fact)})"
    )


def _names(daemon: "Client", name: str) -> None:
    try:
        found = daemon.get(client.server_path(name, "capabilities"), CapabilityList, {"type": "tool"})
    except CliError:
        return
    names = [one.exposed for one in found.capabilities if one.listed and one.enabled]
    if names:
        render.line(f"  {listed(names, _SHOWN_NAMES)}")
        render.line(f"  see and switch them: coffer mcp tools {name}")


def unhealthy(found: ResourceView, status: ServerStatus, verb: str) -> None:
    """The reason in the server's own last words, and what to do next."""
    how = f"is {verb}, but not ready" if verb else "is not ready"
    render.line(f"✗ {found.name} {how}: {reason(found.name, status)}")
    for text in status.stderr[-5:]:
        render.line(f"  | {shortened(text, 500)}")
    render.line(f"  {_next_step(found.name, status)}")


def _next_step(name: str, status: ServerStatus) -> str:
    if status.state == "needs_login":
        return f"log in: coffer mcp login {name}"
    if _NOT_FOUND in status.last_error:
        return f"correct it: coffer mcp update {name} -- COMMAND ARGS...; or take it away: coffer mcp remove {name}"
    return f"coffer mcp test {name} tries again; coffer mcp logs {name} shows all it said"


def reason(name: str, status: ServerStatus, *, quoting: bool = False) -> str:
    """Why a server is not ready, in one line without its name.

    ``quoting``: for a table, with the last line of its stderr and without what is long.
    """
    words = brief(name, status.last_error or status.message or status.reason or status.state, for_table=quoting)
    if quoting and status.stderr:
        words += f': "{shortened(status.stderr[-1], 100)}"'
    if status.retry_in is not None and status.state in ("backoff", "failed"):
        words += f"; next try in {max(1, math.ceil(status.retry_in))} s"
    return words


def brief(name: str, message: str, *, for_table: bool = True) -> str:
    """An error of a server where its name stands beside it, and its stderr is shown apart."""
    words = message.removeprefix(f"Upstream '{name}' ").partition(_STDERR_FOLLOWS)[0].rstrip(". ")
    return words.partition(_PATH_FOLLOWS)[0] if for_table else words
