"""Alembic's environment: runs the migrations on the connection it is handed.

Owns nothing but the wiring. Never opens a database by itself and never commits: the caller
(``coffer_supervisor.store.migrate``) holds the transaction, so that a migration is done whole or not at all.
"""

from alembic import context
from sqlalchemy import Connection

from coffer_supervisor.store.models import Base


def run() -> None:
    """Run what the command asked for within the caller's transaction."""
    connection = context.config.attributes.get("connection")
    if not isinstance(connection, Connection):
        raise RuntimeError("run migrations with 'python -m coffer_supervisor.store.migrate', not with 'alembic'")
    # Batches: SQLite alters most things only by copying the table.
    context.configure(connection=connection, target_metadata=Base.metadata, render_as_batch=True)
    with context.begin_transaction():
        context.run_migrations()


run()
