"""What must outlive the process: the samples of the longest window, and the history of the windows.

After `kill -9` at any moment the next start must continue exactly where the last stored tick ended, so a tick is one
transaction and samples are kept bit for bit. A disk may be slow, full or broken without anyone who asks the service
noticing: `save` returns at once, one thread writes, and what cannot be written now waits, merged with what comes, for
the next tick. The history of a day at thousands of nodes must stay small and still answer for one node at once: the
minutes of a closed hour are rewritten in chunks of nodes, in slices between two saves.

How the bytes look is in codec.py, the tables and statements in schema.py, which file may be opened at all in
database.py, what is done between two saves in tidying.py. docs/store.md has the layout and what was measured.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import sqlalchemy as sa

from watcher.model import F32, I64, Finding, FindingKind, Operator, Remedy, Restored, TickRecord
from watcher.store import codec, database, schema
from watcher.store.codec import Grid, HourBuilder
from watcher.store.database import FileLock, StoreError, StoreUnusable
from watcher.store.schema import REVISIONS
from watcher.store.tidying import Tidier

logger = logging.getLogger(__name__)
Result = TypeVar("Result")

WAITING_BYTES = 64 * 2**20
"""Window values that may wait for a disk that takes none: hours at 5,000 nodes, half an hour at 50,000."""
CLOSE_SECONDS = 5.0
READERS = 2


@dataclass(frozen=True, slots=True)
class StoredSeries:
    """One metric and operator of one node: `time` [k] in unix seconds, ascending, and `value` [k] in the metric's unit,
    NaN where nothing was known. Values older than the open hour carry a relative error of up to 1e-6."""

    metric: str
    operator: Operator
    window: str
    time: I64
    value: F32


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """How the store is doing. `since`: when it stopped doing well (unix seconds); `last_saved`: `end` of the newest
    stored tick; `queued`: ticks that wait; `dropped`: window records given up for good; `size_bytes`: file and log."""

    ok: bool
    error: str
    since: float | None
    last_saved: float | None
    queued: int
    dropped: int
    size_bytes: int


class _Workers:
    """Daemon threads that run calls in order. A disk that hangs must not keep the process from ending, as the threads
    of a ThreadPoolExecutor would."""

    def __init__(self, name: str, *, threads: int = 1) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._run, name=name, daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def submit(self, call: Callable[[], Result]) -> Future[Result]:
        """Have it called; the future has its result."""
        future: Future[Result] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = call()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self._calls.put(run)
        return future

    def stop(self) -> None:
        """End each thread after what it has been given."""
        for _ in self._threads:
            self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


class _Trouble:
    """Work that fails now and then: its beginning and its end are logged once each, however often it is tried."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.error = ""
        self.since: float | None = None

    def begin(self, error: str, *, now: float) -> None:
        """It failed."""
        if self.since is None:
            self.since = now
            logger.error("%s fails: %s", self._what, error)
        self.error = error

    def end(self, *, now: float) -> None:
        """It worked."""
        if self.since is not None:
            logger.info("%s works again after %.0f s", self._what, now - self.since)
        self.error, self.since = "", None


