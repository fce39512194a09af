"""The node agent from its image and manifests, on real kubelets: it throttles, evicts, stops, and is removed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import agents
from tests.cluster.agents import (
    NAMESPACE,
    SELECTOR,
    kept_away,
    policies_applied,
    quota,
    throttling,
    wait_restored,
    wait_throttled,
)
from tests.cluster.cluster import Cluster
from tests.cluster.deployed import applied, created, deployment, pod, wait_ready
from tests.cluster.nodes.node import UNLIMITED, Node
from tests.cluster.nodes.virtual import VirtualNode
from tests.waiting import wait_for

BUSY = ("sh", "-c", "while :; do :; done")


@pytest.fixture(scope="module")
def enforcing(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Agents that enforce; yields the directory with the copy of deploy/."""
    directory = tmp_path_factory.mktemp("enforcing")
    with agents.enforcing(cluster, directory):
        yield directory


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Node:
    """The node of all hogs."""
    return cluster.nodes[0]


@pytest.fixture(scope="module")
def watermark(enforcing: Path, node: Node) -> int:
    """Millicores above what the node uses without a hog, which uses 1000 more: the kubelet uses 100, and 500 in a
    virtual machine."""
    return int(node.used_millicores(20)) + 600


def test_the_shipped_agent_is_ready_and_misses_no_metric(cluster: Cluster, tmp_path: Path):
    with applied(cluster, tmp_path, "agent", ["agent-kubelet-certificate"]) as namespace:
        for each in wait_ready(cluster, namespace, SELECTOR, len(cluster.nodes)):
            text = wait_for(partial(agents.metrics, cluster, each), what="metrics of an agent")
            assert "load_watcher_agent_cycle_age_seconds" in text
            assert re.findall(r"^load_watcher_agent_metric_missing\{.*\} 1$", text, re.MULTILINE) == []


def test_a_hog_is_throttled_to_just_under_the_watermark_and_restored(cluster: Cluster, node: Node, watermark: int):
    with created(cluster, pod("hog", node.name, command=BUSY)):
        wait_ready(cluster, "default", "app=hog", 1)
        assert quota(cluster, "hog") == UNLIMITED
        with policies_applied(cluster, throttling(watermark, node=node.name)):
            wait_throttled(cluster, "hog")
            assert kept_away(cluster, node)
            # Just under: at most a step of 30 % and the excess of 10 % below.
            wait_for(
                lambda: watermark * 0.6 < node.used_millicores(10) < watermark,
                what="the node to be just under the watermark",
                timeout=90,
            )
            with policies_applied(cluster, throttling(1000 * len(node.online()) - 100, node=node.name)):
                wait_restored(cluster, "hog")
                wait_for(lambda: not kept_away(cluster, node), what="new pods to be allowed")


def test_a_rolling_update_keeps_quotas_and_the_new_agents_restore_them(cluster: Cluster, node: Node, watermark: int):
    """The change is the interval of the agents, three seconds from here on."""
    kubectl = cluster.control_plane.kubectl
    with created(cluster, pod("hog", node.name, command=BUSY)):
        (before,) = wait_ready(cluster, "default", "app=hog", 1)
        with policies_applied(cluster, throttling(watermark, node=node.name)):
            wait_throttled(cluster, "hog")
            daemonset = ("-n", NAMESPACE, "daemonset/load-watcher-agent")
            kubectl("set", "env", *daemonset, "LOAD_WATCHER_AGENT_INTERVAL=3s")
            while cluster.control_plane.kubectl_process("rollout", "status", *daemonset, "--timeout=1s").returncode:
                assert quota(cluster, "hog") > 0
            assert quota(cluster, "hog") > 0
        wait_restored(cluster, "hog")
        (after,) = wait_ready(cluster, "default", "app=hog", 1)
        assert after["status"]["containerStatuses"] == before["status"]["containerStatuses"]


def test_the_brake_restores_and_keeps_agents_from_new_steps(cluster: Cluster, node: Node, watermark: int):
    with (
        created(cluster, pod("hog", node.name, command=BUSY)),
        policies_applied(cluster, throttling(watermark, node=node.name)),
    ):
        wait_ready(cluster, "default", "app=hog", 1)
        wait_throttled(cluster, "hog")
        agents.brake(cluster, "restore")
        try:
            wait_restored(cluster, "hog", within=60)
            wait_for(lambda: not kept_away(cluster, node), what="new pods to be allowed")
            # Four cycles above the watermark.
            assert node.used_millicores(12) > watermark
            assert quota(cluster, "hog") == UNLIMITED
        finally:
            agents.brake(cluster, "on")
        wait_throttled(cluster, "hog")


