"""A remembered decision as it is told: what is known of it, and what became of it in a sentence.

Pure: no I/O, and no clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from scorers.decisions.records import Decision, Nodes, Outcome, Passed, Ranking, told_scores

BOUND, DELETED, ASKED_AGAIN, PENDING, UNKNOWN = "bound", "deleted", "asked_again", "pending", "unknown"
"""What became of a pod after a decision: the last is for what nobody saw."""


@dataclass(frozen=True, slots=True)
class Became:
    """What became of a pod: `outcome` is what was seen, else `kind` says what else is known: the pod was asked about
    again at `time`, it waits to this day, or nothing."""

    kind: str
    outcome: Outcome | None = None
    time: float | None = None


def told(decision: Decision, became: Became, *, now: float) -> dict[str, Any]:
    """All of it; JSON types only, and nothing that is not finite."""
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


def _fallbacks(ranking: Ranking | None) -> Iterator[tuple[str, str]]:
    """What plug-ins went by instead of load."""
    for plugin in () if ranking is None else ranking.best.plugins:
        if fallback := plugin.inputs.get("fallback"):
            yield plugin.name, str(fallback)


def _filter(filtered: Passed) -> dict[str, Any]:
    return {
        "asked": filtered.asked,
        "unknown": filtered.unknown,
        "passed": filtered.passed,
        "plugins": [
            {
                "name": plugin.name,
                "inputs": plugin.inputs,
                "rejected": [
                    {"reason": each.reason, "count": each.count, "nodes": list(each.nodes)} for each in plugin.rejected
                ],
            }
            for plugin in filtered.plugins
        ],
    }


def _ranking(ranking: Ranking, decision: Decision, outcome: Outcome | None, chosen: Nodes | None) -> dict[str, Any]:
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


def _nodes(nodes: Nodes, ranking: Ranking, *, time: float, chosen: str) -> Iterator[dict[str, Any]]:
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


def _as_told(score: float, ranking: Ranking) -> int:
    """What kube-scheduler was told of a node with this score."""
    return 0 if ranking.withheld else int(told_scores(np.array([score]), ranking.most)[0])


# --- what became of it -----------------------------------------------------------------------------------------------


def _outcome(decision: Decision, became: Became) -> dict[str, Any]:
    outcome = became.outcome
    stood = None if outcome is None else _where_it_stood(decision.ranking, outcome)
    return {
        "kind": became.kind,
        "time": became.time if outcome is None else outcome.time,
        "node": outcome.node or None if outcome is not None else None,
        "rank": None if stood is None else stood[0],
        "score": None if stood is None else stood[1],
        "sentence": in_words(decision, became),
    }


def _where_it_stood(ranking: Ranking | None, outcome: Outcome) -> tuple[int, float] | None:
    """Rank and score of the node that the pod was bound to, None where they are not known."""
    if ranking is None:
        return None
    for nodes in (ranking.best, outcome.chosen):
        if nodes is not None and outcome.node in nodes.names:
            i = nodes.names.index(outcome.node)
            return nodes.ranks[i], nodes.scores[i]
    return None


def in_words(decision: Decision, became: Became) -> str:
    """What became of the pod, and where that node stood with us."""
    outcome = became.outcome
    if outcome is not None and outcome.kind == BOUND:
        return f"bound to {outcome.node}{_after(outcome.time - decision.time)}: {_standing(decision, outcome)}"
    if outcome is not None:
        return f"deleted{_after(outcome.time - decision.time)}, before it was bound to any node"
    if became.kind == ASKED_AGAIN:
        later = 0.0 if became.time is None else became.time - decision.time
        return f"not bound by this: kube-scheduler asked about it again {later:.1f} s later"
    if became.kind == PENDING:
        nobody = decision.filtered is not None and not decision.filtered.passed
        return "not bound yet: no node passed our filter" if nobody else "not bound yet"
    return "not known: the pod is gone, and load-watcher did not see what became of it"


def _after(seconds: float) -> str:
    return f" {seconds:.1f} s later" if seconds >= 0.05 else ""


def _standing(decision: Decision, outcome: Outcome) -> str:
    ranking, filtered = decision.ranking, decision.filtered
    if ranking is None:
        left = filtered is not None and filtered.passed == 1
        why = "as it does where one node is left" if left else "so it is not ours to explain"
        return f"kube-scheduler asked for no scores, {why}"
    if not outcome.asked:
        return "a node that we were not asked about, or do not know"
    stood = _where_it_stood(ranking, outcome)
    if stood is None:
        return f"not among our best {len(ranking.best.names)} of {ranking.of:,}; where it stood is not known any more"
    return _compared(ranking, outcome.node, *stood)


def _compared(ranking: Ranking, node: str, rank: int, score: float) -> str:
    """With the node that we liked best."""
    best, highest = ranking.best.names[0], ranking.best.scores[0]
    if rank == 1:
        equals = "" if node == best else f", like {best}"
        return f"our best of {ranking.of:,} (score {score:.4g}{equals})"
    place = f"our {ordinal(rank)} of {ranking.of:,} (score {score:.4g} against {highest:.4g} of {best})"
    if ranking.withheld:
        return f"{place}; kube-scheduler was told 0 of all, since most nodes that it asked about are not known here"
    said = _as_told(score, ranking)
    if said == _as_told(highest, ranking):
        return (
            f"{place}; in whole numbers from 0 to {ranking.most} both were {said}, as {ranking.tied:,} nodes were, so "
            "chance or another plug-in of kube-scheduler decided"
        )
    return f"{place}: another plug-in or extender of kube-scheduler outweighed it"


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th, … 11th, … 21st."""
    suffix = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{suffix}"
