"""Opens the database of a URL and implements the commands of `load-watcher db`, which return a message to print."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError

from watcher.store.database import Database, DatabaseCheck
from watcher.store.errors import StoreError
from watcher.store.postgresql import server_of
from watcher.store.sqlite import SqliteFile, file_of
from watcher.store.tables import REVISIONS

_EXAMPLES = "write sqlite:///path/to/load-watcher.db or postgresql://user@host/database"


def database_at(url: str, *, watcher: str = "", password_file: Path | None = None) -> Database:
    """The database of a URL, not opened yet. `watcher` selects the rows; `password_file` is for the user of a server.

    Raises StoreError for an invalid URL or an unsupported kind of database.
    """
    try:
        parsed = sa.make_url(url)
    except (ArgumentError, ValueError) as error:  # ValueError: invalid port
        raise StoreError("invalid database URL", hint=_EXAMPLES) from error
    kind = parsed.get_backend_name()
    if kind == "sqlite":
        return SqliteFile(file_of(parsed), watcher=watcher)
    if kind in ("postgresql", "postgres"):
        return server_of(parsed, watcher=watcher, password_file=password_file)
    raise StoreError(f"databases of kind {kind} are not supported", hint=_EXAMPLES)


def upgrade(database: Database) -> str:
    """Migrate the database to the newest schema; create it if it does not exist."""
    with database:
        before = database.upgrade(owner="load-watcher db upgrade")
    if before == REVISIONS[-1]:
        return f"{database.name} is up to date (schema {before})"
    was = f"upgraded from schema {before} to schema" if before else "created with schema"
    return f"{database.name} was {was} {REVISIONS[-1]}"


def current(database: Database) -> str:
    """The schema of the database. Works while the service is running."""
    with database:
        revision = database.revision()
    if revision is None:
        return f"{database.name} does not exist yet; load-watcher serve or db upgrade creates it"
    if revision != REVISIONS[-1]:
        return f"{database.name} has schema {revision}; load-watcher db upgrade migrates it to {REVISIONS[-1]}"
    return f"{database.name} has schema {revision}, the newest known to this version"


def look(database: Database) -> DatabaseCheck:
    """Check for load-watcher doctor whether `serve` could use the database, without changing it. Raises StoreError if
    not, unless the only reason is that another process has it open."""
    with database:
        return database.check()


def vacuum(database: Database) -> str:
    """Vacuum the database; the message states its size before and after."""
    with database:
        sizes = database.vacuum(owner="load-watcher db vacuum")
    if sizes is None:
        return f"{database.name} does not exist yet"
    before, after = sizes
    return f"{database.name} was reduced from {before / 1e6:.1f} MB to {after / 1e6:.1f} MB"
