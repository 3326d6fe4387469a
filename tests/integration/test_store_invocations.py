"""The invocation log: rows equal calls, whatever the database does meanwhile."""

import asyncio
import logging
import math
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coffer_supervisor.store import Store, StoreError
from coffer_supervisor.store.engine import Database
from coffer_supervisor.store.invocations import Invocation, InvocationEntry, InvocationLog
from coffer_supervisor.store.migrate import upgrade
from tests.support.wait import wait_for

START = datetime(2026, 5, 20, 12, 0, tzinfo=UTC)


def call(number: int = 0, **changes: Any) -> Invocation:
    made = Invocation(
        when=START + timedelta(seconds=number), server="files", type="tool", key="read", duration_ms=1.0, status="ok"
    )
    return msgspec.structs.replace(made, **changes)


def plain(entry: InvocationEntry) -> Invocation:
    return Invocation(**{name: getattr(entry, name) for name in Invocation.__struct_fields__})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    upgrade(tmp_path / "coffer.db", tmp_path / "backups")
    return tmp_path / "coffer.db"


@pytest.fixture
async def database(path: Path) -> AsyncIterator[Database]:
    database = Database(path, busy_ms=200)
    await InvocationLog(database).list()  # connected: from here on the file is in WAL mode
    yield database
    await database.close()


@pytest.fixture
async def log(database: Database) -> AsyncIterator[InvocationLog]:
    log = InvocationLog(database)
    log.start()
    yield log
    await log.stop()


async def test_every_recorded_call_becomes_a_row(log: InvocationLog) -> None:
    """A row for every call, in order, with all that is told of it, soon after and without being asked for."""
    calls = [
        call(0, session="s1", client="claude", trace_id="t1"),
        call(1, type="resource", key="file:///a b", status="error", error="no such file", duration_ms=0.25),
        call(2, type="prompt", key="greet", status="timeout", error="120 s"),
        call(3, status="denied"),
        call(4, status="cancelled"),
    ]
    for made in calls:
        log.record(made)
    await wait_for(lambda: not log.queued)
    assert [plain(entry) for entry in reversed(await log.list())] == calls
    log.record(call(5))
    await wait_for(lambda: not log.queued)
    assert len(await log.list()) == 6


async def test_many_calls_are_written_in_batches(log: InvocationLog) -> None:
    """No row is lost or doubled on the way from the queue to the table."""
    for number in range(5000):
        log.record(call(number, key=str(number)))
    await log.flush()
    found: list[InvocationEntry] = []
    while page := await log.list(limit=1000, before=found[-1].id if found else None):
        found.extend(page)
    assert [entry.key for entry in reversed(found)] == [str(number) for number in range(5000)]


async def test_stopping_writes_what_is_queued(database: Database) -> None:
    """A deliberate stop loses nothing, even what was recorded just before."""
    log = InvocationLog(database)
    log.start()
    for number in range(700):
        log.record(call(number))
    await log.stop()
    assert log.queued == 0
    assert len(await log.list(limit=1000)) == 700
    never_started = InvocationLog(database)
    never_started.record(call())
    await never_started.stop()
    assert len(await log.list(limit=1000)) == 701


