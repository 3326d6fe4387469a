"""Handlers of what Coffer wrote down: audit, invocations, figures, and how long they are kept."""

from datetime import datetime, timedelta
from typing import TypedDict, get_args

from coffer_common import clock
from coffer_common.api import (
    AuditList,
    AuditRow,
    InvocationList,
    InvocationRow,
    Pruned,
    RetentionList,
    RetentionPolicy,
    SetRetention,
    StatsList,
    StatsRow,
)
from coffer_supervisor import leftlogs
from coffer_supervisor.management.errors import missing
from coffer_supervisor.management.queries import INVOCATION_TYPES
from coffer_supervisor.management.request import Answer, Request
from coffer_supervisor.store.audit import AuditEntry
from coffer_supervisor.store.invocations import InvocationEntry, Status


async def audit(request: Request) -> Answer:
    """Lifecycle changes, newest first."""
    entries = await request.management.store.audit.list(
        kind=request.query.get("kind"),
        name=request.query.get("name"),
        event=request.query.get("event"),
        actor=request.query.get("actor"),
        **_page(request),
    )
    return AuditList(audit=[audit_row(entry) for entry in entries])


def audit_row(entry: AuditEntry) -> AuditRow:
    """One change as the API shows it."""
    return AuditRow(
        id=entry.id,
        when=clock.rfc3339_millis(entry.when),
        event=entry.event,
        kind=entry.kind,
        name=entry.name,
        actor=entry.actor,
        details=entry.details,
    )


async def invocations(request: Request) -> Answer:
    """Calls, reads and gets of all servers, newest first."""
    return await _invocations(request, request.query.get("server"))


async def server_invocations(request: Request) -> Answer:
    """The same of one server, which may be gone by now."""
    return await _invocations(request, request.name)


async def _invocations(request: Request, server: str | None) -> Answer:
    log = request.management.store.invocations
    await log.try_flush()  # whoever has just called wants to see it
    entries = await log.list(
        server=server,
        type=request.word("type", INVOCATION_TYPES),
        key=request.query.get("key"),
        status=request.word("status", get_args(Status)),
        session=request.query.get("session"),
        client=request.query.get("client"),
        trace_id=request.query.get("trace_id"),
        **_page(request),
    )
    return InvocationList(invocations=[invocation_row(entry) for entry in entries])


def invocation_row(entry: InvocationEntry) -> InvocationRow:
    """One call as the API shows it."""
    return InvocationRow(
        id=entry.id,
        when=clock.rfc3339_millis(entry.when),
        server=entry.server,
        type=entry.type,
        key=entry.key,
        duration_seconds=round(entry.duration_ms / 1000, 6),
        status=entry.status,
        error=entry.error,
        session=entry.session,
        client=entry.client,
        trace_id=entry.trace_id,
    )


class _Page(TypedDict):
    since: datetime | None
    until: datetime | None
    before: int | None
    after: int | None
    limit: int


def _page(request: Request) -> _Page:
    """Which part of a log is wanted."""
    return {
        "since": request.moment("since"),
        "until": request.moment("until"),
        "before": request.number("before", 0, most=2**62) or None,
        "after": request.number("after", 0, least=0, most=2**62) if "after" in request.query else None,
        "limit": request.number("limit", 100),
    }


async def policies(request: Request) -> Answer:
    """How long each log table keeps its rows."""
    found = await request.management.store.retention.list()
    return RetentionList(policies=[RetentionPolicy(table=policy.table, days=policy.days) for policy in found])


async def policy(request: Request) -> Answer:
    """The same of one table."""
    for found in await request.management.store.retention.list():
        if found.table == request.params["table"]:
            return RetentionPolicy(table=found.table, days=found.days)
    raise missing(f"log table {request.params['table']!r}", "See: coffer retention list")


async def set_policy(request: Request) -> Answer:
    """Changes it; audited. Takes effect at the next pruning."""
    days = request.decode(SetRetention).days
    done = await request.management.store.retention.set(request.params["table"], days, actor=request.actor)
    return RetentionPolicy(table=done.table, days=done.days)


async def prune(request: Request) -> Answer:
    """Removes now what is older than its policy; of servers that are gone, their log files too (``server_logs``)."""
    store, home = request.management.store, request.management.home
    gone: dict[str, int] = {table: count for table, count in (await store.retention.prune()).items()}
    return Pruned(pruned={**gone, "server_logs": await leftlogs.remove(store, home.logs)})


async def stats(request: Request) -> Answer:
    """Calls, errors and durations by capability, since a time (default: 24 hours ago)."""
    since = request.moment("since") or clock.now() - timedelta(hours=24)
    log = request.management.store.invocations
    await log.try_flush()
    found = await log.stats(since, server=request.query.get("server"))
    rows = [
        StatsRow(
            server=row.server,
            type=row.type,
            key=row.key,
            calls=row.calls,
            errors=row.errors,
            p50_seconds=row.p50_ms / 1000,
            p95_seconds=row.p95_ms / 1000,
        )
        for row in found
    ]
    return StatsList(since=clock.rfc3339(since), stats=rows)
