"""Rules of Katalyst v0.5.0 that the product's CPU plug-in does not have: it follows a later version, or differs on
purpose. A plug-in with these rules gives Katalyst's answers wherever one of the rules is the reason of a difference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from agent.cpuset import EMPTY, CpuSet
from agent.qrm.manager.allocation import AllocationInfo
from agent.qrm.manager.request import ContainerType, ResourceRequest
from agent.qrm.plugins.cpu_topology import CpuTopology
from agent.qrm.plugins.katalyst import RECLAIM, KatalystCpuPlugin, KatalystSettings
from agent.qrm.pods import DEDICATED_CORES, SHARED_CORES

RESERVED_FOR_RECLAIM = 4
LATE, CORES, BOUND, TAKE, ORDER = "late pools", "first pool", "bound nodes", "odd CPUs", "order of pools"
RULES = (LATE, CORES, BOUND, TAKE, ORDER)
"""In the order in which they are tried."""


def take_by_numa_balance_v050(machine: CpuTopology, available: CpuSet, n: int) -> tuple[CpuSet, CpuSet]:
    """One core of each NUMA node in turn while a core is needed and free anywhere, otherwise one CPU of each."""
    if n > len(available):
        raise ValueError(f"{n} CPUs are needed, but {len(available)} are available")
    left, needed, taken = available, n, EMPTY
    while needed > 0:
        for node in machine.nodes.values():
            cores = [core for core in machine.cores.values() if core <= left]
            if needed >= machine.cpus_per_core and cores:
                chosen = next((core for core in cores if core <= node), EMPTY)
            else:
                chosen = frozenset(sorted(node & left)[:1])
            taken, left, needed = taken | chosen, left - chosen, needed - len(chosen)
            if needed <= 0:
                break
    return taken, left


class CpuPluginV050(KatalystCpuPlugin):
    """The product's plug-in with some rules of Katalyst v0.5.0. `order` are the names of pools in the order that the
    random order of a Go map has in Katalyst."""

    def __init__(
        self,
        machine: CpuTopology,
        settings: KatalystSettings,
        *,
        now: Callable[[], float],
        rules: frozenset[str],
        order: Sequence[str] = (),
    ) -> None:
        super().__init__(machine, settings, now=now)
        self._rules = rules
        self._order = order
        self._late: dict[str, CpuSet] | None = None
        self._pooled: frozenset[tuple[str, str]] = frozenset()
        if CORES in rules:
            usable = machine.all - settings.reserved
            size = min(RESERVED_FOR_RECLAIM, len(usable))
            self._first_reclaim, _ = take_by_numa_balance_v050(machine, usable, size)

    # --- pools change only with certain events ---------------------------------------------------------------------

    def allocate(self, request: ResourceRequest) -> AllocationInfo | None:
        found = super().allocate(request)
        level = request.annotations.get("katalyst.kubewharf.io/qos_level")
        if level == DEDICATED_CORES and request.container_type is ContainerType.MAIN:
            self._adjust()
        return found

    def remove(self, pod_uid: str) -> None:
        super().remove(pod_uid)
        self._adjust()

    def pools(self) -> dict[str, CpuSet]:
        if LATE not in self._rules:
            return super().pools()
        if self._in_pools() - self._pooled:  # containers whose ramp-up has just ended
            self._adjust()
        return self._late or {RECLAIM: self._first_reclaim}

    def _adjust(self) -> None:
        self._pooled = self._in_pools()
        self._late = super().pools()

    def _in_pools(self) -> frozenset[tuple[str, str]]:
        """The shared containers whose ramp-up has ended."""
        shared = ((key, record) for key, record in self._records.items() if record.qos_level == SHARED_CORES)
        return frozenset(key for key, record in shared if self._now() - record.since >= self.settings.ramp_up)

    def _wanted_of(self, *, bound: bool) -> dict[int | None, dict[str, int]]:
        if LATE not in self._rules:
            return super()._wanted_of(bound=bound)
        records, chosen = self._records, self._in_pools()
        self._records = type(records)({key: record for key, record in records.items() if key in chosen})
        try:
            return super()._wanted_of(bound=bound)
        finally:
            self._records = records

    def _generated(self, available: CpuSet, wanted: Mapping[str, int], *, expand: bool) -> dict[str, CpuSet]:
        if ORDER in self._rules:
            base = {name: name.partition("-NUMA")[0] for name in wanted}
            wanted = {name: wanted[name] for name in sorted(wanted, key=lambda name: self._order.index(base[name]))}
        return super()._generated(available, wanted, expand=expand)

    # --- which CPUs --------------------------------------------------------------------------------------------------

    def _free(self) -> CpuSet:
        if BOUND not in self._rules:
            return super()._free()
        nodes = {node for record in self._records.values() if record.cpus for node in record.nodes}
        return self.machine.all - self.settings.reserved - self.machine.on(nodes)

    def _ramp_up_cpus(self) -> CpuSet:
        """Nothing if every NUMA node has a dedicated pod, otherwise as in the product."""
        rules, self._rules = self._rules, self._rules - {BOUND}
        try:
            found = super()._ramp_up_cpus()
        finally:
            self._rules = rules
        return found if BOUND not in rules or found & self._free() else EMPTY

    def _reclaim_pool(self, left: CpuSet, found: Mapping[str, CpuSet]) -> CpuSet:
        if LATE in self._rules and not found and not self._dedicated():
            return left  # the first pool is only valid until the first event
        if BOUND in self._rules and not left:
            usable = self.machine.all - self.settings.reserved
            return self._take_balanced(usable, min(RESERVED_FOR_RECLAIM, len(usable)))[0]
        return super()._reclaim_pool(left, found)

    def _take_balanced(self, available: CpuSet, n: int) -> tuple[CpuSet, CpuSet]:
        if TAKE not in self._rules:
            return super()._take_balanced(available, n)
        return take_by_numa_balance_v050(self.machine, available, n)

    def _shared_out(self, left: CpuSet, found: dict[str, CpuSet], names: Sequence[str]) -> CpuSet:
        if ORDER not in self._rules:
            return super()._shared_out(left, found, names)
        reserve, total = len(self._first_reclaim), sum(len(found[name]) for name in names)
        spare = len(left) - reserve
        for name in (name for name in self._order if name in names):
            share = max(len(found[name]) * spare // total, 1)
            if len(left) <= reserve or share > len(left):
                break
            more, left = self._take_balanced(left, share)  # also from the reserve
            found[name] |= more
        return left
