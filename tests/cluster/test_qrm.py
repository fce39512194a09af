"""The QoS Resource Manager over NRI on a real containerd and kubelet."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import pytest

from agent.cpuset import CpuSet
from tests.cluster import qrms
from tests.cluster.cluster import Cluster
from tests.cluster.deployed import created, doctor, pod, wait_ready
from tests.cluster.nodes.node import Node
from tests.cluster.qrms import (
    CARD_ADDRESS,
    EXCLUSIVE,
    NAMESPACE,
    NEAR_A_CARD,
    connected,
    manager_of,
    page,
    pinned,
    wait_pinned,
    wait_shared,
    with_role,
)
from tests.waiting import wait_for

SLEEP = ("sleep", "100000")
SMALL = {"cpu": "50m", "memory": "16Mi"}
OWN_MANAGERS: dict[str, dict[str, Any]] = {
    "cpu_manager_state": {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0"},
    # As much as the threshold of evictions.
    "memory_manager_state": {
        "memoryManagerPolicy": "Static",
        "reservedMemory": [{"numaNode": 0, "limits": {"memory": "100Mi"}}],
    },
}
"""Configurations of the kubelet that switch on one of its managers, by the state file of the manager."""


@pytest.fixture(scope="module")
def managing(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Managers in the mode nri; the directory with the copy of deploy/."""
    with qrms.managing(cluster, tmp_path_factory.mktemp("managing"), ["qrm-nri"]) as directory:
        wait_for(lambda: all(connected(cluster, node) for node in cluster.nodes), what="the runtimes to be connected")
        yield directory


@pytest.fixture
def node(cluster: Cluster) -> Node:
    """The node of all pods in a test."""
    return cluster.nodes[-1]


@pytest.fixture
def everything(node: Node) -> CpuSet:
    """All CPUs of a node."""
    return node.online()


def guaranteed(name: str, node: Node, cpu: str = "500m") -> dict[str, Any]:
    """Return a Guaranteed pod of an exclusive role."""
    return with_role(pod(name, node.name, command=SLEEP, requests={"cpu": cpu, "memory": "16Mi"}), EXCLUSIVE)


def shared(name: str, node: Node) -> dict[str, Any]:
    """Return a pod that shares the pool `online`. Without a request it would get all CPUs, not those of its pool."""
    return pod(name, node.name, command=SLEEP, requests=SMALL)


def resize(cluster: Cluster, name: str, cpu: str) -> None:
    """Resize the only container of a Guaranteed pod in place."""
    values = {"cpu": cpu, "memory": "16Mi"}
    container = {"name": "main", "resources": {"requests": values, "limits": values}}
    patch = json.dumps({"spec": {"containers": [container]}})
    cluster.control_plane.kubectl("patch", "pod", name, "--subresource", "resize", "-p", patch)


def state_of(cluster: Cluster, name: str) -> Any:
    """Return the status of the only container of a pod."""
    (found,) = cluster.control_plane.get("pod", name)["status"]["containerStatuses"]
    return found


def granted(cluster: Cluster, name: str) -> str:
    """Return the CPU that the kubelet has given a container."""
    return str(state_of(cluster, name).get("resources", {}).get("requests", {}).get("cpu"))


def wait_granted(cluster: Cluster, name: str, cpu: str) -> None:
    """Wait until the kubelet has resized a container."""
    wait_for(lambda: granted(cluster, name) == cpu, what=f"the resize of {name} to {cpu}")


def test_an_exclusive_cpu_is_taken_from_a_running_pod_and_given_back(cluster: Cluster, managing: Path, node: Node):
    with created(cluster, shared("web", node)):
        wait_ready(cluster, "default", "app=web", 1)
        pool = pinned(cluster, "web")
        with created(cluster, guaranteed("solid", node)):
            wait_ready(cluster, "default", "app=solid", 1)
            own = pinned(cluster, "solid")
            assert len(own) == 1
            wait_shared(cluster, node, "web", own)
            assert faults(cluster, node) == []
        wait_for(lambda: pinned(cluster, "web") == pool, what="the pool as before")


def test_a_pod_near_a_network_card_gets_its_address_and_a_cpu(cluster: Cluster, managing: Path, node: Node):
    pools = page(cluster, node)["pools"]
    with created(cluster, with_role(guaranteed("near", node), NEAR_A_CARD)):
        wait_ready(cluster, "default", "app=near", 1)
        assert len(pinned(cluster, "near")) == 1
        script = 'echo "$AFFINITY_NIC_ADDR_IPV4"'
        assert cluster.control_plane.kubectl("exec", "near", "--", "sh", "-c", script).strip() == CARD_ADDRESS
    wait_for(lambda: page(cluster, node)["pools"] == pools, what="the pools as before")


