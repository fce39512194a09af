"""The settings of the QoS Resource Manager, [qrm] of load-watcher.toml: each with its kind, default and meaning."""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.qrm import cpuset
from agent.qrm.cpuset import NONE, CpuSet
from agent.qrm.manager.request import CPU, RECLAIMED_MILLICPU
from agent.qrm.manager.topology import Policy
from agent.qrm.plugins.nic import Nic, NicAddress
from agent.qrm.plugins.resize import ResizeSettings
from agent.qrm.roles import EXCLUSIVE, OFFLINE, ONLINE, SEED_ROLES, RoleTable, role_table
from agent.service.node_settings import (
    CGROUP_DRIVER,
    CGROUP_NEST,
    KUBELET_CA,
    KUBELET_INSECURE,
    KUBELET_TOKEN,
    METRICS_HOST,
    METRICS_PORT,
    NODE,
    PORT,
    NodeTable,
    nest_problems,
)
from watcher.platform.net.loopback import is_loopback
from watcher.platform.settings import addresses, quantities, values
from watcher.platform.settings.declaring import about
from watcher.platform.settings.problems import Problem
from watcher.platform.settings.section_reader import read_table
from watcher.platform.settings.values import Kind, Unfit

SECTION = "qrm"
DRY_RUN, CRI, CGROUP, SERVER = MODES = ("dry-run", "cri", "cgroup", "server")
NOT_A_MODE = "nri"
"""Others have it, so it is asked for."""
SCOPES = ("container", "pod")
BY_ROLE, AS_KATALYST = CPU_POLICIES = ("roles", "katalyst")
CPUS = values.whole(lowest=0, highest=8192)
SECONDS = quantities.duration(lowest=0.1, highest=3600)
DEFAULTS = ResizeSettings()


# --- kinds of values that only this room knows -----------------------------------------------------------------------


def _read_number(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value) or not 0 <= value <= 1000:
        raise Unfit
    return float(value)


def _read_number_text(text: str) -> float:
    try:
        return _read_number(float(text))
    except ValueError:
        raise Unfit from None


NUMBER = Kind("a number from 0 to 1000", _read_number, _read_number_text, repr)


def _read_cpus(value: Any) -> CpuSet:
    if not isinstance(value, str):
        raise Unfit
    try:
        return cpuset.parse(value)
    except ValueError as error:
        raise Unfit(str(error)) from None


CPU_LIST = Kind(
    'CPUs as the kernel lists them, like "0-1,40-41"',
    _read_cpus,
    _read_cpus,
    lambda cpus: values.write_text(cpuset.text(cpus)),
)


def _read_pair(value: Any) -> tuple[str, str]:
    name, equals, other = value.partition("=") if isinstance(value, str) else ("", "", "")
    if not equals or not name.strip() or not other.strip():
        raise Unfit
    if "=" in other:
        raise Unfit(f"{value!r} has more than one =, and a name has none")
    return name.strip(), other.strip()


PAIR = Kind(
    'two names, like "best-effort-cpu=cpu"',
    _read_pair,
    _read_pair,
    lambda pair: values.write_text("=".join(pair)),
)


def _read_nic(value: Any) -> Nic:
    if not isinstance(value, str) or not value.strip():
        raise Unfit
    name, *more = value.split()
    given = dict(part.partition("=")[::2] for part in more)
    if unknown := sorted(set(given) - {"numa", "ipv4", "ipv6", "netns"}):
        raise Unfit(f"{unknown[0]!r} is nothing that is known of a card: numa, ipv4, ipv6 and netns are")
    numa = given.get("numa", "-1")
    if not re.fullmatch(r"-1|[0-9]{1,3}", numa):
        raise Unfit(f"{numa!r} is no number of a NUMA node")
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
    raise Unfit(f"{text!r} is no IPv{version} address")


def _write_nic(nic: Nic) -> str:
    given = {"ipv4": nic.address.ipv4, "ipv6": nic.address.ipv6, "netns": nic.netns}
    parts = [nic.interface_name, f"numa={nic.numa_node}", *(f"{key}={text}" for key, text in given.items() if text)]
    return values.write_text(" ".join(parts))


NIC = Kind(
    'a card and what is known of it, like "eth1 numa=1 ipv4=10.0.0.7 ipv6=fdbd::20 netns=/var/run/netns/ns1"',
    _read_nic,
    _read_nic,
    _write_nic,
)
ROLES = values.several(values.NAME, called="roles")


