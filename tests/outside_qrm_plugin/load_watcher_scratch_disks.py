"""example.org/scratch: exclusive disks on the NUMA node of the CPUs.

SCRATCH_DISKS lists the disks with their NUMA nodes: "nvme0=0 nvme1=1". The environment variable SCRATCH of a container
lists its disks.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from typing import Any

from agent.qrm.manager.allocation import AllocationInfo, wire_hints
from agent.qrm.manager.request import CannotAllocate, ContainerType, ResourceRequest, whole
from agent.qrm.manager.topology import Hint
from agent.qrm.plugins.cpu_topology import CpuTopology
from agent.qrm.roles import RoleTable

RESOURCE = "example.org/scratch"


class ScratchDisks:
    """A ResourcePlugin (agent.qrm.plugins.base)."""

    name = "scratch_disks"
    resource = RESOURCE
    aligned = True
    reconciled = False
    node_resource = True

    def __init__(self, disks: Mapping[str, int]) -> None:
        self._disks = dict(sorted(disks.items()))
        self._given: dict[str, dict[str, list[str]]] = {}

    def hints(self, request: ResourceRequest) -> tuple[Hint, ...] | None:
        """The NUMA nodes with enough unassigned disks; empty if no node has enough."""
        if request.container_type == ContainerType.INIT:
            return None
        kept = self._given.get(request.pod_uid, {}).get(request.container_name, [])
        left = Counter(self._disks[disk] for disk in [*self._free(), *kept])
        return tuple(Hint(frozenset({node}), preferred=True) for node in sorted(left) if left[node] >= whole(request))

    def allocate(self, request: ResourceRequest) -> AllocationInfo | None:
        """Assign the first unassigned disks of the hint's NUMA nodes."""
        if request.container_type == ContainerType.INIT:
            return None
        containers = self._given.get(request.pod_uid, {})
        kept = containers.get(request.container_name, [])
        if len(kept) < whole(request):
            free = [disk for disk in self._free() if not request.nodes or self._disks[disk] in request.nodes]
            more = free[: whole(request) - len(kept)]
            kept = [*kept, *more]
            if len(kept) < whole(request):
                raise CannotAllocate(f"{whole(request)} scratch disks were requested; {len(kept)} are free")
            self._given[request.pod_uid] = {**containers, request.container_name: kept}
        return self._info(kept)

    def remove(self, pod_uid: str) -> None:
        self._given.pop(pod_uid, None)

    def allocations(self) -> dict[str, dict[str, AllocationInfo]]:
        """By pod and container."""
        return {pod: {name: self._info(disks) for name, disks in each.items()} for pod, each in self._given.items()}

    def by_node(self, pod_uid: str, container_name: str) -> dict[int, float]:
        """How many a container has on each NUMA node."""
        return self._counted(self._given.get(pod_uid, {}).get(container_name, []))

    def allocatable_by_node(self) -> dict[int, float]:
        """All of them."""
        return self._counted(self._disks)

    capacity_by_node = allocatable_by_node

    def document(self) -> dict[str, Any]:
        """Never the dictionaries themselves: what is kept must not change with them."""
        return {"disks": {pod: dict(each) for pod, each in self._given.items()}}

    def load(self, document: Mapping[str, Any]) -> None:
        """After a restart. Disks that have gone from the machine make it no document of this machine."""
        try:
            given = {pod: {name: list(disks) for name, disks in e.items()} for pod, e in document["disks"].items()}
        except (AttributeError, KeyError, TypeError):
            raise ValueError("not a state of scratch disks") from None
        if gone := {d for each in given.values() for disks in each.values() for d in disks} - self._disks.keys():
            raise ValueError(f"these disks have gone: {', '.join(sorted(gone))}")
        self._given = given

    def _free(self) -> list[str]:
        given = {disk for each in self._given.values() for disks in each.values() for disk in disks}
        return [disk for disk in self._disks if disk not in given]

    def _counted(self, disks: Mapping[str, int] | list[str]) -> dict[int, float]:
        return {node: float(count) for node, count in sorted(Counter(self._disks[disk] for disk in disks).items())}

    def _info(self, disks: list[str]) -> AllocationInfo:
        nodes = frozenset(self._disks[disk] for disk in disks)
        return AllocationInfo(
            is_node_resource=True,
            is_scalar_resource=True,
            allocated_quantity=float(len(disks)),
            allocation_result=",".join(disks),
            envs={"SCRATCH": ",".join(disks)},
            resource_hints=wire_hints([Hint(nodes, preferred=True)]),
        )


def plugin(machine: CpuTopology, roles: RoleTable) -> ScratchDisks:
    """load-watcher calls this function once. The plug-in ignores the roles."""
    disks = dict(pair.split("=") for pair in os.environ.get("SCRATCH_DISKS", "").split())
    numbered = {disk: int(node) for disk, node in disks.items()}
    if unknown := set(numbered.values()) - machine.nodes.keys():
        raise ValueError(f"SCRATCH_DISKS names NUMA nodes that do not exist on this machine: {sorted(unknown)}")
    return ScratchDisks(numbered)
