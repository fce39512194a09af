"""The arithmetic of the plan checker, written from docs/concepts/agent.md: which steps reduce which metric, the order
of pods, gaps, and quotas. It uses values of agent.model and no function of the product."""

from __future__ import annotations

from dataclasses import dataclass

from agent.model import ContainerState, Original, PodState, State

EXCESS = 0.1
LEAST_QUOTA = 1_000
LEAST_RISE = 0.01
MOST_CORES = 60.0
TINY = 1e-3
"""Millicores or bytes: differences up to this are rounding errors."""
ROUNDED = 0.1
"""Millicores: a quota is a whole number of microseconds, so a restoring step leaves up to this unused."""
CLASSES = ("", "BestEffort", "Burstable", "Guaranteed")


@dataclass(frozen=True, slots=True)
class Measure:
    """A metric as docs/concepts/agent.md lists it. `throttle` and `evict` are "gap" (until the gap is closed), "all"
    (all pods of its rules) or "" (no pods); `capacity` is the metric in hundredths of which a percentage is
    measured."""

    resource: str = ""
    urgency: int = 0
    throttle: str = ""
    evict: str = ""
    capacity: str = ""
    lag: float = 0.0

    def how(self, kind: str) -> str:
        """ "gap", "all" or "" for steps of this kind."""
        if kind == "reclaim":
            return "gap" if self.resource == "memory" else ""
        return self.evict if kind == "evict" else self.throttle

    def per_unit(self, state: State) -> float | None:
        """Millicores or bytes in one unit of the metric."""
        if not self.capacity:
            return 1.0
        whole = state.value(self.capacity)
        return None if whole is None else whole * (10.0 if self.resource == "cpu" else 0.01)


QUEUE = "queue_length"
MEASURES = {
    "cpu_total_usage": Measure("cpu", 5, "gap", "gap"),
    "cpu_total_utilization": Measure("cpu", 5, "gap", "gap", "cpu_core_numbers"),
    "memory_total_usage": Measure("memory", 10, "", "gap"),
    "memory_total_utilization": Measure("memory", 10, "", "gap", "memory_total"),
    "disk_read_iops": Measure("", 2, "", "all"),
    QUEUE: Measure("", 0, "all", "all", lag=60.0),
    "cpu_load_1_min": Measure(),
    "psi_cpu_some_avg10": Measure(),
    "window_cpu_avg_5m": Measure(),
}


def most_urgent_first(names: set[str]) -> list[str]:
    return sorted(names, key=lambda name: (-MEASURES[name].urgency, name))


def importance(pod: PodState) -> tuple[int, int]:
    """Class and priority: pods with lower values are acted on first."""
    return CLASSES.index(pod.qos.value), pod.priority


def order(pod: PodState, resource: str) -> tuple[float | str, ...]:
    """The sort key of a pod for a metric of this resource: the lowest is acted on first."""
    used = {"cpu": pod.cpu, "memory": pod.memory}.get(resource, 0.0)
    youngest = float("-inf") if pod.start_time is None else -pod.start_time
    return (*importance(pod), -round(used or 0.0, 9), youngest, pod.key)


def usage(pod: PodState, resource: str) -> float:
    """Millicores or bytes that the eviction of the pod releases."""
    return (pod.cpu or 0.0) * 1_000.0 if resource == "cpu" else float(pod.memory or 0) if resource == "memory" else 0.0


def gap_above(used: float, watermark: float, unit: float, pending: float) -> float:
    """What throttling or eviction must release; `pending` is the release of earlier steps."""
    return (1.0 + EXCESS) * (max(0.0, used - pending / unit) - watermark) * unit


def gap_below(used: float, watermark: float, unit: float, pending: float) -> float:
    """What restoring may give back; `pending` is the increase of earlier steps."""
    return (1.0 - EXCESS) * (watermark - max(0.0, used + pending / unit)) * unit


def lower_quota(container: ContainerState, step: int, least: int) -> tuple[int, float] | None:
    """The quota in microseconds one step down with its release in millicores; None at the minimum. Without a gap, a
    container without a quota gets one even if it releases nothing."""
    usage_now = container.cpu or 0.0
    now = None if container.quota is None else container.quota / container.period
    floors = [container.cpu_request or 0.0, (container.cpu_limit or 0.0) * least / 100.0]
    floors.append(LEAST_QUOTA / container.period)
    cores = max([(usage_now if now is None else now) * (1.0 - step / 100.0), *floors])
    quota = max(LEAST_QUOTA, int(cores * container.period))
    if now is not None and (cores >= now or quota >= (container.quota or 0)):
        return None
    released = 1_000.0 * max(0.0, (usage_now if now is None else min(usage_now, now)) - cores)
    return quota, released


def highest_quota(container: ContainerState, step: int, original: Original, node_cores: float) -> tuple[float, float]:
    """The highest quota in cores that one restoring step may set (infinity: none), and its increase in millicores."""
    quota = (container.quota or 0) / container.period
    goal = float("inf") if original.quota is None else original.quota / original.period
    if container.throttled is False:
        return goal, 0.0
    most = min(MOST_CORES, node_cores)
    nearly = most if original.quota is None else goal
    cores = goal if step <= 0 else quota * (1.0 + step / 100.0)
    cores = goal if cores >= nearly else cores
    return cores, 1_000.0 * max(0.0, min(cores, most) - (container.cpu or 0.0))


def is_lowered(container: ContainerState, original: Original | None) -> bool:
    """Whether the quota is below its original value."""
    if original is None or container.quota is None:
        return False
    return original.quota is None or container.quota / container.period < original.quota / original.period
