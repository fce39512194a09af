"""A cluster on this machine: a control plane and two nodes with real kubelets.

    python -m tests.cluster.cluster      keep a cluster until Ctrl-C, and print the command for kubectl

It needs root, Debian's packages of programs.py, and the programs of scripts/go-programs; everything that it writes is
below one directory, and it removes its namespaces and control groups when it ends.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tests.cluster import images, pki, programs, sources
from tests.cluster.control_plane import ADDRESS, NAMESPACE, SERVICE_ADDRESS, ControlPlane
from tests.cluster.node import Node
from tests.waiting import wait_for

READY_S = 180.0


class Cluster:
    """A control plane and nodes, as a context manager."""

    def __init__(self, directory: Path, names: Sequence[str] = ("node1", "node2")):
        self.directory = directory
        self.control_plane = ControlPlane(directory / "control-plane", directory / "pki")
        self.nodes = [
            Node(name, number, directory, directory / "pki", directory / "images")
            for number, name in enumerate(names, start=1)
        ]

    def __enter__(self) -> Self:
        programs.check()
        pki.make(self.directory / "pki", ADDRESS, SERVICE_ADDRESS, {each.name: each.address for each in self.nodes})
        try:
            images.make(self.directory / "images")
            self.control_plane.start()
            for node in self.nodes:
                node.start()
            sources.start_metrics_server(self.control_plane, self.directory / "pki")
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

    def all_ready(self) -> bool:
        """Return whether all nodes are registered and Ready."""
        found = self.control_plane.get("nodes")["items"]
        return len(found) == len(self.nodes) and all(
            any(each["type"] == "Ready" and each["status"] == "True" for each in node["status"]["conditions"])
            for node in found
        )


def main() -> int:
    """Keep a cluster until a signal."""
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    try:
        with tempfile.TemporaryDirectory(prefix="cluster-") as directory, Cluster(Path(directory)):
            kubectl = programs.kubernetes("kubectl")
            print(f"ip netns exec {NAMESPACE} {kubectl} --kubeconfig {directory}/pki/admin.conf get nodes", flush=True)
            stopped.wait()
    except programs.MissingError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
