"""Emulates the executors of Crane v0.11.0 (executor/watermark.go, evict.go, throttle.go).

`CraneInputs.repaired` has the faults of Crane that are left out. Metrics are processed in the order of the watermarks;
Crane's order is random.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from agent.model import CRITICAL_PRIORITY, ContainerState, CpuThrottle, Original, PodState
from tests.reference.crane.faults import CraneFault
from tests.reference.crane.quotas import CraneQuota, lowered, raised
from tests.reference.crane.sorters import importance, ordered

Marks = Mapping[str, Sequence[float]]
"""Watermarks by metric, ascending, rounded up to whole numbers (Quantity.Value)."""
Gaps = dict[str, float | None]
"""Gaps in millicores or bytes by metric; None: the usage is missing (math.MaxFloat64 in Crane)."""
CLOSED = 1e-6
"""Millicores or bytes: after the repair of OWN_GAP, a smaller gap is closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CraneMetric:
    """A metric that Crane registers. `per_cent` is the state that a percentage refers to, and `unit` the millicores or
    bytes in one unit of it; `freed` is the release of an evicted pod."""

    sorter: str
    freed: Callable[[PodState], float]
    throttled: bool = False
    per_cent: str = ""
    unit: float = 1.0


def _millicores(pod: PodState) -> float:
    return (pod.cpu or 0.0) * 1_000.0


def _bytes(pod: PodState) -> float:
    return float(pod.memory or 0)


