"""LowNodeLoad of Koordinator 1.8: evicts from nodes whose usage stays above thresholds, for nodes with free capacity.

From pkg/descheduler/framework/plugins/loadaware. All quantities are integers in the units of the resource. Ties of
nodes and pods are in the order of names here, and arbitrary in Go.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from lab.balancers.anomaly import AnomalyCondition, AnomalyDetectors
from lab.balancers.view import PODS, RESOURCES, BalancerActions, ClusterView, ObservedPod, PodsOfNode, is_evictable
from watcher.arrays import I64, Bool
from watcher.core.kubernetes.pod_resources import MEMORY

Percentages = Mapping[str, float]
PRIORITY_CLASSES = ((9000, 9999, 4), (7000, 7999, 3), (5000, 5999, 2), (3000, 3999, 1))  # prod, mid, batch, free
BATCH, PROD = 2, 4
QOS_ORDER = {"BestEffort": 1, "Burstable": 2, "Guaranteed": 3}


@dataclass(frozen=True, slots=True)
class LowNodeLoadArgs:
    """The arguments of the plug-in: thresholds in percent by resource, with `deviation` percentage points from the
    mean. `max_migrating_per_node` is that of the MigrationController; None: no limit."""

    low: Percentages
    high: Percentages
    prod_low: Percentages = field(default_factory=dict)
    prod_high: Percentages = field(default_factory=dict)
    deviation: bool = False
    number_of_nodes: int = 0
    anomaly: AnomalyCondition = field(default_factory=AnomalyCondition)
    excluded_namespaces: frozenset[str] = frozenset({"kube-system", "koordinator-system"})
    max_migrating_per_node: int | None = 2


@dataclass(frozen=True, slots=True)
class MeasuredNodes:
    """The measured nodes [n], with all `resources` [r]: `allocatable`, `requested`, `usage`, and `prod_usage`, the
    usage of pods of the class prod; each [n, r]. `schedulable` [n]."""

    names: tuple[str, ...]
    resources: tuple[str, ...]
    allocatable: I64
    requested: I64
    usage: I64
    prod_usage: I64
    schedulable: Bool


@dataclass(frozen=True, slots=True)
class _Limits:
    """Thresholds as quantities [n, r]; resources without a threshold have -1 and do not count."""

    low: I64
    high: I64


def complete_thresholds(low: Percentages, high: Percentages, *, deviation: bool) -> tuple[Percentages, Percentages]:
    """The thresholds of all resources that either names, and of memory. A resource without a low one is ignored: it has
    100 percent, or a deviation of 0."""
    ignored = 0.0 if deviation else 100.0
    names = sorted({*low, *high, MEMORY})
    given = {name for name in names if name in low}
    return (
        {name: low[name] if name in given else ignored for name in names},
        {name: high.get(name, ignored) if name in given else ignored for name in names},
    )


def limits_of(nodes: MeasuredNodes, usage: I64, low: Percentages, high: Percentages, *, deviation: bool) -> _Limits:
    """The thresholds of each node as quantities, rounded down."""
    lower, upper = complete_thresholds(low, high, deviation=deviation)
    found = [np.full(usage.shape, -1, dtype=np.int64) for _ in range(2)]
    for column, name in enumerate(nodes.resources):
        if name not in lower:
            continue
        capacity = nodes.allocatable[:, column]
        percents = [lower[name], upper[name]]
        if deviation:
            if lower[name] == 0.0:
                found[0][:, column] = found[1][:, column] = capacity
                continue
            there = capacity > 0
            mean = float((usage[there, column] / capacity[there] * 100.0).sum() / len(capacity))
            percents = [min(max(mean - lower[name], 0.0), 100.0), min(max(mean + upper[name], 0.0), 100.0)]
        for limit, percent in zip(found, percents, strict=True):
            limit[:, column] = np.trunc(percent * 0.01 * capacity).astype(np.int64)
    return _Limits(*found)


def over(usage: I64, limit: I64) -> Bool:
    """Whether each quantity is above its threshold; same shape."""
    return (limit >= 0) & (usage > limit)


def is_over(usage: I64, limits: I64) -> Bool:
    """Whether a node is above one of its thresholds [n]; both [n, r]."""
    return np.asarray(over(usage, limits).any(axis=1), dtype=np.bool_)


def usage_score(usage: I64, allocatable: I64, weights: I64) -> I64:
    """The order of overutilized nodes: the weighted mean of usage in thousandths [n], from usage and allocatable
    [n, r]."""
    thousandths = np.minimum(usage, allocatable) * 1000 // np.maximum(allocatable, 1)
    scores: I64 = (thousandths * weights).sum(axis=1) // max(int(weights.sum()), 1)
    return scores


def pod_score(usage: Mapping[str, int], excess: Mapping[str, int]) -> float:
    """How well the pod's usage fits the `excess` of its node over the thresholds: a pod that alone removes the excess
    has 1 to 2, the smallest of them the highest; others have their share of the excess."""
    scores = []
    for name, amount in excess.items():
        ratio = usage.get(name, 0) / amount
        scores.append(1.0 + 1.0 / ratio if ratio >= 1.0 else ratio)
    return sum(scores) / len(scores) if scores else 0.0


def eviction_order(pods: Sequence[ObservedPod], excess: Mapping[str, int]) -> list[ObservedPod]:
    """The order of evictions: priority class, priority, QoS class, then the usage."""

    def key(pod: ObservedPod) -> tuple[int, int, int, bool, float, float, str, str]:
        usage = -pod_score(pod.usage, excess) if pod.usage is not None else 0.0
        of_class = priority_class_order(pod.priority, pod.qos)
        order = QOS_ORDER[pod.qos]
        return (of_class, pod.priority, order, pod.usage is not None, usage, -pod.created, pod.namespace, pod.name)

    return sorted(pods, key=key)


def priority_class_order(priority: int, qos: str) -> int:
    """The rank of the pod's priority class, of which that of free is the lowest."""
    for lowest, highest, rank in PRIORITY_CLASSES:
        if lowest <= priority <= highest:
            return rank
    return BATCH if qos == "BestEffort" else PROD


