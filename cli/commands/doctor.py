"""``coffer doctor``: what commonly goes wrong, looked at in one go. Works without a daemon; changes nothing."""

import msgspec
import typer

from coffer_cli import client, render
from coffer_cli.commands import checks
from coffer_cli.errors import CliError
from coffer_cli.options import Json, Quiet
from coffer_common import exits


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """``coffer doctor --json``. ``ok`` is False where any check has failed."""

    ok: bool
    checks: list[checks.Check]


def add_to(root: typer.Typer) -> None:
    """``coffer doctor`` stands at the top."""
    root.command("doctor", epilog="Example: coffer doctor")(doctor)


def doctor(as_json: Json = False, quiet: Quiet = False) -> None:
    """Check PATH, launchers, ports, permissions, stale files, the database and every server. Exit code 1 on trouble."""
    home = client.home()
    trouble: list[checks.Check] = []
    daemon = None
    try:
        daemon = client.running()
    except CliError as error:
        trouble.append(checks.Check(name="daemon", status="fail", message=error.message, hint=error.hint))
    found = [
        *checks.programs(),
        *checks.files(home),
        *checks.database(home),
        *(trouble or [checks.daemon_found(home, daemon.info if daemon else None)]),
        *checks.leftovers(home, daemon is not None),
        *checks.ports(daemon is not None),
        *(checks.credentials(daemon) if daemon else []),
        *(checks.servers(daemon) if daemon else []),
    ]
    ok = all(check.status != "fail" for check in found)
    if as_json:
        render.data(Report(ok=ok, checks=found))
    else:
        _print([check for check in found if not quiet or check.status != "ok"])
    if not ok:
        raise typer.Exit(exits.FAILURE)


def _print(found: list[checks.Check]) -> None:
    marks = {"ok": "✓", "warn": "!", "fail": "✗"}
    width = max((len(check.name) for check in found), default=0)
    for check in found:
        render.line(f"{marks[check.status]} {check.name:<{width}}  {check.message}")
        if check.hint and check.status != "ok":
            render.line(f"  {'':<{width}}  → {check.hint}")
