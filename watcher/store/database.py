"""The file at store.url: whose is it, is it whole, how old is it, and who else has it open?

Anything may lie at that path: nothing yet, our own database as `kill -9` left it, one of an older or newer version, one
with pages overwritten, another program's, or no database at all. Only the first two may be opened as they are. An older
one is brought up to date in one transaction; for the rest there is a message that says which it is and a way out, and
not a byte of it is changed. Two services on one file would overwrite each other's samples, so the first holds a lock
(`<file>.lock`) that dies with its process.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError, SQLAlchemyError

from watcher.store.codec import CodecError
from watcher.store.schema import REVISIONS, node_list, provenance, sample_block, tick

logger = logging.getLogger(__name__)

SMALL_BYTES = 64 * 2**20
"""Up to this size all pages are checked when a database is opened; above, those of the tables that a start reads."""

# --- errors ----------------------------------------------------------------------------------------------------------


class StoreError(Exception):
    """The store cannot do what was asked. `hint` says what the operator can do; the cause is chained."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class StoreInUse(StoreError):
    """Another process has this database open; the message names it."""


class StoreUnusable(StoreError):
    """What lies at the path is damaged, of a newer version, or not ours. Nothing of it was changed."""


# --- the file --------------------------------------------------------------------------------------------------------


def file_of(url: str) -> Path:
    """The file that a sqlite:/// URL names; StoreError for any other URL, and for a database in memory."""
    try:
        parsed = sa.make_url(url)
    except ArgumentError as error:
        raise StoreError("the database URL cannot be read", hint="write sqlite:///path/to/load-watcher.db") from error
    if parsed.get_backend_name() != "sqlite":
        raise StoreError(
            f"databases of kind {parsed.get_backend_name()} are not supported",
            hint="write sqlite:///path/to/load-watcher.db",
        )
    if parsed.host or parsed.query or not parsed.database or parsed.database.startswith((":memory:", "file:")):
        raise StoreError(
            "the database URL names no file",
            hint="sqlite:///name.db is relative to the working directory, sqlite:////path/name.db absolute; "
            "a database in memory would not outlive the process, which is all it is for",
        )
    return Path(parsed.database).resolve()  # so that two names of one file meet at one lock


def check_place(path: Path) -> None:
    """Raise StoreError where there can be no database of ours."""
    if not path.parent.is_dir():
        raise StoreError(f"the directory {path.parent} of the database does not exist", hint=f"mkdir -p {path.parent}")
    if path.is_dir():
        raise StoreError(f"{path} is a directory", hint="name a file in store.url")
    for place in (path.parent, path):
        if place.exists() and not os.access(place, os.W_OK):
            raise StoreError(
                f"{place} is not writable for user {os.geteuid()}", hint="change its owner, or store.url, or the user"
            )


class _Holder(msgspec.Struct):
    """What stands in the lock file. `damaged`: whoever held it last met a page that is not what SQLite wrote."""

    pid: int
    owner: str = ""
    damaged: bool = False


class FileLock:
    """`<database>.lock`, held as long as the database is open. The kernel releases it when a process dies, so a file
    that was left behind is no obstacle."""

    def __init__(self, path: Path, *, owner: str) -> None:
        self.path = path.with_name(path.name + ".lock")
        self.damage_seen = False
        self._database = path
        self._holder = _Holder(os.getpid(), owner)
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock or raise StoreInUse, which names the holder."""
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreError(f"the lock {self.path} cannot be made: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _read_holder(descriptor)
            os.close(descriptor)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise StoreInUse(
                    f"{self._database} is in use by {_in_words(holder)}",
                    hint="stop that one, or give this one a store.url of its own",
                ) from None
            raise StoreError(
                f"the lock {self.path} cannot be taken: {error.strerror}",
                hint="the database belongs on a local file system",
            ) from error
        before = _read_holder(descriptor)
        self.damage_seen = before is not None and before.damaged
        self._descriptor = descriptor
        self._write()

    def mark_damaged(self) -> None:
        """Let the next start look at every page, however large the file is."""
        self._holder.damaged = True
        self._write()

    def release(self) -> None:
        """Give it back. The file stays: removing it would let two others each lock one of the same name."""
        if self._descriptor is not None:
            if not self._holder.damaged:
                os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None

    def _write(self) -> None:
        """Say who holds it. On a full disk it holds all the same, without saying so."""
        if self._descriptor is None:
            return
        text = msgspec.json.encode(self._holder)
        with suppress(OSError):
            os.pwrite(self._descriptor, text, 0)
            os.ftruncate(self._descriptor, len(text))


def _read_holder(descriptor: int) -> _Holder | None:
    try:
        return msgspec.json.decode(os.pread(descriptor, 4096, 0), type=_Holder)
    except (msgspec.DecodeError, OSError):
        return None


def _in_words(holder: _Holder | None) -> str:
    who = "another process" if holder is None else f"process {holder.pid}"
    return who + (f" ({holder.owner})" if holder is not None and holder.owner else "")


def holder_of(path: Path) -> str:
    """Who holds the lock of the database at `path`, in words; "" if nobody does. Makes no file; whoever wants the lock
    in the very microsecond of looking is refused."""
    try:
        descriptor = os.open(path.with_name(path.name + ".lock"), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return _in_words(_read_holder(descriptor))
    finally:
        os.close(descriptor)
    return ""


def set_aside(path: Path, *, now: float) -> Path:
    """Rename a database and what belongs to it, so that SQLite can still open it there; the new name."""
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


# --- connections -----------------------------------------------------------------------------------------------------


def open_engine(path: Path, *, connections: int = 1, writes: bool = True) -> sa.Engine:
    """Connections to the database at `path`. Transactions are SQLite's own, DDL included (testing.md 5.3)."""
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
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # on a file that has pages this would write one
        for pragma in _WRITER_PRAGMAS if writes else ("query_only = ON",):
            connection.execute(f"PRAGMA {pragma}")

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