def eviction_reason(
    usage: Mapping[str, int], allocatable: Mapping[str, int], high: Percentages, *, prod: bool = False
) -> str:
    """The reason in the event of an eviction."""
    kind = "prod" if prod else "node"
    percents = {name: 100.0 * usage[name] / allocatable[name] for name in sorted(high)}
    parts = [
        f"{kind} {name} usage({percent:.2f}%)>threshold({high[name]:.2f}%)"
        for name, percent in percents.items()
        if percent > high[name]
    ]
    return f"node is overutilized, {', '.join(parts)}"


class _Round:
    """One round of the plug-in over the nodes of one pool. The arrays of usage are changed by evictions and by the
    reservations of pods that fit."""

    def __init__(self, nodes: MeasuredNodes, args: LowNodeLoadArgs, pods: PodsOfNode) -> None:
        self.nodes, self.args, self.pods = nodes, args, pods
        self.usage = {False: nodes.usage.copy(), True: nodes.prod_usage.copy()}
        self.limits = {
            False: limits_of(nodes, nodes.usage, args.low, args.high, deviation=args.deviation),
            True: limits_of(nodes, nodes.prod_usage, args.prod_low, args.prod_high, deviation=args.deviation),
        }
        self.evicted: list[str] = []
        self.count = np.zeros(len(nodes.names), dtype=np.int64)
        self.cured: list[int] = []  # nodes that are no longer overutilized
        high, low = {}, {}
        for prod in (False, True):
            high[prod] = is_over(self.usage[prod], self.limits[prod].high)
            low[prod] = nodes.schedulable & ~is_over(self.usage[prod], self.limits[prod].low)
        self.both_low = low[False] & ~high[True] & low[True]
        self.low = low[False] & ~high[True] & ~low[True]
        self.source = ~low[False] & high[False]
        self.prod_source = ~self.source & high[True]
        self.prod_low = ~low[False] & ~self.source & ~high[True] & low[True]

    def headroom(self, targets: Bool, *, prod: bool) -> I64:
        """The free capacity below the high threshold [r]; 0 for resources without one."""
        left: I64 = np.where(self.limits[prod].high >= 0, self.limits[prod].high - self.usage[prod], 0)[targets].sum(
            axis=0
        )
        return left

    def run(self, sources: Bool, prod_sources: Bool) -> None:
        """Evict first for the usage of nodes, then for that of prod pods."""
        both, prod_both = self.headroom(self.both_low, prod=False), self.headroom(self.both_low, prod=True)
        prod_left = self.headroom(self.prod_low, prod=True)
        left = self.headroom(self.low, prod=False) + both
        self.balance(sources, [*np.flatnonzero(self.low), *np.flatnonzero(self.both_low)], left, prod=False)
        prod_left = prod_left + np.minimum(prod_both, np.minimum(both, left))
        prod_targets = [*np.flatnonzero(self.prod_low), *np.flatnonzero(self.both_low)]
        self.balance(prod_sources, prod_targets, prod_left, prod=True)

    def balance(self, sources: Bool, targets: Sequence[int], left: I64, *, prod: bool) -> None:
        """Evict from the `sources` [n] for the `targets` until `left` [r], their headroom, is used; `left` changes."""
        if not len(targets):
            return
        weights = (self.limits[False].high[0] >= 0).astype(np.int64)
        scores = usage_score(self.usage[prod], self.nodes.allocatable, weights)
        for node in sorted(np.flatnonzero(sources).tolist(), key=lambda node: (-scores[node], node)):
            removable = [pod for pod in self.pods(node) if self.is_removable(pod, targets, prod=prod)]
            excess = self.excess(node, prod=prod)
            self.evict(node, eviction_order(removable, excess), left, prod=prod)

    def excess(self, node: int, *, prod: bool) -> dict[str, int]:
        beyond = self.usage[prod][node] - self.limits[prod].high[node]
        judged = self.limits[prod].high[node] >= 0
        return {name: int(beyond[i]) for i, name in enumerate(self.nodes.resources) if judged[i] and beyond[i] > 0}

    def is_removable(self, pod: ObservedPod, targets: Sequence[int], *, prod: bool) -> bool:
        if not is_evictable(pod) or pod.namespace in self.args.excluded_namespaces or (prod and not pod.prod):
            return False
        return pod.usage is not None and any(self.reserve(pod, target, prod=prod) for target in targets)

    def reserve(self, pod: ObservedPod, target: int, *, prod: bool) -> bool:
        """Whether the pod fits the target by its selectors, requests and usage; then its usage counts there."""
        nodes = self.nodes
        if nodes.names[target] in pod.unfit or not nodes.schedulable[target]:
            return False
        asked = {PODS: 1, **pod.requests}
        for column, name in enumerate(nodes.resources):
            free = nodes.allocatable[target, column] - nodes.requested[target, column]
            if asked.get(name, 0) and asked[name] > free:
                return False
        used = self.used(pod, counted=0)
        if over(self.usage[prod][target] + used, self.limits[prod].high[target]).any():
            return False
        self.usage[prod][target] += used
        return True

    def used(self, pod: ObservedPod, *, counted: int) -> I64:
        """The usage of the pod [r]; `counted` is its number of pods."""
        usage = {**(pod.usage or {}), PODS: counted}
        return np.array([usage.get(name, 0) for name in self.nodes.resources], dtype=np.int64)

    def evict(self, node: int, pods: Sequence[ObservedPod], left: I64, *, prod: bool) -> None:
        judged = self.limits[prod].high[node] >= 0
        for pod in pods:
            if not self.excess(node, prod=prod):
                self.cured.append(node)
                return
            if (left[judged] <= 0).any():
                return
            most = self.args.max_migrating_per_node
            if most is not None and self.count[node] >= most:
                continue
            self.evicted.append(pod.uid)
            self.count[node] += 1
            used = self.used(pod, counted=1)
            left -= used
            self.usage[False][node] -= used
            if prod:
                self.usage[True][node] -= used


