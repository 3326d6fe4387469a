"""One server for whoever debugs a hang: calls, connections, processes, the worker's tasks, the last of its log.

Owns the words and their order, what to do first among them. Never asks the daemon.
"""

from collections.abc import Callable
from typing import Any, Final

from coffer_cli import render
from coffer_cli.commands.mcp_wait import brief
from coffer_cli.text import counted, duration, home_path, shortened, size
from coffer_common.api import CallView, ConnectionView, Process, PsDetail

SLOW_SECONDS: Final = 30.0
_STATES: Final = {"T": "stopped (SIGSTOP)", "t": "traced", "Z": "zombie", "D": "waiting for a disk", "R": "running"}
_WAITS: Final = {"held": "waiting for its worker", "asking": "waiting for the client's answer"}


def show(found: PsDetail, row: Callable[[], None]) -> None:
    """Everything; ``row`` prints the server's line of the table."""
    row()
    render.line()
    render.line("calls" if found.calls else "calls: none in flight")
    for call in found.calls:
        render.line(f"  {_call(call, found.worker_calls)}")
    if found.connections:
        render.line("connections")
        for connection in found.connections:
            render.line(f"  {_connection(connection, found.calls)}")
    if found.tree:
        render.line("upstream process tree")
        for process in found.tree:
            render.line(f"  {_branch(process)}")
    _tasks(found)
    for hint in _hints(found):
        render.line(f"hint: {hint}")
    if found.stderr:
        render.line(f"last lines of its log (coffer mcp logs {found.worker.name})")
        for text in found.stderr:
            render.line(f"  {text}")


def _call(call: CallView, worker_calls: list[Any]) -> str:
    own = next((one for one in worker_calls if isinstance(one, dict) and f"c-{one.get('corr')}" == call.id), None)
    where = [_where(call, own or {})]
    if own is not None and call.state != "held":
        where.append(f"last progress {shortened(str(own.get('last_progress') or 'never'), 60)}")
    limit = (own or {}).get("limit_in")
    if isinstance(limit, float | int):
        where.append(f"times out in {duration(limit)}")
    project = f"  in {home_path(call.project)}" if call.project else ""
    return (
        f"{call.id}  {call.method or call.type}  {shortened(call.key, 60)}  {duration(call.seconds)}  "
        f"client {call.client or 'unnamed'}{project}  {'; '.join(where)}"
    )


def _where(call: CallView, own: dict[str, Any]) -> str:
    if call.state in _WAITS:
        return _WAITS[call.state]
    return f"waiting for {own['waiting_for']}" if own.get("waiting_for") else call.state


def _connection(connection: ConnectionView, calls: list[CallView]) -> str:
    whose = next((call.client for call in calls if call.session == connection.session and call.client), "")
    who = f"of client {whose}" if whose else "of one session" if connection.session else "for all"
    project = f"  in {home_path(connection.project)}" if connection.project else ""
    pids = f"  pid {', '.join(map(str, connection.pids))}" if connection.pids else ""
    now = counted(connection.calls, "call") if connection.calls else "kept open"
    if connection.idle_seconds is not None:
        now = f"idle for {duration(connection.idle_seconds)}"
    return f"{connection.number}  MCP {connection.revision}  {who}{project}{pids}  {now}"


def _branch(process: Process) -> str:
    stem = f"{'  ' * (process.depth - 1)}└ " if process.depth else ""
    state = _STATES.get(process.state, "sleeping")
    percent = "" if process.cpu_percent is None else f"{process.cpu_percent:.0f} % CPU, "
    return (
        f"{stem}{process.pid} {shortened(process.command, 100)}   {state}   "
        f"{percent}{process.cpu_seconds:.1f} s CPU in all   {size(process.rss)}"
    )


def _tasks(found: PsDetail) -> None:
    if found.dump_error:
        render.line(f"the worker's tasks: not known, {found.dump_error}")
        return
    if not found.tasks:
        return
    render.line("the worker's tasks (each waits where its last line says)")
    for task in found.tasks:
        for number, text in enumerate(str(task).splitlines()):
            render.line(f"  {'  ' if number else ''}{text.rstrip()}")


def _hints(found: PsDetail) -> list[str]:
    name = found.worker.name
    hints: list[str] = []
    one = next((f"; coffer ps kill {call.id} ends this call only" for call in found.calls[:1]), "")
    again = f"coffer mcp restart {name} ends it and starts it again"
    if found.worker.worker_stopped:
        hints.append(f"the worker itself is stopped (SIGSTOP). {again}.")
    if any(process.state == "T" for process in found.tree):
        hints.append(f"the upstream's process is stopped. {again}{one}.")
    elif any(call.seconds >= SLOW_SECONDS for call in found.calls):
        hints.append(f"a call has been waiting for the upstream for long. {again}{one}.")
    if found.worker.state == "failed":
        why = brief(name, found.worker.last_error) or "see its log"
        hints.append(f"it was given up for now: {why}. coffer mcp restart {name} tries at once.")
    return hints
