"""``coffer mcp invocations`` and ``coffer stats``: who called what, and how it went. Never what was said."""

from functools import partial
from typing import Annotated, Any, Final

import typer

from coffer_cli import client, render
from coffer_cli.commands.following import follow
from coffer_cli.options import Follow, Json, OfClient, OfServer, Quiet, Rows, Since, server_names
from coffer_cli.text import bar, counted, duration, local_time, shortened
from coffer_common.api import InvocationList, InvocationRow, StatsList, StatsRow

_BAR: Final = 12
_COLUMNS: Final = (
    render.Column("WHEN"),
    render.Column("SERVER"),
    render.Column("TYPE"),
    render.Column("KEY"),
    render.number("TOOK"),
    render.Column("STATUS"),
    render.Column("CLIENT"),
    render.Column("ERROR", fold=True),
)


def add_to(mcp: typer.Typer, root: typer.Typer) -> None:
    """One stands beside the commands of ``mcp``, the other at the top."""
    example = "Example: coffer mcp invocations files --status error --since 1h --follow"
    mcp.command("invocations", epilog=example)(invocations)
    root.command("stats", epilog="Example: coffer stats --since 7d --server files")(stats)


def invocations(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="Of one server; default: all.", autocompletion=server_names),
    ] = None,
    *,
    server: OfServer = None,
    of_client: OfClient = None,
    type_: Annotated[str | None, typer.Option("--type", help="tool, resource or prompt.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="Of one tool, resource or prompt.")] = None,
    status: Annotated[str | None, typer.Option(help="ok, error, timeout, denied or cancelled.")] = None,
    session: Annotated[str | None, typer.Option("--session", help="Of one session.")] = None,
    trace: Annotated[str | None, typer.Option("--trace", help="With one trace id.")] = None,
    since: Since = None,
    limit: Rows = 50,
    following: Follow = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """List tool calls, resource reads and prompt gets, newest first. Arguments and results are never stored."""
    wanted = {"server": name or server, "client": of_client, "type": type_, "key": key, "status": status}
    wanted |= {"session": session, "trace_id": trace}
    daemon = client.connect()

    def newest() -> InvocationList:
        path = client.server_path(wanted["server"], "invocations") if wanted["server"] else "/invocations"
        return daemon.get(path, InvocationList, wanted | {"since": since, "limit": limit})

    if following:
        line = _name if quiet else _line
        follow(daemon, InvocationRow, lambda: newest().invocations, line, wanted=wanted, as_json=as_json)
    found = newest()
    table = partial(render.table, _COLUMNS, [_cells(row) for row in found.invocations])
    render.emit(as_json, found, table, quiet=quiet, names=map(_name, found.invocations))


def _name(row: InvocationRow) -> str:
    return f"{row.server} {row.key}"


def _line(row: InvocationRow) -> str:
    return "  ".join(cell for cell in _cells(row) if cell)


def _cells(row: InvocationRow) -> list[str]:
    return [
        local_time(row.when),
        row.server,
        row.type,
        shortened(row.key, 60),
        _took(row.duration_seconds),
        row.status,
        row.client or "-",
        shortened(row.error or "", 200),
    ]


def _took(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else duration(seconds)


def stats(
    *,
    since: Since = "24h",
    server: OfServer = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Count calls and errors of each tool, resource and prompt, and how long they took; the busiest first."""
    found = client.connect().get("/stats", StatsList, {"since": since, "server": server})
    rows = sorted(found.stats, key=lambda row: (-row.calls, row.server, row.key))
    names = [f"{row.server} {row.key}" for row in rows]
    render.emit(as_json, found, lambda: _stats_table(rows, found.since), quiet=quiet, names=names)


def _stats_table(rows: list[StatsRow], since: str) -> None:
    calls, errors = sum(row.calls for row in rows), sum(row.errors for row in rows)
    if not rows:
        render.line(f"no calls since {local_time(since)}")
        return
    most = max(row.calls for row in rows)
    slowest = max(row.p95_seconds or 0.0 for row in rows)
    columns = [
        render.Column("SERVER"),
        render.Column("TYPE"),
        render.Column("KEY"),
        render.number("CALLS"),
        render.Column(""),
        render.number("ERRORS"),
        render.number("P50"),
        render.number("P95"),
        render.Column(""),
    ]
    render.table(columns, [_stats_cells(row, most, slowest) for row in rows])
    render.line(f"{counted(calls, 'call')}, {counted(errors, 'error')} since {local_time(since)}")


def _stats_cells(row: StatsRow, most: int, slowest: float) -> list[Any]:
    share = f" ({100 * row.errors / row.calls:.0f} %)" if row.errors else ""
    return [
        row.server,
        row.type,
        shortened(row.key, 60),
        str(row.calls),
        bar(row.calls, most, _BAR),
        f"{row.errors}{share}",
        _took(row.p50_seconds),
        _took(row.p95_seconds),
        bar(row.p95_seconds or 0.0, slowest, _BAR),
    ]
