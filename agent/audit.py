"""What the agent remembers on disk: what it did and why, and what it must put back.

One SQLite file, with the strictest of SQLite's ways of writing: what was committed is there after `kill -9` and after a
power cut. Whatever is done to a pod is written here before it is done ("audit first, act second"), so that a file that
cannot be written (a full disk) keeps the agent from acting, and a new start always finds

* what each control group had before the agent first touched it (quota, weight, memory.high), beside what the agent
  last wrote and what it was about to write: only one of the latter two is the agent's own, everything else was somebody
  else's and stays;
* each deed, with what it was to release, what became of it, and what it released as measured a cycle later;
* how many evictions there were of late, and whatever else the agent is to know again (`keep`, `kept`).

The file is opened for this process alone: two agents would undo each other's work.

Everything here blocks, for as long as a disk takes to write; callers in an event loop use a thread.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from agent.cgroups import Quota, knobs
from agent.cgroups.knobs import Knob, Value
from agent.limits import Eviction
from agent.model import Original, Released

log = logging.getLogger(__name__)

T = TypeVar("T")

APPLICATION_ID = 0x4C574147
"""LWAG, in the header of the file."""
SCHEMA = 2
"""2: weights and memory.high are remembered too, by their knobs."""
ROWS = 20_000
"""How many deeds are kept; the oldest go first."""
PRUNE_EVERY = 100
MOST_ROWS_ASKED = 1000
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


class Outcome(StrEnum):
    """What became of a deed."""

    BEGUN = "begun"
    """Not known: it was about to be done when the process ended, or it is being done now."""
    DONE = "done"
    GONE = "gone"
    """There was nothing left to do it to; what was to be released is released."""
    FAILED = "failed"
    PROTECTED = "protected"
    """A PodDisruptionBudget did not allow it."""
    UNANSWERED = "unanswered"
    """The API did not answer: it may have been done."""
    FOREIGN = "foreign"
    """Somebody else had changed it meanwhile: left alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """One thing done, or about to be. `planned` is what it was to release and `used` what was used before, by resource;
    `before` and `after` are what it changes ({"quota": 50000, "period": 100000}; quota null is unlimited). `measured`
    is what was released as far as a cycle later tells, negative if more is used than before."""

    time: float
    kind: str
    cycle: int = 0
    pod: str = ""
    uid: str = ""
    container: str = ""
    container_id: str = ""
    owner: str = ""
    metric: str = ""
    reason: str = ""
    planned: Released = field(default_factory=dict)
    used: Released = field(default_factory=dict)
    before: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Any] = field(default_factory=dict)
    outcome: Outcome = Outcome.BEGUN
    message: str = ""
    finished: float | None = None
    measured: Released | None = None
    measured_at: float | None = None
    id: int = 0

    @property
    def namespace(self) -> str:
        """Of the pod, "" where it is about none."""
        return self.pod.partition("/")[0]

    def as_json(self) -> dict[str, Any]:
        """As GET /audit and the lines on standard output have it."""
        return asdict(self)


_MAPS = ("planned", "used", "before", "after", "measured")


@dataclass(frozen=True, slots=True)
class Remembered:
    """What a control group had, and which values are the agent's own: what it wrote last, and what it was about to
    write. `container` is "" for a pod's own group."""

    key: str
    pod: str
    uid: str
    container: str
    path: str
    since: float
    original: Value
    written: Value | None = None
    intended: Value | None = None

    @property
    def knob(self) -> Knob:
        """What it is."""
        return knobs.knob_of(self.original)

    @property
    def container_id(self) -> str:
        """Of the container, "" for a pod's own group."""
        return self.key if self.knob == knobs.CPU_MAX else ""

    def is_ours(self, found: Value) -> bool:
        """Whether the agent itself made it so."""
        return found in (self.written, self.intended)


