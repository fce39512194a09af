"""JSON documents of a recorded decision: the whole decision, its entry in a list, and its outcome in a sentence.

The documents have records as parts, which msgspec writes as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from scorers.cluster.pods import identity, scheduled_at
from scorers.decisions.records import (
    FilterRecord,
    PlacementDecision,
    PlacementOutcome,
    RankedNodes,
    RankingRecord,
    decode_outcome,
)
from scorers.plugin_api.wire import integer_scores
from watcher.core.decisions import MICROSECONDS, StoredDecision
from watcher.core.kubernetes.objects import Pod

BOUND, DELETED, ASKED_AGAIN, PENDING, UNKNOWN = "bound", "deleted", "asked_again", "pending", "unknown"
"""Outcomes of a decision; "unknown" means that the outcome was not observed."""
BEST, OTHER, REJECTED = "best", "other", "rejected"
"""Outcomes of a list in addition to those of a decision: bound to a node with the highest score as sent to
kube-scheduler; bound to another node; not bound, since no node passed the filters."""


@dataclass(frozen=True, slots=True)
class OutcomeState:
    """Outcome of a decision for its pod: `outcome` if it was recorded. Otherwise `kind` is ASKED_AGAIN (kube-scheduler
    called the extender again at `time`, unix seconds), PENDING, BOUND, or UNKNOWN."""

    kind: str
    outcome: PlacementOutcome | None = None
    time: float | None = None

    @property
    def node(self) -> str:
        """The node of the outcome, "" if none."""
        return "" if self.outcome is None else self.outcome.node


def outcome_state(
    row: StoredDecision, later: StoredDecision | None, pod_of: Callable[[str], Pod | None]
) -> OutcomeState:
    """Return the outcome of a stored decision: as recorded, or derived from `later`, the next decision about the same
    pod, or from the current pod NAMESPACE/NAME, which `pod_of` returns."""
    outcome = decode_outcome(row.outcome)
    if outcome is not None:
        return OutcomeState(outcome.kind, outcome)
    if later is not None:
        return OutcomeState(ASKED_AGAIN, time=later.time / MICROSECONDS)
    pod = pod_of(f"{row.namespace}/{row.pod}")
    if pod is None or identity(pod) != row.uid:
        return OutcomeState(UNKNOWN)
    if not pod.spec.node_name:
        return OutcomeState(PENDING)
    at = max(scheduled_at(pod) or 0.0, row.time / MICROSECONDS)
    return OutcomeState(BOUND, PlacementOutcome(BOUND, at, pod.spec.node_name))


# --- the whole decision ----------------------------------------------------------------------------------------------


def decision_document(decision: PlacementDecision, became: OutcomeState, *, now: float) -> dict[str, Any]:
    """Return the decision as a document that msgspec can encode, without infinities and NaN."""
    filtered, ranking = decision.filtered, decision.ranking
    of_pod = ("namespace", "name", "uid", "requests", "limits")
    used = () if ranking is None else ranking.best.plugins
    return {
        "time": decision.time,
        "ago_s": round(now - decision.time, 3),
        "profile": decision.profile,
        "pod": {name: getattr(decision, name) for name in of_pod},
        "load": decision.load,
        "fallbacks": {each.name: str(instead) for each in used if (instead := each.inputs.get("fallback"))},
        "filter": None
        if filtered is None
        else msgspec.structs.asdict(filtered) | {"reserved": filtered.reserved or None},
        "ranking": None if ranking is None else _ranking(decision, ranking, became),
        "outcome": _outcome(decision, became),
    }


def _ranking(decision: PlacementDecision, ranking: RankingRecord, became: OutcomeState) -> dict[str, Any]:
    chosen = None if became.outcome is None else became.outcome.chosen
    on = became.node if became.kind == BOUND else ""
    return {
        "asked": ranking.asked,
        "unknown": ranking.unknown,
        "of": ranking.of,
        "most": ranking.most,
        "reserved": ranking.reserved or None,
        "plugins": [{"name": each.name, "weight": each.weight, "inputs": each.inputs} for each in ranking.best.plugins],
        "nodes": [
            node
            for nodes in (ranking.best, chosen)
            if nodes is not None
            for node in _nodes(nodes, ranking, time=decision.time, chosen=on)
        ],
    }


def _nodes(nodes: RankedNodes, ranking: RankingRecord, *, time: float, chosen: str) -> Iterator[dict[str, Any]]:
    for i, name in enumerate(nodes.names):
        sampled = nodes.sampled[i]
        yield {
            "name": name,
            "rank": nodes.ranks[i],
            "score": nodes.scores[i],
            "told": _as_reported(nodes.scores[i], ranking),
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


def _as_reported(score: float, ranking: RankingRecord) -> int:
    """Return the score of a node as sent to kube-scheduler."""
    return 0 if ranking.withheld else int(integer_scores(np.array([score]), ranking.most)[0])


# --- outcome ---------------------------------------------------------------------------------------------------------


def _outcome(decision: PlacementDecision, became: OutcomeState) -> dict[str, Any]:
    outcome = became.outcome
    stood = None if outcome is None else standing_of(decision.ranking, outcome)
    return {
        "kind": became.kind,
        "time": became.time if outcome is None else outcome.time,
        "node": became.node or None,
        "rank": None if stood is None else stood[0],
        "score": None if stood is None else stood[1],
        "sentence": outcome_sentence(decision, became),
    }


def standing_of(ranking: RankingRecord | None, outcome: PlacementOutcome) -> tuple[int, float] | None:
    """Return rank and score of the node that the pod was bound to, None if unknown."""
    found = None if ranking is None else _recorded(ranking, outcome.chosen, outcome.node)
    return found and (found[0].ranks[found[1]], found[0].scores[found[1]])


def _recorded(ranking: RankingRecord, chosen: RankedNodes | None, node: str) -> tuple[RankedNodes, int] | None:
    """Return the part of the record that has the node, and its position there."""
    parts = [each for each in (ranking.best, chosen) if each is not None and node in each.names]
    return (parts[0], parts[0].names.index(node)) if parts else None


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
    said = _as_reported(score, ranking)
    if said == _as_reported(highest, ranking):
        return (
            f"{place}; on the scale 0 to {ranking.most} both scored {said}, as did {ranking.tied:,} nodes in total, so "
            "chance or another plug-in of kube-scheduler decided"
        )
    return f"{place}: another plug-in or extender of kube-scheduler outweighed it"


def ordinal(number: int) -> str:
    """Format a rank: 1st, 2nd, 3rd, 4th, … 11th, … 21st."""
    suffix = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{suffix}"


# --- the entry of a list ---------------------------------------------------------------------------------------------


class PlacementSummary(msgspec.Struct, frozen=True):
    """A decision at `time` (unix seconds, also its key). `outcome` is BEST, OTHER, REJECTED, or the kind of an
    OutcomeState; BOUND if the extender did not rank the node. `reason` are the reasons of the plug-ins for the bound
    node, otherwise for the best one; without a ranking, the most frequent reason of a filter."""

    time: float
    pod: dict[str, str]
    profile: str
    outcome: str
    node: str | None
    best: str | None
    sentence: str
    reason: str
    candidates: tuple[str, ...]
    rejected: tuple[dict[str, Any], ...]


def summary_of(time: float, decision: PlacementDecision, became: OutcomeState) -> PlacementSummary:
    """Summarize the decision with the key `time` (unix seconds)."""
    ranking, rejected = decision.ranking, tuple(_rejections(decision.filtered))
    candidates = () if ranking is None else ranking.best.names
    return PlacementSummary(
        time,
        {"namespace": decision.namespace, "name": decision.name, "uid": decision.uid},
        decision.profile,
        _kind(decision, became),
        became.node or None,
        candidates[0] if candidates else None,
        outcome_sentence(decision, became),
        _most_frequent(rejected) if ranking is None or not candidates else _reason(ranking, became),
        candidates,
        rejected,
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


def _reason(ranking: RankingRecord, became: OutcomeState) -> str:
    """Return the reasons of the plug-ins for the bound node, otherwise for the best one."""
    chosen = None if became.outcome is None else became.outcome.chosen
    found = _recorded(ranking, chosen, became.node or ranking.best.names[0])
    if found is None:
        return ""
    nodes, i = found
    plugins = [plugin for plugin in nodes.plugins if plugin.reasons[i]]
    if len(plugins) == 1:
        return plugins[0].reasons[i]
    return "; ".join(f"{plugin.name}: {plugin.reasons[i]}" for plugin in plugins)


def _rejections(filtered: FilterRecord | None) -> Iterator[dict[str, Any]]:
    for plugin in () if filtered is None else filtered.plugins:
        for each in plugin.rejected:
            details = each.details.get(each.nodes[0], "") if each.nodes else ""
            example = f"{each.reason}, {each.nodes[0]}: {details}" if details else each.reason
            yield {"plugin": plugin.name, "reason": each.reason, "count": each.count, "example": example}


def _most_frequent(rejections: Sequence[Mapping[str, Any]]) -> str:
    if not rejections:
        return ""
    first = min(rejections, key=lambda each: (-each["count"], each["reason"]))
    return f"{first['plugin']}: {first['example']}"
