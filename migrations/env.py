"""Runs the migrations of the tables of watcher/store/schema.py, on the connection and in the transaction handed over.

There is one way in, `watcher.store.database.migrate` (load-watcher db upgrade, and serve at its start), because that is
what makes SQLite's DDL transactional: a migration that fails must leave nothing behind.
"""

import logging

from alembic import context

from watcher.store.tables import metadata

connection = context.config.attributes.get("connection")
if connection is None:
    raise SystemExit("run load-watcher db upgrade: migrations need the connection that it opens")

# It announces at INFO, on every start, which dialect it has found. What was upgraded, the store logs itself.
logging.getLogger("alembic.runtime.migration").setLevel(logging.WARNING)

context.configure(connection=connection, target_metadata=metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
