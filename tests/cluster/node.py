"""A node of a cluster in namespaces and control groups of its own, with containerd and a kubelet: see node-init.sh."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.cluster import programs
from tests.cluster.control_plane import ADDRESS, NAMESPACE, inside, ip, remove_namespace
from tests.cluster.images import BUSYBOX
from tests.cluster.node_proc import NAMES, NodeProc
from tests.real.parts import find_program
from tests.waiting import wait_for

CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd")
CGROUPS = Path("/sys/fs/cgroup")
UNSHARE = (
    *("unshare", "--fork", "--kill-child", "--propagation=private"),
    *("--mount", "--pid", "--uts", "--ipc", "--cgroup"),
)
INIT = Path(__file__).with_name("node-init.sh")
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


class Node:
    """A node with a number, from which its addresses follow."""

    def __init__(self, name: str, number: int, directory: Path, pki: Path, images: Path):
        self.name = name
        self.address = f"10.90.0.{10 + number}"
        self.pods = f"10.91.{number}.0/24"
        self.directory = directory / name
        self.namespace = f"lwc-{name}"
        self._pki, self._images = pki, images
        self._init: subprocess.Popen[bytes] | None = None
        self.proc = NodeProc(self.directory / "proc", self.cgroup("cpuacct"), self.cgroup("memory"))

    def start(self, kubelet: Mapping[str, Any] | None = None) -> None:
        """Start the node. `kubelet` is merged into the configuration of the kubelet."""
        for name in (*SHARED, "etc"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        self._clear()  # of a run that was killed
        self._network()
        self._configure(kubelet or {})
        self._make_cgroups()
        self.proc.start()
        with (self.directory / "init.log").open("ab") as log:
            command = inside(self.namespace, *UNSHARE, str(INIT))
            self._init = subprocess.Popen(
                command, env=self._environment(), stdout=log, stderr=log, preexec_fn=self._enter_cgroups
            )

    def stop(self) -> None:
        """End all processes of the node, and remove its network namespace and control groups."""
        self.proc.stop()
        if self._init is not None:
            self._init.kill()  # unshare ignores SIGTERM, and kills its child when it ends
            self._init.wait()
            self._init = None
        self._clear()

    def restart(self, component: str, *, held: bool = False) -> None:
        """Kill the kubelet or containerd, which starts again at once, or, with `held`, after `release`."""
        if held:
            self._hold(component).touch()
        os.kill(self._pid(component), signal.SIGKILL)

    def release(self, component: str) -> None:
        """Let a component start that `restart` holds back."""
        self._hold(component).unlink(missing_ok=True)

    def configure_kubelet(self, values: Mapping[str, Any]) -> None:
        """Change the configuration of the kubelet and start it again."""
        self.restart("kubelet", held=True)
        for name in ("cpu_manager_state", "memory_manager_state"):
            (self.directory / "kubelet" / name).unlink(missing_ok=True)
        self._configure(values)
        self.release("kubelet")

    def run(self, *command: str, check: bool = True) -> str:
        """Return what a command prints inside the node's namespaces."""
        enter = ["nsenter", "--target", str(self._pid("kubelet")), "--mount", "--net", "--uts", "--ipc", "--cgroup"]
        done = subprocess.run([*enter, *command], text=True, capture_output=True, check=False)
        assert not check or done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
        return done.stdout

    def cgroup(self, controller: str) -> Path:
        """Return the control group that the node sees as the root of a controller."""
        return CGROUPS / controller / own_cgroup(controller).strip("/") / self.namespace

    def log(self, component: str) -> str:
        """Return the log of kubelet or containerd."""
        return (self.directory / f"{component}.log").read_text(errors="replace")

    def _clear(self) -> None:
        wait_for(self._remove_cgroups, what=f"the control groups of {self.name} to be empty")
        remove_namespace(self.namespace)

    def _network(self) -> None:
        ip("netns", "add", self.namespace)
        peer = f"type veth peer name eth0 netns {self.namespace}"
        ip("link", "add", self.namespace, "netns", NAMESPACE, *peer.split())
        ip("-n", NAMESPACE, "link", "set", self.namespace, "master", "br0", "up")
        for command in (
            "link set lo up",
            f"addr add {self.address}/24 dev eth0",
            "link set eth0 up",
            f"route add default via {ADDRESS}",
        ):
            ip("-n", self.namespace, *command.split())
        ip("-n", NAMESPACE, "route", "add", self.pods, "via", self.address)
        subprocess.run(inside(self.namespace, "sysctl", "-qw", "net.ipv4.ip_forward=1"), check=True)

    def _configure(self, changed: Mapping[str, Any]) -> None:
        etc = self.directory / "etc"
        configuration = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self._pki / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs",
            "failCgroupV1": False,
            "failSwapOn": False,
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            # Without CAP_SYS_RESOURCE the kernel refuses a lower value.
            "oomScoreAdj": 0,
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "resolvConf": "",
            "clusterDomain": "cluster.local",
            **changed,
        }
        (etc / "kubelet.json").write_text(json.dumps(configuration))
        runtime = '[plugins."io.containerd.cri.v1.runtime"'
        (etc / "containerd.toml").write_text(
            f'version = 3\n[plugins."io.containerd.cri.v1.images".pinned_images]\nsandbox = "{BUSYBOX}"\n'
            f"{runtime}]\nrestrict_oom_score_adj = true\n"
            f"{runtime}.containerd.runtimes.runc.options]\nSystemdCgroup = false\n"
            f'{runtime}.cni]\nbin_dirs = ["{programs.CNI}"]\n'
            '[plugins."io.containerd.nri.v1.nri"]\ndisable = false\n'
        )
        bridge = {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "hairpinMode": True,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": self.pods}]], "routes": [{"dst": "0.0.0.0/0"}]},
        }
        network = {"cniVersion": "1.0.0", "name": "cluster", "plugins": [bridge]}
        (self.directory / "cni" / "net.d").mkdir(exist_ok=True)
        (self.directory / "cni" / "net.d" / "10-cluster.conflist").write_text(json.dumps(network))

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
            "NODE_IMAGES": str(self._images),
            "NODE_KUBECONFIG": str(self._pki / f"{self.name}.conf"),
        }

    def _make_cgroups(self) -> None:
        for controller in CONTROLLERS:
            self.cgroup(controller).mkdir(parents=True, exist_ok=True)
        (self.cgroup("cpu") / "cpu.shares").write_text(str(CPU_SHARES))
        for name in ("cpuset.cpus", "cpuset.mems"):
            (self.cgroup("cpuset") / name).write_text((CGROUPS / "cpuset" / name).read_text())

    def _enter_cgroups(self) -> None:
        """Move this process into the control groups of the node; runs between fork and exec."""
        for controller in CONTROLLERS:
            (self.cgroup(controller) / "cgroup.procs").write_text(str(os.getpid()))

    def _remove_cgroups(self) -> bool:
        left = False
        for controller in CONTROLLERS:
            group = self.cgroup(controller)
            if group.exists():
                for each in sorted(group.rglob("cgroup.procs"), reverse=True):
                    left |= not _remove(each.parent)
        return not left

    def _hold(self, component: str) -> Path:
        return self.directory / f"{component}.hold"

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
