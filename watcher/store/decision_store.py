"""Adapter of the store to the interface that modules use for stored decisions (decisions.DecisionStore)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from watcher.core.decisions import DecisionOutcome, DecisionsExtent, DecisionsUnavailable, StoredDecision, StoredShadow
from watcher.store.errors import StoreError
from watcher.store.store import Store


class StoreDecisions:
    """Stored decisions of a store; its errors become DecisionsUnavailable."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def decisions_kept(self) -> float:
        return self._store.decisions_kept

    def keep_decisions(
        self, decisions: Sequence[StoredDecision], outcomes: Sequence[DecisionOutcome] = (), *, lost: int = 0
    ) -> None:
        self._store.keep_decisions(decisions, outcomes, lost=lost)

    async def decisions_of(
        self, namespace: str, pod: str, *, start: int = 0, end: int | None = None, limit: int, newest: bool = True
    ) -> list[StoredDecision]:
        with _translated():
            return await self._store.decisions_of(namespace, pod, start=start, end=end, limit=limit, newest=newest)

    async def decisions_held(self) -> DecisionsExtent:
        with _translated():
            return await self._store.decisions_held()

    def keep_shadows(self, shadows: Sequence[StoredShadow], *, lost: int = 0) -> None:
        self._store.keep_shadows(shadows, lost=lost)

    async def shadows(self, *, start: int, end: int | None = None, limit: int) -> list[StoredShadow]:
        with _translated():
            return await self._store.shadows(start=start, end=end, limit=limit)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise DecisionsUnavailable(str(error), error.hint) from error
