"""LoadAwareScheduling: keep pods off nodes that are, or soon will be, loaded, and prefer the others (seed 001;
reference/koordinator.md, 3).

What a node uses once it has the pod, by resource:

    estimated = measured + what pods on it add that were not measured yet + estimate of the pod

`estimator` has the estimate of a pod, `assigned` says which pods are not measured yet, `metrics` what is measured.
Filtering rejects a node where

    100 * estimated / allocatable > threshold        rounded half away from zero; `comparison: ge` rejects equal too

for the first such resource by name. The thresholds are those of prod pods, for these, where there are any; else those
of a percentile, with that percentile as what is measured; else the plain ones; a node's annotation puts others in
their place. Pods of DaemonSets pass. A node whose measurement is too old is rejected, or not, as the arguments say.

    score of a resource = (allocatable - estimated) * 100 / allocatable        0 below 0
    score = mean by resourceWeights, and of the worst resource by dominantResourceWeight

in whole numbers, rounded down. Nodes that are not measured pass and score 0, nodes measured too long ago score 0, and
all do where that is so of most of those asked about.

A percentile over a duration that a NodeMetric does not have leaves the estimates alone to go by, as upstream has it. Of
our windows one that is less than half full is such a duration; without a duration the longest that a node has is taken,
and the mean where it has none. A resource that the windows do not have of a node is not looked at in filtering, and
scores 0. Where it is not known what pods use, all pods of a node count alike,
and pods that are older than a report interval are taken to be in the usage of their node.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from scorers.cluster.koordinator_classes import PROD, priority_class
from scorers.cluster.node_metrics import Matrix, NodeMetric, ReportedMetrics, WindowMetrics
from scorers.cluster.pods import PodInfo
from scorers.cluster.resources import amounts
from scorers.cluster.table import Needs, Table
from scorers.plugin_api.framework import NO_ORDER, Scores, Verdicts, mostly, round_half_away
from scorers.plugins.koordinator.arguments import LoadAwareSchedulingArgs
from scorers.plugins.koordinator.assigned_pods import DELTA, ESTIMATED, PROD_DELTA, PROD_USAGE, AssignedPods, Candidate
from scorers.plugins.koordinator.estimator import DEFAULT, ESTIMATORS, allocatable_of, forced_until
from scorers.plugins.koordinator.thresholds import Thresholds, thresholds_of_arguments, thresholds_of_node
from watcher.client import Pods
from watcher.core.kubernetes.objects import Node
from watcher.core.kubernetes.times import read_duration
from watcher.core.review.findings import some_of

log = logging.getLogger(__name__)

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

RESERVATION = "scheduling.koordinator.sh/reserve-pod"
EXPIRED = 1
NODE_REASONS = ("", "node(s) nodeMetric expired")
ESTIMATES = {"nodeDelta": DELTA, "prodUsage": PROD_USAGE, "prodDelta": PROD_DELTA, "nodeEstimated": ESTIMATED}


def resource_scores(used: I64, allocatable: I64) -> I64:
    """(allocatable - used) * 100 / allocatable, rounded down; 0 where more is used, or nothing is there."""
    fits = (allocatable > 0) & (used <= allocatable)
    return np.where(fits, (allocatable - used) * 100 // np.where(allocatable > 0, allocatable, 1), 0)


def combined(scores: I64, weights: I64, dominant_weight: int) -> I64:
    """The mean [n] of scores [resources, n] by weights, and of the lowest by its own; 0 without any weight."""
    whole = int(weights.sum()) + dominant_weight
    if whole <= 0:
        return np.zeros(scores.shape[1], dtype=np.int64)
    total: I64 = weights @ scores
    if dominant_weight:
        total = total + dominant_weight * np.minimum(scores.min(axis=0), 100)
    return total // whole


@dataclass(frozen=True, slots=True)
class _View:
    """What n nodes are judged by, [resources, n]. Where `measured` is not `there` [n], only estimates of pods are left
    to go by. `found` [n] says which nodes have a NodeMetric, `judged` which of these have usage in it, and `adding`
    which sum of `AssignedPods` the `delta` is."""

    measured: I64
    delta: I64
    used: I64
    allocatable: I64
    known: Bool
    there: Bool
    found: Bool
    judged: Bool
    expired: Bool
    age: F64
    adding: int

    def percent(self) -> F64:
        """Of allocatable, NaN where it is not known."""
        whole = np.full(self.used.shape, np.nan)
        np.divide(self.used, self.allocatable, out=whole, where=self.known & (self.allocatable > 0))
        return round_half_away(whole * 100.0)


class LoadAwareScheduling:
    """See above."""

    name = "LoadAwareScheduling"
    arguments = LoadAwareSchedulingArgs

    def __init__(self, arguments: LoadAwareSchedulingArgs, table: Table, *, profile: str = "default") -> None:
        self.args = arguments
        self._names = arguments.resources
        self._weights: I64 = np.array([arguments.weights.get(name, 0) for name in self._names], dtype=np.int64)
        self._estimator = ESTIMATORS[arguments.estimator or DEFAULT](arguments)
        self._table = table
        self._reported = ReportedMetrics(self._names) if arguments.node_metric_source == "cluster" else None
        interval = arguments.report_interval_seconds
        self._windows = WindowMetrics(
            self._names, windows=table.windows, interval=None if interval is None else float(interval)
        )
        self.metrics = self._reported or self._windows
        self.assigned_pods = AssignedPods(self._names, self.metrics)
        self._allocatable = Matrix(self._names)
        self._given = thresholds_of_arguments(arguments)
        aggregation = arguments.aggregation
        seconds = read_duration(aggregation.score_aggregated_duration) or 0.0
        self._scored = (aggregation.score_aggregation_type, seconds)  # what scoring takes; without a type the mean
        self._plain, self._prod, self._aggregated = (Matrix(self._names) for _ in range(3))
        self._aggregates: dict[tuple[str, float], int] = {}  # type and seconds that filtering takes of some node
        self._aggregate: I64 = np.zeros(0, dtype=np.int64)  # by row, the number of its own of these; -1 is none
        table.listen(self)
        table.follow(self, self._needs())
        self.load_changed()

    def _needs(self) -> Needs:
        source, history = self.args.node_metric_source, self._estimator.history is not None
        if source == "cluster":
            return Needs(pods=history, node_metrics=True)
        return Needs(usages=True, pods=source == "windowsAndPods")

    # --- kept up by events -------------------------------------------------------------------------------------------

    def assigned(self, row: int, info: PodInfo, at: float) -> None:
        """A pod came to a node; placeholders of reservations are none."""
        if info.pod.metadata.annotations.get(RESERVATION) == "true":
            return
        self._reserve()
        meta = info.pod.metadata
        estimate = self._estimator.estimate(info)
        until = forced_until(info.pod, self.args, scheduled=at)
        prod = priority_class(info.pod) == PROD
        self.assigned_pods.add(info.key, Candidate((meta.namespace, meta.name), row, estimate, prod, at, until))
        if self._estimator.history is not None:
            self._estimator.history.add(info.key, info.pod)

    def unassigned(self, row: int, info: PodInfo) -> None:
        """A pod went."""
        self.assigned_pods.remove(info.key)
        if self._estimator.history is not None:
            self._estimator.history.remove(info.key)

    def node_changed(self, row: int, node: Node | None) -> None:
        """What it has, its thresholds, and what is measured of it."""
        self._reserve()
        self._allocatable.set(row, {} if node is None else self._allocatable_of(node))
        self._set_thresholds(row, self._given if node is None else self._thresholds_of(node))
        if self._reported is not None:
            self._reported.set(row, None if node is None else self._table.node_metrics.get(node.metadata.name))
        else:
            self._take_windows(np.array([row], dtype=np.int64))
        self.assigned_pods.measured(row)

    def load_changed(self) -> None:
        """There are new windows, or new numbers of pods."""
        if self._estimator.history is not None:
            self._estimator.history.take(self._table.pod_usage)
        if self._reported is not None:
            return
        self._reserve()
        pods = self._table.pod_usage if self.args.node_metric_source == "windowsAndPods" else None
        self._windows.take_pods(pods, "" if pods is None else self._window_of(pods))
        self._take_windows(np.arange(len(self._table), dtype=np.int64))
        self.assigned_pods.all_measured()

    def node_metric_changed(self, row: int, metric: NodeMetric | None) -> None:
        """There is a new NodeMetric of a node."""
        if self._reported is not None:
            self._reserve()
            self._reported.set(row, metric)
            self.assigned_pods.measured(row)

    def _take_windows(self, rows: I64) -> None:
        self._windows.take(rows, self._table.load, self._table.capacity, self._table.names)

    def _window_of(self, pods: Pods) -> str:
        """The label of the window of pods that is nearest to what the load of most nodes is the mean over."""
        columns = self._table.load.columns
        if columns is None:
            return ""
        if columns.usages is not None and len(columns.nodes):
            wanted = float(np.bincount(columns.usages.period).argmax())
        else:
            wanted = max((float(np.nanmax(each, initial=0.0)) for each in columns.rollup.values()), default=0.0)
        lengths = {label: read_duration(label) or 0.0 for label in pods.average}
        return min(lengths, key=lambda label: (abs(lengths[label] - wanted), lengths[label]), default="")

    def _allocatable_of(self, node: Node) -> Mapping[str, int]:
        try:
            return allocatable_of(node)
        except ValueError as error:
            log.warning("node %s: its own allocatable is taken: %s", node.metadata.name, error)
            return amounts(node.status.allocatable)

    def _thresholds_of(self, node: Node) -> Thresholds:
        try:
            windows = self._table.windows if self._reported is None else ()
            return thresholds_of_node(node, self._given, windows=windows)
        except ValueError as error:
            log.warning("node %s: the thresholds of the arguments are taken: %s", node.metadata.name, error)
            return self._given

    def _set_thresholds(self, row: int, own: Thresholds) -> None:
        self._plain.set(row, own.usage)
        self._prod.set(row, own.prod)
        self._aggregated.set(row, own.aggregated)
        before = int(self._aggregate[row])
        self._aggregate[row] = self._number_of((own.aggregation, own.seconds)) if own.aggregation else -1
        if before >= 0 and not (self._aggregate == before).any():
            self._forget_aggregate(before)

    def _number_of(self, aggregate: tuple[str, float]) -> int:
        if aggregate not in self._aggregates:
            taken = set(self._aggregates.values())
            self._aggregates[aggregate] = next(number for number in count() if number not in taken)
        return self._aggregates[aggregate]

    def _forget_aggregate(self, number: int) -> None:
        """No node asks for it any more."""
        self._aggregates = {key: each for key, each in self._aggregates.items() if each != number}
        self.metrics.keep({*self._aggregates, self._scored})

    def _reserve(self) -> None:
        rows = len(self._table)
        for each in (self.metrics, self.assigned_pods, self._allocatable, self._plain, self._prod, self._aggregated):
            each.reserve(rows)
        if rows > len(self._aggregate):
            more = np.full(rows + rows // 4 - len(self._aggregate), -1, dtype=np.int64)
            self._aggregate = np.concatenate([self._aggregate, more])

    # --- asked -------------------------------------------------------------------------------------------------------

    def filter(self, pod: PodInfo, table: Table, rows: I64, *, now: float) -> Verdicts:
        """One pass over the nodes."""
        if any(owner.kind == "DaemonSet" for owner in pod.pod.metadata.owner_references):
            return Verdicts(np.zeros(len(rows), dtype=np.int64), inputs={"passes": "pods of DaemonSets are not judged"})
        limits = self._plain.take(rows)[0]
        measured, there = self.metrics.usage.take(rows)
        which_aggregate = self._aggregate[rows]
        for (kind, seconds), number in self._aggregates.items():
            taken = which_aggregate == number
            of_kind, is_there = self.metrics.aggregated(kind, seconds).take(rows)
            limits = np.where(taken, self._aggregated.take(rows)[0], limits)
            measured, there = np.where(taken, of_kind, measured), np.where(taken, is_there, there)
        view = self._view(pod, rows, measured, there, now=now)
        aggregated = which_aggregate >= 0
        own = self._prod.take(rows)[0] if self._counts_as_prod(pod) else np.zeros_like(limits)
        if own.any():
            which: Bool = np.logical_or.reduce(own > 0, axis=0)
            limits, aggregated = np.where(which, own, limits), aggregated & ~which
            view = _chosen(which, self._prod_view(pod, rows, now=now), view)
        return self._verdicts(pod, view, limits, aggregated)

    def _verdicts(self, pod: PodInfo, view: _View, limits: I64, aggregated: Bool) -> Verdicts:
        """A limit of 0 is none; a node without any passes, however old its measurement is."""
        percent = view.percent()
        over = (percent >= limits if self.args.comparison == "ge" else percent > limits) & (limits > 0)
        limited: Bool = np.logical_or.reduce(limits > 0, axis=0)
        judged = view.judged & limited
        codes = np.zeros(len(limited), dtype=np.int64)
        if self.args.filter_expired_node_metrics:
            judged &= ~view.expired
            if not self.args.enable_schedule_when_node_metrics_expired:
                codes[view.found & view.expired & limited] = EXPIRED
        first = over.argmax(axis=0) + len(NODE_REASONS) + np.where(aggregated, len(self._names), 0)
        codes = np.where(judged & over.any(axis=0), first, codes)
        reasons = (
            *NODE_REASONS,
            *(f"node(s) {name} usage exceed threshold" for name in self._names),
            *(f"node(s) {name} aggregated usage exceed threshold" for name in self._names),
        )
        steps = self._steps(view, percent) | {
            f"{name} threshold %": np.where(limits[i] > 0, limits[i], np.nan)
            for i, name in enumerate(self._names)
            if (limits[i] > 0).any()
        }
        return Verdicts(codes, reasons, steps, self._inputs(pod) | {"comparison": self.args.comparison})

    def score(self, pod: PodInfo, table: Table, rows: I64, *, now: float) -> Scores:
        """One pass over the nodes."""
        if self.args.score_according_prod_usage and self._counts_as_prod(pod):
            view = self._prod_view(pod, rows, now=now)
        else:
            measured = self.metrics.aggregated(*self._scored) if self._scored[0] else self.metrics.usage
            view = self._view(pod, rows, *measured.take(rows), now=now)
        each = np.where(view.known, resource_scores(view.used, view.allocatable), 0)
        scored = view.judged & ~view.expired
        if few := not mostly(scored):
            scored = np.zeros_like(scored)
        values = np.where(scored, combined(each, self._weights, self.args.dominant_resource_weight), 0)
        percent = view.percent()
        steps = self._steps(view, percent) | {f"{name} score": each[i] for i, name in enumerate(self._names)}
        inputs = self._inputs(pod) | {
            "resourceWeights": dict(self.args.weights),
            "dominantResourceWeight": self.args.dominant_resource_weight,
        }
        if few:
            inputs["fallback"] = NO_ORDER

        def reason(i: int) -> str:
            told = self._told(view, percent[:, i], int(rows[i]), i, float(values[i]))
            return f"most nodes have no metrics that count, so that all score 0; {told}" if few else told

        return Scores(values.astype(np.float64), steps, inputs, reason)

    def fallback(self, table: Table, *, now: float) -> str:
        """No order of its own, where what is measured of most nodes is not there, or too old."""
        rows = np.flatnonzero(table.known)
        expired = ~(now - self.metrics.updated[rows] < self.args.node_metric_expiration_seconds)
        scored = self.metrics.there[rows] & self.metrics.usage.there[rows] & ~expired
        return "" if mostly(scored) else NO_ORDER

    def estimates(self, row: int) -> Mapping[str, Any]:
        """Under the names that Koordinator's debug endpoint has (reference/koordinator.md, 3.11): amounts by resource,
        and which pods are in them."""
        self._reserve()
        told: dict[str, Any] = {}
        for name, which in ESTIMATES.items():
            amounts = self.assigned_pods.sums(which, np.array([row], dtype=np.int64))[:, 0].tolist()
            told[name] = dict(zip(self._names, amounts, strict=True))
            told[f"{name}Pods"] = self.assigned_pods.adding(which, row)
        return told

    # --- inside ------------------------------------------------------------------------------------------------------

    def _counts_as_prod(self, pod: PodInfo) -> bool:
        """Whether the pod is one of koord-prod, and what others of this class use is known."""
        return self.metrics.pods_known and priority_class(pod.pod) == PROD

    def _prod_view(self, pod: PodInfo, rows: I64, *, now: float) -> _View:
        measured = self.assigned_pods.sums(PROD_USAGE, rows)
        if self.args.prod_usage_include_sys:
            measured = measured + self.metrics.system.take(rows)[0]
        there = np.ones(len(rows), dtype=np.bool_)
        return self._view(pod, rows, measured, there, now=now, adding=PROD_DELTA)

    def _view(self, pod: PodInfo, rows: I64, measured: I64, there: Bool, *, now: float, adding: int = DELTA) -> _View:
        estimate = self._estimator.estimate(pod)
        incoming = np.array([[estimate.get(name, 0)] for name in self._names], dtype=np.int64)
        delta = self.assigned_pods.sums(adding, rows)
        before = measured + delta
        if not there.all():
            before = np.where(there, before, self.assigned_pods.sums(ESTIMATED, rows))
        age = now - self.metrics.updated[rows]
        return _View(
            measured=measured,
            delta=delta,
            used=before + incoming,
            allocatable=self._allocatable.take(rows)[0],
            known=np.take(self.metrics.known, rows, axis=1),
            there=there,
            found=self.metrics.there[rows],
            judged=self.metrics.there[rows] & self.metrics.usage.there[rows],
            expired=~(age < self.args.node_metric_expiration_seconds),
            age=age,
            adding=adding,
        )

    # --- told --------------------------------------------------------------------------------------------------------

    def _steps(self, view: _View, percent: F64) -> dict[str, npt.NDArray[Any]]:
        steps: dict[str, npt.NDArray[Any]] = {"age s": view.age}
        for i, name in enumerate(self._names):
            steps |= {
                f"{name} measured": _shown(view.measured[i], view.known[i] & view.there),
                f"{name} of pods not measured yet": view.delta[i],
                f"{name} with the pod": _shown(view.used[i], view.known[i]),
                f"{name} allocatable": view.allocatable[i],
                f"{name} %": percent[i],
            }
        return steps

    def _inputs(self, pod: PodInfo) -> dict[str, Any]:
        estimate = self._estimator.estimate(pod)
        inputs: dict[str, Any] = {
            "podEstimate": {name: estimate.get(name, 0) for name in self._names},
            "podClass": priority_class(pod.pod),
            "nodeMetricSource": self.args.node_metric_source,
        }
        if told := self._estimator.told(pod):
            inputs["estimator"] = told
        if not self.metrics.pods_known:
            seconds = self.args.report_interval_seconds
            age = "the report interval of their node" if seconds is None else f"{seconds} s"
            inputs["podUsage"] = f"not known: pods older than {age} are taken to be in the usage of their node"
        return inputs

    def _told(self, view: _View, percent: F64, row: int, i: int, score: float) -> str:
        if not view.judged[i]:
            return "no metrics of this node: 0"
        if view.expired[i]:
            limit = self.args.node_metric_expiration_seconds
            age = "have no time" if np.isnan(view.age[i]) else f"are {view.age[i]:.0f} s old"
            return f"its metrics {age}, and count for {limit} s: 0"
        shares = [
            f"{name} is not known" if np.isnan(percent[r]) else f"{name} would be at {percent[r]:.0f} %"
            for r, name in enumerate(self._names)
        ]
        pods = self.assigned_pods.adding(view.adding, row)
        counting = "1 pod counts as its" if len(pods) == 1 else f"{len(pods)} pods count as their"
        counted = f"; {counting} estimate: {some_of(pods)}" if pods else ""
        return f"with the pod {', '.join(shares)}{counted}: {score:.0f}"


def _shown(values: I64, known: Bool) -> npt.NDArray[Any]:
    """NaN where they are not known."""
    return values if known.all() else np.where(known, values, np.nan)


def _chosen(which: Bool, one: _View, other: _View) -> _View:
    """Of each node what one view or the other has."""
    return replace(
        other,
        measured=np.where(which, one.measured, other.measured),
        delta=np.where(which, one.delta, other.delta),
        used=np.where(which, one.used, other.used),
        there=np.where(which, one.there, other.there),
    )
