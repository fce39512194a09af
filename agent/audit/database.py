"""The SQLite database of the audit log: schema, opening, damaged files, and translated errors."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

APPLICATION_ID = 0x4C574147
"""SQLite application_id of the file: the letters LWAG."""
SCHEMA = 2
"""Schema version. Version 2 also stores cpu.weight and memory.high, keyed by knob."""
ROWS = 20_000
"""Maximum number of audit entries; the oldest are deleted first."""
_SQLITE = b"SQLite format 3\0"
_TABLES = """
CREATE TABLE deeds (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    time REAL NOT NULL,
    cycle INTEGER NOT NULL,
    kind TEXT NOT NULL,
    namespace TEXT NOT NULL,
    pod TEXT NOT NULL,
    uid TEXT NOT NULL,
    container TEXT NOT NULL,
    container_id TEXT NOT NULL,
    owner TEXT NOT NULL,
    metric TEXT NOT NULL,
    reason TEXT NOT NULL,
    planned TEXT NOT NULL,
    used TEXT NOT NULL,
    before TEXT NOT NULL,
    after TEXT NOT NULL,
    outcome TEXT NOT NULL,
    message TEXT NOT NULL,
    finished REAL,
    measured TEXT,
    measured_at REAL
);
CREATE INDEX deeds_of_a_time ON deeds (time);
CREATE TABLE originals (
    key TEXT PRIMARY KEY,
    pod TEXT NOT NULL,
    uid TEXT NOT NULL,
    container TEXT NOT NULL,
    path TEXT NOT NULL,
    since REAL NOT NULL,
    original TEXT NOT NULL,
    written TEXT,
    intended TEXT,
    knob TEXT NOT NULL DEFAULT 'cpu.max'
);
CREATE TABLE kept (name TEXT PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE totals (kind TEXT NOT NULL, outcome TEXT NOT NULL, count INTEGER NOT NULL, PRIMARY KEY (kind, outcome));
"""
_UPGRADES = {
    1: (
        "ALTER TABLE originals RENAME COLUMN container_id TO key",
        "ALTER TABLE originals ADD COLUMN knob TEXT NOT NULL DEFAULT 'cpu.max'",
    )
}
"""SQL statements that upgrade a file from the given schema version to the next one."""


class AuditError(Exception):
    """The audit file cannot be read or written, so no pod may be changed. `hint` is a remedy for the operator."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def _unusable(path: Path, *, new_allowed: bool) -> str:
    """The reason why the existing file cannot be used as the audit file; "" if it can, or if there is none. With
    `new_allowed`, a database without tables can be used: a process may have ended while it created the file. Raises
    AuditError if it belongs to another program or a newer version, and sqlite3.Error or OSError if it cannot be
    checked."""
    if path.exists() and not path.is_file():  # it would be renamed, or read without end
        raise AuditError(f"{path} is not a regular file", hint="Set another file: agent.state_file or --state-file.")
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except FileNotFoundError:
        return ""
    if not header:  # SQLite would use it as a new database
        return "it is empty, as a power failure leaves it"
    if header[:16] != _SQLITE:
        return "it is not a SQLite database"
    connection = sqlite3.connect(path, timeout=1.0, isolation_level=None)
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        if application != APPLICATION_ID:
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if not application and not tables:
                return "" if new_allowed else "it is a database without tables"
            raise AuditError(
                f"{path} is a database of another program and is left unchanged",
                hint="Set a different file: agent.state_file or --state-file.",
            )
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA:
            raise AuditError(
                f"{path} was written by a newer load-watcher (schema {version}; this version supports {SCHEMA})",
                hint="Run the newer version (its `load-watcher agent restore` restores all values), or move the file "
                "to another directory.",
            )
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        return "" if verdict == "ok" else f"it is damaged ({verdict})"
    except sqlite3.DatabaseError as error:
        if _code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return f"it is damaged ({error})"
        raise
    finally:
        connection.close()


def _move_damaged_aside(path: Path, why: str, *, now: float) -> str:
    path = path.resolve()  # a symbolic link stays
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    aside, number = path.with_name(f"{path.name}.set-aside-{stamp}"), 1
    while aside.exists():
        aside, number = path.with_name(f"{path.name}.set-aside-{stamp}-{number}"), number + 1
    for suffix in ("-wal", "-shm", "-journal", ""):  # the file last: while it exists, the move is retried
        part = path.with_name(path.name + suffix)
        if part.exists():
            os.replace(part, aside.with_name(aside.name + suffix))
    return (
        f"the audit file {path} cannot be used: {why}. It was moved to {aside}, and a new file is created. Original"
        " CPU quotas stored in the old file are not restored: containers that are throttled keep their quota until"
        " they restart"
    )


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=1.0, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN EXCLUSIVE")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            for statement in filter(str.strip, _TABLES.split(";")):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        for older in range(version, SCHEMA) if version else ():
            for statement in _UPGRADES[older]:
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {SCHEMA}")
        connection.execute("COMMIT")
    except BaseException:
        connection.close()
        raise
    os.chmod(path, 0o600)
    return connection


@contextlib.contextmanager
def _translated(path: Path) -> Iterator[None]:
    """Convert sqlite3.Error and OSError from the block to AuditError."""
    try:
        yield
    except sqlite3.Error as error:
        raise AuditError(f"the audit file {path}: {error}", hint=_hint(error)) from error
    except OSError as error:
        raise AuditError(
            f"the audit file {path}: {error.strerror or error}", hint="The agent needs write access to this path."
        ) from error


_HINTS = {
    sqlite3.SQLITE_BUSY: "Another agent or another program has the file open; only one process may. For the plan of a"
    " running agent, see its GET /explain; to run a preview next to it, name another file with --state-file.",
    sqlite3.SQLITE_FULL: "The disk is full. No pod is changed until the file can be written again.",
    sqlite3.SQLITE_IOERR: "The disk is full or failing. No pod is changed until the file can be written again.",
    sqlite3.SQLITE_READONLY: "The file is read-only. No pod is changed until it can be written.",
    sqlite3.SQLITE_CANTOPEN: "The file cannot be created or opened: check that the directory exists and is writable.",
    sqlite3.SQLITE_CORRUPT: "The file is damaged. At the next start it is moved aside and a new one is created.",
}


def _hint(error: sqlite3.Error) -> str:
    return _HINTS.get(_code(error), "No pod is changed until the file can be written again.")


def _code(error: sqlite3.Error) -> int:
    """The primary SQLite error code, without the extended bits."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
