"""What came into the logs since somebody last looked: rows of the invocation and audit logs, lines of a server's log.

Owns how far was told. Never waits: whoever asks decides when. A store in trouble has no news.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec

from coffer_common.api import AuditRow, InvocationRow, LogAppended
from coffer_supervisor.management import logs
from coffer_supervisor.management.request import Management
from coffer_supervisor.management.servers import tail
from coffer_supervisor.store import StoreError
from coffer_supervisor.store.paging import MAX_LISTED

MOST_LINES = 10_000
"""Of one server's log at a time; of more, the last ones."""


class News:
    """For one who listens. ``server_log``: the server whose log lines are wanted."""

    def __init__(self, management: Management, *, invocations: bool, audit: bool, server_log: str | None) -> None:
        self._store = management.store
        self._invocations, self._audit = invocations, audit
        self._server = server_log
        self._path = None if server_log is None else management.home.upstream_log(server_log)
        self._end: int | None = None
        self._last: dict[str, int] = {}

    async def take(self) -> list[tuple[str, msgspec.Struct]]:
        """The events, by name: each log's in their order; none the first time."""
        events: list[tuple[str, msgspec.Struct]] = []
        try:
            if self._invocations:
                await self._store.invocations.try_flush()
                after, limit = self._since("invocation")
                calls = await self._store.invocations.list(after=after, limit=limit)
                events += self._told("invocation", [logs.invocation_row(entry) for entry in reversed(calls)])
            if self._audit:
                after, limit = self._since("audit")
                changes = await self._store.audit.list(after=after, limit=limit)
                events += self._told("audit", [logs.audit_row(entry) for entry in reversed(changes)])
        except StoreError:
            pass
        return [*events, *await self._lines()]

    def _since(self, name: str) -> tuple[int | None, int]:
        """After which id, and how many; the newest alone where it is not known yet."""
        return (self._last[name], MAX_LISTED) if name in self._last else (None, 1)

    def _told(self, name: str, rows: Sequence[AuditRow | InvocationRow]) -> list[tuple[str, msgspec.Struct]]:
        first = name not in self._last
        self._last[name] = rows[-1].id if rows else self._last.get(name, 0)
        return [] if first else [(name, row) for row in rows]

    async def _lines(self) -> list[tuple[str, msgspec.Struct]]:
        if self._path is None or self._server is None:
            return []
        if self._end is not None and await asyncio.to_thread(_size, self._path) == self._end:
            return []
        first = self._end is None
        lines, end = await asyncio.to_thread(tail, self._path, MOST_LINES, self._end or 0)
        self._end = end
        return [] if first or not lines else [("log", LogAppended(server=self._server, lines=lines, end=end))]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
