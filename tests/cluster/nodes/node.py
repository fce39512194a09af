"""A node of a cluster with containerd and a kubelet, and what the tests do with it and read from its kernel."""

from __future__ import annotations

import abc
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from agent import cpuset
from agent.cpuset import CpuSet
from tests.cluster import programs
from tests.cluster.control_plane import NAMESPACE, ip
from tests.cluster.images import BUSYBOX
from tests.waiting import SLOWNESS

Component = Literal["kubelet", "containerd"]
Driver = Literal["cgroupfs", "systemd"]
MEMORY = 4 << 30
"""Memory of a node in bytes."""
NRI_REQUEST_S = 2.0
"""The default of containerd. After it, a container starts without allocations, because `qrm.on_failure` is open."""
UNLIMITED = -1
"""The CPU quota of a container without one."""


class Node(abc.ABC):
    """A node with a number, from which its addresses follow.

    `pki` and `images` are the directories of tests.cluster.pki and tests.cluster.images; files of the node are below
    `directory`.
    """

    driver: Driver

    def __init__(self, name: str, number: int, directory: Path, pki: Path, images: Path):
        self.name = name
        self.address = f"10.90.0.{10 + number}"
        self.pods = f"10.91.{number}.0/24"
        self.directory = directory / name
        self.pki, self.images = pki, images

    @abc.abstractmethod
    def start(self) -> None:
        """Start the node; its kubelet registers some time later."""

    @abc.abstractmethod
    def stop(self) -> None:
        """End the node, and remove everything of it but the files in its directory."""

    @abc.abstractmethod
    def reboot(self) -> None:
        """Restart the whole node: all its processes end, its disk stays."""

    @abc.abstractmethod
    def restart(self, component: Component) -> None:
        """Kill the kubelet or containerd, which starts again at once."""

    @abc.abstractmethod
    def configure_kubelet(self, changed: Mapping[str, Any]) -> None:
        """Start the kubelet with a changed configuration, and without the states of its CPU and Memory Manager."""

    @abc.abstractmethod
    def run(self, *command: str, check: bool = True) -> str:
        """Return what a command prints on the node. A failure raises AssertionError unless `check` is false."""

    @abc.abstractmethod
    def quota(self, container: str) -> int:
        """Return the CPU quota of a container in microseconds, or UNLIMITED, from its control group."""

    @abc.abstractmethod
    def cpus(self, container: str) -> CpuSet:
        """Return the CPUs that the kernel allows the first process of a container; empty if there is none."""

    @abc.abstractmethod
    def cpu_seconds(self) -> float:
        """Return the CPU time that the node has used since its start."""

    def online(self) -> CpuSet:
        """Return all CPUs of the node."""
        return cpuset.parse(self.run("cat", "/sys/devices/system/cpu/online").strip())

    def used_millicores(self, seconds: float) -> float:
        """Return the CPU use of the node over a time, as its kernel counts it."""
        began, before = time.monotonic(), self.cpu_seconds()
        time.sleep(seconds)  # the measured time
        return 1000 * (self.cpu_seconds() - before) / (time.monotonic() - began)

    def route(self) -> None:
        """Let the control plane reach the pods of the node."""
        ip("-n", NAMESPACE, "route", "replace", self.pods, "via", self.address)

    def kubelet_configuration(self, changed: Mapping[str, Any], pki: Path) -> str:
        """Return the configuration of the kubelet. `pki` is the directory of its certificates as the node sees it."""
        configuration = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(pki / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": self.driver,
            "failCgroupV1": False,
            "failSwapOn": False,
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "resolvConf": "",
            "clusterDomain": "cluster.local",
            **changed,
        }
        return json.dumps(configuration)

    def containerd_configuration(self, *, restrict_oom_score: bool) -> str:
        """Return the configuration of containerd."""
        runtime = '[plugins."io.containerd.cri.v1.runtime"'
        return (
            f'version = 3\n[plugins."io.containerd.cri.v1.images".pinned_images]\nsandbox = "{BUSYBOX}"\n'
            f"{runtime}]\nrestrict_oom_score_adj = {json.dumps(restrict_oom_score)}\n"
            f"{runtime}.containerd.runtimes.runc.options]\nSystemdCgroup = {json.dumps(self.driver == 'systemd')}\n"
            f'{runtime}.cni]\nbin_dirs = ["{programs.CNI}"]\n'
            '[plugins."io.containerd.nri.v1.nri"]\ndisable = false\n'
            f'plugin_request_timeout = "{NRI_REQUEST_S * SLOWNESS:g}s"\n'
        )

    def network_configuration(self) -> str:
        """Return the configuration of the network of the pods."""
        bridge = {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "hairpinMode": True,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": self.pods}]], "routes": [{"dst": "0.0.0.0/0"}]},
        }
        return json.dumps({"cniVersion": "1.0.0", "name": "cluster", "plugins": [bridge]})
