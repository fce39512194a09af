"""Retention and compaction of the database, in short slices between two saves so that a save never waits for long.

The slices delete expired windows and decisions and the rows of watchers that no longer exist, compact the minutes of
closed hours into chunks of nodes (which makes queries for one node fast), delete the hours furthest from now while the
database exceeds max_size, and release free pages to the file system. An interruption at any time, even by `kill -9`,
leaves a consistent database, and the next start resumes the work.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from watcher.core.decisions import MICROSECONDS, StoredDecision
from watcher.core.windows.records import TickRecord, WindowRecord
from watcher.model import Finding, FindingKind, Remedy
from watcher.store import codec, schema
from watcher.store.codec import CodecError, Grid, HourBuilder
from watcher.store.decisions import rows as decision_rows
from watcher.store.engines.database import Database
from watcher.store.history import rows as history_rows
from watcher.store.settings import StoreSettings
from watcher.store.tables import Rows

logger = logging.getLogger(__name__)
Result = TypeVar("Result")

MINUTES_PER_SLICE = 10
CHUNKS_PER_SLICE = 40
DECISIONS_PER_SLICE = 1000
POD_SHARE = 100
"""A pod may displace older decisions of others while it has less than max_decisions / POD_SHARE."""
MAXIMA_S = 7 * 86400.0
"""Default retention of the maxima of forecasts in seconds."""
DEFAULT_MAX_SIZE = 2 << 30  # bytes, for small fleets
STORED_BYTES_PER_VALUE = 2.4  # measured for smooth load (docs/reference/store.md)
LIMIT_BYTES_PER_VALUE = 4  # a float32 before compression


def default_max_size(values: int, *, retention: float) -> int:
    """Return the limit in bytes without store.max_size: enough for `values` window values per minute, stored for
    `retention` seconds, and at least DEFAULT_MAX_SIZE."""
    return max(DEFAULT_MAX_SIZE, int(LIMIT_BYTES_PER_VALUE * values * retention / 60))


class Compactor:
    """Applies retention to one database and compacts it. All methods run in the writer thread.

    `maxima`: retention of the maxima of forecasts in seconds; `findings`: reports if max_size is too small for the
    retention.
    """

    def __init__(self, settings: StoreSettings, *, maxima: float = MAXIMA_S) -> None:
        self.findings: tuple[Finding, ...] = ()
        self._settings = settings
        self._max_size = DEFAULT_MAX_SIZE if settings.max_size is None else settings.max_size
        self._grows = settings.max_size is None
        self._maxima = maxima
        self._now = 0
        self._added_to: set[tuple[str, int]] = set()

    def opened(self, size: int) -> None:
        """Record the size of the database at the start in bytes. A limit that grows does not cut what earlier ticks of
        a larger fleet have stored."""
        if self._grows:
            self._max_size = max(self._max_size, size)

    def stored(self, record: TickRecord) -> None:
        """Record a stored tick: its end is the current time, and the hours of its minutes have changed."""
        self._now = int(record.end)
        if self._grows:
            values = sum(minute.values.size for minute in record.records)
            self._max_size = max(self._max_size, default_max_size(values, retention=self._settings.retention))
        self.added(record.records)

    def added(self, records: Iterable[WindowRecord]) -> None:
        """Record that the hours of these minutes have changed."""
        self._added_to |= {(minute.window.label, history_rows.hour_of(minute.time)) for minute in records}

    def slices(self, database: Database) -> Iterator[None]:
        """Run all pending work in steps of about 20 ms at 5,000 nodes, each with at most one transaction."""
        with database.writing() as mine:
            history_rows.forget_windows(mine, now=self._now, retention=self._settings.retention)
            schema.forget_maxima(mine, now=self._now, keep=self._maxima)
            open_hour = history_rows.hour_of(self._now)
            closed = [key for key in history_rows.hours_with_minutes(mine) if key[1] != open_hour]
            departed = schema.expired_watchers(mine, now=self._now)
        yield
        for watcher in departed:
            _forget(database, watcher)
            yield
        for window, hour in closed:
            yield from self._rewrite_hour(database, window, hour)
        while self._forget_decisions(database):
            yield
        while self._enforce_max_size(database):
            yield
        while database.release_space(most=self._max_size):
            yield

    def _rewrite_hour(self, database: Database, window: str, hour: int) -> Iterator[None]:
        """Compact the minutes of an hour, together with its existing chunks, into chunks of nodes: read and encode them
        in slices, then replace them in one transaction. Stops if a save adds minutes to this hour in the meantime."""
        self._added_to.discard((window, hour))
        builder, minutes = _hour_builder(database, window, hour)
        for count, minute in enumerate(minutes, start=1):
            _add_minute(database, builder, window, minute)
            if count % MINUTES_PER_SLICE == 0:
                yield
                if (window, hour) in self._added_to:
                    return
        payloads: dict[bytes, bytes] = {}
        for chunk in builder.chunks():
            # The first chunk has no lower bound, so that a query for a name before all others finds the hour's times.
            payloads[codec.node_key(chunk.names[0]) if payloads else b""] = codec.encode_chunk(chunk)
            if len(payloads) % CHUNKS_PER_SLICE == 0:
                yield
                if (window, hour) in self._added_to:
                    return
        with database.writing() as mine:
            history_rows.put_hour(mine, window, hour, payloads)
        yield

    def _forget_decisions(self, database: Database) -> bool:
        with database.writing() as mine:
            return self.forget_decisions(mine, limit=DECISIONS_PER_SLICE) == DECISIONS_PER_SLICE

    def forget_decisions(self, mine: Rows, *, limit: int) -> int:
        """Delete at most `limit` decisions that are expired or exceed max_decisions (oldest first). Returns the number
        of deleted rows. Uses the wall clock and not the time of ticks, because samples may be old."""
        oldest, newest = (int((time.time() + sign * self._settings.decisions) * MICROSECONDS) for sign in (-1, 1))
        return decision_rows.forget_decisions(
            mine, oldest=oldest, newest=newest, most=self._settings.max_decisions, limit=limit
        )

    def forget_surplus(self, mine: Rows, decisions: Sequence[StoredDecision]) -> None:
        """If max_decisions is exceeded, delete first of the pods of these decisions that have more than their share."""
        pods = ((each.namespace, each.pod) for each in decisions if each.kind == "placement")
        most = self._settings.max_decisions
        decision_rows.forget_surplus(mine, pods, most=most, share=most // POD_SHARE)

    def _enforce_max_size(self, database: Database) -> bool:
        """If the database exceeds max_size, delete the hour furthest from now. Returns whether an hour was deleted."""
        with database.writing() as mine:
            if database.used_bytes(mine) <= self._max_size:
                return False
            windows = {*history_rows.hours_rewritten(mine), *history_rows.hours_with_minutes(mine)}
            hours = {*(hour for _, hour in windows), *decision_rows.decision_hours(mine)}
            self._report_cut()
            if not hours:
                return False
            furthest = max(hours, key=lambda hour: abs(hour - self._now))
            for window, hour in windows:
                if hour == furthest:
                    history_rows.forget_hour(mine, window, hour)
            decision_rows.forget_decisions_of_hour(mine, furthest)
        return True

    def _report_cut(self) -> None:
        if not self.findings:
            reason = "the database has reached store.max_size; the oldest data is deleted before its retention ends"
            logger.warning("%s", reason)
            self.findings = (Finding(FindingKind.STORE, "", "", float(self._now), reason, Remedy.DROPPED),)


def _forget(database: Database, watcher: str) -> None:
    """Delete the rows of an expired watcher, unless a process holds its lock."""
    with database.writing() as mine:
        if database.can_remove(mine, watcher):
            schema.forget_all(Rows(mine.connection, watcher))
            logger.info('deleted all data of the watcher "%s": its retention has ended', watcher)


@dataclass(frozen=True, slots=True)
class _Minute:
    time: int
    columns: codec.Columns
    names: tuple[str, ...]


def _hour_builder(database: Database, window: str, hour: int) -> tuple[HourBuilder, list[_Minute]]:
    """A builder with all times, columns and nodes of an hour that contains the existing chunks, and the minutes that
    remain to be added."""
    with database.writing() as mine:
        lists = schema.NodeLists(mine)
        minutes = [
            _Minute(time_, columns, lists[nodes])
            for time_, columns, nodes in history_rows.minutes_of_hour(mine, window, hour)
        ]
        payloads = history_rows.chunk_payloads(mine, window, hour)
    chunks = [chunk for payload in payloads if (chunk := _readable(codec.decode_chunk, payload)) is not None]
    builder = HourBuilder(
        times=[*(minute.time for minute in minutes), *(int(time_) for chunk in chunks for time_ in chunk.times)],
        columns=[*(chunk.columns for chunk in chunks), *(minute.columns for minute in minutes)],
        names=[*(chunk.names for chunk in chunks), *(minute.names for minute in minutes)],
    )
    for chunk in chunks:
        builder.add(chunk)
    return builder, minutes


def _add_minute(database: Database, builder: HourBuilder, window: str, minute: _Minute) -> None:
    with database.writing() as mine:
        payload = history_rows.minute_payload(mine, window, minute.time)
    values = _readable(
        lambda payload: codec.decode_minute(payload, columns=len(minute.columns), nodes=len(minute.names)), payload
    )
    if values is not None:
        time_ = np.array([minute.time], dtype=np.int64)
        builder.replace(Grid(time_, minute.columns, minute.names, values[np.newaxis]))


def _readable(decode: Callable[[bytes], Result], payload: bytes) -> Result | None:
    """The decoded payload; None if it is damaged, so that a damaged payload does not block compaction of its hour."""
    try:
        return decode(payload)
    except CodecError as error:
        logger.warning("cannot read a stored part of the history; it is lost: %s", error)
        return None
