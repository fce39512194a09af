"""A store of decisions that is a list."""

from collections.abc import Sequence
from dataclasses import replace

from watcher.core.decisions import (
    DecisionOutcome,
    DecisionQuery,
    DecisionsExtent,
    DecisionStore,
    DecisionsUnavailable,
    StoredDecision,
)


class DecisionList(DecisionStore):
    """Keeps all decisions in a list; `away` is the error of queries while it cannot be read."""

    def __init__(self, *, kept: float = 86400.0) -> None:
        self.kept_decisions: dict[int, StoredDecision] = {}
        self.kept = kept
        self.lost = 0
        self.away = ""

    @property
    def placements(self) -> dict[int, StoredDecision]:
        return {time: each for time, each in self.kept_decisions.items() if each.kind == "placement"}

    @property
    def decision_retention_s(self) -> float:
        return self.kept

    def keep_decisions(
        self, decisions: Sequence[StoredDecision], outcomes: Sequence[DecisionOutcome] = (), *, lost: int = 0
    ) -> None:
        assert self.kept, "the caller wants none"
        self.lost += lost
        self.kept_decisions |= {each.time: each for each in decisions}
        for outcome in outcomes:
            before = self.kept_decisions[outcome.time]
            self.kept_decisions[outcome.time] = replace(before, node=outcome.node, outcome=outcome.outcome)

    async def decisions(self, query: DecisionQuery) -> list[StoredDecision]:
        self._answer()
        found = (each for _, each in sorted(self.kept_decisions.items(), reverse=query.newest) if query.matches(each))
        return list(found)[: query.limit]

    async def placements_held(self) -> DecisionsExtent:
        self._answer()
        times = self.placements.keys()
        return DecisionsExtent(len(times), min(times, default=None), max(times, default=None))

    def _answer(self) -> None:
        if self.away:
            raise DecisionsUnavailable(self.away, "look at the disk")
