"""What is done to the database between two saves, a slice at a time, so that a save never waits for long.

Windows and decisions whose time is over are forgotten, and all that a watcher left which is gone for good; the minutes
of an hour that has closed are rewritten into chunks of nodes, from which the history of one node is read quickly; a
database above its cap loses the hours that are furthest from now; and free pages go back to the file system. Whatever
interrupts this, even `kill -9`, leaves a whole database behind and work that the next start takes up.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from watcher.model import Finding, FindingKind, Remedy, TickRecord
from watcher.store import codec, decision_rows, schema, tables
from watcher.store.codec import CodecError, Grid, HourBuilder
from watcher.store.database import Database
from watcher.store.tables import Rows

logger = logging.getLogger(__name__)
Result = TypeVar("Result")

MINUTES_PER_SLICE = 10
CHUNKS_PER_SLICE = 40
DECISIONS_PER_SLICE = 1000


class Tidier:
    """Keeps one database tidy. All of it runs in the thread that writes.

    `retention`: seconds of window history; `max_size`: bytes; `decisions`: for how many seconds these are kept, and
    `max_decisions` how many of them; `findings`: that the cap is smaller than the retention.
    """

    def __init__(self, *, retention: float, max_size: int, decisions: float, max_decisions: int) -> None:
        self.findings: tuple[Finding, ...] = ()
        self._retention = retention
        self._max_size = max_size
        self._decisions = decisions
        self._max_decisions = max_decisions
        self._now = 0
        self._added_to: set[tuple[str, int]] = set()

    def stored(self, record: TickRecord) -> None:
        """Take note of a tick: its end is now, and the hours of its minutes are not what they were."""
        self._now = int(record.end)
        self._added_to |= {(minute.window.label, schema.hour_of(minute.time)) for minute in record.records}

    def slices(self, database: Database) -> Iterator[None]:
        """All that is to be done now, in steps of some 20 ms at 5,000 nodes, each a transaction or none at all."""
        with database.writing() as mine:
            schema.forget_windows(mine, now=self._now, retention=self._retention)
            open_hour = schema.hour_of(self._now)
            closed = [key for key in schema.hours_with_minutes(mine) if key[1] != open_hour]
            departed = schema.departed(mine, now=self._now)
        yield
        for watcher in departed:
            _forget(database, watcher)
            yield
        for window, hour in closed:
            yield from self._rewrite_hour(database, window, hour)
        while self._forget_decisions(database):
            yield
        while self._cut(database):
            yield
        while database.give_space_back(most=self._max_size):
            yield

    def _rewrite_hour(self, database: Database, window: str, hour: int) -> Iterator[None]:
        """Turn the minutes of an hour, and what was rewritten of it before, into chunks of nodes: read and encoded in
        slices, then exchanged in one transaction, unless a save has meanwhile added to this very hour."""
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
            # The first has no lower bound, so that a name before all others finds the hour's times too.
            payloads[codec.node_key(chunk.names[0]) if payloads else b""] = codec.encode_chunk(chunk)
            if len(payloads) % CHUNKS_PER_SLICE == 0:
                yield
                if (window, hour) in self._added_to:
                    return
        with database.writing() as mine:
            schema.put_hour(mine, window, hour, payloads)
        yield

    def _forget_decisions(self, database: Database) -> bool:
        with database.writing() as mine:
            return self.forget_decisions(mine, limit=DECISIONS_PER_SLICE) == DECISIONS_PER_SLICE

    def forget_decisions(self, mine: Rows, *, limit: int) -> int:
        """Remove decisions whose time is over, and of too many the oldest, so many at once; how many it were. Ticks are
        no clock for them: samples may be old."""
        oldest, newest = (int((time.time() + sign * self._decisions) * tables.MICROSECONDS) for sign in (-1, 1))
        return decision_rows.forget_decisions(mine, oldest=oldest, newest=newest, most=self._max_decisions, limit=limit)

    def _cut(self, database: Database) -> bool:
        """Where the database is larger than it may be, forget the hour that is furthest from now; whether it did."""
        with database.writing() as mine:
            if database.used_bytes(mine) <= self._max_size:
                return False
            windows = {*schema.hours_rewritten(mine), *schema.hours_with_minutes(mine)}
            hours = {*(hour for _, hour in windows), *decision_rows.decision_hours(mine)}
            self._report_cut()
            if not hours:
                return False
            furthest = max(hours, key=lambda hour: abs(hour - self._now))
            for window, hour in windows:
                if hour == furthest:
                    schema.forget_hour(mine, window, hour)
            decision_rows.forget_decisions_of_hour(mine, furthest)
        return True

    def _report_cut(self) -> None:
        if not self.findings:
            reason = "the database has reached store.max_size; what is oldest is forgotten before its time"
            logger.warning("%s", reason)
            self.findings = (Finding(FindingKind.STORE, "", "", float(self._now), reason, Remedy.DROPPED),)


def _forget(database: Database, watcher: str) -> None:
    """Remove the rows of a watcher that is gone, unless it is coming back at this moment."""
    with database.writing() as mine:
        if database.may_forget(mine, watcher):
            schema.forget_all(Rows(mine.connection, watcher))
            logger.info('what the watcher "%s" had stored is removed: it is older than it was to be kept', watcher)


@dataclass(frozen=True, slots=True)
class _Minute:
    time: int
    columns: codec.Columns
    names: tuple[str, ...]


def _hour_builder(database: Database, window: str, hour: int) -> tuple[HourBuilder, list[_Minute]]:
    """A builder that knows all times, columns and nodes of an hour, with what was rewritten before laid in, and the
    minutes that are still to be laid over it."""
    with database.writing() as mine:
        lists = schema.NodeLists(mine)
        minutes = [
            _Minute(time_, columns, lists[nodes])
            for time_, columns, nodes in schema.minutes_of_hour(mine, window, hour)
        ]
        payloads = schema.chunk_payloads(mine, window, hour)
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
        payload = schema.minute_payload(mine, window, minute.time)
    values = _readable(
        lambda payload: codec.decode_minute(payload, columns=len(minute.columns), nodes=len(minute.names)), payload
    )
    if values is not None:
        time_ = np.array([minute.time], dtype=np.int64)
        builder.replace(Grid(time_, minute.columns, minute.names, values[np.newaxis]))


def _readable(decode: Callable[[bytes], Result], payload: bytes) -> Result | None:
    """What the payload decodes to; None if it is damaged. One that was lost must not keep its hour open for ever."""
    try:
        return decode(payload)
    except CodecError as error:
        logger.warning("a stored part of the history is lost: %s", error)
        return None
