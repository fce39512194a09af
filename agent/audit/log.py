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
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from agent.audit.database import ROWS, AuditError, _connect, _set_aside, _translated, _unusable
from agent.audit.entries import _MAPS, Deed, Filter, Outcome, Remembered, key_of
from agent.cgroups import knobs
from agent.cgroups.base import Quota
from agent.cgroups.knobs import Knob, Value
from agent.decision.eviction_limits import Eviction
from agent.model import Original, Released

log = logging.getLogger(__name__)

T = TypeVar("T")

PRUNE_EVERY = 100
MOST_ROWS_ASKED = 1000


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
