"""What an operator sees of a worker from inside: calls, tasks, process tree, last lines of stderr.

Owns the shape of that report. Never changes anything, never shows a secret.
"""

import asyncio
import io
from collections.abc import Callable, Iterable
from typing import Any

from coffer_common.resources import Limits
from coffer_worker.core.relay import Flight, Relay
from coffer_worker.process.tree import TreeReader

_trees = TreeReader()


def empty() -> dict[str, Any]:
    """The report of a worker that has no configuration yet."""
    return {"calls": [], "tasks": task_stacks(), "tree": [], "stderr": [], "loop": "answers"}


def of(
    relay: Relay, limits: Limits, pids: Iterable[int], stderr: list[str], *, mask: Callable[[str], str], now: float
) -> dict[str, Any]:
    """The report, ready to be encoded as JSON."""
    rows = [row for pid in pids for row in _trees.read(pid)]
    tree = [
        {name: getattr(row, name) for name in row.__struct_fields__} | {"command": mask(row.command)} for row in rows
    ]
    return {
        "calls": [_call(flight, limits, now) for flight in relay],
        "tasks": task_stacks(),
        "tree": tree,
        "stderr": stderr,
        "loop": "answers",
        "late_answers": relay.late,
    }


def _call(flight: Flight, limits: Limits, now: float) -> dict[str, Any]:
    waiting = {"queued": "a free place", "waiting": "a connection", "sent": "the upstream's answer"}
    ends = [flight.total_at]
    if flight.stage == "sent" and limits.idle_seconds is not None:
        ends.append(flight.active + limits.idle_seconds)
    known = [end for end in ends if end is not None]
    return {
        "corr": flight.corr,
        "method": flight.method,
        "key": flight.key,
        "seconds": round(now - flight.admitted, 3),
        "session": flight.caller.session,
        "waiting_for": waiting.get(flight.stage, flight.stage),
        "last_progress": flight.progress.decode(errors="replace"),
        "limit_in": round(min(known) - now, 3) if known else None,
    }


def task_stacks() -> list[str]:
    """The stack of each task of the running loop."""
    found: list[str] = []
    for task in asyncio.all_tasks():
        text = io.StringIO()
        task.print_stack(file=text)
        found.append(text.getvalue())
    return found
