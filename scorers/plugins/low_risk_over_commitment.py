"""LowRiskOverCommitment: prefer nodes where bursting pods are least likely to exceed the capacity (upstream Trimaran).

For CPU and memory, two risks from 0 to 1 are computed. `requests` and `limits` are the sums over the node's pods and
the pod to place (limits raised to requests, requests limited to allocatable); `capacity` is the node's allocatable:

    limit risk = (limits - capacity) / (limits - requests)        if limits > capacity, otherwise 0
    load risk  = 1 - P(load <= t)                                 t = requests without the pod / capacity

The load is assumed to follow the beta distribution with its measured mean and deviation. If the limits without the pod
are below the capacity, the load cannot exceed them, so P is divided by P(load <= limits / capacity).

    risk = w * limit risk + (1 - w) * load risk                   w = riskLimitWeights of the resource
    score = 100 * (1 - the higher risk of the two), rounded half away from zero

A rate over five minutes hides short deviations, so the deviation of a smoothed source is multiplied by the square root
of `smoothingWindowSize`; that of an unsmoothed source is used as is (upstream always multiplies).

A pod without requests and limits scores 0 on every node, and a node without metrics scores 0. If the load of one
resource is unknown for a node, its load risk is the highest among the nodes in the request (upstream: 0), or 0 if it is
unknown for most of them. If both loads are unknown for most nodes, only the limit risk counts.

The load risk does not depend on the pod. It is cached and recomputed only for nodes whose inputs changed: for all nodes
after each copy of the load, ahead of requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
import numpy as np

from scorers.cluster.columns import LOADS, mu_sigma
from scorers.cluster.node_metrics import NodeMetric
from scorers.cluster.pods import PodInfo
from scorers.cluster.table import ClusterTable, DataNeeds
from scorers.plugin_api.arguments import Arguments
from scorers.plugin_api.framework import Scores, fill_unknown_scores, load_decides, round_half_away
from scorers.plugins import beta
from watcher.arrays import F64, I64, Bool
from watcher.core.kubernetes.objects import Node
from watcher.core.kubernetes.pod_resources import CPU, MEMORY
from watcher.model import Operator

RESOURCES = (CPU, MEMORY)
LIMITS = "limits"
DEFAULT_WEIGHT = 0.5
PREPARED_AT_ONCE = 500  # nodes; some milliseconds
INPUTS = 5  # arguments of `load_risk`
MIN_DEVIATION = 1e-9  # a deviation below this share counts as 0
MOST_OF_VARIANCE = 0.99  # share of the upper bound of the variance on 0..1


class LowRiskOverCommitmentArgs(Arguments, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """`smoothingWindowSize` is the number of scrapes that a rate of the source covers; `riskLimitWeights` by resource,
    0 to 1, default 0.5."""

    smoothing_window_size: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 5
    risk_limit_weights: dict[str, Annotated[float, msgspec.Meta(ge=0, le=1)]] = msgspec.field(default_factory=dict)

    def problems(self) -> list[str]:
        """Report weights of resources other than cpu and memory."""
        unknown = sorted(set(self.risk_limit_weights) - set(RESOURCES))
        return [f"riskLimitWeights.{name}: only cpu and memory have weights" for name in unknown]


def limit_risk(requests: F64, limits: F64, capacity: F64) -> F64:
    """Return the share of the potential usage above the requests that exceeds the capacity [n], 0 to 1."""
    over = limits > capacity
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(over, np.clip((limits - capacity) / (limits - requests), 0.0, 1.0), 0.0)


def load_risk(mu: F64, sigma: F64, requests: F64, limits: F64, capacity: F64) -> F64:
    """Return 1 - P(load <= requests / capacity) [n], given that the load stays below the limits. `mu` and `sigma` are
    shares of the capacity; `sigma` is already corrected for smoothing. Unknown load (NaN) has risk 0."""
    there = capacity > 0
    with np.errstate(divide="ignore", invalid="ignore"):
        threshold = np.where(there, np.clip(requests / capacity, 0.0, 1.0), 0.0)
        highest = np.where(there, limits / capacity, 0.0)
    sigma = np.minimum(sigma, np.sqrt(beta.max_variance(mu) * MOST_OF_VARIANCE))
    fixed = (mu == 0.0) | (sigma < MIN_DEVIATION)
    alpha, other = beta.matching(mu, sigma**2)
    known = ~fixed & ~np.isnan(alpha)
    below = np.where(fixed, np.where(mu <= threshold, 1.0, 0.0), 0.0)
    below = np.where(mu == 0.0, 1.0, below)
    below[known] = beta.cdf(threshold[known], alpha[known], other[known])
    bounded = (limits < capacity) & (requests <= limits)
    share = known & bounded & (highest > 0.0)
    most = np.zeros(len(mu))
    most[share] = beta.cdf(highest[share], alpha[share], other[share])
    divisible = share & (most > 0.0)
    below[divisible] = np.clip(below[divisible] / most[divisible], 0.0, 1.0)
    below = np.where(bounded & (highest == 0.0), 1.0, below)
    return np.where(np.isnan(mu), 0.0, 1.0 - np.nan_to_num(below, nan=0.0))


@dataclass(slots=True)
class _LoadRiskCache:
    """The load risk of all rows, the inputs that it was computed from, one row each, and whether an event may have
    changed the inputs of a row."""

    inputs: F64 = field(default_factory=lambda: np.empty((0, INPUTS)))
    risk: F64 = field(default_factory=lambda: np.empty(0))
    is_stale: Bool = field(default_factory=lambda: np.empty(0, dtype=np.bool_))

    def reserve(self, rows: int) -> None:
        """Make space for this number of rows; new rows are stale."""
        if (more := rows - len(self.risk)) > 0:
            self.inputs = np.concatenate([self.inputs, np.full((more, INPUTS), -1.0)])
            self.risk = np.append(self.risk, np.zeros(more))
            self.is_stale = np.append(self.is_stale, np.ones(more, dtype=np.bool_))


class LowRiskOverCommitment:
    """The score plug-in described in the module docstring."""

    name = "LowRiskOverCommitment"
    arguments = LowRiskOverCommitmentArgs

    def __init__(self, arguments: LowRiskOverCommitmentArgs, table: ClusterTable, *, profile: str = "default") -> None:
        self.args = arguments
        self._caches = {resource: _LoadRiskCache() for resource in RESOURCES}
        table.listen(self)
        table.follow(self, DataNeeds())

    # --- updates by events -------------------------------------------------------------------------------------------

    def assigned(self, row: int, info: PodInfo, at: float) -> None:
        """Mark the node, whose requests and limits changed."""
        self._mark(row)

    def unassigned(self, row: int, info: PodInfo) -> None:
        """Mark the node, whose requests and limits changed."""
        self._mark(row)

    def node_changed(self, row: int, node: Node | None) -> None:
        """Mark the node, whose allocatable resources changed."""
        self._mark(row)

    def load_changed(self) -> None:
        """Mark all nodes: the columns are those of a new set of windows."""
        for cache in self._caches.values():
            cache.is_stale[:] = True

    def node_metric_changed(self, row: int, metric: NodeMetric | None) -> None:
        """NodeMetrics of the cluster are not used."""

    def _mark(self, row: int) -> None:
        for cache in self._caches.values():
            if row < len(cache.is_stale):
                cache.is_stale[row] = True

    # --- scores ------------------------------------------------------------------------------------------------------

    def score(self, pod: PodInfo, table: ClusterTable, rows: I64, *, now: float) -> Scores:
        asked = [amounts.get(each, 0) for amounts in (pod.requests, pod.raised_limits) for each in RESOURCES]
        if not any(asked):
            why = "the pod has neither requests nor limits: 0 for every node"
            return Scores(np.zeros(len(rows)), reason=lambda _: why)
        steps: dict[str, F64] = {}
        risks = [self._risk(pod, table, rows, resource, steps) for resource in RESOURCES]
        blind = self._lacks_load(table, rows, now=now)
        values = round_half_away(100.0 * (1.0 - np.maximum(*risks)))
        silent = np.full(len(rows), not blind)
        for resource in RESOURCES:
            silent &= np.isnan(table.load.average(LOADS[resource])[rows])
        values = np.where(silent, 0.0, values)
        inputs: dict[str, Any] = {
            "smoothingWindowSize": self.args.smoothing_window_size,
            "podRequests": {each: pod.requests.get(each, 0) for each in RESOURCES},
            "podLimits": {each: pod.raised_limits.get(each, 0) for each in RESOURCES},
            "smoothed": {each: self._is_smoothed(table, each) for each in RESOURCES},
        }
        if blind:
            inputs["fallback"] = LIMITS

        def reason(i: int) -> str:
            if silent[i]:
                return "no metrics of this node: 0"
            worst = max(RESOURCES, key=lambda each: float(steps[f"{each} risk"][i]))
            limit, load_ = float(steps[f"{worst} limit risk"][i]), float(steps[f"{worst} load risk"][i])
            message = f"{worst} has the highest risk: limit risk {limit:.2f}, load risk {load_:.2f}: {values[i]:.0f}"
            return f"most nodes have no metrics, so only limits count; {message}" if blind else message

        return Scores(values, steps, inputs, reason)

    def fallback(self, table: ClusterTable, *, now: float) -> str:
        """Return LIMITS if neither CPU nor memory load is known for most nodes."""
        return "" if any(table.has_load(LOADS[resource]) for resource in RESOURCES) else LIMITS

    def _lacks_load(self, table: ClusterTable, rows: I64, *, now: float) -> bool:
        fallback = self.fallback(table, now=now)
        measured = (~np.isnan(table.load.average(LOADS[resource])[rows]) for resource in RESOURCES)
        return not any(load_decides(known, fallback=fallback) for known in measured)

    def _risk(self, pod: PodInfo, table: ClusterTable, rows: I64, resource: str, steps: dict[str, F64]) -> F64:
        capacity = table.allocatable.column(resource)[rows].astype(np.float64)
        requests = np.minimum(table.requested.column(resource)[rows] + pod.requests.get(resource, 0), capacity)
        limits = (table.limited.column(resource)[rows] + pod.raised_limits.get(resource, 0)).astype(np.float64)
        of_limits = limit_risk(requests, limits, capacity)
        unknown = np.isnan(table.load.average(LOADS[resource])[rows])
        of_load = self._load_risk(table, resource)[rows]
        of_load = np.nan_to_num(-fill_unknown_scores(np.where(unknown, np.nan, -of_load)), nan=0.0)
        weight = self.args.risk_limit_weights.get(resource, DEFAULT_WEIGHT)
        risk = np.clip(weight * of_limits + (1.0 - weight) * of_load, 0.0, 1.0)
        steps |= {
            f"{resource} requests, with the pod": requests,
            f"{resource} limits, with the pod": limits,
            f"{resource} limit risk": of_limits,
            f"{resource} load risk": of_load,
            f"{resource} risk": risk,
        }
        return risk

    def prepare(self, table: ClusterTable) -> Iterator[None]:
        """Compute the load risk of all nodes in chunks: the distribution function is slow, and each copy of the load
        changes the inputs of every node."""
        for resource in RESOURCES:
            while self._recompute(table, resource, most=PREPARED_AT_ONCE):
                yield

    def _load_risk(self, table: ClusterTable, resource: str) -> F64:
        """Return the load risk of all rows."""
        self._recompute(table, resource, most=len(table))
        return self._caches[resource].risk

    def _recompute(self, table: ClusterTable, resource: str, *, most: int) -> int:
        """Recompute the load risk of at most `most` rows whose inputs changed; return the number of rows."""
        cache = self._caches[resource]
        cache.reserve(len(table))
        stale = np.flatnonzero(cache.is_stale)
        if not len(stale):
            return 0
        inputs = self._inputs(table, resource, stale)
        known = cache.inputs[stale]
        changed = ~((inputs == known) | (np.isnan(inputs) & np.isnan(known))).all(axis=1)
        left = np.flatnonzero(changed)[most:]
        changed[left] = False
        rows = stale[changed]
        if len(rows):
            cache.inputs[rows] = inputs[changed]
            cache.risk[rows] = load_risk(*inputs[changed].T)
        cache.is_stale[stale] = False
        cache.is_stale[stale[left]] = True
        return len(rows)

    def _inputs(self, table: ClusterTable, resource: str, rows: I64) -> F64:
        """Return the arguments of `load_risk` for these rows, [n, INPUTS]."""
        capacity = table.allocatable.column(resource)[rows].astype(np.float64)
        deviation = table.load.share(LOADS[resource], Operator.STD)[rows] * capacity
        average = table.load.share(LOADS[resource])[rows] * capacity
        mu, sigma = mu_sigma(average, deviation, 0.0, capacity)
        if self._is_smoothed(table, resource):
            sigma = sigma * np.sqrt(self.args.smoothing_window_size)
        requests = np.minimum(table.requested.column(resource)[rows], capacity)
        return np.stack([mu, sigma, requests, table.limited.column(resource)[rows], capacity], axis=1)

    def _is_smoothed(self, table: ClusterTable, resource: str) -> bool:
        columns = table.load.columns
        if columns is None:
            return False
        names = [name for name, kind in columns.types.items() if kind == LOADS[resource].value]
        return any(columns.smoothing_s.get(name, 0.0) > 0.0 for name in names)
