"""The stored decisions of a store: queues new ones, and reads them from the queue and the database.

Implements the interface that the modules of the service use for stored decisions (watcher.core.decisions).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from watcher.core.decisions import (
    MICROSECONDS,
    DecisionOutcome,
    DecisionQuery,
    DecisionsExtent,
    DecisionsUnavailable,
    StoredDecision,
)
from watcher.store import schema
from watcher.store.decisions import rows as decision_rows
from watcher.store.decisions.queue import merge_queued
from watcher.store.errors import StoreError
from watcher.store.store import Store
from watcher.store.tables import Rows

Result = TypeVar("Result")


class StoreDecisions:
    """Stored decisions of a store; its errors become DecisionsUnavailable."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def decision_retention_s(self) -> float:
        return self._store.decision_retention_s

    def keep_decisions(
        self, decisions: Sequence[StoredDecision], outcomes: Sequence[DecisionOutcome] = (), *, lost: int = 0
    ) -> None:
        """See watcher.core.decisions.DecisionStore. Decisions are queued while writing fails; the oldest are dropped
        first. After `close` all are dropped."""
        self._store.decision_queue.add(decisions, outcomes, lost=lost)
        self._store.write_decisions_soon()

    async def decisions(self, query: DecisionQuery) -> list[StoredDecision]:
        """See watcher.core.decisions.DecisionStore. Includes decisions of all watchers of the cluster, because any
        replica may have served the scheduler. Raises DecisionsUnavailable if the database cannot be read."""
        kept = replace(query, start=max(query.start, self._oldest_decision()))
        waiting = self._store.decision_queue.batch()  # before the query, so that no decision is missed

        def read(mine: Rows) -> list[StoredDecision]:
            return [each for rows in schema.of_cluster(mine) for each in decision_rows.decisions(rows, kept)]

        found = [each for each in merge_queued(await self._read(read), waiting) if kept.matches(each)]
        return (found[::-1] if kept.newest else found)[: kept.limit]

    async def placements_held(self) -> DecisionsExtent:
        """See watcher.core.decisions.DecisionStore. Raises DecisionsUnavailable if the database cannot be read."""
        start = self._oldest_decision()
        queued = self._store.decision_queue.batch().decisions
        waiting = [each.time for each in queued if each.kind == "placement"]

        def read(mine: Rows) -> list[DecisionsExtent]:
            *others, own = schema.of_cluster(mine)
            # Queued decisions may have been written before they are counted here.
            held = decision_rows.placements_held(own, start=start, but=waiting)
            return [held, *(decision_rows.placements_held(rows, start=start) for rows in others)]

        found = await self._read(read)
        times = [*waiting, *(time for each in found for time in (each.first, each.last) if time is not None)]
        count = len(waiting) + sum(each.count for each in found)
        return DecisionsExtent(count, min(times, default=None), max(times, default=None))

    def _oldest_decision(self) -> int:
        """The oldest time (unix microseconds) within retention; older decisions are ignored even if not yet deleted."""
        return int((time.time() - self._store.decision_retention_s) * MICROSECONDS)

    async def _read(self, ask: Callable[[Rows], Result]) -> Result:
        try:
            return await self._store.read(ask)
        except StoreError as error:
            raise DecisionsUnavailable(str(error), error.hint) from error