class Store:
    """The database of one service: the only writer, and its readers.

    `url`: sqlite:///…; `retention`: seconds of window history; `max_size`: bytes; `on_unusable`: "fail" or "set-aside";
    `upgrade`: whether an older schema is brought up to date; `owner`: how another process is told who holds the file.
    """

    def __init__(
        self, *, url: str, retention: float, max_size: int, on_unusable: str, upgrade: bool, owner: str = ""
    ) -> None:
        self._path = database.file_of(url)
        self._tidier = Tidier(retention=retention, max_size=max_size)
        self._on_unusable = on_unusable
        self._upgrade = upgrade
        self._owner = owner
        self._writer: _Workers | None = None
        self._readers: _Workers | None = None
        self._owned = ExitStack()  # lock and engines, given back in reverse
        self._lock: FileLock | None = None
        self._findings: tuple[Finding, ...] = ()
        self._saving = _Trouble("saving to the database")
        self._tidying = _Trouble("tidying the database")
        self._guard = threading.Lock()  # of the four below: save() is called on the loop, writing done in a thread
        self._waiting: TickRecord | None = None
        self._queued = 0
        self._dropped = 0
        self._accepts = False
        # What follows belongs to the writing thread.
        self._last_saved: float | None = None
        self._size = 0
        self._node_ids: dict[tuple[str, ...], int] = {}
        self._slices: Iterator[None] | None = None
        self._tidy_again = False

    # --- life --------------------------------------------------------------------------------------------------------

    async def open(self) -> Restored | None:
        """Lock, check and migrate the database, and load the samples of the last tick; None if there are none.

        Raises StoreInUse, StoreUnusable, or StoreError for what lies outside the file.
        """
        self._writer = writer = _Workers("store-writer")
        self._readers = _Workers("store-reader", threads=READERS)
        try:
            restored = await asyncio.wrap_future(writer.submit(self._open))
        except BaseException:
            await self.close()
            raise
        self._accepts = True
        return restored

    async def close(self) -> None:
        """Write what waits, for at most five seconds, and give the file back. Safe to call twice, or before open."""
        with self._guard:
            self._accepts = False
            writer, readers = self._writer, self._readers
            self._writer = self._readers = None
        if writer is None or readers is None:
            return
        readers.stop()
        closed = asyncio.wrap_future(writer.submit(self._close))
        writer.stop()
        done, _ = await asyncio.wait({closed}, timeout=CLOSE_SECONDS)
        if not done:
            logger.error("the database %s did not finish within %.0f s", self._path, CLOSE_SECONDS)

    def _open(self) -> Restored | None:
        self._lock = self._owned.enter_context(database.locked(self._path, owner=self._owner))
        try:
            return self._open_file()
        except StoreUnusable as error:
            if self._on_unusable != "set-aside":
                raise
            self._set_aside(error)
            return self._open_file()

    def _open_file(self) -> Restored | None:
        assert self._lock is not None
        revision = database.revision_of(self._path)
        database.check_age(self._path, revision, upgrade=self._upgrade)
        if revision is not None:
            small = database.size_on_disk(self._path) <= database.SMALL_BYTES
            database.check_pages(self._path, all_of_them=small or self._lock.damage_seen)
        with ExitStack() as opened, database.translated(self._path, doing="opened"):
            self._engine = database.open_engine(self._path)
            opened.callback(self._engine.dispose)
            if revision != REVISIONS[-1]:
                database.migrate(self._engine)
                logger.info("%s has schema %s now, after %s", self._path, REVISIONS[-1], revision or "none")
            self._read_engine = database.open_engine(self._path, connections=READERS, writes=False)
            opened.callback(self._read_engine.dispose)
            with self._read_engine.begin() as connection:
                restored = schema.restored(connection)
            self._owned.enter_context(opened.pop_all())
            self._identity = database.identity_of(self._path)
        self._last_saved = None if restored is None else restored.end
        self._size = database.size_on_disk(self._path)
        return restored

    def _set_aside(self, error: StoreUnusable) -> None:
        now = time.time()
        with database.translated(self._path, doing="set aside"):
            target = database.set_aside(self._path, now=now)
        reason = f"{error}; it is now {target.name}, and a new database was begun"
        logger.warning("%s", reason)
        self._findings = (Finding(FindingKind.STORE, "", "", now, reason, Remedy.SET_ASIDE),)

    def _close(self) -> None:
        if self._waiting is not None:
            self._write_waiting()
        if self._waiting is not None:
            logger.error("%s ticks were not stored: %s", self._queued, self._saving.error)
        self._owned.close()

    # --- what others see ---------------------------------------------------------------------------------------------

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was found out about the database: set aside, or too small a cap for the history asked for."""
        return self._findings + self._tidier.findings

    @property
    def status(self) -> StoreStatus:
        """How it is doing, from memory."""
        troubles = [trouble for trouble in (self._saving, self._tidying) if trouble.since is not None]
        return StoreStatus(
            ok=not troubles,
            error="; ".join(trouble.error for trouble in troubles),
            since=min((trouble.since for trouble in troubles if trouble.since is not None), default=None),
            last_saved=self._last_saved,
            queued=self._queued,
            dropped=self._dropped,
            size_bytes=self._size,
        )

    # --- saving ------------------------------------------------------------------------------------------------------

    def save(self, record: TickRecord) -> None:
        """Have a tick stored. Returns at once, and never fails because of the disk: see `status`.

        While the writer is busy, or the disk takes nothing, ticks wait merged into one, so that what waits is bounded:
        the samples of the longest window and 64 MiB of windows, of which the oldest are given up first.
        """
        with self._guard:
            if not self._accepts or self._writer is None:
                raise StoreError("the store is not open")
            self._wait(record, ticks=1)
            self._writer.submit(self._write_waiting)

    def _wait(self, record: TickRecord, *, ticks: int, first: bool = False) -> None:
        """Put a tick to those that wait (the guard is held): after them, or before them if it came back."""
        waiting = self._waiting
        if waiting is not None:
            older, newer = (record, waiting) if first else (waiting, record)
            record, given_up = codec.merge_ticks(older, newer, most_bytes=WAITING_BYTES)
            self._dropped += given_up
        self._waiting = record
        self._queued += ticks

    def _write_waiting(self) -> None:
        with self._guard:
            record, ticks = self._waiting, self._queued
            self._waiting, self._queued = None, 0
        if record is None:
            return
        try:
            self._write(record)
        except Exception as error:
            self._node_ids.clear()
            if not database.is_of_the_file(error):
                # Not the disk but the record, or us: to keep it would be to fail for ever.
                logger.exception("a tick cannot be stored and is given up")
                with self._guard:
                    self._dropped += len(record.records)
                return
            self._saving.begin(self._explained(error), now=time.time())
            with self._guard:
                self._wait(record, ticks=ticks, first=True)
        else:
            self._last_saved = record.end
            self._saving.end(now=time.time())
            self._tidy_again = True
            if self._slices is None:
                self._ask_for_a_slice()

    def _explained(self, error: Exception) -> str:
        """What to say of trouble with the file; damage is also remembered for the next start."""
        if database.is_damage(error):
            self._remember_damage()
            return (
                f"{self._path} is damaged ({database.reason_of(error)}); nothing is stored until it is moved away and "
                'the service restarted, or restarted with store.on_unusable = "set-aside"'
            )
        return database.reason_of(error)

    def _remember_damage(self) -> None:
        if self._lock is not None:
            self._lock.mark_damaged()

    def _write(self, record: TickRecord) -> None:
        """Store a tick: encode first, then one transaction."""
        self._check_still_there()
        blocks = [(block, codec.encode_samples(block)) for block in record.blocks]
        minutes = [(minute, codec.encode_minute(minute)) for minute in record.records]
        with self._engine.begin() as connection:
            nodes = {names: self._nodes_id(connection, names) for names in _lists_of_nodes(record)}
            schema.put_tick(connection, record, blocks=blocks, minutes=minutes, nodes=nodes)
            schema.forget_unused_nodes(connection)
        self._node_ids = nodes
        self._tidier.stored(record)
        self._size = database.size_on_disk(self._path)

    def _check_still_there(self) -> None:
        """SQLite would go on writing into a file that was moved away or removed, and the next start would miss it."""
        if not self._path.exists() or database.identity_of(self._path) != self._identity:
            raise OSError(f"{self._path} was moved away or replaced while it was open; restart the service")

    def _nodes_id(self, connection: sa.Connection, names: tuple[str, ...]) -> int:
        known = self._node_ids.get(names)
        return schema.put_nodes(connection, names) if known is None else known

    # --- history -----------------------------------------------------------------------------------------------------

    async def history(
        self,
        *,
        host: str,
        metrics: Collection[str] | None = None,
        operators: Collection[Operator] | None = None,
        window: str,
        start: int,
        end: int,
    ) -> list[StoredSeries]:
        """What is stored of one node with start <= time <= end (unix seconds); `metrics` are Metric.name, None is all.

        A series without a single value is left out, so an unknown node, window or metric gives an empty list. Raises
        StoreError if the database cannot be read.
        """
        readers = self._readers
        if not self._accepts or readers is None:
            raise StoreError("the store is not open")

        def wanted(column: tuple[str, Operator]) -> bool:
            return (metrics is None or column[0] in metrics) and (operators is None or column[1] in operators)

        def read() -> list[StoredSeries]:
            try:
                with database.translated(self._path, doing="read"), self._read_engine.begin() as connection:
                    hours = schema.hours_of_node(connection, host=host, window=window, start=start, end=end)
                    minutes = schema.minutes_of_node(connection, host=host, window=window, start=start, end=end)
            except StoreUnusable:
                self._remember_damage()
                raise
            return _series(window, hours=hours, minutes=minutes, start=start, end=end, wanted=wanted)

        return await asyncio.wrap_future(readers.submit(read))

    # --- tidying: between two saves, a slice at a time ---------------------------------------------------------------

    def _tidy(self) -> None:
        """Do one slice and ask for the next, behind whatever has been asked for meanwhile."""
        if self._slices is None:
            self._slices, self._tidy_again = self._tidier.slices(self._engine), False
        try:
            next(self._slices)
        except StopIteration:
            self._slices = None
            self._size = database.size_on_disk(self._path)
            self._tidying.end(now=time.time())
            if self._tidy_again:  # a tick was stored meanwhile, which may have closed another hour
                self._ask_for_a_slice()
        except Exception as error:
            self._slices = None
            if not database.is_of_the_file(error) and self._tidying.since is None:
                logger.exception("tidying the database went wrong")
            self._tidying.begin(self._explained(error), now=time.time())
        else:
            self._ask_for_a_slice()

    def _ask_for_a_slice(self) -> None:
        with self._guard:
            if self._accepts and self._writer is not None:
                self._writer.submit(self._tidy)


def _lists_of_nodes(record: TickRecord) -> set[tuple[str, ...]]:
    return {block.nodes for block in record.blocks} | {minute.nodes for minute in record.records}


def _series(
    window: str,
    *,
    hours: list[Grid],
    minutes: list[Grid],
    start: int,
    end: int,
    wanted: Callable[[tuple[str, Operator]], bool],
) -> list[StoredSeries]:
    """Grids of one node as series; a minute stands in the place of what an hour says of the same time."""
    if not hours and not minutes:
        return []
    builder = HourBuilder(
        times=[int(time_) for grid in (*hours, *minutes) for time_ in grid.times],
        columns=[grid.columns for grid in (*hours, *minutes)],
        names=[grid.names for grid in (*hours, *minutes)],
    )
    for grid in hours:
        builder.add(grid)
    for grid in minutes:
        builder.replace(grid)
    if not builder.names:
        return []
    inside = (builder.times >= start) & (builder.times <= end)
    series = [
        StoredSeries(*column, window, builder.times[inside], builder.values[inside, row, 0])
        for row, column in enumerate(builder.columns)
        if wanted(column)
    ]
    return [one for one in series if not np.isnan(one.value).all()]
