"""Resources of every kind, through one path.

Owns the ``resource`` table and the check of names and configurations against the registry of kinds
(``coffer_common.resources``). Each change writes its audit row in the same transaction. Never knows what a
kind is for, and never sees a secret: configurations hold references.
"""

import builtins
import difflib
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final, cast

import msgspec
from sqlalchemy import RowMapping, delete, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from coffer_common.names import SERVER_NAME_RULE, is_server_name
from coffer_common.resources import CONFIG_TYPES, KINDS, Kind
from coffer_supervisor.store.audit import Actor, Now, write_audit
from coffer_supervisor.store.engine import Database
from coffer_supervisor.store.errors import Duplicate, Invalid, NotFound, StoreError
from coffer_supervisor.store.models import PreferenceRow, ResourceRow, from_micros, to_micros

MAX_DESCRIPTION: Final = 2000
_encoder: Final = msgspec.json.Encoder()
_RULES: Final[Mapping[str, str]] = {
    "isolation": "it is auto, session or shared",
    "url": "it begins with http:// or https://, and has no blanks",
}


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """One managed thing. ``config`` is the Struct that ``CONFIG_TYPES`` names for ``kind``. Times are in
    UTC.
    """

    kind: Kind
    name: str
    description: str
    config: Any
    enabled: bool
    created_at: datetime
    updated_at: datetime


class Unreadable(msgspec.Struct, frozen=True, kw_only=True):
    """A stored resource whose configuration does not fit its kind's schema, and why."""

    kind: str
    name: str
    reason: str


def checked_config(kind: str, name: str, config: Any) -> Any:
    """``config`` (a mapping as JSON has it, or the kind's Struct) as the kind's Struct, every rule checked.

    Raises ``Invalid`` (``unknown_kind``, ``invalid_name``, ``invalid_config``).
    """
    if kind not in KINDS:
        raise Invalid("unknown_kind", f"there is no kind of resource named {kind!r}", f"Kinds: {', '.join(KINDS)}.")
    if not is_server_name(name):
        raise Invalid("invalid_name", f"{name!r} cannot name a resource", f"A name is {SERVER_NAME_RULE}.")
    try:
        return msgspec.convert(msgspec.to_builtins(config), CONFIG_TYPES[kind])
    except (msgspec.ValidationError, TypeError) as error:
        raise Invalid(
            "invalid_config",
            f"the configuration of the {noun(kind)} {name} is not valid ({_reworded(error)})",
            "Nothing has been stored.",
        ) from error


def _reworded(error: Exception) -> str:
    """The field first, and the rule as a person puts it; not where it lies in JSON that nobody wrote."""
    said, at, where = str(error).partition(" - at `$.")
    field = where.rstrip("`")
    return f"{field}: {_RULES.get(field, said)}" if at else said