_WRITER_PRAGMAS = (
    "journal_mode = WAL",
    "synchronous = FULL",  # a commit outlives a power cut; at one a minute that costs nothing
    "journal_size_limit = 4194304",
)
_FULL_DISK = "make room on its file system; store.max_size bounds the database"
_HINTS = {
    sqlite3.SQLITE_FULL: _FULL_DISK,
    sqlite3.SQLITE_IOERR: _FULL_DISK + ", and it belongs on a local file system",
    sqlite3.SQLITE_READONLY: "let this user write to the file and to its directory",
    sqlite3.SQLITE_CANTOPEN: "let this user write to the file and to its directory, and leave room there",
    sqlite3.SQLITE_BUSY: "another program has it open: close that one",
}


def reason_of(error: BaseException) -> str:
    """What the database said, without our statement and its parameters."""
    return str(error.orig if isinstance(error, DBAPIError) and error.orig is not None else error)


def is_damage(error: BaseException) -> bool:
    """Whether this says that the file is not what was written, rather than that it cannot be reached."""
    return isinstance(error, CodecError) or _code_of(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def is_of_the_file(error: BaseException) -> bool:
    """Whether this is about the file, its disk or a lock on it, so that the same may work later or elsewhere."""
    return isinstance(error, (OperationalError, OSError)) or is_damage(error)


def _code_of(error: BaseException) -> int:
    """SQLite's primary result code, 0 for what is not from SQLite."""
    return int(getattr(getattr(error, "orig", error), "sqlite_errorcode", 0)) & 0xFF


@contextmanager
def translated(path: Path, *, doing: str) -> Iterator[None]:
    """Turn what the database raises into StoreUnusable or StoreError; `doing` completes "cannot be …"."""
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error, CodecError, OSError) as error:
        if is_damage(error):
            raise _damaged(path, reason_of(error)) from error
        hint = _HINTS.get(_code_of(error), "")
        raise StoreError(f"{path} cannot be {doing}: {reason_of(error)}", hint=hint) from error


def _damaged(path: Path, reason: str) -> StoreUnusable:
    return StoreUnusable(f"{path} is damaged: {reason}", hint=_WAY_OUT)


_WAY_OUT = (
    'move the file away, or set store.on_unusable = "set-aside", which renames it and begins a new one; '
    "all that is lost is the history of the windows"
)


# --- whose, how old, whole -------------------------------------------------------------------------------------------


def revision_of(path: Path) -> str | None:
    """The schema's revision of the database at `path`, None if there is none yet. Changes nothing.

    Raises StoreUnusable if that is not a database, not ours, or newer than this version knows.
    """
    with translated(path, doing="read"):
        if not path.exists() or not path.stat().st_size:
            return None
        with path.open("rb") as file:
            if file.read(16) != b"SQLite format 3\0":
                raise StoreUnusable(f"{path} is not an SQLite database", hint="name another file in store.url")
        with closing(_open_untouched(path)) as connection:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if not tables:
                return None
            _check_ours(path, tables)
            versions = connection.execute("SELECT version_num FROM alembic_version").fetchall()
    if not versions or not all(isinstance(version, str) and version for (version,) in versions):
        raise _damaged(path, "it does not say what version it has")
    if len(versions) != 1 or versions[0][0] not in REVISIONS:
        found = ", ".join(version for (version,) in versions)
        raise StoreUnusable(
            f"{path} was written by a newer version of load-watcher: its schema is {found}, "
            f"this version knows {REVISIONS[-1]}",
            hint="run the newer version again; to go on with this one, " + _WAY_OUT,
        )
    return str(versions[0][0])


