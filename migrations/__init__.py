"""Alembic's environment and the versions of the schema, one file each, every one with a way back.

Installed as ``coffer_migrations``. Run by ``coffer_supervisor.store.migrate`` only; never imported by it.
"""
