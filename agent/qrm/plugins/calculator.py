"""Selects CPUs from the available ones: whole sockets, L3 caches and cores first, or evenly across NUMA nodes. Selects
NUMA nodes.

The algorithms come from Katalyst (`cpu/dynamicpolicy`: topology, balance). A unit (socket, NUMA node, core) is free if
all of its CPUs are available; its size is the number of its available CPUs. Units are ordered only by size and number,
so the same request on the same machine always gets the same CPUs.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations

from agent.cpuset import EMPTY, CpuSet
from agent.qrm.manager.topology import Hint
from agent.qrm.plugins.cpu_topology import CpuTopology

EXACT_NODES = 8
"""NUMA nodes up to which all sets of nodes are tried; the number of sets doubles with each node."""


class NotEnoughCpus(ValueError):
    """The request exceeds the number of available CPUs."""


class Accumulator:
    """State of a selection: the available CPUs, the number still needed, and the CPUs taken."""

    def __init__(self, machine: CpuTopology, available: CpuSet, needed: int) -> None:
        self.machine = machine
        self.available = available & machine.all
        self.needed = needed
        self.taken: CpuSet = EMPTY

    def take(self, cpus: CpuSet) -> None:
        """Move CPUs from `available` to `taken`."""
        self.taken |= cpus
        self.available -= cpus
        self.needed -= len(cpus)

    def take_whole(self, units: Iterable[CpuSet]) -> None:
        """Take each unit, in order, that is not larger than the number of CPUs still needed."""
        for cpus in units:
            if self.needed >= len(cpus) > 0:
                self.take(cpus)

    def take_single(self, cpus: Iterable[int]) -> None:
        """Take single CPUs in order until no more are needed."""
        for cpu in cpus:
            if self.needed <= 0:
                return
            self.take(frozenset([cpu]))

    def sized(self, units: Mapping[int, CpuSet]) -> list[int]:
        """The units that have an available CPU, sorted by size and number."""
        sizes = {unit: len(cpus & self.available) for unit, cpus in units.items()}
        return sorted((unit for unit, size in sizes.items() if size), key=lambda unit: (sizes[unit], unit))

    def free(self, order: Iterable[int], units: Mapping[int, CpuSet]) -> list[int]:
        """The units that are completely available, in the given order."""
        return [unit for unit in order if units[unit] <= self.available]

    def within(self, outer: CpuSet, units: Mapping[int, CpuSet]) -> Mapping[int, CpuSet]:
        """The units that overlap with `outer`, reduced to the CPUs in it."""
        return {unit: cpus & outer for unit, cpus in units.items() if cpus & outer}

    def cores_by_socket(self) -> list[int]:
        """Cores of all sockets: sockets sorted by size and number, the cores of each likewise."""
        machine = self.machine
        return [
            core
            for socket in self.sized(machine.sockets)
            for core in self.sized(self.within(machine.sockets[socket], machine.cores))
        ]

    def cpus_of(self, cores: Iterable[int]) -> Iterator[int]:
        """The available CPUs of these cores, ascending within each core."""
        return (cpu for core in cores for cpu in sorted(self.machine.cores[core] & self.available))


def take_by_topology(machine: CpuTopology, available: CpuSet, n: int, *, align_l3: bool) -> CpuSet:
    """n CPUs close together: whole sockets, then (with `align_l3`) L3 caches, then whole cores, then single CPUs from
    partly used cores. Raises NotEnoughCpus."""
    acc = _begin(machine, available, n)
    acc.take_whole(machine.sockets[socket] for socket in acc.free(acc.sized(machine.sockets), machine.sockets))
    if align_l3:
        _take_caches(acc)
    acc.take_whole(machine.cores[core] for core in acc.free(acc.cores_by_socket(), machine.cores))
    acc.take_single(list(acc.cpus_of(acc.cores_by_socket())))
    return acc.taken


def _take_caches(acc: Accumulator) -> None:
    """Take whole L3 groups while they fit; then restrict the available CPUs to the best fitting group."""
    caches: dict[int, set[int]] = {}
    for cpu in acc.machine.cpus.values():
        caches.setdefault(cpu.l3, set()).add(cpu.id)
    while acc.needed > 0:
        sizes = {l3: size for l3, cpus in caches.items() if (size := len(acc.available & cpus))}
        best = min(sizes, key=lambda l3: (_misfit(sizes[l3], acc.needed), l3))
        group = acc.available & caches[best]
        if acc.needed < len(group):
            acc.available = group
            return
        acc.take(group)


def _misfit(size: int, needed: int) -> tuple[bool, int]:
    """Sort key: an exact fit first, then the smallest surplus, then the largest group that is too small."""
    return (size < needed, abs(size - needed))


def take_by_numa_balance(
    machine: CpuTopology, available: CpuSet, n: int, *, reverse: bool = False
) -> tuple[CpuSet, CpuSet]:
    """n CPUs: free cores taken from each NUMA node in turn, ascending (descending with `reverse`), and the rest as
    single CPUs. Returns the CPUs taken and the CPUs left over. Raises NotEnoughCpus."""
    acc = _begin(machine, available, n)
    waiting = [
        sorted(acc.free(acc.within(cpus, machine.cores), machine.cores), reverse=reverse)
        for cpus in machine.nodes.values()
    ]
    for core in _in_turns(waiting):
        if acc.needed < machine.cpus_per_core:
            break
        acc.take(machine.cores[core])
    single, _ = take_single_by_numa_balance(machine, acc.available, acc.needed, reverse=reverse)
    acc.take(single)
    return acc.taken, acc.available


def take_single_by_numa_balance(
    machine: CpuTopology, available: CpuSet, n: int, *, reverse: bool = False
) -> tuple[CpuSet, CpuSet]:
    """n CPUs taken one by one from each NUMA node in turn, without regard to cores. Returns the CPUs taken and the CPUs
    left over. Raises NotEnoughCpus."""
    acc = _begin(machine, available, n)
    waiting = [sorted(cpus & acc.available, reverse=reverse) for cpus in machine.nodes.values()]
    acc.take_single(_in_turns(waiting))
    return acc.taken, acc.available


def _in_turns(waiting: Sequence[Sequence[int]]) -> Iterator[int]:
    """The first element of each sequence, then the second of each, and so on."""
    for row in itertools.zip_longest(*waiting):
        yield from (each for each in row if each is not None)


def _begin(machine: CpuTopology, available: CpuSet, n: int) -> Accumulator:
    acc = Accumulator(machine, available, n)
    if n > len(acc.available):
        there = len(acc.available)
        raise NotEnoughCpus(
            f"insufficient CPUs: not enough cpus available to satisfy request: {n} requested, {there} available"
        )
    return acc


def sets_that_hold(needed: int, free: Mapping[int, int], *, fewest: int, most: int) -> list[frozenset[int]]:
    """The sets of `fewest` to `most` nodes with at least `needed` free in total; smaller sets first, then ascending.
    `free` is by node, in the unit of `needed`. With more than EXACT_NODES nodes, only `node_sets` of the smallest size
    that holds."""
    found: list[frozenset[int]] = []
    for size in range(fewest, min(most, len(free)) + 1):
        found += [nodes for nodes in node_sets(free, size) if sum(free[node] for node in nodes) >= needed]
        if found and len(free) > EXACT_NODES:
            break
    return found


def node_sets(free: Mapping[int, int], size: int) -> list[frozenset[int]]:
    """The sets of `size` nodes, ascending. With more than EXACT_NODES nodes, only the nodes with the most free (so a
    set that holds is found if there is one) and, in ascending order, sets of neighbouring numbers."""
    nodes = sorted(free)
    if len(nodes) <= EXACT_NODES:
        return [frozenset(chosen) for chosen in combinations(nodes, size)]
    neighbours = (frozenset(nodes[at : at + size]) for at in range(len(nodes) - size + 1))
    freest = frozenset(sorted(nodes, key=lambda node: (-free[node], node))[:size])
    return list(dict.fromkeys((*neighbours, freest)))


def hints_that_hold(needed: int, free: Mapping[int, int], *, fewest: int) -> tuple[Hint, ...]:
    """The sets of nodes that hold `needed` as hints; those with `fewest` nodes, the least that a free machine requires,
    are preferred. If single nodes hold it, only these."""
    one = sets_that_hold(needed, free, fewest=1, most=1) if fewest == 1 else []
    found = one or sets_that_hold(needed, free, fewest=fewest, most=len(free))
    return tuple(Hint(nodes, preferred=len(nodes) == fewest) for nodes in found)


def nodes_open_to(role: str, taken: Mapping[int, frozenset[str]]) -> list[int]:
    """The nodes on which no other role has exclusive resources. `taken` are the roles with exclusive resources by
    node."""
    return [node for node, roles in sorted(taken.items()) if roles <= {role}]