async def test_a_locked_database_loses_no_row_and_warns_once(
    log: InvocationLog, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """D06: bookkeeping that fails kills no call: recording goes on, and the rows arrive when the lock is gone."""
    with caplog.at_level(logging.INFO, "coffer.store"):
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            log.record(call(0))
            await wait_for(lambda: "held back" in caplog.text)
            log.record(call(1))
            with pytest.raises(StoreError, match="locked"):
                await log.flush()
            assert log.queued == 2
            other.execute("ROLLBACK")
        await wait_for(lambda: not log.queued)
        await wait_for(lambda: "written again" in caplog.text)
    assert caplog.text.count("held back") == 1
    assert log.dropped == 0
    assert [entry.when for entry in await log.list()] == [START + timedelta(seconds=1), START]


async def test_a_full_queue_drops_the_oldest(database: Database, path: Path) -> None:
    """The queue is bounded: of too many rows the newest are kept, and the loss is counted."""
    log = InvocationLog(database, capacity=10)
    for number in range(12):
        log.record(call(number))
    assert (log.queued, log.dropped) == (10, 2)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        flushing = asyncio.ensure_future(log.flush())
        await wait_for(lambda: log._under_way)
        for number in range(12, 15):
            log.record(call(number))
        with pytest.raises(StoreError):
            await flushing
        other.execute("ROLLBACK")
    assert (log.queued, log.dropped) == (10, 5)
    await log.flush()
    assert [entry.when for entry in reversed(await log.list())] == [
        START + timedelta(seconds=number) for number in range(5, 15)
    ]


async def test_a_queue_that_fills_is_written_before_its_time(database: Database) -> None:
    """A burst does not wait for the next regular write."""
    log = InvocationLog(database, capacity=100, flush_seconds=3600)
    log.start()
    log.record(call(0))
    await wait_for(lambda: not log.queued)
    for number in range(1, 60):
        log.record(call(number))
    await wait_for(lambda: not log.queued)
    await log.stop()
    assert len(await log.list()) == 60


async def test_a_cancelled_write_loses_no_row(database: Database, path: Path) -> None:
    """Whoever asked for the write may go away: the rows stay queued."""
    log = InvocationLog(database)
    log.record(call(0))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        flushing = asyncio.ensure_future(log.flush())
        await wait_for(lambda: log._under_way)
        flushing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await flushing
        other.execute("ROLLBACK")
    assert log.queued == 1
    await log.flush()
    assert len(await log.list()) == 1


async def test_what_cannot_be_stored_as_it_is_is_made_storable(log: InvocationLog) -> None:
    """One odd row holds up no other: lone surrogates, endless durations and endless messages are cut to size."""
    log.record(call(0, key="a\ud800b", error="x" * 10_000, status="error", duration_ms=math.nan))
    log.record(call(1))
    await log.flush()
    _, odd = await log.list()
    assert (odd.key, odd.error, odd.duration_ms) == ("a?b", "x" * 2000, 0.0)


async def test_rows_the_database_refuses_for_good_are_dropped_and_told(
    database: Database, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A table that is gone does not fill the memory: the rows are counted as lost, with a warning."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("DROP TABLE mcp_invocations")
    log = InvocationLog(database)
    log.record(call())
    with caplog.at_level(logging.WARNING, "coffer.store"):
        await log.flush()
    assert (log.queued, log.dropped) == (0, 1)
    assert "no such table" in caplog.text


async def test_a_stop_in_trouble_says_what_is_lost(
    database: Database, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Stopping does not wait for ever for a database that stays locked."""
    log = InvocationLog(database)
    log.start()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        log.record(call())
        with caplog.at_level(logging.WARNING, "coffer.store"):
            await log.stop()
        other.execute("ROLLBACK")
    assert "1 invocations were lost as the store closed, 1 in all" in caplog.text


async def test_a_stop_in_trouble_counts_what_was_lost_before(
    database: Database, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One line counts all: what was held back until the end, and what there was no room for before."""
    log = InvocationLog(database, capacity=10)
    log.start()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        for number in range(14):
            log.record(call(number))
        with caplog.at_level(logging.WARNING, "coffer.store"):
            await log.stop()
        other.execute("ROLLBACK")
    assert "10 invocations were lost as the store closed, 14 in all since it was opened" in caplog.text


async def test_what_is_stored_can_be_read_while_nothing_can_be_written(database: Database, path: Path) -> None:
    """Whoever reads the log wants the newest rows, but gets the others where those cannot be written."""
    log = InvocationLog(database)
    log.record(call(1))
    await log.flush()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        log.record(call(2))
        with pytest.raises(StoreError):
            await log.flush()
        await log.try_flush()
        assert [plain(row) for row in await log.list()] == [call(1)]
        other.execute("ROLLBACK")
    await log.try_flush()
    assert [plain(row) for row in await log.list()] == [call(2), call(1)]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, [5, 4, 3, 2, 1, 0]),
        ({"server": "docs"}, [2]),
        ({"type": "prompt"}, [3]),
        ({"key": "write"}, [1]),
        ({"status": "error"}, [1]),
        ({"session": "s4"}, [4]),
        ({"client": "cursor"}, [5]),
        ({"trace_id": "t0"}, [0]),
        ({"since": START + timedelta(seconds=4)}, [5, 4]),
        ({"until": START + timedelta(seconds=2)}, [1, 0]),
        ({"limit": 2}, [5, 4]),
        ({"limit": 0}, [5]),
        ({"server": "files", "status": "ok", "before": 4}, [0]),
        ({"after": 3}, [5, 4, 3]),
        ({"after": 3, "limit": 2}, [4, 3]),
        ({"after": 0, "limit": 1}, [0]),
    ],
)
async def test_rows_are_found_by_what_is_known_of_them(
    filters: dict[str, Any], expected: list[int], database: Database
) -> None:
    """Each column that tells who, what and when can be filtered by; newest first, a page at a time."""
    log = InvocationLog(database)
    for made in (
        call(0, trace_id="t0"),
        call(1, key="write", status="error"),
        call(2, server="docs"),
        call(3, type="prompt", status="denied"),
        call(4, session="s4"),
        call(5, client="cursor"),
    ):
        log.record(made)
    await log.flush()
    found = await log.list(**filters)
    assert [(entry.when - START).seconds for entry in found] == expected


