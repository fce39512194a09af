"""Bounded queue of decisions to be written; it is bounded because the disk may be unusable for hours.

Decisions are added on the event loop and written by another thread. Queued decisions can be queried until the write has
been committed, so that a query always sees them either here or in the database.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from watcher.core.decisions import DecisionOutcome, StoredDecision

MOST_WAITING = 20_000
MOST_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Batch:
    """Decisions and outcomes that are written in one transaction."""

    decisions: tuple[StoredDecision, ...]
    outcomes: tuple[DecisionOutcome, ...]

    def __bool__(self) -> bool:
        return bool(self.decisions or self.outcomes)


class DecisionQueue:
    """The queued decisions by time. If a limit (count or payload bytes) is exceeded, the oldest are dropped; `lost`
    counts all dropped ones."""

    def __init__(self, *, most: int = MOST_WAITING, most_bytes: int = MOST_BYTES) -> None:
        self.lost = 0
        self._most = most
        self._most_bytes = most_bytes
        self._guard = threading.Lock()
        self._decisions: dict[int, StoredDecision] = {}
        self._outcomes: dict[int, DecisionOutcome] = {}
        self._bytes = 0

    def add(self, decisions: Sequence[StoredDecision], outcomes: Sequence[DecisionOutcome], *, lost: int = 0) -> None:
        """Append decisions; one with the same time as a queued one replaces it. `lost` decisions were dropped by the
        caller."""
        with self._guard:
            self.lost += lost
            for decision in decisions:
                self._remove(decision.time)
                self._decisions[decision.time] = decision
                self._bytes += len(decision.payload)
            for outcome in outcomes:
                self._outcomes[outcome.time] = outcome
            while self._decisions and (len(self._decisions) > self._most or self._bytes > self._most_bytes):
                self._remove(next(iter(self._decisions)))
                self.lost += 1
            while len(self._outcomes) > self._most:
                del self._outcomes[next(iter(self._outcomes))]

    def _remove(self, time: int) -> None:
        gone = self._decisions.pop(time, None)
        self._bytes -= 0 if gone is None else len(gone.payload)

    def batch(self) -> Batch:
        """All queued entries; they stay queued until `remove`."""
        with self._guard:
            return Batch(tuple(self._decisions.values()), tuple(self._outcomes.values()))

    def remove(self, batch: Batch, *, written: bool) -> None:
        """Remove a batch that was written or dropped. Entries that were replaced since `batch` stay queued."""
        with self._guard:
            for decision in batch.decisions:
                if self._decisions.get(decision.time) is decision:
                    self._remove(decision.time)
            for outcome in batch.outcomes:
                if self._outcomes.get(outcome.time) is outcome:
                    del self._outcomes[outcome.time]
            if not written:
                self.lost += len(batch.decisions)


def merge_queued(stored: Iterable[StoredDecision], waiting: Batch) -> list[StoredDecision]:
    """Stored decisions merged with the queued ones, in order of time; queued ones take precedence. Several watchers may
    have stored decisions with the same time."""
    queued = {decision.time for decision in waiting.decisions}
    outcomes = {outcome.time: outcome for outcome in waiting.outcomes}
    found = [*waiting.decisions, *(decision for decision in stored if decision.time not in queued)]
    for i, decision in enumerate(found):
        if (outcome := outcomes.get(decision.time)) is not None:
            found[i] = replace(decision, node=outcome.node, outcome=outcome.outcome)
    return sorted(found, key=lambda each: each.time)
