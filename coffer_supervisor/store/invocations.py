"""The invocation log, written off the hot path.

Owns ``mcp_invocations``, the bounded queue before it and the task that empties it. Never makes a call wait,
never stores arguments or results, and never fails a call because the database is in trouble: then it keeps
the newest rows in memory, says so once, and goes on when the database does.
"""

import asyncio
import builtins
import logging
import math
from collections import deque
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, Literal

import msgspec
from sqlalchemy import func, insert, select, text
from sqlalchemy.dialects.sqlite import dialect

from coffer_supervisor.store.engine import Database
from coffer_supervisor.store.errors import StoreError
from coffer_supervisor.store.models import InvocationRow, to_micros
from coffer_supervisor.store.paging import read_page

Status = Literal["ok", "error", "timeout", "denied", "cancelled"]

QUEUE_ROWS: Final = 20_000
FLUSH_SECONDS: Final = 0.5
_BATCH: Final = 500
_MAX_ERROR: Final = 2000
_READER_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = (0.5, 1.0, 2.0, 5.0)

_log: Final = logging.getLogger("coffer.store")


class Invocation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One tool call, resource read or prompt get that has ended.

    ``when`` it began (aware), ``type`` and ``key`` of the capability (the upstream's own name or URI),
    ``duration_ms`` in milliseconds, ``error`` its message where it did not end ``ok``, ``client`` the
    principal's name.
    """

    when: datetime
    server: str
    type: str
    key: str
    duration_ms: float
    status: Status
    error: str | None = None
    session: str | None = None
    client: str | None = None
    trace_id: str | None = None


class InvocationEntry(Invocation, frozen=True, kw_only=True, gc=False):
    """An invocation as stored."""

    id: int


class InvocationStats(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one capability. ``errors``: calls that ended other than ``ok``. Durations in milliseconds,
    by the nearest-rank method, over all calls.
    """

    server: str
    type: str
    key: str
    calls: int
    errors: int
    p50_ms: float
    p95_ms: float


_COLUMNS: Final = (
    "when", "server", "type", "key", "duration_ms", "status", "error", "session", "client", "trace_id",
)  # fmt: skip
# Compiled once and run with plain tuples: a third of the time the loop would spend on a dictionary a row.
_INSERT: Final = str(insert(InvocationRow).compile(dialect=dialect(), column_keys=_COLUMNS))

_STATS: Final = text(
    """
    WITH ranked AS (
        SELECT server, type, "key", status, duration_ms,
               row_number() OVER (PARTITION BY server, type, "key" ORDER BY duration_ms) AS place,
               count(*) OVER (PARTITION BY server, type, "key") AS calls
        FROM mcp_invocations WHERE "when" >= :since AND (:server IS NULL OR server = :server)
    )
    SELECT server, type, "key", count(*) AS calls, sum(status <> 'ok') AS errors,
           min(CASE WHEN place * 100 >= calls * 50 THEN duration_ms END) AS p50_ms,
           min(CASE WHEN place * 100 >= calls * 95 THEN duration_ms END) AS p95_ms
    FROM ranked GROUP BY server, type, "key" ORDER BY server, type, "key"
    """
)


class InvocationLog:
    """``start`` it within a running loop, ``record`` from that loop, ``stop`` it at the end."""

    def __init__(self, database: Database, *, capacity: int = QUEUE_ROWS, flush_seconds: float = FLUSH_SECONDS) -> None:
        self._database = database
        self._capacity = capacity
        self._flush_seconds = flush_seconds
        self._queue: deque[Invocation] = deque()
        self._under_way = 0
        self._writing = asyncio.Lock()
        self._wake = asyncio.Event()
        self._hurry = asyncio.Event()
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._flushing: set[asyncio.Task[None]] = set()
        self._in_trouble = False
        self._faulty = False
        self.dropped = 0
        """Rows lost since the start: the oldest of a full queue, and what the database refused for good."""

    def record(self, invocation: Invocation) -> None:
        """Queue one row: never blocks, never awaits, never fails. Of a full queue the oldest row is
        dropped.
        """
        queue = self._queue
        if len(queue) >= self._capacity:
            queue.popleft()
            self.dropped += 1
        queue.append(invocation)
        if len(queue) * 2 >= self._capacity:
            self._hurry.set()
        self._wake.set()

    @property
    def queued(self) -> int:
        """Rows not yet in the database."""
        return len(self._queue) + self._under_way

    def start(self) -> None:
        """Start the writer. Rows reach the database at most ``flush_seconds`` after they were recorded."""
        self._task = asyncio.create_task(self._write_all(), name="invocation-writer")

    async def stop(self) -> None:
        """Write what is queued (one attempt) and end the writer."""
        self._stop.set()
        self._wake.set()
        self._hurry.set()
        if self._task is not None:
            await self._task
            self._task = None
        try:
            await self.flush()
        except StoreError as error:
            lost = len(self._queue)
            self.dropped += lost
            text = "%d invocations were lost as the store closed, %d in all since it was opened: %s"
            _log.warning(text, lost, self.dropped, error)
        else:
            self._recovered()

    async def try_flush(self) -> None:
        """``flush`` for who wants to read, and waits a second at most: where the disk is full or the database locked,
        what is stored can be read all the same. The writer tells of the trouble."""
        flushing = asyncio.create_task(self.flush(), name="invocation-flush")
        self._flushing.add(flushing)
        flushing.add_done_callback(self._flushed)
        await asyncio.wait({flushing}, timeout=_READER_SECONDS)

    def _flushed(self, flushing: "asyncio.Task[None]") -> None:
        self._flushing.discard(flushing)
        if not flushing.cancelled() and isinstance(error := flushing.exception(), StoreError):
            _log.debug("what is to be read is not all written: %s", error)

    async def flush(self) -> None:
        """Write all that is queued now. Raises ``StoreError``; what could not be written stays queued."""
        async with self._writing:
            while self._queue:
                batch = [self._queue.popleft() for _ in range(min(_BATCH, len(self._queue)))]
                self._under_way = len(batch)
                try:
                    await self._insert(batch)
                except StoreError as error:
                    if error.code != "store_failed":
                        self._put_back(batch)
                        raise
                    # Refused once, refused again: these rows must not hold up those behind them.
                    self.dropped += len(batch)
                    _log.warning("%d invocations were not logged: %s", len(batch), error)
                except Exception as error:
                    # A fault of ours, which would be met again: it must not end the log for good.
                    self.dropped += len(batch)
                    self._report_fault(error, len(batch))
                except BaseException:
                    self._put_back(batch)  # cancelled: a row written twice is better than one lost
                    raise
                finally:
                    self._under_way = 0

    async def _insert(self, batch: Sequence[Invocation]) -> None:
        rows = [_row(invocation) for invocation in batch]
        async with self._database.write() as connection:
            await connection.exec_driver_sql(_INSERT, rows)

    def _put_back(self, batch: list[Invocation]) -> None:
        lost = max(0, len(batch) + len(self._queue) - self._capacity)
        self.dropped += lost
        self._queue.extendleft(reversed(batch[lost:]))

    async def _write_all(self) -> None:
        failures = 0
        while not self._stop.is_set():
            await self._wake.wait()
            self._wake.clear()
            if not self._stop.is_set():  # else the pause below would outlast the stop
                self._hurry.clear()
            try:
                await self.flush()
            except StoreError as error:
                self._report(error)
                self._wake.set()
                # Not ended early by a queue that fills: that would only ask a database in trouble more often.
                await _pause(self._stop, _RETRY_SECONDS[min(failures, len(_RETRY_SECONDS) - 1)])
                failures += 1
            else:
                failures = 0
                self._recovered()
                await _pause(self._hurry, self._flush_seconds)

    def _report(self, error: StoreError) -> None:
        if not self._in_trouble:
            self._in_trouble = True
            _log.warning("calls go on, but their log is held back: %s", error)

    def _report_fault(self, error: Exception, rows: int) -> None:
        if not self._faulty:
            self._faulty = True
            text = "%d invocations were not logged, by a fault of Coffer's; of further ones only the number is kept"
            _log.error(text, rows, exc_info=error)

    def _recovered(self) -> None:
        if self._in_trouble:
            self._in_trouble = False
            _log.info("the invocation log is written again; %d rows were lost so far", self.dropped)

    async def list(
        self,
        *,
        server: str | None = None,
        type: str | None = None,
        key: str | None = None,
        status: str | None = None,
        session: str | None = None,
        client: str | None = None,
        trace_id: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        before: int | None = None,
        after: int | None = None,
        limit: int = 100,
    ) -> builtins.list[InvocationEntry]:
        """Rows, newest first, at most ``limit`` (1 to ``MAX_LISTED``). What was recorded within the last
        half second may be missing.

        ``since`` is inclusive, ``until`` is not. ``before``: only rows with a smaller ``id``.
        ``after``: only rows with a larger one, and of them the oldest count, so that none is missed by who follows.
        """
        wanted = {
            "server": server, "type": type, "key": key, "status": status,
            "session": session, "client": client, "trace_id": trace_id,
        }  # fmt: skip
        rows = await read_page(
            self._database, InvocationRow, wanted, since=since, until=until, before=before, after=after, limit=limit
        )
        return [InvocationEntry(**row) for row in rows]

    async def counts(self, since: datetime, *, server: str | None = None) -> dict[str, int]:
        """How many calls begun since then, by server; one without any is missing. Reads the index only."""
        query = select(InvocationRow.server, func.count()).where(InvocationRow.when >= to_micros(since))
        if server is not None:
            query = query.where(InvocationRow.server == server)
        async with self._database.read() as connection:
            return {
                name: count for name, count in (await connection.execute(query.group_by(InvocationRow.server))).all()
            }

    async def stats(self, since: datetime, *, server: str | None = None) -> builtins.list[InvocationStats]:
        """Figures per capability of the calls begun since then, by server, type and key."""
        async with self._database.read() as connection:
            rows = (await connection.execute(_STATS, {"since": to_micros(since), "server": server})).mappings().all()
        return [InvocationStats(**row) for row in rows]


async def _pause(end: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await end.wait()
    except TimeoutError:
        return


def _clean(value: str | None) -> str | None:
    # A lone surrogate cannot be stored as UTF-8.
    return None if value is None else value.encode("utf-8", "replace").decode()


def _row(invocation: Invocation) -> tuple[Any, ...]:
    duration = invocation.duration_ms
    return (
        to_micros(invocation.when),
        _clean(invocation.server),
        _clean(invocation.type),
        _clean(invocation.key),
        duration if math.isfinite(duration) else 0.0,
        invocation.status,
        _clean(invocation.error[:_MAX_ERROR]) if invocation.error is not None else None,
        _clean(invocation.session),
        _clean(invocation.client),
        _clean(invocation.trace_id),
    )
