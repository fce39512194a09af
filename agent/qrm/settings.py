"""The settings of the QoS Resource Manager: the table [qrm] of load-watcher.toml, with types, defaults and
descriptions."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from agent.cgroups.paths import Driver
from agent.qrm.manager.request import CPU, RECLAIMED_MILLICPU
from agent.qrm.manager.settings import SECONDS, AllocationSettings
from agent.qrm.plugins.nic import Nic, NicAddress
from agent.qrm.plugins.resize import PoolSettings
from agent.service.node_settings import (
    CGROUP_DRIVER,
    CGROUP_NEST,
    KUBELET_CA,
    KUBELET_TOKEN,
    METRICS_HOST,
    NODE,
    PORT,
    NodeTable,
    nest_problems,
)
from watcher.core.config import addresses, values
from watcher.core.config.fields import SettingsTable
from watcher.core.config.problems import Problem
from watcher.core.config.section_reader import read_table
from watcher.core.config.values import InvalidValue, ValueKind
from watcher.platform.net.loopback import is_loopback

SECTION = "qrm"
DRY_RUN, CRI, NRI, SERVER = MODES = ("dry-run", "cri", "nri", "server")
APPLYING = (CRI, NRI)
"""Modes in which the manager sets properties of containers."""
REMOVED_MODE = "cgroup"
"""Wrote cgroup files. The files of a node can still name it."""
OF_CPU_POLICY = "remove it: it applied to the removed qrm.cpu_policy only"
OPEN, REFUSE = ON_FAILURE = ("open", "refuse")
MODE = values.choice(
    MODES,
    removed={
        REMOVED_MODE: f"use {NRI} or {CRI}, which set the allocations of running containers again; to switch the "
        "manager off instead, run load-watcher qrm restore of the earlier version, or restart the pods"
    },
)


# --- types of values that only this package uses ---------------------------------------------------------------------


def _read_nic(value: Any) -> Nic:
    if not isinstance(value, str) or not value.strip():
        raise InvalidValue
    name, *more = value.split()
    given = dict(part.partition("=")[::2] for part in more)
    if unknown := sorted(set(given) - {"numa", "ipv4", "ipv6", "netns"}):
        raise InvalidValue(f"{unknown[0]!r} is not an attribute of a network card; use numa, ipv4, ipv6 or netns")
    numa = given.get("numa", "-1")
    if not re.fullmatch(r"-1|[0-9]{1,3}", numa):
        raise InvalidValue(f"{numa!r} is not a NUMA node number")
    address = NicAddress(_address(given.get("ipv4", ""), 4), _address(given.get("ipv6", ""), 6))
    return Nic(name, int(numa), address, given.get("netns", ""))


def _address(text: str, version: int) -> str:
    if not text:
        return ""
    try:
        if ipaddress.ip_address(text).version == version:
            return text
    except ValueError:
        pass
    raise InvalidValue(f"{text!r} is not an IPv{version} address")


def _write_nic(nic: Nic) -> str:
    given = {"ipv4": nic.address.ipv4, "ipv6": nic.address.ipv6, "netns": nic.netns}
    parts = [nic.interface_name, f"numa={nic.numa_node}", *(f"{key}={text}" for key, text in given.items() if text)]
    return values.write_text(" ".join(parts))


NIC = ValueKind(
    'a network interface and its attributes, like "eth1 numa=1 ipv4=10.0.0.7 ipv6=fdbd::20 netns=/var/run/netns/ns1"',
    _read_nic,
    values.TEXT.schema,
    write=_write_nic,
)


def _text(called: str, pattern: str) -> ValueKind:
    def read(value: Any) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise InvalidValue
        return value

    return ValueKind(called, read, {"type": "string", "pattern": f"^{pattern}$"})


NRI_NAME = _text("a name of letters, digits and . _ + -", r"[A-Za-z0-9._+-]{1,63}")
NRI_INDEX = _text('two digits, like "50"', r"[0-9]{2}")
# --- the table -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False, kw_only=True)
class QrmProcessSettings(NodeTable):
    """Part of [qrm]: mode, listeners and directories of the process."""

    mode: Annotated[str, MODE] = DRY_RUN
    """How allocations are applied: dry-run only decides, nri sets them before containers start (NRI of containerd or
    CRI-O), cri calls the container runtime after the start; server only serves the plug-ins, for an external manager
    such as Katalyst's kubelet."""
    node: Annotated[str | None, NODE] = None
    """Name of this node in Kubernetes. Default: the environment variable NODE_NAME, otherwise the host name."""
    host: Annotated[str, values.NAME] = "127.0.0.1"
    """Address on which the HTTP API of the QoS Resource Manager listens."""
    port: Annotated[int, PORT] = 2022
    """TCP port that the HTTP API listens on; 0 selects a free port."""
    token_file: Annotated[Path | None, values.PATH.like('"/etc/load-watcher/token"')] = None
    """File with the bearer token for /qrm; required unless qrm.host is a loopback address."""
    metrics_host: Annotated[str | None, METRICS_HOST] = None
    """Address of a second listener, for example the pod's, for /metrics and /healthz; with token_file, for all
    pages."""
    metrics_port: Annotated[int, PORT] = 2024
    """TCP port of the second listener (metrics_host); 0 selects a free port."""
    state_dir: Annotated[Path, values.PATH] = Path("load-watcher-qrm")
    """Directory for the checkpoint and the state of the plug-ins. Must persist across restarts of the process."""
    registration_dir: Annotated[Path | None, values.PATH.like('"/var/lib/katalyst/plugin-socks"')] = None
    """Directory in which plug-ins create their sockets; default: "plugins" in qrm.state_dir. Do not use the plug-in
    directory of an unmodified kubelet."""
    pod_resources_socket: Annotated[Path | None, values.PATH.like('"/var/lib/katalyst/pod-resources/kubelet.sock"')] = (
        None
    )
    """Unix socket of the pod-resources API; default: "pod-resources.sock" in qrm.state_dir."""


