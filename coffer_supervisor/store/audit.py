"""The audit log: a row for every lifecycle change, written with the change itself.

Owns ``audit_log``. Never holds a value of configuration, let alone a secret: ``details`` names what changed.
"""

import builtins
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, Literal

import msgspec
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from coffer_supervisor.store.engine import Database
from coffer_supervisor.store.models import AuditRow, to_micros
from coffer_supervisor.store.paging import read_page

Actor = Literal["cli", "api", "ui", "system"]
Now = Callable[[], datetime]

_encoder: Final = msgspec.json.Encoder()
_details: Final = msgspec.json.Decoder(dict[str, Any])


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One lifecycle change. ``kind`` and ``name`` are None for what concerns no resource (the daemon
    itself).
    """

    id: int
    when: datetime
    event: str
    kind: str | None
    name: str | None
    actor: str
    details: dict[str, Any]


async def write_audit(
    connection: AsyncConnection,
    when: datetime,
    event: str,
    *,
    kind: str | None,
    name: str | None,
    actor: Actor,
    details: Mapping[str, Any] | None = None,
) -> None:
    """Add a row within the transaction of the change it tells of."""
    await connection.execute(
        insert(AuditRow).values(
            when=to_micros(when),
            event=event,
            kind=kind,
            name=name,
            actor=actor,
            details=_encoder.encode(details or {}).decode(),
        )
    )


class AuditLog:
    """Reads the log, and writes entries that have no other row to go with (daemon started, secret
    revealed).
    """

    def __init__(self, database: Database, now: Now) -> None:
        self._database = database
        self._now = now

    async def add(
        self,
        event: str,
        *,
        kind: str | None = None,
        name: str | None = None,
        actor: Actor,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        """Write one entry in a transaction of its own. Raises ``StoreError``."""
        async with self._database.write() as connection:
            await write_audit(connection, self._now(), event, kind=kind, name=name, actor=actor, details=details)

    async def list(
        self,
        *,
        kind: str | None = None,
        name: str | None = None,
        event: str | None = None,
        actor: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        before: int | None = None,
        after: int | None = None,
        limit: int = 100,
    ) -> builtins.list[AuditEntry]:
        """Entries, newest first, at most ``limit`` (1 to ``MAX_LISTED``). ``since`` is inclusive, ``until``
        is not.

        ``before``: only entries with a smaller ``id``; the last ``id`` of one page brings the next.
        ``after``: only those with a larger one, and of them the oldest count, so that none is missed by who follows.
        """
        wanted = {"kind": kind, "name": name, "event": event, "actor": actor}
        rows = await read_page(
            self._database, AuditRow, wanted, since=since, until=until, before=before, after=after, limit=limit
        )
        return [AuditEntry(**{**row, "details": _details.decode(row["details"])}) for row in rows]