def changed_fields(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Names of the top-level fields that differ, sorted. Names only: values may be private."""
    return sorted(field for field in {*before, *after} if before.get(field) != after.get(field))


class ResourceStore:
    """Create, read, update, delete. Every method raises ``StoreError`` when the database itself is at
    fault.
    """

    def __init__(self, database: Database, now: Now) -> None:
        self._database = database
        self._now = now

    async def create(
        self, kind: Kind, name: str, config: Any, *, description: str = "", enabled: bool = True, actor: Actor
    ) -> Resource:
        """Store a new resource. Raises ``Invalid`` or ``Duplicate``, with nothing written."""
        typed = checked_config(kind, name, config)
        _check_description(kind, name, description)
        now = self._now()
        async with self._database.write() as connection:
            try:
                await connection.execute(
                    insert(ResourceRow).values(
                        kind=kind,
                        name=name,
                        description=description,
                        config=_encoder.encode(typed).decode(),
                        enabled=enabled,
                        created_at=to_micros(now),
                        updated_at=to_micros(now),
                    )
                )
            except IntegrityError as error:
                raise Duplicate(
                    "duplicate",
                    f"the {noun(kind)} {name} exists already",
                    "Choose another name, or update or remove the one that exists.",
                ) from error
            await write_audit(
                connection,
                now,
                "resource.created",
                kind=kind,
                name=name,
                actor=actor,
                details={"enabled": enabled, "fields": sorted(msgspec.to_builtins(typed))},
            )
        made = {"kind": kind, "name": name, "description": description, "config": typed, "enabled": enabled}
        return Resource(**made, created_at=now, updated_at=now)

    async def get(self, kind: Kind, name: str) -> Resource:
        """Raises ``NotFound``, or ``Invalid`` (``unreadable_config``) if what is stored does not fit its
        schema.
        """
        async with self._database.read() as connection:
            return _resource(dict(await _row(connection, kind, name)))

    async def list(self, kind: Kind | None = None, *, enabled: bool | None = None) -> builtins.list[Resource]:
        """All that can be read, by kind and name. Those that cannot are named by ``unreadable``."""
        return [found for found in await self._all(kind, enabled) if isinstance(found, Resource)]

    async def unreadable(self) -> builtins.list[Unreadable]:
        """Stored resources whose configuration does not fit its schema (written by hand, or by another
        version).
        """
        return [found for found in await self._all(None, None) if isinstance(found, Unreadable)]

    async def _all(self, kind: Kind | None, enabled: bool | None) -> builtins.list[Resource | Unreadable]:
        query = select(ResourceRow.__table__).order_by(ResourceRow.kind, ResourceRow.name)
        if kind is not None:
            query = query.where(ResourceRow.kind == kind)
        if enabled is not None:
            query = query.where(ResourceRow.enabled == enabled)
        async with self._database.read() as connection:
            rows = (await connection.execute(query)).mappings().all()
        found: list[Resource | Unreadable] = []
        for row in rows:
            try:
                found.append(_resource(dict(row)))
            except Invalid as error:
                found.append(Unreadable(kind=row["kind"], name=row["name"], reason=error.message))
        return found

    async def update(
        self, kind: Kind, name: str, *, config: Any = None, description: str | None = None, actor: Actor
    ) -> Resource:
        """Replace the whole configuration, the description, or both; None leaves as is.

        Raises ``NotFound`` or ``Invalid``, with nothing written. An update that changes nothing writes
        nothing.
        """
        typed = None if config is None else checked_config(kind, name, config)
        if description is not None:
            _check_description(kind, name, description)

        def changes(row: RowMapping) -> tuple[dict[str, Any], str, dict[str, Any]]:
            values: dict[str, Any] = {}
            fields: list[str] = []
            if typed is not None:
                after = _encoder.encode(typed).decode()
                if after != row["config"]:
                    values["config"] = after
                    fields = changed_fields(_json_object(row["config"]), _json_object(after))
            if description is not None and description != row["description"]:
                values["description"] = description
                fields.append("description")
            return values, "resource.updated", {"changed": fields}

        return await self._change(kind, name, actor, changes)

    async def enable(self, kind: Kind, name: str, *, actor: Actor) -> Resource:
        """Switch on; writes nothing if it is on already. Raises ``NotFound``."""
        return await self._switch(kind, name, True, actor)

    async def disable(self, kind: Kind, name: str, *, actor: Actor) -> Resource:
        """Switch off; writes nothing if it is off already. Raises ``NotFound``."""
        return await self._switch(kind, name, False, actor)

    async def delete(self, kind: Kind, name: str, *, actor: Actor) -> None:
        """Remove it, and with a server what was chosen about its capabilities. Raises ``NotFound``."""
        async with self._database.write() as connection:
            await _row(connection, kind, name)
            await connection.execute(delete(ResourceRow).where(ResourceRow.kind == kind, ResourceRow.name == name))
            if kind == "mcp_server":
                await connection.execute(delete(PreferenceRow).where(PreferenceRow.server == name))
            await write_audit(connection, self._now(), "resource.deleted", kind=kind, name=name, actor=actor)

    async def _switch(self, kind: Kind, name: str, enabled: bool, actor: Actor) -> Resource:
        def changes(row: RowMapping) -> tuple[dict[str, Any], str, dict[str, Any]]:
            values = {} if row["enabled"] == enabled else {"enabled": enabled}
            return values, "resource.enabled" if enabled else "resource.disabled", {}

        return await self._change(kind, name, actor, changes)

    async def _change(
        self,
        kind: Kind,
        name: str,
        actor: Actor,
        changes: Callable[[RowMapping], tuple[dict[str, Any], str, dict[str, Any]]],
    ) -> Resource:
        now = self._now()
        async with self._database.write() as connection:
            row = await _row(connection, kind, name)
            values, event, details = changes(row)
            if values:
                values["updated_at"] = to_micros(now)
                await connection.execute(
                    update(ResourceRow).where(ResourceRow.kind == kind, ResourceRow.name == name).values(**values)
                )
                await write_audit(connection, now, event, kind=kind, name=name, actor=actor, details=details)
            return _resource({**row, **values})


async def _row(connection: AsyncConnection, kind: str, name: str) -> RowMapping:
    query = select(ResourceRow.__table__).where(ResourceRow.kind == kind, ResourceRow.name == name)
    row = (await connection.execute(query)).mappings().first()
    if row is None:
        names = (await connection.execute(select(ResourceRow.name).where(ResourceRow.kind == kind))).scalars()
        raise not_found(kind, name, names)
    return row


def not_found(kind: str, name: str, names: Iterable[str] = ()) -> NotFound:
    """The error for a kind and name that nothing has; one of ``names`` that is like it may have been meant."""
    what = "mcp" if kind == "mcp_server" else kind
    meant = "".join(f"Did you mean {close}? " for close in difflib.get_close_matches(name, names, 1))
    hint = f"{meant}See what there is with: coffer {what} list"
    return NotFound("not_found", f"there is no {noun(kind)} {name}", hint)


def noun(kind: str) -> str:
    """What people call a resource of a kind."""
    return {"mcp_server": "server"}.get(kind, kind)


def _check_description(kind: str, name: str, description: str) -> None:
    if len(description) > MAX_DESCRIPTION:
        raise Invalid(
            "invalid_description",
            f"the description of the {noun(kind)} {name} has {len(description)} characters",
            f"At most {MAX_DESCRIPTION} are kept.",
        )


def _json_object(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}  # what was stored cannot be read; all of the new counts as changed


def _resource(row: dict[str, Any]) -> Resource:
    kind, name = row["kind"], row["name"]
    try:
        config = msgspec.json.decode(row["config"], type=CONFIG_TYPES[kind])
    except (msgspec.DecodeError, KeyError) as error:
        reason = f"its kind {kind!r} is unknown" if isinstance(error, KeyError) else str(error)
        raise Invalid(
            "unreadable_config",
            f"the stored configuration of the {noun(kind)} {name} cannot be read ({reason})",
            "Update it with a full configuration, or remove it.",
        ) from error
    return Resource(
        kind=cast(Kind, kind),
        name=name,
        description=row["description"],
        config=config,
        enabled=bool(row["enabled"]),
        created_at=from_micros(row["created_at"]),
        updated_at=from_micros(row["updated_at"]),
    )


__all__ = [
    "Resource",
    "ResourceStore",
    "StoreError",
    "Unreadable",
    "changed_fields",
    "checked_config",
    "not_found",
]
