"""Resource plug-ins of others under the QoS Resource Manager: registration, allocations, and restarts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.cluster import plugin_program, qrms
from tests.cluster.cluster import Cluster
from tests.cluster.deployed import created, pod, wait_ready
from tests.cluster.images import SERVICE
from tests.cluster.nodes.node import Node
from tests.cluster.plugin_program import Way
from tests.cluster.qrms import NAMESPACE, connected, manager_of, page
from tests.waiting import wait_for

STATE = "/var/lib/load-watcher-qrm"
WAYS: tuple[Way, ...] = get_args(Way)
RESOURCES = {way: f"example.org/{way}" for way in WAYS}
PROGRAM = Path(plugin_program.__file__).read_text()
ALL = dict.fromkeys(RESOURCES.values(), "2")


@pytest.fixture(scope="module")
def managing(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Managers in the mode nri that publish the resources of plug-ins. What the plug-ins leave is removed: their files,
    and their resources as docs/concepts/qrm.md says."""
    with qrms.managing(cluster, tmp_path_factory.mktemp("managing"), ["qrm-nri", "qrm-publish"]):
        wait_for(lambda: all(connected(cluster, node) for node in cluster.nodes), what="the runtimes to be connected")
        yield
    none = dict.fromkeys(ALL)
    patch = json.dumps({"status": {"capacity": none, "allocatable": none}})
    for node in cluster.nodes:
        cluster.control_plane.kubectl("patch", "node", node.name, "--subresource=status", "--type=merge", "-p", patch)
        assert published(cluster, node) == {}
        node.run(
            "rm",
            "-rf",
            f"{STATE}/outside.sock",
            f"{STATE}/plugins/outside.sock",
            *(f"{STATE}/outside-{way}" for way in WAYS),
        )


@pytest.fixture
def node(cluster: Cluster) -> Node:
    """The node of the plug-ins."""
    return cluster.nodes[-1]


def plugin(way: Way, node: Node) -> dict[str, Any]:
    """Return the pod of a plug-in."""
    found = pod(f"plugin-{way}", node.name, command=[])
    (container,) = found["spec"]["containers"]
    container |= {
        "image": SERVICE,
        "command": ["/opt/load-watcher/bin/python", "-c", PROGRAM, way, RESOURCES[way], STATE],
        "securityContext": {"runAsUser": 0},
        "volumeMounts": [{"name": "state", "mountPath": STATE}],
    }
    found["spec"]["volumes"] = [{"name": "state", "hostPath": {"path": STATE, "type": "Directory"}}]
    return found


def holder(name: str) -> dict[str, Any]:
    """Return a pod that requests one of each resource; the scheduler chooses its node.

    It ends before it is deleted: the kubelet refuses a pod whose resources another still has.
    """
    requests = {"cpu": "20m", "memory": "16Mi", **dict.fromkeys(RESOURCES.values(), "1")}
    found = pod(name, "", command=("sleep", "100000"), requests=requests)
    found["spec"] |= {"terminationGracePeriodSeconds": 1}
    del found["spec"]["nodeName"]
    return found


def live(cluster: Cluster, node: Node) -> list[bool]:
    """Return whether the manager of a node reaches each plug-in."""
    plugins = page(cluster, node).get("plugins", {})
    return [plugins.get(resource, {}).get("live", False) for resource in RESOURCES.values()]


def wait_live(cluster: Cluster, node: Node, *, registered: int) -> None:
    """Wait until the manager reaches all plug-ins, each process of them was registered this often, and the scheduler
    may place their pods."""
    wait_for(lambda: live(cluster, node) == [True, True], what="the plug-ins to be registered", timeout=120)
    wait_for(lambda: min(registrations(cluster)) >= registered, what=f"{registered} registrations of each process")
    wait_for(lambda: published(cluster, node) == ALL, what="the resources in the status of the node")


def published(cluster: Cluster, node: Node) -> dict[str, str]:
    """Return the resources of the plug-ins in the status of a node."""
    allocatable = cluster.control_plane.get("node", node.name)["status"]["allocatable"]
    return {name: amount for name, amount in allocatable.items() if name in ALL}


