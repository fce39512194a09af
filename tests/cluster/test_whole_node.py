"""A restart of a whole node in the middle of what agent and QoS Resource Manager do: both resume, and restore."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.cluster import agents, qrms
from tests.cluster.agents import kept_away, policies_applied, throttling, wait_restored, wait_throttled
from tests.cluster.cluster import Cluster
from tests.cluster.deployed import created, pod, wait_ready
from tests.cluster.qrms import EXCLUSIVE, wait_pinned, wait_shared, with_role
from tests.waiting import wait_for

SMALL = {"cpu": "50m", "memory": "16Mi"}
NAMES = ("hog", "web", "solid")


def test_throttling_and_exclusive_cpus_outlive_a_restart_of_the_node(cluster: Cluster, tmp_path: Path):
    node = cluster.nodes[-1]
    sleep = ("sleep", "100000")
    hog = pod("hog", node.name, command=("sh", "-c", "while :; do :; done"))
    web = pod("web", node.name, command=sleep, requests=SMALL)
    solid = with_role(pod("solid", node.name, command=sleep, requests=SMALL), EXCLUSIVE)

    def wait_placed() -> None:
        own = wait_pinned(cluster, "solid", 1)
        wait_shared(cluster, node, "web", own)

    with agents.enforcing(cluster, tmp_path / "agent"), qrms.managing(cluster, tmp_path / "qrm", ["qrm-nri"]):
        watermark = int(node.used_millicores(20)) + 600
        with created(cluster, web, solid, hog):
            for name in NAMES:
                wait_ready(cluster, "default", f"app={name}", 1)
            wait_placed()
            with policies_applied(cluster, throttling(watermark, node=node.name)):
                wait_throttled(cluster, "hog")
                before = containers(cluster)
                node.reboot()
                wait_for(lambda: restarted(before, containers(cluster)), what="the pods to run again", timeout=300)
                for namespace, selector in ((agents.NAMESPACE, agents.SELECTOR), (qrms.NAMESPACE, qrms.SELECTOR)):
                    wait_ready(cluster, namespace, selector, len(cluster.nodes), timeout=300)
                wait_placed()
                wait_throttled(cluster, "hog")
                assert kept_away(cluster, node)
            wait_restored(cluster, "hog")
            wait_for(lambda: not kept_away(cluster, node), what="new pods to be allowed")
            wait_placed()
            assert [each for each in agents.audit(cluster, node) if each["outcome"] == "failed"] == []


def containers(cluster: Cluster) -> dict[str, Any]:
    """Return the identifier of each running container."""
    found = {name: cluster.control_plane.get("pod", name)["status"]["containerStatuses"][0] for name in NAMES}
    return {name: each["containerID"] for name, each in found.items() if "running" in each["state"]}


def restarted(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Return whether all containers run, and all are others."""
    return all(name in now and now[name] != before[name] for name in NAMES)