def pods_to_evict(
    nodes: MeasuredNodes, args: LowNodeLoadArgs, pods: PodsOfNode, detectors: AnomalyDetectors, now: float
) -> list[str]:
    """Return the uids that a round evicts, in order."""
    if not nodes.names:
        return []
    this = _Round(nodes, args, pods)
    names = np.array(nodes.names)
    if not (this.source | this.prod_source).any():
        return []
    abnormal = np.isin(names, detectors.abnormal_nodes(names[this.source | this.prod_source].tolist(), now))
    low = this.low | this.prod_low | this.both_low
    if not abnormal.any() or not low.any():
        return []
    detectors.reset(names[low].tolist(), now)
    if low.sum() <= args.number_of_nodes or low.all():
        return []
    this.run(this.source & abnormal, this.prod_source & abnormal)
    detectors.reset(names[this.cured].tolist(), now)
    detectors.mark_normal(names[abnormal].tolist(), now)
    return this.evicted


@dataclass(slots=True)
class LowNodeLoad:
    """The plug-in in rounds of a minute, as in Koordinator's documentation."""

    args: LowNodeLoadArgs
    interval_s: float = 60.0
    horizon: str = ""
    score_weight: int = 0
    detectors: AnomalyDetectors = field(init=False)

    def __post_init__(self) -> None:
        self.detectors = AnomalyDetectors(self.args.anomaly)

    def decide(self, view: ClusterView) -> BalancerActions:
        if not len(view.used):
            return BalancerActions()
        return BalancerActions(pods_to_evict(measured(view), self.args, view.pods, self.detectors, view.now))


def measured(view: ClusterView) -> MeasuredNodes:
    """The nodes of a view, as NodeMetrics state their usage. Prod usage is not measured."""
    cores, size = np.nan_to_num(view.current())
    usage = np.stack([1000.0 * cores, size, view.requested[:, 2]], axis=1).astype(np.int64)
    known = np.ones(len(view.names), dtype=np.bool_)
    return MeasuredNodes(view.names, RESOURCES, view.allocatable, view.requested, usage, np.zeros_like(usage), known)
