"""The store under way: connections, locks, a full disk, a kill, copies."""

import asyncio
import logging
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text

from coffer_supervisor.store import Store, StoreError
from coffer_supervisor.store.backup import copy_database
from coffer_supervisor.store.engine import Database
from coffer_supervisor.store.migrate import upgrade
from tests.support.wait import wait_for

CONFIG = {"transport": "stdio", "command": "x"}
PRAGMAS = {
    "journal_mode": "wal",
    "foreign_keys": 1,
    "synchronous": 1,  # NORMAL
    "busy_timeout": 5000,
    "cache_size": -64000,
    "temp_store": 2,  # MEMORY
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "coffer.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[Store]:
    upgrade(path, path.with_name("backups"))
    opened = await Store.open(path, path.with_name("backups"), busy_ms=200)
    yield opened
    await opened.close()


@pytest.fixture
async def database(path: Path) -> AsyncIterator[Database]:
    database = Database(path, busy_ms=200)
    async with database.write() as connection:
        await connection.execute(text("CREATE TABLE t (x)"))
    yield database
    await database.close()


async def count(database: Database) -> int:
    async with database.read() as connection:
        return int((await connection.execute(text("SELECT count(*) FROM t"))).scalar_one())


async def test_every_new_connection_is_set_up(path: Path) -> None:
    """The settings are made on each new connection, not on the first only."""
    database = Database(path)
    async with database.read() as first, database.read() as second, database.write() as third:
        for connection in (first, second, third):
            for pragma, value in PRAGMAS.items():
                assert (await connection.execute(text(f"PRAGMA {pragma}"))).scalar_one() == value, pragma
    await database.close()


async def test_a_write_is_whole_or_not_at_all(database: Database) -> None:
    """Nothing half-written: an exception in the middle undoes all of it."""
    with pytest.raises(RuntimeError, match="half-way"):
        async with database.write() as connection:
            await connection.execute(text("INSERT INTO t VALUES (1)"))
            raise RuntimeError("half-way")
    assert await count(database) == 0


async def test_a_cancelled_write_leaves_the_database_usable(database: Database) -> None:
    """A caller that goes away in the middle takes neither the lock nor the connection with it."""
    inside = asyncio.Event()

    async def write() -> None:
        async with database.write() as connection:
            await connection.execute(text("INSERT INTO t VALUES (1)"))
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(write())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with database.write() as connection:
        await connection.execute(text("INSERT INTO t VALUES (2)"))
    assert await count(database) == 1


@pytest.mark.parametrize("steps", range(0, 40, 3))
async def test_a_caller_may_go_away_at_any_moment(steps: int, path: Path) -> None:
    """Wherever a cancellation falls, from the first connection on, nothing is leaked and all goes on."""
    database = Database(path, busy_ms=200)

    async def write() -> None:
        async with database.write() as connection:
            await connection.execute(text("CREATE TABLE t (x)"))

    task = asyncio.create_task(write())
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    async with database.write() as connection:
        await connection.execute(text("CREATE TABLE IF NOT EXISTS t (x)"))
    assert await count(database) == 0
    await database.close()


@pytest.mark.parametrize("steps", range(1, 30, 4))
def test_a_caller_may_go_away_as_the_loop_ends(steps: int, path: Path) -> None:
    """A connection that was being opened is closed before the loop ends, not left to its thread."""

    async def once() -> None:
        database = Database(path, busy_ms=200)

        async def read() -> None:
            async with database.read():
                pass

        task = asyncio.create_task(read())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        await database.close()

    asyncio.run(once())


async def test_readers_see_one_state_and_hold_up_no_writer(database: Database) -> None:
    """Reads take no write lock, and a write does not change what a reader is in the middle of."""
    async with database.read() as reader:
        assert (await reader.execute(text("SELECT count(*) FROM t"))).scalar_one() == 0
        async with database.write() as writer:
            await writer.execute(text("INSERT INTO t VALUES (1)"))
        assert (await reader.execute(text("SELECT count(*) FROM t"))).scalar_one() == 0
    assert await count(database) == 1


async def test_writers_stand_in_line(database: Database) -> None:
    """Many writes at once all succeed, one after the other."""

    async def write(value: int) -> None:
        async with database.write() as connection:
            before = (await connection.execute(text("SELECT count(*) FROM t"))).scalar_one()
            await connection.execute(text("INSERT INTO t VALUES (:x)"), {"x": before})

    await asyncio.gather(*(write(value) for value in range(30)))
    async with database.read() as connection:
        values = (await connection.execute(text("SELECT x FROM t ORDER BY x"))).scalars().all()
    assert values == list(range(30))


async def test_waiting_for_one_s_turn_is_bounded(database: Database) -> None:
    """A write that never ends does not make the next wait for ever; nor do connections that are never given back."""
    async with database.write():
        with pytest.raises(StoreError) as raised:
            async with database.write():
                pass
        assert raised.value.code == "store_locked"
        async with database.read(), database.read():
            with pytest.raises(StoreError) as raised:
                async with database.read():
                    pass
        assert raised.value.code == "store_locked"
    assert await count(database) == 0


async def test_errors_of_others_pass_unchanged(database: Database) -> None:
    """Only the database's own errors are translated."""
    with pytest.raises(KeyError):
        async with database.read():
            raise KeyError("mine")
    with pytest.raises(StoreError, match="no such table: absent"):
        async with database.read() as connection:
            await connection.execute(text("SELECT * FROM absent"))


async def test_values_stay_out_of_errors(database: Database) -> None:
    """An error of the database does not show what was to be stored, not even in its cause."""
    with pytest.raises(StoreError) as raised:
        async with database.write() as connection:
            await connection.execute(text("INSERT INTO absent VALUES (:x)"), {"x": "s3cr3t"})
    assert "s3cr3t" not in f"{raised.value} {raised.value.__cause__}"


async def test_another_process_s_lock_is_waited_for_within_a_bound(store: Store, path: Path) -> None:
    """D06: while another program writes, reads go on, a write fails naming the cause, and all is well afterwards."""
    await store.resources.create("mcp_server", "files", CONFIG, actor="cli")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError) as raised:
            await store.resources.create("mcp_server", "second", CONFIG, actor="cli")
        assert raised.value.code == "store_locked"
        assert [found.name for found in await store.resources.list()] == ["files"]
        other.execute("ROLLBACK")
    await store.resources.create("mcp_server", "second", CONFIG, actor="cli")
    assert len(await store.resources.list()) == 2


