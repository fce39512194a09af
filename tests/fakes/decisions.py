"""A store of decisions that is a list."""

from collections.abc import Sequence
from dataclasses import replace

from watcher.core.decisions import (
    DecisionOutcome,
    DecisionsExtent,
    DecisionStore,
    DecisionsUnavailable,
    StoredDecision,
    StoredShadow,
)


class DecisionList(DecisionStore):
    """Keeps all that it is given; `away` is what it says to questions while it cannot be read."""

    def __init__(self, *, kept: float = 86400.0) -> None:
        self.decisions: dict[int, StoredDecision] = {}
        self.shadowed: dict[int, StoredShadow] = {}
        self.kept = kept
        self.lost = 0
        self.away = ""

    @property
    def decision_retention_s(self) -> float:
        return self.kept

    def keep_decisions(
        self, decisions: Sequence[StoredDecision], outcomes: Sequence[DecisionOutcome] = (), *, lost: int = 0
    ) -> None:
        assert self.kept, "nobody wants them"
        self.lost += lost
        self.decisions |= {each.time: each for each in decisions}
        for outcome in outcomes:
            before = self.decisions[outcome.time]
            self.decisions[outcome.time] = replace(before, node=outcome.node, outcome=outcome.outcome)

    async def decisions_of(
        self, namespace: str, pod: str, *, start: int = 0, end: int | None = None, limit: int, newest: bool = True
    ) -> list[StoredDecision]:
        self._answer()
        found = [
            each
            for time, each in sorted(self.decisions.items(), reverse=newest)
            if (each.namespace, each.pod) == (namespace, pod) and start <= time < (2**63 if end is None else end)
        ]
        return found[:limit]

    async def decisions_held(self) -> DecisionsExtent:
        self._answer()
        times = self.decisions.keys()
        return DecisionsExtent(len(times), min(times, default=None), max(times, default=None))

    def keep_shadows(self, shadows: Sequence[StoredShadow], *, lost: int = 0) -> None:
        assert self.kept, "nobody wants them"
        self.lost += lost
        self.shadowed |= {each.time: each for each in shadows}

    async def shadows(self, *, start: int, end: int | None = None, limit: int) -> list[StoredShadow]:
        self._answer()
        found = [
            each for time, each in sorted(self.shadowed.items()) if start <= time < (2**63 if end is None else end)
        ]
        return found[-limit:]

    def _answer(self) -> None:
        if self.away:
            raise DecisionsUnavailable(self.away, "look at the disk")
