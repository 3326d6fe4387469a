"""``coffer daemon ...`` and ``coffer backup``."""

import os
import select
import sys
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from coffer_cli import client, render
from coffer_cli.errors import CliError
from coffer_cli.options import Json, Quiet
from coffer_cli.text import counted, duration, size
from coffer_common import exits
from coffer_common.api import Backup, BackupDone, DaemonStatus, LogLines, Rotated, Shutdown, Stopping

if TYPE_CHECKING:
    from coffer_cli.client import Client

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
_DRAIN_SECONDS = 30.0
_EXIT_SECONDS = 5.0
_SHOWN_AS = {"backoff": "retrying", "needs_login": "waiting for a login"}


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """``coffer daemon status --json``: ``daemon`` is None where none runs, ``reason`` then says how that is known."""

    running: bool
    daemon: DaemonStatus | None = None
    reason: str = ""


@app.command(epilog="Example: coffer daemon start")
def start(as_json: Json = False, quiet: Quiet = False) -> None:
    """Start the daemon in the background, unless it runs."""
    was_there = client.running() is not None
    _report(client.connect(), as_json, quiet, "runs already" if was_there else "is ready")


@app.command(epilog="Example: coffer daemon stop")
def stop(as_json: Json = False, quiet: Quiet = False) -> None:
    """Stop the daemon and every server; open calls get up to 10 seconds. Nothing starts it again but you."""
    daemon = client.running()
    if daemon is None:
        _emit_state(as_json, quiet, Status(running=False, reason="it did not run"), "coffer-daemon is not running")
        return
    end(daemon, "stopped")
    _emit_state(
        as_json, quiet, Status(running=False, reason="stopped"), f"✓ coffer-daemon (pid {daemon.info.pid}) has stopped"
    )


@app.command(epilog="Example: coffer daemon restart")
def restart(as_json: Json = False, quiet: Quiet = False) -> None:
    """Stop the daemon and start it again from this installation. Connected shims wait and go on."""
    daemon = client.running()
    if daemon is not None:
        end(daemon, "restarting")
    _report(client.connect(), as_json, quiet, "is ready again" if daemon else "is ready")


@app.command(epilog="Example: coffer daemon status --json")
def status(as_json: Json = False, quiet: Quiet = False) -> None:
    """Say how the daemon is. Never starts one; exit code 3 where none runs."""
    daemon = client.running()
    if daemon is None:
        if as_json:
            render.data(Status(running=False, reason="no daemon answers"))
            raise typer.Exit(exits.UNREACHABLE)
        raise CliError("coffer-daemon is not running", "start it: coffer daemon start", exits.UNREACHABLE)
    _report(daemon, as_json, quiet, "is ready")


@app.command(epilog="Example: coffer daemon run --verbose")
def run() -> None:
    """Run the daemon in the foreground, its log on stderr. Ctrl-C ends it."""
    from coffer_cli import state
    from coffer_common import spawn

    words = spawn.command("--foreground", *(["--verbose"] if state.verbose() else []))
    sys.stdout.flush()
    os.execv(words[0], words)


@app.command(epilog="Example: coffer daemon logs --lines 200")
def logs(
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, max=100_000, help="How many of the last lines.")] = 50,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Print the daemon's own log. Works without a daemon."""
    path = client.home().daemon_log
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            shown = [line.rstrip("\n") for line in deque(file, maxlen=lines)]
    except FileNotFoundError as error:
        hint = "start the daemon: coffer daemon start"
        raise CliError(f"there is no log at {path} yet", hint, exits.NOT_FOUND) from error
    render.emit(as_json, LogLines(lines=shown), lambda: render.block("\n".join(shown)), quiet=quiet, names=shown)


@app.command("rotate-token", epilog="Example: coffer daemon rotate-token")
def rotate_token(as_json: Json = False, quiet: Quiet = False) -> None:
    """Replace the token that programs need on the TCP port. The old one is worth nothing at once."""
    done = client.connect().send("POST", "/daemon/rotate-token", Rotated)
    render.emit(
        as_json,
        done,
        lambda: render.line(f"✓ the daemon has a new token; programs that use it find it in {done.daemon_json}"),
        quiet=quiet,
    )


def add_backup_to(root: typer.Typer) -> None:
    """``coffer backup`` stands at the top."""
    root.command("backup", epilog="Example: coffer backup ~/coffer-copy.db")(backup)


def backup(
    path: Annotated[str | None, typer.Argument(help="The file to make; default: one under backups/.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Copy the store (servers, choices, logs) to a file while it is in use. Secrets are not in it."""
    target = None if path is None else os.path.abspath(os.path.expanduser(path))
    done = client.connect().send("POST", "/daemon/backup", BackupDone, Backup(path=target), timeout=600.0)
    human = partial(render.line, f"✓ {done.path} ({size(done.bytes)})")
    render.emit(as_json, done, human, quiet=quiet, names=[done.path])


def end(daemon: "Client", reason: Any) -> None:
    """Asks the daemon to leave, and waits until it has."""
    from coffer_common import flocks

    process = _watched(daemon.info.pid)
    try:
        daemon.send("POST", "/daemon/shutdown", Stopping, Shutdown(reason=reason))
        # Held for the daemon's whole life: having it means that the daemon has let go of everything.
        flocks.lock(daemon.home.daemon_alive, _DRAIN_SECONDS).release()
        if process is not None:
            select.select([process], [], [], _EXIT_SECONDS)
    except flocks.LockTimeout as error:
        raise CliError(
            f"coffer-daemon (pid {daemon.info.pid}) is still ending after {_DRAIN_SECONDS:.0f} s",
            f"see {daemon.home.daemon_log}; as a last resort: kill -9 {daemon.info.pid}",
        ) from error
    finally:
        if process is not None:
            os.close(process)


def _watched(pid: int) -> int | None:
    """A descriptor that becomes readable when the process has ended; None where the system has none."""
    try:
        return os.pidfd_open(pid) if sys.platform == "linux" else None
    except OSError:
        return None


def _emit_state(as_json: bool, quiet: bool, found: Status, words: str) -> None:
    render.emit(as_json, found, lambda: render.line(words), quiet=quiet)


def _report(daemon: "Client", as_json: bool, quiet: bool, how: str) -> None:
    found = daemon.get("/daemon/status", DaemonStatus)
    _emit_state(as_json, quiet, Status(running=True, daemon=found), _sentence(found, how))


def _sentence(found: DaemonStatus, how: str) -> str:
    states = ", ".join(f"{count} {_SHOWN_AS.get(name, name)}" for name, count in sorted(found.servers.items()) if count)
    servers = counted(sum(found.servers.values()), "server") + (f" ({states})" if states else "")
    return (
        f"✓ coffer-daemon {found.version} {how}: pid {found.pid}, {found.url}, up {duration(found.up_seconds)}, "
        f"{servers}, {counted(found.clients, 'client')}"
    )