async def test_damage_in_the_middle_is_told_and_left(path: Path) -> None:
    """A page that is damaged shows when it is read: the error says how to mend it, and the file is not touched."""
    store = await Store.open(path, path.with_name("backups"))
    for number in range(60):
        await store.resources.create("mcp_server", f"s{number}", {**CONFIG, "args": ["x" * 500]}, actor="cli")
    await store.close()
    broken = bytearray(path.read_bytes())
    broken[len(broken) // 2 :] = b"\xff" * (len(broken) - len(broken) // 2)
    path.write_bytes(broken)
    with pytest.raises(StoreError) as raised:
        store = await Store.open(path, path.with_name("backups"))
        try:
            await store.audit.list(limit=1000)
            await store.resources.list()
        finally:
            await store.close()
    assert raised.value.code == "store_corrupt"
    assert path.read_bytes() == bytes(broken)


async def test_a_copy_is_whole_while_the_store_is_in_use(store: Store, tmp_path: Path) -> None:
    """A backup needs no stop, is one private file, and opens as a store."""
    await store.resources.create("mcp_server", "files", CONFIG, actor="cli")
    target = tmp_path / "copies" / "today.db"

    async def busy() -> None:
        for number in range(30):
            await store.resources.create("mcp_server", f"s{number}", CONFIG, actor="cli")

    await asyncio.gather(busy(), store.backup(target))
    await store.backup(target)  # replaces
    assert [entry.name for entry in target.parent.iterdir()] == ["today.db"]
    assert target.stat().st_mode & 0o777 == 0o600
    copy = await Store.open(target, tmp_path / "backups")
    assert len(await copy.resources.list()) == 31
    await copy.close()


async def test_a_copy_that_fails_leaves_the_one_before(store: Store, tmp_path: Path) -> None:
    """D07: old bytes stay intact on any failure."""
    target = tmp_path / "today.db"
    await store.backup(target)
    before = target.read_bytes()
    damaged = tmp_path / "damaged.db"
    damaged.write_bytes(b"x" * 5000)
    with pytest.raises(StoreError) as raised:
        copy_database(damaged, target)
    assert raised.value.code == "store_corrupt"
    assert str(damaged) in raised.value.message
    assert target.read_bytes() == before
    assert not list(tmp_path.glob("*.partial"))


WRITER = """
import asyncio, sys
from pathlib import Path
from datetime import UTC, datetime
from tests.integration.test_store_invocations import call
from coffer_supervisor.store import Store

async def main():
    store = await Store.open(Path(sys.argv[1]), Path(sys.argv[2]))
    await store.resources.create("mcp_server", "files", {"transport": "stdio", "command": "x"}, actor="cli")
    for number in range(1000):
        store.invocations.record(call(when=datetime.now(UTC)))
    async with asyncio.timeout(30):
        while store.invocations.queued:
            await asyncio.sleep(0.01)
    print("written", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_kill_loses_nothing_that_was_written(path: Path) -> None:
    """A crash loses at most one second of invocations, and nothing else."""
    command = [sys.executable, "-c", WRITER, str(path), str(path.with_name("backups"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as writer:
        assert writer.stdout is not None
        assert await asyncio.to_thread(writer.stdout.readline) == b"written\n"
        writer.send_signal(signal.SIGKILL)
    store = await Store.open(path, path.with_name("backups"))
    assert len(await store.invocations.list(limit=1000)) == 1000
    assert [found.name for found in await store.resources.list()] == ["files"]
    assert [entry.event for entry in await store.audit.list()] == ["resource.created"]
    await store.close()


FULL = """
import asyncio, logging, resource, sys
from pathlib import Path
from datetime import UTC, datetime
from tests.integration.test_store_invocations import call
from coffer_supervisor.store import Store, StoreError

async def main():
    logging.basicConfig(stream=sys.stderr, format="LOG %(levelname)s %(message)s", level=logging.INFO)
    path = Path(sys.argv[1])
    store = await Store.open(path, path.with_name("backups"), busy_ms=200)
    for number in range(500):
        store.invocations.record(call(when=datetime.now(UTC)))
    await store.invocations.flush()
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.with_name("coffer.db-wal").stat().st_size, hard))
    for number in range(500):
        store.invocations.record(call(when=datetime.now(UTC)))
    try:
        await store.resources.create("mcp_server", "files", {"transport": "stdio", "command": "x"}, actor="cli")
        print("created")
    except StoreError as error:
        print(error.code)
    failed, flush = asyncio.Semaphore(0), store.invocations.flush

    async def watched():
        try:
            await flush()
        except StoreError:
            failed.release()
            raise

    store.invocations.flush = watched
    try:
        await store.invocations.flush()
        print("flushed")
    except StoreError as error:
        print(error.code, store.invocations.queued)
    async with asyncio.timeout(30):
        for _ in range(3):  # the writer's own tries, two of them at least
            await failed.acquire()
    print(len(await store.resources.list()), store.invocations.queued)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    async with asyncio.timeout(30):
        while store.invocations.queued:
            await asyncio.sleep(0.01)
    print(len(await store.invocations.list(limit=1000)), store.invocations.dropped)
    await store.close()

asyncio.run(main())
"""


def test_a_full_disk_holds_back_the_log_and_says_so_once(path: Path) -> None:
    """D06, D07: a file that may not grow: recording goes on, one warning, and every row arrives when there is room."""
    command = [sys.executable, "-c", FULL, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == 0, done.stderr
    refused, flushed, during, after = done.stdout.splitlines()
    assert refused in {"store_full", "store_unavailable"}
    assert flushed == f"{refused} 500"
    assert during == "0 500"
    assert after == "1000 0"
    logged = [line for line in done.stderr.splitlines() if line.startswith("LOG") and "pruned" not in line]
    assert len(logged) == 2, done.stderr
    assert logged[0].startswith("LOG WARNING calls go on, but their log is held back")
    assert logged[1].startswith("LOG INFO the invocation log is written again")


async def test_pruning_that_cannot_write_is_told(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Housekeeping in trouble is a warning, never the end of the store."""
    first = await Store.open(path, path.with_name("backups"))
    await first.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with caplog.at_level(logging.WARNING, "coffer.store"):
            store = await Store.open(path, path.with_name("backups"), busy_ms=50)
            await wait_for(lambda: "old log rows were not pruned" in caplog.text)
        other.execute("ROLLBACK")
    await store.close()
