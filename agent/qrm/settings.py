"""The settings of the QoS Resource Manager: the table [qrm] of load-watcher.toml, with types, defaults and
descriptions."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent import cpuset
from agent.cpuset import EMPTY, CpuSet
from agent.qrm.manager.request import CPU, RECLAIMED_MILLICPU
from agent.qrm.manager.topology import TopologyPolicy
from agent.qrm.plugins.nic import Nic, NicAddress
from agent.qrm.plugins.resize import ResizeSettings
from agent.qrm.roles import DEFAULT_ROLES, EXCLUSIVE, OFFLINE, ONLINE, RoleTable, role_table
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
from watcher.platform.settings.field_metadata import described, setting
from watcher.platform.settings.problems import Problem
from watcher.platform.settings.section_reader import read_table
from watcher.platform.settings.values import InvalidValue, ValueKind

SECTION = "qrm"
DRY_RUN, CRI, NRI, SERVER = MODES = ("dry-run", "cri", "nri", "server")
APPLYING = (CRI, NRI)
"""Modes in which the manager sets properties of containers."""
REMOVED_MODE = "cgroup"
"""Wrote cgroup files. The files of a node can still name it."""
OPEN, REFUSE = ON_FAILURE = ("open", "refuse")
SCOPES = ("container", "pod")
BY_ROLE, AS_KATALYST = CPU_POLICIES = ("roles", "katalyst")
CPUS = values.integer(lowest=0, highest=8192)
SECONDS = quantities.duration(lowest=0.1, highest=3600)
DEFAULTS = ResizeSettings()


# --- types of values that only this package uses ---------------------------------------------------------------------


def _read_number(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value <= 1000:  # also without NaN
        raise InvalidValue
    return float(value)


def _read_number_text(text: str) -> float:
    try:
        return _read_number(float(text))
    except ValueError:
        raise InvalidValue from None


NUMBER = ValueKind(
    "a number from 0 to 1000",
    _read_number,
    _read_number_text,
    repr,
    schema={"type": "number", "minimum": 0, "maximum": 1000},
)


def _read_cpus(value: Any) -> CpuSet:
    if not isinstance(value, str):
        raise InvalidValue
    try:
        return cpuset.parse(value)
    except ValueError as error:
        raise InvalidValue(str(error)) from None


CPU_LIST = ValueKind(
    'CPUs in the list format of the kernel, like "0-1,40-41"',
    _read_cpus,
    _read_cpus,
    lambda cpus: values.write_text(cpuset.text(cpus)),
    schema={"type": "string"},
)


def _read_pair(value: Any) -> tuple[str, str]:
    name, equals, other = value.partition("=") if isinstance(value, str) else ("", "", "")
    if not equals or not name.strip() or not other.strip():
        raise InvalidValue
    if "=" in other:
        raise InvalidValue(f"{value!r} contains more than one =")
    return name.strip(), other.strip()


PAIR = ValueKind(
    'two names, like "best-effort-cpu=cpu"',
    _read_pair,
    _read_pair,
    lambda pair: values.write_text("=".join(pair)),
    schema={"type": "string", "pattern": r"^[^=]*[^\s=][^=]*=[^=]*[^\s=][^=]*$"},
)


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
    _read_nic,
    _write_nic,
    schema=values.TEXT.schema,
)


def _matching(pattern: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise InvalidValue
        return value

    return read


def _text(called: str, pattern: str) -> ValueKind:
    read = _matching(pattern)
    return ValueKind(called, read, read, values.write_text, schema={"type": "string", "pattern": f"^{pattern}$"})


NRI_NAME = _text("a name of letters, digits and . _ + -", r"[A-Za-z0-9._+-]{1,63}")
NRI_INDEX = _text('two digits, like "50"', r"[0-9]{2}")
ROLES = values.list_of(values.NAME, called="roles", may_be_empty=True)


def _roles_of(name: str) -> tuple[str, ...]:
    return tuple(role for role, known in DEFAULT_ROLES.classes.items() if known == name)


# --- the table -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False, kw_only=True)
class QrmSettings(NodeTable):
    """The table [qrm] of load-watcher.toml."""

    mode: str = setting(
        DRY_RUN,
        values.choice(MODES),
        "How allocations are applied: dry-run only decides, nri sets them before containers start (NRI of containerd "
        "or CRI-O), cri calls the container runtime after the start; server only serves the plug-ins, for an external "
        "manager such as Katalyst's kubelet.",
    )
    node: str | None = described(None, NODE)
    host: str = setting("127.0.0.1", values.NAME, "Address on which the HTTP API of the QoS Resource Manager listens.")
    port: int = described(2022, PORT)
    token_file: Path | None = setting(
        None,
        values.PATH,
        "File with the bearer token for /qrm; required unless qrm.host is a loopback address.",
        example='"/etc/load-watcher/token"',
    )
    metrics_host: str | None = described(None, METRICS_HOST)
    metrics_port: int = described(2024, METRICS_PORT)
    state_dir: Path = setting(
        Path("load-watcher-qrm"),
        values.PATH,
        "Directory for the checkpoint and the state of the plug-ins. Must persist across restarts of the process.",
    )
    registration_dir: Path | None = setting(
        None,
        values.PATH,
        'Directory in which plug-ins create their sockets; default: "plugins" in qrm.state_dir. Do not use the '
        "plug-in directory of an unmodified kubelet.",
        example='"/var/lib/katalyst/plugin-socks"',
    )
    pod_resources_socket: Path | None = setting(
        None,
        values.PATH,
        'Unix socket of the pod-resources API; default: "pod-resources.sock" in qrm.state_dir.',
        example='"/var/lib/katalyst/pod-resources/kubelet.sock"',
    )
    policy: str = setting(
        TopologyPolicy.BEST_EFFORT.value,
        values.choice(each.value for each in TopologyPolicy),
        "Topology policy that merges the NUMA hints of the plug-ins, as in the kubelet's Topology Manager.",
    )
    scope: str = setting(
        "container",
        values.choice(SCOPES),
        "Whether NUMA hints are merged for each container or once for the whole pod.",
    )
    reconcile_period: float = setting(
        3.0,
        SECONDS,
        "Interval at which allocations of the plug-ins are applied to the containers.",
        flag="--qos-resource-manager-reconcile-period",
    )
    names: tuple[tuple[str, str], ...] = setting(
        (),
        values.list_of(PAIR, called="pairs of names", may_be_empty=True),
        "Resource names that pods request, mapped to the resource names of the plug-ins.",
        example='["best-effort-cpu=cpu"]',
        flag="--qos-resource-manager-resource-names-map",
    )
    skip_annotations: tuple[str, ...] = setting(
        (),
        values.list_of(values.NAME, called="annotations", may_be_empty=True),
        "Keys of annotations; pods with any of these annotations are ignored.",
        example='["example.org/unmanaged"]',
    )
    cpu_plugin: bool = setting(True, values.BOOLEAN, "Whether to serve the built-in CPU plug-in.")
    cpu_policy: str = setting(
        BY_ROLE,
        values.choice(CPU_POLICIES),
        "How CPUs are assigned: by pod role, or by Katalyst's QoS levels and enhancements. With katalyst, the size "
        "of a pool follows the requests of its pods, load does not resize it, and the memory of pods that are "
        "bound to NUMA nodes is on these nodes.",
    )
    system_namespaces: tuple[str, ...] = setting(
        ("kube-system",),
        values.list_of(values.NAME, called="namespaces", may_be_empty=True),
        "With qrm.cpu_policy katalyst: the namespaces whose pods may have the level system_cores, which gives them "
        "CPUs of other pods and reserved CPUs.",
        example='["kube-system", "monitoring"]',
    )
    reclaim: bool = setting(
        False,
        values.BOOLEAN,
        "With qrm.cpu_policy katalyst: whether reclaimed_cores pods get the CPUs that shared pools do not need, or "
        "only a reserve of 4 CPUs (at least one per NUMA node).",
    )
    memory_plugin: bool = setting(True, values.BOOLEAN, "Whether to serve the built-in memory plug-in.")
    nic_plugin: bool = setting(True, values.BOOLEAN, "Whether to serve the built-in network card plug-in.")
    reserved_cpus: CpuSet = setting(
        EMPTY, CPU_LIST, "CPUs reserved for the system; no pod gets them.", example='"0-1,40-41"'
    )
    reserved_memory: int = setting(
        500 << 20, quantities.size(lowest=0), "Bytes of memory reserved for the system on each NUMA node."
    )
    online_roles: tuple[str, ...] = setting(
        _roles_of(ONLINE),
        ROLES,
        "Roles of pods that share the online pool. Roles that are in no list also belong to it.",
    )
    offline_roles: tuple[str, ...] = setting(_roles_of(OFFLINE), ROLES, "Roles of pods that share the offline pool.")
    exclusive_roles: tuple[str, ...] = setting(
        _roles_of(EXCLUSIVE),
        ROLES,
        "Roles of pods that get exclusive CPUs and memory, on NUMA nodes without pods of other exclusive roles.",
    )
    nic_roles: tuple[str, ...] = setting(
        tuple(sorted(DEFAULT_ROLES.nic)), ROLES, "Roles of pods that get a network card without requesting one."
    )
    nics: tuple[Nic, ...] = setting(
        (),
        values.list_of(NIC, called="network cards", may_be_empty=True),
        "Network cards and their addresses; default: the cards found on the machine, without addresses.",
        example='["eth1 numa=1 ipv6=fdbd:dc05:3:155::20 netns=/var/run/netns/ns1"]',
    )
    watcher: str | None = setting(
        None,
        addresses.ADDRESS,
        "URL of the load-watcher that provides this node's load; without it the online pool only grows.",
        example='"http://load-watcher.kube-system:2020"',
    )
    watcher_token_file: Path | None = setting(
        None, values.PATH, "File with the bearer token for qrm.watcher.", example='"/etc/load-watcher/token"'
    )
    adjust: bool = setting(True, values.BOOLEAN, "Whether load resizes the CPU pools.")
    adjust_interval: float = setting(5.0, SECONDS, "Interval at which the sizes of the CPU pools are adjusted.")
    usage_factor: float = setting(
        DEFAULTS.usage_factor, NUMBER, "Factor for the CPU usage of the online pool when its target size is computed."
    )
    reserve_cpus: float = setting(
        DEFAULTS.reserve_cpus,
        NUMBER,
        "CPUs added to the multiplied usage (qrm.usage_factor) in the target size of the online pool.",
    )
    min_online: int = setting(DEFAULTS.min_online, CPUS, "Minimum size of the online pool in CPUs.")
    min_offline: int = setting(
        DEFAULTS.min_offline,
        CPUS,
        "Minimum size of the offline pool in CPUs, at least one per NUMA node; 0: exclusive CPUs and online requests "
        "can take all of its CPUs, and it then shares the CPUs of the online pool.",
    )
    step_up: int = setting(
        DEFAULTS.step_up,
        values.integer(lowest=1, highest=8192),
        "Maximum number of CPUs by which the online pool grows in one adjustment.",
    )
    step_down: int = setting(
        DEFAULTS.step_down,
        CPUS,
        "Maximum number of CPUs by which the online pool shrinks in one adjustment; 0 means no maximum.",
    )
    min_down_period: float = setting(
        DEFAULTS.min_down_period, quantities.duration(), "Minimum time between two reductions of the online pool."
    )
    respect_requests: bool = setting(
        DEFAULTS.respect_requests,
        values.BOOLEAN,
        "Whether the online pool always has at least the CPUs that its pods request.",
    )
    headroom_resource: str | None = setting(
        None,
        values.NAME,
        "Extended resource that offline pods request instead of cpu. It offers the CPUs of the offline pool, and "
        "up to 20 percent more while the pool is partly idle. Published if qrm.publish_capacity is on.",
        example='"resource.katalyst.kubewharf.io/reclaimed_millicpu"',
    )
    runtime_socket: Path = setting(
        Path("/run/containerd/containerd.sock"), values.PATH, "Unix socket of the container runtime, for qrm.mode cri."
    )
    nri_socket: Path = setting(
        Path("/var/run/nri/nri.sock"),
        values.PATH,
        "Unix socket of the container runtime's NRI (Node Resource Interface), for qrm.mode nri.",
    )
    runtime_config: Path | None = setting(
        None,
        values.PATH,
        "Settings file of the container runtime, which doctor reads for qrm.mode nri, with the files that it includes. "
        "Default: /etc/containerd/config.toml or /etc/crio/crio.conf.",
        example='"/var/lib/rancher/k3s/agent/etc/containerd/config.toml"',
    )
    nri_name: str = setting(
        "load-watcher",
        NRI_NAME,
        "Name of the NRI plug-in, as in required-plugins.noderesource.dev.",
    )
    nri_index: str = setting(
        "50", NRI_INDEX, "Two digits; container runtimes call NRI plug-ins in the order of their index."
    )
    on_failure: str = setting(
        OPEN,
        values.choice(ON_FAILURE),
        "What qrm.mode nri does if the allocation of a container cannot be decided in time: open lets it start, and "
        "the next round applies the allocation; refuse prevents it. While the plug-in does not run, only NRI's "
        "required-plugins validator prevents containers.",
    )
    cgroup: Path = setting(Path("/sys/fs/cgroup"), values.PATH, "Mount point of the host's cgroup file system.")
    cgroup_driver: str | None = described(None, CGROUP_DRIVER)
    cgroup_nest: str | None = described(None, CGROUP_NEST)
    sys: Path = setting(Path("/sys"), values.PATH, "Mount point of the host's sysfs, for the CPU topology.")
    kubelet_dir: Path = setting(
        Path("/var/lib/kubelet"),
        values.PATH,
        "Directory of the kubelet, to check that its own CPU and memory managers are off.",
    )
    force: bool = setting(
        False,
        values.BOOLEAN,
        "Whether to start even if the kubelet's CPU or memory manager is on, which sets the same cgroup files.",
    )
    kubernetes: bool | None = setting(
        None,
        values.BOOLEAN,
        "Whether to use the Kubernetes API; default: yes in a cluster or with a kubeconfig.",
        example="true",
    )
    kubelet: str | None = setting(
        None,
        addresses.ADDRESS,
        "URL of the kubelet, the source of this node's pods while the Kubernetes API is unavailable.",
        example='"https://127.0.0.1:10250"',
    )
    kubelet_token_file: Path | None = described(None, KUBELET_TOKEN)
    kubelet_ca_file: Path | None = described(None, KUBELET_CA)
    kubelet_insecure: bool = described(False, KUBELET_INSECURE)
    evict_inadmissible: bool = setting(
        False,
        values.BOOLEAN,
        "Whether pods that cannot be admitted are evicted (qrm.mode nri and cri only).",
    )
    publish_capacity: bool = setting(
        False,
        values.BOOLEAN,
        "Whether the resources of plug-ins are published in the node's status (qrm.mode nri and cri only).",
    )

    def roles(self) -> RoleTable:
        """The class of each role: online, offline or exclusive. Raises ValueError for a role in two lists."""
        classes = {ONLINE: self.online_roles, OFFLINE: self.offline_roles, EXCLUSIVE: self.exclusive_roles}
        return role_table(classes, nic=self.nic_roles)

    def all_names(self) -> dict[str, str]:
        """Maps resource names that pods request to the resource names that plug-ins serve."""
        return {**({} if self.headroom_resource is None else {self.headroom_resource: CPU}), **dict(self.names)}

    def resizing(self) -> ResizeSettings:
        """The settings that control how load resizes the pools."""
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
    given, removed = _without_removed(given)
    settings, problems = read_table(QrmSettings, given, section=SECTION, cwd=cwd)
    problems += removed
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


def _without_removed(given: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """The table without values that this version has removed, and a problem for each of them."""
    kept, problems = dict(given), []
    if str(given.get("mode")).strip().lower() == REMOVED_MODE:
        del kept["mode"]
        cure = (
            f'set qrm.mode = "{NRI}" or "{CRI}", which set the allocations of running containers again; to switch the '
            "manager off instead, run load-watcher qrm restore of the earlier version, or restart the pods"
        )
        problems.append(Problem("qrm.mode", 'the mode "cgroup" was removed in load-watcher 0.1.0', cure))
    return kept, problems


def validate(given: Mapping[str, Any]) -> list[Problem]:
    """All problems in [qrm], for `config check` and every other command."""
    return read_settings(given, cwd=Path.cwd())[1]
