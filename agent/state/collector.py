"""Collect the node's state in one cycle: /proc, control groups, pods, and metrics from other sources.

Blocking file reads run in a thread, one after the other. Metrics of other sources are taken from memory, so that no
cycle waits for a server. A value that cannot be read is missing with its reason and does not affect the others.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from agent.cgroups.detection import Layout, NoCgroups, find_layout
from agent.cgroups.errors import CgroupError
from agent.cgroups.kept_groups import usable_descriptors
from agent.cgroups.paths import Driver
from agent.metrics.builtin import DISK, NETWORK
from agent.model import PODS, MetricSample, PodState, State
from agent.state.cgroup_usage import CGROUP_METRICS, EXTENDED_CPU, EXTENDED_MEMORY, MEMORY, RUN_QUEUE, CgroupUsageReader
from agent.state.proc_reader import CPU_RATES, LOADS, PRESSURES, SPANS, ProcReader
from agent.state.proc_reader import MEMORY as OF_MEMORY
from agent.state.readings import LACKING_S, MetricReadings, MetricSource, PodFacts, PodSource, PodsUnknown
from agent.state.unique_pods import PodIdentity, UniquePods
from watcher.core.messages import with_hint

log = logging.getLogger(__name__)

EXTENDED_SHARE = "ext_cpu_total_distribute"
COLLECTED = frozenset(
    {
        *("cpu_core_numbers", "exclusive_cpu_idle", *CPU_RATES, *LOADS, *OF_MEMORY, *DISK, *NETWORK),
        *(f"psi_{what}_{share}_{span}" for what in PRESSURES for share in ("some", "full") for span in SPANS),
        *(*CGROUP_METRICS, RUN_QUEUE, EXTENDED_CPU, EXTENDED_MEMORY, EXTENDED_SHARE),
    }
)
"""Every metric that is measured here and that a rule may name."""
MAX_AGE_INTERVALS = 3.0
"""Age in intervals above which a sample is missing."""


@dataclass(frozen=True, slots=True)
class SystemPaths:
    """Paths: in a pod the mount points of the host's directories, in tests a temporary directory."""

    proc: str = "/proc"
    cgroup: str = "/sys/fs/cgroup"
    sys: str = "/sys"
    cpu_manager_state: str = "/var/lib/kubelet/cpu_manager_state"


