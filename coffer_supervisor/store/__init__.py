"""The store: everything Coffer keeps, in one SQLite database.

    errors       what can go wrong, in words          engine       connections, transactions, PRAGMAs
    models       the tables                            migrate      the schema, forth and back
    backup       the file as a whole                   resources    servers, credentials, clients, groups
    preferences  what is switched on                   audit        what was changed, and by whom
    invocations  what was called                       retention    how long the logs are kept
    paging       a log, page by page

Owns ``coffer.db``. Never asked in mid-call: what a call needs is in memory, and its row is written
afterwards.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from coffer_common.clock import now as utc_now
from coffer_supervisor.store.audit import AuditLog, Now
from coffer_supervisor.store.backup import copy_database
from coffer_supervisor.store.engine import BUSY_MILLISECONDS, Database
from coffer_supervisor.store.errors import Duplicate, Invalid, NotFound, StoreError
from coffer_supervisor.store.invocations import InvocationLog
from coffer_supervisor.store.migrate import is_due, upgrade_apart
from coffer_supervisor.store.preferences import PreferenceStore
from coffer_supervisor.store.resources import Resource, ResourceStore
from coffer_supervisor.store.retention import Retention

PRUNE_SECONDS: Final = 6 * 3600.0
_log: Final = logging.getLogger("coffer.store")


class Store:
    """One open database with its background tasks: the writer of invocations, and the pruning."""

    def __init__(self, database: Database, now: Now) -> None:
        self.path = database.path
        self.resources = ResourceStore(database, now)
        self.preferences = PreferenceStore(database, now)
        self.audit = AuditLog(database, now)
        self.invocations = InvocationLog(database)
        self.retention = Retention(database, now)
        self.pruned: Callable[[], Awaitable[object]] | None = None
        """What is to be tidied up along with the logs, now and then."""
        self._database = database
        self._closing = asyncio.Event()
        self._pruning: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, path: Path, backups: Path, *, now: Now = utc_now, busy_ms: int = BUSY_MILLISECONDS) -> "Store":
        """Bring the database at ``path`` to the newest schema (a copy goes to ``backups`` first) and open it.

        Raises ``StoreError`` and leaves the file as it is when it is damaged, locked, newer than this code,
        or not Coffer's.
        """
        if await asyncio.to_thread(is_due, path):
            await asyncio.to_thread(upgrade_apart, path, backups)
        database = Database(path, busy_ms=busy_ms)
        store = cls(database, now)
        try:
            await store.retention.list()  # the first connection: a damaged or unwritable file shows here
        except BaseException:
            await database.close()
            raise
        store.invocations.start()
        store._pruning = asyncio.create_task(store._prune_now_and_then(), name="store-pruning")
        return store

    async def backup(self, target: Path) -> None:
        """Copy the open database to the single file ``target`` (0600). Raises ``StoreError``."""
        await self.invocations.flush()
        await asyncio.to_thread(copy_database, self.path, target)

    async def close(self) -> None:
        """Write what is queued, end the background tasks, close the database."""
        self._closing.set()
        self.retention.stop()
        try:
            await self.invocations.stop()
            if self._pruning is not None:
                await self._pruning  # not cancelled: the driver leaks a connection that is cancelled as it opens
        finally:
            await self._database.close()

    async def _prune_now_and_then(self) -> None:
        while not self._closing.is_set():
            try:
                await self.retention.prune()
                if self.pruned is not None:
                    await self.pruned()
            except StoreError as error:
                _log.warning("old log rows were not pruned: %s", error)
            try:
                async with asyncio.timeout(PRUNE_SECONDS):
                    await self._closing.wait()
            except TimeoutError:
                continue


__all__ = ["Duplicate", "Invalid", "NotFound", "Resource", "Store", "StoreError"]
