"""``coffer ps``: workers, upstream processes and calls in flight, for whoever looks for what hangs."""

import os
from typing import Annotated, Any

import typer

from coffer_cli import client, render
from coffer_cli.commands.mcp_wait import brief
from coffer_cli.errors import usage
from coffer_cli.options import Json, Quiet, server_names
from coffer_cli.text import duration, shortened, size
from coffer_common.api import CallView, Killed, Process, PsDetail, PsList, PsRow

_SLOW_SECONDS = 30.0
_STATES = {"T": "stopped (SIGSTOP)", "t": "traced", "Z": "zombie", "D": "waiting for a disk", "R": "running"}


def add_to(root: typer.Typer) -> None:
    """``coffer ps`` stands at the top."""
    root.command("ps", epilog="Examples: coffer ps    coffer ps files    coffer ps kill c-91")(ps)


def ps(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME | kill CALL]", help="One server in detail, or a call to end.", autocompletion=server_names
        ),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show workers, their processes and calls; with a NAME everything about that one; `kill CALL` ends a call."""
    match words or []:
        case []:
            _all(as_json, quiet)
        case ["kill"]:
            raise usage("ps kill takes a call", "see which there are: coffer ps; for example: coffer ps kill c-91")
        case ["kill", call]:
            _kill(call, as_json, quiet)
        case [name]:
            _one(name, as_json, quiet)
        case _:
            raise usage("ps takes one NAME, or kill CALL", "for example: coffer ps files, coffer ps kill c-91")


def _all(as_json: bool, quiet: bool) -> None:
    found = client.connect().get("/ps", PsList)
    if quiet and not as_json:
        for row in found.workers:
            render.line(row.name)
        return
    render.emit(as_json, found, lambda: _table(found.workers))


def _table(rows: list[PsRow]) -> None:
    if not rows:
        render.line("no servers yet; add one: coffer mcp add NAME -- COMMAND ARGS...")
        return
    columns = [
        render.Column("WORKER"),
        render.Column("PID"),
        render.Column("STATE"),
        render.Column("UP"),
        render.number("RST"),
        render.Column("UPSTREAM"),
        render.number("CONN"),
        render.number("IN FLIGHT"),
        render.Column("OLDEST CALL"),
        render.number("RSS"),
        render.Column("LAST ERROR", fold=True),
    ]
    render.table(columns, [_row(row) for row in rows])


def _row(row: PsRow) -> list[str]:
    pid = f"{row.worker_pid} (stop)" if row.worker_stopped else str(row.worker_pid or "-")
    rss = sum(process.rss for process in row.upstreams) + (row.rss or 0)
    return [
        row.name,
        pid,
        row.state,
        duration(row.up_seconds),
        str(row.restarts),
        _upstream(row),
        str(row.connections),
        str(row.in_flight),
        _oldest(row),
        size(rss or None),
        shortened(brief(row.name, row.last_error), 120) or "-",
    ]


def _upstream(row: PsRow) -> str:
    if row.upstreams:
        return ", ".join(
            f"{one.pid} {_program(one)}{' (stop)' if one.state == 'T' else ''}" for one in row.upstreams[:3]
        )
    return row.transport if row.transport not in ("", "stdio") else "-"


def _program(process: Process) -> str:
    return os.path.basename(process.command.partition(" ")[0]) or "?"


def _oldest(row: PsRow) -> str:
    if not row.in_flight or row.oldest_seconds is None:
        return "-"
    mark = " ⚠" if row.oldest_seconds >= _SLOW_SECONDS else ""
    return f"{shortened(row.oldest_key, 40)}  {duration(row.oldest_seconds)}{mark}"


def _kill(call: str, as_json: bool, quiet: bool) -> None:
    done = client.connect().send("DELETE", f"/ps/calls/{client.segment(call)}", Killed)
    if as_json:
        render.data(done)
    elif not quiet:
        render.line(f"✓ {done.killed} was ended; its client got an error")


def _one(name: str, as_json: bool, quiet: bool) -> None:
    found = client.connect().get(f"/ps/{client.segment(name)}", PsDetail)
    if quiet and not as_json:
        for call in found.calls:
            render.line(call.id)
        return
    render.emit(as_json, found, lambda: _detail(found))


def _detail(found: PsDetail) -> None:
    row = found.worker
    _table([row])
    render.line()
    render.line("calls" if found.calls else "calls: none in flight")
    for call in found.calls:
        render.line(f"  {_call(call, found.worker_calls)}")
    if found.tree:
        render.line("upstream process tree")
        for process in found.tree:
            render.line(f"  {_branch(process)}")
    _tasks(found)
    for hint in _hints(found):
        render.line(f"hint: {hint}")
    if found.stderr:
        render.line(f"last lines of its log (coffer mcp logs {row.name})")
        for text in found.stderr:
            render.line(f"  {text}")


def _call(call: CallView, worker_calls: list[Any]) -> str:
    own = next((one for one in worker_calls if isinstance(one, dict) and f"c-{one.get('corr')}" == call.id), {})
    where = f"waiting for {own['waiting_for']}" if own.get("waiting_for") else call.state
    limit = own.get("limit_in")
    ends = f"; times out in {duration(limit)}" if isinstance(limit, float | int) else ""
    who = f"client {call.client or 'unnamed'}"
    return f"{call.id}  {shortened(call.key, 60)}  {duration(call.seconds)}  {who}  {where}{ends}"


def _branch(process: Process) -> str:
    stem = f"{'  ' * (process.depth - 1)}└ " if process.depth else ""
    state = _STATES.get(process.state, "sleeping")
    return (
        f"{stem}{process.pid} {shortened(process.command, 100)}   {state}   "
        f"{process.cpu_seconds:.1f} s CPU   {size(process.rss)}"
    )


def _tasks(found: PsDetail) -> None:
    if found.dump_error:
        render.line(f"the worker's tasks: not known, {found.dump_error}")
        return
    if not found.tasks:
        return
    render.line("the worker's tasks")
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
    elif any(call.seconds >= _SLOW_SECONDS for call in found.calls):
        hints.append(f"a call has been waiting for the upstream for long. {again}{one}.")
    if found.worker.state == "failed":
        why = brief(name, found.worker.last_error) or "see its log"
        hints.append(f"it was given up for now: {why}. coffer mcp restart {name} tries at once.")
    return hints
