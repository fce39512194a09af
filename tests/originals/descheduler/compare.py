"""LowNodeUtilization of descheduler with its default evictor and one Prometheus metric per node: the evictions of a
round, and those of the model in `lab.balancers`."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from lab.balancers.low_node_utilization import EvictionLimits, UtilizationThresholds, pods_to_evict
from lab.balancers.view import ObservedPod
from tests.originals.frame import Case, CaseComparison, Original, Outcome
from tests.originals.programs import ask_lines
from tests.originals.random_pods import chance
from watcher.core.kubernetes.objects import Pod
from watcher.core.kubernetes.pod_resources import qos_class

OWNERS = ("ReplicaSet", "ReplicaSet", "ReplicaSet", "StatefulSet", "Job", "DaemonSet", "")
PRIORITIES = (0, 0, 0, 100, 1000, 2_000_000_000)
REQUESTS: Mapping[str, dict[str, Any]] = {
    "BestEffort": {},
    "Burstable": {"requests": {"cpu": "100m", "memory": "64Mi"}},
    "Guaranteed": {name: {"cpu": "100m", "memory": "64Mi"} for name in ("requests", "limits")},
}
Evicted = list[tuple[int, str]]
"""Priorities and QoS classes, sorted."""


class RoundComparison(CaseComparison):
    """Compares the evicted pods by node, priority and QoS class: between equal pods, and between nodes with the same
    percentage under a limit in total, the order of Go is arbitrary."""

    name = "round"
    default_cases = 200

    def generate(self, source: random.Random) -> Case:
        nodes = [f"n{i:02}" for i in range(source.randint(2, 12))]
        level = source.choice([0.1, 0.4, 0.6, 0.9])
        values = {name: round(min(max(source.gauss(level, 0.25), 0.0), 1.0), 3) for name in nodes}
        if chance(source, 0.05):
            del values[source.choice(nodes)]
        deviation = chance(source, 0.5)
        low, high = source.choice(
            [(0, 10), (5, 5), (10, 10), (20, 20)] if deviation else [(20, 50), (40, 70), (35, 65)]
        )
        distinct = len({int(100.0 * value) for value in values.values()}) == len(values)
        return {
            "nodes": [_node(source, name) for name in nodes],
            "pods": [_pod(source, f"p{i:03}", source.choice(nodes)) for i in range(source.randint(0, 8 * len(nodes)))],
            "values": values,
            "low": low,
            "high": high,
            "deviation": deviation,
            "node_limit": source.choice([None, 1, 2, 3, 4, 5]),
            "total_limit": source.choice([None, 1, 2, 3, 4, 5]) if distinct else None,
        }

    def ask_original(self, program: Path, cases: Sequence[Case]) -> list[dict[str, Any]]:
        return ask_lines(program, cases)

    def compare(self, case: Case, original: dict[str, Any]) -> Iterator[Outcome]:
        pods = {f"{each['metadata']['namespace']}/{each['metadata']['name']}": each for each in case["pods"]}
        theirs, found = _by_node(original["evicted"], pods), _by_node(_model(case), pods)
        for node in case["nodes"]:
            name = node["metadata"]["name"]
            yield Outcome("evictions", case, theirs.get(name, []), found.get(name, []), name)


def _node(source: random.Random, name: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "metadata": {"name": name},
        "spec": {},
        "status": {"allocatable": {"cpu": "8", "memory": "32Gi", "pods": "110"}},
    }
    if chance(source, 0.15):
        found["spec"]["taints"] = [{"key": "example.com/hot", "effect": "PreferNoSchedule"}]
    return found


def _pod(source: random.Random, name: str, node: str) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    if owner := source.choice(OWNERS):
        metadata["ownerReferences"] = [
            {"apiVersion": "apps/v1", "kind": owner, "name": "o", "uid": "o", "controller": True}
        ]
    quality = source.choice(list(REQUESTS))
    container = {"name": "c", "resources": REQUESTS[quality]}
    spec = {"nodeName": node, "priority": source.choice(PRIORITIES), "containers": [container]}
    return {
        "metadata": metadata,
        "spec": spec,
        "status": {"phase": "Running", "qosClass": quality},
    }


def _model(case: Case) -> list[str]:
    names = [each["metadata"]["name"] for each in case["nodes"]]
    values = np.array([case["values"].get(name, np.nan) for name in names])
    taints = np.array([len(each["spec"].get("taints", ())) for each in case["nodes"]], dtype=np.int64)
    return pods_to_evict(
        values,
        UtilizationThresholds(case["low"], case["high"], deviation=case["deviation"]),
        lambda node: [_observed(each) for each in case["pods"] if each["spec"]["nodeName"] == names[node]],
        limits=EvictionLimits(node=case["node_limit"], total=case["total_limit"]),
        taints=taints,
    )


def _observed(pod: dict[str, Any]) -> ObservedPod:
    metadata = pod["metadata"]
    owners = metadata.get("ownerReferences", ())
    return ObservedPod(
        f"{metadata['namespace']}/{metadata['name']}",
        metadata["namespace"],
        metadata["name"],
        f"{owners[0]['kind']}/{owners[0]['name']}" if owners else "",
        pod["spec"]["priority"],
        qos_class(msgspec.convert(pod, Pod)),
    )


def _by_node(evicted: Sequence[str], pods: Mapping[str, dict[str, Any]]) -> dict[str, Evicted]:
    found: dict[str, Evicted] = {}
    for pod in map(pods.__getitem__, evicted):
        found.setdefault(pod["spec"]["nodeName"], []).append((pod["spec"]["priority"], pod["status"]["qosClass"]))
    return {node: sorted(each) for node, each in found.items()}


ORIGINAL = Original("descheduler", "sigs.k8s.io/descheduler v0.36.0", (RoundComparison(),), ())
