"""Explains load, scores and verdicts of one node as JSON documents, for the responses of explain, score and nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from scorers.cluster.load import NodeLoadColumns
from scorers.plugin_api.framework import Scores, Verdicts
from scorers.plugin_api.wire import plain, plain_map
from scorers.profiles.default_filters import KUBE_SCHEDULER
from scorers.profiles.profiles import PluginSettings
from scorers.profiles.ranking import FilterResult, RankResult
from watcher.arrays import I64
from watcher.client import Columns


def ranked_nodes(
    load: NodeLoadColumns,
    names: Sequence[str],
    rows: I64,
    ranked: RankResult,
    verdicts: tuple[FilterResult, FilterResult],
    *,
    now: float,
) -> Iterator[dict[str, Any]]:
    """Yield the nodes `names` [n] in these table rows, best first, then the rejected ones. `verdicts` are those of
    kube-scheduler, which are shown only if they reject, and of the profile. Reads no amounts from the table, which may
    change between two nodes."""
    defaults, filtered = verdicts
    rejected = defaults.failures(names).keys() | filtered.failures(names).keys()
    values, sampled, where = ranked.values.tolist(), load.sampled()[rows], load.where[rows].tolist()
    for i in sorted(range(len(names)), key=lambda i: (names[i] in rejected, -values[i], names[i])):
        own = [(each, part) for each, part in defaults.parts if part.codes[i]]
        yield {
            "name": names[i],
            "score": plain(ranked.values[i]),
            "passes": names[i] not in rejected,
            "sampled": plain(sampled[i]),
            **measured(load.columns, where[i], now=now),
            "plugins": [
                *({"of": KUBE_SCHEDULER, **verdict_document(each, part, i)} for each, part in own),
                *(verdict_document(each, part, i) for each, part in filtered.parts),
                *(score_document(each, scores, i) for each, scores in ranked.parts),
            ],
        }


def measured(columns: Columns | None, column: int, *, now: float) -> dict[str, Any]:
    """Return, for the node in this column (-1: no load), `load` by metric and operator, and `windows` by metric: the
    age of the newest sample in seconds, and the seconds that each operator covers (0 for the newest reading)."""
    load: dict[str, dict[str, Any]] = {}
    windows: dict[str, dict[str, Any]] = {}
    if columns is not None and column >= 0:
        for (metric, operator), values in sorted(columns.values.items()):
            if np.isnan(values[column]):
                continue
            load.setdefault(metric, {})[operator.value] = plain(values[column])
            sampled = plain(columns.sampled[metric][column]) if metric in columns.sampled else None
            of_metric = windows.setdefault(
                metric, {"age_s": None if sampled is None else now - sampled, "covers_s": {}}
            )
            of_metric["covers_s"][operator.value] = plain(columns.rollup[(metric, operator)][column])
    return {"load": load, "windows": windows}


def score_document(each: PluginSettings, scores: Scores, i: int) -> dict[str, Any]:
    """Return the score of a plug-in for the node at position `i`, with inputs, steps and reason."""
    return {
        "name": each.name,
        "point": "score",
        "weight": each.weight,
        "score": plain(scores.values[i]),
        "inputs": plain_map(scores.inputs),
        "steps": {name: plain(array[i]) for name, array in scores.steps.items()} | plain_map(scores.more_steps(i)),
        "reason": scores.reason(i),
    }


def verdict_document(each: PluginSettings, verdicts: Verdicts, i: int) -> dict[str, Any]:
    """Return the verdict of a filter plug-in for the node at position `i`, with inputs, steps and reason."""
    code = int(verdicts.codes[i])
    reason = ", ".join(part for part in (verdicts.reasons[code] or "passes", verdicts.details(i)) if part)
    return {
        "name": each.name,
        "point": "filter",
        "passes": code == 0,
        "inputs": plain_map(verdicts.inputs),
        "steps": {name: plain(array[i]) for name, array in verdicts.steps.items()} | plain_map(verdicts.more_steps(i)),
        "reason": reason,
    }
