"""How far a container's CPU quota is lowered and raised, and what that does to its usage.

u is the usage in cores, q / p the quota in cores (none: unlimited), s the step and m the floor in percent.

    lower:  base = q / p, or u where there is no quota
            new = max(base * (1 - s / 100), request, limit * m / 100, extended limit * m / 100, 1000 us / p)
            released = 1000 * max(0, min(u, q / p) - new)                                              millicores
    raise:  new = min(q / p * (1 + s / 100), original)
            came back = 1000 * max(0, min(new, cores of the node) - u)                                 millicores

Lowering never raises: a floor above the quota leaves it alone. A container that the kernel did not hold back gets its
original quota at once, for it does not use what it has; unlimited is given back once the quota is beyond what the node
has. The rules are upstream's (pkg/ensurance/executor/cpu_usage.go) without its faults: see upstream_quota.py.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent.metrics.original_values import quota_cores
from agent.model import ContainerState, CpuThrottle, Original

LEAST_QUOTA = 1_000
"""Microseconds: the kernel refuses less with EINVAL, whatever the period."""
LEAST_RISE = 0.01
"""Cores: a step that lack of room makes smaller than this is not worth a write."""
MOST_CORES = 60.0
"""A quota of more cores than this holds nobody back (upstream's MaxUpQuota, as it was meant)."""
MILLICORES = 1_000.0


@dataclass(frozen=True, slots=True)
class NewQuota:
    """`quota` in microseconds a period (None: unlimited), and the millicores that it frees or lets come back."""

    quota: int | None
    millicores: float


def lowered(container: ContainerState, usage: float, ratio: CpuThrottle) -> NewQuota | None:
    """The next quota down for a container that uses so many cores; None if it may not be lower than it is."""
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
) -> NewQuota | None:
    """The next quota up towards the original one, bringing back no more than `room` millicores; None if it is there
    already, or if there is no room worth a step."""
    quota = quota_cores(container)
    goal = None if original.quota is None else original.quota / original.period
    if quota is None or (goal is not None and quota >= goal):
        return None
    most = min(MOST_CORES, node_cores or MOST_CORES)
    if container.throttled is False:
        return NewQuota(_scaled(original, container.period), 0.0)
    goal = most if goal is None else goal
    cores = quota * (1.0 + ratio.step_ratio / 100.0) if ratio.step_ratio > 0 else goal
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
    """The original quota; had the period been changed meanwhile, as many cores of the new one."""
    if original.quota is None or original.period == period:
        return original.quota
    return max(LEAST_QUOTA, original.quota * period // original.period)
