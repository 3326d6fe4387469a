"""What the store can refuse or suffer, with words a person can act on.

Owns the small hierarchy every caller of the store handles, and the reading of SQLite's own errors.
Never logs and never carries a value that was to be stored.
"""

import sqlite3
from pathlib import Path
from typing import Final

SQLITE_PRIMARY: Final = 0xFF  # extended result codes keep the primary one in the low byte


class StoreError(Exception):
    """The database cannot do what was asked.

    ``code`` is stable and machine-readable; ``message`` says what happened, ``hint`` what to do next. Raised
    as this class itself the fault lies with the database (``store_locked``, ``store_full``,
    ``store_corrupt``, ``store_read_only``, ``store_unavailable``, ``store_newer``, ``store_foreign``,
    ``store_migration``, ``store_failed``); the subclasses say that the request was at fault.
    """

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}" if self.hint else self.message


class Invalid(StoreError):
    """A name, configuration or value breaks a rule; nothing was written."""


class Duplicate(StoreError):
    """Kind and name are taken; nothing was written."""


class NotFound(StoreError):
    """Nothing of that kind and name; nothing was written."""


_LOCKED = (
    "store_locked",
    "the database {path} is locked by another process",
    "Close whatever else has it open (a database browser, a backup tool), then try again.",
)
_FULL = (
    "store_full",
    "the disk that holds {path} is full",
    "Free some space; Coffer goes on writing by itself.",
)
_READ_ONLY = (
    "store_read_only",
    "the database {path} cannot be written: it, or its folder, is read-only",
    "Give your user write permission on the folder and on coffer.db, coffer.db-wal and coffer.db-shm.",
)
_CORRUPT = (
    "store_corrupt",
    "the database {path} is damaged; Coffer has left it as it is",
    "Keep a copy of the file; then put a backup in its place (coffer restore FILE; copies lie in the backups "
    "folder beside it), or stop the daemon and move the file away to start empty.",
)
_UNAVAILABLE = (
    "store_unavailable",
    "the database {path} cannot be opened or read ({reason})",
    "Check that its folder exists, that your user may enter it, and that the disk is well and not full.",
)
_FAILED = (
    "store_failed",
    "the database {path} refused a statement ({reason})",
    "See logs/daemon.log for the trace.",
)

_BY_PRIMARY_CODE: Final = {
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_READONLY: _READ_ONLY,
    sqlite3.SQLITE_PERM: _READ_ONLY,
    sqlite3.SQLITE_CORRUPT: _CORRUPT,
    sqlite3.SQLITE_NOTADB: _CORRUPT,
    sqlite3.SQLITE_IOERR: _UNAVAILABLE,
    sqlite3.SQLITE_CANTOPEN: _UNAVAILABLE,
}


def from_sqlite(error: BaseException, path: Path) -> StoreError:
    """What an error of the ``sqlite3`` module means for the database at ``path``.

    The wording of SQLite itself is kept only where the result code says too little; it names tables and
    columns, never values.
    """
    number = getattr(error, "sqlite_errorcode", None)
    if not isinstance(number, int):
        code, message, hint = _FAILED
    else:
        code, message, hint = _BY_PRIMARY_CODE.get(number & SQLITE_PRIMARY, _FAILED)
    return StoreError(code, message.format(path=path, reason=error), hint)


def locked(path: Path) -> StoreError:
    """The error for waits of our own that ended: another write, or every connection, held on too long."""
    code, message, hint = _LOCKED
    return StoreError(code, message.format(path=path), hint)
