"""The SQLite database of the audit log: schema, opening, damaged files, and translated errors."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

APPLICATION_ID = 0x4C574147
"""LWAG, in the header of the file."""
SCHEMA = 2
"""2: weights and memory.high are remembered too, by their knobs."""
ROWS = 20_000
"""How many deeds are kept; the oldest go first."""
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
"""What makes the next schema of one."""


class AuditError(Exception):
    """The file cannot be read or written: nothing may be done to any pod. `hint` says what can be done about it."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def _unusable(path: Path) -> str:
    """Why the file that is there cannot be ours any more, "" if it is or there is none. Raises AuditError if it is
    another program's or newer, sqlite3.Error and OSError if that cannot be found out."""
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except FileNotFoundError:
        return ""
    if not header:
        return ""
    if header[:16] != _SQLITE:
        return "it is no SQLite database"
    connection = sqlite3.connect(path, timeout=1.0, isolation_level=None)
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        if application != APPLICATION_ID:
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if not application and not tables:
                return ""  # it was just being made
            raise AuditError(
                f"{path} is another program's database, and is left to it",
                hint="Give the agent a file of its own: agent.state_file, --state-file.",
            )
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA:
            raise AuditError(
                f"{path} was written by a newer load-watcher (schema {version}, this one knows {SCHEMA})",
                hint="Run that one (its `load-watcher agent restore` puts everything back), or move the file away.",
            )
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        return "" if verdict == "ok" else f"it is damaged ({verdict})"
    except sqlite3.DatabaseError as error:
        if _code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return f"it is damaged ({error})"
        raise
    finally:
        connection.close()


def _set_aside(path: Path, why: str, *, now: float) -> str:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    aside, number = path.with_name(f"{path.name}.set-aside-{stamp}"), 1
    while aside.exists():
        aside, number = path.with_name(f"{path.name}.set-aside-{stamp}-{number}"), number + 1
    for suffix in ("-wal", "-shm", "-journal", ""):  # the file last: while it is there, this is tried again
        part = path.with_name(path.name + suffix)
        if part.exists():
            os.replace(part, aside.with_name(aside.name + suffix))
    return (
        f"the audit file {path} cannot be used: {why}. It is kept as {aside}, and a new one begins. Original CPU quotas"
        " that it held are not put back: containers that were throttled then keep their quota until they restart"
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
    """Whatever fails inside is an AuditError."""
    try:
        yield
    except sqlite3.Error as error:
        raise AuditError(f"the audit file {path}: {error}", hint=_hint(error)) from error
    except OSError as error:
        raise AuditError(
            f"the audit file {path}: {error.strerror or error}", hint="The agent needs to write there."
        ) from error


_HINTS = {
    sqlite3.SQLITE_BUSY: "Another agent, or another program, has it open: only one may. What a running agent would"
    " do is at its GET /explain; to look beside it, name another file by --state-file.",
    sqlite3.SQLITE_FULL: "The disk is full. Nothing is done to any pod until it can be written again.",
    sqlite3.SQLITE_IOERR: "The disk is full or failing. Nothing is done to any pod until it can be written again.",
    sqlite3.SQLITE_READONLY: "It can only be read here. Nothing is done to any pod until it can be written.",
    sqlite3.SQLITE_CANTOPEN: "It cannot be made or opened there: does the directory exist, and may the agent write?",
    sqlite3.SQLITE_CORRUPT: "It is damaged. At the next start it is moved aside, and a new one begins.",
}


def _hint(error: sqlite3.Error) -> str:
    return _HINTS.get(_code(error), "Nothing is done to any pod until it can be written again.")


def _code(error: sqlite3.Error) -> int:
    """SQLite's primary code."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
