"""Emulates the executors of Crane v0.11.0 (executor/watermark.go, evict.go, throttle.go).

Faults: throttling and restoring share one map of gaps, so throttling to a computed gap never happens
(watermark.go:228); a missing metric that no rule names counts as missing (watermark.go:148, :202); where usage is
missing, restoring takes the pods of throttling and panics (throttle.go:227); the excess enlarges the gap of
restoring (watermark.go:232); a release closes the gap of one metric only (evict.go:106); pods that release nothing
are evicted (evict.go:98); an eviction that fails counts as released (cpu_usage.go:205); the release of a pod is
that of its last container (cpu_usage.go:105, :190); pods are restored in the order of throttling (throttle.go:198).

`CraneInputs.repaired` removes the first and the third fault, without which nothing is throttled or restored. Metrics
are processed in the order of the watermarks; Crane's order is random.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from agent.model import CRITICAL_PRIORITY, ContainerState, CpuThrottle, PodState
from tests.reference.crane.quotas import CraneQuota, lowered, raised
from tests.reference.crane.sorters import ordered

Marks = Mapping[str, Sequence[float]]
"""Watermarks by metric, ascending, rounded up to whole numbers (Quantity.Value)."""
Gaps = dict[str, float | None]
"""Gaps in millicores or bytes by metric; None: the usage is missing (math.MaxFloat64 in Crane)."""


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
    """What an executor gets. `ratios` are by pod key; `absent` are keys of pods that the cache does not have; `failing`
    are container ids that the runtime refuses and keys of pods that the API refuses to evict."""

    state: Mapping[str, float]
    pods: Sequence[PodState] = ()
    ratios: Mapping[str, CpuThrottle] = field(default_factory=dict)
    excess: float = 0.0
    absent: frozenset[str] = frozenset()
    failing: frozenset[str] = frozenset()
    repaired: bool = False


@dataclass(slots=True)
class CranePlan:
    """What an executor did: `calls` to the runtime (container id, microseconds), pods `evicted` (keys), the pods whose
    release was booked, the `gaps` that are left, and the `order` of the pods at the end."""

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
        if used is None:
            gaps[name] = None
        elif name in marks:
            gap = (1.0 + given.excess) * (max(0.0, used) - marks[name][0])
            if not metric.per_cent:
                gaps[name] = gap
            elif metric.per_cent in given.state:
                gaps[name] = gap * given.state[metric.per_cent] * metric.unit / 100.0
    return gaps


def throttling_gaps(given: CraneInputs, down: Marks, up: Marks) -> tuple[Gaps, Gaps]:
    """The gaps of throttling and of restoring, which are one map unless they are `repaired`."""
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
            higher[name] = (1.0 + given.excess) * (up[name][0] - max(0.0, used))
    return (lower if given.repaired else dict(higher)), higher


def quantified(kind: str, marks: Marks) -> tuple[list[str], list[str]]:
    """Divide the metrics by whether a gap can be computed for the action."""
    able = [name for name in marks if _supports(kind, name)]
    return able, [name for name in marks if name not in able]


def _supports(kind: str, name: str) -> bool:
    return name in METRICS and (kind == "evict" or METRICS[name].throttled)


def evict(given: CraneInputs, marks: Marks) -> CranePlan:
    """EvictExecutor.Avoid."""
    pods, made = list(given.pods), CranePlan([pod.key for pod in given.pods])
    if not pods:
        return made
    able, others = quantified("evict", marks)
    if not others:
        made.gaps = eviction_gaps(given, marks)
    if others or None in made.gaps.values():
        if able:
            made.evicted = [pod.key for pod in pods if _goes(pod, given)]
        return made
    for name in able:
        metric = METRICS[name]
        pods = ordered(metric.sorter, pods)
        pending = [pod for pod in pods if pod.key not in made.executed]
        while (gap := made.gaps.get(name)) is not None and gap > 0.0 and pending:
            pod = pending.pop(0)
            made.executed.append(pod.key)
            made.gaps[name] = gap - metric.freed(pod)
    made.order = [pod.key for pod in pods]
    made.evicted = [pod.key for pod in pods if pod.key in made.executed and _goes(pod, given)]
    return made


def _goes(pod: PodState, given: CraneInputs) -> bool:
    """Whether the eviction of the pod succeeds (utils.EvictPodWithGracePeriod refuses critical pods)."""
    critical = pod.static or pod.priority >= CRITICAL_PRIORITY
    return not critical and pod.key not in given.absent and pod.key not in given.failing


def throttle(given: CraneInputs, down: Marks, up: Marks | None = None) -> CranePlan:
    """ThrottleExecutor.Avoid."""
    gaps, _ = throttling_gaps(given, down, up or {})
    return _turn(given, down, gaps, given.pods, lowered)


def restore(given: CraneInputs, up: Marks, down: Marks | None = None, down_pods: Sequence[PodState] = ()) -> CranePlan:
    """ThrottleExecutor.Restore; the pods of `given` are the ones to restore."""
    if not given.pods:
        return CranePlan([])
    _, gaps = throttling_gaps(given, down or {}, up)
    return _turn(given, up, gaps, given.pods if given.repaired else down_pods, raised)


def _turn(
    given: CraneInputs,
    marks: Marks,
    gaps: Gaps,
    all_pods: Sequence[PodState],
    change: Callable[[ContainerState, CpuThrottle], CraneQuota | None],
) -> CranePlan:
    """Change quotas; `all_pods` are indexed where no gap can be computed."""
    pods, made = list(given.pods), CranePlan([pod.key for pod in given.pods])
    able, others = quantified("throttle", marks)
    if not others:
        made.gaps = gaps
    if others or None in made.gaps.values():
        for place in range(len(pods) if able else 0):
            if place >= len(all_pods):
                made.panicked = True
                break
            _change(all_pods[place], given, change, made)
        return made
    for name in able:
        pods = ordered(METRICS[name].sorter, pods)
        for pod in pods:
            gap = made.gaps.get(name)
            if gap is None or gap <= 0.0:
                break
            made.gaps[name] = gap - _change(pod, given, change, made)
    made.order = [pod.key for pod in pods]
    return made


def _change(
    pod: PodState,
    given: CraneInputs,
    change: Callable[[ContainerState, CpuThrottle], CraneQuota | None],
    made: CranePlan,
) -> float:
    """Change the quotas of one pod; returns the release of the last container that was changed."""
    if pod.key in given.absent:
        made.failed = True
        return 0.0
    released = 0.0
    for container in pod.containers:
        new = change(container, given.ratios.get(pod.key, CpuThrottle())) if container.name else None
        if new is None:
            continue
        if container.id in given.failing:
            made.failed = True
            continue
        made.calls.append((container.id, new.quota))
        released = released if new.released is None else new.released
    return released
