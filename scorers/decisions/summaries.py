"""One decision in a list: the outcome, one sentence with numbers, and the number of rejected nodes by reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from scorers.decisions.decision_document import BOUND, PENDING, OutcomeState, outcome_sentence, standing_of
from scorers.decisions.records import FilterRecord, PlacementDecision, RankedNodes, RankingRecord
from scorers.plugin_api.wire import integer_scores

BEST, OTHER, REJECTED = "best", "other", "rejected"
"""Outcomes of a list in addition to those of a decision: bound to a node with the highest score as sent to
kube-scheduler; bound to another node; not bound, since no node passed the filters."""


@dataclass(frozen=True, slots=True)
class PlacementSummary:
    """A decision at `time` (unix seconds, also its key). `outcome` is BEST, OTHER, REJECTED, or the kind of an
    OutcomeState; BOUND if the extender did not rank the node."""

    time: float
    namespace: str
    pod: str
    uid: str
    profile: str
    outcome: str
    node: str
    best: str
    sentence: str
    reason: str
    candidates: tuple[str, ...]
    rejected: tuple[dict[str, Any], ...]

    def document(self) -> dict[str, Any]:
        """Return the entry of the list as JSON types."""
        return {
            "time": self.time,
            "pod": {"namespace": self.namespace, "name": self.pod, "uid": self.uid},
            "profile": self.profile,
            "outcome": self.outcome,
            "node": self.node or None,
            "best": self.best or None,
            "sentence": self.sentence,
            "reason": self.reason,
            "candidates": list(self.candidates),
            "rejected": list(self.rejected),
        }


def summary_of(time: float, decision: PlacementDecision, became: OutcomeState) -> PlacementSummary:
    """Summarize the decision with the key `time` (unix seconds)."""
    ranking, outcome = decision.ranking, became.outcome
    node = outcome.node if outcome is not None else ""
    return PlacementSummary(
        time,
        decision.namespace,
        decision.name,
        decision.uid,
        decision.profile,
        _kind(decision, became),
        node,
        ranking.best.names[0] if ranking is not None and ranking.best.names else "",
        outcome_sentence(decision, became),
        _reason(decision, became),
        ranking.best.names if ranking is not None else (),
        tuple(_rejections(decision.filtered)),
    )


def _kind(decision: PlacementDecision, became: OutcomeState) -> str:
    ranking, outcome = decision.ranking, became.outcome
    if became.kind == PENDING and decision.filtered is not None and not decision.filtered.passed:
        return REJECTED
    if became.kind != BOUND or ranking is None or outcome is None or not outcome.asked:
        return became.kind
    stood = standing_of(ranking, outcome)
    return BEST if stood is not None and _as_good(ranking, stood[1]) else OTHER


def _as_good(ranking: RankingRecord, score: float) -> bool:
    """Whether kube-scheduler received the highest score for a node with this score."""
    sent, highest = integer_scores(np.array([score, ranking.best.scores[0]]), ranking.most)
    return bool(sent == highest)


def _reason(decision: PlacementDecision, became: OutcomeState) -> str:
    """Return the reasons of the plug-ins for the bound node, otherwise for the best one; without a ranking, the most
    frequent reason of a filter."""
    ranking, outcome = decision.ranking, became.outcome
    if ranking is not None and ranking.best.names:
        node = outcome.node if outcome is not None and outcome.node else ranking.best.names[0]
        for nodes in (ranking.best, outcome.chosen if outcome is not None else None):
            if nodes is not None and node in nodes.names:
                return _reasons(nodes, nodes.names.index(node))
        return ""
    rejected = sorted(_rejections(decision.filtered), key=lambda each: (-each["count"], each["reason"]))
    return f"{rejected[0]['plugin']}: {rejected[0]['example']}" if rejected else ""


def _reasons(nodes: RankedNodes, i: int) -> str:
    plugins = [plugin for plugin in nodes.plugins if plugin.reasons[i]]
    if len(plugins) == 1:
        return plugins[0].reasons[i]
    return "; ".join(f"{plugin.name}: {plugin.reasons[i]}" for plugin in plugins)


def _rejections(filtered: FilterRecord | None) -> Iterator[dict[str, Any]]:
    for plugin in () if filtered is None else filtered.plugins:
        for each in plugin.rejected:
            name = each.nodes[0] if each.nodes else ""
            details = each.details.get(name, "")
            example = f"{each.reason}, {name}: {details}" if details else each.reason
            yield {"plugin": plugin.name, "reason": each.reason, "count": each.count, "example": example}
