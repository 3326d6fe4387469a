"""The database file as a whole: made, looked at and copied without SQLAlchemy.

Owns the ``sqlite3`` module of the standard library. Never changes a database that exists. Everything here
blocks: call it from a thread.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from coffer_supervisor.store.errors import StoreError, from_sqlite

BUSY_SECONDS: Final = 5.0
_NAMES: Final = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise from_sqlite(error, path) from error
    except OSError as error:
        raise StoreError(
            "store_unavailable",
            f"the file {path} cannot be made or opened ({error.strerror or error})",
            "Check that its folder exists, that your user may write to it, and that the disk is not full.",
        ) from error


def _connect_read_only(path: Path) -> sqlite3.Connection:
    # mode=ro: SQLite neither creates the file nor repairs it.
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)


def make_private(path: Path) -> None:
    """Make an empty file for the owner only where there is none; SQLite gives ``-wal`` and ``-shm`` the same
    mode.
    """
    with _explained(path):
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))


def revision_of(path: Path) -> str | None:
    """The migration a database stands at; None for a missing or empty one.

    Raises ``StoreError``: ``store_corrupt``, ``store_locked``, ..., or ``store_foreign`` for a healthy
    database that is not Coffer's.
    """
    if not path.exists() or path.stat().st_size == 0:
        return None
    with _explained(path), closing(_connect_read_only(path)) as connection:
        tables = {str(name) for (name,) in connection.execute(_NAMES)}
        if not tables:
            return None
        if "alembic_version" not in tables:
            raise StoreError(
                "store_foreign",
                f"{path} is a database of some other program",
                "Move it away, or set COFFER_HOME to a folder of Coffer's own.",
            )
        row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return None if row is None else str(row[0])


def copy_database(source: Path, target: Path) -> None:
    """Copy a database, in use or not, to the single file ``target`` (0600): whole or not at all.

    Uses SQLite's online backup, so it holds up no writer. An existing ``target`` is replaced only by a
    finished copy. Raises ``StoreError``.
    """
    partial = target.with_name(f"{target.name}.partial")
    with _explained(target):
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial.unlink(missing_ok=True)  # of a copy that was killed
    try:
        make_private(partial)
        _copy_pages(source, partial)
        with _explained(target):
            partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _copy_pages(source: Path, partial: Path) -> None:
    with _explained(source), closing(_connect_read_only(source)) as origin:
        origin.execute("PRAGMA schema_version")  # so that a damaged source is named, not the copy
        with _explained(partial), closing(sqlite3.connect(partial)) as copy:
            origin.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")  # one file, without a log beside it
    with partial.open("rb") as written:
        os.fsync(written.fileno())
