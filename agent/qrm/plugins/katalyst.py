"""A CPU plug-in with the rules of Katalyst's dynamic policy: CPUs by QoS level and enhancements, for pods written for
Katalyst.

    shared_cores     a pool by name; in the first 30 seconds all CPUs of the NUMA nodes without bound pods
    reclaimed_cores  the pool `reclaim`: the CPUs that the other pods leave
    dedicated_cores  exclusive CPUs on the NUMA nodes of the hint
    system_cores     the pool that they name, else every CPU

Pure: no I/O, no clock (`now` is a parameter).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from agent import cpuset
from agent.cpuset import EMPTY, CpuSet
from agent.qrm.manager.allocation import CPUSET_CPUS, AllocationInfo, WireHints, wire_hints
from agent.qrm.manager.request import CPU, CannotAllocate, ContainerType, ResourceRequest, whole, whole_exclusive
from agent.qrm.manager.topology import Hint
from agent.qrm.plugins.calculator import (
    fits_sockets,
    node_sets,
    proportional_sizes,
    take_by_numa_balance,
    take_by_topology,
    take_single_by_numa_balance,
)
from agent.qrm.plugins.cpu_topology import CpuTopology
from agent.qrm.plugins.enhancements import NUMA_BINDING, PAIRING, QosRequest, qos_request
from agent.qrm.plugins.records import Records
from agent.qrm.pods import DEDICATED_CORES, RECLAIMED_CORES, SHARED_CORES, SYSTEM_CORES

SHARE, RECLAIM, RESERVE = "share", "reclaim", "reserve"
NO_HINTS = "no available cpu hints"
BOUND_FACTOR = 2.0
"""A pool that is bound to a NUMA node gets this multiple of the CPUs that its pods request."""
RAMP_UP_S = 30.0


@dataclass(frozen=True, slots=True)
class KatalystSettings:
    """`reclaim`: whether reclaimed pods may use the CPUs that shared pools do not need. `debug`: annotations of pods
    that get no allocation. `enhancement`: default memory enhancements of pods. `ramp_up`: seconds in which a new shared
    container may use all shared CPUs. `system_namespaces`: the namespaces whose pods may have the level system_cores,
    which gives CPUs of other pods and reserved ones; None: all namespaces, as in Katalyst."""

    reserved: CpuSet = EMPTY
    reclaim: bool = False
    debug: frozenset[str] = frozenset()
    enhancement: Mapping[str, str] = field(default_factory=dict)
    ramp_up: float = RAMP_UP_S
    system_namespaces: frozenset[str] | None = None


class KatalystRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The CPUs of one container: exclusive CPUs (`cpus`) or a pool (`pool`); `nodes` are the NUMA nodes of its hint,
    `since` is the time of its allocation (seconds). `bound` is set only for system_cores."""

    pod_uid: str
    container_name: str
    qos_level: str
    request: float
    since: float
    pod_namespace: str = ""
    pod_name: str = ""
    pool: str = ""
    cpus: str = ""
    nodes: tuple[int, ...] = ()
    exclusive: bool = False
    sidecar: bool = False
    bound: bool = False


class KatalystDocument(msgspec.Struct, frozen=True):
    """The stored state of the plug-in."""

    pods: dict[str, dict[str, KatalystRecord]]
    policyName: str = "dynamic"  # noqa: N815 - Katalyst's name


