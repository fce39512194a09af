"""Selects CPUs from the available ones: whole sockets, L3 caches and cores first, or evenly across NUMA nodes. Selects
NUMA nodes, and distributes CPUs among pools.

The algorithms come from Katalyst (`cpu/dynamicpolicy`: topology, balance) and from the kubelet's static CPU manager
(packed, distributed). A unit (socket, NUMA node, core) is free if all of its CPUs are available; its size is the number
of its available CPUs. Units are ordered only by size and number, so the same request on the same machine always gets
the same CPUs.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal
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


# --- the kubelet's static policy -------------------------------------------------------------------------------------


class _Nested:
    """The order of sockets, NUMA nodes and cores: larger units first, and within them the smaller units."""

    def __init__(self, acc: Accumulator, *, numa_nodes: int) -> None:
        self._acc = acc
        self._numa_first = len(acc.machine.sockets) >= numa_nodes

    def _inner(self, outer: Mapping[int, CpuSet], order: Iterable[int], inner: Mapping[int, CpuSet]) -> list[int]:
        found = (unit for each in order for unit in self._acc.sized(self._acc.within(outer[each], inner)))
        return list(dict.fromkeys(found))  # a unit can overlap with two outer units

    def numa_nodes(self) -> list[int]:
        machine = self._acc.machine
        if self._numa_first:
            return self._acc.sized(machine.nodes)
        return self._inner(machine.sockets, self.sockets(), machine.nodes)

    def sockets(self) -> list[int]:
        machine = self._acc.machine
        if not self._numa_first:
            return self._acc.sized(machine.sockets)
        return self._inner(machine.nodes, self.numa_nodes(), machine.sockets)

    def cores(self) -> list[int]:
        machine = self._acc.machine
        if self._numa_first:
            return self._inner(machine.sockets, self.sockets(), machine.cores)
        return self._inner(machine.nodes, self.numa_nodes(), machine.cores)

    def whole(self) -> Iterator[CpuSet]:
        """Free NUMA nodes and sockets, the larger unit type first. The second type is computed after the units of the
        first type were taken."""
        machine = self._acc.machine
        kinds: list[tuple[Callable[[], list[int]], Mapping[int, CpuSet]]] = [
            (self.numa_nodes, machine.nodes),
            (self.sockets, machine.sockets),
        ]
        for order, units in kinds if self._numa_first else reversed(kinds):
            yield from (units[unit] for unit in self._acc.free(order(), units))


def take_packed(machine: CpuTopology, available: CpuSet, n: int, *, numa_nodes: int | None = None) -> CpuSet:
    """n CPUs: completely free NUMA nodes and sockets that fit, then free cores, then single CPUs. Cores and CPUs come
    first from the units with the fewest available CPUs, so the result may span more NUMA nodes than necessary, as in
    the kubelet. `numa_nodes` defaults to the number of nodes of the machine; 0 means unknown, as in some test vectors
    of the kubelet. Raises NotEnoughCpus."""
    acc = _begin(machine, available, n)
    order = _Nested(acc, numa_nodes=len(machine.nodes) if numa_nodes is None else numa_nodes)
    acc.take_whole(order.whole())
    acc.take_whole(machine.cores[core] for core in acc.free(order.cores(), machine.cores))
    acc.take_single(list(acc.cpus_of(order.cores())))
    return acc.taken


def take_distributed(
    machine: CpuTopology, available: CpuSet, n: int, *, group: int = 1, numa_nodes: int | None = None
) -> CpuSet:
    """n CPUs spread evenly over the smallest sufficient number of NUMA nodes, in groups of `group` CPUs, so that the
    free CPUs remain balanced. Uses `take_packed` if n is not a multiple of `group` or no distribution fits. Raises
    NotEnoughCpus."""
    acc = _begin(machine, available, n)
    if n < 1:
        return EMPTY
    if n % group == 0:
        order = _Nested(acc, numa_nodes=len(machine.nodes) if numa_nodes is None else numa_nodes).numa_nodes()
        sizes = {node: len(machine.nodes[node] & acc.available) for node in order}
        for count in range(1, min(n // group, len(order)) + 1):
            shares = _best_shares(sizes, order, count, n, group)
            if shares:
                for node, share in shares:
                    acc.take(take_packed(machine, acc.available & machine.nodes[node], share, numa_nodes=numa_nodes))
                return acc.taken
    return take_packed(machine, available, n, numa_nodes=numa_nodes)


def _best_shares(
    sizes: Mapping[int, int], order: Sequence[int], count: int, n: int, group: int
) -> list[tuple[int, int]] | None:
    """The number of CPUs to take from each node, for the best combination of `count` nodes; None if no combination can
    hold n CPUs."""
    best: tuple[Decimal, list[tuple[int, int]]] | None = None
    share = n // count // group * group
    for combination in itertools.combinations(order, count):
        if best is not None and best[0] == 0:
            break
        if sum(sizes[node] // group * group for node in combination) < n:
            continue
        if any(sizes[node] < share for node in combination):
            continue
        found = _with_remainder(sizes, combination, share, n - share * count, group)
        if found is not None and (best is None or found[0] < best[0]):
            best = found
    return best[1] if best else None


def _with_remainder(
    sizes: Mapping[int, int], combination: Sequence[int], share: int, remainder: int, group: int
) -> tuple[Decimal, list[tuple[int, int]]] | None:
    """The most balanced distribution of the remainder, and its balance score (lower is better); None if it does not
    fit."""
    even = [(node, share) for node in combination if share]
    left = {node: size - share * (node in combination) for node, size in sizes.items()}
    if remainder == 0:
        return _spread(left.values()), even
    candidates = [node for node in combination if left[node] >= group]
    best: tuple[Decimal, list[tuple[int, int]]] | None = None
    for count in range(len(candidates), 0, -1):  # of equal scores, the one with the most nodes
        for subset in itertools.combinations(candidates, count):
            if sum(left[node] // group * group for node in subset) < remainder:
                continue
            steps, after = _rounds(left, subset, remainder, group)
            score = _spread(after.values())
            if best is None or score < best[0]:
                best = score, even + [(node, group) for node in steps]
    return best


def _rounds(
    left: Mapping[int, int], subset: Sequence[int], remainder: int, group: int
) -> tuple[list[int], dict[int, int]]:
    """Take one group from each node in turn until the remainder is used up. Returns the nodes in that order, and the
    CPUs left on each node."""
    after, steps = dict(left), []
    for node in itertools.cycle(subset):
        if remainder <= 0:
            break
        if after[node] >= group:
            after[node] -= group
            remainder -= group
            steps.append(node)
    return steps, after


def _spread(values: Iterable[int]) -> Decimal:
    """Population standard deviation; mean and result are rounded half up to three decimals."""
    counts = [Decimal(value) for value in values]
    mean = _rounded(sum(counts, Decimal()) / len(counts))
    variance = sum(((value - mean) ** 2 for value in counts), Decimal()) / len(counts)
    return _rounded(variance.sqrt())


def _rounded(value: Decimal) -> Decimal:
    return value.quantize(Decimal("0.001"), rounding=ROUND_HALF_UP)


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


def fits_sockets(machine: CpuTopology, nodes: frozenset[int], *, aligned: bool = False) -> bool:
    """Whether a set of nodes that fits into one socket is on one socket; with `aligned`, whether a set of any size is
    on as few sockets as possible."""
    sockets = {machine.cpus[cpu].socket for cpu in machine.on(nodes)}
    per_socket = max(len(machine.nodes) // len(machine.sockets), 1)
    if aligned:
        return len(sockets) <= -(-len(nodes) // per_socket)
    return len(nodes) > per_socket or len(sockets) <= 1


def proportional_sizes(available: int, wanted: Mapping[str, int]) -> dict[str, int] | None:
    """Distribute all available CPUs among pools in proportion to the sizes that they want, at least one CPU each.
    Rounded up, the sizes can be too large: then each pool loses a CPU in turn, the largest first, pools of equal
    size in the given order. None if there are fewer CPUs than pools."""
    total = sum(wanted.values())
    sizes = {name: max(-(-available * size // total), 1) for name, size in wanted.items()}
    if len(sizes) > available:
        return None
    order = sorted(sizes, key=lambda name: -sizes[name])
    while (over := sum(sizes.values()) - available) > 0:
        for name in [name for name in order if sizes[name] > 1][:over]:
            sizes[name] -= 1
    return sizes
