"""The agent's audit file: actions with their reasons and results, and the original values that it has to restore.

It is one SQLite file in WAL mode with synchronous=FULL, so committed data survives `kill -9` and a power failure. The
agent writes each action before it carries it out, so a file that cannot be written (a full disk) stops all actions.
After a restart the agent finds in it

* the value that each control group had before the agent's first write (quota, weight, memory.high), the value that the
  agent last wrote, and the value that it was about to write. A group with any other value was changed by another
  program and is left unchanged;
* each audit entry, with the planned release, the outcome, and the release measured one cycle later;
* recent evictions, and other saved values (`save_value`, `load_value`).

The file is locked for this process: two agents would undo each other's changes.

All functions block while the disk is written; callers in an event loop use a thread.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from agent.audit.database import ROWS, AuditError, _connect, _move_damaged_aside, _translated, _unusable
from agent.cgroups.values import CPU_MAX, Knob, Quota, Value, as_text, from_text, knob_of, same_quota
from agent.decision.eviction_limits import EvictionRecord
from agent.model import Original, Released
from watcher.decoding.json_text import decode_json

log = logging.getLogger(__name__)

T = TypeVar("T")

PRUNE_EVERY = 100
MOST_ROWS_ASKED = 1000


# --- values ----------------------------------------------------------------------------------------------------------


class AuditOutcome(StrEnum):
    """Outcome of an audit entry."""

    BEGUN = "begun"
    """Unknown: the action is in progress, or the process ended before it finished."""
    DONE = "done"
    GONE = "gone"
    """The pod or container no longer existed, so its resources are released."""
    FAILED = "failed"
    PROTECTED = "protected"
    """A PodDisruptionBudget refused the eviction."""
    UNANSWERED = "unanswered"
    """The API did not respond; the action may have been carried out."""
    FOREIGN = "foreign"
    """Another program had changed the value; it was left unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """An audit entry: one action that is planned, in progress or finished.

    time, finished, measured_at  unix seconds
    planned, measured, used      by resource, in millicores and bytes: the planned release, the release measured in a
                                 later cycle (negative if usage grew), and the usage before the action
    before, after                the changed value ({"quota": 50000, "period": 100000} in microseconds; null: unlimited)
    """

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
    outcome: AuditOutcome = AuditOutcome.BEGUN
    message: str = ""
    finished: float | None = None
    measured: Released | None = None
    measured_at: float | None = None
    id: int = 0

    @property
    def namespace(self) -> str:
        """Namespace of the pod; "" for an entry without a pod."""
        return self.pod.partition("/")[0]

    def as_json(self) -> dict[str, Any]:
        """The entry in the format of GET /audit and of the lines on standard output."""
        return asdict(self)


_MAPS = ("planned", "used", "before", "after", "measured")


@dataclass(frozen=True, slots=True)
class StoredOriginal:
    """Original value of a control group, with the value that the agent last wrote (`written`) and the value that it was
    about to write (`intended`). `container` is "" for the pod's own group; `since` is in unix seconds."""

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
        """The knob of the value: cpu.max, cpu.weight or memory.high."""
        return knob_of(self.original)

    @property
    def container_id(self) -> str:
        """Id of the container; "" for the pod's own group."""
        return self.key if self.knob == CPU_MAX else ""

    def written_by_agent(self, found: Value) -> bool:
        """Whether the agent wrote, or may have written, the value `found`. The burst of a quota does not count: the
        agent may have been ended between writing the burst and the quota."""
        if same_quota(found, self.original) and found != self.original:
            return True
        return any(same_quota(found, each) for each in (self.written, self.intended))


def key_of(container_id: str, uid: str, knob: Knob) -> str:
    """Key of an original value: the container id for a quota, uid/knob for a value of the pod's own group."""
    return container_id or f"{uid}/{knob}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Selects the newest `limit` (at most 1000) audit entries that match all given fields; times in unix seconds."""

    since: float | None = None
    until: float | None = None
    kind: str | None = None
    outcome: str | None = None
    namespace: str | None = None
    pod: str | None = None
    before_id: int | None = None
    limit: int = 100


