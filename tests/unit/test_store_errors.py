"""Reading SQLite's errors: every fault a database can have is told with what to do next."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from coffer_supervisor.store.errors import Duplicate, Invalid, NotFound, StoreError, from_sqlite, locked


def provoked(action: str, path: Path) -> sqlite3.Error:
    """A real error of the driver for each kind of trouble."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as connection:
        connection.execute("CREATE TABLE t (x UNIQUE)")
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=0)) as other:
            try:
                if action == "locked":
                    connection.execute("BEGIN EXCLUSIVE")
                    other.execute("SELECT * FROM t")
                elif action == "read-only":
                    other.execute("INSERT INTO t VALUES (1)")
                elif action == "full":
                    connection.execute("PRAGMA max_page_count = 3")
                    connection.execute("INSERT INTO t VALUES (randomblob(100000))")
                elif action == "constraint":
                    connection.execute("INSERT INTO t VALUES (1), (1)")
                elif action == "no such table":
                    connection.execute("SELECT * FROM absent")
                elif action == "not a database":
                    junk = path.with_name("junk.db")
                    junk.write_bytes(b"plain text, and enough of it" * 100)
                    with closing(sqlite3.connect(junk)) as broken:
                        broken.execute("SELECT * FROM sqlite_master")
                elif action == "cannot open":
                    sqlite3.connect(path.with_name("absent") / "coffer.db")
            except sqlite3.Error as error:
                return error
    raise AssertionError(f"{action} raised nothing")


@pytest.mark.parametrize(
    ("action", "code", "hint"),
    [
        ("locked", "store_locked", "Close whatever else"),
        ("read-only", "store_read_only", "write permission"),
        ("full", "store_full", "Free some space"),
        ("not a database", "store_corrupt", "coffer restore"),
        ("cannot open", "store_unavailable", "folder exists"),
        ("constraint", "store_failed", "daemon.log"),
        ("no such table", "store_failed", "daemon.log"),
    ],
)
def test_each_trouble_is_named_with_its_remedy(action: str, code: str, hint: str, tmp_path: Path) -> None:
    """D06: management commands say what is wrong with the database, and how to mend it."""
    path = tmp_path / "coffer.db"
    error = from_sqlite(provoked(action, path), path)
    assert error.code == code
    assert str(path) in error.message
    assert hint in error.hint
    assert str(error) == f"{error.message}. {error.hint}"


def test_an_error_without_a_result_code_is_still_told(tmp_path: Path) -> None:
    """The driver raises some errors by itself (a closed connection): they carry no code of SQLite's."""
    connection = sqlite3.connect(":memory:")
    connection.close()
    with pytest.raises(sqlite3.ProgrammingError) as raised:
        connection.execute("SELECT 1")
    error = from_sqlite(raised.value, tmp_path / "coffer.db")
    assert error.code == "store_failed"
    assert "closed database" in error.message


def test_a_wait_of_our_own_that_ended_reads_like_a_lock(tmp_path: Path) -> None:
    """Waiting for another write of this process is bounded too."""
    assert locked(tmp_path / "coffer.db").code == "store_locked"


def test_faults_of_the_request_can_be_told_from_faults_of_the_database() -> None:
    """One hierarchy: callers catch StoreError, and look for the request's own faults first."""
    for fault in (Invalid, Duplicate, NotFound):
        error = fault("a_code", "what happened")
        assert isinstance(error, StoreError)
        assert (error.code, error.message, error.hint, str(error)) == ("a_code", "what happened", "", "what happened")
