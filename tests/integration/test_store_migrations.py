"""Migrations on populated databases, both ways, and the databases that are left alone."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine

from coffer_supervisor.store import Store, StoreError
from coffer_supervisor.store.backup import revision_of
from coffer_supervisor.store.migrate import alembic_config, downgrade, is_due, main, upgrade, upgrade_apart
from coffer_supervisor.store.models import HEAD_REVISION, Base

RESOURCE = (1, "mcp_server", "files", "my files", '{"transport":"stdio","command":"x"}', 1, 1_000_000, 2_000_000)
PREFERENCE = (1, "files", "tool", "read", 0, 1_000_000, 2_000_000)
AUDIT = (1, 1_000_000, "resource.created", "mcp_server", "files", "cli", "{}")
INVOCATION = (1, 3_000_000, "files", "tool", "read", 1.5, "ok", None, "s", "c", "t")


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


def rows(path: Path, table: str) -> list[tuple[Any, ...]]:
    with opened(path) as connection:
        return connection.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()


def tables(path: Path) -> set[str]:
    with opened(path) as connection:
        return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def populate(path: Path, *, invocations: bool) -> None:
    with opened(path) as connection:
        connection.execute("INSERT INTO resource VALUES (?, ?, ?, ?, ?, ?, ?, ?)", RESOURCE)
        connection.execute("INSERT INTO capability_preference VALUES (?, ?, ?, ?, ?, ?, ?)", PREFERENCE)
        connection.execute("INSERT INTO audit_log VALUES (?, ?, ?, ?, ?, ?, ?)", AUDIT)
        if invocations:
            connection.execute("INSERT INTO mcp_invocations VALUES (?,?,?,?,?,?,?,?,?,?,?)", INVOCATION)
            connection.execute("UPDATE retention_policy SET days = NULL WHERE table_name = 'audit_log'")


def assert_lasting_rows(path: Path) -> None:
    assert rows(path, "resource") == [RESOURCE]
    assert rows(path, "capability_preference") == [PREFERENCE]
    assert rows(path, "audit_log") == [AUDIT]


def dump(path: Path) -> list[str]:
    with opened(path) as connection:
        return list(connection.iterdump())


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "coffer.db"


@pytest.fixture
def backups(tmp_path: Path) -> Path:
    return tmp_path / "backups"


def test_the_known_head_is_the_newest_script() -> None:
    """The daemon compares with a constant instead of loading Alembic: it must be the real head, and the only one."""
    assert ScriptDirectory.from_config(alembic_config()).get_heads() == [HEAD_REVISION]


def test_every_version_has_a_way_back() -> None:
    """Each migration has a working downgrade: none is a bare ``pass``."""
    for script in ScriptDirectory.from_config(alembic_config()).walk_revisions():
        assert script.module.downgrade.__code__.co_names, script.revision


def test_migrated_tables_are_those_of_the_models(db: Path, backups: Path) -> None:
    """The schema is made by migrations only; the models describe exactly what they make."""
    upgrade(db, backups)
    engine = create_engine(f"sqlite:///{db}")
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []
    engine.dispose()


def test_a_new_database_is_private_and_needs_no_copy(db: Path, backups: Path) -> None:
    """The store is the owner's alone; where there was nothing, nothing is backed up."""
    assert is_due(db)
    assert upgrade(db, backups) is None
    assert not is_due(db)
    assert upgrade(db, backups) is None
    assert not backups.exists()
    assert db.stat().st_mode & 0o777 == 0o600
    assert dict(rows(db, "retention_policy")) == {"audit_log": 365, "mcp_invocations": 30}


def test_an_older_populated_database_is_brought_forward(db: Path, backups: Path) -> None:
    """What an older version has written is kept by the upgrade, and a copy from before lies in the backups."""
    upgrade(db, backups)
    downgrade(db, "0001", backups)
    populate(db, invocations=False)
    before = dump(db)
    copy = upgrade(db, backups)
    assert revision_of(db) == HEAD_REVISION
    assert_lasting_rows(db)
    assert rows(db, "mcp_invocations") == []
    assert copy is not None
    assert copy.parent == backups
    assert "0001" in copy.name
    assert dump(copy) == before
    assert copy.stat().st_mode & 0o777 == 0o600
    assert backups.stat().st_mode & 0o777 == 0o700


