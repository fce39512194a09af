"""What is done to the database between two saves, a slice at a time, so that a save never waits for long.

Windows whose time is over are forgotten; the minutes of an hour that has closed are rewritten into chunks of nodes,
from which the history of one node is read quickly; a database above its cap loses the hours that are furthest from now;
and free pages go back to the file system. Whatever interrupts this, even `kill -9`, leaves a whole database behind and
work that the next start takes up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from watcher.model import Finding, FindingKind, Remedy, TickRecord
from watcher.store import codec, schema
from watcher.store.codec import CodecError, Grid, HourBuilder
from watcher.store.schema import Engine

logger = logging.getLogger(__name__)
Result = TypeVar("Result")

MINUTES_PER_SLICE = 10
CHUNKS_PER_SLICE = 40
PAGES_PER_SLICE = 1024


class Tidier:
    """Keeps one database tidy. All of it runs in the thread that writes.

    `retention`: seconds of window history; `max_size`: bytes; `findings`: that the cap is smaller than the retention.
    """

    def __init__(self, *, retention: float, max_size: int) -> None:
        self.findings: tuple[Finding, ...] = ()
        self._retention = retention
        self._max_size = max_size
        self._now = 0
        self._added_to: set[tuple[str, int]] = set()

    def stored(self, record: TickRecord) -> None:
        """Take note of a tick: its end is now, and the hours of its minutes are not what they were."""
        self._now = int(record.end)
        self._added_to |= {(minute.window.label, schema.hour_of(minute.time)) for minute in record.records}

    def slices(self, engine: Engine) -> Iterator[None]:
        """All that is to be done now, in steps of some 20 ms at 5,000 nodes, each a transaction or none at all."""
        with engine.begin() as connection:
            schema.forget_windows(connection, now=self._now, retention=self._retention)
            open_hour = schema.hour_of(self._now)
            closed = [key for key in schema.hours_with_minutes(connection) if key[1] != open_hour]
        yield
        for window, hour in closed:
            yield from self._rewrite_hour(engine, window, hour)
        while self._cut(engine):
            yield
        while self._give_pages_back(engine):
            yield

    def _rewrite_hour(self, engine: Engine, window: str, hour: int) -> Iterator[None]:
        """Turn the minutes of an hour, and what was rewritten of it before, into chunks of nodes: read and encoded in
        slices, then exchanged in one transaction, unless a save has meanwhile added to this very hour."""
        self._added_to.discard((window, hour))
        builder, minutes = _hour_builder(engine, window, hour)
        for count, minute in enumerate(minutes, start=1):
            _add_minute(engine, builder, window, minute)
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
        with engine.begin() as connection:
            schema.put_hour(connection, window, hour, payloads)
        yield

    def _cut(self, engine: Engine) -> bool:
        """Where the database is larger than it may be, forget the hour that is furthest from now; whether it did."""
        with engine.begin() as connection:
            count, free, size = schema.pages(connection)
            if (count - free) * size <= self._max_size:
                return False
            hours = {*schema.hours_rewritten(connection), *schema.hours_with_minutes(connection)}
            self._report_cut()
            if not hours:
                return False
            furthest = max((hour for _, hour in hours), key=lambda hour: abs(hour - self._now))
            for window, hour in hours:
                if hour == furthest:
                    schema.forget_hour(connection, window, hour)
        return True

    def _report_cut(self) -> None:
        if not self.findings:
            reason = "the database has reached store.max_size; windows are forgotten before their retention is over"
            logger.warning("%s", reason)
            self.findings = (Finding(FindingKind.STORE, "", "", float(self._now), reason, Remedy.DROPPED),)

    def _give_pages_back(self, engine: Engine) -> bool:
        """Give some free pages back to the file system if there are many, or the file is too large; whether it did."""
        with closing(engine.raw_connection()) as pooled:
            connection = pooled.driver_connection
            assert connection is not None

            def ask(name: str) -> int:
                return int(connection.execute(f"PRAGMA {name}").fetchone()[0])

            count, free = ask("page_count"), ask("freelist_count")
            too_large = count * ask("page_size") > self._max_size
            if free < (1 if too_large else max(PAGES_PER_SLICE, count // 8)):
                return False
            # execute() would step once, which is one page; and the file ends where it did until the log is copied.
            connection.executescript(f"PRAGMA incremental_vacuum({PAGES_PER_SLICE}); PRAGMA wal_checkpoint(PASSIVE)")
            return ask("freelist_count") < free


@dataclass(frozen=True, slots=True)
class _Minute:
    time: int
    columns: codec.Columns
    names: tuple[str, ...]


def _hour_builder(engine: Engine, window: str, hour: int) -> tuple[HourBuilder, list[_Minute]]:
    """A builder that knows all times, columns and nodes of an hour, with what was rewritten before laid in, and the
    minutes that are still to be laid over it."""
    with engine.connect() as connection:
        lists = schema.NodeLists(connection)
        minutes = [
            _Minute(time_, columns, lists[nodes])
            for time_, columns, nodes in schema.minutes_of_hour(connection, window, hour)
        ]
        payloads = schema.chunk_payloads(connection, window, hour)
    chunks = [chunk for payload in payloads if (chunk := _readable(codec.decode_chunk, payload)) is not None]
    builder = HourBuilder(
        times=[*(minute.time for minute in minutes), *(int(time_) for chunk in chunks for time_ in chunk.times)],
        columns=[*(chunk.columns for chunk in chunks), *(minute.columns for minute in minutes)],
        names=[*(chunk.names for chunk in chunks), *(minute.names for minute in minutes)],
    )
    for chunk in chunks:
        builder.add(chunk)
    return builder, minutes


def _add_minute(engine: Engine, builder: HourBuilder, window: str, minute: _Minute) -> None:
    with engine.connect() as connection:
        payload = schema.minute_payload(connection, window, minute.time)
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
