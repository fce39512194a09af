"""Upstream's arithmetic of CPU quotas, faults and all, for `Quirk.QUOTAS`: to compare with, not to be recommended.

What differs from cpu_quota.py: the floor of minCPURatio is a hundred times too high; there is no floor for what the
kernel takes; a floor above the quota raises it; of a pod's containers only the last one's release counts; a quota that
was never lowered is raised too; a container with an extended limit jumps to it; unlimited is never given back.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from agent.metrics.cpu_quota import MILLICORES, NewQuota
from agent.metrics.original_values import quota_cores
from agent.model import ContainerState, CpuThrottle

_SAME = 1e-9


def lowered(container: ContainerState, usage: float, ratio: CpuThrottle) -> NewQuota | None:
    """The next quota down."""
    quota = quota_cores(container)
    cores = (usage if quota is None else quota) * (1.0 - ratio.step_ratio / 100.0)
    if container.cpu_request is not None and container.cpu_request > cores:
        cores = container.cpu_request
    if container.cpu_limit is not None and container.cpu_limit * ratio.min_ratio / 100.0 > cores:
        cores = container.cpu_limit * ratio.min_ratio
    written = -1 if container.quota is None else container.quota
    if abs(cores * container.period - written) <= _SAME:
        return None
    return NewQuota(int(cores * container.period), MILLICORES * max(0.0, usage - cores))


def raised(container: ContainerState, usage: float, ratio: CpuThrottle) -> NewQuota | None:
    """The next quota up; None where there is none to raise."""
    quota = quota_cores(container)
    if quota is None:
        return None
    cores = quota * (1.0 + ratio.step_ratio / 100.0)
    if container.cpu_limit is not None:
        cores = min(cores, container.cpu_limit)
    elif container.extended_cpu_limit is not None:
        cores = container.extended_cpu_limit
    return NewQuota(int(cores * container.period), MILLICORES * max(0.0, cores - usage))