def test_a_populated_database_goes_back_and_forward(db: Path, backups: Path) -> None:
    """Downgrades work on populated databases, and take with them only what the version had brought."""
    upgrade(db, backups)
    populate(db, invocations=True)
    copy = downgrade(db, "0001", backups)
    assert revision_of(db) == "0001"
    assert_lasting_rows(db)
    assert not tables(db) & {"mcp_invocations", "retention_policy"}
    assert rows(copy, "mcp_invocations") == [INVOCATION]
    upgrade(db, backups)
    assert_lasting_rows(db)
    downgrade(db, "base", backups)
    assert tables(db) == {"alembic_version"}
    upgrade(db, backups)
    assert revision_of(db) == HEAD_REVISION
    assert rows(db, "resource") == []


def test_rows_that_refer_to_nothing_undo_the_whole_migration(db: Path, backups: Path) -> None:
    """Foreign keys are checked after the migration, and a violation leaves the database as it was."""
    upgrade(db, backups)
    downgrade(db, "0001", backups)
    with opened(db) as connection:
        connection.execute("CREATE TABLE extra (id INTEGER REFERENCES resource (id))")
        connection.execute("INSERT INTO extra VALUES (99)")
    before = dump(db)
    with pytest.raises(StoreError, match="extra") as raised:
        upgrade(db, backups)
    assert raised.value.code == "store_migration"
    assert dump(db) == before


def test_a_newer_database_is_refused_by_both_revisions(db: Path, backups: Path) -> None:
    """A database of a newer version is left alone; the message names its revision and the one known here."""
    upgrade(db, backups)
    with opened(db) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0999'")
    before = db.read_bytes()
    for attempt in (upgrade, lambda path, to: downgrade(path, "0001", to)):
        with pytest.raises(StoreError) as raised:
            attempt(db, backups)
        assert raised.value.code == "store_newer"
        assert "0999" in raised.value.message
        assert HEAD_REVISION in raised.value.message
        assert "newer version" in raised.value.hint
    assert db.read_bytes() == before


def test_a_stranger_s_database_is_left_alone(db: Path, backups: Path) -> None:
    """A healthy database of some other program is not filled with our tables."""
    with opened(db) as connection:
        connection.execute("CREATE TABLE songs (title)")
    before = db.read_bytes()
    with pytest.raises(StoreError, match="some other program") as raised:
        upgrade(db, backups)
    assert raised.value.code == "store_foreign"
    assert db.read_bytes() == before


