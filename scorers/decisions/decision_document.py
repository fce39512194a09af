"""JSON document of a recorded decision, with a sentence about the outcome."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from scorers.decisions.records import (
    FilterRecord,
    PlacementDecision,
    PlacementOutcome,
    RankedNodes,
    RankingRecord,
)
from scorers.plugin_api.wire import integer_scores

BOUND, DELETED, ASKED_AGAIN, PENDING, UNKNOWN = "bound", "deleted", "asked_again", "pending", "unknown"
"""Outcomes of a decision; "unknown" means that the outcome was not observed."""


@dataclass(frozen=True, slots=True)
class OutcomeState:
    """Outcome of a decision for its pod: `outcome` if it was recorded. Otherwise `kind` is ASKED_AGAIN (kube-scheduler
    called the extender again at `time`, unix seconds), PENDING, BOUND, or UNKNOWN."""

    kind: str
    outcome: PlacementOutcome | None = None
    time: float | None = None


def decision_document(decision: PlacementDecision, became: OutcomeState, *, now: float) -> dict[str, Any]:
    """Return the decision as a document of JSON types without infinities and NaN."""
    ranking, filtered, outcome = decision.ranking, decision.filtered, became.outcome
    chosen = None if outcome is None else outcome.chosen
    load = decision.load
    return {
        "time": decision.time,
        "ago_s": round(now - decision.time, 3),
        "profile": decision.profile,
        "pod": {
            "namespace": decision.namespace,
            "name": decision.name,
            "uid": decision.uid,
            "requests": decision.requests,
            "limits": decision.limits,
        },
        "load": None
        if load is None
        else {"source": load.source, "window_end": load.window_end, "age_s": load.age_s, "window": load.window},
        "fallbacks": dict(_fallbacks(ranking)),
        "filter": None if filtered is None else _filter(filtered),
        "ranking": None if ranking is None else _ranking(ranking, decision, outcome, chosen),
        "outcome": _outcome(decision, became),
    }


def _fallbacks(ranking: RankingRecord | None) -> Iterator[tuple[str, str]]:
    """Yield the plug-ins that used a fallback instead of load."""
    for plugin in () if ranking is None else ranking.best.plugins:
        if fallback := plugin.inputs.get("fallback"):
            yield plugin.name, str(fallback)


def _filter(filtered: FilterRecord) -> dict[str, Any]:
    return {
        "asked": filtered.asked,
        "unknown": filtered.unknown,
        "passed": filtered.passed,
        "reserved": filtered.reserved or None,
        "plugins": [
            {
                "name": plugin.name,
                "inputs": plugin.inputs,
                "rejected": [
                    {
                        "reason": each.reason,
                        "count": each.count,
                        "nodes": list(each.nodes),
                        **({"details": each.details} if each.details else {}),
                    }
                    for each in plugin.rejected
                ],
            }
            for plugin in filtered.plugins
        ],
    }


def _ranking(
    ranking: RankingRecord, decision: PlacementDecision, outcome: PlacementOutcome | None, chosen: RankedNodes | None
) -> dict[str, Any]:
    on = outcome.node if outcome is not None and outcome.kind == BOUND else ""
    parts = [ranking.best] if chosen is None else [ranking.best, chosen]
    return {
        "asked": ranking.asked,
        "unknown": ranking.unknown,
        "of": ranking.of,
        "most": ranking.most,
        "reserved": ranking.reserved or None,
        "plugins": [
            {"name": plugin.name, "weight": plugin.weight, "inputs": plugin.inputs} for plugin in ranking.best.plugins
        ],
        "nodes": [node for part in parts for node in _nodes(part, ranking, time=decision.time, chosen=on)],
    }


def _nodes(nodes: RankedNodes, ranking: RankingRecord, *, time: float, chosen: str) -> Iterator[dict[str, Any]]:
    for i, name in enumerate(nodes.names):
        sampled = nodes.sampled[i]
        yield {
            "name": name,
            "rank": nodes.ranks[i],
            "score": nodes.scores[i],
            "told": _as_told(nodes.scores[i], ranking),
            "sampled": sampled,
            "age_s": None if sampled is None else round(time - sampled, 3),
            "reserved": name == ranking.reserved,
            "chosen": name == chosen,
            "plugins": [
                {
                    "name": plugin.name,
                    "score": plugin.scores[i],
                    "reason": plugin.reasons[i],
                    "steps": {step: values[i] for step, values in plugin.steps.items()},
                }
                for plugin in nodes.plugins
            ],
        }


def _as_told(score: float, ranking: RankingRecord) -> int:
    """Return the score of a node as sent to kube-scheduler."""
    return 0 if ranking.withheld else int(integer_scores(np.array([score]), ranking.most)[0])


# --- outcome ---------------------------------------------------------------------------------------------------------


def _outcome(decision: PlacementDecision, became: OutcomeState) -> dict[str, Any]:
    outcome = became.outcome
    stood = None if outcome is None else standing_of(decision.ranking, outcome)
    return {
        "kind": became.kind,
        "time": became.time if outcome is None else outcome.time,
        "node": outcome.node or None if outcome is not None else None,
        "rank": None if stood is None else stood[0],
        "score": None if stood is None else stood[1],
        "sentence": outcome_sentence(decision, became),
    }


def standing_of(ranking: RankingRecord | None, outcome: PlacementOutcome) -> tuple[int, float] | None:
    """Return rank and score of the node that the pod was bound to, None if unknown."""
    if ranking is None:
        return None
    for nodes in (ranking.best, outcome.chosen):
        if nodes is not None and outcome.node in nodes.names:
            i = nodes.names.index(outcome.node)
            return nodes.ranks[i], nodes.scores[i]
    return None


def outcome_sentence(decision: PlacementDecision, became: OutcomeState) -> str:
    """Return a sentence about the outcome and the rank of the node."""
    outcome = became.outcome
    if outcome is not None and outcome.kind == BOUND:
        return f"bound to {outcome.node}{_after(outcome.time - decision.time)}: {_standing(decision, outcome)}"
    if outcome is not None:
        return f"deleted{_after(outcome.time - decision.time)}, before it was bound to any node"
    if became.kind == ASKED_AGAIN:
        later = 0.0 if became.time is None else became.time - decision.time
        return f"not bound after this decision: kube-scheduler called the extender for it again {later:.1f} s later"
    if became.kind == PENDING:
        nobody = decision.filtered is not None and not decision.filtered.passed
        return "not bound yet: no node passed the extender's filters" if nobody else "not bound yet"
    return "unknown: the pod no longer exists, and its outcome was not observed"


def _after(seconds: float) -> str:
    return f" {seconds:.1f} s later" if seconds >= 0.05 else ""


def _standing(decision: PlacementDecision, outcome: PlacementOutcome) -> str:
    ranking, filtered = decision.ranking, decision.filtered
    if ranking is None:
        left = filtered is not None and filtered.passed == 1
        why = "because only one node passed the filters" if left else "so the extender cannot explain the choice"
        return f"kube-scheduler requested no scores, {why}"
    if not outcome.asked:
        return "the extender did not rank this node: it was not in the request, or it is unknown"
    stood = standing_of(ranking, outcome)
    if stood is None:
        return f"not among the extender's best {len(ranking.best.names)} of {ranking.of:,} nodes; rank not recorded"
    return _compared(ranking, outcome.node, *stood)


def _compared(ranking: RankingRecord, node: str, rank: int, score: float) -> str:
    """Compare the node with the highest-ranked node."""
    best, highest = ranking.best.names[0], ranking.best.scores[0]
    if rank == 1:
        equals = "" if node == best else f", equal to {best}"
        return f"ranked 1st of {ranking.of:,} nodes (score {score:.4g}{equals})"
    place = f"ranked {ordinal(rank)} of {ranking.of:,} nodes (score {score:.4g}; highest {highest:.4g} on {best})"
    if ranking.withheld:
        return f"{place}; kube-scheduler received 0 for all nodes, because most nodes in its request are unknown"
    said = _as_told(score, ranking)
    if said == _as_told(highest, ranking):
        return (
            f"{place}; on the scale 0 to {ranking.most} both scored {said}, as did {ranking.tied:,} nodes in total, so "
            "chance or another plug-in of kube-scheduler decided"
        )
    return f"{place}: another plug-in or extender of kube-scheduler outweighed it"


def ordinal(number: int) -> str:
    """Format a rank: 1st, 2nd, 3rd, 4th, … 11th, … 21st."""
    suffix = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{suffix}"
