"""Which database a URL names, and what `load-watcher db` does with it. Each answers with what was done, in words."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError

from watcher.store.database import Database, Look
from watcher.store.errors import StoreError
from watcher.store.postgresql import server_of
from watcher.store.sqlite import SqliteFile, file_of
from watcher.store.tables import REVISIONS

_EXAMPLES = "write sqlite:///path/to/load-watcher.db or postgresql://user@host/database"


def database_at(url: str, *, watcher: str = "", password_file: Path | None = None) -> Database:
    """The database that a URL names, not opened yet; `watcher`: whose rows; `password_file`: of a server's user.

    Raises StoreError for a URL of any other kind.
    """
    try:
        parsed = sa.make_url(url)
    except (ArgumentError, ValueError) as error:  # the latter for a port that is none
        raise StoreError("the database URL cannot be read", hint=_EXAMPLES) from error
    kind = parsed.get_backend_name()
    if kind == "sqlite":
        return SqliteFile(file_of(parsed), watcher=watcher)
    if kind in ("postgresql", "postgres"):
        return server_of(parsed, watcher=watcher, password_file=password_file)
    raise StoreError(f"databases of kind {kind} are not supported", hint=_EXAMPLES)


def upgrade(database: Database) -> str:
    """Bring the database up to date, making it if there is none."""
    with database:
        before = database.upgrade(owner="load-watcher db upgrade")
    if before == REVISIONS[-1]:
        return f"{database.name} is up to date (schema {before})"
    was = f"upgraded from schema {before} to" if before else "made, with schema"
    return f"{database.name} was {was} {REVISIONS[-1]}"


def current(database: Database) -> str:
    """Which schema the database has. Works beside a running service."""
    with database:
        revision = database.revision()
    if revision is None:
        return f"{database.name} does not exist yet; load-watcher serve or db upgrade makes it"
    if revision != REVISIONS[-1]:
        return f"{database.name} has schema {revision}; load-watcher db upgrade brings it to {REVISIONS[-1]}"
    return f"{database.name} has schema {revision}, the newest this version knows"


def look(database: Database) -> Look:
    """See whether `serve` could use the database, and change nothing: for load-watcher doctor. Raises StoreError where
    it could not, for another reason than that somebody has it open."""
    with database:
        return database.look()


def vacuum(database: Database) -> str:
    """Rewrite the database without gaps; its size before and after."""
    with database:
        sizes = database.vacuum(owner="load-watcher db vacuum")
    if sizes is None:
        return f"{database.name} does not exist yet"
    before, after = sizes
    return f"{database.name} went from {before / 1e6:.1f} MB to {after / 1e6:.1f} MB"
