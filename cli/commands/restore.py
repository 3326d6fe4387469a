"""``coffer restore``: a copy of the store takes the place of the present one, which is kept.

Owns the exchange of the database file while no daemon runs. Never changes the copy that it is given, and never
migrates: the daemon does that at its start.
"""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from coffer_cli import client, render
from coffer_cli.commands.daemon import end
from coffer_cli.errors import CliError, usage
from coffer_cli.options import Json, Quiet, Yes, confirm
from coffer_common import clock, exits, flocks

if TYPE_CHECKING:
    from coffer_common.paths import Home

_LOCK_SECONDS: Final = 60.0
_TABLES: Final = frozenset({"alembic_version", "resource"})
_BESIDE: Final = ("-wal", "-shm")


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """``coffer restore --json``. ``kept`` is where the store of before lies, None where there was none."""

    path: str
    kept: str | None


def add_to(root: typer.Typer) -> None:
    """``coffer restore`` stands at the top."""
    root.command("restore", epilog="Example: coffer restore ~/coffer-copy.db")(restore)


def restore(
    path: Annotated[str, typer.Argument(help="A file that coffer backup made, or one of those under backups/.")],
    yes: Yes = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Put a copy of the store in the place of the present one, which is kept. A daemon that runs is restarted."""
    home, source = client.home(), Path(path).expanduser().absolute()
    check(source, home)
    confirm(f"Put {source} in the place of the present servers, choices and logs? Those are kept in a file.", yes)
    try:
        # Whoever would start a daemon meanwhile waits.
        with flocks.lock(home.daemon_lock, _LOCK_SECONDS):
            daemon = client.running()
            if daemon is not None:
                end(daemon, "restarting")
            with flocks.lock(home.daemon_alive, _LOCK_SECONDS):
                kept = exchange(source, home)
    except flocks.LockTimeout as error:
        raise CliError(f"{error}; nothing was changed", "see: coffer daemon status") from error
    done = Restored(path=str(source), kept=None if kept is None else str(kept))
    render.emit(
        as_json,
        done,
        lambda: render.line(f"✓ the store is now that of {source}" + (f"; the one before is {kept}" if kept else "")),
        quiet=quiet,
    )
    if daemon is not None:
        client.connect()


def check(source: Path, home: "Home") -> None:
    """Raises CliError unless ``source`` is a sound store, and another file than the present one."""
    if not source.exists():
        raise CliError(f"there is no file {source}", f"copies lie in {home.backups}", exits.NOT_FOUND)
    if home.db.exists() and source.samefile(home.db):
        raise usage(f"{source} is the store itself", f"name a copy of it; copies lie in {home.backups}")
    try:
        with closing(_opened(source)) as connection:
            verdict = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
            names = {str(name) for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    except sqlite3.Error as error:
        verdict, names = str(error), set()
    if verdict != "ok":
        raise usage(f"{source} is no sound copy: {verdict}", f"other copies lie in {home.backups}")
    if not names >= _TABLES:
        raise usage(f"{source} is a database of some other program", f"copies of the store lie in {home.backups}")


def exchange(source: Path, home: "Home") -> Path | None:
    """Puts a copy of ``source`` in the place of the database; where that one is kept. No daemon may run.

    Raises CliError; then the database is as it was.
    """
    target = home.db.resolve()
    partial = target.with_name(f"{target.name}.restoring")
    kept = home.backups / f"coffer-replaced-{clock.now():%Y%m%dT%H%M%S%f}.db"
    try:
        home.backups.mkdir(mode=0o700, parents=True, exist_ok=True)
        _copy(source, partial)
        there = target.exists()
        if there:
            _keep(target, kept)
        partial.replace(target)
    except (OSError, sqlite3.Error) as error:
        raise CliError(f"{source} could not be put in place: {error}", "the store is as it was") from error
    finally:
        partial.unlink(missing_ok=True)
    return kept if there else None


def _keep(target: Path, kept: Path) -> None:
    """The old file under a second name, so that there is a store at every moment; its log must not meet the new one."""
    try:
        os.link(target, kept)
    except OSError:  # a file system without links, or another one
        shutil.copy2(target, kept)
    for suffix in _BESIDE:
        beside = target.with_name(target.name + suffix)
        if beside.exists():
            shutil.move(beside, kept.with_name(kept.name + suffix))


def _copy(source: Path, partial: Path) -> None:
    partial.unlink(missing_ok=True)
    os.close(os.open(partial, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    with closing(_opened(source)) as origin, closing(sqlite3.connect(partial)) as copy:
        origin.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")
    with partial.open("rb") as written:
        os.fsync(written.fileno())


def _opened(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=5.0)
