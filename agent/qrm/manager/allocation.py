"""Allocations: the plug-ins' results by pod, container and resource, and the OCI
properties that they set.

The field names are those of `resourceplugin.v1alpha1.ResourceAllocationInfo` in JSON.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from agent import cpuset
from agent.qrm.manager.topology import Hint
from watcher.decoding.json_text import decode_json

CPUSET_CPUS = "CpusetCpus"
CPUSET_MEMS = "CpusetMems"


class WireHint(msgspec.Struct, frozen=True, omit_defaults=True):
    """The protobuf message TopologyHint in JSON."""

    nodes: tuple[int, ...] = ()
    preferred: bool = False


class WireHints(msgspec.Struct, frozen=True, omit_defaults=True):
    """The protobuf message ListOfTopologyHints in JSON."""

    hints: tuple[WireHint | None, ...] = ()


class BindMount(msgspec.Struct, frozen=True, omit_defaults=True):
    """A path of the host that a container gets: the protobuf message Mount in JSON."""

    container_path: str = ""
    host_path: str = ""
    read_only: bool = False


class DeviceNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """A device of the host that a container gets: the protobuf message DeviceSpec in JSON. `permissions` are any of r,
    w and m."""

    container_path: str = ""
    host_path: str = ""
    permissions: str = ""


class AllocationInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """The allocation of one resource to a container.

    `allocation_result` is the value of the container property `oci_property_name`; an empty name means that no property
    is set. `allocated_quantity` is valid only with `is_scalar_resource`; it is compared with the request when the
    container is admitted again. With `is_node_resource`, it also counts in the node's status. `resource_hints` are the
    NUMA nodes of the result, for the next admission of the container.
    """

    oci_property_name: str = ""
    is_node_resource: bool = False
    is_scalar_resource: bool = False
    allocated_quantity: float = 0.0
    allocation_result: str = ""
    envs: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    resource_hints: WireHints | None = None
    topology_assignments: Mapping[int, int] = {}
    mounts: tuple[BindMount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()

    @property
    def hints(self) -> tuple[Hint, ...]:
        """The hints of the result, without the null elements that Katalyst may write."""
        wire = self.resource_hints.hints if self.resource_hints else ()
        return tuple(Hint(frozenset(hint.nodes), hint.preferred) for hint in wire if hint is not None)


def wire_hints(hints: Iterable[Hint]) -> WireHints:
    """The hints in the format of the messages, in the same order."""
    return WireHints(tuple(WireHint(tuple(sorted(hint.nodes or ())), hint.preferred) for hint in hints))


class Allocations:
    """A map of pod UID, container name and resource to the allocation, used by a single owner.

    Empty levels are removed: a pod without allocations is not in the map.
    """

    def __init__(self) -> None:
        self._pods: dict[str, dict[str, dict[str, AllocationInfo]]] = {}

    def __iter__(self) -> Iterator[tuple[str, str, str, AllocationInfo]]:
        """Pod UID, container, resource and allocation, sorted."""
        for pod, containers in sorted(self._pods.items()):
            for container, resources in sorted(containers.items()):
                for resource, info in sorted(resources.items(), key=lambda item: item[0]):
                    yield pod, container, resource, info

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Allocations) and self._pods == other._pods

    __hash__ = None  # type: ignore[assignment]  # mutable

    @property
    def pods(self) -> frozenset[str]:
        """The UIDs of the pods that have an allocation."""
        return frozenset(self._pods)

    @property
    def resources(self) -> frozenset[str]:
        """All resources that at least one container has."""
        return frozenset(resource for _, _, resource, _ in self)

    def get(self, pod: str, container: str, resource: str) -> AllocationInfo | None:
        return self._pods.get(pod, {}).get(container, {}).get(resource)

    def of(self, pod: str, container: str) -> Mapping[str, AllocationInfo]:
        """The allocations of a container by resource, sorted; empty if there are none."""
        return dict(sorted(self._pods.get(pod, {}).get(container, {}).items()))

    def set(self, pod: str, container: str, resource: str, info: AllocationInfo) -> None:
        self._pods.setdefault(pod, {}).setdefault(container, {})[resource] = info

    def remove(self, pod: str, container: str | None = None, resource: str | None = None) -> None:
        """Remove a pod, one of its containers, or one resource of a container. Missing entries are ignored."""
        containers = self._pods.get(pod, {})
        if container is None:
            self._pods.pop(pod, None)
            return
        resources = containers.get(container, {})
        if resource is not None:
            resources.pop(resource, None)
        if resource is None or not resources:
            containers.pop(container, None)
        if not containers:
            self._pods.pop(pod, None)

    def scalars(self) -> Mapping[str, float]:
        """The sum of the allocated quantities by resource, for resources that are published in the node's status."""
        sums: dict[str, float] = {}
        for _, _, resource, info in self:
            if info.is_node_resource and info.is_scalar_resource:
                sums[resource] = sums.get(resource, 0.0) + info.allocated_quantity
        return sums


