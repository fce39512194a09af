"""LowNodeUtilization of kubernetes-sigs/descheduler 0.34, with one Prometheus metric per node.

From pkg/framework/plugins/nodeutilization: a node is underutilized at or below the low threshold, overutilized above
the high one. With the metric of a node, descheduler does not know the usage of pods; so it evicts one pod of each
overutilized node in a round, or up to its limit per node: those with the lowest priority, then QoS class. Ties are
in the order of names here, and arbitrary in Go. The default evictor does not check whether a pod fits elsewhere.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from lab.balancers.view import BalancerActions, ClusterView, ObservedPod, PodsOfNode, is_evictable
from watcher.arrays import F64, I64

QOS_ORDER = {"BestEffort": 0, "Burstable": 1, "Guaranteed": 2}
MINUTES = 5
PodFilter = Callable[[ObservedPod], bool]


@dataclass(frozen=True, slots=True)
class UtilizationThresholds:
    """`low` and `high` in percent, with `deviation` in percentage points below and above the mean of the nodes."""

    low: float
    high: float
    deviation: bool = False

    def limits(self, percent: F64) -> tuple[float, float]:
        """The low and the high threshold in percent for the `percent` of all nodes [n]."""
        if not self.deviation:
            return self.low, self.high
        mean = float(percent.mean())
        return min(max(mean - self.low, 0.0), 100.0), min(max(mean + self.high, 0.0), 100.0)


@dataclass(frozen=True, slots=True)
class EvictionLimits:
    """The number of evictions in a round, per node and in total; None: one per node, and no limit in total."""

    node: int | None = None
    total: int | None = None


def percent_of(values: F64) -> F64:
    """The percentages that the plug-in compares: `values` [n] of the metric, 0 to 1, without their fraction of a
    percent."""
    return np.trunc(100.0 * values)


def pods_to_evict(
    values: F64,
    thresholds: UtilizationThresholds,
    pods: PodsOfNode,
    *,
    limits: EvictionLimits,
    taints: I64,
    allowed: PodFilter = lambda _: True,
) -> list[str]:
    """Return the uids that a round evicts, in order, for the `values` [n] of the metric, 0 to 1. Without a value for
    each node, the round is an error and evicts nothing. `allowed` is the pre-eviction filter of further plug-ins."""
    if not len(values) or np.isnan(values).any():
        return []
    percent = percent_of(values)
    lower, upper = thresholds.limits(percent)
    low = percent <= lower
    high = ~low & (percent > upper)
    target = np.trunc(upper * 0.01 * 100.0)  # of a capacity of 100
    if not low.any() or low.all() or not high.any() or (target - percent[low]).sum() <= 0.0:
        return []
    if taints[low].all():  # a pod has no tolerations
        return []
    found: list[str] = []
    for node in sorted(np.flatnonzero(high).tolist(), key=lambda node: (-percent[node], node)):
        if percent[node] <= target:
            continue
        for pod in _of_node(pods(node), allowed, limits.node or 1):
            if limits.total is not None and len(found) >= limits.total:
                return found
            found.append(pod.uid)
    return found


def _of_node(pods: Sequence[ObservedPod], allowed: PodFilter, most: int) -> list[ObservedPod]:
    """The pods of an overutilized node that a round evicts."""
    removable = [pod for pod in pods if is_evictable(pod)]
    removable.sort(key=lambda pod: (pod.priority, QOS_ORDER[pod.qos], pod.namespace, pod.name))
    return [pod for pod in removable if allowed(pod)][:most]


@dataclass(frozen=True, slots=True)
class Descheduler:
    """Descheduler with the CPU usage of nodes, a mean of five minutes, in rounds of five minutes."""

    thresholds: UtilizationThresholds
    interval_s: float = 300.0
    horizon: str = ""
    score_weight: int = 0

    def decide(self, view: ClusterView) -> BalancerActions:
        values = view.mean_use(MINUTES)[0]
        limits = EvictionLimits()
        return BalancerActions(pods_to_evict(values, self.thresholds, view.pods, limits=limits, taints=view.taints))
