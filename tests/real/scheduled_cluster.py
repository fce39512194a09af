"""Nodes and pods for tests of real schedulers, and the load of the nodes as a trace for the provider `replay`.

No kubelets run: a bound pod stays as it is, and the load of the nodes is that of the trace. The trace repeats a pattern
whose windows are full at the first refresh.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from lab.traces.records import Begin, EndRecord, LoadRecord, NodeRecord
from lab.traces.writing import TraceWriter
from tests.real.kube import ApiServer, Scheduler
from tests.real.parts import REPOSITORY
from tests.service import Service
from tests.waiting import wait_for

NODES = "/api/v1/nodes"
PODS = "/api/v1/namespaces/default/pods"
BEGIN = 1_700_000_000.0
MINUTES = 30
GIB = 1 << 30

SETTINGS = """
[refresh]
interval = "10m"
max_staleness = "2h"

[kubernetes]
kubeconfig = "{kubeconfig}"
"""
"""The load of a test is constant: it is refreshed every ten minutes."""


class NodeLoad(msgspec.Struct, frozen=True):
    """Size of a node in cores and GiB, and its mean load in percent; `swing` is the largest distance of a sample from
    the mean, in points. A node without `cpu` and `memory` has no metrics."""

    cores: int
    gib: int
    cpu: float | None = None
    memory: float | None = None
    swing: float = 0.0


def mixed_nodes(count: int, *, seed: int, hot: int = 5, silent: int = 2) -> dict[str, NodeLoad]:
    """Return nodes of three sizes with random load; the first `hot` have 92 % CPU load, the last `silent` no
    metrics."""
    chance = random.Random(seed)
    nodes: dict[str, NodeLoad] = {}
    for i in range(count):
        cores = chance.choice((4, 8, 16))
        cpu, memory, swing = chance.uniform(5, 75), chance.uniform(10, 80), chance.uniform(0, 15)
        cpu = 92.0 if i < hot else cpu
        measured = NodeLoad(cores, cores * 4, cpu, memory, swing)
        nodes[f"kn-{i:02}"] = NodeLoad(cores, cores * 4) if i >= count - silent else measured
    return nodes


def write_trace(path: Path, nodes: Mapping[str, NodeLoad], *, seed: int = 1) -> Path:
    """Write the load of the nodes that have any, one record a minute."""
    chance = random.Random(seed)
    measured = {name: node for name, node in nodes.items() if node.cpu is not None}
    with path.open("w", newline="") as file:
        writer = TraceWriter(file)
        writer.write(Begin(BEGIN))
        for name, node in measured.items():
            writer.write(NodeRecord(BEGIN, name, float(node.cores), node.gib * GIB))
        for minute in range(MINUTES):
            for name, node in measured.items():
                cpu, memory = (_near(mean, node.swing, chance) for mean in (node.cpu, node.memory))
                used = LoadRecord(BEGIN + 60 * minute, name, node.cores * cpu / 100, int(node.gib * GIB * memory / 100))
                writer.write(used)
        writer.write(EndRecord(BEGIN + 60 * MINUTES))
    return path


def _near(mean: float | None, swing: float, chance: random.Random) -> float:
    return min(max((mean or 0.0) + chance.uniform(-swing, swing), 0.0), 100.0)


def add_nodes(api: ApiServer, nodes: Mapping[str, NodeLoad]) -> None:
    """Create the nodes, ready and without taints."""
    for name, node in nodes.items():
        size = {"cpu": str(node.cores), "memory": f"{node.gib}Gi", "pods": "110"}
        api.make(NODES, metadata={"name": name}, status={"capacity": size, "allocatable": size})


def clear(api: ApiServer) -> None:
    """Delete all pods and nodes."""
    for pod in bindings(api):
        api.ask("DELETE", f"{PODS}/{pod}", {"gracePeriodSeconds": 0})
    api.ask("DELETE", NODES)


def bindings(api: ApiServer) -> dict[str, str]:
    """Return the node of each pod, "" for a pod that is not bound."""
    items = api.ask("GET", PODS).json()["items"]
    return {each["metadata"]["name"]: each["spec"].get("nodeName", "") for each in items}


def wait_until_bound(api: ApiServer, names: Sequence[str]) -> dict[str, str]:
    """Wait until all these pods are bound, and return their nodes."""

    def found() -> dict[str, str]:
        there = bindings(api)
        return there if all(there.get(name) for name in names) else {}

    return wait_for(found, what=f"{len(names)} pods to be bound")


def known_nodes(service: Service, profile: str) -> dict[str, Any]:
    """Return the nodes as the scorers of a service know them."""
    nodes: dict[str, Any] = service.get(f"/scheduler/{profile}/nodes").json()["nodes"]
    return nodes


def wait_until_loaded(service: Service, nodes: Mapping[str, NodeLoad], *, profile: str) -> None:
    """Wait until the scorers have all nodes, and the 15-minute window of every node with metrics."""
    measured = {name for name, node in nodes.items() if node.cpu is not None}

    def is_loaded() -> bool:
        known = known_nodes(service, profile)
        if set(known) != set(nodes):
            return False
        covers = [each["covers_s"].values() for name in measured for each in known[name]["windows"].values()]
        return len(covers) == 2 * len(measured) and all(900.0 in each for each in covers)

    wait_for(is_loaded, what="nodes and load of the scorers")


class ExtendedScheduler(Scheduler):
    """kube-scheduler with load-watcher as extender, as `deploy/scheduler/extender.yaml` configures it; `extender` are
    changes of that. Its log contains each attempt, and each failed call of the extender."""

    def __init__(self, directory: Path, api: ApiServer, service: Service, **extender: Any) -> None:
        shipped = yaml.safe_load((REPOSITORY / "deploy/scheduler/extender.yaml").read_text())
        (given,) = shipped["extenders"]
        extenders = [{**given, "urlPrefix": f"{service.url}/scheduler/default", **extender}]
        super().__init__(directory, api, profiles=shipped["profiles"], extenders=extenders)

    def command(self) -> Sequence[str | Path]:
        return [*super().command(), "-v=5"]

    def attempts(self) -> Counter[str]:
        """Return how often the scheduler tried to place each pod."""
        return Counter(re.findall(r'"Attempting to schedule pod".* pod="default/([\w-]+)"', self.log()))

    def failed_prioritize(self) -> set[str]:
        """Return the pods for which the extender gave no scores."""
        return set(re.findall(r'"Failed to run extender\'s priority function.* pod="default/([\w-]+)"', self.log()))


def add_pods(api: ApiServer, names: Sequence[str], *, cpu: str = "100m", **spec: Any) -> None:
    """Create pods for the scheduler of the shipped configuration."""
    container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": cpu, "memory": "64Mi"}}}
    for name in names:
        api.make(
            PODS, metadata={"name": name}, spec={"schedulerName": "load-watcher", "containers": [container], **spec}
        )


def decision_about(service: Service, pod: str) -> dict[str, Any]:
    """Return the newest decision about a pod whose outcome is known."""

    def found() -> dict[str, Any]:
        answer = service.get(f"/scheduler/decisions?pod=default/{pod}")
        decision: dict[str, Any] = answer.json()["decision"] if answer.status == 200 else {}
        return decision if decision and decision["outcome"]["kind"] == "bound" else {}

    return wait_for(found, what=f"the decision about {pod}")
