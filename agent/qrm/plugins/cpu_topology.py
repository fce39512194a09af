"""The hardware as the allocators use it: core, socket, NUMA node and L3 cache of each CPU, and the memory of each NUMA
node.

Pure: no I/O, no clock. `sysfs.py` reads a Machine from sysfs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from agent.cpuset import CpuSet


@dataclass(frozen=True, slots=True)
class LogicalCpu:
    """One online logical CPU. `core` is unique within the machine; hyperthreads of one core share it."""

    id: int
    core: int
    socket: int
    numa: int
    l3: int


@dataclass(frozen=True)
class CpuTopology:
    """CPUs by number, and memory in bytes by NUMA node. Offline CPUs are omitted."""

    cpus: Mapping[int, LogicalCpu]
    memory: Mapping[int, int] = field(default_factory=dict)

    @cached_property
    def all(self) -> CpuSet:
        return frozenset(self.cpus)

    @cached_property
    def cores(self) -> Mapping[int, CpuSet]:
        return self._grouped(lambda cpu: cpu.core)

    @cached_property
    def sockets(self) -> Mapping[int, CpuSet]:
        return self._grouped(lambda cpu: cpu.socket)

    @cached_property
    def nodes(self) -> Mapping[int, CpuSet]:
        """CPUs by NUMA node; nodes without CPUs are omitted."""
        return self._grouped(lambda cpu: cpu.numa)

    @cached_property
    def numa_nodes(self) -> frozenset[int]:
        """The NUMA nodes with CPUs or memory. Nodes of memory only (CXL) have no CPUs."""
        return frozenset(self.nodes) | frozenset(self.memory)

    @cached_property
    def cpus_per_core(self) -> int:
        """CPUs of the largest core, because single hyperthreads can be offline."""
        return max(map(len, self.cores.values()), default=1)

    def on(self, nodes: Iterable[int]) -> CpuSet:
        """All CPUs of these NUMA nodes."""
        return frozenset().union(*(self.nodes.get(node, frozenset()) for node in nodes))

    def count_by_node(self, cpus: CpuSet) -> dict[int, float]:
        """The number of these CPUs on each NUMA node, including nodes with 0."""
        return {node: float(len(cpus & own)) for node, own in self.nodes.items()}

    def _grouped(self, unit: Callable[[LogicalCpu], int]) -> Mapping[int, CpuSet]:
        groups: dict[int, set[int]] = defaultdict(set)
        for cpu in self.cpus.values():
            groups[unit(cpu)].add(cpu.id)
        return {unit_id: frozenset(groups[unit_id]) for unit_id in sorted(groups)}
