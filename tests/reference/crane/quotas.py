"""CPU quotas of a container in Crane v0.11.0 (executor/cpu_usage.go: throttleOnePodCpu, restoreOnePodCpu).

Faults: the minimum of minCPURatio is a hundred times too high (cpu_usage.go:89); the minimum of the kernel is not
applied; a minimum above the quota raises the quota; a quota that Crane never lowered is raised; a container with
an extended limit gets this limit in one step; a quota never becomes unlimited again, because 60 is compared as
60 * period cores (cpu_usage.go:165).
"""

from __future__ import annotations

from dataclasses import dataclass

from agent.model import ContainerState, CpuThrottle
from tests.reference.crane.sorters import almost_equal

UNLIMITED = -1
MOST_UP = 60_000
"""MaxUpQuota (throttle.go:18)."""


@dataclass(frozen=True, slots=True)
class CraneQuota:
    """`quota` in microseconds per period, as Crane sends it to the runtime, and its release in millicores; None: Crane
    keeps the release of the container before."""

    quota: int
    released: float | None


def _quota(container: ContainerState) -> float:
    return float(UNLIMITED) if container.quota is None else float(container.quota)


def lowered(container: ContainerState, ratio: CpuThrottle) -> CraneQuota | None:
    """The next lower quota; None if Crane writes nothing."""
    quota, usage = _quota(container), container.cpu or 0.0
    free = almost_equal(quota, UNLIMITED) or almost_equal(quota, 0.0)
    cores = (usage if free else quota / container.period) * (1.0 - ratio.step_ratio / 100.0)
    if container.cpu_request is not None and container.cpu_request > cores:
        cores = container.cpu_request
    if container.cpu_limit is not None and container.cpu_limit * ratio.min_ratio / 100.0 > cores:
        cores = container.cpu_limit * 1_000.0 * ratio.min_ratio / 1_000.0
    if almost_equal(cores * container.period, quota):
        return None
    return CraneQuota(int(cores * container.period), max(0.0, (usage - cores) * 1_000.0))


def raised(container: ContainerState, ratio: CpuThrottle) -> CraneQuota | None:
    """The next higher quota; None if Crane writes nothing."""
    quota, usage = _quota(container), container.cpu or 0.0
    if almost_equal(quota, UNLIMITED) or almost_equal(quota, 0.0):
        return None
    cores = quota / container.period * (1.0 + ratio.step_ratio / 100.0)
    if container.cpu_limit is not None:
        cores = min(cores, container.cpu_limit)
    elif container.extended_cpu_limit:
        cores = container.extended_cpu_limit
    elif cores > MOST_UP * container.period / 1_000.0:
        cores = float(UNLIMITED)
    if almost_equal(cores * container.period, quota):
        return None
    if almost_equal(cores, UNLIMITED):
        return CraneQuota(UNLIMITED, None)
    return CraneQuota(int(cores * container.period), max(0.0, (cores - usage) * 1_000.0))
