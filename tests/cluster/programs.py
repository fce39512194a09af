"""The programs that a node needs, and what to do where one is missing."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from tests.modules import programs

CNI = Path("/usr/lib/cni")
PACKAGES = {"busybox": "busybox-static", "debootstrap": "debootstrap", "ip": "iproute2"}
"""Debian's packages by program."""
NAMESPACED = {**PACKAGES, "conntrack": "conntrack", "iptables": "iptables", "runc": "runc"}
"""The runc of `make containers` is built without seccomp, which the kubelet requires."""
VIRTUAL = {**PACKAGES, "mke2fs": "e2fsprogs", "qemu-system-x86_64": "qemu-system-x86"}


class MissingError(Exception):
    """A cluster cannot run here; the text names what is missing and the remedy."""


def check(*, virtual: bool) -> None:
    """Raise MissingError unless this machine has everything that a cluster needs, with nodes that are `virtual`."""
    check_machine(virtual=virtual)
    built = {"kubernetes": programs.kubernetes(), "kubelet": programs.kubelet(), "containers": programs.containers()}
    if not virtual:
        built |= {"metrics-server": programs.metrics_server(), "kube-state-metrics": programs.kube_state_metrics()}
        built["helm"] = programs.helm()
    unbuilt = [name for name, module in built.items() if module.missing]
    if unbuilt:
        commands = "; ".join(f"scripts/go-programs {name}" for name in unbuilt)
        raise MissingError(f"programs are not built: run {commands}")


def check_machine(*, virtual: bool) -> None:
    """Raise MissingError unless this machine has what no script of this project builds."""
    if os.geteuid() != 0:
        raise MissingError("a cluster needs root: it has namespaces, mounts and network interfaces of its own")
    if virtual and not Path("/dev/net/tun").exists():
        raise MissingError("a virtual node needs /dev/net/tun: run modprobe tun")
    if not virtual and not Path("/sys/fs/cgroup/cpuacct").is_dir():
        raise MissingError("a cluster needs control groups of version 1 at /sys/fs/cgroup, with the controller cpuacct")
    packages = VIRTUAL if virtual else NAMESPACED
    missing = [package for program, package in packages.items() if find(program) is None]
    if not virtual and not (CNI / "bridge").exists():
        missing.append("containernetworking-plugins")
    if missing:
        raise MissingError(f"programs are missing: run apt-get install --no-install-recommends {' '.join(missing)}")


def find(name: str) -> Path | None:
    """Return the path of a program of Debian, also where PATH lacks the directories of root's programs."""
    path = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"
    found = shutil.which(name, path=path)
    return Path(found) if found else None


def kubernetes(name: str) -> Path:
    """Return the path of a program of the control plane."""
    return programs.kubernetes().directory / name


def kubelet(name: str) -> Path:
    """Return the path of the kubelet or of kube-controller-manager."""
    return programs.kubelet().directory / name


def metrics_server() -> Path:
    """Return the path of metrics-server."""
    return programs.metrics_server().directory / "metrics-server"


def kube_state_metrics() -> Path:
    """Return the path of kube-state-metrics."""
    return programs.kube_state_metrics().directory / "kube-state-metrics"


def helm() -> Path:
    """Return the path of helm."""
    return programs.helm().directory / "helm"


def containers(name: str) -> Path:
    """Return the path of containerd, its shim, ctr or crictl."""
    return programs.containers().directory / name


def main() -> int:
    """Check this machine before anything is built; return the exit code."""
    virtual = "--virtual" in sys.argv
    try:
        check_machine(virtual=virtual)
    except MissingError as error:
        print(f"make {'cluster-v2' if virtual else 'cluster'}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
