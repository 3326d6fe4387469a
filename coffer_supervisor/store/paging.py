"""One page of a log table: narrowed by its columns, by time and by where another page ended.

Owns the order and size of pages. Never knows what a row means.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from sqlalchemy import select

from coffer_supervisor.store.engine import Database
from coffer_supervisor.store.models import AuditRow, InvocationRow, from_micros, to_micros

MAX_LISTED: Final = 1000


async def read_page(
    database: Database,
    row: type[AuditRow] | type[InvocationRow],
    wanted: Mapping[str, str | None],
    *,
    since: datetime | None,
    until: datetime | None,
    before: int | None,
    after: int | None,
    limit: int,
) -> list[dict[str, Any]]:
    """Rows as mappings, newest first, at most ``limit`` (1 to ``MAX_LISTED``). ``wanted``: column to value, None for
    any. ``since`` is inclusive, ``until`` is not. ``before``: only smaller ids; ``after``: only larger ones, and of
    them the oldest count, so that none is missed by who follows.
    """
    order = row.id.desc() if after is None else row.id.asc()
    query = select(row.__table__).order_by(order).limit(max(1, min(limit, MAX_LISTED)))
    for column, value in wanted.items():
        if value is not None:
            query = query.where(getattr(row, column) == value)
    if since is not None:
        query = query.where(row.when >= to_micros(since))
    if until is not None:
        query = query.where(row.when < to_micros(until))
    if before is not None:
        query = query.where(row.id < before)
    if after is not None:
        query = query.where(row.id > after)
    async with database.read() as connection:
        rows = (await connection.execute(query)).mappings().all()
    return [{**found, "when": from_micros(found["when"])} for found in (rows if after is None else rows[::-1])]