def _open_untouched(path: Path) -> sqlite3.Connection:
    """A connection that neither changes the file nor leaves others beside it. Where there is no log to be read SQLite
    must be told so, or it would make one."""
    log = path.with_name(path.name + "-wal")
    mode = "ro" if log.exists() and log.stat().st_size else "ro&immutable=1"
    return sqlite3.connect(f"{path.as_uri()}?mode={mode}", uri=True, timeout=5.0)


def _check_ours(path: Path, tables: set[str]) -> None:
    if not {"alembic_version", "tick", "sample_block"} <= tables:
        some = ", ".join(sorted(tables)[:5])
        raise StoreUnusable(
            f"{path} is the database of another program (tables {some})", hint="name another file in store.url"
        )


def check_pages(path: Path, *, all_of_them: bool) -> None:
    """Raise StoreUnusable if a page is damaged: of all the tables, or only of those that a start reads. Changes
    nothing."""
    which = [""] if all_of_them else [f"({table.name})" for table in (tick, provenance, node_list, sample_block)]
    with translated(path, doing="checked"), closing(_open_untouched(path)) as connection:
        for table in which:
            (found,) = connection.execute(f"PRAGMA quick_check{table}").fetchone()
            if found != "ok":
                raise _damaged(path, str(found).splitlines()[-1])


def check_age(path: Path, revision: str | None, *, upgrade: bool) -> None:
    """Raise StoreError if the schema is older than this version's and must not be upgraded."""
    if revision not in (None, REVISIONS[-1]) and not upgrade:
        raise StoreError(
            f"{path} has schema {revision}, and {REVISIONS[-1]} is needed", hint="run load-watcher db upgrade"
        )


# --- migrations ------------------------------------------------------------------------------------------------------


def migrations_folder() -> Path:
    """Where the migrations are: inside an installed wheel, else at the top of the repository."""
    installed = Path(__file__).parents[1] / "_migrations"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "migrations"


def migrate(engine: sa.Engine, *, folder: Path | None = None) -> None:
    """Bring the schema up to date, all of it or nothing."""
    # Here, since a start with an up-to-date database does not need it, and it would be a tenth of that start.
    from alembic import command
    from alembic.config import Config

    with engine.begin() as connection:
        config = Config()
        config.set_main_option("script_location", str(folder or migrations_folder()).replace("%", "%%"))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


@contextmanager
def locked(path: Path, *, owner: str) -> Iterator[FileLock]:
    """Hold the lock of the database at `path`, having seen that the place is fit for one."""
    check_place(path)
    lock = FileLock(path, owner=owner)
    lock.acquire()
    try:
        yield lock
    finally:
        lock.release()


# --- load-watcher db -------------------------------------------------------------------------------------------------


def upgrade(url: str) -> str:
    """Bring the database up to date, making it if there is none; what was done, in words."""
    path = file_of(url)
    with locked(path, owner="load-watcher db upgrade"):
        before = revision_of(path)
        if before == REVISIONS[-1]:
            return f"{path} is up to date (schema {before})"
        with translated(path, doing="upgraded"):
            engine = open_engine(path)
            try:
                migrate(engine)
            finally:
                engine.dispose()
    was = f"upgraded from schema {before} to" if before else "made, with schema"
    return f"{path} was {was} {REVISIONS[-1]}"


def current(url: str) -> str:
    """Which schema the database has, in words. Works beside a running service."""
    path = file_of(url)
    revision = revision_of(path)
    if revision is None:
        return f"{path} does not exist yet; load-watcher serve or db upgrade makes it"
    if revision != REVISIONS[-1]:
        return f"{path} has schema {revision}; load-watcher db upgrade brings it to {REVISIONS[-1]}"
    return f"{path} has schema {revision}, the newest this version knows"


def vacuum(url: str) -> str:
    """Rewrite the database without gaps; its size before and after, in words. The service must not be running."""
    path = file_of(url)
    with locked(path, owner="load-watcher db vacuum"):
        if revision_of(path) is None:
            return f"{path} does not exist yet"
        before = size_on_disk(path)
        with translated(path, doing="vacuumed"):
            engine = open_engine(path)
            try:
                with closing(engine.raw_connection()) as connection:
                    connection.driver_connection.execute("VACUUM")  # type: ignore[union-attr]
                    connection.driver_connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # type: ignore[union-attr]
            finally:
                engine.dispose()
    return f"{path} went from {before / 1e6:.1f} MB to {size_on_disk(path) / 1e6:.1f} MB"


def identity_of(path: Path) -> tuple[int, int]:
    """Which file lies at the path, whatever its name."""
    found = path.stat()
    return found.st_dev, found.st_ino


def size_on_disk(path: Path) -> int:
    """Bytes of the database and its log."""
    parts = (path, path.with_name(path.name + "-wal"))
    return sum(part.stat().st_size for part in parts if part.exists())
