"""What an operator sees of a worker from inside: calls, tasks, process tree, last lines of stderr.

Owns the shape of that report. Never changes anything, never shows a secret.
"""

from collections.abc import Iterable
from typing import Any

from coffer_common.resources import Limits
from coffer_worker.connections import Connections
from coffer_worker.core.relay import Flight, Relay
from coffer_worker.log import UpstreamLog
from coffer_worker.process.tree import TreeReader
from coffer_worker.stacks import task_stacks

_trees = TreeReader()


def empty() -> dict[str, Any]:
    """The report of a worker that has no configuration yet."""
    return {"calls": [], "connections": [], "tasks": task_stacks(), "tree": [], "stderr": [], "loop": "answers"}


def of(
    relay: Relay,
    connections: Connections,
    limits: Limits,
    pids: Iterable[int],
    log: UpstreamLog,
    *,
    now: float,
) -> dict[str, Any]:
    """The report, ready to be encoded as JSON."""
    rows = [row for pid in pids for row in _trees.read(pid)]
    tree = [
        {name: getattr(row, name) for name in row.__struct_fields__} | {"command": log.mask(row.command)}
        for row in rows
    ]
    return {
        "calls": [_call(flight, limits, now) for flight in relay],
        "connections": _connections(connections, now),
        "tasks": task_stacks(),
        "tree": tree,
        "stderr": list(log.tail),
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


def _connections(connections: Connections, now: float) -> list[dict[str, Any]]:
    rows = []
    for member in connections.pool.members.values():
        connection = connections.open.get(member.number)
        pids = () if connection is None or connection.pipe is None else connection.pipe.pids
        rows.append(
            {
                "number": member.number,
                "revision": member.key.revision,
                "session": member.key.session.strip("\0"),
                "project": member.key.project,
                "pids": list(pids),
                "calls": member.calls,
                "idle_seconds": None if member.busy else round(now - member.last_used, 3),
            }
        )
    return rows
