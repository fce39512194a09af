"""The filters of kube-scheduler that the ranking of a manifest runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from scorers.profiles.default_filters import default_verdicts, unchecked
from tests.scorers.simulated_cluster import info, node, pod, rows, table
from watcher.core.kubernetes.objects import Node

SIZE = {"cpu": "4", "memory": "8Gi", "pods": "3"}


def reasons(nodes: list[Node], placed: Sequence[Any] = (), **of_pod: Any) -> dict[str, str]:
    """The rejected nodes with the reason."""
    cluster = table(nodes, placed)
    found = default_verdicts(info("new", **of_pod), cluster, rows(cluster))
    return found.failures(list(cluster.row))


def tainted(*taints: dict[str, str], unschedulable: bool = False) -> Node:
    spec = {"taints": taints, "unschedulable": unschedulable}
    return msgspec.convert({"metadata": {"name": "n"}, "spec": spec, "status": {"allocatable": SIZE}}, Node)


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ({"cpu": "1"}, {}),
        ({"cpu": "1001m"}, {"full": "no room: cpu"}),
        ({"cpu": "4001m", "memory": "9Gi"}, {"full": "no room: cpu, memory", "idle": "no room: cpu, memory"}),
        ({"nvidia.com/gpu": "1"}, {"full": "no room: nvidia.com/gpu", "idle": "no room: nvidia.com/gpu"}),
        ({"cpu": "0", "example.com/fpga": "0"}, {}),
    ],
)
def test_nodes_without_room_are_rejected(requests: dict[str, str], expected: dict[str, str]) -> None:
    placed = [pod("old", node="full", containers=[{"requests": {"cpu": "3"}}])]
    nodes = [node(name, SIZE) for name in ("full", "idle")]
    assert reasons(nodes, placed, containers=[{"requests": requests}]) == expected


def test_the_number_of_pods_is_limited() -> None:
    placed = [pod(f"old-{i}", node="n") for i in range(3)]
    assert reasons([node("n", SIZE)], placed) == {"n": "no room: pods"}
    assert reasons([node("n", SIZE)], placed[:2]) == {}
    assert reasons([node("n", {"cpu": "4"})], placed) == {}


def test_a_bound_pod_does_not_count_on_its_own_node() -> None:
    bound = pod("new", node="n", containers=[{"requests": {"cpu": "3"}}])
    assert reasons([node("n", SIZE)], [bound], containers=[{"requests": {"cpu": "3"}}]) == {}


@pytest.mark.parametrize(
    ("tolerations", "expected"),
    [
        ([], "taint not tolerated: team=a:NoSchedule"),
        ([{"key": "team", "value": "b", "effect": "NoSchedule"}], "taint not tolerated: team=a:NoSchedule"),
        ([{"key": "team", "value": "a", "effect": "NoExecute"}], "taint not tolerated: team=a:NoSchedule"),
        ([{"key": "team", "operator": "Gt", "value": "a"}], "taint not tolerated: team=a:NoSchedule"),
        ([{"key": "team", "value": "a"}], "taint not tolerated: down:NoExecute"),
        ([{"key": "team", "operator": "Exists"}, {"key": "down", "operator": "Exists"}], ""),
        ([{"operator": "Exists"}], ""),
    ],
)
def test_nodes_with_taints_that_are_not_tolerated_are_rejected(
    tolerations: list[dict[str, str]], expected: str
) -> None:
    """PreferNoSchedule does not exclude a node."""
    taints = [
        {"key": "soft", "effect": "PreferNoSchedule"},
        {"key": "team", "value": "a", "effect": "NoSchedule"},
        {"key": "down", "effect": "NoExecute"},
    ]
    found = reasons([tainted(*taints)], tolerations=tolerations)
    assert found == ({"n": expected} if expected else {})


def test_an_unschedulable_node_takes_only_pods_that_tolerate_it() -> None:
    key = "node.kubernetes.io/unschedulable"
    cordoned = tainted({"key": key, "effect": "NoSchedule"}, unschedulable=True)
    assert reasons([cordoned]) == {"n": "the node is unschedulable"}
    assert reasons([cordoned], tolerations=[{"key": key, "operator": "Exists"}]) == {}
    daemon = {"ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "controller": True}]}
    assert reasons([cordoned], metadata=daemon) == {}
    by_hand = tainted({"key": key, "effect": "NoSchedule"})
    assert reasons([by_hand]) == {"n": f"taint not tolerated: {key}:NoSchedule"}


@pytest.mark.parametrize(
    ("key", "effect", "tolerated"),
    [
        ("node.kubernetes.io/not-ready", "NoExecute", True),
        ("node.kubernetes.io/disk-pressure", "NoSchedule", True),
        ("node.kubernetes.io/out-of-service", "NoExecute", False),
        ("team", "NoSchedule", False),
    ],
)
def test_a_daemon_pod_has_the_tolerations_that_its_controller_adds(key: str, effect: str, tolerated: bool) -> None:
    daemon = {"ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "controller": True}]}
    found = reasons([tainted({"key": key, "effect": effect})], metadata=daemon)
    assert found == ({} if tolerated else {"n": f"taint not tolerated: {key}:{effect}"})


def test_nodes_that_the_node_selector_excludes_are_rejected() -> None:
    nodes = [node("a", SIZE, labels={"zone": "a"}), node("b", SIZE, labels={"zone": "b"}), node("c", SIZE)]
    no_match = "the node selector does not match"
    assert reasons(nodes, nodeSelector={"zone": "a"}) == {"b": no_match, "c": no_match}


def test_rules_that_are_not_checked_are_named() -> None:
    required: dict[str, Any] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}
    spread = [{"whenUnsatisfiable": "DoNotSchedule"}]
    assert unchecked(pod(affinity=required)) == ["required affinity"]
    assert unchecked(pod(topologySpreadConstraints=spread)) == ["topology spread constraints"]
    assert unchecked(pod(affinity={"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}})) == []