@dataclass(frozen=True, repr=False, kw_only=True)
class AdjusterSettings(SettingsTable):
    """Part of [qrm]: network cards, and the load that resizes the CPU pools."""

    nics: Annotated[
        tuple[Nic, ...],
        values.list_of(NIC, called="network cards", may_be_empty=True).like(
            '["eth1 numa=1 ipv6=fdbd:dc05:3:155::20 netns=/var/run/netns/ns1"]'
        ),
    ] = ()
    """Network cards and their addresses; default: the cards found on the machine, without addresses."""
    watcher: Annotated[str | None, addresses.ADDRESS.like('"http://load-watcher.kube-system:2020"')] = None
    """URL of the load-watcher that provides this node's load; without it the online pool only grows."""
    watcher_token_file: Annotated[Path | None, values.PATH.like('"/etc/load-watcher/token"')] = None
    """File with the bearer token for qrm.watcher."""
    adjust: Annotated[bool, values.BOOLEAN] = True
    """Whether load resizes the CPU pools."""
    adjust_interval: Annotated[float, SECONDS] = 5.0
    """Interval at which the sizes of the CPU pools are adjusted."""


@dataclass(frozen=True, repr=False, kw_only=True)
class QrmSettings(PoolSettings, AdjusterSettings, AllocationSettings, QrmProcessSettings):
    """The table [qrm] of load-watcher.toml. The settings of its parts come before its own."""

    removed: ClassVar[Mapping[str, str]] = {
        "cpu_policy": "remove it: the built-in plug-in assigns CPUs by role; for Katalyst's policy, set qrm.cpu_plugin "
        "and qrm.memory_plugin to false, and run Katalyst's own plug-ins on the node",
        "system_namespaces": OF_CPU_POLICY,
        "reclaim": OF_CPU_POLICY,
    }

    headroom_resource: Annotated[
        str | None, values.NAME.like('"resource.katalyst.kubewharf.io/reclaimed_millicpu"')
    ] = None
    """Extended resource that offline pods request instead of cpu. It offers the CPUs of the offline pool, and up to 20
    percent more while the pool is partly idle. Published if qrm.publish_capacity is on."""
    runtime_socket: Annotated[Path, values.PATH] = Path("/run/containerd/containerd.sock")
    """Unix socket of the container runtime, for qrm.mode cri."""
    nri_socket: Annotated[Path, values.PATH] = Path("/var/run/nri/nri.sock")
    """Unix socket of the container runtime's NRI (Node Resource Interface), for qrm.mode nri."""
    runtime_config: Annotated[
        Path | None, values.PATH.like('"/var/lib/rancher/k3s/agent/etc/containerd/config.toml"')
    ] = None
    """Settings file of the container runtime, which doctor reads for qrm.mode nri, with the files that it includes.
    Default: /etc/containerd/config.toml or /etc/crio/crio.conf."""
    nri_name: Annotated[str, NRI_NAME] = "load-watcher"
    """Name of the NRI plug-in, as in required-plugins.noderesource.dev."""
    nri_index: Annotated[str, NRI_INDEX] = "50"
    """Two digits; container runtimes call NRI plug-ins in the order of their index."""
    on_failure: Annotated[str, values.choice(ON_FAILURE)] = OPEN
    """What qrm.mode nri does if the allocation of a container cannot be decided in time: open lets it start, and the
    next round applies the allocation; refuse prevents it. While the plug-in does not run, only NRI's required-plugins
    validator prevents containers."""
    cgroup: Annotated[Path, values.PATH] = Path("/sys/fs/cgroup")
    """Mount point of the host's cgroup file system."""
    cgroup_driver: Annotated[Driver | None, CGROUP_DRIVER] = None
    """Cgroup driver of the kubelet. Default: detected."""
    cgroup_nest: Annotated[str | None, CGROUP_NEST] = None
    """Parent of the kubelet's control groups (its cgroupRoot, without slashes). Default: detected automatically (none,
    or kubelet in a kind cluster)."""
    sys: Annotated[Path, values.PATH] = Path("/sys")
    """Mount point of the host's sysfs, for the CPU topology."""
    kubelet_dir: Annotated[Path, values.PATH] = Path("/var/lib/kubelet")
    """Directory of the kubelet, to check that its own CPU and memory managers are off."""
    force: Annotated[bool, values.BOOLEAN] = False
    """Whether to start even if the kubelet's CPU or memory manager is on, which sets the same cgroup files."""
    kubernetes: Annotated[bool | None, values.BOOLEAN.like("true")] = None
    """Whether to use the Kubernetes API; default: yes in a cluster or with a kubeconfig."""
    kubelet: Annotated[str | None, addresses.ADDRESS.like('"https://127.0.0.1:10250"')] = None
    """URL of the kubelet, the source of this node's pods while the Kubernetes API is unavailable."""
    kubelet_token_file: Annotated[Path | None, KUBELET_TOKEN] = None
    """File with the bearer token for the kubelet."""
    kubelet_ca_file: Annotated[Path | None, KUBELET_CA] = None
    """File with the CA certificate that signed the kubelet's certificate."""
    kubelet_insecure: Annotated[bool, values.BOOLEAN] = False
    """Whether to skip verification of the kubelet's certificate."""
    evict_inadmissible: Annotated[bool, values.BOOLEAN] = False
    """Whether pods that cannot be admitted are evicted (qrm.mode nri and cri only)."""
    publish_capacity: Annotated[bool, values.BOOLEAN] = False
    """Whether the resources of plug-ins are published in the node's status (qrm.mode nri and cri only)."""

    @property
    def resource_names(self) -> dict[str, str]:
        """Maps resource names that pods request to the resource names that plug-ins serve."""
        return {**({} if self.headroom_resource is None else {self.headroom_resource: CPU}), **super().resource_names}

    @property
    def evicts(self) -> bool:
        """Whether pods that cannot be admitted are evicted in this mode."""
        return self.evict_inadmissible and self.mode in APPLYING

    @property
    def publishes(self) -> bool:
        """Whether the resources of plug-ins are published in the node's status in this mode."""
        return self.publish_capacity and self.mode in APPLYING

    @property
    def plugins_dir(self) -> Path:
        """Directory in which plug-ins create their sockets."""
        return self.registration_dir or self.state_dir / "plugins"

    @property
    def pod_resources_path(self) -> Path:
        """Path of the socket of the pod-resources API."""
        return self.pod_resources_socket or self.state_dir / "pod-resources.sock"


