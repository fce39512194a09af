"""The answers of load-watcher's Trimaran plug-ins to a case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from scorers.cluster.pods import pod_info
from scorers.cluster.table import ClusterTable
from scorers.plugin_api.framework import Scores, create_plugin
from scorers.plugins.load_variation_risk_balancing import LoadVariationRiskBalancing
from scorers.plugins.low_risk_over_commitment import LowRiskOverCommitment
from scorers.plugins.peaks import Peaks
from scorers.plugins.target_load_packing import TargetLoadPacking
from tests.originals.frame import Case
from tests.scorers.simulated_cluster import load, node
from watcher.client import Columns
from watcher.core.kubernetes.objects import Node, Pod

NOW = 1_900_000_000.0
SMOOTHING_S = 300.0
RISE = "rise in watts"
WATTS = "Peaks, watts"
PLUGINS = {each.name: each for each in (TargetLoadPacking, LoadVariationRiskBalancing, LowRiskOverCommitment, Peaks)}

Answer = dict[str, Any]
"""{"scores": {node: score}, "rises": {node: watts}}, or {"error"}."""


def ask_product(case: Case, plugin: str) -> Answer:
    """The answer of one of load-watcher's plug-ins. Other nodes are scored too, which are all measured, unless the case
    is marked "alone": load-watcher scores by requests if most nodes have no metrics. Peaks compares the nodes of a
    request, so other nodes would change its scores."""
    names = [each["metadata"]["name"] for each in case["nodes"]]
    others = [] if case.get("alone") or plugin == Peaks.name else [f"other{i}" for i in range(len(names) + 1)]
    table = ClusterTable()
    try:
        created, _ = create_plugin(PLUGINS[plugin], case["args"][plugin], table)
    except ValueError as error:
        return {"error": str(error)}
    _fill(table, case, others)
    scores = _score(created, case, table, [*names, *others])
    watts = scores.steps.get(RISE, np.full(len(names), np.nan))
    return {
        "scores": {name: int(scores.values[i]) for i, name in enumerate(names)},
        "rises": {name: float(watts[i]) for i, name in enumerate(names) if not np.isnan(watts[i])},
    }


def _fill(table: ClusterTable, case: Case, others: Sequence[str]) -> None:
    for each in case["nodes"]:
        table.set_node(each["metadata"]["name"], msgspec.convert(each, Node))
    for name in others:
        table.set_node(name, node(name, {"cpu": "4", "memory": "8Gi"}))
    for each in case["pods"]:
        table.set_pod(None, msgspec.convert(each, Pod), now=NOW)
    table.set_load(_columns(case, others), now=NOW)


def _columns(case: Case, others: Sequence[str]) -> Columns | None:
    values = {name: {(kind, of): value for kind, of, value in each} for name, each in case["load"].items()}
    values |= {name: {("CPU", "AVG"): 10.0, ("Memory", "AVG"): 10.0} for name in others}
    if not any(values.values()):
        return None
    columns = load(values, sampled=NOW - case["age"])
    seconds = SMOOTHING_S if case["smoothed"] else 0.0
    return replace(columns, smoothing_s=dict.fromkeys(columns.smoothing_s, seconds))


def _score(plugin: Any, case: Case, table: ClusterTable, names: Sequence[str]) -> Scores:
    rows = np.array([table.row[name] for name in names], dtype=np.int64)
    return plugin.score(pod_info(msgspec.convert(case["pod"], Pod)), table, rows, now=NOW)


def rounded(watts: float) -> float:
    """Watts to 9 digits. Upstream's score is an integer of 1e-15 W."""
    return float(f"{watts:.8e}") if abs(watts) > 1e-9 else 0.0