async def test_figures_per_capability(database: Database) -> None:
    """Calls, errors and percentiles for each capability of each server, of the time asked for."""
    log = InvocationLog(database)
    log.record(call(-10, duration_ms=9999.0))
    for number in range(1, 101):
        log.record(call(number, duration_ms=float(number), status="error" if number % 10 == 0 else "ok"))
    log.record(call(1, server="docs", duration_ms=7.0, status="timeout"))
    await log.flush()
    docs, files = await log.stats(START)
    assert (docs.server, docs.calls, docs.errors, docs.p50_ms, docs.p95_ms) == ("docs", 1, 1, 7.0, 7.0)
    assert (files.calls, files.errors, files.p50_ms, files.p95_ms) == (100, 10, 50.0, 95.0)
    assert [figures.server for figures in await log.stats(START, server="files")] == ["files"]
    assert await log.stats(START + timedelta(days=1)) == []
    assert await log.counts(START) == {"docs": 1, "files": 100}
    assert await log.counts(START, server="docs") == {"docs": 1}
    assert await log.counts(START + timedelta(days=1)) == {}


async def test_arguments_and_results_have_no_place() -> None:
    """Arguments and results are never stored: there is no column for them."""
    assert set(Invocation.__struct_fields__) == {
        "when", "server", "type", "key", "duration_ms", "status", "error", "session", "client", "trace_id",
    }  # fmt: skip


async def test_the_store_writes_by_itself(tmp_path: Path) -> None:
    """An open store has its writer running, and closing it writes the rest."""
    store = await Store.open(tmp_path / "coffer.db", tmp_path / "backups")
    store.invocations.record(call(when=datetime.now(UTC)))
    await wait_for(lambda: not store.invocations.queued)
    store.invocations.record(call(when=datetime.now(UTC)))
    await store.close()
    again = await Store.open(tmp_path / "coffer.db", tmp_path / "backups")
    assert len(await again.invocations.list()) == 2
    await again.close()


async def test_a_row_that_cannot_be_made_ends_no_writer(log: InvocationLog, caplog: pytest.LogCaptureFixture) -> None:
    """A fault of ours costs those rows, is told once, and what is called afterwards is logged."""
    nonsense: Any = "no time"
    with caplog.at_level(logging.ERROR, "coffer.store"):
        log.record(call(when=nonsense))
        await wait_for(lambda: log.dropped == 1)
        log.record(call(when=nonsense))
        await wait_for(lambda: log.dropped == 2)
        log.record(call(3))
        await wait_for(lambda: not log.queued)
    assert [plain(entry) for entry in await log.list()] == [call(3)]
    assert caplog.text.count("by a fault of Coffer's") == 1
