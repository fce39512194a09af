"""Runs the migrations of the tables in watcher/store/tables.py on the caller's connection and in its transaction.

Migrations must be started by `watcher.store.engines.database.migrate` (load-watcher db upgrade, and serve at its
start), which makes SQLite's DDL transactional: a failed migration is rolled back completely.
"""

import logging

from alembic import context

from watcher.store.tables import metadata

connection = context.config.attributes.get("connection")
if connection is None:
    raise SystemExit("migrations cannot be run by the alembic command; run load-watcher db upgrade")

# Alembic logs the dialect at INFO on every start. The store itself logs which migration was run.
logging.getLogger("alembic.runtime.migration").setLevel(logging.WARNING)

context.configure(connection=connection, target_metadata=metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