class Collector:
    """Collects a State on request, about every `interval` seconds.

    `interfaces` are the measured network interfaces; without any, those of the default routes. `driver` and `nest`
    are the kubelet's cgroupDriver and cgroupRoot (a path segment like "kubelet"); detected if None. `sources` provide
    additional metrics.
    `extended_cpu_allocatable()` returns the node's allocatable gocrane.io/cpu in cores, None if unknown. With
    `run_queues`, the time that each process waits for a CPU is read, too.
    """

    def __init__(
        self,
        pods: PodSource,
        *,
        places: SystemPaths | None = None,
        interval: float = 10.0,
        interfaces: tuple[str, ...] = (),
        driver: Driver | None = None,
        nest: str | None = None,
        sources: Sequence[MetricSource] = (),
        extended_cpu_allocatable: Callable[[], float | None] = lambda: None,
        run_queues: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pods = pods
        self._places = places or SystemPaths()
        self._longest = MAX_AGE_INTERVALS * interval
        self._driver = driver
        self._nest = nest
        self._sources = sources
        self._extended_cpu_allocatable = extended_cpu_allocatable
        self._run_queues = run_queues
        self._monotonic = monotonic
        self._node = ProcReader(
            self._places.proc,
            interfaces=interfaces,
            cpu_manager_state=self._places.cpu_manager_state,
            sys_root=self._places.sys,
        )
        # A cancelled cycle leaves its thread running; reads must not overlap.
        self._reading = threading.Lock()
        self._layout: Layout | None = None
        self._usage: CgroupUsageReader | None = None
        self._unique = UniquePods(_identity, log)
        self._seen: dict[str, tuple[float, PodFacts]] = {}
        self._unlisted: set[str] = set()

    async def start(self) -> None:
        """Start the pod source and the metric sources."""
        await self._pods.start()
        for source in self._sources:
            await source.start()

    async def close(self) -> None:
        """Stop all sources and close the control groups."""
        for source in self._sources:
            await source.close()
        await self._pods.close()
        await asyncio.to_thread(self._end)

    async def collect(self, now: float) -> State:
        """Read the current state of the node; `now` is its wall-clock time in unix seconds."""
        readings = MetricReadings()
        monotonic = self._monotonic()
        brought = [source.read(now=now, monotonic=monotonic) for source in self._sources]
        facts: tuple[PodFacts, ...] | None = None
        lacking: frozenset[str] = frozenset()
        try:
            listed = self._pods.listing(monotonic=monotonic, max_age=self._longest)
            more = self._lacking(listed, monotonic)
            facts, lacking = self._unique.select((*listed, *more)), frozenset(each.pod.uid for each in more)
        except PodsUnknown as error:
            readings.mark_missing(with_hint(error), PODS)
        self._add_extended_share(facts, readings, now, without=lacking)
        measured = await asyncio.to_thread(self._read, facts, readings, now)
        if lacking:
            measured = self._without_ended(measured, lacking)
        for each in brought:
            readings.merge(each)
        return State(now, _frozen(readings.series), measured, readings.missing, frozenset(readings.absent))

    def _lacking(self, listed: tuple[PodFacts, ...], monotonic: float) -> tuple[PodFacts, ...]:
        """The pods that were listed until recently. They may still run, so steps in flight on them must not be
        forgotten."""
        self._seen = {uid: seen for uid, seen in self._seen.items() if monotonic - seen[0] < LACKING_S}
        uids = {facts.pod.uid for facts in listed}
        # A mirror pod that was created again has another uid, but the name and the control group of the earlier one.
        groups = {(facts.pod.key, facts.group_uid) for facts in listed}
        lacking = tuple(
            facts
            for uid, (_, facts) in sorted(self._seen.items())
            if uid not in uids and (facts.pod.key, facts.group_uid) not in groups and not facts.pod.ended
        )
        self._seen |= {facts.pod.uid: (monotonic, facts) for facts in listed}
        return lacking

    def _without_ended(self, pods: tuple[PodState, ...], uids: Collection[str]) -> tuple[PodState, ...]:
        """The pods without those of `uids`, which are not listed, that have no control group. The others are logged
        once."""
        kept = tuple(pod for pod in pods if pod.uid not in uids or pod.memory is not None or pod.cpu is not None)
        there = {pod.key for pod in kept if pod.uid in uids}
        if more := sorted(there - self._unlisted):
            log.warning(
                "the list of pods lacks %d pods that have control groups, such as %s: they count for %g s",
                len(more),
                more[0],
                LACKING_S,
            )
        self._unlisted = there
        return kept

    # --- in a thread -------------------------------------------------------------------------------------------------

    def _read(self, facts: tuple[PodFacts, ...] | None, readings: MetricReadings, now: float) -> tuple[PodState, ...]:
        with self._reading:
            self._node.read(readings, now=now, monotonic=self._monotonic, longest=self._longest)
            return self._read_pods(facts, readings, now)

    def _end(self) -> None:
        with self._reading:
            self._let_go()

    def _read_pods(
        self, facts: tuple[PodFacts, ...] | None, readings: MetricReadings, now: float
    ) -> tuple[PodState, ...]:
        try:
            usage = self._opened()
            if facts is None:
                self._tell_unknown(len(usage.discover()), readings)
                return ()
            measured = usage.read(facts, readings, now=now, monotonic=self._monotonic, longest=self._longest)
            if MEMORY not in readings.series and not all(each.pod.ended for each in facts):
                self._let_go()  # no pod has a group: the layout may have changed
            return measured
        except (NoCgroups, CgroupError) as error:
            self._let_go()
            why = with_hint(error)
            readings.mark_missing(why, *CGROUP_METRICS, RUN_QUEUE, EXTENDED_CPU, EXTENDED_MEMORY)
            return tuple(replace(each.pod, containers=()) for each in facts or ())

    def _opened(self) -> CgroupUsageReader:
        """The control-group reader, created on first use, because the kubelet may start after the agent. Raises
        NoCgroups and CgroupError."""
        if self._usage is None:
            layout = find_layout(self._places.cgroup, driver=self._driver, nest=self._nest)
            self._usage = CgroupUsageReader(
                layout,
                proc_root=self._places.proc,
                run_queues=self._run_queues,
                descriptors=usable_descriptors(),
            )
            if layout != self._layout:
                log.info("using control groups %s with the %s driver in %s", layout.version, layout.driver, layout.root)
            self._layout = layout
        return self._usage

    def _let_go(self) -> None:
        if self._usage is not None:
            self._usage.close()
            self._usage = None

    # --- pieces ------------------------------------------------------------------------------------------------------

    @staticmethod
    def _tell_unknown(groups: int, readings: MetricReadings) -> None:
        """Record that pods have control groups but no source for their objects. No action is taken on them, because a
        control group shows neither a pod's priority nor whether it is critical."""
        why = readings.missing[PODS]
        readings.missing[PODS] = (
            f"{why} ({groups} pods have control groups, but without their objects no action is taken on them)"
        )
        readings.mark_missing(
            f"the pods of this node are unknown: {why}", *CGROUP_METRICS, RUN_QUEUE, EXTENDED_CPU, EXTENDED_MEMORY
        )

    def _add_extended_share(
        self, facts: tuple[PodFacts, ...] | None, readings: MetricReadings, now: float, *, without: Collection[str]
    ) -> None:
        """Add the percentage of the node's gocrane.io/cpu that its pods request, except those `without` (uids)."""
        allocatable = self._extended_cpu_allocatable()
        if facts is None:
            readings.mark_missing("the pods of this node are unknown", EXTENDED_SHARE)
        elif allocatable is None or allocatable <= 0.0:
            readings.mark_absent("this node has no gocrane.io/cpu, or its amount is unknown", EXTENDED_SHARE)
        else:
            asked = sum(
                each.extended_cpu_request for each in facts if not each.pod.ended and each.pod.uid not in without
            )
            readings.add(EXTENDED_SHARE, 100.0 * asked / allocatable, now)


def _frozen(series: Mapping[str, list[MetricSample]]) -> Mapping[str, tuple[MetricSample, ...]]:
    return {metric: tuple(each) for metric, each in series.items()}


def _identity(facts: PodFacts) -> PodIdentity:
    return PodIdentity(facts.group_uid, facts.pod.static, facts.created, facts.pod.key)
