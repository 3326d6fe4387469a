"""Resources, capability preferences and the audit log."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the three tables."""
    op.create_table(
        "resource",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("description", sa.String(), nullable=False),
        sa.Column("config", sa.String(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Integer(), nullable=False),
        sa.Column("updated_at", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_resource"),
        sa.UniqueConstraint("kind", "name", name="uq_resource_kind_name"),
    )
    op.create_table(
        "capability_preference",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("server", sa.String(), nullable=False),
        sa.Column("type", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("first_seen_at", sa.Integer(), nullable=False),
        sa.Column("last_seen_at", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_capability_preference"),
        sa.UniqueConstraint("server", "type", "key", name="uq_capability_preference_server_type_key"),
    )
    op.create_table(
        "audit_log",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("when", sa.Integer(), nullable=False),
        sa.Column("event", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=True),
        sa.Column("name", sa.String(), nullable=True),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("details", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit_log"),
    )
    op.create_index("ix_audit_log_when", "audit_log", ["when"])
    op.create_index("ix_audit_log_name_when", "audit_log", ["name", "when"])


def downgrade() -> None:
    """Drop them with all they hold."""
    op.drop_table("audit_log")
    op.drop_table("capability_preference")
    op.drop_table("resource")
