"""``coffer audit ...`` and ``coffer retention ...``."""

from functools import partial
from typing import Annotated

import typer

from coffer_cli import client, render
from coffer_cli.commands.following import follow
from coffer_cli.errors import usage
from coffer_cli.options import Follow, Json, OfClient, OfServer, Quiet, Rows, Since
from coffer_cli.text import local_time, shortened
from coffer_common.api import LOG_TABLES, AuditList, AuditRow, Pruned, RetentionList, RetentionPolicy, SetRetention

audit = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
retention = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

_COLUMNS = (
    render.Column("WHEN"),
    render.Column("EVENT"),
    render.Column("WHAT"),
    render.Column("ACTOR"),
    render.Column("DETAILS", fold=True),
)


def audit_list(
    *,
    kind: Annotated[str | None, typer.Option(help="mcp_server, credential, client, group, retention.")] = None,
    name: Annotated[str | None, typer.Option(help="Of one name.")] = None,
    event: Annotated[str | None, typer.Option(help="Of one event, for example resource.created.")] = None,
    actor: Annotated[str | None, typer.Option(help="cli, api, ui or system.")] = None,
    server: OfServer = None,
    of_client: OfClient = None,
    since: Since = None,
    limit: Rows = 50,
    following: Follow = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """List what was changed, newest first."""
    if sum(one is not None for one in (name, server, of_client)) > 1:
        raise usage("--name, --server and --client are one thing", "give one of them")
    if server is not None or of_client is not None:
        kind, name = ("mcp_server", server) if server is not None else ("client", of_client)
    wanted = {"kind": kind, "name": name, "event": event, "actor": actor}
    daemon = client.connect()

    def newest() -> AuditList:
        return daemon.get("/audit", AuditList, wanted | {"since": since, "limit": limit})

    if following:
        line = _name if quiet else _line
        follow(daemon, AuditRow, lambda: newest().audit, line, wanted=wanted, as_json=as_json)
    found = newest()
    table = partial(render.table, _COLUMNS, [_cells(row) for row in found.audit])
    render.emit(as_json, found, table, quiet=quiet, names=map(_name, found.audit))


def _name(row: AuditRow) -> str:
    return f"{row.kind}:{row.name}" if row.kind and row.name else row.name or row.event


def _line(row: AuditRow) -> str:
    return "  ".join(cell for cell in _cells(row) if cell)


def _cells(row: AuditRow) -> list[str]:
    details = "  ".join(f"{key}={_brief(value)}" for key, value in row.details.items())
    what = _name(row) if row.name else "-"
    return [local_time(row.when), row.event, what, row.actor, shortened(details, 200)]


audit.command("list", epilog="Example: coffer audit list --server files --since 7d")(audit_list)
audit.command("ls", hidden=True)(audit_list)


def _brief(value: object) -> str:
    if isinstance(value, list):
        return ",".join(_brief(item) for item in value[:8]) + (",…" if len(value) > 8 else "")
    if isinstance(value, dict):
        return ":".join(str(item) for item in value.values())
    return str(value)


def retention_list(
    table: Annotated[str | None, typer.Argument(help=f"{' or '.join(LOG_TABLES)}; default: both.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """List how long each log is kept."""
    daemon = client.connect()
    if table is None:
        found = daemon.get("/retention/policies", RetentionList)
    else:
        found = RetentionList(policies=[daemon.get(f"/retention/policies/{client.segment(table)}", RetentionPolicy)])
    rows = [[policy.table, _days(policy.days)] for policy in found.policies]
    human = partial(render.table, [render.Column("LOG"), render.Column("KEPT")], rows)
    render.emit(as_json, found, human, quiet=quiet, names=[policy.table for policy in found.policies])


retention.command("list", epilog="Example: coffer retention list")(retention_list)
retention.command("ls", hidden=True)(retention_list)


@retention.command("set", epilog="Example: coffer retention set mcp_invocations 90")
def retention_set(
    table: Annotated[str, typer.Argument(help=f"{' or '.join(LOG_TABLES)}.")],
    days: Annotated[str, typer.Argument(help="A number of days, or 'forever'.")],
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Keep a log for so many days, or for ever."""
    if days != "forever" and not (days.isascii() and days.isdigit()):
        raise usage(f"{days} is no number of days", "give a number, or 'forever'")
    wish = SetRetention(days=None if days == "forever" else int(days))
    done = client.connect().send("PATCH", f"/retention/policies/{client.segment(table)}", RetentionPolicy, wish)
    if as_json:
        render.data(done)
    elif not quiet:
        next_step = "" if done.days is None else "; older rows go at the next pruning (coffer retention prune)"
        render.line(f"✓ {done.table} is kept {_days(done.days)}{next_step}")


@retention.command("prune", epilog="Example: coffer retention prune")
def retention_prune(as_json: Json = False, quiet: Quiet = False) -> None:
    """Remove now what is older than its policy."""
    done = client.connect().send("POST", "/retention/prune", Pruned, timeout=600.0)
    render.emit(
        as_json,
        done,
        lambda: render.line("✓ removed: " + ", ".join(f"{count} of {table}" for table, count in done.pruned.items())),
        quiet=quiet,
    )


def _days(days: int | None) -> str:
    return "for ever" if days is None else f"{days} days"
