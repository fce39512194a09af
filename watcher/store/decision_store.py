"""The stored decisions of a store: queues new ones, and reads them from the queue and the database.

Implements the interface that the modules of the service use for stored decisions (watcher.core.decisions).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from watcher.core.decisions import DecisionOutcome, DecisionsExtent, DecisionsUnavailable, StoredDecision, StoredShadow
from watcher.store import decision_rows, schema, tables
from watcher.store.decision_queue import merge_queued
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

    def keep_shadows(self, shadows: Sequence[StoredShadow], *, lost: int = 0) -> None:
        """See watcher.core.decisions.DecisionStore. Shadow bindings are queued like decisions."""
        self._store.decision_queue.add_shadows(shadows, lost=lost)
        self._store.write_decisions_soon()

    async def decisions_of(
        self, namespace: str, pod: str, *, start: int = 0, end: int | None = None, limit: int, newest: bool = True
    ) -> list[StoredDecision]:
        """See watcher.core.decisions.DecisionStore. Includes decisions of all watchers of the cluster, because any
        replica may have served the scheduler. Raises DecisionsUnavailable if the database cannot be read."""
        first = max(start, self._oldest_decision())
        last = 2**63 - 1 if end is None else end
        waiting = self._store.decision_queue.batch()  # before the query, so that no decision is missed

        def read(mine: Rows) -> list[StoredDecision]:
            return [
                each
                for rows in schema.of_cluster(mine)
                for each in decision_rows.decisions_of(
                    rows, namespace, pod, start=first, end=last, limit=limit, newest=newest
                )
            ]

        found = merge_queued(await self._read(read), waiting)
        wanted = [
            each for each in found if (each.namespace, each.pod) == (namespace, pod) and first <= each.time < last
        ]
        return (wanted[::-1] if newest else wanted)[:limit]

    async def decisions_held(self) -> DecisionsExtent:
        """See watcher.core.decisions.DecisionStore. Raises DecisionsUnavailable if the database cannot be read."""
        start = self._oldest_decision()
        waiting = [each.time for each in self._store.decision_queue.batch().decisions]

        def read(mine: Rows) -> list[DecisionsExtent]:
            *others, own = schema.of_cluster(mine)
            # Queued decisions may have been written before they are counted here.
            held = decision_rows.decisions_held(own, start=start, but=waiting)
            return [held, *(decision_rows.decisions_held(rows, start=start) for rows in others)]

        found = await self._read(read)
        times = [*waiting, *(time for each in found for time in (each.first, each.last) if time is not None)]
        count = len(waiting) + sum(each.count for each in found)
        return DecisionsExtent(count, min(times, default=None), max(times, default=None))

    async def shadows(self, *, start: int, end: int | None = None, limit: int) -> list[StoredShadow]:
        """See watcher.core.decisions.DecisionStore. Includes all watchers of the cluster. Raises DecisionsUnavailable
        if the database cannot be read."""
        first = max(start, self._oldest_decision())
        last = 2**63 - 1 if end is None else end
        waiting = self._store.decision_queue.batch().shadows

        def read(mine: Rows) -> list[StoredShadow]:
            return [
                each
                for rows in schema.of_cluster(mine)
                for each in decision_rows.shadows(rows, start=first, end=last, limit=limit)
            ]

        # Two watchers may use the same time. Queued bindings replace stored ones with the same time.
        stored = await self._read(read)
        anew = {each.time for each in waiting}
        found = [each for each in stored if each.time not in anew]
        found += [each for each in waiting if first <= each.time < last]
        return sorted(found, key=lambda each: each.time)[-limit:]

    def _oldest_decision(self) -> int:
        """The oldest time (unix microseconds) within retention; older decisions are ignored even if not yet deleted."""
        return int((time.time() - self._store.decision_retention_s) * tables.MICROSECONDS)

    async def _read(self, ask: Callable[[Rows], Result]) -> Result:
        try:
            return await self._store.read(ask)
        except StoreError as error:
            raise DecisionsUnavailable(str(error), error.hint) from error
