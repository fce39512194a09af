"""The QoS Resource Manager on a cluster: its deployment, its page, and the CPUs that the kernel gives to containers."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agent import cpuset
from agent.cpuset import CpuSet
from tests.cluster.cluster import Cluster
from tests.cluster.deployed import applied, prepared, wait_ready
from tests.cluster.nodes.node import Node
from tests.deploy.rendering import DeployComponent
from tests.waiting import wait_for

SELECTOR = "app.kubernetes.io/name=load-watcher-qrm"
NAMESPACE = "load-watcher-qrm"
ROLE = "kubernetes.io/pod-role"
EXCLUSIVE = "storage-service"
NEAR_A_CARD = "numa-enhancement"
CARD_ADDRESS = "192.0.2.7"
SETTINGS = f'min_online = 0\nmin_offline = 0\nnics = ["eth0 numa=0 ipv4={CARD_ADDRESS}"]\n'
"""All CPUs but one can be exclusive, and pods near a network card get its address."""


@contextlib.contextmanager
def managing(cluster: Cluster, directory: Path, components: Sequence[DeployComponent]) -> Iterator[Path]:
    """Run deploy/qrm with components; yields the directory with the copy of deploy/."""
    prepared(directory, "qrm")
    settings = directory / "deploy" / "qrm" / "load-watcher.toml"
    settings.write_text(settings.read_text().replace("[qrm]\n", f"[qrm]\n{SETTINGS}", 1))
    with applied(cluster, directory, "qrm", components):
        wait_ready(cluster, NAMESPACE, SELECTOR, len(cluster.nodes))
        yield directory


def connected(cluster: Cluster, node: Node) -> bool:
    """Return whether the runtime of a node calls the plug-in."""
    return bool(page(cluster, node).get("nri", {}).get("connected"))


def manager_of(cluster: Cluster, node: Node) -> str:
    """Return the name of the pod of the manager on a node."""

    def names() -> list[str]:
        return [
            each["metadata"]["name"]
            for each in cluster.control_plane.get("pods", "-n", NAMESPACE, "-l", SELECTOR)["items"]
            if each["spec"].get("nodeName") == node.name and "deletionTimestamp" not in each["metadata"]
        ]

    (name,) = wait_for(names, what=f"a manager on {node.name}")
    return name


def page(cluster: Cluster, node: Node) -> Any:
    """Return /qrm of the manager on a node, which it shows inside its pod only; {} while it does not answer."""
    script = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:2022/qrm').read().decode())"
    command = ("exec", "-n", NAMESPACE, manager_of(cluster, node), "--", "/opt/load-watcher/bin/python", "-c", script)
    done = cluster.control_plane.kubectl_process(*command)
    return json.loads(done.stdout) if done.returncode == 0 else {}


def pinned(cluster: Cluster, name: str, container: str = "main") -> CpuSet:
    """Return the CPUs that the kernel allows the first process of a container; empty while it does not run."""
    node, identifier = cluster.container(name, container)
    return node.cpus(identifier) if identifier else cpuset.EMPTY


def wait_pinned(cluster: Cluster, name: str, cpus: int, container: str = "main") -> CpuSet:
    """Wait until a container has this number of CPUs; return them."""
    wait_for(lambda: len(pinned(cluster, name, container)) == cpus, what=f"{cpus} CPUs for {name}", timeout=60)
    return pinned(cluster, name, container)


def wait_shared(cluster: Cluster, node: Node, name: str, own: CpuSet, container: str = "main") -> CpuSet:
    """Wait until a container has the CPUs of its pool, without `own`, which another has exclusively; return them. A
    node with more than two CPUs has two pools."""

    def shared() -> CpuSet:
        pods = {each["pod"]: each["containers"] for each in page(cluster, node).get("pods", ())}
        given = pods.get(f"default/{name}", {}).get(container, {}).get("cpu", {}).get("allocation_result", "")
        cpus = cpuset.parse(given) - own
        return cpus if given and pinned(cluster, name, container) == cpus else cpuset.EMPTY

    return wait_for(shared, what=f"the pool of {name} without the exclusive CPU")


def with_role(pod: dict[str, Any], role: str) -> dict[str, Any]:
    """Return a pod with a role."""
    pod["metadata"]["annotations"] = {ROLE: role}
    return pod
