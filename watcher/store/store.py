"""The store of the service: samples of the longest window, history of the windows, and decisions.

After `kill -9` at any time the next start continues exactly where the last stored tick ended, so a tick is one
transaction and samples are stored without loss. A slow, full or broken disk does not affect requests: `save` returns
immediately, one thread writes, and data that cannot be written is merged with later ticks and retried. A day of history
for thousands of nodes must be small, but fast to query for one node: the minutes of a closed hour are compacted into
chunks of nodes, in slices between two saves.

A database server may be unreachable at the start or for hours. The service then runs without it and stores the queued
data when the server is reachable again.

codec.py encodes data, schema.py contains tables and statements, engines/database.py the interface to a database, and
compaction.py retention and compaction. docs/reference/store.md describes the layout and the measured sizes.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import TypeVar

from watcher.core.windows.fleet_trend import CapacityWeights, FleetTrend
from watcher.core.windows.records import StoredMaxima, TickRecord, WindowRecord
from watcher.core.windows.stored_series import StoredSeries
from watcher.model import Finding, FindingKind, Operator, Remedy
from watcher.store import codec, schema
from watcher.store.commands import database_at
from watcher.store.compaction import MAXIMA_S, Compactor
from watcher.store.decisions import rows as decision_rows
from watcher.store.decisions.queue import DecisionQueue
from watcher.store.engines.database import READERS, reason_of
from watcher.store.errors import StoreError, StoreUnreachable, StoreUnusable
from watcher.store.history.queries import extend_trend, node_series
from watcher.store.settings import StoreSettings
from watcher.store.status import STALLED_SECONDS, FailureLog, StoreStatus
from watcher.store.tables import Rows
from watcher.store.threads import DaemonExecutor
from watcher.store.tick_writer import TickWriter

logger = logging.getLogger(__name__)
Result = TypeVar("Result")

WAITING_BYTES = 64 * 2**20
"""Limit of queued window values while writing fails: hours at 5,000 nodes, half an hour at 50,000 nodes."""
OPEN_SECONDS = 10.0  # limits the start if a server accepts the connection but does not respond
CLOSE_SECONDS = 5.0
READ_SECONDS = 15.0
REOPEN_SECONDS = 30.0  # minimum interval of reconnects for decisions; every tick reconnects


class Store:
    """The database of one service, with one writer thread and several reader threads.

    `watcher`: name of the rows' owner; `owner`: description of this process for other processes; `maxima`: retention of
    the maxima of forecasts in seconds.
    """

    def __init__(
        self, settings: StoreSettings, *, owner: str = "", watcher: str = "", maxima: float = MAXIMA_S
    ) -> None:
        self._database = database_at(settings.url, watcher=watcher, password_file=settings.password_file)
        self._compactor = Compactor(settings, maxima=maxima)
        self._settings = settings
        self.decision_retention_s = settings.decisions
        self._owner = owner
        self._writer: DaemonExecutor | None = None
        self._readers: DaemonExecutor | None = None
        self._findings: tuple[Finding, ...] = ()
        self._saving = FailureLog("saving to the database")
        self._tidying = FailureLog("compacting the database")
        self._deciding = FailureLog("storing decisions in the database")
        self.decision_queue = DecisionQueue()
        self._guard = threading.Lock()  # for the next five: save() runs on the event loop, writes in a thread
        self._waiting: TickRecord | None = None
        self._queued = 0
        self._dropped = 0
        self._accepts = False
        self._decisions_due = False
        # The following attributes are used by the writer thread only.
        self._is_open = False
        self._last_saved: float | None = None
        self._size = 0
        self._ticks = TickWriter(self._database, keep=max(settings.retention, settings.decisions))
        self._slices: Iterator[None] | None = None
        self._tidy_again = False
        self._reopen_at = 0.0  # monotonic

    # --- opening and closing -----------------------------------------------------------------------------------------

    async def open(self) -> TickRecord | None:
        """Lock, check and migrate the database, and load the last stored tick; None if there is none.

        An unreachable server is logged and retried with every tick. Raises StoreInUse, StoreUnusable, or StoreError if
        the operator has to change something.
        """
        self._writer = writer = DaemonExecutor("store-writer")
        self._readers = DaemonExecutor("store-reader", threads=READERS)
        try:
            opening = asyncio.wrap_future(writer.submit(self._open))
            await asyncio.wait({opening}, timeout=OPEN_SECONDS if self._database.retries_connection else None)
            if not opening.done():
                opening.add_done_callback(_forget_outcome)
                self._report_stalled(OPEN_SECONDS)
            restored = opening.result() if opening.done() else None
        except BaseException:
            await self.close()
            raise
        self._accepts = True
        return restored

    async def close(self) -> None:
        """Write queued data for at most five seconds, and release the database. Safe to call twice, or before
        `open`."""
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
            logger.error(
                "closing the database %s took longer than %.0f s; queued data may be lost",
                self._database.name,
                CLOSE_SECONDS,
            )

    def _open(self) -> TickRecord | None:
        try:
            return self._open_for_the_first_time()
        except StoreUnreachable as error:
            self._database.release()
            self._is_open = False
            self._saving.begin(f"{error}; {error.hint}" if error.hint else str(error), now=time.time())
        except BaseException:
            self._database.release()
            raise
        return None

    def _open_for_the_first_time(self) -> TickRecord | None:
        try:
            return self._open_and_load()
        except StoreUnusable as error:
            if self._settings.on_unusable != "set-aside":
                raise
            now = time.time()
            name = self._database.set_aside(now=now)
            if name is None:  # a server has other users: run without it
                raise StoreUnreachable(str(error), hint=error.hint) from error
            reason = f"{error}; the database was renamed to {name} and a new one was created"
            logger.warning("%s", reason)
            self._findings = (Finding(FindingKind.STORE, "", "", now, reason, Remedy.SET_ASIDE),)
            return self._open_and_load()

    def _open_and_load(self) -> TickRecord | None:
        self._prepare()
        with self._database.store_errors(doing="opened"), self._database.reading() as mine:
            restored = schema.restored(mine)
        self._last_saved = None if restored is None else restored.end
        self._measure()
        self._compactor.opened(self._size)
        return restored

    def _prepare(self) -> None:
        """Lock the database and migrate it to the newest schema."""
        self._database.acquire(owner=self._owner)
        before, now = self._database.prepare(upgrade=self._settings.upgrade)
        if before != now:
            logger.info("migrated %s to schema %s (before: %s)", self._database.name, now, before or "none")
        self._is_open = True

    def _measure(self) -> None:
        try:
            self._size = self._database.size()
        except Exception as error:
            if not self._database.is_database_error(error):
                raise
            logger.debug("cannot determine the size of the database: %s", reason_of(error))

    def _close(self) -> None:
        if self._waiting is not None:
            self._write_waiting()
        if self._waiting is not None:
            logger.error("%s ticks were not stored: %s", self._queued, self._saving.error)
        self._write_decisions()
        self._database.release()

    # --- state -------------------------------------------------------------------------------------------------------

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings about the database: it was set aside, or max_size is too small for the configured retention."""
        return self._findings + self._compactor.findings

    @property
    def status(self) -> StoreStatus:
        """The state of the store, from memory."""
        self._check_writer_stalled()
        all_of_them = (self._saving, self._tidying, self._deciding)
        troubles = [trouble for trouble in all_of_them if trouble.since is not None]
        return StoreStatus(
            ok=not troubles,
            error="; ".join(trouble.error for trouble in troubles),
            since=min((trouble.since for trouble in troubles if trouble.since is not None), default=None),
            last_saved=self._last_saved,
            queued=self._queued,
            dropped=self._dropped,
            lost_decisions=self.decision_queue.lost,
            size_bytes=self._size,
        )

    # --- saving ------------------------------------------------------------------------------------------------------

    def save(self, record: TickRecord) -> None:
        """Queue a tick for writing. Returns immediately; write failures are reported by `status`.

        While the writer is busy or writing fails, queued ticks are merged into one. Its size is limited to the samples
        of the longest window and 64 MiB of windows; the oldest windows are dropped first.
        """
        with self._guard:
            if not self._accepts or self._writer is None:
                raise StoreError("the store is not open")
            self._queue_tick(record, ticks=1)
            self._writer.submit(self._write_waiting)
        self._check_writer_stalled()

    async def add_history(self, records: Sequence[WindowRecord]) -> None:
        """Store windows of minutes before the first tick, and return when they are written. Raises StoreError."""
        with self._guard:
            if not self._accepts or self._writer is None:
                raise StoreError("the store is not open")
            writing = self._writer.submit(partial(self._write_history, records))
        await asyncio.wrap_future(writing)

    def _write_history(self, records: Sequence[WindowRecord]) -> None:
        if not self._is_open:
            raise StoreUnreachable(f"{self._database.name} is not open")
        self._ticks.write_history(records)
        self._compactor.added(records)  # the next tick compacts them

    def _check_writer_stalled(self) -> None:
        """Report a failure if the writer thread has been busy for longer than STALLED_SECONDS."""
        since = None if self._writer is None else self._writer.busy_since
        if since is not None and (silent := time.monotonic() - since) > STALLED_SECONDS:
            self._report_stalled(silent)

    def _report_stalled(self, seconds: float) -> None:
        self._saving.begin(f"{self._database.name} has not responded for {seconds:.0f} s", now=time.time())

    def _queue_tick(self, record: TickRecord, *, ticks: int, first: bool = False) -> None:
        """Merge a tick into the queued one: as the newer one, or (`first`) as the older one after a failed write. The
        caller holds the guard."""
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
            if not self._is_open:
                self._prepare()
            self._write(record)
        except Exception as error:
            self._ticks.forget_ids()
            if not self._database.is_database_error(error):
                # The record cannot be stored, so a retry would fail again.
                logger.exception("cannot store a tick; its data is dropped")
                with self._guard:
                    self._dropped += len(record.records)
                return
            self._saving.begin(self._describe_error(error), now=time.time())
            with self._guard:
                self._queue_tick(record, ticks=ticks, first=True)
            if self._database.retries_connection:
                self._disconnect()
        else:
            self._saving.end(now=time.time())
            self._tidy_again = True
            if self._slices is None:
                self._ask_for_a_slice()
            self._last_saved = record.end
            self._write_decisions()  # retry decisions that could not be written before

    def _disconnect(self) -> None:
        """Disconnect from a server; its state is checked again when it is reachable."""
        self._database.release()
        self._is_open = False
        self._reopen_at = time.monotonic() + REOPEN_SECONDS

    def _describe_error(self, error: Exception) -> str:
        """The message for a failure of the database. Damage is also recorded for the next start."""
        if not self._database.is_damage(error):
            return reason_of(error)
        self._database.mark_damaged()
        return (
            f"{self._database.name} is damaged ({reason_of(error)}); nothing is stored until this is fixed and the "
            f"service restarted: {self._database.recovery_hint}"
        )

    def _write(self, record: TickRecord) -> None:
        self._database.check_not_replaced()
        self._ticks.write(record)
        self._compactor.stored(record)
        self._measure()

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
        """Stored values of one node with start <= time <= end (unix seconds). `metrics` are metric names; None means
        all.

        Values that this watcher lacks are taken from other watchers of the cluster in the same database, because
        replicas compute the same windows and a rollout changes the watcher's name. A series without any value is
        omitted, so an unknown node, window or metric returns an empty list. Raises StoreError if the database cannot be
        read.
        """

        def wanted(column: tuple[str, Operator]) -> bool:
            return (metrics is None or column[0] in metrics) and (operators is None or column[1] in operators)

        return await self.read(partial(node_series, host=host, window=window, start=start, end=end, wanted=wanted))

    async def extended_trend(self, trend: FleetTrend, weights: CapacityWeights, *, start: int, end: int) -> FleetTrend:
        """Return the trend with the stored windows with start <= time <= end (unix seconds) that it lacks; from other
        watchers of the cluster only where this one has none. Raises StoreError if the database cannot be read."""
        return await self.read(partial(extend_trend, trend=trend, weights=weights, start=start, end=end))

    async def maxima(self, hours: range | None = None) -> list[StoredMaxima]:
        """The stored maxima, of consecutive `hours` since the Unix epoch or all, also those that only other watchers of
        the cluster have. Raises StoreError if the database cannot be read."""
        return await self.read(partial(schema.stored_maxima, hours=hours))

    async def read(self, ask: Callable[[Rows], Result]) -> Result:
        """Run a query in a reader thread and return its result. Raises StoreError if the database cannot be read."""
        readers = self._readers
        if not self._accepts or readers is None:
            raise StoreError("the store is not open")

        def read() -> Result:
            try:
                with self._database.store_errors(doing="read"), self._database.reading() as mine:
                    return ask(mine)
            except StoreUnusable:
                self._database.mark_damaged()
                raise

        reading = asyncio.wrap_future(readers.submit(read))
        try:
            # wait_for of Python 3.11 loses a cancellation that arrives together with the result.
            async with asyncio.timeout(READ_SECONDS):
                return await reading
        except TimeoutError:
            raise StoreUnreachable(
                f"{self._database.name} has not responded for {READ_SECONDS:.0f} s",
                hint="check the disk or the database server",
            ) from None

    # --- decisions ---------------------------------------------------------------------------------------------------

    def write_decisions_soon(self) -> None:
        """Have the queued decisions written. Returns immediately; after `close` nothing is written."""
        with self._guard:
            if self._accepts and self._writer is not None and not self._decisions_due:
                self._decisions_due = True
                self._writer.submit(self._write_decisions)

    def _write_decisions(self) -> None:
        with self._guard:
            self._decisions_due = False
        batch = self.decision_queue.batch()
        if not batch or (not self._is_open and time.monotonic() < self._reopen_at):
            return
        try:
            if not self._is_open:
                self._prepare()
            self._database.check_not_replaced()
            with self._database.writing() as mine:
                decision_rows.put_decisions(mine, batch.decisions, batch.outcomes)
                self._compactor.forget_surplus(mine, batch.decisions)
                # delete more rows than were added, so that the table stays bounded without ticks, too
                self._compactor.forget_decisions(mine, limit=2 * len(batch.decisions) + 100)
        except Exception as error:
            if not self._database.is_database_error(error):
                logger.exception("cannot store decisions; they are dropped")
                self.decision_queue.remove(batch, written=False)
                return
            trouble = self._saving if self._database.retries_connection else self._deciding  # see _tidy
            trouble.begin(self._describe_error(error), now=time.time())
            if self._database.retries_connection:
                self._disconnect()
        else:
            self.decision_queue.remove(batch, written=True)
            self._deciding.end(now=time.time())
            if self._waiting is None:  # the server is reachable again, and no queued tick will record it
                self._saving.end(now=time.time())

    # --- compaction: in slices between two saves ---------------------------------------------------------------------

    def _tidy(self) -> None:
        """Run one slice of the compaction and queue the next one behind other queued work."""
        if self._slices is None:
            self._slices, self._tidy_again = self._compactor.slices(self._database), False
        try:
            next(self._slices)
        except StopIteration:
            self._measure()
            self._slices = None
            self._tidying.end(now=time.time())
            if self._tidy_again:  # a tick was stored in the meantime and may have closed another hour
                self._ask_for_a_slice()
        except Exception as error:
            self._slices = None
            if not self._database.is_database_error(error) and self._tidying.since is None:
                logger.exception("compacting the database failed")
            # An unreachable server also fails the next tick; use the same state so that it is logged once.
            trouble = (
                self._saving
                if self._database.retries_connection and self._database.is_database_error(error)
                else self._tidying
            )
            trouble.begin(self._describe_error(error), now=time.time())
        else:
            self._ask_for_a_slice()

    def _ask_for_a_slice(self) -> None:
        with self._guard:
            if self._accepts and self._writer is not None:
                self._writer.submit(self._tidy)


def _forget_outcome(opening: asyncio.Future[TickRecord | None]) -> None:
    """Ignore the result of an opening that timed out: its samples are outdated, and the next tick reports a failure."""
    if not opening.cancelled():
        opening.exception()