def read_settings(given: Mapping[str, Any], *, cwd: Path) -> tuple[QrmSettings, list[Problem]]:
    """Read the table [qrm]. Returns the settings and all problems that were found."""
    settings, problems = read_table(QrmSettings, given, section=SECTION, cwd=cwd)
    if settings.on_failure == REFUSE and settings.mode != NRI:
        message = f'refuse has no effect with qrm.mode = "{settings.mode}": only the mode nri can prevent a container'
        problems.append(Problem("qrm.on_failure", message, 'set qrm.mode = "nri", or remove qrm.on_failure'))
    try:
        settings.roles()
    except ValueError as error:
        problems.append(Problem("qrm.exclusive_roles", str(error), "remove the role from one of the lists"))
    names = [name for name, _ in settings.names]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        problems.append(Problem("qrm.names", f"{twice[0]!r} is mapped to two resources", "remove one of the pairs"))
    problems += nest_problems(settings.cgroup_nest, section=SECTION)
    if settings.headroom_resource is not None and "/" not in settings.headroom_resource:
        cure = f'for example qrm.headroom_resource = "{RECLAIMED_MILLICPU}"'
        problems.append(
            Problem(
                "qrm.headroom_resource",
                "must have a domain prefix; Kubernetes rejects extended resources without one",
                cure,
            )
        )
    if not is_loopback(settings.host) and settings.token_file is None:
        message = (
            f"{settings.host} is reachable from other hosts, and /qrm shows details of pods without authentication"
        )
        problems.append(Problem("qrm.token_file", message, "set qrm.token_file, or qrm.host to 127.0.0.1"))
    for key, path in (("token_file", settings.token_file), ("watcher_token_file", settings.watcher_token_file)):
        if path is not None and not path.is_file():
            cure = "create the file, with one line that contains a random token"
            problems.append(Problem(f"qrm.{key}", f"file {path} does not exist", cure))
    return settings, problems


