"""The machine as the allocators see it: which core, socket, NUMA node and L3 cache each CPU belongs to, and how much
memory each NUMA node has.

Pure: no I/O, no clock. `sysfs.py` reads one from the machine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from agent.qrm.cpuset import CpuSet


@dataclass(frozen=True, slots=True)
class Cpu:
    """One logical CPU that is online. `core` is unique in the machine: hyperthreads of a core share it."""

    id: int
    core: int
    socket: int
    numa: int
    l3: int


@dataclass(frozen=True)
class Machine:
    """CPUs by number, and bytes of memory by NUMA node. Offline CPUs are not there."""

    cpus: Mapping[int, Cpu]
    memory: Mapping[int, int] = field(default_factory=dict)

    @cached_property
    def all(self) -> CpuSet:
        """Every CPU."""
        return frozenset(self.cpus)

    @cached_property
    def cores(self) -> Mapping[int, CpuSet]:
        """CPUs by core."""
        return self._grouped(lambda cpu: cpu.core)

    @cached_property
    def sockets(self) -> Mapping[int, CpuSet]:
        """CPUs by socket."""
        return self._grouped(lambda cpu: cpu.socket)

    @cached_property
    def nodes(self) -> Mapping[int, CpuSet]:
        """CPUs by NUMA node."""
        return self._grouped(lambda cpu: cpu.numa)

    @cached_property
    def cpus_per_core(self) -> int:
        """Of the core that has most: hyperthreads may be offline one by one."""
        return max(map(len, self.cores.values()), default=1)

    def on(self, nodes: Iterable[int]) -> CpuSet:
        """The CPUs of these NUMA nodes."""
        return frozenset().union(*(self.nodes.get(node, frozenset()) for node in nodes))

    def count_by_node(self, cpus: CpuSet) -> dict[int, float]:
        """How many of these there are on each NUMA node, none included."""
        return {node: float(len(cpus & own)) for node, own in self.nodes.items()}

    def _grouped(self, unit: Callable[[Cpu], int]) -> Mapping[int, CpuSet]:
        groups: dict[int, set[int]] = defaultdict(set)
        for cpu in self.cpus.values():
            groups[unit(cpu)].add(cpu.id)
        return {unit_id: frozenset(groups[unit_id]) for unit_id in sorted(groups)}