def registrations(cluster: Cluster) -> list[int]:
    """Return how often each process of a plug-in was registered."""
    kubectl = cluster.control_plane.kubectl
    return [kubectl("logs", f"plugin-{way}").splitlines().count("registered") for way in WAYS]


def given(cluster: Cluster, node: Node, name: str) -> list[str]:
    """Return the disks that a pod has of each plug-in, as the manager reports them; empty if it does not know the
    pod."""
    pods = {each["pod"]: each["containers"] for each in page(cluster, node).get("pods", ())}
    infos = pods.get(f"default/{name}", {}).get("main", {})
    return [infos[resource]["allocation_result"] for resource in ALL if resource in infos]


def check_disks(cluster: Cluster, node: Node, name: str, disk: str) -> None:
    """Check that a pod has a disk of each plug-in: its environment variable, its mount and its device."""
    assert cluster.container(name)[0] is node
    wait_for(lambda: given(cluster, node, name), what=f"the allocations of {name} on the page")
    assert given(cluster, node, name) == [disk] * len(WAYS)
    script = "\n".join(
        f'echo "${way.upper()}" "$(cat /{way}/name)" "$(stat -c %t:%T /dev/{way})"\n'
        f"echo written > /dev/{way} || exit 1\n"
        f"if touch /{way}/file 2>/dev/null; then exit 2; fi"
        for way in WAYS
    )
    lines = cluster.control_plane.kubectl("exec", name, "--", "sh", "-c", script).splitlines()
    assert lines == [f"{disk} {disk} 1:3"] * len(WAYS)
    (status,) = cluster.control_plane.get("pod", name)["status"]["containerStatuses"]
    assert status["restartCount"] == 0


def unscheduled(cluster: Cluster, name: str) -> str:
    """Return why the scheduler does not place a pod."""
    conditions = cluster.control_plane.get("pod", name)["status"].get("conditions", ())
    return "".join(each.get("message", "") for each in conditions if each["type"] == "PodScheduled")


def test_plug_ins_of_others_keep_their_allocations_through_restarts(cluster: Cluster, managing: None, node: Node):
    """One registers with its socket, the other calls Register. The plug-ins are killed, then the manager restarts, then
    a pod ends whose disks the next one gets."""
    kubectl = cluster.control_plane.kubectl
    plugins = [plugin(way, node) for way in WAYS]
    with created(cluster, *plugins):
        wait_live(cluster, node, registered=1)
        with created(cluster, holder("first")):
            wait_ready(cluster, "default", "app=first", 1)
            check_disks(cluster, node, "first", "disk-0")

            kubectl("delete", "pod", *(each["metadata"]["name"] for each in plugins), "--wait=true")
            wait_for(lambda: live(cluster, node) == [False, False], what="the manager to miss the plug-ins")
            document = json.dumps({"apiVersion": "v1", "kind": "List", "items": plugins})
            kubectl("apply", "-n", "default", "-f", "-", given=document)
            wait_live(cluster, node, registered=1)
            check_disks(cluster, node, "first", "disk-0")

            with created(cluster, holder("second")):
                wait_ready(cluster, "default", "app=second", 1)
                check_disks(cluster, node, "second", "disk-1")

                kubectl("-n", NAMESPACE, "delete", "pod", manager_of(cluster, node))
                wait_live(cluster, node, registered=2)
                wait_for(lambda: connected(cluster, node), what="the runtime to be connected", timeout=90)
                check_disks(cluster, node, "first", "disk-0")
                check_disks(cluster, node, "second", "disk-1")

                with created(cluster, holder("third")):
                    wait_for(lambda: unscheduled(cluster, "third"), what="the scheduler to try")
                    for resource in ALL:
                        assert f"Insufficient {resource}" in unscheduled(cluster, "third")
                    kubectl("delete", "pod", "first", "--wait=true", "--timeout=300s")
                    wait_ready(cluster, "default", "app=third", 1)
                    check_disks(cluster, node, "third", "disk-0")
                    check_disks(cluster, node, "second", "disk-1")
