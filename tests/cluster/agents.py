"""The node agent on a cluster: its policies as objects of the API, and what the kernel and the API show of it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agent.model import SCHEDULING_CONDITION, SCHEDULING_TAINT
from tests.cluster.cluster import Cluster
from tests.cluster.deployed import applied, created, wait_ready
from tests.cluster.nodes.node import UNLIMITED, Node
from tests.deploy.rendering import DeployComponent
from tests.real.parts import REPOSITORY
from tests.waiting import wait_for

SELECTOR = "app.kubernetes.io/name=load-watcher-agent"
NAMESPACE = "load-watcher-agent"
CONTROL = ("configmap", "agent-control", "-n", NAMESPACE)
ENFORCED: tuple[DeployComponent, ...] = (
    "agent-enforce",
    "agent-node-restriction",
    "agent-kubelet-certificate",
    "agent-api-policies",
)
GROUP = "load-watcher.io/v1alpha1"


@contextlib.contextmanager
def enforcing(cluster: Cluster, directory: Path) -> Iterator[None]:
    """The shipped agents with all components for enforcement, and policies from the API."""
    with definitions(cluster), applied(cluster, directory, "agent", ENFORCED):
        wait_ready(cluster, NAMESPACE, SELECTOR, len(cluster.nodes))
        yield


@contextlib.contextmanager
def definitions(cluster: Cluster) -> Iterator[None]:
    """The definitions of policies in the API for the time of a block."""
    kubectl = cluster.control_plane.kubectl
    path = str(REPOSITORY / "deploy" / "agent" / "crds.yaml")
    kubectl("apply", "-f", path)
    try:
        kubectl("wait", "--for=condition=Established", "-f", path, "--timeout=300s")
        yield
    finally:
        kubectl("delete", "-f", path, "--ignore-not-found", "--timeout=300s")


def policies(metric: str, watermark: int, action: Mapping[str, Any], *, node: str) -> list[dict[str, Any]]:
    """Return the policies of one rule for a node, whose action is allowed on BestEffort pods of the namespace default.

    The rule triggers after two samples, and is restored after two.
    """
    name = metric.replace("_", "-")
    rule = {
        "name": "high",
        "metricRule": {"name": metric, "value": str(watermark)},
        "avoidanceThreshold": 2,
        "restoreThreshold": 2,
        "actionName": name,
    }
    selector = {"matchLabels": {"kubernetes.io/hostname": node}}
    scopes = [
        {"scopeName": "QOSClass", "operator": "In", "values": ["BestEffort"]},
        {"scopeName": "Namespace", "operator": "In", "values": ["default"]},
    ]
    return [
        _policy("NodeQOS", name, {"selector": selector, "rules": [rule]}),
        _policy("AvoidanceAction", name, {"coolDownSeconds": 1, **action}),
        _policy("PodQOS", name, {"allowedActions": [name], "scopeSelector": {"matchExpressions": scopes}}),
    ]


def throttling(watermark: int, *, node: str, step: int = 30) -> list[dict[str, Any]]:
    """Return policies that throttle above a watermark in millicores, by `step` percent at a time."""
    throttle = {"cpuThrottle": {"stepCPURatio": step, "minCPURatio": 0}}
    return policies("cpu_total_usage", watermark, {"throttle": throttle}, node=node)


def _policy(kind: str, name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    return {"apiVersion": GROUP, "kind": kind, "metadata": {"name": name}, "spec": dict(spec)}


def quota(cluster: Cluster, name: str) -> int:
    """Return the CPU quota of the container `main` of a pod in microseconds, as its node has it."""
    node, container = cluster.container(name)
    return node.quota(container)


def metrics(cluster: Cluster, pod: Any) -> str:
    """Return the metrics of an agent, as a Prometheus on the pod network reads them."""
    return cluster.nodes[0].run("busybox", "wget", "-qO-", f"http://{pod['status']['podIP']}:2023/metrics")


def audit(cluster: Cluster, node: Node) -> list[Any]:
    """Return the finished audit entries that the agent of a node printed; each is printed again when it changes."""
    (name,) = [
        each["metadata"]["name"]
        for each in cluster.control_plane.get("pods", "-n", NAMESPACE, "-l", SELECTOR)["items"]
        if each["spec"]["nodeName"] == node.name and "deletionTimestamp" not in each["metadata"]
    ]
    lines = cluster.control_plane.kubectl("logs", "-n", NAMESPACE, name).splitlines()
    entries = [json.loads(line)["audit"] for line in lines if line.startswith('{"audit":')]
    return list({each["id"]: each for each in entries if each["outcome"] != "begun"}.values())


def brake(cluster: Cluster, value: str) -> None:
    """Set the brake as docs/concepts/agent-safety.md describes it."""
    patch = json.dumps({"data": {"enforcement": value}})
    cluster.control_plane.kubectl("patch", *CONTROL, "--type", "merge", "-p", patch)


def kept_away(cluster: Cluster, node: Node) -> bool:
    """Return whether the taint and the condition of the agent are set on a node."""
    found = cluster.control_plane.get("node", node.name)
    tainted = any(each["key"] == SCHEDULING_TAINT for each in found["spec"].get("taints", ()))
    states = [each["status"] for each in found["status"]["conditions"] if each["type"] == SCHEDULING_CONDITION]
    assert tainted == (states == ["True"]), f"taint and condition of {node.name} differ: {tainted}, {states}"
    return tainted


@contextlib.contextmanager
def policies_applied(cluster: Cluster, documents: list[dict[str, Any]]) -> Iterator[None]:
    """Policies for the time of a block."""
    with created(cluster, *documents):
        yield


def wait_throttled(cluster: Cluster, name: str) -> None:
    """Wait until a pod has a quota."""
    wait_for(lambda: 0 < quota(cluster, name), what=f"a quota of {name}", timeout=120)


def wait_restored(cluster: Cluster, name: str, *, within: float = 120.0) -> None:
    """Wait until a pod has no quota, as it began."""
    wait_for(lambda: quota(cluster, name) == UNLIMITED, what=f"the quota of {name} to be restored", timeout=within)
