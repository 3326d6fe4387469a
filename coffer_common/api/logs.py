"""What Coffer wrote down: audit, invocations, figures, and how long they are kept."""

from typing import Any, Final, Literal

from coffer_common.api.shape import Shape

LogTable = Literal["audit_log", "mcp_invocations"]
LOG_TABLES: Final[tuple[LogTable, ...]] = ("audit_log", "mcp_invocations")


class AuditRow(Shape, frozen=True, kw_only=True):
    id: int
    when: str
    event: str
    kind: str | None
    name: str | None
    actor: str
    details: dict[str, Any] = {}


class AuditList(Shape, frozen=True, kw_only=True):
    audit: list[AuditRow]


class InvocationRow(Shape, frozen=True, kw_only=True):
    """One tool call, resource read or prompt get; never its arguments or result."""

    id: int
    when: str
    server: str
    type: str
    key: str
    duration_seconds: float
    status: str
    error: str | None = None
    session: str | None = None
    client: str | None = None
    trace_id: str | None = None


class InvocationList(Shape, frozen=True, kw_only=True):
    invocations: list[InvocationRow]


class RetentionPolicy(Shape, frozen=True, kw_only=True):
    """``days`` None: for ever."""

    table: LogTable
    days: int | None


class RetentionList(Shape, frozen=True, kw_only=True):
    policies: list[RetentionPolicy]


class SetRetention(Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    days: int | None


class Pruned(Shape, frozen=True, kw_only=True):
    """Rows removed, by table; ``server_logs``: log files of servers that are no longer registered."""

    pruned: dict[str, int]


class StatsRow(Shape, frozen=True, kw_only=True):
    """Calls of one capability since the time asked for. Durations in seconds."""

    server: str
    type: str
    key: str
    calls: int
    errors: int
    p50_seconds: float | None = None
    p95_seconds: float | None = None


class StatsList(Shape, frozen=True, kw_only=True):
    since: str
    stats: list[StatsRow]
