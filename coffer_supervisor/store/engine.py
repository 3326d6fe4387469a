"""Connections to ``coffer.db``: how they are set up, shared, and what their errors mean.

Owns SQLAlchemy's engine. Never knows a table. Reads take no write lock; writes of this process stand in line,
so that one waits for another without spinning on SQLite's lock.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from coffer_supervisor.store.errors import from_sqlite, locked

BUSY_MILLISECONDS: Final = 5000
_POOL_SIZE: Final = 3
_WRITES: Final = "coffer_writes"


class Database:
    """The one engine of this process. ``busy_ms`` bounds each wait for a lock."""

    def __init__(self, path: Path, *, busy_ms: int = BUSY_MILLISECONDS) -> None:
        self.path = path
        self._busy_ms = busy_ms
        self._turn = asyncio.Lock()
        self._engine = create_async_engine(
            URL.create("sqlite+aiosqlite", database=str(path)),
            pool_size=_POOL_SIZE,
            max_overflow=0,
            pool_timeout=2 * busy_ms / 1000,
            hide_parameters=True,
            # None: the driver begins nothing by itself; _begin does, in the way each transaction needs.
            connect_args={"isolation_level": None},
        )
        event.listen(self._engine.sync_engine, "connect", self._set_pragmas)
        event.listen(self._engine.sync_engine, "begin", _begin)

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """A connection whose statements see one state of the database. Raises ``StoreError``."""
        with self._explained():
            connection = await self._connect()
            try:
                yield connection
            finally:
                await _close(connection)

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that holds the write lock from its beginning: committed whole, or not at all on any
        exception.

        Raises ``StoreError``; waits at most twice ``busy_ms`` for its turn, and ``busy_ms`` for other
        processes.
        """
        with self._explained():
            try:
                async with asyncio.timeout(2 * self._busy_ms / 1000):
                    await self._turn.acquire()
            except TimeoutError:
                raise locked(self.path) from None
            try:
                connection = await self._connect()
                try:
                    await connection.execution_options(**{_WRITES: True})
                    async with connection.begin():
                        yield connection
                finally:
                    await _close(connection)
            finally:
                self._turn.release()

    async def close(self) -> None:
        """Close every connection; SQLite folds its write-ahead log into the file."""
        await self._engine.dispose()

    async def _connect(self) -> AsyncConnection:
        # The driver leaks its thread and file if it is cancelled while it opens: let it finish first.
        opening = asyncio.create_task(_opened(self._engine.connect()))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            await asyncio.wait([opening])
            if not opening.cancelled() and opening.exception() is None:
                await opening.result().close()
            raise

    def _set_pragmas(self, connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        try:
            # First, so that the others wait too.
            cursor.execute(f"PRAGMA busy_timeout = {self._busy_ms}")
            cursor.execute("PRAGMA journal_mode = WAL")
            cursor.execute("PRAGMA foreign_keys = ON")
            cursor.execute("PRAGMA synchronous = NORMAL")
            cursor.execute("PRAGMA cache_size = -64000")
            cursor.execute("PRAGMA temp_store = MEMORY")
        finally:
            cursor.close()

    def _explained(self) -> "_Explained":
        return _Explained(self.path)


class _Explained:
    """Turns what SQLAlchemy and the driver raise into ``StoreError``."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, PoolTimeout):
            raise locked(self._path) from error
        if isinstance(error, DBAPIError):
            raise from_sqlite(error.orig or error, self._path) from error
        if isinstance(error, sqlite3.Error):  # from the set-up of a new connection
            raise from_sqlite(error, self._path) from error


async def _opened(connection: AsyncConnection) -> AsyncConnection:
    return await connection.start()


async def _close(connection: AsyncConnection) -> None:
    closing = asyncio.create_task(connection.close())
    await asyncio.shield(closing)  # a connection goes back to the pool even if its user is cancelled twice


def _begin(connection: Connection) -> None:
    # IMMEDIATE: one that reads first and then writes would otherwise fail at once when another has written.
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
