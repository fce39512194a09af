"""The database in one SQLite file, for one watcher.

A file that cannot be used is not changed. SQLite by default creates a log file even if it only reads a database, so
checks open the file read-only and immutable. Two services on one file would overwrite each other's samples, so the
first one locks `<file>.lock`, and the file itself, which may have a second name (a hard link).
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from watcher.store.engines.database import READERS, Database, DatabaseCheck, create_or_migrate, reason_of
from watcher.store.engines.file_lock import OTHER_FILE, FileLock, holder_of, lock_file
from watcher.store.errors import StoreError, StoreUnusable
from watcher.store.tables import REVISIONS, Rows, node_list, provenance, sample_block, tick

SMALL_BYTES = 64 * 2**20
"""Up to this size (bytes) all pages are checked on opening; above it, only the tables that are read at the start."""
PAGES_PER_STEP = 1024
TRIED_BYTES = 1 << 20
"""Bytes of a trial write: more than a tick of a few hundred nodes needs."""


def file_of(url: sa.URL) -> Path:
    """The absolute path of a sqlite:/// URL. Raises StoreError for a database in memory."""
    if url.host or url.query or not url.database or url.database.startswith((":memory:", "file:")):
        raise StoreError(
            "the database URL does not contain a file name",
            hint="sqlite:///name.db is relative to the working directory, sqlite:////path/name.db is absolute; "
            "databases in memory are not supported, because they do not survive a restart",
        )
    return Path(url.database).resolve()  # so that all paths of one file use the same lock


