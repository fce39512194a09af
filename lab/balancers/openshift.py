"""KubeVirtRelieveAndMigrate of OpenShift's Kube Descheduler Operator: a score of nodes, descheduler's
LowNodeUtilization, a cool-down, and the soft tainter.

From github.com/openshift/cluster-kube-descheduler-operator (pkg/operator/profiles, pkg/softtainter, pull request 1744)
and the plug-in KubevirtMigrationAware. The score of a node is the distance from the mean of the nodes, of which only
dimensions above the mean count: usage and pressure of CPU, usage and pressure of memory. Each dimension is the 0.66
quantile of five minutes before they are combined, and the distance is multiplied by three. A round of 60 s evicts from
nodes 10 points above the mean score, at most two pods of a node and five in total.

Three things are not as in OpenShift: each pod is a virtual machine; pressure is the share of the demand that a node
could not serve; and the rule for the multiplier of nodes that were recently evicted from is an assumption, because its
constants are not in the public text of the pull request.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from lab.balancers.low_node_utilization import EvictionLimits, UtilizationThresholds, percent_of, pods_to_evict
from lab.balancers.view import BalancerActions, ClusterView, ObservedPod
from watcher.arrays import F64, I64

MINUTES = 5
QUANTILE = 0.66
AMPLIFICATION = 3.0
BUSY = 0.7
"""CPU usage below which pressure of CPU does not count."""
THRESHOLDS = UtilizationThresholds(0.0, 10.0, deviation=True)  # AsymmetricLow, the default
LIMITS = EvictionLimits(node=2, total=5)
COOLDOWN_S, LONGEST_COOLDOWN_S, HISTORY_S = 900.0, 21_600.0, 172_800.0
NODE_COOLDOWN_S = 300.0
"""Time after an eviction in which the score of the node counts half: an assumption."""


def distances(used: F64, stalled: F64) -> F64:
    """The scores of nodes, 0 to 1 [n], from the newest minutes of `used` and `stalled` [minutes, 2, n]; NaN for nodes
    without samples."""
    stalled = np.stack([np.where(used[:, 0] > BUSY, stalled[:, 0], 0.0), stalled[:, 1]], axis=1)
    dimensions = np.concatenate([used, stalled], axis=1)
    known = ~np.isnan(used).any(axis=(0, 1))
    above = np.zeros(dimensions.shape)
    if known.any():
        above = np.maximum(dimensions - dimensions[:, :, known].mean(axis=2, keepdims=True), 0.0)
    steady = np.quantile(above, QUANTILE, axis=0)
    score = np.minimum(AMPLIFICATION * np.sqrt((steady**2).sum(axis=0)), 1.0)
    return np.where(known, score, np.nan)


def soft_taints(values: F64) -> I64:
    """The number of soft taints of each node [n]: two on overutilized nodes, one on those between the thresholds if
    there are underutilized nodes. `values` [n] are without NaN."""
    percent = percent_of(values)
    lower, upper = THRESHOLDS.limits(percent)
    low = percent <= lower
    high = ~low & (percent > upper)
    between = ~low & ~high & low.any()
    return np.where(high, 2, np.where(between, 1, 0)).astype(np.int64)


@dataclass(slots=True)
class OpenShiftRelieve:
    """The profile with its soft tainter. `migrated`: times of the evictions of each pod; `evicted_from`: time of the
    last eviction from a node."""

    interval_s: float = 60.0
    horizon: str = ""
    score_weight: int = 0
    migrated: dict[str, list[float]] = field(default_factory=dict)
    evicted_from: dict[str, float] = field(default_factory=dict)

    def decide(self, view: ClusterView) -> BalancerActions:
        if len(view.used) < MINUTES:
            return BalancerActions()
        values = distances(view.used[-MINUTES:], view.stalled[-MINUTES:])
        if np.isnan(values).any():
            return BalancerActions()
        cooled = [view.now - self.evicted_from.get(name, -np.inf) < NODE_COOLDOWN_S for name in view.names]
        values = np.where(cooled, values / 2.0, values)
        sources: dict[str, int] = {}

        def pods(node: int) -> list[ObservedPod]:
            found = list(view.pods(node))
            sources.update((pod.uid, node) for pod in found)
            return found

        evicted = pods_to_evict(
            values,
            THRESHOLDS,
            pods,
            limits=LIMITS,
            taints=view.taints,
            allowed=lambda pod: not self._cools_down(pod.uid, view.now),
        )
        for uid in evicted:
            self.migrated.setdefault(uid, []).append(view.now)
            self.evicted_from[view.names[sources[uid]]] = view.now
        return BalancerActions(evicted, taints=soft_taints(values))

    def _cools_down(self, uid: str, now: float) -> bool:
        """Whether the pod's last eviction is too recent: 15 minutes, doubled for each further eviction of the last 48
        hours, up to six hours."""
        times = self.migrated.get(uid)
        if not times:
            return False
        count = sum(now - time < HISTORY_S for time in times)
        return now - times[-1] < min(COOLDOWN_S * 2.0 ** max(count - 1, 0), LONGEST_COOLDOWN_S)
