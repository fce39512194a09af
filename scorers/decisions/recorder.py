"""New records of decisions until they are stored.

Records are encoded and stored once a second in threads. No error here fails a request: a record that cannot be stored
is dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping

from scorers.decisions.records import PlacementDecision, ShadowBinding
from watcher.core.decisions import MICROSECONDS, DecisionOutcome, DecisionStore, StoredDecision

log = logging.getLogger(__name__)

MOST_NEW = 2000
"""Maximum number of records, and of outcomes, between two flushes: thirty times the rate of 2,000 pods a minute, each
with a placement and a shadow binding."""
LONGEST_NAME = 253


DecisionRecord = PlacementDecision | ShadowBinding


class DecisionRecorder:
    """Collects the new records of an extender; runs in the event loop."""

    def __init__(self, store: DecisionStore) -> None:
        self.store = store
        self._newest = 0
        self._new: dict[int, DecisionRecord] = {}
        self._outcomes: dict[int, DecisionOutcome] = {}
        self._lost = 0
        self._flushing = asyncio.Lock()

    @property
    def is_on(self) -> bool:
        return self.store.decision_retention_s > 0

    def new_key(self, at: float) -> int:
        """Return a key for a record at `at` (unix seconds): microseconds since 1970, higher than all keys before."""
        self._newest = max(self._newest + 1, int(at * MICROSECONDS))
        return self._newest

    def put(self, key: int, record: DecisionRecord) -> None:
        """Store a record soon; it replaces an earlier record with this key."""
        self._new.pop(key, None)
        self._new[key] = record
        if len(self._new) > MOST_NEW:
            del self._new[next(iter(self._new))]
            self._lost += 1

    def drop(self, key: int) -> None:
        """Do not store the record with this key, if it was not passed to the store yet."""
        self._new.pop(key, None)

    def put_outcome(self, key: int, *, node: str, outcome: str) -> None:
        """Store the outcome of the decision with this key soon."""
        self._outcomes[key] = DecisionOutcome(key, storable(node), outcome)
        if len(self._outcomes) > MOST_NEW:
            del self._outcomes[next(iter(self._outcomes))]

    def is_new(self, key: int) -> bool:
        """Return whether the record with this key was not passed to the store yet."""
        return key in self._new

    def count_lost(self) -> None:
        """Count a decision that could not be recorded."""
        self._lost += 1

    async def flush(self) -> None:
        """Pass new records and outcomes to the store."""
        async with self._flushing:
            new, self._new = self._new, {}
            outcomes, self._outcomes = self._outcomes, {}
            if not new and not outcomes and not self._lost:
                return
            try:
                rows = await asyncio.to_thread(_rows, new)
            except BaseException:
                self._new, self._outcomes = new | self._new, outcomes | self._outcomes
                raise
            lost, self._lost = self._lost + len(new) - len(rows), 0
            if self.is_on:
                self.store.keep_decisions(rows, list(outcomes.values()), lost=lost)


def _rows(new: Mapping[int, DecisionRecord]) -> list[StoredDecision]:
    """Encode records for the store; skip those that cannot be encoded because of a plug-in's inputs."""
    rows = []
    for key, record in new.items():
        try:
            payload = record.encode()
        except (TypeError, ValueError) as error:
            what = "decision about pod %s/%s dropped, it cannot be encoded: %s"
            log.debug(what, record.namespace, record.name, error)
            continue
        namespace, name, uid = (storable(text) for text in (record.namespace, record.name, record.uid))
        rows.append(StoredDecision(key, namespace, name, uid, payload, kind=record.kind))
        time.sleep(0)  # release the GIL for the event loop now instead of after 5 ms
    return rows


def storable(text: str) -> str:
    """Make a name safe for the database: pod names are valid, but clients may query any text."""
    return text[:LONGEST_NAME].replace("\0", "\ufffd")