def _roles_of(name: str) -> tuple[str, ...]:
    return tuple(role for role, known in SEED_ROLES.classes.items() if known == name)


# --- the table -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False, kw_only=True)
class QrmSettings(NodeTable):
    """[qrm]"""

    mode: str = field(
        default=DRY_RUN,
        metadata=about(
            values.choice(MODES),
            "dry-run decides and sets nothing; cri sets by the container runtime, cgroup by files of control groups; "
            "server serves the plug-ins alone, for a manager that somebody else runs.",
        ),
    )
    node: str | None = field(default=None, metadata=NODE)
    host: str = field(default="127.0.0.1", metadata=about(values.NAME, "Address that its API listens on."))
    port: int = field(default=2022, metadata=PORT)
    token_file: Path | None = field(
        default=None,
        metadata=about(
            values.PATH,
            "File with the bearer token that /qrm needs; a must where others can reach it.",
            example='"/etc/load-watcher/token"',
        ),
    )
    metrics_host: str | None = field(default=None, metadata=METRICS_HOST)
    metrics_port: int = field(default=2024, metadata=METRICS_PORT)
    state_dir: Path = field(
        default=Path("load-watcher-qrm"),
        metadata=about(
            values.PATH, "Directory of the checkpoint and the plug-ins' states. Must outlive the process, and the pods."
        ),
    )
    registration_dir: Path | None = field(
        default=None,
        metadata=about(
            values.PATH,
            'Directory in which plug-ins put their sockets; else "plugins" in qrm.state_dir. Never a stock kubelet\'s.',
            example='"/var/lib/katalyst/plugin-socks"',
        ),
    )
    pod_resources_socket: Path | None = field(
        default=None,
        metadata=about(
            values.PATH,
            'Socket of the pod-resources API; else "pod-resources.sock" in qrm.state_dir.',
            example='"/var/lib/katalyst/pod-resources/kubelet.sock"',
        ),
    )
    policy: str = field(
        default=Policy.BEST_EFFORT.value,
        metadata=about(
            values.choice(each.value for each in Policy), "How the hints of plug-ins are merged, as the kubelet does."
        ),
    )
    scope: str = field(
        default="container",
        metadata=about(values.choice(SCOPES), "Whether hints are merged for each container, or once for a pod."),
    )
    reconcile_period: float = field(
        default=3.0,
        metadata=about(
            SECONDS,
            "How often what plug-ins say is brought to containers.",
            flag="--qos-resource-manager-reconcile-period",
        ),
    )
    names: tuple[tuple[str, str], ...] = field(
        default=(),
        metadata=about(
            values.several(PAIR, called="pairs of names"),
            "Resources that pods request under another name than their plug-in's.",
            example='["best-effort-cpu=cpu"]',
            flag="--qos-resource-manager-resource-names-map",
        ),
    )
    skip_annotations: tuple[str, ...] = field(
        default=(),
        metadata=about(
            values.several(values.NAME, called="annotations"),
            "Pods with one of these annotations are left alone.",
            example='["example.org/unmanaged"]',
        ),
    )
    cpu_plugin: bool = field(
        default=True, metadata=about(values.BOOLEAN, "Whether to serve the plug-in for CPUs that comes with this.")
    )
    cpu_policy: str = field(
        default=BY_ROLE,
        metadata=about(
            values.choice(CPU_POLICIES),
            "What CPUs go by: the roles of pods, or Katalyst's QoS levels and enhancements; with these load resizes "
            "nothing, pools have what their pods request.",
        ),
    )
    reclaim: bool = field(
        default=False,
        metadata=about(
            values.BOOLEAN, "With Katalyst's: whether pods of reclaimed_cores may have what shared pools do not need."
        ),
    )
    memory_plugin: bool = field(default=True, metadata=about(values.BOOLEAN, "The same for memory."))
    nic_plugin: bool = field(default=True, metadata=about(values.BOOLEAN, "The same for network cards."))
    reserved_cpus: CpuSet = field(
        default=NONE, metadata=about(CPU_LIST, "CPUs of the system, which no pod gets.", example='"0-1,40-41"')
    )
    reserved_memory: int = field(
        default=500 << 20,
        metadata=about(quantities.size(lowest=0), "Memory of each NUMA node that is the system's."),
    )
    online_roles: tuple[str, ...] = field(
        default=_roles_of(ONLINE),
        metadata=about(ROLES, "Roles of pods that share the pool online; so do those that no list names."),
    )
    offline_roles: tuple[str, ...] = field(
        default=_roles_of(OFFLINE), metadata=about(ROLES, "Roles of pods that share the pool offline.")
    )
    exclusive_roles: tuple[str, ...] = field(
        default=_roles_of(EXCLUSIVE),
        metadata=about(ROLES, "Roles of pods that have CPUs and memory of their own, on NUMA nodes of their role."),
    )
    nic_roles: tuple[str, ...] = field(
        default=tuple(sorted(SEED_ROLES.nic)),
        metadata=about(ROLES, "Roles of pods that get a network card without asking for one."),
    )
    nics: tuple[Nic, ...] = field(
        default=(),
        metadata=about(
            values.several(NIC, called="network cards"),
            "The network cards, with their addresses; else those that the machine has, without.",
            example='["eth1 numa=1 ipv6=fdbd:dc05:3:155::20 netns=/var/run/netns/ns1"]',
        ),
    )
    watcher: str | None = field(
        default=None,
        metadata=about(
            addresses.ADDRESS,
            "The load-watcher whose windows of this node resize the pools; without it the pool online only grows.",
            example='"http://load-watcher.kube-system:2020"',
        ),
    )
    watcher_token_file: Path | None = field(
        default=None,
        metadata=about(values.PATH, "Its token, if it needs one.", example='"/etc/load-watcher/token"'),
    )
    adjust: bool = field(default=True, metadata=about(values.BOOLEAN, "Whether load resizes the pools."))
    adjust_interval: float = field(default=5.0, metadata=about(SECONDS, "How often that is thought about."))
    usage_factor: float = field(
        default=DEFAULTS.usage_factor, metadata=about(NUMBER, "The pool online gets what it uses, times this …")
    )
    reserve_cpus: float = field(default=DEFAULTS.reserve_cpus, metadata=about(NUMBER, "… and so many CPUs more."))
    min_online: int = field(default=DEFAULTS.min_online, metadata=about(CPUS, "CPUs of the pool online, at least."))
    min_offline: int = field(default=DEFAULTS.min_offline, metadata=about(CPUS, "CPUs of the pool offline, at least."))
    step_up: int = field(
        default=DEFAULTS.step_up,
        metadata=about(values.whole(lowest=1, highest=8192), "CPUs by which it grows at once."),
    )
    step_down: int = field(
        default=DEFAULTS.step_down, metadata=about(CPUS, "CPUs by which it shrinks at once; 0: without bound.")
    )
    min_down_period: float = field(
        default=DEFAULTS.min_down_period, metadata=about(quantities.duration(), "How long it stays after it shrank.")
    )
    respect_requests: bool = field(
        default=DEFAULTS.respect_requests,
        metadata=about(values.BOOLEAN, "Whether the pool online never has less than its pods request."),
    )
    headroom_resource: str | None = field(
        default=None,
        metadata=about(
            values.NAME,
            "Resource under which offline pods are offered the CPUs of their pool, up to a fifth more than it has "
            "while they leave it idle; with publish_capacity. Pods ask for CPUs by it.",
            example='"resource.katalyst.kubewharf.io/reclaimed_millicpu"',
        ),
    )
    runtime_socket: Path = field(
        default=Path("/run/containerd/containerd.sock"),
        metadata=about(values.PATH, "Socket of the container runtime, for the mode cri."),
    )
    cgroup: Path = field(
        default=Path("/sys/fs/cgroup"), metadata=about(values.PATH, "Where the host's control groups are.")
    )
    cgroup_driver: str | None = field(default=None, metadata=CGROUP_DRIVER)
    cgroup_nest: str | None = field(default=None, metadata=CGROUP_NEST)
    sys: Path = field(default=Path("/sys"), metadata=about(values.PATH, "Where the machine is described."))
    kubelet_dir: Path = field(
        default=Path("/var/lib/kubelet"),
        metadata=about(
            values.PATH, "The kubelet's directory, to see whether its own managers of CPUs and memory are on."
        ),
    )
    force: bool = field(
        default=False,
        metadata=about(values.BOOLEAN, "Whether to start beside such a manager, which sets the same files."),
    )
    kubernetes: bool | None = field(
        default=None,
        metadata=about(
            values.BOOLEAN,
            "Whether there is a Kubernetes API. Else found out: there is one in a cluster, and with a kubeconfig.",
            example="true",
        ),
    )
    kubelet: str | None = field(
        default=None,
        metadata=about(
            addresses.ADDRESS,
            "The kubelet to ask for this node's pods while the Kubernetes API does not tell them.",
            example='"https://127.0.0.1:10250"',
        ),
    )
    kubelet_token_file: Path | None = field(default=None, metadata=KUBELET_TOKEN)
    kubelet_ca_file: Path | None = field(default=None, metadata=KUBELET_CA)
    kubelet_insecure: bool = field(default=False, metadata=KUBELET_INSECURE)
    evict_inadmissible: bool = field(
        default=False,
        metadata=about(
            values.BOOLEAN, "Whether pods that run and could not be admitted are evicted (cri and cgroup only)."
        ),
    )
    publish_capacity: bool = field(
        default=False,
        metadata=about(
            values.BOOLEAN, "Whether resources of plug-ins are written to the node's status (cri and cgroup only)."
        ),
    )

    def roles(self) -> RoleTable:
        """Which pods share what. Raises ValueError for a role in two lists."""
        classes = {ONLINE: self.online_roles, OFFLINE: self.offline_roles, EXCLUSIVE: self.exclusive_roles}
        return role_table(classes, nic=self.nic_roles)

    def all_names(self) -> dict[str, str]:
        """Resources that pods request, and those of the plug-ins that they stand for."""
        return {**({} if self.headroom_resource is None else {self.headroom_resource: CPU}), **dict(self.names)}

    def resizing(self) -> ResizeSettings:
        """How load resizes the pools."""
        return ResizeSettings(
            usage_factor=self.usage_factor,
            reserve_cpus=self.reserve_cpus,
            min_online=self.min_online,
            min_offline=self.min_offline,
            step_up=self.step_up,
            step_down=self.step_down,
            min_down_period=self.min_down_period,
            respect_requests=self.respect_requests,
        )

    @property
    def plugins_dir(self) -> Path:
        """Where plug-ins have their sockets."""
        return self.registration_dir or self.state_dir / "plugins"

    @property
    def pod_resources_path(self) -> Path:
        """Where the pod-resources API is."""
        return self.pod_resources_socket or self.state_dir / "pod-resources.sock"