def test_containers_of_a_pod_get_all_that_they_request_or_none_is_created(
    cluster: Cluster, managing: Path, node: Node, everything: CpuSet
):
    """Each container of an exclusive pod has CPUs of its own, which would leave none for the other pods."""
    greedy = guaranteed("greedy", node)
    greedy["spec"]["containers"] += [
        {**greedy["spec"]["containers"][0], "name": f"other-{number}"} for number in range(len(everything) - 1)
    ]
    web = shared("web", node)
    web["spec"]["containers"].append({**web["spec"]["containers"][0], "name": "second"})

    with created(cluster, web):
        wait_ready(cluster, "default", "app=web", 1)
        pool = pinned(cluster, "web")
        with created(cluster, greedy):
            wait_for(
                lambda: [each["pod"] for each in page(cluster, node).get("inadmissible", ())] == ["default/greedy"],
                what="the pod to be inadmissible",
            )
            assert any("default/greedy" in each for each in faults(cluster, node))
            reasons = {
                each["reason"]
                for each in cluster.control_plane.get("events", "--field-selector", "involvedObject.name=greedy")[
                    "items"
                ]
            }
            assert any("Inadmissible" in each or "Admission" in each for each in reasons), reasons
            states = cluster.control_plane.get("pod", "greedy")["status"]["containerStatuses"]
            assert [each["name"] for each in states if "running" in each["state"]] == []
            for container in ("main", "second"):
                assert pinned(cluster, "web", container) == pool
        with created(cluster, guaranteed("solid", node)):
            wait_ready(cluster, "default", "app=solid", 1)
            own = pinned(cluster, "solid")
            assert len(own) == 1
            for container in ("main", "second"):
                wait_shared(cluster, node, "web", own, container)


def test_an_exclusive_container_keeps_its_cpu_through_resizes(
    cluster: Cluster, managing: Path, node: Node, everything: CpuSet
):
    """Up and down within one CPU; to more than the node has, which the API server refuses; to more than it has free;
    to more CPUs than may be exclusive."""
    with created(cluster, guaranteed("solid", node)):
        wait_ready(cluster, "default", "app=solid", 1)
        own, before = pinned(cluster, "solid"), state_of(cluster, "solid")["containerID"]
        assert len(own) == 1
        for cpu in ("800m", "400m"):
            resize(cluster, "solid", cpu)
            wait_granted(cluster, "solid", cpu)
            assert pinned(cluster, "solid") == own
        with pytest.raises(AssertionError, match="enough allocatable resources"):
            resize(cluster, "solid", f"{1000 * len(everything) + 1000}m")
        resize(cluster, "solid", f"{1000 * len(everything) - 10}m")
        wait_for(lambda: deferred(cluster, "solid"), what="the kubelet to defer the resize")
        assert granted(cluster, "solid") == "400m"
        assert pinned(cluster, "solid") == own
        resize(cluster, "solid", most := f"{1000 * len(everything) - 500}m")
        wait_granted(cluster, "solid", most)
        wait_for(lambda: without(cluster, node, "solid"), what="the manager to report the resize without an allocation")
        assert pinned(cluster, "solid") == own
        resize(cluster, "solid", "500m")
        wait_for(lambda: not without(cluster, node, "solid"), what="the allocation to be complete")
        assert pinned(cluster, "solid") == own
        assert (state_of(cluster, "solid")["containerID"], state_of(cluster, "solid")["restartCount"]) == (before, 0)


def deferred(cluster: Cluster, name: str) -> bool:
    """Return whether the kubelet will resize a pod later."""
    conditions = cluster.control_plane.get("pod", name)["status"]["conditions"]
    return ("PodResizePending", "Deferred") in {(each["type"], each.get("reason")) for each in conditions}


def without(cluster: Cluster, node: Node, name: str) -> Any:
    """Return the resources that a pod lacks after a resize."""
    found = [each for each in page(cluster, node).get("pods", ()) if each["pod"] == f"default/{name}"]
    return found[0]["without"] if found else {}


Restarted = Literal["manager", "kubelet", "containerd"]