METRICS: Mapping[str, CraneMetric] = {
    "cpu_total_usage": CraneMetric(sorter="cpu", freed=_millicores, throttled=True),
    "cpu_total_utilization": CraneMetric(sorter="cpu", freed=_millicores, per_cent="cpu_core_numbers", unit=1_000.0),
    "memory_total_usage": CraneMetric(sorter="mem", freed=_bytes),
    "memory_total_utilization": CraneMetric(sorter="mem", freed=_bytes, per_cent="memory_total"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CraneInputs:
    """The input of an executor. `ratios` are by pod key; `absent` are keys of pods that are not in the cache; `failing`
    are container ids that the runtime refuses and keys of pods that the API refuses to evict. `originals` are quotas by
    container id, which only a repaired fault uses."""

    state: Mapping[str, float]
    pods: Sequence[PodState] = ()
    ratios: Mapping[str, CpuThrottle] = field(default_factory=dict)
    excess: float = 0.0
    absent: frozenset[str] = frozenset()
    failing: frozenset[str] = frozenset()
    originals: Mapping[str, Original] = field(default_factory=dict)
    repaired: frozenset[CraneFault] = frozenset()

    def without_repaired_pods(self, kind: str) -> CraneInputs:
        """Leave out the pods that are candidates only because of a repaired fault."""
        pods, repaired = list(self.pods), self.repaired
        if CraneFault.PROTECTED in repaired:
            pods = [pod for pod in pods if not _is_critical(pod)]
        if CraneFault.FAILED_EVICTIONS in repaired and kind == "evict":
            pods = [pod for pod in pods if pod.key not in self.absent and pod.key not in self.failing]
        return replace(self, pods=pods)


@dataclass(slots=True)
class CranePlan:
    """The result of an executor: `calls` to the runtime (container id, microseconds), keys of `evicted` pods and of
    pods whose release was booked, the `gaps` that are left, and the `order` of the pods at the end."""

    order: list[str]
    calls: list[tuple[str, int]] = field(default_factory=list)
    evicted: list[str] = field(default_factory=list)
    executed: list[str] = field(default_factory=list)
    gaps: Gaps = field(default_factory=dict)
    failed: bool = False
    panicked: bool = False


def eviction_gaps(given: CraneInputs, marks: Marks) -> Gaps:
    """The gaps of eviction. A percentage without the capacity of the node has no gap."""
    gaps: Gaps = {}
    for name, metric in METRICS.items():
        used = given.state.get(name)
        if used is None and (name in marks or CraneFault.ANY_MISSED not in given.repaired):
            gaps[name] = None
        elif used is not None and name in marks:
            gap = (1.0 + given.excess) * (max(0.0, used) - marks[name][0])
            if not metric.per_cent:
                gaps[name] = gap
            elif metric.per_cent in given.state:
                gaps[name] = gap * given.state[metric.per_cent] * metric.unit / 100.0
    return gaps


def throttling_gaps(given: CraneInputs, down: Marks, up: Marks) -> tuple[Gaps, Gaps]:
    """The gaps of throttling and of restoring, which are one map unless SHARED_GAPS is repaired."""
    lower: Gaps = {}
    higher: Gaps = {}
    for name, metric in METRICS.items():
        used = given.state.get(name)
        if not metric.throttled:
            continue
        if used is None:
            lower[name] = higher[name] = None
            continue
        if name in down:
            lower[name] = (1.0 + given.excess) * (max(0.0, used) - down[name][0])
        if name in up:
            excess = -given.excess if CraneFault.RESTORE_EXCESS in given.repaired else given.excess
            higher[name] = (1.0 + excess) * (up[name][0] - max(0.0, used))
    return (lower if CraneFault.SHARED_GAPS in given.repaired else dict(higher)), higher


def quantified(kind: str, marks: Marks) -> tuple[list[str], list[str]]:
    """Divide the metrics by whether a gap can be computed for the action."""
    able = [name for name in marks if _supports(kind, name)]
    return able, [name for name in marks if name not in able]


def _supports(kind: str, name: str) -> bool:
    return name in METRICS and (kind == "evict" or METRICS[name].throttled)


def evict(given: CraneInputs, marks: Marks) -> CranePlan:
    """EvictExecutor.Avoid."""
    given = given.without_repaired_pods("evict")
    pods, made = list(given.pods), CranePlan([pod.key for pod in given.pods])
    if not pods:
        return made
    able, others = quantified("evict", marks)
    if CraneFault.UNABLE in given.repaired:
        marks, others = {name: marks[name] for name in able}, []
    if not others:
        made.gaps = eviction_gaps(given, marks)
    if others or None in made.gaps.values():
        if able:
            made.evicted = [pod.key for pod in pods if _is_evicted(pod, given)]
        return made
    chosen: list[tuple[PodState, str]] = []
    if CraneFault.METRIC_ORDER in given.repaired:
        able.sort(key=lambda name: (METRICS[name].sorter != "mem", name))
    for name in able:
        metric = METRICS[name]
        pods = ordered(metric.sorter, pods, given.repaired)
        pending = [pod for pod in pods if pod.key not in made.executed]
        if CraneFault.FUTILE in given.repaired:
            pending = [pod for pod in pending if metric.freed(pod) > 0.0]
        while (gap := made.gaps.get(name)) is not None and gap > 0.0 and pending:
            pod = pending.pop(0)
            made.executed.append(pod.key)
            chosen.append((pod, metric.sorter))
            _release(pod, made, made.gaps if CraneFault.OWN_GAP in given.repaired else [name])
    if CraneFault.OWN_GAP in given.repaired:
        _spare(chosen, given, made)
    made.order = [pod.key for pod in pods]
    made.evicted = [pod.key for pod in pods if pod.key in made.executed and _is_evicted(pod, given)]
    return made


def _release(pod: PodState, made: CranePlan, names: Iterable[str], sign: float = 1.0) -> None:
    """Subtract the release of an evicted pod from the gaps of these metrics; `sign` -1.0 adds it back."""
    for name in names:
        made.gaps[name] = (made.gaps[name] or 0.0) - sign * METRICS[name].freed(pod)


def _spare(chosen: Sequence[tuple[PodState, str]], given: CraneInputs, made: CranePlan) -> None:
    """Keep the pods, with their sorters, without which all gaps stay closed, the last chosen first. A pod that is less
    important than another chosen one is evicted."""
    left = [pod for pod, _ in chosen]
    for pod, sorter in reversed(chosen):
        _release(pod, made, made.gaps, -1.0)
        others = [other for other in left if other is not pod]
        is_closed = all((gap or 0.0) <= CLOSED for gap in made.gaps.values())
        if is_closed and others and all(importance(sorter, pod, other) >= 0 for other in others):
            left = others
            made.executed.remove(pod.key)
        else:
            _release(pod, made, made.gaps)


def _is_evicted(pod: PodState, given: CraneInputs) -> bool:
    """Whether the eviction of the pod succeeds (utils.EvictPodWithGracePeriod refuses critical pods)."""
    return not _is_critical(pod) and pod.key not in given.absent and pod.key not in given.failing


def _is_critical(pod: PodState) -> bool:
    return pod.static or pod.priority >= CRITICAL_PRIORITY


def throttle(given: CraneInputs, down: Marks, up: Marks | None = None) -> CranePlan:
    """ThrottleExecutor.Avoid."""
    given = given.without_repaired_pods("throttle")
    gaps, _ = throttling_gaps(given, down, up or {})

    def change(container: ContainerState, ratio: CpuThrottle, _: float) -> CraneQuota | None:
        return lowered(container, ratio, given.repaired)

    return _turn(given, down, gaps, given.pods, change)


def restore(given: CraneInputs, up: Marks, down: Marks | None = None, down_pods: Sequence[PodState] = ()) -> CranePlan:
    """ThrottleExecutor.Restore; the pods of `given` are the ones to restore."""
    given = given.without_repaired_pods("restore")
    if not given.pods:
        return CranePlan([])
    _, gaps = throttling_gaps(given, down or {}, up)

    def change(container: ContainerState, ratio: CpuThrottle, share: float) -> CraneQuota | None:
        original, cores = given.originals.get(container.id), given.state.get("cpu_core_numbers")
        return raised(container, ratio, given.repaired, original, cores, share)

    all_pods = given.pods if CraneFault.RESTORE_INDEX in given.repaired else down_pods
    return _turn(given, up, gaps, all_pods, change, is_backward=CraneFault.RESTORE_ORDER in given.repaired)


RESTORED_AT_ONCE = 0.5
Change = Callable[[ContainerState, CpuThrottle, float], CraneQuota | None]
"""The new quota of a container, whose share of the gap is in millicores."""


def _turn(
    given: CraneInputs,
    marks: Marks,
    gaps: Gaps,
    all_pods: Sequence[PodState],
    change: Change,
    *,
    is_backward: bool = False,
) -> CranePlan:
    """Change quotas; without a gap, `all_pods` are indexed."""
    pods, made = list(given.pods), CranePlan([pod.key for pod in given.pods])
    able, others = quantified("throttle", marks)
    if CraneFault.UNABLE in given.repaired:
        others = []
    if not others:
        made.gaps = gaps
    if others or None in made.gaps.values():
        for place in range(len(pods) if able else 0):
            if place >= len(all_pods):
                made.panicked, made.failed = True, False
                break
            _change(all_pods[place], given, change, made)
        return made
    for name in able:
        pods = ordered(METRICS[name].sorter, pods, given.repaired)
        sharing = [pod for pod in pods if _changes(pod, given, change)]
        share = RESTORED_AT_ONCE * (made.gaps.get(name) or 0.0) / max(1, len(sharing))
        for pod in reversed(pods) if is_backward else pods:
            gap = made.gaps.get(name)
            if gap is None or gap <= 0.0:
                break
            made.gaps[name] = gap - _change(pod, given, change, made, share, is_precise=True)
    made.order = [pod.key for pod in pods]
    return made


def _changes(pod: PodState, given: CraneInputs, change: Change) -> bool:
    ratio = given.ratios.get(pod.key, CpuThrottle())
    return any(container.name and change(container, ratio, 0.0) for container in pod.containers)


def _change(
    pod: PodState,
    given: CraneInputs,
    change: Change,
    made: CranePlan,
    share: float = 0.0,
    *,
    is_precise: bool = False,
) -> float:
    """Change the quotas of one pod; returns the release, which is that of the last container that was changed."""
    if pod.key in given.absent:
        made.failed = True
        return 0.0
    released = total = 0.0
    share /= max(1, sum(bool(container.name) and container.cpu is not None for container in pod.containers))
    for container in pod.containers:
        new = change(container, given.ratios.get(pod.key, CpuThrottle()), share) if container.name else None
        if new is None:
            continue
        is_idle = container.quota in (None, 0) and new.released == 0.0
        if is_precise and is_idle and CraneFault.NO_RELEASE in given.repaired:
            continue
        if container.id in given.failing:
            made.failed = True
            continue
        made.calls.append((container.id, new.quota))
        released = released if new.released is None else new.released
        total += new.released or 0.0
    return total if CraneFault.LAST_CONTAINER in given.repaired else released
