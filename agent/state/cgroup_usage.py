"""Usage of pods and containers, read from their control groups.

Hundreds of groups are read in a few milliseconds of CPU time. To achieve this, groups and their files stay open between
cycles, as far as the limit of open files allows, so that a file takes one system call; the names of the containers'
directories are cached.

A missing group means that the pod or container ended since it was listed: its usage is unknown, and this is not an
error. A pod with running containers whose own group has neither groups nor processes is not measured: its containers
are in other groups, because kubelet and container runtime use different cgroup drivers. (A sandbox, as of Kata or
gVisor, has no group for each container, but it is below the pod's.)
Errors (an unparsable file, missing permission) are logged once when they begin and once when they end. A container
whose quota cannot be read is omitted, because it would look unlimited.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from agent.cgroups import paths
from agent.cgroups.base import Group
from agent.cgroups.detection import Layout, open_tree
from agent.cgroups.errors import CgroupError, CgroupGone
from agent.cgroups.kept_groups import KeptGroups
from agent.cgroups.values import CpuUsage
from agent.model import ContainerState, MetricSample, PodState
from agent.qos import QosClass
from agent.state.rates import (
    NO_PREVIOUS_READING,
    NoRate,
    growth,
    run_queue_time,
    seconds_between,
    usage_cores,
    waited_ns,
)
from agent.state.readings import MetricReadings, PodFacts
from watcher.core.cpu_use import MOST_GROWTH

log = logging.getLogger(__name__)

T = TypeVar("T")
Number = TypeVar("Number", int, float)

CPU = "container_cpu_total_usage"
MEMORY = "container_mem_total_usage"
SHARES = "container_cpu_limit"
QUOTA = "container_cpu_quota"
PERIOD = "container_cpu_period"
RUN_QUEUE = "container_sched_run_queue_time"
CGROUP_METRICS = (CPU, MEMORY, SHARES, QUOTA, PERIOD)
EXTENDED_CPU = "ext_res_container_cpu_total_usage"
EXTENDED_MEMORY = "ext_res_container_mem_total_usage"

NO_CONTAINER_GROUP = "none of its running containers has a control group below that of the pod"
MIXED_DRIVERS = (
    "The kubelet uses the cgroup driver {driver}: set the container runtime to the same one (containerd: "
    "SystemdCgroup, CRI-O: cgroup_manager), and create the pods again"
)
QOS_CLASSES = (QosClass.GUARANTEED, QosClass.BURSTABLE, QosClass.BEST_EFFORT)
"""Classes to search for a pod whose QoS class is unknown."""


class _Counters(msgspec.Struct, frozen=True, gc=False):
    """Counters of a group with the monotonic time in seconds at which they were read: CPU time, throttled periods, and
    the nanoseconds that each process waited for a CPU."""

    at: float
    cpu_ns: int
    throttled: int | None = None
    waits: Mapping[int, int] | None = None


@dataclass(slots=True)
class _CgroupContext:
    """Context of one cycle: the clocks, the open groups of the QoS classes, and the results."""

    readings: MetricReadings
    now: float
    monotonic: Callable[[], float]
    longest: float
    counters: dict[str, _Counters]
    faults: list[CgroupError]
    extended_cpu: list[float | None]
    extended_memory: list[int | None]
    elsewhere: dict[str, str]
    """Pods without a group of a container below their own: namespace/name -> id of a container."""

    def add(self, labels: Mapping[str, str], *values: tuple[str, float | None]) -> None:
        """Add one series of a group for each metric whose value is known."""
        series, now = self.readings.series, self.now
        for metric, value in values:
            if value is not None:
                if metric not in series:
                    series[metric] = []
                series[metric].append(MetricSample(float(value), now, labels))


class CgroupUsageReader:
    """Reads the control groups of pods in the tree of this layout. With `run_queues`, the time that each process waits
    for a CPU is read, too. The constructor raises NoCgroups if the layout has no driver, and CgroupError if the tree
    cannot be read."""

    def __init__(self, layout: Layout, *, proc_root: str, run_queues: bool = False, descriptors: int = 0) -> None:
        layout.path_of(())
        self._tree = open_tree(layout)
        self._layout = layout
        self._proc = proc_root
        self._run_queues = run_queues
        self._groups = KeptGroups(descriptors)
        self._before: dict[str, _Counters] = {}
        self._names: dict[str, dict[str, str]] = {}
        self._places: dict[tuple[str, QosClass], tuple[str, str]] = {}
        self._faulty = False
        self._elsewhere = ""

    def close(self) -> None:
        """Close the groups that are kept open, and the tree."""
        self._groups.close()
        self._tree.close()

    def discover(self) -> tuple[str, ...]:
        """UIDs of the pods that have control groups, whether or not their objects are known. Raises CgroupError."""
        found: list[str] = []
        for qos in QOS_CLASSES:
            above = self._place("any", qos)[0]
            try:
                with self._tree.open(above) as group:
                    names = group.children()
            except CgroupGone:  # with some drivers, the class's group is created with its first pod
                continue
            found += [uid for name in names if (uid := paths.read_pod(name)) is not None]
        return tuple(found)

    def read(
        self,
        pods: Iterable[PodFacts],
        readings: MetricReadings,
        *,
        now: float,
        monotonic: Callable[[], float],
        longest: float,
    ) -> tuple[PodState, ...]:
        """The pods with their usage; their series are added to `readings` with time `now` (unix seconds). Rates cover
        the time since the last call, at most `longest` seconds."""
        look = _CgroupContext(readings, now, monotonic, longest, {}, [], [], [], {})
        with self._groups.cycle():
            measured = tuple(self._read_pod(facts, look) for facts in pods)
        self._before = look.counters
        there = {pod.uid for pod in measured}
        self._names = {uid: names for uid, names in self._names.items() if uid in there}
        if len(self._places) > 2 * len(measured) + len(QOS_CLASSES):
            self._places.clear()  # most belong to pods that have ended
        self._conclude(look)
        return measured

    # --- a pod -------------------------------------------------------------------------------------------------------

    def _read_pod(self, facts: PodFacts, look: _CgroupContext) -> PodState:
        if not facts.pod.ended and paths.is_uid(facts.group_uid):
            for qos in (facts.pod.qos,) if facts.pod.qos in QOS_CLASSES else QOS_CLASSES:
                above, name = self._place(facts.group_uid, qos)
                parent = self._groups.parent(above, partial(self._tree.open, above))
                try:
                    return self._groups.read(
                        f"{above}/{name}", partial(parent.child, name), partial(self._measure, facts, look)
                    )
                except CgroupGone:
                    continue
                except CgroupError as error:
                    look.faults.append(error)
                    break
        self._miss_extended(facts, facts.pod.containers, look)
        return replace(facts.pod, containers=())

    def _measure(self, facts: PodFacts, look: _CgroupContext, group: Group) -> PodState:
        """The pod with its usage. Raises CgroupGone if it has no group."""
        pod = facts.pod
        at = look.monotonic()
        used = _unless_faulty(group.cpu_usage_ns, look)
        cpu = None if used is None else self._cores(group.path, _Counters(at, used), look)
        memory = _unless_faulty(group.memory, look)
        names = self._container_names(facts, group)
        missing = [container for container in facts.pod.containers if container.id not in names]
        self._miss_extended(facts, missing, look)
        if missing and len(missing) == len(facts.pod.containers) and not (group.children() or group.processes()):
            look.elsewhere[pod.key] = missing[0].id
            return replace(pod, containers=(), unmeasured=NO_CONTAINER_GROUP)
        containers = [
            found
            for container in facts.pod.containers
            if (name := names.get(container.id)) is not None
            and (found := self._read_container(facts, container, group, name, look)) is not None
        ]
        working_set = None if memory is None else memory.working_set
        whole = len(containers) == len(facts.pod.containers)
        if cpu is None and whole:
            cpu = _sum(container.cpu for container in containers)
        if working_set is None and whole:
            working_set = _sum(container.memory for container in containers)
        look.add(_labels(pod, "", "", bool(facts.extended)), (CPU, cpu), (MEMORY, working_set))
        return replace(pod, cpu=cpu, memory=working_set, containers=tuple(containers))

    @staticmethod
    def _miss_extended(facts: PodFacts, missing: Iterable[ContainerState], look: _CgroupContext) -> None:
        """Make the total of extended resources unknown if one of these containers has them."""
        for container in missing:
            if container.name in facts.extended:
                look.extended_cpu.append(None)
                look.extended_memory.append(None)

    def _place(self, uid: str, qos: QosClass) -> tuple[str, str]:
        """The path of a pod's parent group, and the name of the pod's group in it."""
        place = self._places.get((uid, qos))
        if place is None:
            above, _, name = self._layout.path_of(paths.pod_segments(qos, uid)).rpartition("/")
            place = self._places[uid, qos] = (above, name)
        return place

    def _container_names(self, facts: PodFacts, group: Group) -> Mapping[str, str]:
        """The group names of a pod's containers, by container id. Raises CgroupGone."""
        known = self._names.get(facts.pod.uid, {})
        if all(container.id in known for container in facts.pod.containers):
            return known
        listed = {identity: name for name in group.children() if (identity := paths.container_id(name)) is not None}
        self._names[facts.pod.uid] = listed
        return listed

    # --- a container -------------------------------------------------------------------------------------------------

    def _read_container(
        self, facts: PodFacts, container: ContainerState, above: Group, name: str, look: _CgroupContext
    ) -> ContainerState | None:
        """The container with its usage; None if it has ended or its quota cannot be read."""
        path = f"{above.path}/{name}"
        try:
            return self._groups.read(
                path, partial(above.child, name), partial(self._measure_container, facts, container, look)
            )
        except CgroupGone:
            return None

    def _measure_container(
        self, facts: PodFacts, container: ContainerState, look: _CgroupContext, group: Group
    ) -> ContainerState | None:
        """The container with its usage; None if its quota cannot be read. Raises CgroupGone if it has ended."""
        quota = _unless_faulty(group.quota, look)
        memory = _unless_faulty(group.memory, look)
        # Without a quota nothing is throttled; in version 1 the counters are in a separate file.
        unlimited = quota is not None and quota.quota is None
        at = look.monotonic()
        used = _unless_faulty(partial(_without_throttling, group) if unlimited else group.cpu, look)
        shares = _unless_faulty(group.shares, look)
        waits = self._waits(group) if self._run_queues else None
        before, cpu, waited, throttled = self._before.get(group.path), None, None, None
        if used is not None:
            counters = _Counters(at, used.usage_ns, used.throttled_periods, waits)
            cpu = self._cores(group.path, counters, look)
            waited = _waited(before, counters, look.longest)
            throttled = False if unlimited else _was_throttled(before, counters, look.longest)
        working_set = None if memory is None else memory.working_set
        extended = container.name in facts.extended
        if extended:
            look.extended_cpu.append(cpu)
            look.extended_memory.append(working_set)
        labels = _labels(facts.pod, container.name, container.id, extended)
        look.add(labels, (CPU, cpu), (MEMORY, working_set), (SHARES, shares), (RUN_QUEUE, waited))
        if quota is None:
            return None
        look.add(labels, (QUOTA, quota.quota or 0), (PERIOD, quota.period))
        return ContainerState(
            name=container.name,
            id=container.id,
            cpu=cpu,
            memory=working_set,
            quota=quota.quota,
            period=quota.period,
            cpu_request=container.cpu_request,
            cpu_limit=container.cpu_limit,
            extended_cpu_limit=container.extended_cpu_limit,
            throttled=throttled,
        )

    def _cores(self, path: str, counters: _Counters, look: _CgroupContext) -> float | None:
        """Average cores in use since the previous reading; stores the counters for the next one."""
        before = self._before.get(path)
        look.counters[path] = counters
        if before is None:
            return None
        try:
            elapsed = seconds_between(before.at, counters.at, longest=look.longest)
            return usage_cores(growth(before.cpu_ns, counters.cpu_ns), elapsed)
        except NoRate:
            return None

    def _waits(self, group: Group) -> Mapping[int, int]:
        """Nanoseconds that each process of a group has waited for a CPU. Raises CgroupError."""
        waits = {}
        for process in group.processes():
            try:
                with open(f"{self._proc}/{process}/schedstat", "rb", buffering=0) as file:
                    waits[process] = waited_ns(file.read())
            except (OSError, ValueError, IndexError):  # the process ended, or this kernel does not count it
                continue
        return waits

    # --- the end of a cycle ------------------------------------------------------------------------------------------

    def _conclude(self, look: _CgroupContext) -> None:
        """Add the totals over all pods, record why metrics are missing, and log when errors begin or end."""
        readings, now = look.readings, look.now
        # If no pod has extended resources, the value is a known 0.
        cpu = _sum(look.extended_cpu) if look.extended_cpu else 0.0
        memory = _sum(look.extended_memory) if look.extended_memory else 0
        if cpu is not None:
            readings.add(EXTENDED_CPU, cpu, now)
        if memory is not None:
            readings.add(EXTENDED_MEMORY, float(memory), now)
        self._find_elsewhere(look)
        why = (
            str(look.faults[0])
            if look.faults
            else self._elsewhere
            if look.elsewhere
            else NO_PREVIOUS_READING
            if look.counters
            else "no pod of this node has a control group"
        )
        wanted = (*CGROUP_METRICS, EXTENDED_CPU, EXTENDED_MEMORY)
        readings.mark_missing(why, *(metric for metric in wanted if metric not in readings.series))
        if RUN_QUEUE not in readings.series:
            if self._run_queues:
                readings.mark_missing(why, RUN_QUEUE)
            else:
                readings.mark_absent("reading it is disabled (agent.run_queues)", RUN_QUEUE)
        if look.faults and not self._faulty:
            log.warning(
                "%d readings of control groups failed, for example: %s. %s", len(look.faults), why, look.faults[0].hint
            )
        elif self._faulty and not look.faults:
            log.info("all control groups can be read again")
        self._faulty = bool(look.faults)

    def _find_elsewhere(self, look: _CgroupContext) -> None:
        """Log when pods without groups of containers appear and when they are gone; find the group of one container."""
        if not look.elsewhere:
            if self._elsewhere:
                log.info("the containers of all pods have control groups below those of their pods")
            self._elsewhere = ""
            return
        if not self._elsewhere:
            key, identity = min(look.elsewhere.items())
            self._elsewhere = f"{key}: {NO_CONTAINER_GROUP}"
            path = _group_of_container(self._proc, identity)
            where = f" (a container of {key} is in {path})" if path else ""
            log.warning(
                "the usage of %d pods is unknown, for example %s%s. %s",
                len(look.elsewhere),
                self._elsewhere,
                where,
                MIXED_DRIVERS.format(driver=self._layout.driver),
            )


