"""Computes the next lower and the next higher CPU quota of a container, and the change of its usage;
compares current values with their originals.

u is the usage in cores, q / p the quota in cores (none: unlimited), s the step and m the minimum in percent.

    lower:  base = q / p, or u where there is no quota
            new = max(base * (1 - s / 100), request, limit * m / 100, extended limit * m / 100, 1000 us / p)
            released = 1000 * max(0, min(u, q / p) - new)                                              millicores
    raise:  new = min(max(q / p * (1 + s / 100), u + share), original)
            given back = 1000 * max(0, min(new, cores of the node) - u)                                millicores

Lowering never raises a quota: if a lower bound is above the quota, the quota stays. A container that the kernel did not
throttle gets its original quota in one step, because it does not use its current one. The container's share of the gap
makes giving back as quick as taking away, however small the quota is. Unlimited is restored once the
quota exceeds the cores of the node. The rules follow Crane (pkg/ensurance/executor/cpu_usage.go) without its
faults (docs/reference/differences.md).

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agent.model import ContainerState, CpuThrottle, Original, PodState

LEAST_QUOTA = 1_000
"""Microseconds: the kernel refuses a smaller quota with EINVAL, for any period."""
LEAST_RISE = 0.01
"""Cores: a restore step that the limit `room` makes smaller than this is not written."""
MOST_CORES = 60.0
"""Cores: a quota above this counts as no restriction (the intended meaning of MaxUpQuota in Crane)."""
MILLICORES = 1_000.0


@dataclass(frozen=True, slots=True)
class NewQuota:
    """`quota` in microseconds per period (None: unlimited), and the `millicores` that it releases or gives back."""

    quota: int | None
    millicores: float


def lowered(container: ContainerState, usage: float, ratio: CpuThrottle) -> NewQuota | None:
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


def raised(
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


Originals = Mapping[str, Original]
"""CPU quotas before the agent's first write, by container id."""


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