def to_json(info: AllocationInfo) -> str:
    """One allocation as JSON text, without default values."""
    return msgspec.json.encode(info).decode()


def from_json(text: str) -> AllocationInfo:
    """Parse one allocation. Also accepts the misspelt key `allocatation_result`. Raises ValueError."""
    try:
        plain: dict[str, Any] = decode_json(text, type=dict[str, Any])
        if "allocatation_result" in plain:
            plain.setdefault("allocation_result", plain.pop("allocatation_result"))
        return msgspec.convert(plain, AllocationInfo, str_keys=True, strict=True)
    except msgspec.MsgspecError as error:
        raise ValueError(f"not an allocation: {error}") from None


Value = int | str
Properties = Mapping[str, Value]
"""Values by Go field name, sorted by name."""
FIELDS = {
    "CpuPeriod": "cpu_period",
    "CpuQuota": "cpu_quota",
    "CpuShares": "cpu_shares",
    "MemoryLimitInBytes": "memory_limit_in_bytes",
    "OomScoreAdj": "oom_score_adj",
    CPUSET_CPUS: "cpuset_cpus",
    CPUSET_MEMS: "cpuset_mems",
    "MemorySwapLimitInBytes": "memory_swap_limit_in_bytes",
}
"""Go field names, and the field names of the protobuf message."""
CPUSETS = frozenset({CPUSET_CPUS, CPUSET_MEMS})
UNIFIED = "Unified."
_KEY = re.compile(r"[a-z]+(\.[a-z0-9_]+)+")
_WHOLE = re.compile(r"-?[0-9]{1,19}")
_LARGEST = (1 << 63) - 1
_RANGES = {"CpuPeriod": (0, _LARGEST), "CpuShares": (0, _LARGEST), "OomScoreAdj": (-1000, 1000)}
"""The least and the largest value of a property, if not all numbers of 64 bits are valid: the first two are unsigned in
NRI, the kernel limits the third."""
MAX_TEXT = 4096
"""Characters of the content of a cgroup file: the kernel accepts one page."""


class BadProperty(ValueError):
    """An allocation of a plug-in cannot be set on a container."""


def properties_of(infos: Mapping[str, AllocationInfo]) -> Properties:
    """The properties that a container's allocations set, in the order of the resources. Allocations without a property
    are ignored.

    Raises BadProperty for an unknown property, an invalid value, and two resources with different values for one
    property.
    """
    found: dict[str, Value] = {}
    claimed: dict[str, str] = {}
    for resource, info in sorted(infos.items()):
        name = info.oci_property_name
        if not name:
            continue
        value = _value(resource, name, info.allocation_result)
        if name in found and found[name] != value:
            raise BadProperty(
                f"{claimed[name]} sets {name} to {found[name]}, but {resource} sets it to {value}: only one "
                "plug-in may set it"
            )
        found[name] = value
        claimed.setdefault(name, resource)
    return dict(sorted(found.items()))


def checked_properties(infos: Mapping[str, AllocationInfo], *, cpus: cpuset.CpuSet | None) -> Properties:
    """The properties that the allocations set, after a check of CPUs and quantities. Raises BadProperty."""
    for resource, info in infos.items():
        if not 0 <= info.allocated_quantity < math.inf:
            raise BadProperty(f"{resource} has the invalid quantity {info.allocated_quantity}")
    found = properties_of(infos)
    if cpus is not None and (strange := cpuset.parse(str(found.get(CPUSET_CPUS, ""))) - cpus):
        raise BadProperty(f"{CPUSET_CPUS} {cpuset.text(strange)} does not exist on this machine or is offline")
    return found


def _value(resource: str, name: str, text: str) -> Value:
    """The value in the type that the container runtime expects."""
    if name in CPUSETS:
        try:
            cpus = cpuset.parse(text)
        except ValueError as error:
            raise BadProperty(f"{resource} sets {name} to an invalid set: {error}") from None
        if not cpus:
            raise BadProperty(f"{resource} sets {name} to the empty set")
        return cpuset.text(cpus)
    if name.startswith(UNIFIED):
        if not _KEY.fullmatch(name.removeprefix(UNIFIED)):
            raise BadProperty(f"{resource} sets {name[:64]!r}, which is not a cgroup file")
        if len(text) > MAX_TEXT:
            raise BadProperty(f"{resource} sets {name} to {len(text)} characters; {MAX_TEXT} are allowed")
        return text
    if name not in FIELDS:
        raise BadProperty(
            f"{resource} sets {name[:64]!r}, which is not a container property; use one of {', '.join(FIELDS)}"
        )
    if not _WHOLE.fullmatch(text) or abs(int(text)) > _LARGEST:
        raise BadProperty(f"{resource} sets {name} to {text[:40]!r}, which is not a whole number")
    value = int(text)
    least, largest = _RANGES.get(name, (value, value))
    if not least <= value <= largest:
        raise BadProperty(f"{resource} sets {name} to {value}, which is not within {least} to {largest}")
    return value