class KatalystCpuPlugin:
    """Assigns the CPUs of a machine by Katalyst's rules."""

    name = "qrm_cpu_plugin_dynamic"
    resource = CPU
    aligned = True
    reconciled = True

    def __init__(self, machine: CpuTopology, settings: KatalystSettings, *, now: Callable[[], float]) -> None:
        self.machine = machine
        self.settings = settings
        self._now = now
        self._records: Records[KatalystRecord] = Records()
        usable = machine.all - settings.reserved
        if not usable:
            raise ValueError("all CPUs of this machine are reserved; pods need at least one")
        least = min(max(4, len(machine.nodes)), len(usable))
        self._first_reclaim, _ = take_single_by_numa_balance(machine, usable, least)

    # --- calls of the manager ------------------------------------------------------------------------------------

    def hints(self, request: ResourceRequest) -> tuple[Hint, ...] | None:
        """NUMA nodes for pods that are bound to NUMA nodes; None for other pods. Raises CannotAllocate if no nodes fit,
        as in Katalyst."""
        wish = self._wish(request)
        if wish.debug or request.container_type == ContainerType.INIT:
            return None
        if _follows_main(request, wish):
            return None
        kept = self._records.get((request.pod_uid, request.container_name))
        if kept is not None and kept.request >= request.quantity:
            return self._hints_of(kept)
        if wish.level == DEDICATED_CORES:
            return self._dedicated_hints(request, wish)
        if wish.level == SHARED_CORES and wish.bound:
            return self._bound_hints(request)
        return None

    def allocate(self, request: ResourceRequest) -> AllocationInfo | None:
        """The allocation for a request; None for an init container, and for a sidecar of a bound pod whose main
        container has no allocation yet. A sufficient earlier allocation is returned unchanged. Raises CannotAllocate;
        the container then keeps its earlier allocation."""
        wish = self._wish(request)
        if request.container_type == ContainerType.INIT:
            return None
        if wish.debug:
            return AllocationInfo(is_scalar_resource=True)  # as in Katalyst: without a property and a quantity
        if _follows_main(request, wish) and self._main_of(request) is None:
            return None
        key = (request.pod_uid, request.container_name)
        kept = self._records.get(key)
        if kept is None or kept.request < request.quantity or kept.qos_level != wish.level:
            before = self._records.pop(key, None)  # its CPUs are free for the new allocation
            try:
                kept = self._records[key] = self._new_record(request, wish)
            except CannotAllocate:
                if before is not None:
                    self._records[key] = before
                raise
        return self._info(kept)

    def remove(self, pod_uid: str) -> None:
        """Release the CPUs of a pod that has ended."""
        self._records.remove_pod(pod_uid)

    def allocations(self) -> dict[str, dict[str, AllocationInfo]]:
        """Allocations by pod UID and container, with the current CPUs of the pools."""
        pools = self.pools()  # computed once, because it is expensive
        return {
            pod: {container: self._info(record, pools) for container, record in records.items()}
            for pod, records in self._records.by_pod().items()
        }

    # --- queries -------------------------------------------------------------------------------------------------

    def pools(self) -> dict[str, CpuSet]:
        """The CPUs of each pool that has containers, and of `reclaim`. The pools are disjoint unless there are too few
        CPUs."""
        free, found = self._free(), dict[str, CpuSet]()
        bound = self._wanted_of(bound=True)
        for node, wanted in bound.items():
            assert node is not None
            own = free & self.machine.nodes.get(node, EMPTY)
            found |= self._generated(own, wanted, expand=not self.settings.reclaim)
        rest = free - self.machine.on(node for node in bound if node is not None)
        unbound = self._wanted_of(bound=False).get(None, {})
        found |= self._generated(rest or free, unbound, expand=False)
        left = free - EMPTY.union(*found.values())
        if not self.settings.reclaim:
            left = self._shared_out(left, found, sorted(unbound))
        found[RECLAIM] = self._reclaim_pool(left, found)
        return found

    def by_node(self, pod_uid: str, container_name: str) -> dict[int, float]:
        """The number of CPUs that a container has on each NUMA node; empty for a sidecar."""
        record = self._records.get((pod_uid, container_name))
        if record is None or record.sidecar:
            return {}
        counts = self.machine.count_by_node(self._cpus_of(record))
        return {node: count for node, count in counts.items() if count}

    def allocatable_by_node(self) -> dict[int, float]:
        """The number of CPUs on each NUMA node that pods may use."""
        return self.machine.count_by_node(self.machine.all - self.settings.reserved)

    def capacity_by_node(self) -> dict[int, float]:
        """The number of CPUs on each NUMA node."""
        return self.machine.count_by_node(self.machine.all)

    # --- storage -------------------------------------------------------------------------------------------------

    def document(self) -> dict[str, Any]:
        """The complete state as JSON-compatible values."""
        plain: dict[str, Any] = msgspec.to_builtins(KatalystDocument(self._records.by_pod()))
        return plain

    def load(self, document: Mapping[str, Any]) -> None:
        """Restore a state from `document`. Raises ValueError if it is invalid, or if CPUs do not exist or are allocated
        to two containers; the current state then remains unchanged."""
        try:
            read = msgspec.convert(document, KatalystDocument)
        except msgspec.ValidationError as error:
            raise ValueError(f"not a state of the CPU plug-in: {error}") from None
        taken: set[int] = set()
        for record in (record for pod in read.pods.values() for record in pod.values()):
            own = cpuset.parse(record.cpus)
            if own & taken:
                raise ValueError(f"the CPUs {cpuset.text(own & taken)} are exclusive to two containers")
            taken |= own
        if strange := taken - (self.machine.all - self.settings.reserved):
            raise ValueError(f"the allocated CPUs {cpuset.text(strange)} are reserved, offline or do not exist")
        self._records = Records.of(read.pods.values())

    # --- requests ------------------------------------------------------------------------------------------------

    def _wish(self, request: ResourceRequest) -> QosRequest:
        """The QoS level and enhancements of a request. Raises CannotAllocate."""
        wish = qos_request(request, defaults=self.settings.enhancement, debug=self.settings.debug)
        allowed = self.settings.system_namespaces
        if wish.level == SYSTEM_CORES and allowed is not None and request.pod_namespace not in allowed:
            namespaces = ", ".join(sorted(allowed)) or "no namespace"
            raise CannotAllocate(f"{SYSTEM_CORES} is only for pods of {namespaces} (qrm.system_namespaces)")
        return wish

    def _main_of(self, request: ResourceRequest) -> KatalystRecord | None:
        """For a sidecar, a record of its bound pod: of the main container, or of a container that follows it."""
        if request.container_type != ContainerType.SIDECAR:
            return None
        return next((r for r in self._bound_records() if r.pod_uid == request.pod_uid and not r.sidecar), None)

    # --- hints ---------------------------------------------------------------------------------------------------

    def _dedicated_hints(self, request: ResourceRequest, wish: QosRequest) -> tuple[Hint, ...]:
        found = self._node_sets(request, wish)
        if not found:
            raise CannotAllocate(NO_HINTS)
        least = min(map(len, found))
        return tuple(Hint(nodes, preferred=len(nodes) == least) for nodes in found)

    def _node_sets(self, request: ResourceRequest, wish: QosRequest) -> list[frozenset[int]]:
        """The sets of nodes with enough CPUs, smaller sets first."""
        needed, free = self._needed(request, wish), self._free_by_node(wish)
        nodes = wish.numa_ids()
        if nodes is not None:
            return [nodes] if nodes <= free.keys() and self._holds(nodes, needed, free, wish) else []
        per_node = -(-len(self.machine.all) // len(self.machine.nodes))
        fewest = max(1, -(-needed // per_node))
        most = len(self.machine.nodes) if wish.exclusive else 1
        if (number := wish.numa_number()) is not None:
            fewest = most = number
        return [
            nodes
            for size in range(fewest, most + 1)
            for nodes in node_sets(free, size)
            if fits_sockets(self.machine, nodes, aligned=wish.aligned) and self._holds(nodes, needed, free, wish)
        ]

    def _needed(self, request: ResourceRequest, wish: QosRequest) -> int:
        """The number of CPUs. Raises CannotAllocate if the pod needs whole cores, but does not request whole cores."""
        needed, per_core = whole_exclusive(request), self.machine.cpus_per_core
        if wish.paired and needed % per_core:
            raise CannotAllocate(f"{PAIRING} needs whole cores of {per_core} CPUs, not {needed} CPUs")
        return needed

    def _holds(self, nodes: frozenset[int], needed: int, free: Mapping[int, int], wish: QosRequest) -> bool:
        if wish.evenly:
            share, odd = divmod(needed, len(nodes))
            halved = wish.paired and share % self.machine.cpus_per_core
            return not odd and not halved and all(free[node] >= share for node in nodes)
        return sum(free[node] for node in nodes) >= needed

    def _free_by_node(self, wish: QosRequest) -> dict[int, int]:
        """The number of CPUs on each node that a dedicated pod may use; nodes that are closed to the pod are
        omitted."""
        found = {}
        for node in self.machine.nodes:
            there = [record for record in self._bound_records() if node in record.nodes]
            if any(record.exclusive for record in there) or (wish.exclusive and there):
                continue
            free = self._free_on(node)
            found[node] = len(self._whole_cores(free)) if wish.paired else len(free)
        return found

    def _bound_records(self) -> list[KatalystRecord]:
        """The records of bound pods. The nodes of a reclaimed pod are a preference: Katalyst's manager sends all nodes
        as the hint of a pod without a preference."""
        levels = (SHARED_CORES, DEDICATED_CORES)
        return [record for record in self._records.values() if record.qos_level in levels and record.nodes]

    def _free_on(self, node: int) -> CpuSet:
        return self.machine.nodes[node] - self.settings.reserved - self._dedicated()

    def _whole_cores(self, cpus: CpuSet) -> CpuSet:
        return EMPTY.union(*(core for core in self.machine.cores.values() if core <= cpus))

    def _bound_hints(self, request: ResourceRequest) -> tuple[Hint, ...]:
        """Single nodes with enough free CPUs; the nodes with the most free CPUs are preferred (Katalyst's
        "spreading")."""
        left = {}
        for node in self.machine.nodes:
            if any(record.exclusive and node in record.nodes for record in self._records.values()):
                continue
            asked = sum(r.request for r in self._records.values() if r.qos_level == SHARED_CORES and r.nodes == (node,))
            left[node] = len(self._free_on(node)) - asked
        fitting = {node: room for node, room in left.items() if room >= request.quantity}
        if not fitting:
            raise CannotAllocate(NO_HINTS)
        most = max(fitting.values())
        return tuple(Hint(frozenset({node}), preferred=room == most) for node, room in sorted(fitting.items()))

    def _hints_of(self, record: KatalystRecord) -> tuple[Hint, ...] | None:
        return (Hint(frozenset(record.nodes), preferred=True),) if record.nodes else None

    # --- allocations ---------------------------------------------------------------------------------------------

    def _new_record(self, request: ResourceRequest, wish: QosRequest) -> KatalystRecord:
        whole(request)  # raises for an invalid quantity; the record stores the unrounded request
        if not request.must_follow_hint and request.nodes:
            request = replace(request, hint=self._usable_hint(request, wish))
        nodes, cpus, pool, sidecar = tuple(sorted(request.nodes)), EMPTY, "", False
        if strange := sorted(request.nodes - set(self.machine.nodes)):
            raise CannotAllocate(f"the hint names NUMA node {strange[0]}, which this machine does not have")
        if wish.level == DEDICATED_CORES:
            main = self._main_of(request)
            sidecar = main is not None
            nodes = main.nodes if main else nodes or tuple(sorted(self._dedicated_hints(request, wish)[0].nodes or ()))
            cpus = EMPTY if sidecar else self._take(request, wish, nodes)
        elif wish.level == SHARED_CORES:
            pool = wish.pool or SHARE
            if wish.bound and (main := self._main_of(request)):
                nodes = main.nodes
            if wish.bound and len(nodes) != 1:
                raise CannotAllocate(f"{SHARED_CORES} with {NUMA_BINDING} needs a hint with exactly one NUMA node")
            nodes = nodes if wish.bound else ()
            self._check_room(request, nodes)
        elif wish.level == RECLAIMED_CORES:
            pool = RECLAIM
        else:
            pool, nodes = wish.pool, ()
        return KatalystRecord(
            pod_uid=request.pod_uid,
            container_name=request.container_name,
            qos_level=wish.level,
            request=request.quantity,
            since=self._now(),
            pod_namespace=request.pod_namespace,
            pod_name=request.pod_name,
            pool=pool,
            cpus=cpuset.text(cpus),
            nodes=nodes,
            exclusive=wish.exclusive and wish.level == DEDICATED_CORES,
            sidecar=sidecar,
            bound=wish.bound and wish.level == SYSTEM_CORES,
        )

    def _usable_hint(self, request: ResourceRequest, wish: QosRequest) -> Hint | None:
        """The hint of a request, which is not preferred; None if the CPUs that the pod needs are not on its nodes."""
        if wish.level != DEDICATED_CORES or self._main_of(request) is not None:
            return request.hint
        free = self._free_by_node(wish)
        fits = request.nodes <= free.keys() and self._holds(request.nodes, self._needed(request, wish), free, wish)
        return request.hint if fits else None

    def _check_room(self, request: ResourceRequest, nodes: tuple[int, ...]) -> None:
        """Raises CannotAllocate if shared pods request more CPUs than are not dedicated."""
        free = self.machine.on(nodes) if nodes else self.machine.all
        free -= self.settings.reserved | self._dedicated()
        asked = sum(r.request for r in self._records.values() if r.qos_level == SHARED_CORES and r.nodes == nodes)
        if asked + request.quantity > len(free):
            raise CannotAllocate(
                f"{NO_HINTS}: shared pods would request {asked + request.quantity:g} of {len(free)} CPUs"
            )

    def _take(self, request: ResourceRequest, wish: QosRequest, nodes: tuple[int, ...]) -> CpuSet:
        """Select exclusive CPUs on these nodes. Raises CannotAllocate."""
        needed, left = self._needed(request, wish), self._free_by_node(wish)
        if not set(nodes) <= left.keys() or not self._holds(frozenset(nodes), needed, left, wish):
            raise CannotAllocate(f"{NO_HINTS}: {needed} CPUs are not free on NUMA nodes {cpuset.text(nodes)}")
        if wish.exclusive:
            return EMPTY.union(*(self._free_on(node) for node in nodes))
        taken = EMPTY
        for node in nodes:
            share = needed // len(nodes) if wish.evenly else min(needed - len(taken), left[node])
            free = self._whole_cores(self._free_on(node)) if wish.paired else self._free_on(node)
            taken |= take_by_topology(self.machine, free, share, align_l3=True)
        return taken

    def _free(self) -> CpuSet:
        """The CPUs that are neither reserved nor dedicated."""
        return self.machine.all - self.settings.reserved - self._dedicated()

    def _dedicated(self) -> CpuSet:
        return EMPTY.union(*(cpuset.parse(record.cpus) for record in self._records.values()))

    # --- pools ---------------------------------------------------------------------------------------------------

    def _wanted_of(self, *, bound: bool) -> dict[int | None, dict[str, int]]:
        """Sizes of pools in CPUs by pool name, by the node that they are bound to (None: not bound)."""
        sums: dict[int | None, dict[str, float]] = {}
        for record in self._records.values():
            if record.qos_level != SHARED_CORES or bool(record.nodes) != bound:
                continue
            of = sums.setdefault(record.nodes[0] if bound else None, {})
            name = _pool_name(record)
            of[name] = of.get(name, 0.0) + math.ceil(round(record.request * 1000, 6)) / 1000
        factor = BOUND_FACTOR if bound else 1.0
        return {
            node: {name: max(1, math.ceil(round(size * factor, 6))) for name, size in sorted(pools.items())}
            for node, pools in sums.items()
        }

    def _generated(self, available: CpuSet, wanted: Mapping[str, int], *, expand: bool) -> dict[str, CpuSet]:
        """CPUs by pool, spread evenly over the nodes; with `expand`, all available CPUs. If there are too few CPUs for
        separate pools, all pools share all available CPUs."""
        if expand or sum(wanted.values()) > len(available):
            sizes = proportional_sizes(len(available), wanted)
            if sizes is None:
                return dict.fromkeys(wanted, available)
            wanted = sizes
        found: dict[str, CpuSet] = {}
        left = available
        for name in sorted(wanted):
            found[name], left = self._take_balanced(left, wanted[name])
        return found

    def _take_balanced(self, available: CpuSet, n: int) -> tuple[CpuSet, CpuSet]:
        """n CPUs spread evenly over the nodes, and the CPUs left over."""
        return take_by_numa_balance(self.machine, available, n)

    def _reclaim_pool(self, left: CpuSet, found: Mapping[str, CpuSet]) -> CpuSet:
        """The CPUs that other pods leave, at first only the reserve. If they leave none, reclaimed pods share CPUs."""
        if not found and not self._dedicated():
            return self._first_reclaim
        return left or (self._first_reclaim - self._dedicated()) or self._free()

    def _shared_out(self, left: CpuSet, found: dict[str, CpuSet], names: Sequence[str]) -> CpuSet:
        """Add the CPUs that no pool needs to these pools, in proportion to their sizes, except the reserve for
        reclaimed pods. Returns the CPUs that remain."""
        reserve, total = len(self._first_reclaim), sum(len(found[name]) for name in names)
        spare = len(left) - reserve
        for name in names:
            if len(left) <= reserve:
                break
            share = max(len(found[name]) * spare // total, 1)
            more, left = self._take_balanced(left, min(share, len(left) - reserve))
            found[name] |= more
        return left

    def _system_cpus(self, record: KatalystRecord, pools: Mapping[str, CpuSet]) -> CpuSet:
        """The pools whose names begin with the name that the pod gives, else every CPU. A pod that is bound to NUMA
        nodes gets no reserved or dedicated CPUs."""
        named = {RESERVE: self.settings.reserved, **pools} if record.pool else {}
        chosen = EMPTY.union(*(cpus for name, cpus in named.items() if name.startswith(record.pool)))
        if not chosen and record.bound:
            chosen = self._free()
        return chosen or self.machine.all

    def _ramp_up_cpus(self) -> CpuSet:
        """The CPUs of the NUMA nodes without bound pods; if there are none, all CPUs that are not dedicated."""
        bound = {node for record in self._bound_records() for node in record.nodes}
        return (self._free() - self.machine.on(bound)) or self._free()

    def _cpus_of(self, record: KatalystRecord, pools: Mapping[str, CpuSet] | None = None) -> CpuSet:
        """The CPUs of a record. `pools` are the current pools, if the caller has already computed them."""
        if record.qos_level == SYSTEM_CORES:
            return self._system_cpus(record, self.pools() if pools is None else pools)
        if record.sidecar:
            main = next((r for key, r in self._records.items() if key[0] == record.pod_uid and r.cpus), None)
            return cpuset.parse(main.cpus) if main else self._free()
        if record.qos_level == DEDICATED_CORES:
            return cpuset.parse(record.cpus)
        if record.qos_level == RECLAIMED_CORES:
            reclaim = (self.pools() if pools is None else pools)[RECLAIM]
            return (reclaim & self.machine.on(record.nodes) if len(record.nodes) == 1 else EMPTY) or reclaim
        # A time ahead of the clock, which was set back since, is not recent.
        if not record.nodes and 0.0 <= self._now() - record.since < self.settings.ramp_up:
            return self._ramp_up_cpus()
        return (self.pools() if pools is None else pools)[_pool_name(record)]

    def _info(self, record: KatalystRecord, pools: Mapping[str, CpuSet] | None = None) -> AllocationInfo:
        cpus = self._cpus_of(record, pools)
        return AllocationInfo(
            CPUSET_CPUS,
            is_scalar_resource=True,
            allocated_quantity=0.0 if record.sidecar else float(len(cpus)),
            allocation_result=cpuset.text(cpus),
            resource_hints=wire_hints(self._hints_of(record) or ()) if record.nodes else WireHints(),
        )


def _follows_main(request: ResourceRequest, wish: QosRequest) -> bool:
    """Whether a container gets the NUMA nodes of its pod's main container."""
    bound = wish.bound and wish.level in (SHARED_CORES, DEDICATED_CORES)
    return bound and request.container_type == ContainerType.SIDECAR


def _pool_name(record: KatalystRecord) -> str:
    return f"{record.pool}-NUMA{record.nodes[0]}" if record.nodes else record.pool
