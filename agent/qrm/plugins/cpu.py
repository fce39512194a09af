"""The CPU plug-in: two pools that are resized with the load, and exclusive CPUs for pods of exclusive roles.

Each CPU is reserved, exclusive to one container, or in a pool. The pools are computed from the remaining CPUs after
each change, so they are always consistent with the allocations.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from agent.qrm import cpuset
from agent.qrm.cpuset import EMPTY, CpuSet
from agent.qrm.manager.allocation import CPUSET_CPUS, AllocationInfo, WireHints, wire_hints
from agent.qrm.manager.request import CPU, CannotAllocate, ContainerType, ResourceRequest, whole, whole_exclusive
from agent.qrm.manager.topology import Hint
from agent.qrm.plugins.calculator import (
    nodes_open_to,
    sets_that_hold,
    smallest_preferred,
    take_by_numa_balance,
    take_by_topology,
)
from agent.qrm.plugins.cpu_topology import CpuTopology
from agent.qrm.plugins.records import Records
from agent.qrm.roles import EXCLUSIVE, OFFLINE, ONLINE, POOLS, RoleTable

NO_HINTS = "no available cpu hints"
_text = lru_cache(maxsize=256)(cpuset.text)  # the containers of a pool have the same set


class CpuRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The CPUs of one container: a pool (`pool`), exclusive CPUs (`cpus`), or the CPUs of the pod's main container
    (`sidecar`)."""

    pod_uid: str
    container_name: str
    pod_role: str
    request: int
    pod_namespace: str = ""
    pod_name: str = ""
    container_type: int = ContainerType.MAIN
    container_index: int = 0
    pool: str = ""
    cpus: str = ""
    sidecar: bool = False

    @property
    def exclusive(self) -> CpuSet:
        """The exclusive CPUs of the container."""
        return cpuset.parse(self.cpus)


class CpuDocument(msgspec.Struct, frozen=True):
    """The stored state. The records are authoritative; `machineState` is for readers, and is verified when the state is
    loaded."""

    machineState: dict[str, dict[str, str]]  # noqa: N815 - name of the file format
    online: int
    pods: dict[str, dict[str, CpuRecord]]
    policyName: str = "role-pools"  # noqa: N815 - name of the file format


@dataclass(frozen=True, slots=True)
class CpuSettings:
    """`reserved` are CPUs for the system; `min_online` and `min_offline` are the minimum sizes of the pools in CPUs."""

    reserved: CpuSet = EMPTY
    min_online: int = 4
    min_offline: int = 4


