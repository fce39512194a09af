"""LoadAwareScheduling: reject nodes that are, or soon will be, loaded, and prefer less loaded nodes.

Usage of a node with the pod, by resource:

    estimated = measured + usage of its pods that is not measured yet + estimate of the pod

`estimator` estimates a pod, `assigned` determines the usage that is not measured yet, `metrics` holds the measurements.
Filtering rejects a node if

    100 * estimated / allocatable > threshold        rounded half away from zero; `comparison: ge` rejects equal too

for a resource; the reason names the first one in alphabetical order. For prod pods, their own thresholds apply, if
there are any; otherwise the thresholds of a percentile, with that percentile as the measured usage; otherwise the plain
thresholds. An annotation of the node replaces them.

Filtering also rejects a node whose measurement is too old, unless the arguments forbid it. A silent node, which the
watcher does not serve any more, counts as such a node until its samples or its Node object end that. No node is
rejected for its age while more than half of the nodes with a measurement have an old one, or the watcher's source does
not respond completely: the monitoring failed, not the nodes. While the watcher does not answer, ages do not increase.

    score of a resource = (allocatable - estimated) * 100 / allocatable        0 if negative
    score = weighted mean by resourceWeights, and of the worst resource by dominantResourceWeight

in integers, rounded down. Nodes that never had a measurement pass and score 0, nodes with an expired one score 0, and
all nodes score 0 if most of the given nodes are in one of these states.

With `use: forecast`, the measured usage of a node (a mean or a percentile) is the upper bound of its usage over the
next `horizon` if it has one that is higher. The usage of prod pods and of the system is always the measured one.

For a percentile over a duration that a NodeMetric does not have, only the estimates are used, as in Koordinator. A
window of the watcher that is less than half full counts as such a duration. Without a duration, the longest available
window of a node is used, or the mean if it has none. A resource that the windows do not have for a node is ignored in
filtering and scores 0. On a node whose pods are not measured, pods of all classes are treated in the same way, and pods
older than a report interval are assumed to be included in the usage of the node. What is known of other nodes has no
influence on it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from scorers.cluster.columns import LOADS, ResourceMatrix
from scorers.cluster.koordinator_classes import PROD, priority_class
from scorers.cluster.node_metrics import NodeMetric, ReportedMetrics, WindowMetrics, units_of
from scorers.cluster.pods import PodInfo
from scorers.cluster.table import ClusterTable, DataNeeds
from scorers.plugin_api.framework import EQUAL_SCORES, Scores, Verdicts, enough_known
from scorers.plugins.forecast_arguments import missing_forecasts
from scorers.plugins.koordinator.arguments import LoadAwareSchedulingArgs
from scorers.plugins.koordinator.assigned_pods import (
    DELTA,
    ESTIMATED,
    PROD_DELTA,
    PROD_USAGE,
    AssignedPod,
    AssignedPods,
)
from scorers.plugins.koordinator.estimator import DEFAULT, ESTIMATORS, allocatable_of, forced_until
from scorers.plugins.koordinator.node_usage import (
    NodeUsageView,
    chosen_by_node,
    combined,
    resource_scores,
)
from scorers.plugins.koordinator.threshold_columns import ThresholdColumns
from scorers.plugins.koordinator.thresholds import Thresholds, thresholds_of_arguments, thresholds_of_node
from watcher.arrays import F64, I64, Bool
from watcher.client import PodColumns
from watcher.core.kubernetes.objects import Node
from watcher.core.kubernetes.pod_resources import Amounts, amounts
from watcher.core.kubernetes.times import read_duration
from watcher.core.review.findings import some_of
from watcher.model import Operator

log = logging.getLogger(__name__)


RESERVATION = "scheduling.koordinator.sh/reserve-pod"
EXPIRED = 1
NODE_REASONS = ("", "node(s) nodeMetric expired")
ESTIMATES = {"nodeDelta": DELTA, "prodUsage": PROD_USAGE, "prodDelta": PROD_DELTA, "nodeEstimated": ESTIMATED}


class LoadAwareScheduling:
    """The plug-in LoadAwareScheduling (see the module docstring)."""

    name = "LoadAwareScheduling"
    arguments = LoadAwareSchedulingArgs

    def __init__(self, arguments: LoadAwareSchedulingArgs, table: ClusterTable, *, profile: str = "default") -> None:
        self.args = arguments
        self._names = arguments.resources
        self._ahead = [(name, LOADS[name]) for name in self._names if name in LOADS]
        self._weights: I64 = np.array([arguments.weights.get(name, 0) for name in self._names], dtype=np.int64)
        self._estimator = ESTIMATORS[arguments.estimator or DEFAULT](arguments)
        self._table = table
        self._reported = ReportedMetrics(self._names) if arguments.node_metric_source == "cluster" else None
        self._fine = () if self._reported else tuple(name for name in self._names if units_of(name) != 1)
        interval = arguments.report_interval_seconds
        self._windows = WindowMetrics(
            self._names,
            windows=table.windows,
            interval=None if interval is None else float(interval),
            ahead=arguments.ahead,
        )
        self.metrics = self._reported or self._windows
        self.assigned_pods = AssignedPods(self._names, self.metrics)
        self._allocatable = ResourceMatrix(self._names)
        self._given = thresholds_of_arguments(arguments)
        aggregation = arguments.aggregation
        seconds = read_duration(aggregation.score_aggregated_duration) or 0.0
        self._scored = (aggregation.score_aggregation_type, seconds)  # used by scoring; without a type the mean
        self._thresholds = ThresholdColumns(self._names)
        self._estimated: tuple[PodInfo, Amounts] | None = None
        self._viewed: tuple[PodInfo, I64, float, NodeUsageView] | None = None
        self._few_old: tuple[float, str] | None = None
        table.listen(self)
        table.follow(self, self._needs())
        self.load_changed()

    def _needs(self) -> DataNeeds:
        source, history = self.args.node_metric_source, self._estimator.history is not None
        if source == "cluster":
            return DataNeeds(pods=history, minutes=history, node_metrics=True)
        pods = source == "windowsAndPods"
        horizons = self.args.forecast_needs.horizons
        return DataNeeds(usages=True, pods=pods, minutes=pods and history, horizons=horizons)

    def missing_forecasts(self, table: ClusterTable) -> str:
        return missing_forecasts(self.args, table)

    # --- updates by events -------------------------------------------------------------------------------------------

    def assigned(self, row: int, info: PodInfo, at: float) -> None:
        """Add a pod assigned to a node; placeholder pods of reservations are ignored."""
        if info.pod.metadata.annotations.get(RESERVATION) == "true":
            return
        self._reserve()
        self._estimated = self._viewed = None
        meta = info.pod.metadata
        estimate = self._estimate(info)
        until = forced_until(info.pod, self.args, scheduled=at)
        prod = priority_class(info.pod) == PROD
        self.assigned_pods.add(info.key, AssignedPod((meta.namespace, meta.name), row, estimate, prod, at, until))
        if self._estimator.history is not None:
            self._estimator.history.add(info.key, info.pod)

    def unassigned(self, row: int, info: PodInfo) -> None:
        """Remove a pod from its node."""
        self._estimated = self._viewed = None
        self.assigned_pods.remove(info.key)
        if self._estimator.history is not None:
            self._estimator.history.remove(info.key)

    def node_changed(self, row: int, node: Node | None) -> None:
        """Update a node's allocatable resources, thresholds and measurement."""
        self._reserve()
        self._forget()
        self._allocatable.set(row, {} if node is None else self._in_units(self._allocatable_of(node)))
        if self._thresholds.set(row, self._given if node is None else self._thresholds_of(node)):
            self.metrics.retain({*self._thresholds.aggregates, self._scored})
        if self._reported is not None:
            self._reported.set(row, None if node is None else self._table.node_metrics.get(node.metadata.name))
        else:
            self._take_windows(np.array([row], dtype=np.int64))
        self.assigned_pods.invalidate_row(row)

    def load_changed(self) -> None:
        """Update from new windows or new pod usage."""
        self._forget()
        if self._estimator.history is not None:
            self._estimator.history.take(self._table.pod_usage)
        if self._reported is not None:
            return
        self._reserve()
        pods = self._table.pod_usage if self.args.node_metric_source == "windowsAndPods" else None
        self._windows.take_pods(pods, "" if pods is None else self._window_of(pods))
        self._take_windows(np.arange(len(self._table), dtype=np.int64))
        self.assigned_pods.recompute_all()

    def node_metric_changed(self, row: int, metric: NodeMetric | None) -> None:
        """Update from a new NodeMetric of a node."""
        if self._reported is not None:
            self._reserve()
            self._forget()
            self._reported.set(row, metric)
            self.assigned_pods.invalidate_row(row)

    def _forget(self) -> None:
        """Discard what was computed from data that changed."""
        self._estimated = self._viewed = self._few_old = None

    def _take_windows(self, rows: I64) -> None:
        self._windows.take(rows, self._table.load, self._table.capacity, self._table.names)

    def _window_of(self, pods: PodColumns) -> str:
        """The label of the pod usage window closest in length to the averaging period of most nodes."""
        if (columns := self._table.load.columns) is None:
            return ""
        if columns.usages is not None and len(columns.nodes):
            wanted = float(np.bincount(columns.usages.period).argmax())
        else:
            covered = [each for (_, kind), each in columns.rollup.items() if kind is not Operator.FORECAST]
            wanted = max((float(np.nanmax(each, initial=0.0)) for each in covered), default=0.0)
        lengths = {label: read_duration(label) or 0.0 for label in pods.average}
        return min(lengths, key=lambda label: (abs(lengths[label] - wanted), lengths[label]), default="")

    def _allocatable_of(self, node: Node) -> Mapping[str, int]:
        try:
            return allocatable_of(node)
        except ValueError as error:
            log.warning("node %s: using status.allocatable, the annotation is invalid: %s", node.metadata.name, error)
            return amounts(node.status.allocatable)

    def _estimate(self, pod: PodInfo) -> Amounts:
        """Return the estimated usage of a pod in the units of the measured usage. Several steps of a request ask for
        the estimate of its pod."""
        if self._estimated is None or self._estimated[0] is not pod:
            self._estimated = pod, self._estimate_of(pod)
        return self._estimated[1]

    def _estimate_of(self, pod: PodInfo) -> Amounts:
        if any(name in pod.requests or name in pod.limits for name in self._fine):
            pod = replace(pod, requests=self._in_units(pod.requests), limits=self._in_units(pod.limits))
        return self._estimator.estimate(pod)

    def _in_units(self, given: Amounts) -> Amounts:
        return {name: size * units_of(name) if name in self._fine else size for name, size in given.items()}

    def _thresholds_of(self, node: Node) -> Thresholds:
        try:
            windows = self._table.windows if self._reported is None else ()
            return thresholds_of_node(node, self._given, windows=windows)
        except ValueError as error:
            log.warning(
                "node %s: using the thresholds of the arguments, the annotation is invalid: %s",
                node.metadata.name,
                error,
            )
            return self._given

    def _reserve(self) -> None:
        rows = len(self._table)
        for each in (self.metrics, self.assigned_pods, self._allocatable, self._thresholds):
            each.reserve(rows)

    # --- filter and score --------------------------------------------------------------------------------------------

    def filter(self, pod: PodInfo, table: ClusterTable, rows: I64, *, now: float) -> Verdicts:
        """Filter the nodes in `rows`; see the module docstring for the rules."""
        limits = self._thresholds.plain.take(rows)[0]
        measured, there = self.metrics.usage.take(rows)
        which_aggregate = self._thresholds.aggregate[rows]
        for (kind, seconds), number in self._thresholds.aggregates.items():
            taken = which_aggregate == number
            of_kind, is_there = self.metrics.aggregated(kind, seconds).take(rows)
            limits = np.where(taken, self._thresholds.aggregated.take(rows)[0], limits)
            measured, there = np.where(taken, of_kind, measured), np.where(taken, is_there, there)
        view = (
            self._view(pod, rows, measured, there, now=now)
            if self._thresholds.aggregates
            else self._plain_view(pod, rows, now)
        )
        aggregated = which_aggregate >= 0
        own = np.where(self._counts_as_prod(pod, rows), self._thresholds.prod.take(rows)[0], 0)
        if own.any():
            which: Bool = np.logical_or.reduce(own > 0, axis=0)
            limits, aggregated = np.where(which, own, limits), aggregated & ~which
            view = chosen_by_node(which, self._prod_view(pod, rows, now=now), view)
        seen = min(now, table.unanswered_since) if self._reported is None else now
        old = view.found & self._ages(rows, seen)[2]
        return self._verdicts(pod, view, limits, aggregated, old, why_not_by_age=self._why_not_by_age(table, seen))

    def _why_not_by_age(self, table: ClusterTable, seen: float) -> str:
        """Return why no node is rejected for its age at `seen` (unix seconds), "" if nodes are. All nodes of the
        cluster count, as a request may contain only a few. A single NodeMetric follows Koordinator's rule."""
        if self._few_old is None or self._few_old[0] != seen:
            self._few_old = seen, self._why_few_are_old(table, seen)
        return self._few_old[1]

    def _why_few_are_old(self, table: ClusterTable, seen: float) -> str:
        rows = np.flatnonzero(table.known)
        found, _, expired = self._ages(rows, seen)
        old, known = int(np.count_nonzero(found & expired)), int(np.count_nonzero(found))
        if self._reported is None and (silence := table.silence) is not None:
            if not silence.source_ok:
                return "the source of the watcher does not respond completely"
            if table.load.columns is None:
                known += silence.served
        few = 2 * old <= known or (self._reported is not None and known == 1)
        return "" if few else f"{old} of {known} nodes with metrics are silent"

    def _verdicts(
        self, pod: PodInfo, view: NodeUsageView, limits: I64, aggregated: Bool, old: Bool, *, why_not_by_age: str
    ) -> Verdicts:
        """Verdicts for the nodes. A limit of 0 means none; a node without limits passes, also if it is `old` [n]."""
        percent = view.percent()
        over = (percent >= limits if self.args.comparison == "ge" else percent > limits) & (limits > 0)
        limited: Bool = np.logical_or.reduce(limits > 0, axis=0)
        judged = view.judged & limited
        codes = np.zeros(len(limited), dtype=np.int64)
        if self.args.filter_expired_node_metrics:
            judged &= ~view.expired
            if not (self.args.enable_schedule_when_node_metrics_expired or why_not_by_age):
                codes[old & limited] = EXPIRED
        first = over.argmax(axis=0) + len(NODE_REASONS) + np.where(aggregated, len(self._names), 0)
        codes = np.where(judged & over.any(axis=0), first, codes)
        reasons = (
            *NODE_REASONS,
            *(f"node(s) {name} usage exceed threshold" for name in self._names),
            *(f"node(s) {name} aggregated usage exceed threshold" for name in self._names),
        )
        steps = view.steps(self._names, percent) | {
            f"{name} threshold %": np.where(limits[i] > 0, limits[i], np.nan)
            for i, name in enumerate(self._names)
            if (limits[i] > 0).any()
        }
        inputs = self._inputs(pod, view) | {"comparison": self.args.comparison} | view.forecasts.inputs()
        inputs |= {"expiredNodesPass": why_not_by_age} if why_not_by_age else {}
        inclusive = self.args.comparison == "ge"
        compared = partial(view.compared, self._names, percent=percent, limits=limits, over=over, inclusive=inclusive)

        def details(i: int) -> str:
            more = (view.unmeasured(i), self._forecast_text(view, i))
            return view.silent_since(i) or "; ".join(filter(None, [compared(i), *more]))

        return Verdicts(codes, reasons, steps, inputs, details=details, more_steps=partial(self._bounds, view))

    def _forecast_text(self, view: NodeUsageView, i: int) -> str:
        """The forecasts of the node in column `i` of the view, "" if they are not used."""
        if view.prod[i]:
            return "prod pods have no forecast; their measured usage counts" if self.args.ahead else ""
        return view.forecasts.text(i, self._ahead)

    def _bounds(self, view: NodeUsageView, i: int) -> dict[str, float]:
        return {} if view.prod[i] else view.forecasts.steps(i, self._ahead)

    def score(self, pod: PodInfo, table: ClusterTable, rows: I64, *, now: float) -> Scores:
        """Score the nodes in `rows` from 0 to 100; see the module docstring for the rules."""
        as_prod = self._counts_as_prod(pod, rows) & self.args.score_according_prod_usage
        view = self._prod_view(pod, rows, now=now) if as_prod.all() else self._scored_view(pod, rows, now)
        if as_prod.any() and not as_prod.all():
            view = chosen_by_node(as_prod, self._prod_view(pod, rows, now=now), view)
        each = np.where(view.known, resource_scores(view.used, view.allocatable), 0)
        scored = view.judged & ~view.expired
        if few := not enough_known(scored):
            scored = np.zeros_like(scored)
        values = np.where(scored, combined(each, self._weights, self.args.dominant_resource_weight), 0)
        percent = view.percent()
        steps = view.steps(self._names, percent) | {f"{name} score": each[i] for i, name in enumerate(self._names)}
        inputs = self._inputs(pod, view) | {
            "resourceWeights": dict(self.args.weights),
            "dominantResourceWeight": self.args.dominant_resource_weight,
            **view.forecasts.inputs(),
        }
        if few:
            inputs["fallback"] = EQUAL_SCORES

        def reason(i: int) -> str:
            message = self._reason(view, percent[:, i], int(rows[i]), i, float(values[i]))
            return f"most nodes have no valid metrics, so all score 0; {message}" if few else message

        return Scores(values.astype(np.float64), steps, inputs, reason, partial(self._bounds, view))

    def fallback(self, table: ClusterTable, *, now: float) -> str:
        """EQUAL_SCORES if the measurements of most nodes are missing or expired, otherwise ""."""
        rows = np.flatnonzero(table.known)
        scored = self.metrics.there[rows] & self.metrics.usage.present[rows] & ~self._ages(rows, now)[2]
        return "" if enough_known(scored) else EQUAL_SCORES

    def estimates(self, row: int) -> Mapping[str, Any]:
        """The estimates of a node with the names of Koordinator's debug endpoint: amounts by resource, and the pods
        included."""
        self._reserve()
        message: dict[str, Any] = {}
        for name, which in ESTIMATES.items():
            amounts = self.assigned_pods.sums(which, np.array([row], dtype=np.int64))[:, 0].tolist()
            message[name] = dict(zip(self._names, amounts, strict=True))
            message[f"{name}Pods"] = self.assigned_pods.adding(which, row)
        return message

    # --- computation -------------------------------------------------------------------------------------------------

    def _counts_as_prod(self, pod: PodInfo, rows: I64) -> Bool:
        """Whether the pod has the class koord-prod and the usage of other pods of this class is known on the node."""
        return self.metrics.pods_known[rows] & (priority_class(pod.pod) == PROD)

    def _scored_view(self, pod: PodInfo, rows: I64, now: float) -> NodeUsageView:
        if not self._scored[0]:
            return self._plain_view(pod, rows, now)
        return self._view(pod, rows, *self.metrics.aggregated(*self._scored).take(rows), now=now)

    def _plain_view(self, pod: PodInfo, rows: I64, now: float) -> NodeUsageView:
        """The view with the mean usage; the filter and the score of a pod use the same if all nodes pass."""
        if self._viewed is not None:
            known, same, at, view = self._viewed
            if known is pod and at == now and np.array_equal(same, rows):
                return view
        view = self._view(pod, rows, *self.metrics.usage.take(rows), now=now)
        self._viewed = pod, rows, now, view
        return view

    def _prod_view(self, pod: PodInfo, rows: I64, *, now: float) -> NodeUsageView:
        measured = self.assigned_pods.sums(PROD_USAGE, rows)
        if self.args.prod_usage_include_sys:
            measured = measured + self.metrics.system.take(rows)[0]
        there = np.ones(len(rows), dtype=np.bool_)
        return self._view(pod, rows, measured, there, now=now, adding=PROD_DELTA)

    def _view(
        self, pod: PodInfo, rows: I64, measured: I64, there: Bool, *, now: float, adding: int = DELTA
    ) -> NodeUsageView:
        estimate = self._estimate(pod)
        incoming = np.array([[estimate.get(name, 0)] for name in self._names], dtype=np.int64)
        delta = self.assigned_pods.sums(adding, rows)
        before = measured + delta
        if not there.all():
            before = np.where(there, before, self.assigned_pods.sums(ESTIMATED, rows))
        found, age, expired = self._ages(rows, now)
        return NodeUsageView(
            measured=measured,
            delta=delta,
            used=before + incoming,
            allocatable=self._allocatable.take(rows)[0],
            known=np.take(self.metrics.known, rows, axis=1),
            there=there,
            found=found,
            judged=self.metrics.there[rows] & self.metrics.usage.present[rows],
            expired=expired,
            age=age,
            silent=np.where(found & expired, now - age, np.nan),
            prod=np.full(len(rows), adding != DELTA),
            pods_known=self.metrics.pods_known[rows],
            forecasts=self._table.load.forecast(self.args.ahead if adding == DELTA else "", rows),
        )

    def _ages(self, rows: I64, now: float) -> tuple[Bool, F64, Bool]:
        """Return for each node [n] whether it has or had a measurement, its age in seconds, and whether it is too old,
        as a silent node with samples in the future is: the clock was set back."""
        updated, silent = self.metrics.updated[rows], self.metrics.silent[rows]
        age = now - np.where(np.isnan(updated), silent, updated)
        is_silent = ~np.isnan(silent)
        expired = ~(age < self.args.node_metric_expiration_seconds) | (is_silent & (age < 0.0))
        return self.metrics.there[rows] | is_silent, age, expired

    # --- explanations ------------------------------------------------------------------------------------------------

    def _inputs(self, pod: PodInfo, view: NodeUsageView) -> dict[str, Any]:
        estimate = self._estimate(pod)
        inputs: dict[str, Any] = {
            "podEstimate": {name: estimate.get(name, 0) for name in self._names},
            "podClass": priority_class(pod.pod),
            "nodeMetricSource": self.args.node_metric_source,
        }
        if message := self._estimator.explain(pod):
            inputs["estimator"] = message
        if unmeasured := int(np.count_nonzero(~view.pods_known)):
            seconds, of = self.args.report_interval_seconds, len(view.pods_known)
            age = "the report interval of their node" if seconds is None else f"{seconds} s"
            where = "unknown" if unmeasured == of else f"unknown on {unmeasured} of {of} nodes"
            inputs["podUsage"] = f"{where}: pods older than {age} are assumed to be in the usage of their node"
        return inputs

    def _reason(self, view: NodeUsageView, percent: F64, row: int, i: int, score: float) -> str:
        if not view.judged[i]:
            silent = view.silent_since(i)
            return f"no metrics of this node{f', {silent}' if silent else ''}: 0"
        if view.expired[i]:
            limit = self.args.node_metric_expiration_seconds
            age = "have no time" if np.isnan(view.age[i]) else f"are {view.age[i]:.0f} s old"
            return f"its metrics {age}, and expire after {limit} s: 0"
        shares = [
            f"{name} is unknown" if np.isnan(percent[r]) else f"{name} would be at {percent[r]:.0f} %"
            for r, name in enumerate(self._names)
        ]
        pods = self.assigned_pods.adding(PROD_DELTA if view.prod[i] else DELTA, row)
        counting = "1 pod counted by its" if len(pods) == 1 else f"{len(pods)} pods counted by their"
        counted = f"; {counting} estimate: {some_of(pods)}" if pods else ""
        more = "".join(f"; {text}" for text in (view.unmeasured(i), self._forecast_text(view, i)) if text)
        return f"with the pod {', '.join(shares)}{counted}{more}: {score:.0f}"
