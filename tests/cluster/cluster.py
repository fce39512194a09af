"""A cluster on this machine: a control plane, and two nodes with real kubelets in namespaces, or one that is virtual.

    python -m tests.cluster.cluster [--virtual]      keep a cluster until Ctrl-C, and print the command for kubectl

It needs root, Debian's packages of programs.py, and the programs of scripts/go-programs; everything that it writes is
below one directory, and it removes its namespaces and control groups when it ends.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tests.cluster import images, pki, programs, sources
from tests.cluster.control_plane import ADDRESS, NAMESPACE, PREFIX, SERVICE_ADDRESS, ControlPlane
from tests.cluster.nodes.namespaced import NamespacedNode
from tests.cluster.nodes.node import Node
from tests.cluster.nodes.virtual import VirtualNode
from tests.waiting import wait_for

READY_S = 600.0


class Cluster:
    """A control plane and nodes, as a context manager; metrics-server and Prometheus run with the two in namespaces."""

    def __init__(self, directory: Path, *, virtual: bool = False):
        self.directory = directory
        self.virtual = virtual
        self.control_plane = ControlPlane(directory / "control-plane", directory / "pki")
        kind = VirtualNode if virtual else NamespacedNode
        names = ("node1",) if virtual else ("node1", "node2")
        self.nodes: Sequence[Node] = [
            kind(name, number, directory, directory / "pki", directory / "images")
            for number, name in enumerate(names, start=1)
        ]

    def __enter__(self) -> Self:
        programs.check(virtual=self.virtual)
        pki.make(self.directory / "pki", ADDRESS, SERVICE_ADDRESS, {each.name: each.address for each in self.nodes})
        try:
            images.make(self.directory / "images")
            self.control_plane.start()
            for node in self.nodes:
                node.start()
            if not self.virtual:
                sources.start_metrics_server(self.control_plane, self.directory / "pki")
                sources.start_kube_state_metrics(self.control_plane, self.directory / "pki")
                sources.start_prometheus(self.control_plane, self.directory / "pki", self.nodes)
            wait_for(self.all_ready, what="all nodes to be Ready", timeout=READY_S)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the nodes, then the control plane."""
        for node in self.nodes:
            node.stop()
        self.control_plane.stop()

    def container(self, pod: str, name: str = "main") -> tuple[Node, str]:
        """Return the node of a pod, and the identifier of one of its containers; "" before the container exists."""
        found = self.control_plane.get("pod", pod)
        node = next(each for each in self.nodes if each.name == found["spec"]["nodeName"])
        states = {each["name"]: each for each in found["status"].get("containerStatuses", ())}
        return node, states.get(name, {}).get("containerID", "").partition("://")[2]

    def all_ready(self) -> bool:
        """Return whether all nodes are registered and Ready."""
        found = self.control_plane.get("nodes")["items"]
        return len(found) == len(self.nodes) and all(
            any(each["type"] == "Ready" and each["status"] == "True" for each in node["status"]["conditions"])
            for node in found
        )


def left_behind(directory: Path) -> list[str]:
    """Return what a cluster in a directory left on this machine: namespaces, control groups, mounts and processes."""

    def lines(*command: str) -> list[str]:
        return subprocess.run(command, text=True, capture_output=True, check=False).stdout.splitlines()

    namespaces = [line for line in lines("ip", "netns", "list") if line.startswith(PREFIX)]
    groups = [str(path) for path in Path("/sys/fs/cgroup").rglob(f"{PREFIX}*")]
    mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if str(directory) in line]
    return [*namespaces, *groups, *mounts, *lines("pgrep", "-af", str(directory))]


def main() -> int:
    """Keep a cluster until a signal."""
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    virtual = "--virtual" in sys.argv
    try:
        with tempfile.TemporaryDirectory(prefix="cluster-") as directory, Cluster(Path(directory), virtual=virtual):
            kubectl = programs.kubernetes("kubectl")
            print(f"ip netns exec {NAMESPACE} {kubectl} --kubeconfig {directory}/pki/admin.conf get nodes", flush=True)
            stopped.wait()
    except programs.MissingError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
