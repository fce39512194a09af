"""Plans steps on a pod for a metric: lowering and restoring the CPU quotas of its containers, and evicting it.

u is the usage in cores, q / p the quota in cores (none: unlimited), s the step and m the minimum in percent.

    lower:  base = q / p, or u where there is no quota
            new = max(base * (1 - s / 100), request, limit * m / 100, extended limit * m / 100, 1000 us / p)
            released = 1000 * max(0, min(u, q / p) - new)                                              millicores
    raise:  new = min(max(q / p * (1 + s / 100), u + share), original)
            given back = 1000 * max(0, min(new, cores of the node) - u)                                millicores

Lowering never raises a quota: if a lower bound is above the quota, the quota stays. A container that the kernel did not
throttle gets its original quota in one step, because it does not use its current one. The container's share of the gap
makes giving back as quick as taking away, however small the quota is. Unlimited is restored once the quota exceeds the
cores of the node. The rules follow Crane (pkg/ensurance/executor/cpu_usage.go) without its faults
(docs/reference/differences.md).

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from agent.metrics.action_metric import EvictFunction, PlanContext, PodSteps, ThrottleFunction, eviction
from agent.model import (
    CPU,
    EXTENDED_CPU,
    MEMORY,
    ContainerState,
    CpuThrottle,
    Original,
    Originals,
    PodState,
    QuotaChange,
    StageKind,
    Step,
)

LEAST_QUOTA = 1_000
"""Microseconds: the kernel refuses a smaller quota with EINVAL, for any period."""
LEAST_RISE = 0.01
"""Cores: a restore step that the limit `room` makes smaller than this is not written."""
MOST_CORES = 60.0
"""Cores: a quota above this counts as no restriction (the intended meaning of MaxUpQuota in Crane)."""
MILLICORES = 1_000.0
NODE_CORES = "cpu_core_numbers"
UNKNOWN_CPU = "its CPU usage is unknown, so the release cannot be computed"
UNKNOWN_MEMORY = "its memory usage is unknown, so the release cannot be computed"


@dataclass(frozen=True, slots=True)
class NewQuota:
    """`quota` in microseconds per period (None: unlimited), and the `millicores` that it releases or gives back."""

    quota: int | None
    millicores: float


NextQuota = Callable[[ContainerState, float, CpuThrottle, PlanContext], NewQuota | None]


def usage_released(pod: PodState) -> dict[str, float]:
    """Known usage of the pod, which its eviction releases: by resource, in millicores and bytes."""
    released: dict[str, float] = {}
    if pod.cpu is not None:
        released[CPU] = MILLICORES * pod.cpu
        if pod.extended_cpu_limit:
            released[EXTENDED_CPU] = released[CPU]
    if pod.memory is not None:
        released[MEMORY] = float(pod.memory)
    return released


def evicting(metric: str, resource: str = "") -> EvictFunction:
    """Return a function that plans the eviction of a pod for a metric. If the pod's usage of `resource` is unknown, it
    plans no step. Without `resource` the metric is not quantified, and the known usage is the release."""

    def evict(pod: PodState, grace: float | None, circumstances: PlanContext) -> PodSteps:
        released = usage_released(pod)
        if resource == EXTENDED_CPU and not pod.extended_cpu_limit:
            return PodSteps(problem="it has no extended CPU (gocrane.io/cpu)")
        if resource and resource not in released:
            unknown = UNKNOWN_MEMORY if resource == MEMORY else UNKNOWN_CPU
            return PodSteps(problem=pod.unmeasured or unknown, unknown=True)
        return eviction(pod, grace, metric, released)

    return evict


def throttling(metric: str) -> ThrottleFunction:
    """Return a function that plans lowering the CPU quota of each container of a pod by one step."""

    def throttle(pod: PodState, ratio: CpuThrottle, circumstances: PlanContext) -> PodSteps:
        if ratio.step_ratio <= 0:
            return PodSteps(problem="its action has stepCPURatio 0, which lowers nothing")
        planned = _steps(pod, metric, ratio, circumstances, _lower)
        if planned.steps or planned.problem:
            return planned
        return PodSteps(problem="its quotas are at their minimum (request, minCPURatio, or the kernel's minimum)")

    return throttle


def restoring(metric: str) -> ThrottleFunction:
    """Return a function that plans raising the CPU quota of each container of a pod by one step, towards the
    original."""

    def restore(pod: PodState, ratio: CpuThrottle, circumstances: PlanContext) -> PodSteps:
        planned = _steps(pod, metric, ratio, circumstances, _raise)
        if planned.steps or planned.problem:
            return planned
        at_home = not quota_lowered(pod, circumstances.originals)
        return PodSteps(problem="it has its original quotas" if at_home else "a step would exceed the watermark")

    return restore


def _lower(container: ContainerState, usage: float, ratio: CpuThrottle, _: PlanContext) -> NewQuota | None:
    return lower_quota(container, usage, ratio)


def _raise(container: ContainerState, usage: float, ratio: CpuThrottle, circumstances: PlanContext) -> NewQuota | None:
    original = circumstances.originals.get(container.id)
    if original is None:
        return None
    cores = circumstances.state.value(NODE_CORES)
    room, share = circumstances.max_restore, circumstances.restore_share
    return raise_quota(container, usage, ratio, original, node_cores=cores, room=room, share=share)


def _steps(
    pod: PodState, metric: str, ratio: CpuThrottle, circumstances: PlanContext, next_quota: NextQuota
) -> PodSteps:
    """The steps of all containers with a name (the sandbox has none) and a known usage, and their total release."""
    steps: list[Step] = []
    changes: list[float] = []
    containers = [container for container in pod.containers if container.name]
    known = [container for container in containers if container.cpu is not None]
    if not known and (containers or pod.unmeasured):
        return PodSteps(problem=pod.unmeasured or UNKNOWN_CPU, unknown=True)
    if not known:
        return PodSteps(problem="it has no running container")
    if circumstances.restore_share is not None:
        circumstances = replace(circumstances, restore_share=circumstances.restore_share / len(known))
    for container in known:
        new = next_quota(container, container.cpu or 0.0, ratio, circumstances)
        if new is None:
            continue
        restores = next_quota is _raise
        steps.append(_step(pod, container, metric, new, restores=restores))
        changes.append(new.millicores)
        if restores and circumstances.max_restore is not None:
            room = max(0.0, circumstances.max_restore - new.millicores)
            circumstances = replace(circumstances, max_restore=room)
    if not steps:
        return PodSteps()
    return PodSteps(tuple(steps), _released(pod, sum(changes)))


def _step(pod: PodState, container: ContainerState, metric: str, new: NewQuota, *, restores: bool) -> Step:
    change = QuotaChange(container.name, container.id, container.quota, new.quota, container.period)
    kind: StageKind = "restore" if restores else "throttle"
    return Step(kind, change, pod.key, pod.uid, metric, _released(pod, new.millicores))


def _released(pod: PodState, millicores: float) -> dict[str, float]:
    return {CPU: millicores, **({EXTENDED_CPU: millicores} if pod.extended_cpu_limit else {})}


# --- quotas ----------------------------------------------------------------------------------------------------------


def lower_quota(container: ContainerState, usage: float, ratio: CpuThrottle) -> NewQuota | None:
    """The next lower quota for a container with this usage in cores; None if the quota is at its minimum."""
    quota = quota_cores(container)
    base = usage if quota is None else quota
    floors = (
        container.cpu_request or 0.0,
        (container.cpu_limit or 0.0) * ratio.min_ratio / 100.0,
        (container.extended_cpu_limit or 0.0) * ratio.min_ratio / 100.0,
        LEAST_QUOTA / container.period,
    )
    cores = max(base * (1.0 - ratio.step_ratio / 100.0), *floors)
    after = max(int(cores * container.period), LEAST_QUOTA)
    if quota is not None and (cores >= quota or after == container.quota):
        return None
    used = usage if quota is None else min(usage, quota)
    return NewQuota(after, MILLICORES * max(0.0, used - cores))


def raise_quota(
    container: ContainerState,
    usage: float,
    ratio: CpuThrottle,
    original: Original,
    *,
    node_cores: float | None = None,
    room: float | None = None,
    share: float | None = None,
) -> NewQuota | None:
    """The next higher quota towards the original one, giving back at least `share` and at most `room` millicores; None
    if the original is reached, or if `room` is too small for a step. `usage` is in cores."""
    quota = quota_cores(container)
    goal = None if original.quota is None else original.quota / original.period
    if quota is None or (goal is not None and quota >= goal):
        return None
    most = min(MOST_CORES, node_cores or MOST_CORES)
    if container.throttled is False:
        return NewQuota(_scaled(original, container.period), 0.0)
    goal = most if goal is None else goal
    cores = quota * (1.0 + ratio.step_ratio / 100.0) if ratio.step_ratio > 0 else goal
    if share is not None:
        cores = max(cores, usage + share / MILLICORES)
    if room is not None and cores > (most_cores := usage + max(0.0, room) / MILLICORES):
        if most_cores < quota + LEAST_RISE:
            return None
        cores = most_cores
    if cores >= goal:
        return NewQuota(_scaled(original, container.period), _came_back(usage, goal, most))
    after = int(cores * container.period)
    if container.quota is not None and after <= container.quota:
        return None
    return NewQuota(after, _came_back(usage, cores, most))


def _came_back(usage: float, cores: float, most: float) -> float:
    return MILLICORES * max(0.0, min(cores, most) - usage)


def _scaled(original: Original, period: int) -> int | None:
    """The original quota in microseconds, converted to the current period if that has changed."""
    if original.quota is None or original.period == period:
        return original.quota
    return max(LEAST_QUOTA, original.quota * period // original.period)


def quota_cores(container: ContainerState) -> float | None:
    """The quota in cores; None if there is none (-1 in cgroup v1, 0 in cAdvisor)."""
    if container.quota is None or container.quota <= 0:
        return None
    return container.quota / container.period


def is_original(container: ContainerState, original: Original | None) -> bool:
    """Whether the quota was never lowered, or has its original value again."""
    now = quota_cores(container)
    if original is None or now is None:
        return True
    return original.quota is not None and now >= original.quota / original.period


def quota_lowered(pod: PodState, originals: Originals) -> bool:
    """Whether any container of the pod has a quota below its original value."""
    return any(not is_original(each, originals.get(each.id)) for each in pod.containers)
