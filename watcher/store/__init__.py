"""Persistent storage in an SQLite file or on a PostgreSQL server.

`store` is the interface for the service, with one writer thread and several reader threads; start there. `schema`
declares the tables and statements, `codec` encodes samples and windows, and `engines` has the two databases.
`commands` and `copying` implement load-watcher db. Only this package and migrations/ use SQLAlchemy and Alembic.
"""