def test_memory_high_of_a_pod_is_lowered_and_restored(cluster: Cluster, enforcing: Path, node: Node):
    if not isinstance(node, VirtualNode):
        pytest.skip("control groups of version 1 have no memory.high")
    documents = agents.policies("memory_total_utilization", 5, {}, node=node.name)
    documents[1]["metadata"]["annotations"] = {"load-watcher.io/gentle-steps": "memory.high"}
    with created(cluster, deployment("holder", memory_user(300))):
        (found,) = wait_ready(cluster, "default", "app=holder", 1)
        _, container = cluster.container(found["metadata"]["name"])

        def high() -> str:
            return node.of_pod(container, "memory.high")

        filled = partial(node.of_pod, container, "memory.current")
        wait_for(lambda: int(filled()) > 300 << 20, what="the pod to fill its memory")
        assert high() == "max"
        with policies_applied(cluster, documents):
            wait_for(lambda: high() != "max", what="memory.high", timeout=240)
            assert 250 << 20 < int(high()) < 300 << 20
            assert kept_away(cluster, node)
        wait_for(lambda: high() == "max", what="memory.high to be restored", timeout=240)


def test_pods_are_evicted_within_budgets_when_memory_is_short(cluster: Cluster, enforcing: Path):
    """Three BestEffort pods use most of the memory; the largest is protected by a PodDisruptionBudget."""
    node, *others = cluster.nodes
    kubectl = cluster.control_plane.kubectl
    sizes = {"protected": 900, "eater-a": 700, "eater-b": 500}
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "protected"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "protected"}}},
    }
    eaters = [deployment(name, memory_user(megabytes)) for name, megabytes in sizes.items()]
    kubectl("patch", *agents.CONTROL, "--type", "merge", "-p", '{"data":{"evictions-per-minute":"1"}}')
    for other in others:
        kubectl("cordon", other.name)
    try:
        with created(cluster, budget, *eaters):
            kubectl("wait", "deployment", *sizes, "--for=condition=Available", "--timeout=300s")
            for other in others:
                kubectl("uncordon", other.name)
            before = pods_of(cluster, sizes)
            assert {each["spec"]["nodeName"] for each in before.values()} == {node.name}
            with policies_applied(
                cluster, agents.policies("memory_total_utilization", 40, {"eviction": {}}, node=node.name)
            ):
                wait_for(
                    lambda: moved(before, pods_of(cluster, sizes)) == {"eater-a", "eater-b"},
                    what="an eviction of each eater",
                    timeout=200,
                )
            entries = [each for each in agents.audit(cluster, node) if each["kind"] == "evict"]
            outcomes = {each["pod"].split("/")[1].rsplit("-", 2)[0]: each["outcome"] for each in entries}
            assert outcomes["protected"] == "protected"
            done = [each["time"] for each in entries if each["outcome"] == "done"]
            # Tokens have whole seconds.
            assert [later - earlier for earlier, later in pairwise(sorted(done)) if later - earlier < 58] == []
    finally:
        for other in others:
            kubectl("uncordon", other.name)


def memory_user(megabytes: int) -> dict[str, Any]:
    """Return the spec of a pod that fills a tmpfs."""
    fill = f"dd if=/dev/zero of=/memory/file bs=1M count={megabytes} && sleep 100000"
    found = pod("memory", "", command=("sh", "-c", fill))["spec"]
    del found["nodeName"]
    found["volumes"] = [{"name": "memory", "emptyDir": {"medium": "Memory"}}]
    found["containers"][0]["volumeMounts"] = [{"name": "memory", "mountPath": "/memory"}]
    return found


def pods_of(cluster: Cluster, names: Any) -> dict[str, Any]:
    """Return the newest pod of each app."""
    listed = cluster.control_plane.get("pods", "-n", "default", "-l", f"app in ({','.join(names)})")["items"]
    listed.sort(key=lambda each: each["metadata"]["creationTimestamp"])
    return {each["metadata"]["labels"]["app"]: each for each in listed}


def moved(before: dict[str, Any], now: dict[str, Any]) -> set[str]:
    """Return the apps whose pod is another."""
    return {name for name in now if now[name]["metadata"]["uid"] != before[name]["metadata"]["uid"]}


def test_an_uninstall_restores_everything(cluster: Cluster, enforcing: Path, node: Node, watermark: int):
    """The commands of docs/tasks/agent-running.md, while a pod is throttled."""
    kubectl = cluster.control_plane.kubectl
    with (
        created(cluster, pod("hog", node.name, command=BUSY)),
        policies_applied(cluster, throttling(watermark, node=node.name)),
    ):
        (before,) = wait_ready(cluster, "default", "app=hog", 1)
        wait_throttled(cluster, "hog")
        kubectl("apply", "-k", str(enforcing / "deploy" / "agent-restore"))
        kubectl("-n", NAMESPACE, "rollout", "status", "daemonset/load-watcher-agent", "--timeout=300s")
        assert quota(cluster, "hog") == UNLIMITED
        assert not kept_away(cluster, node)
        kubectl("delete", "-k", str(enforcing / "deploy" / "agent-restore"), "--timeout=300s")
        (after,) = wait_ready(cluster, "default", "app=hog", 1)
        assert after["status"]["containerStatuses"] == before["status"]["containerStatuses"]
        found = kubectl("get", "all,clusterroles,clusterrolebindings", "-A", "-o", "name").splitlines()
        assert [each for each in found if "load-watcher-agent" in each] == []
