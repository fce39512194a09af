"""The memory plug-in: assigns NUMA nodes to containers, and exclusive memory on these nodes to pods of exclusive roles.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from agent import cpuset
from agent.qrm.manager.allocation import CPUSET_MEMS, AllocationInfo, WireHints, wire_hints
from agent.qrm.manager.request import (
    MEMORY,
    CannotAllocate,
    ContainerType,
    ResourceRequest,
    nodes_for_memory,
    whole,
    whole_exclusive,
)
from agent.qrm.manager.topology import Hint
from agent.qrm.plugins.calculator import hints_that_hold, nodes_open_to
from agent.qrm.plugins.cpu_topology import CpuTopology
from agent.qrm.plugins.records import Adopted, BuiltinPlugin, ContainerRecord, StoredRecords, by_container
from agent.qrm.roles import RoleTable

NO_HINTS = "no available memory hints"
NOT_MET = "results can't meet memory request"


class MemoryRecord(ContainerRecord, frozen=True, omit_defaults=True):
    """The memory of one container: exclusive bytes by NUMA node, empty without exclusive memory."""

    numa: dict[int, int] = msgspec.field(default_factory=dict)


class MemoryDocument(msgspec.Struct, frozen=True):
    """The stored state; `machineState` is for readers and is ignored when the state is loaded."""

    machineState: dict[str, dict[str, dict[str, int]]]  # noqa: N815 - name of the file format
    pods: StoredRecords[MemoryRecord]
    policyName: str = "role-numa"  # noqa: N815 - name of the file format


class MemoryPlugin(BuiltinPlugin[MemoryRecord]):
    """Assigns the memory of a machine by NUMA node. `reserved` are bytes for the system by NUMA node."""

    name = "qrm_memory_plugin"
    resource = MEMORY

    def __init__(self, machine: CpuTopology, roles: RoleTable, *, reserved: Mapping[int, int] | None = None) -> None:
        self.machine = machine
        self.roles = roles
        kept = reserved or {}
        self.allocatable = {node: max(0, size - kept.get(node, 0)) for node, size in machine.memory.items()}
        if not self.allocatable:
            raise ValueError("the memory of all NUMA nodes is unknown")
        super().__init__(capacity=_floats(machine.memory), allocatable=_floats(self.allocatable))

    # --- calls of the manager ------------------------------------------------------------------------------------

    def hints(self, request: ResourceRequest) -> tuple[Hint, ...] | None:
        """NUMA nodes for a pod with exclusive memory, empty if none fit; None for other pods."""
        if request.container_type == ContainerType.INIT or not self._is_exclusive(request):
            return None
        needed, free = whole_exclusive(request), self._open_nodes(request)
        kept = self._same_kind(request)
        if kept is not None and (kept.request >= needed or _holds(kept.numa, needed, free)):
            return (Hint(frozenset(kept.numa), preferred=True),)
        try:
            fewest, _ = nodes_for_memory(needed, each=max(self.allocatable.values()), nodes=len(self.allocatable))
        except CannotAllocate:
            return ()
        return hints_that_hold(needed, free, fewest=fewest)

    def adopt(self, allocations: Iterable[tuple[str, str, AllocationInfo]]) -> Adopted:
        """Keep exclusive memory, as the CPU plug-in does."""
        adopted = []
        for pod, container, info in allocations:
            taken, numa = self._taken(self._records.values()), dict(info.topology_assignments)
            free = {node: size - taken[node] for node, size in self.allocatable.items()}
            fits = all(size <= free.get(node, 0) for node, size in numa.items())
            valid = info.hints and numa and math.isfinite(info.allocated_quantity)
            if valid and fits and (pod, container) not in self._records:
                size = int(info.allocated_quantity)
                self._records[pod, container] = MemoryRecord(pod, container, "", size, numa=numa)
                adopted.append((pod, container))
        return Adopted(adopted)

    # --- queries -------------------------------------------------------------------------------------------------

    def machine_state(self) -> dict[str, dict[str, int]]:
        """Bytes by NUMA node, as in the state file. If pods have more memory than is allocatable, because the
        reservation was increased, their memory counts as allocatable."""
        taken = self._taken(self._records.values())
        state = {}
        for node, total in self.machine.memory.items():
            allocatable = max(self.allocatable[node], taken[node])
            state[str(node)] = {
                "total": total,
                "systemReserved": total - self.allocatable[node],
                "allocatable": allocatable,
                "Allocated": taken[node],
                "free": allocatable - taken[node],
            }
        return state

    # --- storage -------------------------------------------------------------------------------------------------

    def _document(self, pods: StoredRecords[MemoryRecord]) -> MemoryDocument:
        return MemoryDocument({MEMORY: self.machine_state()}, pods)

    def load(self, document: Mapping[str, Any]) -> None:
        """Restore a state from `document`. Raises ValueError if it is invalid or names NUMA nodes that do not exist;
        the current state then remains unchanged. Different totals are accepted, because memory can be added or
        removed."""
        records = by_container(self._read(document, MemoryDocument, "memory").pods)
        strange = sorted({node for record in records.values() for node in record.numa} - self.allocatable.keys())
        if strange:
            raise ValueError(f"memory is allocated on NUMA node {strange[0]}, which this machine does not have")
        if any(size < 0 for record in records.values() for size in record.numa.values()):
            raise ValueError("a container has a negative amount of memory")
        self._records = records

    # --- internals -----------------------------------------------------------------------------------------------

    def _is_exclusive(self, request: ResourceRequest) -> bool:
        return self.roles.is_exclusive(request.pod_role)

    def _same_kind(self, request: ResourceRequest) -> MemoryRecord | None:
        """The existing record of the container, if it is exclusive or not as the request."""
        record = self._record_of(request)
        return record if record is not None and bool(record.numa) == self._is_exclusive(request) else None

    def _taken(self, records: Iterable[MemoryRecord]) -> dict[int, int]:
        taken = dict.fromkeys(self.allocatable, 0)
        for record in records:
            for node, size in record.numa.items():
                taken[node] += size
        return taken

    def _open_nodes(self, request: ResourceRequest) -> dict[int, int]:
        """The nodes on which the container may have exclusive memory, and the free bytes on each."""
        others = self._without(request)
        taken = self._taken(others)
        roles = {node: frozenset(r.pod_role for r in others if r.numa.get(node)) for node in self.allocatable}
        return {node: max(0, self.allocatable[node] - taken[node]) for node in nodes_open_to(request.pod_role, roles)}

    def _satisfying(self, request: ResourceRequest) -> MemoryRecord | None:
        kept = self._same_kind(request)
        return kept if kept is not None and kept.request == whole(request) else None

    def _new_record(self, request: ResourceRequest) -> MemoryRecord:
        numa = dict[int, int]()
        if self._is_exclusive(request):
            numa = self._take(request)
        else:
            self._check_room(request)
        return MemoryRecord.of(request, request=whole(request), numa=numa)

    def _check_room(self, request: ResourceRequest) -> None:
        """Raises CannotAllocate if the nodes of containers without exclusive memory have less than the request."""
        taken = self._taken(self._without(request))
        room = sum(max(0, self.allocatable[node] - taken[node]) for node in _shared(taken))
        if whole(request) > room:
            raise CannotAllocate(f"{NOT_MET}: requested {whole(request)} bytes, but shared NUMA nodes have {room}")

    def _take(self, request: ResourceRequest) -> dict[int, int]:
        """Select bytes by node: the nodes of the hint, or of the best hint, are filled in order. A container that has
        memory stays on its nodes if these have room. Raises CannotAllocate."""
        needed, free = whole_exclusive(request), self._open_nodes(request)
        nodes, left, taken = self._nodes_for(request, needed, free), needed, dict[int, int]()
        for node in sorted(nodes):
            taken[node] = min(left, free[node])
            left -= taken[node]
        if left > 0:
            raise CannotAllocate(f"{NOT_MET}: {left} bytes more than NUMA nodes {cpuset.text(nodes)} have free")
        return taken

    def _nodes_for(self, request: ResourceRequest, needed: int, free: Mapping[int, int]) -> frozenset[int]:
        """The NUMA nodes of the hint or, without a preferred hint that has enough memory, those of the best hint.
        Raises CannotAllocate."""
        kept = self._record_of(request)
        if kept is not None and kept.numa and _holds(kept.numa, needed, free):
            return frozenset(kept.numa)
        nodes = request.nodes
        if not request.must_follow_hint and not (nodes and _holds(nodes, needed, free)):
            offered = self.hints(request)
            if not offered:
                raise CannotAllocate(NO_HINTS)
            nodes = offered[0].nodes or frozenset()
        if strange := sorted(nodes - self.allocatable.keys()):
            raise CannotAllocate(f"{NO_HINTS}: NUMA node {strange[0]} has no memory or does not exist")
        closed = sorted(nodes - free.keys())
        if closed:
            raise CannotAllocate(f"{NO_HINTS}: other pods have exclusive memory of NUMA node {closed[0]}")
        return nodes

    def _quantities(self, record: MemoryRecord) -> dict[int, float]:
        return _floats(record.numa)

    def _infos(self) -> Callable[[MemoryRecord], AllocationInfo]:
        shared = _shared(self._taken(self._records.values()))

        def info(record: MemoryRecord) -> AllocationInfo:
            nodes = frozenset(record.numa) or shared
            return AllocationInfo(
                CPUSET_MEMS,
                is_scalar_resource=True,
                allocated_quantity=float(record.request),
                allocation_result=cpuset.text(nodes),
                resource_hints=wire_hints((Hint(nodes, preferred=True),)) if record.numa else WireHints(),
                topology_assignments=record.numa,
            )

        return info


def _floats(sizes: Mapping[int, int]) -> dict[int, float]:
    return {node: float(size) for node, size in sizes.items()}


def _shared(taken: Mapping[int, int]) -> frozenset[int]:
    """The nodes without exclusive memory; all nodes if there are none, because a container without memory nodes cannot
    start."""
    return frozenset(node for node, size in taken.items() if not size) or frozenset(taken)


def _holds(nodes: Iterable[int], needed: int, free: Mapping[int, int]) -> bool:
    return sum(free.get(node, 0) for node in nodes) >= needed and all(node in free for node in nodes)
