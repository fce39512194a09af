"""The part of [qrm] that the manager and its built-in plug-ins read: how resources are allocated to pods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from agent import cpuset
from agent.cpuset import EMPTY, CpuSet
from agent.qrm.manager.topology import TopologyPolicy
from agent.qrm.roles import DEFAULT_ROLES, EXCLUSIVE, OFFLINE, ONLINE, RoleTable, role_table
from watcher.core.config import quantities, values
from watcher.core.config.fields import SettingsTable
from watcher.core.config.values import InvalidValue, ValueKind

SCOPES = CONTAINER, POD = ("container", "pod")
SECONDS = quantities.duration(lowest=0.1, highest=3600)


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
    {"type": "string"},
    write=lambda cpus: values.write_text(cpuset.text(cpus)),
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
    {"type": "string", "pattern": r"^[^=]*[^\s=][^=]*=[^=]*[^\s=][^=]*$"},
    write=lambda pair: values.write_text("=".join(pair)),
)


ROLES = values.list_of(values.NAME, called="roles", may_be_empty=True)


def _roles_of(name: str) -> tuple[str, ...]:
    return tuple(role for role, known in DEFAULT_ROLES.classes.items() if known == name)


@dataclass(frozen=True, repr=False, kw_only=True)
class AllocationSettings(SettingsTable):
    """How containers get CPUs, memory and network cards."""

    policy: Annotated[TopologyPolicy, values.choice(TopologyPolicy)] = TopologyPolicy.BEST_EFFORT
    """Topology policy that merges the NUMA hints of the plug-ins, as in the kubelet's Topology Manager."""
    scope: Annotated[str, values.choice(SCOPES)] = CONTAINER
    """Whether NUMA hints are merged for each container or once for the whole pod."""
    reconcile_period: Annotated[float, SECONDS.flagged("--qos-resource-manager-reconcile-period")] = 3.0
    """Interval at which allocations of the plug-ins are applied to the containers."""
    names: Annotated[
        tuple[tuple[str, str], ...],
        values.list_of(PAIR, called="pairs of names", may_be_empty=True)
        .like('["best-effort-cpu=cpu"]')
        .flagged("--qos-resource-manager-resource-names-map"),
    ] = ()
    """Resource names that pods request, mapped to the resource names of the plug-ins."""
    skip_annotations: Annotated[
        tuple[str, ...],
        values.list_of(values.NAME, called="annotations", may_be_empty=True).like('["example.org/unmanaged"]'),
    ] = ()
    """Keys of annotations; pods with any of these annotations are ignored."""
    cpu_plugin: Annotated[bool, values.BOOLEAN] = True
    """Whether to serve the built-in CPU plug-in."""
    memory_plugin: Annotated[bool, values.BOOLEAN] = True
    """Whether to serve the built-in memory plug-in."""
    nic_plugin: Annotated[bool, values.BOOLEAN] = True
    """Whether to serve the built-in network card plug-in."""
    reserved_cpus: Annotated[CpuSet, CPU_LIST.like('"0-1,40-41"')] = EMPTY
    """CPUs reserved for the system; no pod gets them."""
    reserved_memory: Annotated[int, quantities.size(lowest=0)] = 500 << 20
    """Bytes of memory reserved for the system on each NUMA node."""
    online_roles: Annotated[tuple[str, ...], ROLES] = _roles_of(ONLINE)
    """Roles of pods that share the online pool. Roles that are in no list also belong to it."""
    offline_roles: Annotated[tuple[str, ...], ROLES] = _roles_of(OFFLINE)
    """Roles of pods that share the offline pool."""
    exclusive_roles: Annotated[tuple[str, ...], ROLES] = _roles_of(EXCLUSIVE)
    """Roles of pods that get exclusive CPUs and memory, on NUMA nodes without pods of other exclusive roles."""
    nic_roles: Annotated[tuple[str, ...], ROLES] = tuple(sorted(DEFAULT_ROLES.nic))
    """Roles of pods that get a network card without requesting one."""

    def roles(self) -> RoleTable:
        """The class of each role: online, offline or exclusive. Raises ValueError for a role in two lists."""
        classes = {ONLINE: self.online_roles, OFFLINE: self.offline_roles, EXCLUSIVE: self.exclusive_roles}
        return role_table(classes, nic=self.nic_roles)

    @property
    def resource_names(self) -> dict[str, str]:
        """Maps resource names that pods request to the resource names that plug-ins serve."""
        return dict(self.names)
