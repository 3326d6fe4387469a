"""The store's schema, step by step: the Alembic environment and its versions (imported as
``coffer_migrations``).

Owns the only code that may change a table. Never run by a client: the daemon migrates at its start.
"""
