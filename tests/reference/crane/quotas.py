"""CPU quotas of a container in Crane v0.11.0 (executor/cpu_usage.go: throttleOnePodCpu, restoreOnePodCpu)."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from agent.model import ContainerState, CpuThrottle, Original
from tests.reference.crane.faults import CraneFault
from tests.reference.crane.sorters import almost_equal

UNLIMITED = -1
MOST_UP = 60_000
"""MaxUpQuota (throttle.go:18), intended as 60 cores."""
LEAST = 1_000
"""Microseconds: the smallest quota that the kernel accepts. Crane does not apply it."""


@dataclass(frozen=True, slots=True)
class CraneQuota:
    """`quota` in microseconds per period, as Crane sends it to the runtime, and its release in millicores; None: Crane
    keeps the release of the container before."""

    quota: int
    released: float | None


def _quota(container: ContainerState) -> float:
    return float(UNLIMITED) if container.quota is None else float(container.quota)


def _is_free(quota: float) -> bool:
    return almost_equal(quota, UNLIMITED) or almost_equal(quota, 0.0)


def lowered(container: ContainerState, ratio: CpuThrottle, repaired: Set[CraneFault]) -> CraneQuota | None:
    """The next lower quota; None if nothing is written."""
    quota, usage = _quota(container), container.cpu or 0.0
    cores = (usage if _is_free(quota) else quota / container.period) * (1.0 - ratio.step_ratio / 100.0)
    if container.cpu_request is not None and container.cpu_request > cores:
        cores = container.cpu_request
    if container.cpu_limit is not None and container.cpu_limit * ratio.min_ratio / 100.0 > cores:
        if CraneFault.MIN_RATIO in repaired:
            cores = container.cpu_limit * ratio.min_ratio / 100.0
        else:
            cores = container.cpu_limit * 1_000.0 * ratio.min_ratio / 1_000.0
    if CraneFault.NO_EXTENDED_FLOOR in repaired:
        cores = max(cores, (container.extended_cpu_limit or 0.0) * ratio.min_ratio / 100.0)
    if CraneFault.NO_LEAST in repaired:
        cores = max(cores, LEAST / container.period)
    if almost_equal(cores * container.period, quota):
        return None
    if CraneFault.RAISES in repaired and not _is_free(quota) and cores * container.period >= quota:
        return None
    if CraneFault.NO_RELEASE in repaired and ratio.step_ratio == 0:
        return None
    least = LEAST if CraneFault.NO_LEAST in repaired else 0
    return CraneQuota(max(int(cores * container.period), least), max(0.0, (usage - cores) * 1_000.0))


def raised(
    container: ContainerState,
    ratio: CpuThrottle,
    repaired: Set[CraneFault],
    original: Original | None = None,
    node_cores: float | None = None,
    share: float = 0.0,
) -> CraneQuota | None:
    """The next higher quota; None if nothing is written. `original`, the quota before the first write, the cores of the
    node, and the container's share of the gap in millicores are for repaired faults."""
    quota, usage = _quota(container), container.cpu or 0.0
    if _is_free(quota):
        return None
    most = min(MOST_UP / 1_000.0, node_cores or MOST_UP / 1_000.0)
    goal = None if original is None or original.quota is None else original.quota / original.period
    if CraneFault.NO_ORIGINAL in repaired and goal is not None and quota / container.period >= goal:
        return None
    cores = quota / container.period * (1.0 + ratio.step_ratio / 100.0)
    if CraneFault.STEP_ZERO in repaired and ratio.step_ratio == 0:
        cores = most if goal is None else goal
    if CraneFault.SMALL_STEPS in repaired and share > 0.0:
        cores = max(cores, usage + share / 1_000.0)
    if container.cpu_limit is not None:
        cores = min(cores, container.cpu_limit)
    elif container.extended_cpu_limit and CraneFault.EXTENDED_JUMP not in repaired:
        cores = container.extended_cpu_limit
    elif CraneFault.NEVER_UNLIMITED in repaired and cores >= most:
        return CraneQuota(UNLIMITED, max(0.0, (most - usage) * 1_000.0))
    elif cores > MOST_UP * container.period / 1_000.0:
        cores = float(UNLIMITED)
    if almost_equal(cores * container.period, quota):
        return None
    if almost_equal(cores, UNLIMITED):
        return CraneQuota(UNLIMITED, None)
    return CraneQuota(int(cores * container.period), max(0.0, (cores - usage) * 1_000.0))
