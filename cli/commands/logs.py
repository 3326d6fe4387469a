"""``coffer audit ...`` and ``coffer retention ...``."""

from typing import Annotated

import typer

from coffer_cli import client, render
from coffer_cli.errors import usage
from coffer_cli.options import Json, Quiet
from coffer_cli.text import local_time, shortened
from coffer_common.api import LOG_TABLES, AuditList, Pruned, RetentionList, RetentionPolicy, SetRetention

audit = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
retention = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Since = Annotated[str | None, typer.Option("--since", help="Only since then: 30m, 24h, 7d, or an RFC 3339 time.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="At most so many, the newest.")]


def audit_list(
    *,
    kind: Annotated[str | None, typer.Option(help="mcp_server, credential, client, group, retention.")] = None,
    name: Annotated[str | None, typer.Option(help="Of one name.")] = None,
    event: Annotated[str | None, typer.Option(help="Of one event, for example resource.created.")] = None,
    actor: Annotated[str | None, typer.Option(help="cli, api, ui or system.")] = None,
    since: Since = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List what was changed, newest first."""
    query = {"kind": kind, "name": name, "event": event, "actor": actor, "since": since, "limit": limit}
    found = client.connect().get("/audit", AuditList, query)
    columns = [
        render.Column("WHEN"),
        render.Column("EVENT"),
        render.Column("WHAT"),
        render.Column("ACTOR"),
        render.Column("DETAILS", fold=True),
    ]

    def human() -> None:
        rows = []
        for row in found.audit:
            details = "  ".join(f"{key}={_brief(value)}" for key, value in row.details.items())
            what = f"{row.kind}:{row.name}" if row.kind and row.name else row.name or "-"
            rows.append([local_time(row.when), row.event, what, row.actor, shortened(details, 200)])
        render.table(columns, rows)

    render.emit(as_json, found, human)


audit.command("list", epilog="Example: coffer audit list --name files --since 7d")(audit_list)
audit.command("ls", hidden=True)(audit_list)


def _brief(value: object) -> str:
    if isinstance(value, list):
        return ",".join(_brief(item) for item in value[:8]) + (",…" if len(value) > 8 else "")
    if isinstance(value, dict):
        return ":".join(str(item) for item in value.values())
    return str(value)


def retention_list(as_json: Json = False) -> None:
    """List how long each log is kept."""
    found = client.connect().get("/retention/policies", RetentionList)
    rows = [[policy.table, _days(policy.days)] for policy in found.policies]
    render.emit(as_json, found, lambda: render.table([render.Column("LOG"), render.Column("KEPT")], rows))


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
    if days != "forever" and not days.isdigit():
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
    if as_json:
        render.data(done)
    elif not quiet:
        render.line("✓ removed: " + ", ".join(f"{count} of {table}" for table, count in done.pruned.items()))


def _days(days: int | None) -> str:
    return "for ever" if days is None else f"{days} days"