def _group_of_container(proc_root: str, identity: str) -> str:
    """The path of the control group of a container, from the groups of all processes; "" if none is found."""
    for path in Path(proc_root).glob("[0-9]*/cgroup"):
        try:
            lines = path.read_text("utf-8", "replace").splitlines()
        except OSError:  # the process ended
            continue
        for line in lines:
            if identity in line:
                return line.split(":", 2)[-1]
    return ""


def _unless_faulty(reading: Callable[[], T], look: _CgroupContext) -> T | None:
    """The result of a reading; None if it fails, and the error is recorded. Raises CgroupGone."""
    try:
        return reading()
    except CgroupGone:
        raise
    except CgroupError as error:
        look.faults.append(error)
        return None


def _without_throttling(group: Group) -> CpuUsage:
    return CpuUsage(group.cpu_usage_ns())


def _was_throttled(before: _Counters | None, now: _Counters, longest: float) -> bool | None:
    if before is None or before.throttled is None or now.throttled is None:
        return None
    try:
        seconds_between(before.at, now.at, longest=longest)
        return growth(before.throttled, now.throttled) > 0
    except NoRate:
        return None


def _waited(before: _Counters | None, now: _Counters, longest: float) -> float | None:
    """Microseconds of waiting for a CPU per second. For a new process, or a reused process id, all its waiting time
    counts, unless it is longer than the time between the readings: the process came from another group, so its growth
    is unknown."""
    if before is None or before.waits is None or now.waits is None:
        return None
    grown = 0
    try:
        elapsed = seconds_between(before.at, now.at, longest=longest)
        for process, wait in now.waits.items():
            earlier = before.waits.get(process, 0)
            waited = wait - earlier if wait >= earlier else wait
            if waited > MOST_GROWTH * elapsed * 1e9:
                return None
            grown += waited
    except NoRate:
        return None
    return run_queue_time(grown, elapsed)


def _labels(pod: PodState, container: str, identity: str, extended: bool) -> Mapping[str, str]:
    """Labels with Crane's names; series of the pod itself have an empty container."""
    return {
        "PodName": pod.name,
        "PodNamespace": pod.namespace,
        "PodUid": pod.uid,
        "ContainerName": container,
        "ContainerId": identity,
        "HasExtRes": "true" if extended else "false",
    }


def _sum(values: Iterable[Number | None]) -> Number | None:
    """The sum of all values; None if one is unknown or there are none."""
    listed = list(values)
    known = [value for value in listed if value is not None]
    return sum(known) if known and len(known) == len(listed) else None
