"""What must outlive the process: the samples of the longest window, and the history of the windows.

After `kill -9` at any moment the next start must continue exactly where the last stored tick ended, so a tick is one
transaction and samples are kept bit for bit. A disk may be slow, full or broken without anyone who asks the service
noticing: `save` returns at once, one thread writes, and what cannot be written now waits, merged with what comes, for
the next tick. The history of a day at thousands of nodes must stay small and still answer for one node at once: the
minutes of a closed hour are rewritten in chunks of nodes, in slices between two saves.

A database server may also be away, at the start or for hours: then the service goes on without, and what waits is
stored when the server is back.

How the bytes look is in codec.py, the tables and statements in schema.py, what may be opened at all in database.py and
the two that it describes, what is done between two saves in tidying.py. docs/store.md has the layout and what was
measured.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import TypeVar

from watcher.core.decisions import DecisionOutcome, DecisionsHeld, StoredDecision, StoredShadow
from watcher.model import Finding, FindingKind, Operator, Remedy, Restored, TickRecord
from watcher.store import codec, decision_rows, schema, tables
from watcher.store.commands import database_at
from watcher.store.compaction import Tidier
from watcher.store.database import READERS, reason_of
from watcher.store.decision_queue import WaitingDecisions, laid_over
from watcher.store.errors import StoreAway, StoreError, StoreUnusable
from watcher.store.series import StoredSeries, series_of, series_over
from watcher.store.status import SILENCE_SECONDS, StoreStatus, _Trouble
from watcher.store.tables import Rows
from watcher.store.threads import Workers

logger = logging.getLogger(__name__)
Result = TypeVar("Result")

WAITING_BYTES = 64 * 2**20
"""Window values that may wait for a disk that takes none: hours at 5,000 nodes, half an hour at 50,000."""
OPEN_SECONDS = 10.0  # for a server; a start does not wait for one that accepts and says nothing
CLOSE_SECONDS = 5.0
READ_SECONDS = 15.0
REOPEN_SECONDS = 30.0  # a server that is away is tried again with every tick; for decisions alone not more often


class Store:
    """The database of one service: the only writer of its rows, and their readers.

    `url`: sqlite:///… or postgresql://…; `watcher`: whose rows they are; `password_file`: of the server's user;
    `retention`: seconds of window history; `max_size`: bytes; `on_unusable`: "fail" or "set-aside"; `upgrade`: whether
    an older schema is brought up to date; `owner`: how another process is told who holds a file; `decisions`: for how
    many seconds these are kept (0: not at all), and `max_decisions` how many.
    """

    def __init__(
        self,
        *,
        url: str,
        retention: float,
        max_size: int,
        on_unusable: str,
        upgrade: bool,
        owner: str = "",
        watcher: str = "",
        password_file: Path | None = None,
        decisions: float = 86400.0,
        max_decisions: int = 100_000,
    ) -> None:
        self._database = database_at(url, watcher=watcher, password_file=password_file)
        self.decisions_kept = decisions
        self._keep = max(retention, decisions)
        self._tidier = Tidier(retention=retention, max_size=max_size, decisions=decisions, max_decisions=max_decisions)
        self._on_unusable = on_unusable
        self._upgrade = upgrade
        self._owner = owner
        self._writer: Workers | None = None
        self._readers: Workers | None = None
        self._findings: tuple[Finding, ...] = ()
        self._saving = _Trouble("saving to the database")
        self._tidying = _Trouble("tidying the database")
        self._deciding = _Trouble("keeping decisions in the database")
        self._decisions = WaitingDecisions()
        self._guard = threading.Lock()  # of the five below: save() is called on the loop, writing done in a thread
        self._waiting: TickRecord | None = None
        self._queued = 0
        self._dropped = 0
        self._accepts = False
        self._decisions_due = False
        # What follows belongs to the writing thread.
        self._is_open = False
        self._last_saved: float | None = None
        self._size = 0
        self._node_ids: dict[tuple[str, ...], int] = {}
        self._slices: Iterator[None] | None = None
        self._tidy_again = False
        self._reopen_at = 0.0  # monotonic

    # --- life --------------------------------------------------------------------------------------------------------

    async def open(self) -> Restored | None:
        """Lock, check and migrate the database, and load the samples of the last tick; None if there are none.

        A server that cannot be reached is no reason to fail: it is told, and tried again with every tick. Raises
        StoreInUse, StoreUnusable, or StoreError for what the operator has to change.
        """
        self._writer = writer = Workers("store-writer")
        self._readers = Workers("store-reader", threads=READERS)
        try:
            opening = asyncio.wrap_future(writer.submit(self._open))
            await asyncio.wait({opening}, timeout=OPEN_SECONDS if self._database.waits else None)
            if not opening.done():
                opening.add_done_callback(_forget_outcome)
                self._report_silence(OPEN_SECONDS)
            restored = opening.result() if opening.done() else None
        except BaseException:
            await self.close()
            raise
        self._accepts = True
        return restored

    async def close(self) -> None:
        """Write what waits, for at most five seconds, and give the database back. Safe to call twice, or before
        open."""
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
            logger.error("the database %s did not finish within %.0f s", self._database.name, CLOSE_SECONDS)

    def _open(self) -> Restored | None:
        try:
            return self._open_for_the_first_time()
        except StoreAway as error:
            self._database.release()
            self._is_open = False
            self._saving.begin(f"{error}; {error.hint}" if error.hint else str(error), now=time.time())
        except BaseException:
            self._database.release()
            raise
        return None

    def _open_for_the_first_time(self) -> Restored | None:
        try:
            return self._open_and_load()
        except StoreUnusable as error:
            if self._on_unusable != "set-aside":
                raise
            now = time.time()
            name = self._database.set_aside(now=now)
            if name is None:  # a server: what is there has other users, and we go on without
                raise StoreAway(str(error), hint=error.hint) from error
            reason = f"{error}; it is now {name}, and a new database was begun"
            logger.warning("%s", reason)
            self._findings = (Finding(FindingKind.STORE, "", "", now, reason, Remedy.SET_ASIDE),)
            return self._open_and_load()

    def _open_and_load(self) -> Restored | None:
        self._prepare()
        with self._database.translated(doing="opened"), self._database.reading() as mine:
            restored = schema.restored(mine)
        self._last_saved = None if restored is None else restored.end
        self._measure()
        return restored

    def _prepare(self) -> None:
        """Have the lock and the newest schema."""
        self._database.acquire(owner=self._owner)
        before, now = self._database.prepare(upgrade=self._upgrade)
        if before != now:
            logger.info("%s has schema %s now, after %s", self._database.name, now, before or "none")
        self._is_open = True

    def _measure(self) -> None:
        try:
            self._size = self._database.size()
        except Exception as error:
            if not self._database.is_trouble(error):
                raise
            logger.debug("the size of the database is not known: %s", reason_of(error))

    def _close(self) -> None:
        if self._waiting is not None:
            self._write_waiting()
        if self._waiting is not None:
            logger.error("%s ticks were not stored: %s", self._queued, self._saving.error)
        self._write_decisions()
        self._database.release()

    # --- what others see ---------------------------------------------------------------------------------------------

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was found out about the database: set aside, or too small a cap for the history asked for."""
        return self._findings + self._tidier.findings

    @property
    def status(self) -> StoreStatus:
        """How it is doing, from memory."""
        self._notice_silence()
        all_of_them = (self._saving, self._tidying, self._deciding)
        troubles = [trouble for trouble in all_of_them if trouble.since is not None]
        return StoreStatus(
            ok=not troubles,
            error="; ".join(trouble.error for trouble in troubles),
            since=min((trouble.since for trouble in troubles if trouble.since is not None), default=None),
            last_saved=self._last_saved,
            queued=self._queued,
            dropped=self._dropped,
            lost_decisions=self._decisions.lost,
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
        self._notice_silence()

    def _notice_silence(self) -> None:
        """Whoever writes cannot say that it takes for ever."""
        since = None if self._writer is None else self._writer.busy_since
        if since is not None and (silent := time.monotonic() - since) > SILENCE_SECONDS:
            self._report_silence(silent)

    def _report_silence(self, seconds: float) -> None:
        self._saving.begin(f"{self._database.name} has not answered for {seconds:.0f} s", now=time.time())

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
            if not self._is_open:
                self._prepare()
            self._write(record)
        except Exception as error:
            self._node_ids.clear()
            if not self._database.is_trouble(error):
                # Not the disk but the record, or us: to keep it would be to fail for ever.
                logger.exception("a tick cannot be stored and is given up")
                with self._guard:
                    self._dropped += len(record.records)
                return
            self._saving.begin(self._explained(error), now=time.time())
            with self._guard:
                self._wait(record, ticks=ticks, first=True)
            if self._database.waits:
                self._part()
        else:
            self._saving.end(now=time.time())
            self._tidy_again = True
            if self._slices is None:
                self._ask_for_a_slice()
            self._last_saved = record.end
            self._write_decisions()  # those that could not be written before this one

    def _part(self) -> None:
        """From a server: anything may have happened to it when it is back."""
        self._database.release()
        self._is_open = False
        self._reopen_at = time.monotonic() + REOPEN_SECONDS

    def _explained(self, error: Exception) -> str:
        """What to say of trouble with the database; damage is also remembered for the next start."""
        if not self._database.is_damage(error):
            return reason_of(error)
        self._database.remember_damage()
        return (
            f"{self._database.name} is damaged ({reason_of(error)}); nothing is stored until the service is restarted, "
            f"after this: {self._database.way_out}"
        )

    def _write(self, record: TickRecord) -> None:
        """Store a tick: encode first, then one transaction."""
        self._database.check_still_there()
        blocks = [(block, codec.encode_samples(block)) for block in record.blocks]
        minutes = [(minute, codec.encode_minute(minute)) for minute in record.records]
        keep_until = record.end + self._keep
        with self._database.writing() as mine:
            nodes = {names: self._nodes_id(mine, names) for names in _lists_of_nodes(record)}
            schema.put_tick(mine, record, blocks=blocks, minutes=minutes, nodes=nodes, keep_until=keep_until)
            schema.forget_unused_nodes(mine)
        self._node_ids = nodes
        self._tidier.stored(record)
        self._measure()

    def _nodes_id(self, mine: Rows, names: tuple[str, ...]) -> int:
        known = self._node_ids.get(names)
        return schema.put_nodes(mine, names) if known is None else known

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

        What this watcher has not got is what the others of its cluster have, if they share the database: replicas
        compute the same windows, and the one that was there before a rollout had another name.
        A series without a single value is left out, so an unknown node, window or metric gives an empty list. Raises
        StoreError if the database cannot be read.
        """

        def wanted(column: tuple[str, Operator]) -> bool:
            return (metrics is None or column[0] in metrics) and (operators is None or column[1] in operators)

        def read(mine: Rows) -> list[StoredSeries]:
            found = (
                series_of(
                    window,
                    hours=schema.hours_of_node(rows, host=host, window=window, start=start, end=end),
                    minutes=schema.minutes_of_node(rows, host=host, window=window, start=start, end=end),
                    start=start,
                    end=end,
                    wanted=wanted,
                )
                for rows in schema.of_cluster(mine)
            )
            return reduce(series_over, found)

        return await self._read(read)

    async def _read(self, ask: Callable[[Rows], Result]) -> Result:
        """What `ask` finds, in a thread that reads. StoreError if the database cannot be read."""
        readers = self._readers
        if not self._accepts or readers is None:
            raise StoreError("the store is not open")

        def read() -> Result:
            try:
                with self._database.translated(doing="read"), self._database.reading() as mine:
                    return ask(mine)
            except StoreUnusable:
                self._database.remember_damage()
                raise

        reading = asyncio.wrap_future(readers.submit(read))
        try:
            # Python 3.11's wait_for loses a cancellation that comes with the answer: who reads in a loop never ends.
            async with asyncio.timeout(READ_SECONDS):
                return await reading
        except TimeoutError:
            raise StoreAway(
                f"{self._database.name} has not answered for {READ_SECONDS:.0f} s",
                hint="look at the disk or the server",
            ) from None

    # --- decisions ---------------------------------------------------------------------------------------------------

    def keep_decisions(
        self, decisions: Sequence[StoredDecision], outcomes: Sequence[DecisionOutcome] = (), *, lost: int = 0
    ) -> None:
        """As watcher.core.decisions.DecisionStore has it. They wait for a disk that takes none, and the oldest are
        given up first; after `close` all are."""
        self._decisions.add(decisions, outcomes, lost=lost)
        self._have_decisions_written()

    def keep_shadows(self, shadows: Sequence[StoredShadow], *, lost: int = 0) -> None:
        """As watcher.core.decisions.DecisionStore has it; they wait as decisions do."""
        self._decisions.add_shadows(shadows, lost=lost)
        self._have_decisions_written()

    def _have_decisions_written(self) -> None:
        with self._guard:
            if self._accepts and self._writer is not None and not self._decisions_due:
                self._decisions_due = True
                self._writer.submit(self._write_decisions)

    def _write_decisions(self) -> None:
        with self._guard:
            self._decisions_due = False
        batch = self._decisions.batch()
        if not batch or (not self._is_open and time.monotonic() < self._reopen_at):
            return
        try:
            if not self._is_open:
                self._prepare()
            self._database.check_still_there()
            with self._database.writing() as mine:
                decision_rows.put_decisions(mine, batch.decisions, batch.outcomes)
                decision_rows.put_shadows(mine, batch.shadows)
                # as many as came, and some: so that the table is bounded also while there are no ticks to tidy after
                self._tidier.forget_decisions(mine, limit=2 * max(len(batch.decisions), len(batch.shadows)) + 100)
        except Exception as error:
            if not self._database.is_trouble(error):
                logger.exception("decisions cannot be stored and are given up")
                self._decisions.settle(batch, written=False)
                return
            trouble = self._saving if self._database.waits else self._deciding  # as in _tidy
            trouble.begin(self._explained(error), now=time.time())
            if self._database.waits:
                self._part()
        else:
            self._decisions.settle(batch, written=True)
            self._deciding.end(now=time.time())
            if self._waiting is None:  # a server that was missed is back, and no tick waits that would tell so
                self._saving.end(now=time.time())

    async def decisions_of(
        self, namespace: str, pod: str, *, start: int = 0, end: int | None = None, limit: int, newest: bool = True
    ) -> list[StoredDecision]:
        """As watcher.core.decisions.DecisionStore has it, of all watchers of the cluster: whichever replica was asked
        by the scheduler wrote it down. Raises StoreError if the database cannot be read."""
        first = max(start, self._oldest_decision())
        last = 2**63 - 1 if end is None else end
        waiting = self._decisions.batch()  # before the database is asked, so that none is missed in between

        def read(mine: Rows) -> list[StoredDecision]:
            return [
                each
                for rows in schema.of_cluster(mine)
                for each in decision_rows.decisions_of(
                    rows, namespace, pod, start=first, end=last, limit=limit, newest=newest
                )
            ]

        found = laid_over(await self._read(read), waiting)
        wanted = [
            each for each in found if (each.namespace, each.pod) == (namespace, pod) and first <= each.time < last
        ]
        return (wanted[::-1] if newest else wanted)[:limit]

    async def decisions_held(self) -> DecisionsHeld:
        """As watcher.core.decisions.DecisionStore has it. Raises StoreError if the database cannot be read."""
        start = self._oldest_decision()
        waiting = [each.time for each in self._decisions.batch().decisions]

        def read(mine: Rows) -> list[DecisionsHeld]:
            *others, own = schema.of_cluster(mine)
            # What waits may be in the table as well by the time that it is counted.
            held = decision_rows.decisions_held(own, start=start, but=waiting)
            return [held, *(decision_rows.decisions_held(rows, start=start) for rows in others)]

        found = await self._read(read)
        times = [*waiting, *(time for each in found for time in (each.first, each.last) if time is not None)]
        count = len(waiting) + sum(each.count for each in found)
        return DecisionsHeld(count, min(times, default=None), max(times, default=None))

    async def shadows(self, *, start: int, end: int | None = None, limit: int) -> list[StoredShadow]:
        """As watcher.core.decisions.DecisionStore has it, of all watchers of the cluster. Raises StoreError if the
        database cannot be read."""
        first = max(start, self._oldest_decision())
        last = 2**63 - 1 if end is None else end
        waiting = self._decisions.batch().shadows

        def read(mine: Rows) -> list[StoredShadow]:
            return [
                each
                for rows in schema.of_cluster(mine)
                for each in decision_rows.shadows(rows, start=first, end=last, limit=limit)
            ]

        # Two watchers may have the same time; what waits takes the place of what this one stored, which is the last.
        stored = await self._read(read)
        anew = {each.time for each in waiting}
        found = [each for each in stored if each.time not in anew]
        found += [each for each in waiting if first <= each.time < last]
        return sorted(found, key=lambda each: each.time)[-limit:]

    def _oldest_decision(self) -> int:
        """Those before are kept no longer, whether they are removed yet or not."""
        return int((time.time() - self.decisions_kept) * tables.MICROSECONDS)

    # --- tidying: between two saves, a slice at a time ---------------------------------------------------------------

    def _tidy(self) -> None:
        """Do one slice and ask for the next, behind whatever has been asked for meanwhile."""
        if self._slices is None:
            self._slices, self._tidy_again = self._tidier.slices(self._database), False
        try:
            next(self._slices)
        except StopIteration:
            self._measure()
            self._slices = None
            self._tidying.end(now=time.time())
            if self._tidy_again:  # a tick was stored meanwhile, which may have closed another hour
                self._ask_for_a_slice()
        except Exception as error:
            self._slices = None
            if not self._database.is_trouble(error) and self._tidying.since is None:
                logger.exception("tidying the database went wrong")
            # A server that went away will be missed by the next tick too, which shall not tell it once more.
            trouble = self._saving if self._database.waits and self._database.is_trouble(error) else self._tidying
            trouble.begin(self._explained(error), now=time.time())
        else:
            self._ask_for_a_slice()

    def _ask_for_a_slice(self) -> None:
        with self._guard:
            if self._accepts and self._writer is not None:
                self._writer.submit(self._tidy)


def _lists_of_nodes(record: TickRecord) -> set[tuple[str, ...]]:
    return {block.nodes for block in record.blocks} | {minute.nodes for minute in record.records}


def _forget_outcome(opening: asyncio.Future[Restored | None]) -> None:
    """Of an opening that took too long: the samples it loaded are old by now, and its failure is told with a tick."""
    if not opening.cancelled():
        opening.exception()
