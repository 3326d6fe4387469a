"""How long the log tables keep their rows.

Owns ``retention_policy`` and the pruning by it, in transactions so small that no other write waits long.
Never touches a table that is not a log.
"""

import asyncio
import builtins
from datetime import datetime, timedelta
from typing import Annotated, Final, Literal

import msgspec
from sqlalchemy import delete, select
from sqlalchemy.dialects.sqlite import insert

from coffer_supervisor.store.audit import Actor, Now, write_audit
from coffer_supervisor.store.engine import Database
from coffer_supervisor.store.errors import Invalid, NotFound
from coffer_supervisor.store.models import AuditRow, InvocationRow, RetentionRow, to_micros

LogTable = Literal["audit_log", "mcp_invocations"]
DEFAULT_DAYS: Final[dict[LogTable, int]] = {"audit_log": 365, "mcp_invocations": 30}
MAX_DAYS: Final = 36_500
_ROWS: Final[dict[LogTable, type[AuditRow] | type[InvocationRow]]] = {
    "audit_log": AuditRow,
    "mcp_invocations": InvocationRow,
}
_BATCH: Final = 500


class RetentionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """``days`` a row of ``table`` is kept; None: for ever."""

    table: LogTable
    days: Annotated[int, msgspec.Meta(ge=1, le=MAX_DAYS)] | None


class Retention:
    """Every method raises ``StoreError`` when the database itself is at fault."""

    def __init__(self, database: Database, now: Now, *, batch: int = _BATCH) -> None:
        self._database = database
        self._now = now
        self._batch = batch
        self._stopped = False

    async def list(self) -> builtins.list[RetentionPolicy]:
        """The policy of each log table, by name."""
        async with self._database.read() as connection:
            rows = (await connection.execute(select(RetentionRow.table_name, RetentionRow.days))).all()
        stored: dict[str, int | None] = {name: days for name, days in rows}
        return [
            RetentionPolicy(table=table, days=stored.get(table, days)) for table, days in sorted(DEFAULT_DAYS.items())
        ]

    async def set(self, table: str, days: int | None, *, actor: Actor) -> RetentionPolicy:
        """Keep rows of ``table`` for ``days``, or for ever (None). Takes effect at the next pruning.

        Raises ``NotFound`` for a table that is no log, ``Invalid`` for days out of 1 to ``MAX_DAYS``.
        """
        if table not in DEFAULT_DAYS:
            raise NotFound("not_found", f"there is no log table {table!r}", f"Log tables: {', '.join(DEFAULT_DAYS)}.")
        if days is not None and not 1 <= days <= MAX_DAYS:
            raise Invalid("invalid_days", f"{days} days is not possible", f"Give 1 to {MAX_DAYS} days, or 'forever'.")
        now = self._now()
        async with self._database.write() as connection:
            query = select(RetentionRow.days).where(RetentionRow.table_name == table)
            before = (await connection.execute(query)).scalar_one_or_none()
            statement = insert(RetentionRow).values(table_name=table, days=days)
            await connection.execute(
                statement.on_conflict_do_update(index_elements=["table_name"], set_={"days": days})
            )
            await write_audit(
                connection,
                now,
                "retention.changed",
                kind="retention",
                name=table,
                actor=actor,
                details={"before": before, "after": days},
            )
        return RetentionPolicy(table=table, days=days)

    def stop(self) -> None:
        """End a pruning after the batch under way; the rest goes at the next start."""
        self._stopped = True

    async def prune(self) -> dict[LogTable, int]:
        """Delete what is older than its policy; returns how many rows of each table went."""
        gone: dict[LogTable, int] = {}
        for policy in await self.list():
            gone[policy.table] = 0
            if policy.days is not None:
                gone[policy.table] = await self._prune(policy.table, self._now() - timedelta(days=policy.days))
        return gone

    async def _prune(self, table: LogTable, until: datetime) -> int:
        row = _ROWS[table]
        oldest = select(row.id).where(row.when < to_micros(until)).order_by(row.when).limit(self._batch)
        gone = 0
        while True:
            async with self._database.write() as connection:
                count = (await connection.execute(delete(row).where(row.id.in_(oldest)))).rowcount
            gone += count
            if count < self._batch or self._stopped:
                return gone
            await asyncio.sleep(0)  # whoever waits for a turn gets it
