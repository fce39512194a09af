"""What was allocated: pod, container, resource, and the plug-in's answer.

The names are those of `resourceplugin.v1alpha1.ResourceAllocationInfo`, as in JSON (reference/qrm.md §2.2, §3.11).

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from agent.qrm.manager.topology import Hint

CPUSET_CPUS = "CpusetCpus"
CPUSET_MEMS = "CpusetMems"


class WireHint(msgspec.Struct, frozen=True, omit_defaults=True):
    """A TopologyHint."""

    nodes: tuple[int, ...] = ()
    preferred: bool = False


class WireHints(msgspec.Struct, frozen=True, omit_defaults=True):
    """A ListOfTopologyHints."""

    hints: tuple[WireHint | None, ...] = ()


class AllocationInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a container has of one resource.

    `allocation_result` is the value of the runtime's property `oci_property_name` (none where that is empty).
    `allocated_quantity` means something where `is_scalar_resource`, and then it is compared with what is asked for when
    the container is admitted again; with `is_node_resource` too it is told in the node's status. `resource_hints` are
    the NUMA nodes that fit the result, kept for that same moment.
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

    @property
    def hints(self) -> tuple[Hint, ...]:
        """The hints that fit the result; upstream may have put a null among them."""
        wire = self.resource_hints.hints if self.resource_hints else ()
        return tuple(Hint(frozenset(hint.nodes), hint.preferred) for hint in wire if hint is not None)


def wire_hints(hints: Iterable[Hint]) -> WireHints:
    """Hints as messages have them, in their order."""
    return WireHints(tuple(WireHint(tuple(sorted(hint.nodes or ())), hint.preferred) for hint in hints))


class Allocations:
    """Pod, container, resource: the three-level map of the seed, read and written by one owner.

    An empty level is not kept: a pod without containers is not there.
    """

    def __init__(self) -> None:
        self._pods: dict[str, dict[str, dict[str, AllocationInfo]]] = {}

    def __iter__(self) -> Iterator[tuple[str, str, str, AllocationInfo]]:
        """Pod UID, container, resource and info, sorted."""
        for pod, containers in sorted(self._pods.items()):
            for container, resources in sorted(containers.items()):
                for resource, info in sorted(resources.items(), key=lambda item: item[0]):
                    yield pod, container, resource, info

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Allocations) and self._pods == other._pods

    __hash__ = None  # type: ignore[assignment]  # it changes

    @property
    def pods(self) -> frozenset[str]:
        """UIDs."""
        return frozenset(self._pods)

    @property
    def resources(self) -> frozenset[str]:
        """Every resource that some container has."""
        return frozenset(resource for _, _, resource, _ in self)

    def get(self, pod: str, container: str, resource: str) -> AllocationInfo | None:
        return self._pods.get(pod, {}).get(container, {}).get(resource)

    def of(self, pod: str, container: str) -> Mapping[str, AllocationInfo]:
        """By resource, sorted; empty where nothing is known."""
        return dict(sorted(self._pods.get(pod, {}).get(container, {}).items()))

    def set(self, pod: str, container: str, resource: str, info: AllocationInfo) -> None:
        self._pods.setdefault(pod, {}).setdefault(container, {})[resource] = info

    def remove(self, pod: str, container: str | None = None, resource: str | None = None) -> None:
        """A pod, a container of it, or one resource of that; nothing happens where it is not there."""
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
        """The sum of what is told in the node's status, by resource."""
        sums: dict[str, float] = {}
        for _, _, resource, info in self:
            if info.is_node_resource and info.is_scalar_resource:
                sums[resource] = sums.get(resource, 0.0) + info.allocated_quantity
        return sums


def to_json(info: AllocationInfo) -> str:
    """One info as text, zero values left out."""
    return msgspec.json.encode(info).decode()


def from_json(text: str) -> AllocationInfo:
    """One info from a text, the seed's misspelt `allocatation_result` included. Raises ValueError."""
    try:
        plain: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
        if "allocatation_result" in plain:
            plain.setdefault("allocation_result", plain.pop("allocatation_result"))
        return msgspec.convert(plain, AllocationInfo, str_keys=True, strict=True)
    except msgspec.MsgspecError as error:
        raise ValueError(f"no allocation: {error}") from None
