"""Decisions that wait to be written: so many at most, because a disk may take none for hours.

Whoever hands them over is in a hurry and on another thread than the one that writes. What waits can be asked for until
it is known to be written: a question must not fall into the gap between the two.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from watcher.core.decisions import DecisionOutcome, StoredDecision, StoredShadow

MOST_WAITING = 10_000
MOST_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Batch:
    """What is to be written together."""

    decisions: tuple[StoredDecision, ...]
    outcomes: tuple[DecisionOutcome, ...]
    shadows: tuple[StoredShadow, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.decisions or self.outcomes or self.shadows)


class WaitingDecisions:
    """Those that wait, by time; beyond the bounds the oldest are lost, and counted in `lost`, which only grows."""

    def __init__(self, *, most: int = MOST_WAITING, most_bytes: int = MOST_BYTES) -> None:
        self.lost = 0
        self._most = most
        self._most_bytes = most_bytes
        self._guard = threading.Lock()
        self._decisions: dict[int, StoredDecision] = {}
        self._outcomes: dict[int, DecisionOutcome] = {}
        self._shadows: dict[int, StoredShadow] = {}
        self._bytes = 0

    def add(self, decisions: Sequence[StoredDecision], outcomes: Sequence[DecisionOutcome], *, lost: int = 0) -> None:
        """After those that wait; one whose time is there takes its place."""
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

    def add_shadows(self, shadows: Sequence[StoredShadow], *, lost: int = 0) -> None:
        """The same for what shadow mode saw."""
        with self._guard:
            self.lost += lost
            for shadow in shadows:
                self._shadows.pop(shadow.time, None)
                self._shadows[shadow.time] = shadow
            while len(self._shadows) > self._most:
                del self._shadows[next(iter(self._shadows))]
                self.lost += 1

    def _remove(self, time: int) -> None:
        gone = self._decisions.pop(time, None)
        self._bytes -= 0 if gone is None else len(gone.payload)

    def batch(self) -> Batch:
        """All that wait; they go on waiting until `settle`."""
        with self._guard:
            return Batch(tuple(self._decisions.values()), tuple(self._outcomes.values()), tuple(self._shadows.values()))

    def settle(self, batch: Batch, *, written: bool) -> None:
        """A batch is written, or given up for good. What took the place of a part of it meanwhile still waits."""
        with self._guard:
            for decision in batch.decisions:
                if self._decisions.get(decision.time) is decision:
                    self._remove(decision.time)
            for outcome in batch.outcomes:
                if self._outcomes.get(outcome.time) is outcome:
                    del self._outcomes[outcome.time]
            for shadow in batch.shadows:
                if self._shadows.get(shadow.time) is shadow:
                    del self._shadows[shadow.time]
            if not written:
                self.lost += len(batch.decisions) + len(batch.shadows)


def laid_over(stored: Iterable[StoredDecision], waiting: Batch) -> list[StoredDecision]:
    """What is stored with what waits over it, by time."""
    found = {decision.time: decision for decision in (*stored, *waiting.decisions)}
    for outcome in waiting.outcomes:
        if (decision := found.get(outcome.time)) is not None:
            found[outcome.time] = replace(decision, node=outcome.node, outcome=outcome.outcome)
    return [found[time] for time in sorted(found)]
