"""The tables of ``coffer.db``, as declarative models.

Owns names, types and indexes; the migrations bring a database to this shape, and a test compares the two.
Never reads or writes a row. Times are integers: microseconds since 1970-01-01T00:00:00Z. JSON is text.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy import Float, Index, MetaData, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

HEAD_REVISION: Final = "0002"
"""The newest migration; known here so that an up-to-date database is opened without importing Alembic."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def to_micros(when: datetime) -> int:
    """An aware time as it is stored. Exact."""
    return (when - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """A stored time as an aware one in UTC. Exact."""
    return _EPOCH + timedelta(microseconds=micros)


class Base(DeclarativeBase):
    """Names every constraint and index by rule, so that a migration can address it."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class ResourceRow(Base):
    """One managed thing of any kind; ``config`` is JSON in the schema of that kind."""

    __tablename__ = "resource"
    __table_args__ = (UniqueConstraint("kind", "name"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str]
    name: Mapped[str]
    description: Mapped[str]
    config: Mapped[str]
    enabled: Mapped[bool]
    created_at: Mapped[int]
    updated_at: Mapped[int]


class PreferenceRow(Base):
    """Whether one capability of one server is switched on, and when it was seen. Outlives its
    disappearance.
    """

    __tablename__ = "capability_preference"
    __table_args__ = (UniqueConstraint("server", "type", "key"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    server: Mapped[str]
    type: Mapped[str]
    key: Mapped[str]
    enabled: Mapped[bool]
    first_seen_at: Mapped[int]
    last_seen_at: Mapped[int]


class AuditRow(Base):
    """One lifecycle change; ``details`` is a JSON object without values of configuration."""

    __tablename__ = "audit_log"
    __table_args__ = (Index(None, "when"), Index(None, "name", "when"))

    id: Mapped[int] = mapped_column(primary_key=True)
    when: Mapped[int]
    event: Mapped[str]
    kind: Mapped[str | None]
    name: Mapped[str | None]
    actor: Mapped[str]
    details: Mapped[str]


class InvocationRow(Base):
    """One tool call, resource read or prompt get; never its arguments or result. Duration in milliseconds."""

    __tablename__ = "mcp_invocations"
    __table_args__ = (Index(None, "when"), Index(None, "server", "when"))

    id: Mapped[int] = mapped_column(primary_key=True)
    when: Mapped[int]
    server: Mapped[str]
    type: Mapped[str]
    key: Mapped[str]
    duration_ms: Mapped[float] = mapped_column(Float)
    status: Mapped[str]
    error: Mapped[str | None]
    session: Mapped[str | None]
    client: Mapped[str | None]
    trace_id: Mapped[str | None]


class RetentionRow(Base):
    """How many days a log table keeps its rows; NULL: for ever."""

    __tablename__ = "retention_policy"

    table_name: Mapped[str] = mapped_column(primary_key=True)
    days: Mapped[int | None]