def json_lines(write: Callable[[str], object]) -> Callable[[AuditEntry], None]:
    """Return a `tell` callback that writes each entry as a line of JSON. Write errors are ignored: the entry is in the
    audit file."""

    def tell(deed: AuditEntry) -> None:
        with contextlib.suppress(OSError, ValueError):
            write(json.dumps({"audit": deed.as_json()}, separators=(",", ":")) + "\n")

    return tell


# --- the file --------------------------------------------------------------------------------------------------------


class Audit:
    """The open audit file. `on_entry` is called with each entry when it begins, ends and is measured. Each method may
    raise AuditError."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        *,
        path: Path,
        on_entry: Callable[[AuditEntry], None],
        rows: int,
        notice: str,
    ) -> None:
        self.path = path
        self.notice = notice
        """Message for the operator if a damaged file was moved aside, otherwise ""."""
        self._connection = connection
        self._on_entry = on_entry
        self._rows = rows
        self._lock = threading.RLock()
        self._in_batch = False
        self._pending: list[AuditEntry] = []

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        now: float,
        tell: Callable[[AuditEntry], None] = lambda _: None,
        rows: int = ROWS,
        replace_damaged: bool = True,
    ) -> Self:
        """Open the file, or create it. A damaged file is moved aside, and `notice` reports it. `now` is in unix
        seconds. Raises AuditError if another process has the file open, if it belongs to another program, if a newer
        version wrote it, if it cannot be written, or, without `replace_damaged`, if it would have to be moved aside."""
        notice = ""
        with _translated(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            why = _unusable(path, new_allowed=replace_damaged)
            if why and not replace_damaged:
                raise AuditError(
                    f"the audit file {path} cannot be used: {why}",
                    hint="If it is the agent's file, move it to another directory to continue without it; throttled "
                    "containers then keep their quota until they restart. Otherwise, specify the agent's file with "
                    "--state-file.",
                )
            if why:
                notice = _move_damaged_aside(path, why, now=now)
                log.error("%s", notice)
            connection = _connect(path)
        return cls(connection, path=path, on_entry=tell, rows=rows, notice=notice)

    def close(self) -> None:
        """Close the file. Must be called only once."""
        with self._lock:
            self._connection.close()

    # --- entries -----------------------------------------------------------------------------------------------------

    def begin(self, deed: AuditEntry) -> AuditEntry:
        """Record an action before it is carried out; the caller may act once this returns. Returns the entry with its
        id."""
        with self._transaction():
            return self._queue_notification(self._insert(deed))

    def begin_change(
        self, deed: AuditEntry, *, path: str, found: Value, intended: Value, replace_original: bool = False
    ) -> AuditEntry:
        """Record a change of a group's knob before it is carried out. If no original value is stored, or if
        `replace_original` (another program has changed the value since), the current value `found` is stored as the
        original. Otherwise `found` is stored as the value that the agent last wrote, because the agent may have ended
        before recording it."""
        knob = knob_of(intended)
        key = key_of(deed.container_id, deed.uid, knob)
        identity = (key, deed.pod, deed.uid, deed.container, path, deed.time)
        with self._transaction():
            begun = self._queue_notification(self._insert(deed))
            if replace_original:
                self._connection.execute("DELETE FROM originals WHERE key = ?", (key,))
            self._connection.execute(
                "INSERT INTO originals (key, pod, uid, container, path, since, original, intended, knob)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
                " ON CONFLICT (key) DO UPDATE SET intended = excluded.intended, written = excluded.original",
                (*identity, as_text(found), as_text(intended), knob),
            )
        return begun

    def finish(self, deed: AuditEntry, outcome: AuditOutcome, *, now: float, message: str = "") -> AuditEntry:
        """Record the outcome of an entry; `now` is in unix seconds."""
        with self._transaction():
            return self._queue_notification(self._update(deed, outcome, now=now, message=message))

    def finish_change(
        self,
        deed: AuditEntry,
        outcome: AuditOutcome,
        *,
        now: float,
        written: Value | None,
        knob: Knob = CPU_MAX,
        message: str = "",
    ) -> AuditEntry:
        """Record the outcome of a change of a group's knob. `written` is the value that the agent wrote; None if the
        group no longer has a value of the agent, and then the original value is deleted."""
        key = key_of(deed.container_id, deed.uid, knob)
        with self._transaction():
            done = self._queue_notification(self._update(deed, outcome, now=now, message=message))
            if written is None:
                self._connection.execute("DELETE FROM originals WHERE key = ?", (key,))
            else:
                self._connection.execute(
                    "UPDATE originals SET written = ?, intended = NULL WHERE key = ?", (as_text(written), key)
                )
        return done

    def record_effect(self, deed: AuditEntry, released: Released, *, now: float) -> AuditEntry:
        """Record the measured release of an entry (millicores, bytes); `now` is in unix seconds."""
        with self._transaction():
            self._connection.execute(
                "UPDATE deeds SET measured = ?, measured_at = ? WHERE id = ?",
                (json.dumps(dict(released)), now, deed.id),
            )
            return self._queue_notification(replace(deed, measured=released, measured_at=now))

    def entries_without_effect(self, *, since: float, before: float) -> tuple[AuditEntry, ...]:
        """Entries of that time (unix seconds, `before` excluded) that were carried out and have no measured release
        yet."""
        return self._select(
            "outcome IN ('done', 'gone') AND measured IS NULL AND planned != '{}' AND time >= ? AND time < ?",
            (since, before),
        )

    def entries(self, wanted: Filter | None = None) -> tuple[AuditEntry, ...]:
        """The entries that match `wanted`, newest first."""
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

    def evictions(self, *, after: int = 0) -> Mapping[int, EvictionRecord]:
        """Evictions that were done, may have been, or were refused, with an entry id above `after`: by entry id, oldest
        first. Pods that a PodDisruptionBudget protected, or that were gone, are not included."""
        with self._reading() as connection:
            rows = connection.execute(
                "SELECT id, time, namespace, owner, outcome = 'failed' FROM deeds WHERE id > ? AND kind = 'evict'"
                " AND outcome IN ('begun', 'done', 'unanswered', 'failed') ORDER BY id",
                (after,),
            )
            return {
                number: EvictionRecord(time, namespace, owner, bool(failed))
                for number, time, namespace, owner, failed in rows
            }

    def totals(self) -> Mapping[tuple[str, str], int]:
        """Number of entries by (kind, outcome) since the file was created."""
        with self._reading() as connection:
            return {(kind, outcome): count for kind, outcome, count in connection.execute("SELECT * FROM totals")}

    # --- original values ---------------------------------------------------------------------------------------------

    def originals_by_key(self, key: str | None = None) -> Mapping[str, StoredOriginal]:
        """Original values of all groups that have, or may have, a value of the agent, by key (`key_of`); with `key`,
        only for this key."""
        with self._reading() as connection:
            rows = connection.execute(
                "SELECT knob, key, pod, uid, container, path, since, original, written, intended"
                " FROM originals WHERE ?1 IS NULL OR key = ?1 ORDER BY path, knob",
                (key,),
            )
            return {row[1]: _remembered(row) for row in rows}

    def count_originals(self) -> int:
        """Number of stored original values."""
        with self._reading() as connection:
            (count,) = connection.execute("SELECT count(*) FROM originals").fetchone()
            return int(count)

    def original_quotas(self) -> Mapping[str, Original]:
        """Stored original CPU quotas, by container id, for the planner."""
        return {
            each.container_id: Original(each.original.quota, each.original.period)
            for each in self.originals_by_key().values()
            if isinstance(each.original, Quota)
        }

    def forget(self, key: str) -> None:
        """Delete an original value that needs no restore: the group is gone, or has its original value or one of
        another program."""
        with self._transaction():
            self._connection.execute("DELETE FROM originals WHERE key = ?", (key,))

    # --- other saved values ------------------------------------------------------------------------------------------

    def save_value(self, name: str, value: object) -> None:
        """Save a value under this name, replacing the earlier one: anything that msgspec encodes as JSON (the ledger,
        the analyzer's counts)."""
        with self._transaction():
            encoded = msgspec.json.encode(value)
            self._connection.execute("INSERT OR REPLACE INTO kept (name, value) VALUES (?, ?)", (name, encoded))

    def load_value(self, name: str, kind: type[T]) -> T | None:
        """The value saved under this name; None if there is none, or if it cannot be decoded as `kind` (another version
        of the agent may have saved a different type)."""
        with self._reading() as connection:
            row = connection.execute("SELECT value FROM kept WHERE name = ?", (name,)).fetchone()
        if row is None:
            return None
        try:
            return decode_json(row[0], type=kind)
        except msgspec.DecodeError as error:
            log.warning("ignoring the value %r saved in the audit file, which cannot be decoded: %s", name, error)
            return None

    # --- transactions ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """Commit all writes of this thread in the block as one transaction, with a single disk sync."""
        with self._transaction():
            self._in_batch = True
            try:
                yield
            finally:
                self._in_batch = False

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock, _translated(self.path):
            if self._in_batch:
                yield
                return
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                self._pending.clear()
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
        news, self._pending = self._pending, []
        for deed in news:
            self._on_entry(deed)

    def _queue_notification(self, deed: AuditEntry) -> AuditEntry:
        """Queue an entry to be reported after the commit; returns it."""
        self._pending.append(deed)
        return deed

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock, _translated(self.path):
            try:
                yield self._connection
            except (ValueError, TypeError, AttributeError) as error:  # a column of SQLite can have values of any type
                raise AuditError(
                    f"the audit file {self.path} has a row that cannot be read: {error}",
                    hint="Stop the agent and move the file to another directory. Containers that are throttled then "
                    "keep their quota until they restart.",
                ) from error

    def _insert(self, deed: AuditEntry) -> AuditEntry:
        row = {**_as_row(deed), "namespace": deed.namespace}
        del row["id"]
        names, marks = ", ".join(row), ", ".join("?" * len(row))
        cursor = self._connection.execute(f"INSERT INTO deeds ({names}) VALUES ({marks})", tuple(row.values()))
        number = cursor.lastrowid or 0
        if number % PRUNE_EVERY == 0:
            self._connection.execute("DELETE FROM deeds WHERE id <= ?", (number - self._rows,))
        return replace(deed, id=number)

    def _update(self, deed: AuditEntry, outcome: AuditOutcome, *, now: float, message: str) -> AuditEntry:
        self._connection.execute(
            "UPDATE deeds SET outcome = ?, message = ?, finished = ? WHERE id = ?", (outcome, message, now, deed.id)
        )
        self._connection.execute(
            "INSERT INTO totals (kind, outcome, count) VALUES (?, ?, 1)"
            " ON CONFLICT (kind, outcome) DO UPDATE SET count = count + 1",
            (deed.kind, outcome),
        )
        return replace(deed, outcome=outcome, message=message, finished=now)

    def _select(
        self, condition: str, values: tuple[Any, ...], *, limit: int = MOST_ROWS_ASKED
    ) -> tuple[AuditEntry, ...]:
        names = ", ".join(each.name for each in fields(AuditEntry))
        query = f"SELECT {names} FROM deeds WHERE {condition} ORDER BY id DESC LIMIT ?"
        with self._reading() as connection:
            return tuple(_as_deed(row) for row in connection.execute(query, (*values, limit)))


# --- rows ------------------------------------------------------------------------------------------------------------


def _as_row(deed: AuditEntry) -> dict[str, Any]:
    row = asdict(deed)
    return {name: json.dumps(value) if name in _MAPS and value is not None else value for name, value in row.items()}


def _as_deed(row: tuple[Any, ...]) -> AuditEntry:
    values = dict(zip((each.name for each in fields(AuditEntry)), row, strict=True))
    for name in _MAPS:
        values[name] = None if values[name] is None else decode_json(values[name])
    return AuditEntry(**{**values, "outcome": AuditOutcome(values["outcome"])})


def _remembered(row: tuple[Any, ...]) -> StoredOriginal:
    knob, key, pod, uid, container, path, since, *values = row
    original, written, intended = (None if text is None else from_text(knob, text) for text in values)
    assert original is not None  # the column is NOT NULL
    return StoredOriginal(key, pod, uid, container, path, since, original, written, intended)