def read_settings(given: Mapping[str, Any], *, cwd: Path) -> tuple[QrmSettings, list[Problem]]:
    """The settings, and everything that is wrong with what was given."""
    settings, problems = read_table(QrmSettings, given, section=SECTION, cwd=cwd)
    if str(given.get("mode")).lower() == NOT_A_MODE:
        told = "there is no mode nri: a runtime's plug-in that refuses containers and sets their variables is not built"
        cure = 'for containers that run: qrm.mode = "cri" or "cgroup" (docs/qrm.md)'
        problems = [Problem("qrm.mode", told, cure), *(each for each in problems if each.key != "qrm.mode")]
    try:
        settings.roles()
    except ValueError as error:
        problems.append(Problem("qrm.exclusive_roles", str(error), "take it out of one of the lists"))
    names = [name for name, _ in settings.names]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        problems.append(Problem("qrm.names", f"{twice[0]!r} stands for two resources", "leave one of them out"))
    problems += nest_problems(settings.cgroup_nest, section=SECTION)
    if settings.headroom_resource is not None and "/" not in settings.headroom_resource:
        cure = f'for example qrm.headroom_resource = "{RECLAIMED_MILLICPU}"'
        problems.append(Problem("qrm.headroom_resource", "needs a domain before its name, or no node takes it", cure))
    if not is_loopback(settings.host) and settings.token_file is None:
        message = f"others can reach {settings.host}, and nothing keeps them from reading what is known of pods"
        problems.append(Problem("qrm.token_file", message, "set qrm.token_file, or qrm.host to 127.0.0.1"))
    for key, path in (("token_file", settings.token_file), ("watcher_token_file", settings.watcher_token_file)):
        if path is not None and not path.is_file():
            cure = "make it, with one line in it that nobody can guess"
            problems.append(Problem(f"qrm.{key}", f"there is no file {path}", cure))
    return settings, problems


def validate(given: Mapping[str, Any]) -> list[Problem]:
    """Everything that is wrong with [qrm], for `config check` and every command."""
    return read_settings(given, cwd=Path.cwd())[1]
