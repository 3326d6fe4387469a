"""Brings a database file to the schema of this code, and back.

Owns when a migration is due, the copy made before it, and the transaction it runs in. Imports Alembic only
when there is something to run. Never migrates a database that is newer than the code. Everything here blocks.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from coffer_common.paths import Home
from coffer_supervisor.store.backup import BUSY_SECONDS, copy_database, make_private, revision_of
from coffer_supervisor.store.errors import StoreError, from_sqlite
from coffer_supervisor.store.models import HEAD_REVISION

if TYPE_CHECKING:
    from alembic.config import Config


def upgrade(path: Path, backups: Path) -> Path | None:
    """Migrate the database at ``path`` to ``HEAD_REVISION``; make it where there is none.

    Returns the copy made beforehand (in ``backups``), None where nothing was due or there was nothing to
    copy. Raises ``StoreError``: ``store_newer``, ``store_migration`` (nothing changed), or what the file
    suffers from.
    """
    make_private(path)
    standing = revision_of(path)
    if standing == HEAD_REVISION:
        return None
    _refuse_newer(path, standing)
    copy = None
    if standing is not None:
        copy = backups / f"coffer-{standing}-{datetime.now(UTC):%Y%m%dT%H%M%S%f}.db"
        copy_database(path, copy)
    _run(path, "upgrade", "head")
    return copy


def downgrade(path: Path, revision: str, backups: Path) -> Path:
    """Migrate the database at ``path`` down to ``revision`` (``base``: no tables left); returns the copy made
    before.

    Raises ``StoreError``.
    """
    standing = revision_of(path)
    if standing is None:
        raise StoreError("store_migration", f"{path} holds no tables yet", "Start the daemon once to make them.")
    _refuse_newer(path, standing)
    copy = backups / f"coffer-{standing}-{datetime.now(UTC):%Y%m%dT%H%M%S%f}.db"
    copy_database(path, copy)
    _run(path, "downgrade", revision)
    return copy


def alembic_config() -> "Config":
    """Alembic's configuration for the packaged migrations."""
    from alembic.config import Config

    spec = find_spec("coffer_migrations")
    if spec is None or not spec.submodule_search_locations:
        raise StoreError("store_migration", "this installation lacks its migrations", "Install Coffer again.")
    config = Config()
    config.set_main_option("script_location", spec.submodule_search_locations[0].replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def _known_revisions() -> set[str]:
    from alembic.script import ScriptDirectory

    return {script.revision for script in ScriptDirectory.from_config(alembic_config()).walk_revisions()}


def _refuse_newer(path: Path, standing: str | None) -> None:
    if standing is not None and standing not in _known_revisions():
        raise StoreError(
            "store_newer",
            f"the database {path} is at revision {standing}, which this version of Coffer does not know "
            f"(it knows up to {HEAD_REVISION}): a newer version has written it",
            "Install that newer version again, or put back a copy from the backups folder.",
        )


def _run(path: Path, direction: str, revision: str) -> None:
    from alembic import command
    from alembic.util import CommandError

    config = alembic_config()
    try:
        with _exclusive(path) as connection:
            config.attributes["connection"] = connection
            {"upgrade": command.upgrade, "downgrade": command.downgrade}[direction](config, revision)
            _check_foreign_keys(path, connection)
    except DBAPIError as error:
        raise from_sqlite(error.orig or error, path) from error
    except CommandError as error:
        raise StoreError(
            "store_migration", f"{path} was not migrated to {revision} ({error})", "Nothing has been changed."
        ) from error


@contextmanager
def _exclusive(path: Path) -> Iterator[Connection]:
    """One connection in one transaction, committed at the end or not at all; foreign keys are not enforced in
    it.
    """
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        poolclass=NullPool,
        hide_parameters=True,
        # None: the driver begins nothing by itself, so tables are made within our transaction too.
        connect_args={"isolation_level": None, "timeout": BUSY_SECONDS},
    )
    try:
        with engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA foreign_keys = OFF")  # without effect inside a transaction
            connection.commit()
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield connection
            connection.commit()
    finally:
        engine.dispose()


def _check_foreign_keys(path: Path, connection: Connection) -> None:
    broken = sorted({str(row[0]) for row in connection.execute(text("PRAGMA foreign_key_check"))})
    if broken:
        raise StoreError(
            "store_migration",
            f"{path} was not migrated: rows of {', '.join(broken)} would refer to rows that do not exist",
            "Nothing has been changed. Report this with the output of 'coffer doctor'.",
        )


def is_due(path: Path) -> bool:
    """Whether ``path`` is to be made or migrated. Cheap; imports nothing more. Raises ``StoreError``."""
    return revision_of(path) != HEAD_REVISION


def upgrade_apart(path: Path, backups: Path) -> None:
    """``upgrade`` in a short-lived process, so that the daemon does not carry Alembic (12 MB) for the rest of
    its life.

    Raises what ``upgrade`` raises.
    """
    command = [sys.executable, "-P", "-m", "coffer_supervisor.store.migrate", "--apart", str(path), str(backups)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode == 0:
        return
    try:
        raise StoreError(**msgspec.json.decode(done.stdout, type=dict[str, str]))
    except msgspec.DecodeError:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"]
        raise StoreError(
            "store_migration",
            f"the migration of {path} ended with exit code {done.returncode} ({lines[-1]})",
            "The database is as it was before. Start the daemon again; a copy may lie in the backups folder.",
        ) from None


def _run_apart(path: Path, backups: Path) -> int:
    try:
        upgrade(path, backups)
    except StoreError as error:
        told = {"code": error.code, "message": error.message, "hint": error.hint}
        sys.stdout.buffer.write(msgspec.json.encode(told))
        return 1
    return 0


def main(arguments: list[str]) -> int:
    """Migrate a database by hand; without arguments that of COFFER_HOME, up. Returns the exit code."""
    if len(arguments) == 3 and arguments[0] == "--apart":
        return _run_apart(Path(arguments[1]), Path(arguments[2]))
    import argparse

    parser = argparse.ArgumentParser(prog="python -m coffer_supervisor.store.migrate", description=main.__doc__)
    parser.add_argument("--database", type=Path, help="another database; its copies go to backups/ beside it")
    parser.add_argument("--down-to", metavar="REVISION", help="go back to REVISION (stop the daemon first)")
    options = parser.parse_args(arguments)
    if options.database is None:
        home = Home.from_env()
        home.ensure()
        path, backups = home.db, home.backups
    else:
        path, backups = options.database, options.database.absolute().parent / "backups"
    try:
        copy = downgrade(path, options.down_to, backups) if options.down_to else upgrade(path, backups)
        standing = revision_of(path)
    except StoreError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{path}: revision {standing or 'base'}{f', copy in {copy}' if copy else ''}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
