"""The invocation log, and how long the log tables keep their rows."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create both tables; the audit log keeps a year, invocations a month."""
    op.create_table(
        "mcp_invocations",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("when", sa.Integer(), nullable=False),
        sa.Column("server", sa.String(), nullable=False),
        sa.Column("type", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("duration_ms", sa.Float(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("error", sa.String(), nullable=True),
        sa.Column("session", sa.String(), nullable=True),
        sa.Column("client", sa.String(), nullable=True),
        sa.Column("trace_id", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_mcp_invocations"),
    )
    op.create_index("ix_mcp_invocations_when", "mcp_invocations", ["when"])
    op.create_index("ix_mcp_invocations_server_when", "mcp_invocations", ["server", "when"])
    policies = op.create_table(
        "retention_policy",
        sa.Column("table_name", sa.String(), nullable=False),
        sa.Column("days", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("table_name", name="pk_retention_policy"),
    )
    op.bulk_insert(
        policies,
        [{"table_name": "audit_log", "days": 365}, {"table_name": "mcp_invocations", "days": 30}],
    )


def downgrade() -> None:
    """Drop both tables; resources, preferences and the audit log stay as they are."""
    op.drop_table("retention_policy")
    op.drop_table("mcp_invocations")
