"""Persistent storage in an SQLite file or on a PostgreSQL server.

`keeper` contains the store used by the service: one writer thread and several reader threads (`workers`). `tidying`
applies retention and compacts the history between two saves. `decisions` queues decisions for writing, `series` builds
the history of one node, `codec` encodes samples and windows, `schema` declares the tables and all statements.
`database` is the interface to a database (locking, migration, transactions), implemented by `sqlite` and `postgresql`.
`reading` reads a file for replay; `commands` and `copying` implement load-watcher db. Only this package and migrations/
use SQLAlchemy and Alembic.
"""
