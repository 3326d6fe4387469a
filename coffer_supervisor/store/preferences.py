"""What the user chose about each capability, and when each was seen.

Owns ``capability_preference``: the only thing stored about capabilities. Never holds a schema or a
description, and never forgets a choice while its server exists: a key that disappears keeps its row.
"""

from collections.abc import Iterable
from typing import Final

from sqlalchemy import bindparam, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from coffer_supervisor.store.audit import Actor, Now, write_audit
from coffer_supervisor.store.engine import Database
from coffer_supervisor.store.errors import NotFound
from coffer_supervisor.store.models import PreferenceRow, ResourceRow, to_micros
from coffer_supervisor.store.resources import not_found

Capability = tuple[str, str]
"""Type (``tool``, ``resource``, ``template`` or ``prompt``) and the upstream's own name, of a resource its URI."""

_AUDITED_KEYS: Final = 200  # of one discovery; beyond that the entry says how many more there were


class PreferenceStore:
    """Every method raises ``StoreError`` when the database itself is at fault."""

    def __init__(self, database: Database, now: Now) -> None:
        self._database = database
        self._now = now

    async def load(self, server: str) -> dict[Capability, bool]:
        """Whether each capability ever seen of ``server`` is switched on."""
        async with self._database.read() as connection:
            return await _known(connection, server)

    async def load_all(self) -> dict[str, dict[Capability, bool]]:
        """The same for every server that has any."""
        query = select(PreferenceRow.server, PreferenceRow.type, PreferenceRow.key, PreferenceRow.enabled)
        found: dict[str, dict[Capability, bool]] = {}
        async with self._database.read() as connection:
            for server, kind, key, enabled in (await connection.execute(query)).all():
                found.setdefault(server, {})[kind, key] = enabled
        return found

    async def seen(self, server: str, entries: Iterable[Capability], auto_enable: bool) -> list[Capability]:
        """Record a whole catalogue in one transaction; returns those never seen before, in the order given.

        New ones are switched on or off by ``auto_enable`` and audited together, as one entry. Raises
        ``NotFound`` for a server that is not (or no longer) registered.
        """
        now = self._now()
        catalogue = list(dict.fromkeys(entries))
        async with self._database.write() as connection:
            await _require_server(connection, server)
            known = await _known(connection, server)
            new = [entry for entry in catalogue if entry not in known]
            await _touch(connection, server, [entry for entry in catalogue if entry in known], to_micros(now))
            if new:
                await _insert(connection, server, new, auto_enable, to_micros(now))
                details = {
                    "enabled": auto_enable,
                    "count": len(new),
                    "capabilities": [{"type": kind, "key": key} for kind, key in new[:_AUDITED_KEYS]],
                }
                await write_audit(
                    connection,
                    now,
                    "capability.discovered",
                    kind="mcp_server",
                    name=server,
                    actor="system",
                    details=details,
                )
        return new

    async def set(self, server: str, type: str, key: str, enabled: bool, *, actor: Actor) -> bool:
        """Switch one capability on or off; returns whether that changed anything (if not, nothing is
        written).

        Raises ``NotFound`` for an unknown server or a capability that was never seen.
        """
        now = self._now()
        async with self._database.write() as connection:
            await _require_server(connection, server)
            known = await _known(connection, server)
            if (type, key) not in known:
                raise NotFound(
                    "unknown_capability",
                    f"the server {server} has never listed a {type} {key!r}",
                    f"See what it lists with: coffer mcp show {server} (coffer mcp refresh {server} reads it again)",
                )
            if known[type, key] == enabled:
                return False
            await connection.execute(
                update(PreferenceRow)
                .where(PreferenceRow.server == server, PreferenceRow.type == type, PreferenceRow.key == key)
                .values(enabled=enabled)
            )
            await write_audit(
                connection,
                now,
                "capability.enabled" if enabled else "capability.disabled",
                kind="mcp_server",
                name=server,
                actor=actor,
                details={"type": type, "key": key},
            )
        return True


async def _require_server(connection: AsyncConnection, server: str) -> None:
    query = select(ResourceRow.id).where(ResourceRow.kind == "mcp_server", ResourceRow.name == server)
    if (await connection.execute(query)).first() is None:
        raise not_found("mcp_server", server)


async def _known(connection: AsyncConnection, server: str) -> dict[Capability, bool]:
    query = select(PreferenceRow.type, PreferenceRow.key, PreferenceRow.enabled).where(PreferenceRow.server == server)
    return {(kind, key): enabled for kind, key, enabled in (await connection.execute(query)).all()}


async def _touch(connection: AsyncConnection, server: str, entries: list[Capability], now: int) -> None:
    if not entries:
        return
    statement = (
        update(PreferenceRow)
        .where(
            PreferenceRow.server == server,
            PreferenceRow.type == bindparam("of_type"),
            PreferenceRow.key == bindparam("of_key"),
        )
        .values(last_seen_at=now)
    )
    await connection.execute(statement, [{"of_type": kind, "of_key": key} for kind, key in entries])


async def _insert(connection: AsyncConnection, server: str, entries: list[Capability], enabled: bool, now: int) -> None:
    rows = [
        {
            "server": server,
            "type": kind,
            "key": key,
            "enabled": enabled,
            "first_seen_at": now,
            "last_seen_at": now,
        }
        for kind, key in entries
    ]
    await connection.execute(insert(PreferenceRow), rows)
