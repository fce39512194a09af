"""The CPU plug-in: two pools that are resized with the load, and exclusive CPUs for pods of exclusive roles.

Each CPU is reserved, exclusive to one container, or in a pool. The pools are computed from the remaining CPUs after
each change, so they are always consistent with the allocations.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache, lru_cache
from typing import Any

import msgspec

from agent import cpuset
from agent.cpuset import EMPTY, CpuSet
from agent.qrm.manager.allocation import CPUSET_CPUS, AllocationInfo, WireHints, wire_hints
from agent.qrm.manager.request import CPU, CannotAllocate, ContainerType, ResourceRequest, whole, whole_exclusive
from agent.qrm.manager.topology import Hint
from agent.qrm.plugins.calculator import (
    hints_that_hold,
    nodes_open_to,
    take_by_numa_balance,
    take_by_topology,
)
from agent.qrm.plugins.cpu_topology import CpuTopology
from agent.qrm.plugins.records import Adopted, BuiltinPlugin, ContainerRecord, StoredRecords, by_container
from agent.qrm.plugins.resize import PoolSettings
from agent.qrm.roles import EXCLUSIVE, OFFLINE, ONLINE, POOLS, RoleTable

NO_HINTS = "no available cpu hints"
_text = lru_cache(maxsize=256)(cpuset.text)  # the containers of a pool have the same set


class CpuRecord(ContainerRecord, frozen=True, omit_defaults=True):
    """The CPUs of one container: a pool (`pool`) or exclusive CPUs (`cpus`)."""

    pool: str = ""
    cpus: str = ""

    @property
    def exclusive(self) -> CpuSet:
        """The exclusive CPUs of the container."""
        return cpuset.parse(self.cpus)


class CpuDocument(msgspec.Struct, frozen=True):
    """The stored state. The records are authoritative; `machineState` is for readers, and is verified when the state is
    loaded."""

    machineState: dict[str, dict[str, str]]  # noqa: N815 - name of the file format
    online: int
    pods: StoredRecords[CpuRecord]
    policyName: str = "role-pools"  # noqa: N815 - name of the file format


class CpuPlugin(BuiltinPlugin[CpuRecord]):
    """Assigns the CPUs of a machine by pod role."""

    name = "qrm_cpu_plugin"
    resource = CPU

    def __init__(
        self, machine: CpuTopology, roles: RoleTable, settings: PoolSettings, *, reserved: CpuSet = EMPTY
    ) -> None:
        unavailable = reserved - machine.all
        if unavailable:
            raise ValueError(f"reserved CPUs {cpuset.text(unavailable)} do not exist on this machine or are offline")
        self.machine = machine
        self.roles = roles
        self.settings = settings
        self.reserved = reserved
        usable = len(machine.all - reserved)
        if not usable:
            raise ValueError("all CPUs of this machine are reserved; pods need at least one")
        allocatable = machine.count_by_node(machine.all - reserved)
        super().__init__(capacity=machine.count_by_node(machine.all), allocatable=allocatable)
        # On a small machine each pool gets half of the CPUs; a single CPU is in both pools.
        self._minimum = {
            ONLINE: min(settings.min_online, usable // 2),
            OFFLINE: min(max(settings.min_offline, len(machine.nodes)), usable // 2),
        }
        self.online = usable - self.least_offline
        """The desired size of the online pool in CPUs; the pool is smaller if exclusive allocations leave fewer
        CPUs."""

    # --- calls of the manager ------------------------------------------------------------------------------------

    def hints(self, request: ResourceRequest) -> tuple[Hint, ...] | None:
        """NUMA nodes for a container of an exclusive role, empty if none fit; None for other containers. Sets with more
        nodes than the CPUs require are not preferred. A container that grows stays on its nodes if these have room."""
        if request.container_type == ContainerType.INIT or not self.roles.is_exclusive(request.pod_role):
            return None
        needed, own = whole_exclusive(request), self._own(request)
        if own and needed <= len(own):
            return self._hints_of(own)
        others = self._without(request)
        if not self._leaves_pool_minimums(needed, others):
            return ()
        free = self._open_nodes(request.pod_role, others)
        if own and sum(free.get(node, 0) for node in self._nodes_of(own)) >= needed:
            return self._hints_of(own)
        largest = max(len(cpus - self.reserved) for cpus in self.machine.nodes.values())
        return hints_that_hold(needed, free, fewest=max(-(-needed // max(largest, 1)), 1))

    def adopt(self, allocations: Iterable[tuple[str, str, AllocationInfo]]) -> Adopted:
        """Keep exclusive CPUs. The roles are unknown until the manager requests the CPUs again; no other role gets CPUs
        on these NUMA nodes."""
        adopted, invalid = list[tuple[str, str]](), dict[tuple[str, str], str]()
        for pod, container, info in allocations:
            try:
                cpus = cpuset.parse(info.allocation_result) if info.hints else EMPTY
            except ValueError as error:
                invalid[pod, container] = str(error)
                continue
            free = self.machine.all - self.reserved - self._exclusive()
            if cpus and cpus <= free and (pod, container) not in self._records:
                self._records[pod, container] = CpuRecord(pod, container, "", len(cpus), cpus=cpuset.text(cpus))
                adopted.append((pod, container))
        return Adopted(adopted, invalid)

    def resize(self, online: int) -> None:
        """Set the desired size of the online pool in CPUs, limited by the minimum sizes of both pools."""
        usable = len(self.machine.all - self.reserved)
        self.online = min(max(online, self.least_online), usable - self.least_offline)

    # --- queries -------------------------------------------------------------------------------------------------

    @property
    def pools(self) -> dict[str, CpuSet]:
        """The CPUs of each pool. The pools are disjoint, unless the CPUs left are too few for both."""
        left = self.machine.all - self.reserved - self._exclusive()
        size = min(self.online, len(left) - self.least_offline)
        if not self.settings.min_offline:
            size = max(size, self._largest(ONLINE))
        if not 1 <= size <= len(left) - max(self._largest(OFFLINE), 1):
            return {ONLINE: left, OFFLINE: left}
        online, offline = take_by_numa_balance(self.machine, left, size)
        return {ONLINE: online, OFFLINE: offline}

    @property
    def least_online(self) -> int:
        """The minimum size of the online pool in CPUs: its setting, or the largest request of its containers."""
        return self._least(ONLINE)

    @property
    def least_offline(self) -> int:
        """The minimum size of the offline pool in CPUs, like `least_online`."""
        return self._least(OFFLINE)

    @property
    def _least_offline_left(self) -> int:
        """The CPUs that exclusive allocations and online requests leave for the offline pool. With `min_offline` = 0
        these are its largest request only; without a CPU of its own, the pool shares those of the online pool."""
        return self.least_offline if self.settings.min_offline else self._largest(OFFLINE)

    def _least(self, pool: str) -> int:
        return max(self._minimum[pool], self._largest(pool))

    def _largest(self, pool: str) -> int:
        """The largest request of the containers of a pool, in CPUs."""
        return max((each.request for each in self._records.values() if each.pool == pool), default=0)

    @property
    def pool_cpus(self) -> int:
        """The number of CPUs in both pools together."""
        return len(self.machine.all - self.reserved - self._exclusive())

    def members(self) -> dict[str, dict[tuple[str, str], int]]:
        """The number of CPUs that containers request, by pod UID and container, for each pool and for exclusive
        allocations ("exclusive")."""
        found: dict[str, dict[tuple[str, str], int]] = {ONLINE: {}, OFFLINE: {}, EXCLUSIVE: {}}
        for key, record in sorted(self._records.items()):
            found[record.pool or EXCLUSIVE][key] = record.request
        return found

    def machine_state(self) -> dict[str, dict[str, str]]:
        """By NUMA node: reserved CPUs, exclusively allocated CPUs, and the remaining CPUs."""
        taken = self._exclusive()
        return {
            str(node): {
                "reserved_cpuset": cpuset.text(cpus & self.reserved),
                "allocated_cpuset": cpuset.text(cpus & taken),
                "default_cpuset": cpuset.text(cpus - self.reserved - taken),
            }
            for node, cpus in self.machine.nodes.items()
        }

    # --- storage -------------------------------------------------------------------------------------------------

    def _document(self, pods: StoredRecords[CpuRecord]) -> CpuDocument:
        return CpuDocument(self.machine_state(), self.online, pods)

    def load(self, document: Mapping[str, Any]) -> None:
        """Restore a state from `document`. Raises ValueError if it is invalid, if CPUs do not exist or are allocated to
        two containers, or if the machine state does not match the records; the current state then remains unchanged.
        Records without CPUs and pool are those of sidecars in earlier versions; the manager requests CPUs for them."""
        read = self._read(document, CpuDocument, "CPU")
        before, kept = (self._records, self.online), by_container(read.pods)
        self._records = {key: record for key, record in kept.items() if record.pool or record.cpus}
        most = len(self.machine.all - self.reserved) - self._minimum[OFFLINE]
        self.online = min(max(read.online, self._minimum[ONLINE]), most)
        try:
            self._check(read)
        except ValueError:
            self._records, self.online = before
            raise

    def _check(self, read: CpuDocument) -> None:
        taken: set[int] = set()
        for record in self._records.values():
            if record.pool not in ("", *POOLS):
                raise ValueError(f"unknown pool {record.pool!r}")
            own = record.exclusive
            if own & taken:
                raise ValueError(f"the CPUs {cpuset.text(own & taken)} are exclusive to two containers")
            taken |= own
        strange = taken - (self.machine.all - self.reserved)
        if strange:
            raise ValueError(f"the allocated CPUs {cpuset.text(strange)} are reserved, offline or do not exist")
        if read.machineState != self.machine_state():
            raise ValueError("machineState does not match the pods on this machine")

    # --- internals -----------------------------------------------------------------------------------------------

    def _own(self, request: ResourceRequest) -> CpuSet:
        """The exclusive CPUs that the container of a request already has."""
        record = self._record_of(request)
        return EMPTY if record is None else record.exclusive

    def _pool_of(self, request: ResourceRequest) -> str:
        return "" if self.roles.is_exclusive(request.pod_role) else self.roles.class_of(request.pod_role)

    def _satisfying(self, request: ResourceRequest) -> CpuRecord | None:
        kept = self._record_of(request)
        same = kept is not None and (kept.pool, kept.request) == (self._pool_of(request), whole(request))
        return kept if same else None

    def _new_record(self, request: ResourceRequest) -> CpuRecord:
        pool = self._pool_of(request)
        cpus = EMPTY if pool else self._take(request)
        if pool:
            self._make_room(request)
        return CpuRecord.of(request, request=whole(request), pool=pool, cpus=cpuset.text(cpus))

    def _take(self, request: ResourceRequest) -> CpuSet:
        """Select exclusive CPUs for a container. A container that has CPUs keeps as many of them as possible. Raises
        CannotAllocate."""
        needed, own = whole_exclusive(request), self._own(request)
        if needed <= len(own):
            return take_by_topology(self.machine, own, needed, align_l3=True)
        others = self._without(request)
        nodes = self._nodes_for(request, needed, self._open_nodes(request.pod_role, others))
        if not self._leaves_pool_minimums(needed, others):
            least = f"{self.least_online} online and {self._least_offline_left} offline"
            raise CannotAllocate(
                f"{NO_HINTS}: {needed} CPUs would leave the pools fewer CPUs than their minimum, {least}"
            )
        available = self.machine.on(nodes) - self.reserved - self._exclusive(others)
        taken = own & available
        for node in sorted(nodes):
            left = (available & self.machine.nodes[node]) - taken
            taken |= take_by_topology(self.machine, left, min(needed - len(taken), len(left)), align_l3=True)
        return taken

    def _nodes_for(self, request: ResourceRequest, needed: int, free: Mapping[int, int]) -> frozenset[int]:
        """The NUMA nodes to take CPUs from: those of the hint or, without a preferred hint that has enough CPUs, those
        of the best hint. Raises CannotAllocate."""
        nodes = request.nodes
        closed = sorted(nodes - free.keys())
        enough = bool(nodes) and not closed and sum(free[node] for node in nodes) >= needed
        if enough:
            return nodes
        if not request.must_follow_hint:
            offered = self.hints(request)
            if not offered:
                raise CannotAllocate(f"{NO_HINTS}: {needed} CPUs are not free on the NUMA nodes that the pod may use")
            return offered[0].nodes or EMPTY
        if strange := sorted(nodes - self.machine.nodes.keys()):
            raise CannotAllocate(f"{NO_HINTS}: this machine has no NUMA node {strange[0]}")
        if closed:
            raise CannotAllocate(f"{NO_HINTS}: pods of another role have CPUs of NUMA node {closed[0]}")
        raise CannotAllocate(f"{NO_HINTS}: {needed} CPUs are not free on NUMA nodes {cpuset.text(nodes)}")

    def _make_room(self, request: ResourceRequest) -> None:
        """Ensure that the pool can be as large as the request; the online pool grows if necessary, the offline pool
        with the request of its new container. Raises CannotAllocate."""
        pool, needed, pools = self._pool_of(request), whole(request), self.pools
        other = self._least_offline_left if pool == ONLINE else self.least_online
        room = len(pools[ONLINE] | pools[OFFLINE]) - (0 if pools[ONLINE] & pools[OFFLINE] else other)
        if room < needed:
            raise CannotAllocate(f"requested {needed} CPUs, but the {pool} pool can have {room}")
        if pool == ONLINE and len(pools[pool]) < needed:
            self.resize(needed)

    def _exclusive(self, records: Iterable[CpuRecord] | None = None) -> CpuSet:
        chosen = self._records.values() if records is None else records
        return EMPTY.union(*(record.exclusive for record in chosen))

    def _open_nodes(self, role: str, records: Iterable[CpuRecord]) -> dict[int, int]:
        """The nodes on which a role may have exclusive CPUs, and the number of free CPUs on each."""
        records = list(records)
        taken = self._exclusive(records)
        roles = {
            node: frozenset(r.pod_role for r in records if r.exclusive & cpus)
            for node, cpus in self.machine.nodes.items()
        }
        return {node: len(self.machine.nodes[node] - self.reserved - taken) for node in nodes_open_to(role, roles)}

    def _leaves_pool_minimums(self, needed: int, records: Iterable[CpuRecord]) -> bool:
        """Whether the pools keep their minimum sizes if `needed` more CPUs become exclusive."""
        left = len(self.machine.all - self.reserved - self._exclusive(records)) - needed
        return left >= max(self.least_online + self._least_offline_left, 1)

    def _quantities(self, record: CpuRecord) -> dict[int, float]:
        counts = self.machine.count_by_node(self.pools[record.pool] if record.pool else record.exclusive)
        return {node: count for node, count in counts.items() if count}

    def _nodes_of(self, cpus: CpuSet) -> frozenset[int]:
        return frozenset(node for node, own in self.machine.nodes.items() if own & cpus)

    def _hints_of(self, cpus: CpuSet) -> tuple[Hint, ...]:
        """The NUMA nodes of a container's exclusive CPUs, as a preferred hint."""
        return (Hint(self._nodes_of(cpus), preferred=True),)

    def _infos(self) -> Callable[[CpuRecord], AllocationInfo]:
        pools = cache(lambda: self.pools)  # computing them is expensive

        def info(record: CpuRecord) -> AllocationInfo:
            cpus = pools()[record.pool] if record.pool else record.exclusive
            return AllocationInfo(
                CPUSET_CPUS,
                is_scalar_resource=True,
                allocated_quantity=float(len(cpus)),
                allocation_result=_text(cpus),
                resource_hints=WireHints() if record.pool else wire_hints(self._hints_of(cpus)),
            )

        return info
