"""``coffer ps``: workers, upstream processes and calls in flight, for whoever looks for what hangs.

Owns the table and the command's forms. Never shows one server in full: ``ps_detail`` does.
"""

import os
from functools import partial
from typing import Annotated

import typer

from coffer_cli import client, render
from coffer_cli.commands import ps_detail
from coffer_cli.commands.mcp_wait import brief
from coffer_cli.errors import usage
from coffer_cli.options import Json, Quiet, server_names
from coffer_cli.text import duration, home_path, shortened, size
from coffer_common.api import Killed, Process, PsDetail, PsList, PsRow


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
    render.emit(as_json, found, lambda: _table(found.workers), quiet=quiet, names=[row.name for row in found.workers])


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
    lines = [_row(row) for row in rows]
    if any(row.projects for row in rows):
        columns.insert(7, render.Column("PROJECTS"))
        for row, cells in zip(rows, lines, strict=True):
            cells.insert(7, shortened(", ".join(home_path(one) for one in row.projects), 60) or "-")
    render.table(columns, lines)


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
    mark = " ⚠" if row.oldest_seconds >= ps_detail.SLOW_SECONDS else ""
    return f"{shortened(row.oldest_key, 40)}  {duration(row.oldest_seconds)}{mark}"


def _kill(call: str, as_json: bool, quiet: bool) -> None:
    done = client.connect().send("DELETE", f"/ps/calls/{client.segment(call)}", Killed)
    render.emit(as_json, done, lambda: render.line(f"✓ {done.killed} was ended; its client got an error"), quiet=quiet)


def _one(name: str, as_json: bool, quiet: bool) -> None:
    found = client.connect().get(f"/ps/{client.segment(name)}", PsDetail)
    human = partial(ps_detail.show, found, lambda: _table([found.worker]))
    render.emit(as_json, found, human, quiet=quiet, names=[call.id for call in found.calls])