class CpuPlugin:
    """Assigns the CPUs of a machine by pod role."""

    name = "qrm_cpu_plugin"
    resource = CPU
    aligned = True
    reconciled = True

    def __init__(self, machine: CpuTopology, roles: RoleTable, settings: CpuSettings) -> None:
        strange = settings.reserved - machine.all
        if strange:
            raise ValueError(f"reserved CPUs {cpuset.text(strange)} do not exist on this machine or are offline")
        self.machine = machine
        self.roles = roles
        self.settings = settings
        self._records: Records[CpuRecord] = Records()
        usable = len(machine.all - settings.reserved)
        if not usable:
            raise ValueError("all CPUs of this machine are reserved; pods need at least one")
        # On a small machine each pool gets half of the CPUs; a single CPU is in both pools.
        self.least_online = min(settings.min_online, usable // 2)
        self.least_offline = min(max(settings.min_offline, len(machine.nodes)), usable // 2)
        self.online = usable - self.least_offline
        """The desired size of the online pool in CPUs; the pool is smaller if exclusive allocations leave fewer
        CPUs."""

    # --- calls of the manager ------------------------------------------------------------------------------------

    def hints(self, request: ResourceRequest) -> tuple[Hint, ...] | None:
        """NUMA nodes for a pod of an exclusive role, empty if none fit; None for other pods."""
        if request.container_type == ContainerType.INIT or not self.roles.is_exclusive(request.pod_role):
            return None
        if (kept := self._existing(request)) is not None:
            return self._hints_of(kept)
        if request.container_type == ContainerType.SIDECAR:
            main = self._main_of(request.pod_uid)
            return None if main is None else self._hints_of(main)
        needed = whole_exclusive(request)
        others = self._without(request)
        if not self._leaves_pool_minimums(needed, others):
            return ()
        free = self._open_nodes(request.pod_role, others)
        largest = max(len(cpus - self.settings.reserved) for cpus in self.machine.nodes.values())
        fewest = -(-needed // max(largest, 1))
        most = 1 if fewest <= 1 else len(self.machine.nodes)
        return smallest_preferred(sets_that_hold(needed, free, fewest=max(fewest, 1), most=most))

    def allocate(self, request: ResourceRequest) -> AllocationInfo | None:
        """The allocation for a request; None for an init container, which gets nothing. A sufficient earlier allocation
        is returned unchanged. Raises CannotAllocate; the container then has no allocation."""
        if request.container_type == ContainerType.INIT:
            return None
        kept = self._existing(request)
        if kept is None:
            self._records.pop((request.pod_uid, request.container_name), None)
            kept = self._new_record(request)
            self._records[request.pod_uid, request.container_name] = kept
        return self._info(kept)

    def remove(self, pod_uid: str) -> None:
        """Release the CPUs of a pod that has ended."""
        self._records.remove_pod(pod_uid)

    def allocations(self) -> dict[str, dict[str, AllocationInfo]]:
        """Allocations by pod UID and container, with the current CPUs of the pools."""
        pools = self.pools  # computed once, because it is expensive
        return {
            pod: {container: self._info(record, pools) for container, record in records.items()}
            for pod, records in self._records.by_pod().items()
        }

    def resize(self, online: int) -> None:
        """Set the desired size of the online pool in CPUs, limited by the minimum sizes of both pools."""
        usable = len(self.machine.all - self.settings.reserved)
        self.online = min(max(online, self.least_online), usable - self.least_offline)

    # --- queries -------------------------------------------------------------------------------------------------

    @property
    def pools(self) -> dict[str, CpuSet]:
        """The CPUs of each pool. The pools are disjoint, except on a machine with only one CPU for both."""
        return self._pools_without(self._exclusive())

    @property
    def pool_cpus(self) -> int:
        """The number of CPUs in both pools together."""
        return len(self.machine.all - self.settings.reserved - self._exclusive())

    def members(self) -> dict[str, dict[tuple[str, str], int]]:
        """The number of CPUs that containers request, by pod UID and container, for each pool and for exclusive
        allocations ("exclusive"). Sidecars that use the CPUs of their main container are omitted."""
        found: dict[str, dict[tuple[str, str], int]] = {ONLINE: {}, OFFLINE: {}, EXCLUSIVE: {}}
        for key, record in sorted(self._records.items()):
            if not record.sidecar:
                found[record.pool or EXCLUSIVE][key] = record.request
        return found

    def machine_state(self) -> dict[str, dict[str, str]]:
        """By NUMA node: reserved CPUs, exclusively allocated CPUs, and the remaining CPUs."""
        taken = self._exclusive()
        return {
            str(node): {
                "reserved_cpuset": cpuset.text(cpus & self.settings.reserved),
                "allocated_cpuset": cpuset.text(cpus & taken),
                "default_cpuset": cpuset.text(cpus - self.settings.reserved - taken),
            }
            for node, cpus in self.machine.nodes.items()
        }

    def by_node(self, pod_uid: str, container_name: str) -> dict[int, float]:
        """The number of CPUs that a container has on each NUMA node; empty for an unknown container and for a
        sidecar."""
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
        plain: dict[str, Any] = msgspec.to_builtins(
            CpuDocument(self.machine_state(), self.online, self._records.by_pod())
        )
        return plain

    def load(self, document: Mapping[str, Any]) -> None:
        """Restore a state from `document`. Raises ValueError if it is invalid, if CPUs do not exist or are allocated to
        two containers, or if the machine state does not match the records; the current state then remains unchanged."""
        try:
            read = msgspec.convert(document, CpuDocument)
        except msgspec.ValidationError as error:
            raise ValueError(f"not a state of the CPU plug-in: {error}") from None
        before = self._records, self.online
        self._records = Records.of(read.pods.values())
        self.resize(read.online)
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
        strange = taken - (self.machine.all - self.settings.reserved)
        if strange:
            raise ValueError(f"the allocated CPUs {cpuset.text(strange)} are reserved, offline or do not exist")
        if read.machineState != self.machine_state():
            raise ValueError("machineState does not match the pods on this machine")

    # --- internals -----------------------------------------------------------------------------------------------

    def _existing(self, request: ResourceRequest) -> CpuRecord | None:
        """The existing record of the container, if it is of the same kind and satisfies the request."""
        record = self._records.get((request.pod_uid, request.container_name))
        if record is None or record.request < whole(request):
            return None
        sidecar = self._is_sidecar(request)
        pool = "" if sidecar or self.roles.is_exclusive(request.pod_role) else self.roles.class_of(request.pod_role)
        return record if (record.pool, record.sidecar) == (pool, sidecar) else None

    def _is_sidecar(self, request: ResourceRequest) -> bool:
        return request.container_type == ContainerType.SIDECAR and self.roles.is_exclusive(request.pod_role)

    def _main_of(self, pod_uid: str) -> CpuRecord | None:
        return next((r for key, r in sorted(self._records.items()) if key[0] == pod_uid and r.cpus), None)

    def _without(self, request: ResourceRequest) -> list[CpuRecord]:
        """All records except that of the container itself, which a new allocation replaces."""
        own = (request.pod_uid, request.container_name)
        return [record for key, record in self._records.items() if key != own]

    def _new_record(self, request: ResourceRequest) -> CpuRecord:
        sidecar = self._is_sidecar(request)
        exclusive = self.roles.is_exclusive(request.pod_role) and not sidecar
        cpus = self._take(request) if exclusive else EMPTY
        if not exclusive and not sidecar:
            self._make_room(request)
        return CpuRecord(
            pod_uid=request.pod_uid,
            container_name=request.container_name,
            pod_role=request.pod_role,
            request=whole(request),
            pod_namespace=request.pod_namespace,
            pod_name=request.pod_name,
            container_type=request.container_type,
            container_index=request.container_index,
            pool="" if exclusive or sidecar else self.roles.class_of(request.pod_role),
            cpus=cpuset.text(cpus),
            sidecar=sidecar,
        )

    def _take(self, request: ResourceRequest) -> CpuSet:
        """Select exclusive CPUs for a container: on the nodes of the hint or, without a hint, on the nodes of the best
        hint. Raises CannotAllocate."""
        nodes = request.nodes
        if not nodes:
            offered = self.hints(request)
            if not offered:
                raise CannotAllocate(NO_HINTS)
            nodes = offered[0].nodes or EMPTY
        needed = whole_exclusive(request)
        others = list(self._records.values())
        free = self._open_nodes(request.pod_role, others)
        if strange := sorted(nodes - self.machine.nodes.keys()):
            raise CannotAllocate(f"{NO_HINTS}: this machine has no NUMA node {strange[0]}")
        closed = sorted(nodes - free.keys())
        if closed:
            raise CannotAllocate(f"{NO_HINTS}: pods of another role have CPUs of NUMA node {closed[0]}")
        if sum(free[node] for node in nodes) < needed:
            raise CannotAllocate(f"{NO_HINTS}: {needed} CPUs are not free on NUMA nodes {cpuset.text(nodes)}")
        if not self._leaves_pool_minimums(needed, others):
            least = f"{self.least_online} online and {self.least_offline} offline"
            raise CannotAllocate(f"{NO_HINTS}: {needed} CPUs would leave the pools less than their minimum, {least}")
        available = self.machine.on(nodes) - self.settings.reserved - self._exclusive()
        taken = EMPTY
        for node in sorted(nodes):
            own = available & self.machine.nodes[node]
            taken |= take_by_topology(self.machine, own, min(needed - len(taken), len(own)), align_l3=True)
        return taken

    def _make_room(self, request: ResourceRequest) -> None:
        """Ensure that the pool is at least as large as the request; the online pool grows if necessary. Raises
        CannotAllocate."""
        pool, needed = self.roles.class_of(request.pod_role), whole(request)
        before = self.online
        if pool == ONLINE and len(self.pools[pool]) < needed:
            self.resize(needed)
        if len(self.pools[pool]) < needed:
            self.online = before
            raise CannotAllocate(f"requested {needed} CPUs, but the {pool} pool has {len(self.pools[pool])}")

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
        return {
            node: len(self.machine.nodes[node] - self.settings.reserved - taken) for node in nodes_open_to(role, roles)
        }

    def _leaves_pool_minimums(self, needed: int, records: Iterable[CpuRecord]) -> bool:
        """Whether the pools keep their minimum sizes if `needed` more CPUs become exclusive."""
        left = len(self.machine.all - self.settings.reserved - self._exclusive(records)) - needed
        return left >= max(self.least_online + self.least_offline, 1)

    def _pools_without(self, taken: CpuSet) -> dict[str, CpuSet]:
        left = self.machine.all - self.settings.reserved - taken
        size = min(self.online, len(left) - self.least_offline)
        if size < 1 or size == len(left):
            return {ONLINE: left, OFFLINE: left}
        online, offline = take_by_numa_balance(self.machine, left, size)
        return {ONLINE: online, OFFLINE: offline}

    def _cpus_of(self, record: CpuRecord, pools: Mapping[str, CpuSet] | None = None) -> CpuSet:
        """The CPUs of a record. `pools` are the current pools, if the caller has already computed them."""
        if not record.pool and not record.sidecar:
            return record.exclusive
        if record.sidecar and (main := self._main_of(record.pod_uid)) is not None:
            return main.exclusive
        return (self.pools if pools is None else pools)[record.pool or ONLINE]

    def _hints_of(self, record: CpuRecord) -> tuple[Hint, ...]:
        """The NUMA nodes of a container's exclusive CPUs, as a preferred hint."""
        cpus = self._cpus_of(record)
        nodes = frozenset(node for node, own in self.machine.nodes.items() if own & cpus)
        return (Hint(nodes, preferred=True),)

    def _info(self, record: CpuRecord, pools: Mapping[str, CpuSet] | None = None) -> AllocationInfo:
        cpus = self._cpus_of(record, pools)
        return AllocationInfo(
            CPUSET_CPUS,
            is_scalar_resource=True,
            allocated_quantity=0.0 if record.sidecar else float(len(cpus)),
            allocation_result=_text(cpus),
            resource_hints=WireHints() if record.pool or record.sidecar else wire_hints(self._hints_of(record)),
        )
