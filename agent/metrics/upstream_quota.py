"""CPU quotas computed as in Crane, including its faults, for `UpstreamQuirk.QUOTAS`: for comparison, not recommended.

Differences from cpu_quota.py: the minimum from minCPURatio is a hundred times too high; the kernel's minimum is not
applied; a minimum above the quota raises the quota; only the release of a pod's last container counts; a quota that was
never lowered is raised too; a container with an extended limit gets that limit at once; unlimited is never restored.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from agent.metrics.cpu_quota import MILLICORES, NewQuota, quota_cores
from agent.model import ContainerState, CpuThrottle

_SAME = 1e-9


def lowered(container: ContainerState, usage: float, ratio: CpuThrottle) -> NewQuota | None:
    """The next lower quota for a container with this usage in cores; None if it does not change."""
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
    """The next higher quota for a container with this usage in cores; None if the container has no quota."""
    quota = quota_cores(container)
    if quota is None:
        return None
    cores = quota * (1.0 + ratio.step_ratio / 100.0)
    if container.cpu_limit is not None:
        cores = min(cores, container.cpu_limit)
    elif container.extended_cpu_limit is not None:
        cores = container.extended_cpu_limit
    return NewQuota(int(cores * container.period), MILLICORES * max(0.0, cores - usage))
