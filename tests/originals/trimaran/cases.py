"""Random cases of the Trimaran plug-ins: arguments of each, nodes with their load and pods, and a pod to schedule.

`load` has the metrics of each measured node as [type, operator, value]; `age` is the age of the newest sample in
seconds, negative if the clocks differ; `smoothed` states whether the source averages its values.
`body` is the response of GET /watcher with this load.
"""

from __future__ import annotations

import random
from typing import Any

from tests.originals.frame import Case
from tests.originals.random_pods import GIB, chance, cpu, pod

SIZES = ((2, 4), (8, 32), (16, 64), (64, 256))  # cores, GiB
AGES = (90, 60, 30, 10, 0, -30, -90, -120, -300)
METRIC_NAMES = {"CPU": "instance:node_cpu:ratio", "Memory": "instance:node_memory_utilisation:ratio"}
INVALID_ARGUMENTS: tuple[tuple[str, str, Any], ...] = (
    ("TargetLoadPacking", "targetUtilization", 0),
    ("TargetLoadPacking", "targetUtilization", 100),
    ("TargetLoadPacking", "targetUtilization", "40"),
    ("TargetLoadPacking", "defaultRequestsMultiplier", "many"),
    ("TargetLoadPacking", "unknownArgument", 1),
    ("LoadVariationRiskBalancing", "safeVarianceMargin", -1),
    ("LoadVariationRiskBalancing", "safeVarianceSensitivity", -1),
    ("LowRiskOverCommitment", "smoothingWindowSize", 0),
    ("LowRiskOverCommitment", "riskLimitWeights", {"cpu": 2.0}),
    ("Peaks", "unknownArgument", 1),
)


def random_case(source: random.Random) -> Case:
    """A case: metrics, operators, models and requests may be missing, zero or beyond the capacity. In half of the cases
    no metrics and models are missing."""
    complete = chance(source, 0.5)
    names = [f"n{i}" for i in range(source.choice([1, 2, 3, 5]))]
    pods = [pod(source, f"{name}-p{i}", node=name) for name in names for i in range(source.choice([0, 1, 2, 4]))]
    return {
        "args": _arguments(source, names, complete=complete),
        "nodes": [_node(source, name) for name in names],
        "pods": pods,
        "pod": pod(source, "incoming"),
        "load": {name: _load(source, complete=complete) for name in names if complete or chance(source, 0.95)},
        "age": source.choice(AGES),
        "smoothed": chance(source, 0.9),
    }


def _arguments(source: random.Random, names: list[str], *, complete: bool) -> dict[str, dict[str, Any]]:
    def some(**choices: tuple[Any, ...]) -> dict[str, Any]:
        return {name: source.choice(values) for name, values in choices.items() if chance(source, 0.6)}

    models = {name: _power_model(source) for name in names if complete or chance(source, 0.95)}
    args: dict[str, dict[str, Any]] = {
        "TargetLoadPacking": some(
            targetUtilization=(40, 1, 10, 70, 99),
            defaultRequestsMultiplier=("1.5", "1", "2.25", "0"),
            defaultRequests=({"cpu": "500m"}, {"cpu": "2"}, {"memory": "1Gi"}),
        ),
        "LoadVariationRiskBalancing": some(
            safeVarianceMargin=(1, 0, 2, 0.5, 10),
            safeVarianceSensitivity=(1, 0, 2, 3, 0.5),
        ),
        "LowRiskOverCommitment": some(
            smoothingWindowSize=(5, 1, 10),
            riskLimitWeights=({"cpu": 0.5, "memory": 0.5}, {"cpu": 1.0}, {"cpu": 0.0, "memory": 0.3}, {}),
        ),
        "Peaks": {"NodePowerModel": models or {names[0]: _power_model(source)}},  # without models, a file is read
    }
    if chance(source, 0.03):
        plugin, name, value = source.choice(INVALID_ARGUMENTS)
        args[plugin][name] = value
    return args


def _power_model(source: random.Random) -> dict[str, float]:
    return {
        "k0": 471.7 + source.random(),
        "k1": -91.5 - source.random() * 300,
        "k2": -0.07186 - source.random() / 50,
    }


def _node(source: random.Random, name: str) -> dict[str, Any]:
    cores, gib = source.choice(SIZES)
    reserved = source.choice([0, 0, 500])
    capacity = {"cpu": cpu(source, cores * 1000), "memory": f"{gib}Gi", "pods": "110"}
    free = gib * GIB - (GIB if reserved else 0)
    allocatable = {"cpu": f"{cores * 1000 - reserved}m", "memory": str(free), "pods": "110"}
    if chance(source, 0.02):
        capacity["cpu"] = allocatable["cpu"] = "0"
    return {"metadata": {"name": name}, "status": {"capacity": capacity, "allocatable": allocatable}}


def _load(source: random.Random, *, complete: bool) -> list[list[Any]]:
    found: list[list[Any]] = []
    for kind in ("CPU", "Memory"):
        if not complete and chance(source, 0.07):
            continue
        share = source.random() * (60 if complete else 100)
        mean = source.choice([0.0, 100.0, share, share, share, share, 100 + share / 5])
        if not complete and chance(source, 0.15):
            found.append([kind, "Latest", round(min(100.0, mean + source.random() * 10), 6)])
        if complete or chance(source, 0.85):
            found.append([kind, "AVG", round(mean, 6)])
        deviations = (0.0, share / 2, source.random() * 10, source.random() * 10, 60.0)
        if chance(source, 0.8):
            found.append([kind, "STD", round(source.choice(deviations), 6)])
    return found


def body(case: Case) -> dict[str, Any]:
    """The response of GET /watcher; a text "@-90" is the unix time 90 seconds ago."""

    def metrics(of: list[list[Any]]) -> list[dict[str, Any]]:
        return [
            {"name": METRIC_NAMES[kind], "type": kind, "operator": operator, "rollup": "15m", "value": value}
            for kind, operator, value in of
        ]

    end = -case["age"]
    nodes = {
        name: {"metrics": metrics(of), "tags": {}, "metadata": {"dataCenter": ""}} for name, of in case["load"].items()
    }
    return {
        "timestamp": f"@{end + 1}",
        "window": {"duration": "15m", "start": f"@{end - 900}", "end": f"@{end}"},
        "source": "Prometheus",
        "data": {"NodeMetricsMap": nodes},
    }