@pytest.mark.parametrize("restarted", get_args(Restarted))
def test_allocations_outlive_a_restart(cluster: Cluster, managing: Path, node: Node, restarted: Restarted):
    kubectl = cluster.control_plane.kubectl
    with created(cluster, shared("web", node), guaranteed("solid", node)):
        for name in ("web", "solid"):
            wait_ready(cluster, "default", f"app={name}", 1)
        own, before = wait_pinned(cluster, "solid", 1), state_of(cluster, "solid")["containerID"]
        pool = wait_shared(cluster, node, "web", own)
        if restarted == "manager":
            kubectl("-n", NAMESPACE, "delete", "pod", manager_of(cluster, node))
        else:
            node.restart(restarted)
        wait_for(lambda: connected(cluster, node), what="the manager to be connected", timeout=90)
        wait_for(cluster.all_ready, what="the node to be Ready", timeout=90)
        assert (pinned(cluster, "solid"), pinned(cluster, "web")) == (own, pool)
        with created(cluster, shared("late", node)):
            wait_ready(cluster, "default", "app=late", 1)
            assert pinned(cluster, "late") == pool
        assert (state_of(cluster, "solid")["containerID"], state_of(cluster, "solid")["restartCount"]) == (before, 0)


@pytest.mark.parametrize("state", OWN_MANAGERS)
def test_the_manager_stops_while_a_manager_of_the_kubelet_is_on(
    cluster: Cluster, managing: Path, node: Node, everything: CpuSet, state: str
):
    """The CPU Manager gives pods without exclusive CPUs all CPUs every ten seconds."""
    with created(cluster, shared("web", node), guaranteed("solid", node)):
        for name in ("web", "solid"):
            wait_ready(cluster, "default", f"app={name}", 1)
        own = wait_pinned(cluster, "solid", 1)
        pool = wait_shared(cluster, node, "web", own)
        expected = everything if state == "cpu_manager_state" else pool
        node.configure_kubelet(OWN_MANAGERS[state])
        try:
            wait_for(lambda: state in trouble(cluster, node), what="the manager to stop", timeout=60)
            assert any(state in each for each in faults(cluster, node))
            wait_for(lambda: pinned(cluster, "web") == expected, what="the kubelet to set CPUs", timeout=60)
            rounds = page(cluster, node)["last_reconcile"]["time"]
            wait_for(
                lambda: page(cluster, node)["last_reconcile"]["time"] > rounds + 10,
                what="further rounds of the manager",
            )
            assert pinned(cluster, "web") == expected
            log = cluster.control_plane.kubectl("-n", NAMESPACE, "logs", manager_of(cluster, node)).splitlines()
            assert len([line for line in log if "not applied" in line and state in line]) == 1
        finally:
            node.configure_kubelet({})
        wait_for(lambda: trouble(cluster, node) == "", what="the manager to act again", timeout=60)
        wait_for(
            lambda: (pinned(cluster, "solid"), pinned(cluster, "web")) == (own, pool),
            what="the manager to set CPUs again",
        )


def faults(cluster: Cluster, node: Node) -> list[str]:
    """Return what the doctor finds in the pod of a manager, except containers that started before the manager."""
    wrong, _ = doctor(cluster, NAMESPACE, manager_of(cluster, node), "--only", "qrm")
    return [each["what"] for each in wrong if "started without allocations" not in each["what"]]


def last_round(cluster: Cluster, node: Node) -> float:
    """Return the time of the last round of the manager of a node."""
    return float(page(cluster, node).get("last_reconcile", {}).get("time", 0))


def trouble(cluster: Cluster, node: Node) -> str:
    """Return why the manager of a node sets nothing."""
    return str(page(cluster, node).get("last_reconcile", {}).get("trouble", ""))


def test_a_rolling_update_and_an_uninstall_restart_nothing(
    cluster: Cluster, managing: Path, node: Node, everything: CpuSet
):
    kubectl = cluster.control_plane.kubectl
    restore = str(managing / "deploy" / "qrm-restore")
    with created(cluster, shared("web", node), guaranteed("solid", node)):
        for name in ("web", "solid"):
            wait_ready(cluster, "default", f"app={name}", 1)
        own = wait_pinned(cluster, "solid", 1)
        before = [state_of(cluster, name) for name in ("web", "solid")]
        daemonset = ("-n", NAMESPACE, "daemonset/load-watcher-qrm")
        kubectl("set", "env", *daemonset, "LOAD_WATCHER_QRM_RECONCILE_PERIOD=2s")
        while cluster.control_plane.kubectl_process("rollout", "status", *daemonset, "--timeout=1s").returncode:
            assert pinned(cluster, "solid") == own
        kubectl("apply", "-k", restore)
        kubectl("rollout", "status", *daemonset, "--timeout=300s")
        assert (pinned(cluster, "solid"), pinned(cluster, "web")) == (everything, everything)
        kubectl("delete", "-k", restore, "--timeout=300s")
        assert [state_of(cluster, name) for name in ("web", "solid")] == before
    found = kubectl("get", "all,clusterroles,clusterrolebindings", "-A", "-o", "name").splitlines()
    assert [each for each in found if "load-watcher-qrm" in each] == []