class SqliteFile(Database):
    """A database in an SQLite file."""

    retries_connection = False

    def __init__(self, path: Path, *, watcher: str = "") -> None:
        self.name = str(path)
        self.path = path
        self.watcher = watcher
        self._lock: FileLock | None = None
        self._file_lock: int | None = None
        self._writer: sa.Engine | None = None
        self._reader: sa.Engine | None = None
        self._identity: tuple[int, int] | None = None

    # --- opening and closing -----------------------------------------------------------------------------------------

    def acquire(self, *, owner: str) -> None:
        if self._lock is None:
            check_place(self.path)
            lock = FileLock(self.path, owner=owner)
            lock.acquire()
            self._lock = lock
            try:
                self._lock_file()
            except StoreError:
                self.release()
                raise

    def _lock_file(self) -> None:
        """Lock the database file, if it exists and is not locked yet. Raises StoreInUse."""
        if self._file_lock is None and self.path.exists():
            self._file_lock = lock_file(self.path)

    def _unlock_file(self) -> None:
        """Call it only without open connections: closing a file drops the process's other locks of this file."""
        if self._file_lock is not None:
            os.close(self._file_lock)
            self._file_lock = None

    def prepare(self, *, upgrade: bool) -> tuple[str | None, str]:
        assert self._lock is not None
        revision = self.revision()
        self.check_age(revision, upgrade=upgrade)
        if revision is not None:
            self.check_pages(all_of_them=size_on_disk(self.path) <= SMALL_BYTES or self._lock.damage_seen)
        with self.store_errors(doing="opened"):
            self._writer = open_engine(self.path)
            if revision != REVISIONS[-1]:
                with self._writer.begin() as connection:
                    create_or_migrate(connection, revision=revision)
            self._reader = open_engine(self.path, connections=READERS, writes=False)
            self._identity = identity_of(self.path)
            self._lock_file()
        return revision, REVISIONS[-1]

    def release(self) -> None:
        self._close_connections()
        self._unlock_file()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _close_connections(self) -> None:
        for engine in (self._reader, self._writer):
            if engine is not None:
                engine.dispose()
        self._reader = self._writer = None

    def set_aside(self, *, now: float) -> str | None:
        self._close_connections()
        self._unlock_file()
        with self.store_errors(doing="set aside"):
            return set_aside(self.path, now=now).name

    # --- transactions ------------------------------------------------------------------------------------------------

    @contextmanager
    def writing(self) -> Iterator[Rows]:
        assert self._writer is not None
        with self._writer.begin() as connection:
            yield Rows(connection, self.watcher)

    @contextmanager
    def reading(self) -> Iterator[Rows]:
        assert self._reader is not None
        with self._reader.begin() as connection:
            yield Rows(connection, self.watcher)

    def check_not_replaced(self) -> None:
        """Raise OSError if the file was moved or removed: SQLite would continue to write to the old file."""
        if not self.path.exists() or identity_of(self.path) != self._identity:
            raise OSError(f"{self.path} was moved or replaced while it was open; restart the service")

    # --- space -------------------------------------------------------------------------------------------------------

    def size(self) -> int:
        """Size of the file and its log in bytes."""
        return size_on_disk(self.path)

    def used_bytes(self, mine: Rows) -> int:
        """Size of the used pages in bytes."""
        count, free, size = (
            int(mine.connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())
            for name in ("page_count", "freelist_count", "page_size")
        )
        return (count - free) * size

    def release_space(self, *, most: int) -> bool:
        """Release free pages to the file system if there are many, or if the file is larger than `most` bytes."""
        assert self._writer is not None
        with closing(self._writer.raw_connection()) as pooled:
            connection = pooled.driver_connection
            assert connection is not None

            def ask(name: str) -> int:
                return int(connection.execute(f"PRAGMA {name}").fetchone()[0])

            count, free = ask("page_count"), ask("freelist_count")
            too_large = count * ask("page_size") > most
            if free < (1 if too_large else max(PAGES_PER_STEP, count // 8)):
                return False
            # executescript: execute() would free only one page. The file shrinks only after the log is copied.
            connection.executescript(f"PRAGMA incremental_vacuum({PAGES_PER_STEP}); PRAGMA wal_checkpoint(PASSIVE)")
            return ask("freelist_count") < free

    def can_remove(self, mine: Rows, watcher: str) -> bool:
        """True: this process holds the lock of the file, so no other process writes it."""
        return True

    # --- commands ----------------------------------------------------------------------------------------------------

    def revision(self) -> str | None:
        with self.store_errors(doing="read"):
            if not self.path.exists() or not self.path.stat().st_size:
                return None
            with self.path.open("rb") as file:
                if file.read(16) != b"SQLite format 3\0":
                    raise StoreUnusable(f"{self.path} is not an SQLite database", hint="use another file in store.url")
            with closing(_open_untouched(self.path)) as connection:
                tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
                if not tables:
                    return None
                self._check_ours(tables)
                versions = connection.execute("SELECT version_num FROM alembic_version").fetchall()
        return self.known_revision(version for (version,) in versions)

    def _check_ours(self, tables: set[str]) -> None:
        if not {"alembic_version", "tick", "sample_block"} <= tables:
            some = ", ".join(sorted(tables)[:5])
            raise StoreUnusable(
                f"{self.path} is a database of another program (tables {some})", hint="use another file in store.url"
            )

    def check_pages(self, *, all_of_them: bool) -> None:
        """Raise StoreUnusable if a page is damaged, of any table or only of the tables read at the start. Changes
        nothing."""
        which = [""] if all_of_them else [f"({table.name})" for table in (tick, provenance, node_list, sample_block)]
        with self.store_errors(doing="checked"), closing(_open_untouched(self.path)) as connection:
            for table in which:
                (found,) = connection.execute(f"PRAGMA quick_check{table}").fetchone()
                if found != "ok":
                    raise self.damaged(str(found).splitlines()[-1])

    def check(self) -> DatabaseCheck:
        check_place(self.path)
        revision = self.revision()
        size = self.size()
        if revision is not None:
            self.check_pages(all_of_them=size <= SMALL_BYTES)
        _try_to_write(self.path.parent)
        return DatabaseCheck(
            where=self.name,
            revision=revision,
            newest=REVISIONS[-1],
            holder=holder_of(self.path),
            hint=OTHER_FILE,
            size=size,
            free=shutil.disk_usage(self.path.parent).free,
        )

    def upgrade(self, *, owner: str) -> str | None:
        self.acquire(owner=owner)
        before = self.revision()
        if before != REVISIONS[-1]:
            self.prepare(upgrade=True)
        return before

    def vacuum(self, *, owner: str) -> tuple[int, int] | None:
        self.acquire(owner=owner)
        if self.revision() is None:
            return None
        before = self.size()
        with self.store_errors(doing="vacuumed"):
            self._writer = open_engine(self.path)
            with closing(self._writer.raw_connection()) as connection:
                connection.driver_connection.execute("VACUUM")  # type: ignore[union-attr]
                connection.driver_connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # type: ignore[union-attr]
            self._close_connections()
        return before, self.size()

    # --- errors ------------------------------------------------------------------------------------------------------

    def is_database_error(self, error: BaseException) -> bool:
        return isinstance(error, (StoreError, OperationalError, OSError)) or self.is_damage(error)

    def is_damage(self, error: BaseException) -> bool:
        damage = _code_of(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
        return super().is_damage(error) or damage or "Could not decode to UTF-8" in str(error)

    def mark_damaged(self) -> None:
        if self._lock is not None:
            self._lock.mark_damaged()

    @property
    def recovery_hint(self) -> str:
        return (
            'move the file, or set store.on_unusable = "set-aside" to rename it and create a new one; '
            "only the history of the windows is lost"
        )

    def to_store_error(self, error: BaseException, *, doing: str) -> StoreError:
        hint = _HINTS.get(_code_of(error), "")
        return StoreError(f"{self.path} cannot be {doing}: {reason_of(error)}", hint=hint)

    @property
    def driver_errors(self) -> tuple[type[Exception], ...]:
        return (sqlite3.Error,)


# --- the file --------------------------------------------------------------------------------------------------------


def check_place(path: Path) -> None:
    """Raise StoreError if the path cannot be used for a database."""
    if not path.parent.is_dir():
        raise StoreError(f"the directory {path.parent} of the database does not exist", hint=f"mkdir -p {path.parent}")
    if path.exists() and not path.is_file():
        what = "a directory" if path.is_dir() else "a device, a pipe or a socket"
        raise StoreError(f"{path} is {what}", hint="use a file name in store.url")
    for place in (path.parent, path):
        if place.exists() and not os.access(place, os.W_OK):
            raise StoreError(
                f"{place} is not writable for user {os.geteuid()}", hint="change its owner, store.url, or the user"
            )


def _try_to_write(folder: Path) -> None:
    """Write TRIED_BYTES to an unnamed temporary file in the database's folder. Raises StoreError if that fails."""
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            file.write(os.urandom(TRIED_BYTES))  # random, because the file system may compress
            os.fsync(file.fileno())
    except OSError as error:
        hint = "free space on its file system, or give this user write access; store.max_size limits the database"
        raise StoreError(f"cannot write to {folder}: {error.strerror}", hint=hint) from error


def set_aside(path: Path, *, now: float) -> Path:
    """Rename a database and its log files, so that SQLite can still open it. Returns the new path; `now` is in unix
    seconds."""
    stamp = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
    name = f"{path.name}.unusable-{stamp}"
    count = 1
    while (target := path.with_name(name if count == 1 else f"{name}-{count}")).exists():
        count += 1
    for suffix in ("-wal", "-shm", "-journal", ""):
        part = path.with_name(path.name + suffix)
        if part.exists():
            part.rename(target.with_name(target.name + suffix))
    return target


# --- connections ------------------------------------------------------------------------------------------------------


def open_engine(path: Path, *, connections: int = 1, writes: bool = True) -> sa.Engine:
    """Connections to the database at `path`. Transactions are started explicitly, so that they include DDL."""
    engine = sa.create_engine(
        sa.URL.create("sqlite", database=str(path)),
        pool_size=connections,
        max_overflow=0,
        hide_parameters=True,
        connect_args={"timeout": 5.0, "check_same_thread": False},
    )

    @sa.event.listens_for(engine, "connect")
    def set_up(connection: Any, _record: Any) -> None:
        connection.isolation_level = None
        if writes and connection.execute("PRAGMA page_count").fetchone() == (0,):
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # only for a new file: it writes a page
        for pragma in _WRITER_PRAGMAS if writes else ("query_only = ON",):
            connection.execute(f"PRAGMA {pragma}")

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


_WRITER_PRAGMAS = (
    "journal_mode = WAL",
    "synchronous = FULL",  # a commit survives a power failure; negligible cost at one commit per minute
    "journal_size_limit = 4194304",
)
_FULL_DISK = "free space on its file system; store.max_size limits the database"
_HINTS = {
    sqlite3.SQLITE_FULL: _FULL_DISK,
    sqlite3.SQLITE_IOERR: _FULL_DISK + ", and it must be on a local file system",
    sqlite3.SQLITE_READONLY: "give this user write access to the file and its directory",
    sqlite3.SQLITE_CANTOPEN: "give this user write access to the file and its directory, and free space on its disk",
    sqlite3.SQLITE_BUSY: "another program has the database open: close the database in that program",
}


def _code_of(error: BaseException) -> int:
    """SQLite's primary result code; 0 for an error that is not from SQLite."""
    return int(getattr(getattr(error, "orig", error), "sqlite_errorcode", 0)) & 0xFF


def _open_untouched(path: Path) -> sqlite3.Connection:
    """A connection that neither changes the file nor creates others next to it. Without a log file it uses immutable=1,
    because SQLite would otherwise create one."""
    log = path.with_name(path.name + "-wal")
    mode = "ro" if log.exists() and log.stat().st_size else "ro&immutable=1"
    return sqlite3.connect(f"{path.as_uri()}?mode={mode}", uri=True, timeout=5.0)


def identity_of(path: Path) -> tuple[int, int]:
    """Device and inode of the file at the path."""
    found = path.stat()
    return found.st_dev, found.st_ino


def size_on_disk(path: Path) -> int:
    """Size of the database and its log in bytes."""
    parts = (path, path.with_name(path.name + "-wal"))
    return sum(part.stat().st_size for part in parts if part.exists())
