"""A node in namespaces and control groups of its own, of version 1: see namespaced-init.sh."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent import cpuset
from agent.cpuset import CpuSet
from tests.cluster import programs
from tests.cluster.control_plane import ADDRESS, NAMESPACE, PREFIX, inside, ip, remove_namespace
from tests.cluster.nodes.node import Component, Node
from tests.cluster.nodes.proc import NAMES, NodeProc
from tests.real.parts import find_program
from tests.waiting import wait_for

CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd")
CGROUPS = Path("/sys/fs/cgroup")
UNSHARE = (
    *("unshare", "--fork", "--kill-child", "--propagation=private"),
    *("--mount", "--pid", "--uts", "--ipc", "--cgroup"),
)
INIT = Path(__file__).with_name("namespaced-init.sh")
NODE_EXPORTER_PORT = 9100
CPU_SHARES = 65536
"""The share of CPU of a node, 64 times that of another process of this machine: a node has whole CPUs, as in use."""
SHARED = {
    "kubelet": "/var/lib/kubelet",
    "containerd": "/var/lib/containerd",
    "run": "/run",
    "log": "/var/log",
    "cni": "/etc/cni",
    "opt-cni": "/opt/cni",
    "agent": "/var/lib/load-watcher-agent",
    "qrm": "/var/lib/load-watcher-qrm",
}
"""Directories of a node that are not those of this machine, by name below the directory of the node."""


class NamespacedNode(Node):
    """A node beside the processes of this machine."""

    driver = "cgroupfs"

    def __init__(self, name: str, number: int, directory: Path, pki: Path, images: Path):
        super().__init__(name, number, directory, pki, images)
        self._namespace = f"{PREFIX}{name}"
        self._init: subprocess.Popen[bytes] | None = None
        self.proc = self._new_proc()

    def start(self) -> None:
        for name in (*SHARED, "etc"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        self._clear()  # of a run that was killed
        self._network()
        self._configure({})
        self._make_cgroups()
        self.proc = self._new_proc()
        self.proc.start()
        with (self.directory / "init.log").open("ab") as log:
            command = inside(self._namespace, *UNSHARE, str(INIT))
            self._init = subprocess.Popen(
                command, env=self._environment(), stdout=log, stderr=log, preexec_fn=self._enter_cgroups
            )

    def stop(self) -> None:
        self.proc.stop()
        if self._init is not None:
            self._init.kill()  # unshare ignores SIGTERM, and kills its child when it ends
            self._init.wait()
            self._init = None
        self._clear()

    def reboot(self) -> None:
        self.stop()
        shutil.rmtree(self.directory / "run")  # a tmpfs on other machines
        self.start()

    def restart(self, component: Component) -> None:
        os.kill(self._pid(component), signal.SIGKILL)

    def configure_kubelet(self, changed: Mapping[str, Any]) -> None:
        hold = self.directory / "kubelet.hold"
        hold.touch()
        self.restart("kubelet")
        for name in ("cpu_manager_state", "memory_manager_state"):
            (self.directory / "kubelet" / name).unlink(missing_ok=True)
        self._configure(changed)
        hold.unlink()

    def run(self, *command: str, check: bool = True) -> str:
        enter = ["nsenter", "--target", str(self._pid("kubelet")), "--mount", "--net", "--uts", "--ipc", "--cgroup"]
        done = subprocess.run([*enter, *command], env=self._environment(), text=True, capture_output=True, check=False)
        assert not check or done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
        return done.stdout

    def quota(self, container: str) -> int:
        (group,) = self._groups("cpu", container)
        return int((group / "cpu.cfs_quota_us").read_text())

    def cpus(self, container: str) -> CpuSet:
        groups = self._groups("cpuset", container)
        processes = [process for group in groups for process in (group / "cgroup.procs").read_text().split()]
        if not processes:
            return cpuset.EMPTY
        status = Path(f"/proc/{processes[0]}/status").read_text()
        return cpuset.parse(status.partition("Cpus_allowed_list:")[2].split("\n")[0].strip())

    def cpu_seconds(self) -> float:
        return int((self._cgroup("cpuacct") / "cpuacct.usage").read_text()) / 1e9

    def _new_proc(self) -> NodeProc:
        return NodeProc(self.directory / "proc", self._cgroup("cpuacct"), self._cgroup("memory"))

    def _cgroup(self, controller: str) -> Path:
        """Return the control group that the node sees as the root of a controller."""
        return CGROUPS / controller / own_cgroup(controller).strip("/") / self._namespace

    def _groups(self, controller: str, container: str) -> list[Path]:
        return [path for path in self._cgroup(controller).rglob("*") if path.name.endswith(container)]

    def _clear(self) -> None:
        wait_for(self._remove_cgroups, what=f"the control groups of {self.name} to be empty")
        remove_namespace(self._namespace)

    def _network(self) -> None:
        ip("netns", "add", self._namespace)
        peer = f"type veth peer name eth0 netns {self._namespace}".split()

        def linked() -> bool:
            ip("link", "add", self._namespace, "netns", NAMESPACE, *peer)
            return True

        # The kernel removes the link of a namespace some time after the namespace.
        wait_for(linked, what=f"the network of {self.name}", ignoring=(AssertionError,))
        ip("-n", NAMESPACE, "link", "set", self._namespace, "master", "br0", "up")
        for command in (
            "link set lo up",
            f"addr add {self.address}/24 dev eth0",
            "link set eth0 up",
            f"route add default via {ADDRESS}",
        ):
            ip("-n", self._namespace, *command.split())
        self.route()
        subprocess.run(inside(self._namespace, "sysctl", "-qw", "net.ipv4.ip_forward=1"), check=True)

    def _configure(self, changed: Mapping[str, Any]) -> None:
        etc = self.directory / "etc"
        # Without CAP_SYS_RESOURCE the kernel refuses a lower oom_score_adj.
        kubelet = self.kubelet_configuration({"oomScoreAdj": 0, **changed}, self.pki)
        (etc / "kubelet.json").write_text(kubelet)
        (etc / "containerd.toml").write_text(self.containerd_configuration(restrict_oom_score=True))
        (self.directory / "cni" / "net.d").mkdir(exist_ok=True)
        (self.directory / "cni" / "net.d" / "10-cluster.conflist").write_text(self.network_configuration())

    def _environment(self) -> dict[str, str]:
        binaries = (programs.containers("containerd").parent, programs.kubelet("kubelet").parent)
        # Debian's runc precedes the one of `make containers`.
        path = ["/usr/sbin", *map(str, binaries), str(programs.CNI), "/usr/bin", "/sbin", "/bin"]
        return {
            "PATH": ":".join(path),
            "NODE_NAME": self.name,
            "NODE_ADDRESS": self.address,
            "NODE_DIRECTORY": str(self.directory),
            "NODE_SHARED": " ".join(f"{name}:{target}" for name, target in SHARED.items()),
            "NODE_PROC": " ".join(NAMES),
            "NODE_EXPORTER": f"{find_program('node_exporter')} --web.listen-address=:{NODE_EXPORTER_PORT}",
            "NODE_IMAGES": str(self.images),
            "NODE_KUBECONFIG": str(self.pki / f"{self.name}.conf"),
        }

    def _make_cgroups(self) -> None:
        for controller in CONTROLLERS:
            self._cgroup(controller).mkdir(parents=True, exist_ok=True)
        (self._cgroup("cpu") / "cpu.shares").write_text(str(CPU_SHARES))
        for name in ("cpuset.cpus", "cpuset.mems"):
            (self._cgroup("cpuset") / name).write_text((CGROUPS / "cpuset" / name).read_text())

    def _enter_cgroups(self) -> None:
        """Move this process into the control groups of the node; runs between fork and exec."""
        for controller in CONTROLLERS:
            (self._cgroup(controller) / "cgroup.procs").write_text(str(os.getpid()))

    def _remove_cgroups(self) -> bool:
        left = False
        for controller in CONTROLLERS:
            group = self._cgroup(controller)
            if group.exists():
                for each in sorted(group.rglob("cgroup.procs"), reverse=True):
                    left |= not _remove(each.parent)
        return not left

    def _pid(self, component: str) -> int:
        """Return the process of a component as this machine counts it; it may be about to start again."""
        command = ["pgrep", "-o", "-f", f"{self.directory}/etc/{component}"]

        def found() -> list[str]:
            return subprocess.run(command, text=True, capture_output=True, check=False).stdout.split()

        return int(wait_for(found, what=f"{component} of {self.name} to run")[0])


def _remove(group: Path) -> bool:
    """Remove an empty control group; return whether it is removed. Processes in it are killed."""
    for pid in (group / "cgroup.procs").read_text().split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    time.sleep(0.01)
    try:
        group.rmdir()
    except OSError:
        return False
    return True


def own_cgroup(controller: str) -> str:
    """Return the control group of this process, below which those of nodes are."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if controller in (names, names.removeprefix("name=")):
            return path
    return "/"