def validate(given: Mapping[str, Any]) -> list[Problem]:
    """All problems in [qrm], for `config check` and every other command."""
    return read_settings(given, cwd=Path.cwd())[1]


USED_IN: Mapping[str, tuple[str, ...]] = {
    "runtime_socket": (CRI,),
    "nri_socket": (NRI,),
    "nri_name": (NRI,),
    "nri_index": (NRI,),
    "runtime_config": (NRI,),
    "evict_inadmissible": (NRI, CRI),
    "publish_capacity": (NRI, CRI),
}
"""The modes that use a setting; other settings are used in more modes."""


def notices(given: Mapping[str, Any], *, cwd: Path) -> Iterator[str]:
    """Notices of `config check` about the table `given`, without those of its problems: settings that have no effect in
    their mode, and what the mode nri requires of the node."""
    own, _ = read_settings(given, cwd=cwd)
    for name, modes in USED_IN.items():
        if name in given and getattr(own, name) and own.mode not in modes:
            instead = " or ".join(f'"{mode}"' for mode in modes)
            yield f'qrm.{name} has no effect with qrm.mode = "{own.mode}": remove it, or set qrm.mode = {instead}'
    if own.mode != NRI:
        return
    if not own.nri_socket.is_socket():
        yield (
            f"this machine has no socket {own.nri_socket}: turn NRI on in the container runtime, or set "
            f'qrm.nri_socket, for example qrm.nri_socket = "/var/run/nri/nri.sock"'
        )
    if own.on_failure == REFUSE:
        yield (
            'qrm.on_failure = "refuse": while the manager does not run, only a container runtime that requires the NRI '
            f"plug-in {own.nri_name} refuses containers; load-watcher doctor --only qrm checks it"
        )
