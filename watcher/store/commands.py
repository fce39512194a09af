"""Opens the database of a URL and implements the commands of `load-watcher db`, which return a message to print."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError

from watcher.store.engines.database import Database, DatabaseCheck
from watcher.store.engines.postgresql import server_of
from watcher.store.engines.sqlite import SqliteFile, file_of
from watcher.store.errors import StoreError
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


@dataclass(frozen=True, slots=True)
class DatabaseReport:
    """Result of a command: a message, and the same facts as JSON: `database`, `schema` (null if the database does not
    exist), `newest_schema`; after an upgrade `schema_before`, after a vacuum `bytes_before` and `bytes_after`."""

    text: str
    document: Mapping[str, str | int | None]


def _report(text: str, database: Database, schema: str | None, **more: str | int | None) -> DatabaseReport:
    facts = {"database": database.name, "schema": schema, "newest_schema": REVISIONS[-1], **more}
    return DatabaseReport(f"{database.name} {text}", facts)


def upgrade(database: Database) -> DatabaseReport:
    """Migrate the database to the newest schema; create it if it does not exist."""
    newest = REVISIONS[-1]
    with database:
        before = database.upgrade(owner="load-watcher db upgrade")
    was = f"was upgraded from schema {before} to schema" if before else "was created with schema"
    text = f"is up to date (schema {before})" if before == newest else f"{was} {newest}"
    return _report(text, database, newest, schema_before=before)


def current(database: Database) -> DatabaseReport:
    """The schema of the database. Works while the service is running."""
    with database:
        revision = database.revision()
    if revision is None:
        text = "does not exist yet; load-watcher serve or db upgrade creates it"
    elif revision != REVISIONS[-1]:
        text = f"has schema {revision}; load-watcher db upgrade migrates it to {REVISIONS[-1]}"
    else:
        text = f"has schema {revision}, the newest known to this version"
    return _report(text, database, revision)


def look(database: Database) -> DatabaseCheck:
    """Check for load-watcher doctor whether `serve` could use the database, without changing it. Raises StoreError if
    not, unless the only reason is that another process has it open."""
    with database:
        return database.check()


def vacuum(database: Database) -> DatabaseReport:
    """Vacuum the database; the report has its size before and after."""
    with database:
        sizes = database.vacuum(owner="load-watcher db vacuum")
        revision = database.revision()
    if sizes is None:
        return _report("does not exist yet", database, None)
    before, after = sizes
    text = f"was reduced from {before / 1e6:.1f} MB to {after / 1e6:.1f} MB"
    return _report(text, database, revision, bytes_before=before, bytes_after=after)