@pytest.mark.parametrize("damage", ["head", "all", "truncated"])
def test_a_damaged_file_is_never_overwritten(damage: str, db: Path, backups: Path) -> None:
    """D08: a corrupt database is refused with how to mend it, and not one byte of it changes."""
    upgrade(db, backups)
    populate(db, invocations=True)
    whole = db.read_bytes()
    broken = {
        "head": b"\0" * 100 + whole[100:],
        "all": b"not a database, surely" * 4000,
        "truncated": whole[: len(whole) // 2 + 100],
    }[damage]
    db.write_bytes(broken)
    with pytest.raises(StoreError) as raised:
        downgrade(db, "0001", backups)
    assert raised.value.code == "store_corrupt"
    assert "backup" in raised.value.hint
    assert db.read_bytes() == broken


@pytest.mark.parametrize("damage", ["head", "all"])
async def test_opening_a_damaged_store_says_how_to_mend_it(damage: str, db: Path, backups: Path) -> None:
    """D08: opening refuses a corrupt file, and it stays byte for byte as it was."""
    upgrade(db, backups)
    whole = db.read_bytes()
    broken = b"\0" * 100 + whole[100:] if damage == "head" else b"rubbish " * 9000
    db.write_bytes(broken)
    with pytest.raises(StoreError) as raised:
        await Store.open(db, backups)
    assert raised.value.code == "store_corrupt"
    assert "coffer restore" in raised.value.hint
    assert db.read_bytes() == broken


def test_no_migration_without_its_copy(db: Path, backups: Path) -> None:
    """The copy comes first: where it cannot be made, nothing is migrated."""
    upgrade(db, backups)
    downgrade(db, "0001", backups)
    blocked = backups.with_name("a-file")
    blocked.write_bytes(b"")
    with pytest.raises(StoreError) as raised:
        upgrade(db, blocked)
    assert raised.value.code == "store_unavailable"
    assert revision_of(db) == "0001"


def test_a_database_in_no_folder_is_told(tmp_path: Path, backups: Path) -> None:
    """A missing folder is named, not made."""
    with pytest.raises(StoreError, match="absent") as raised:
        upgrade(tmp_path / "absent" / "coffer.db", backups)
    assert raised.value.code == "store_unavailable"


def test_a_migration_apart_hands_its_error_back(db: Path, backups: Path) -> None:
    """Migrations run in a process of their own; what they refuse arrives as if it had been refused here."""
    upgrade_apart(db, backups)
    assert revision_of(db) == HEAD_REVISION
    with opened(db) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0999'")
    with pytest.raises(StoreError, match="0999") as raised:
        upgrade_apart(db, backups)
    assert raised.value.code == "store_newer"
    assert raised.value.hint


def test_a_migration_apart_that_dies_is_told(
    db: Path, backups: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process may be killed: its exit code and last words are told."""
    dying = tmp_path / "python"
    dying.write_text("#!/bin/sh\necho 'out of luck' >&2\nexit 7\n")
    dying.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(dying))
    with pytest.raises(StoreError, match=r"exit code 7 \(out of luck\)") as raised:
        upgrade_apart(db, backups)
    assert raised.value.code == "store_migration"


def test_an_up_to_date_store_opens_without_alembic(db: Path, backups: Path) -> None:
    """Memory: neither the first start nor a later one leaves Alembic in the daemon."""
    script = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from coffer_supervisor.store import Store\n"
        "async def once():\n"
        "    store = await Store.open(Path(sys.argv[1]), Path(sys.argv[2]))\n"
        "    await store.close()\n"
        "asyncio.run(once())\n"
        "sys.exit('alembic' in sys.modules)\n"
    )
    command = [sys.executable, "-W", "error", "-c", script, str(db), str(backups)]
    for _ in range(2):
        done = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_the_command_migrates_both_ways(db: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``python -m coffer_supervisor.store.migrate`` goes up, and down to a revision by name."""
    database = ["--database", str(db)]
    assert main(database) == 0
    assert f"revision {HEAD_REVISION}" in capsys.readouterr().out
    assert main([*database, "--down-to", "0001"]) == 0
    assert "revision 0001, copy in" in capsys.readouterr().out
    assert main([*database, "--down-to", "no-such-revision"]) == 1
    assert "Nothing has been changed" in capsys.readouterr().err
    assert revision_of(db) == "0001"
    assert main(["--database", str(db.with_name("new.db")), "--down-to", "base"]) == 1


def test_the_command_takes_the_home_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``make migrate`` names no file: the database is that of COFFER_HOME, which is made if need be."""
    monkeypatch.setenv("COFFER_HOME", str(tmp_path / "home"))
    assert main([]) == 0
    assert revision_of(tmp_path / "home" / "coffer.db") == HEAD_REVISION


def test_alembic_s_own_command_is_pointed_to_ours(tmp_path: Path) -> None:
    """The environment runs only on a connection it is handed, within a transaction that the caller holds."""
    from alembic import command

    config = alembic_config()
    config.set_main_option("sqlalchemy.url", f"sqlite:///{tmp_path / 'x.db'}")
    with pytest.raises(RuntimeError, match=r"coffer_supervisor\.store\.migrate"):
        command.upgrade(config, "head")