def key_of(container_id: str, uid: str, knob: Knob) -> str:
    """Under which what a group had is remembered: a container's quota by its id, what is of a pod by its uid."""
    return container_id or f"{uid}/{knob}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which deeds: the newest `limit` (1000 at most) of those that are so."""

    since: float | None = None
    until: float | None = None
    kind: str | None = None
    outcome: str | None = None
    namespace: str | None = None
    pod: str | None = None
    before_id: int | None = None
    limit: int = 100


class Audit:
    """The file, open. `tell` gets every deed when it begins, ends and is measured. Each method may raise AuditError."""

    def __init__(
        self, connection: sqlite3.Connection, *, path: Path, tell: Callable[[Deed], None], rows: int, notice: str
    ) -> None:
        self.path = path
        self.notice = notice
        """Said to whoever runs the agent; "" if all was well."""
        self._connection = connection
        self._tell = tell
        self._rows = rows
        self._lock = threading.RLock()
        self._joined = False
        self._news: list[Deed] = []

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        now: float,
        tell: Callable[[Deed], None] = lambda _: None,
        rows: int = ROWS,
        begin_anew: bool = True,
    ) -> Self:
        """Open the file, or make it. One that is damaged is moved aside and kept; `notice` then says so. Raises
        AuditError if another process has it, if it is another program's, if a newer version wrote it, if it cannot be
        written, or, without `begin_anew`, if it would be moved aside."""
        notice = ""
        with _translated(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            why = _unusable(path)
            if why and not begin_anew:
                raise AuditError(
                    f"the audit file {path} cannot be used: {why}",
                    hint="If it is the agent's, containers that were throttled keep their quota until they restart:"
                    " move it away to go on without it. If it is not, name the agent's by --state-file.",
                )
            if why:
                notice = _set_aside(path, why, now=now)
                log.error("%s", notice)
            connection = _connect(path)
        return cls(connection, path=path, tell=tell, rows=rows, notice=notice)

    def close(self) -> None:
        """Once."""
        with self._lock:
            self._connection.close()

    # --- deeds -------------------------------------------------------------------------------------------------------

    def begin(self, deed: Deed) -> Deed:
        """Write down what is about to be done; once this returns, it may be. Returns it with its number."""
        with self._transaction():
            return self._news_of(self._insert(deed))

    def begin_change(self, deed: Deed, *, path: str, found: Value, intended: Value, afresh: bool = False) -> Deed:
        """The same of a group's knob. What the group has now (`found`) is remembered as its original unless one is
        already, or, `afresh`, in its place: somebody else has given it a new one since. Otherwise `found` is what the
        agent wrote last, although it may have ended before it could say so."""
        knob = knobs.knob_of(intended)
        key = key_of(deed.container_id, deed.uid, knob)
        identity = (key, deed.pod, deed.uid, deed.container, path, deed.time)
        with self._transaction():
            begun = self._news_of(self._insert(deed))
            if afresh:
                self._connection.execute("DELETE FROM originals WHERE key = ?", (key,))
            self._connection.execute(
                "INSERT INTO originals (key, pod, uid, container, path, since, original, intended, knob)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
                " ON CONFLICT (key) DO UPDATE SET intended = excluded.intended, written = excluded.original",
                (*identity, knobs.as_text(found), knobs.as_text(intended), knob),
            )
        return begun

    def finish(self, deed: Deed, outcome: Outcome, *, now: float, message: str = "") -> Deed:
        """Write down what became of it."""
        with self._transaction():
            return self._news_of(self._update(deed, outcome, now=now, message=message))

    def finish_change(
        self,
        deed: Deed,
        outcome: Outcome,
        *,
        now: float,
        written: Value | None,
        knob: Knob = knobs.CPU_MAX,
        message: str = "",
    ) -> Deed:
        """The same of a group's knob. `written` is what the group has now by the agent's doing; None if it has none of
        the agent's any more, and then there is nothing left to put back."""
        key = key_of(deed.container_id, deed.uid, knob)
        with self._transaction():
            done = self._news_of(self._update(deed, outcome, now=now, message=message))
            if written is None:
                self._connection.execute("DELETE FROM originals WHERE key = ?", (key,))
            else:
                self._connection.execute(
                    "UPDATE originals SET written = ?, intended = NULL WHERE key = ?", (knobs.as_text(written), key)
                )
        return done

    def measured(self, deed: Deed, released: Released, *, now: float) -> Deed:
        """Write down what a deed released, as far as can be seen."""
        with self._transaction():
            self._connection.execute(
                "UPDATE deeds SET measured = ?, measured_at = ? WHERE id = ?",
                (json.dumps(dict(released)), now, deed.id),
            )
            return self._news_of(replace(deed, measured=released, measured_at=now))

    def unmeasured(self, *, since: float, before: float) -> tuple[Deed, ...]:
        """Deeds begun in that time (`before` not included) that were done and of which no effect is known yet."""
        return self._select(
            "outcome IN ('done', 'gone') AND measured IS NULL AND planned != '{}' AND time >= ? AND time < ?",
            (since, before),
        )

    def deeds(self, wanted: Filter | None = None) -> tuple[Deed, ...]:
        """What was done, newest first."""
        wanted = wanted or Filter()
        tests = {
            "time >= ?": wanted.since,
            "time <= ?": wanted.until,
            "kind = ?": wanted.kind,
            "outcome = ?": wanted.outcome,
            "namespace = ?": wanted.namespace,
            "pod = ?": wanted.pod,
            "id < ?": wanted.before_id,
        }
        given = {test: value for test, value in tests.items() if value is not None}
        limit = max(1, min(wanted.limit, MOST_ROWS_ASKED))
        return self._select(" AND ".join(given) or "1", tuple(given.values()), limit=limit)

    def evictions(self, *, after: int = 0) -> Mapping[int, Eviction]:
        """Those that were done, or may have been, after the deed of that number: by their numbers, oldest first."""
        with self._reading() as connection:
            rows = connection.execute(
                "SELECT id, time, namespace, owner FROM deeds WHERE id > ? AND kind = 'evict'"
                " AND outcome IN ('begun', 'done', 'unanswered') ORDER BY id",
                (after,),
            )
            return {number: Eviction(*row) for number, *row in rows}

    def totals(self) -> Mapping[tuple[str, str], int]:
        """How often each kind of deed had each outcome, since the file was made."""
        with self._reading() as connection:
            return {(kind, outcome): count for kind, outcome, count in connection.execute("SELECT * FROM totals")}

    # --- what is to be put back --------------------------------------------------------------------------------------

    def remembered(self, key: str | None = None) -> Mapping[str, Remembered]:
        """What has, or may have, a value of the agent's, by its key (`key_of`); or this one alone."""
        with self._reading() as connection:
            rows = connection.execute(
                "SELECT knob, key, pod, uid, container, path, since, original, written, intended"
                " FROM originals WHERE ?1 IS NULL OR key = ?1 ORDER BY path, knob",
                (key,),
            )
            return {row[1]: _remembered(row) for row in rows}

    def owed(self) -> int:
        """How many these are."""
        with self._reading() as connection:
            (count,) = connection.execute("SELECT count(*) FROM originals").fetchone()
            return int(count)

    def originals(self) -> Mapping[str, Original]:
        """The quotas among them, for the planner, by container id."""
        return {
            each.container_id: Original(each.original.quota, each.original.period)
            for each in self.remembered().values()
            if isinstance(each.original, Quota)
        }

    def forget(self, key: str) -> None:
        """There is nothing to be put back: the group has ended, or has its original value, or somebody else's."""
        with self._transaction():
            self._connection.execute("DELETE FROM originals WHERE key = ?", (key,))

    # --- whatever else -----------------------------------------------------------------------------------------------

    def keep(self, name: str, value: object) -> None:
        """Remember something under this name, in the place of what was there: anything that msgspec writes as JSON (the
        ledger of what is in flight, the analyzer's counters)."""
        with self._transaction():
            encoded = msgspec.json.encode(value)
            self._connection.execute("INSERT OR REPLACE INTO kept (name, value) VALUES (?, ?)", (name, encoded))

    def kept(self, name: str, kind: type[T]) -> T | None:
        """What was kept under this name; None if there is nothing, or nothing of this kind: an earlier version of the
        agent may have kept something else, and whatever needs it must be able to begin without."""
        with self._reading() as connection:
            row = connection.execute("SELECT value FROM kept WHERE name = ?", (name,)).fetchone()
        if row is None:
            return None
        try:
            return msgspec.json.decode(row[0], type=kind)
        except msgspec.DecodeError as error:
            log.warning("what the audit file keeps as %s cannot be read, and is passed over: %s", name, error)
            return None

    # --- inside ------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """What is written inside, by this thread, is committed at once: one wait for the disk and not one each."""
        with self._transaction():
            self._joined = True
            try:
                yield
            finally:
                self._joined = False

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock, _translated(self.path):
            if self._joined:
                yield
                return
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                self._news.clear()
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
        news, self._news = self._news, []
        for deed in news:
            self._tell(deed)

    def _news_of(self, deed: Deed) -> Deed:
        """To be told once it is committed."""
        self._news.append(deed)
        return deed

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock, _translated(self.path):
            yield self._connection

    def _insert(self, deed: Deed) -> Deed:
        row = {**_as_row(deed), "namespace": deed.namespace}
        del row["id"]
        names, marks = ", ".join(row), ", ".join("?" * len(row))
        cursor = self._connection.execute(f"INSERT INTO deeds ({names}) VALUES ({marks})", tuple(row.values()))
        number = cursor.lastrowid or 0
        if number % PRUNE_EVERY == 0:
            self._connection.execute("DELETE FROM deeds WHERE id <= ?", (number - self._rows,))
        return replace(deed, id=number)

    def _update(self, deed: Deed, outcome: Outcome, *, now: float, message: str) -> Deed:
        self._connection.execute(
            "UPDATE deeds SET outcome = ?, message = ?, finished = ? WHERE id = ?", (outcome, message, now, deed.id)
        )
        self._connection.execute(
            "INSERT INTO totals (kind, outcome, count) VALUES (?, ?, 1)"
            " ON CONFLICT (kind, outcome) DO UPDATE SET count = count + 1",
            (deed.kind, outcome),
        )
        return replace(deed, outcome=outcome, message=message, finished=now)

    def _select(self, condition: str, values: tuple[Any, ...], *, limit: int = MOST_ROWS_ASKED) -> tuple[Deed, ...]:
        names = ", ".join(each.name for each in fields(Deed))
        query = f"SELECT {names} FROM deeds WHERE {condition} ORDER BY id DESC LIMIT ?"
        with self._reading() as connection:
            return tuple(_as_deed(row) for row in connection.execute(query, (*values, limit)))


def json_lines(write: Callable[[str], object]) -> Callable[[Deed], None]:
    """A `tell` that writes a line of JSON for each event. One that cannot be written is no reason not to act: the file
    has it."""

    def tell(deed: Deed) -> None:
        with contextlib.suppress(OSError, ValueError):
            write(json.dumps({"audit": deed.as_json()}, separators=(",", ":")) + "\n")

    return tell


# --- rows ------------------------------------------------------------------------------------------------------------


def _as_row(deed: Deed) -> dict[str, Any]:
    row = asdict(deed)
    return {name: json.dumps(value) if name in _MAPS and value is not None else value for name, value in row.items()}


def _as_deed(row: tuple[Any, ...]) -> Deed:
    values = dict(zip((each.name for each in fields(Deed)), row, strict=True))
    for name in _MAPS:
        values[name] = None if values[name] is None else json.loads(values[name])
    return Deed(**{**values, "outcome": Outcome(values["outcome"])})


def _remembered(row: tuple[Any, ...]) -> Remembered:
    knob, key, pod, uid, container, path, since, *values = row
    original, written, intended = (None if text is None else knobs.from_text(knob, text) for text in values)
    assert original is not None  # the table says so
    return Remembered(key, pod, uid, container, path, since, original, written, intended)


# --- the file --------------------------------------------------------------------------------------------------------


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
