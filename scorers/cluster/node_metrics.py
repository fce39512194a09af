"""Measured usage of nodes: NodeMetrics, one by one as the cluster has them, and all of them as columns.

A NodeMetric is koordlet's report for a node: usage of the node, percentiles of it, usage of its pods and of the system.
Two sources fill the same columns: `ReportedMetrics` from these objects, and `WindowMetrics` from the watcher's samples
by the same rules (watcher.core.koordinator.report), as a percentage of the node's `capacity`, with the watcher's pod
usage if given. Columns have one row per node of a table; amounts are integers by resource (millicores, bytes).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec
import numpy as np

from scorers.cluster.columns import GPU_RESOURCES, LOADS, AmountColumns, ResourceMatrix, raised
from scorers.cluster.load import NodeLoadColumns
from watcher.arrays import F64, I64, Bool
from watcher.client import PodColumns
from watcher.core.koordinator.report import whole
from watcher.core.kubernetes.objects import Quantities
from watcher.core.kubernetes.pod_resources import Amounts, amounts
from watcher.core.kubernetes.times import read_duration, read_time
from watcher.core.kubernetes.wire import MinimalMetadata, Resource
from watcher.core.pods.coverage import PodCoverage
from watcher.model import MetricType, Window

Aggregation = Literal["avg", "p50", "p90", "p95", "p99"]

PodKey = tuple[str, str]
"""Namespace and name of a pod."""

REPORT_INTERVAL_S = 60.0
GPU_UNITS = 1000
"""Units of `WindowMetrics` in one unit of a GPU resource: a node with one GPU can use a part of it."""
METRIC_OF = {**LOADS, **dict.fromkeys(GPU_RESOURCES, MetricType.GPU)}
"""The watcher's metric of each resource that it measures in percent of a node's capacity."""
NONE: I64 = np.zeros(0, dtype=np.int64)

# --- one NodeMetric --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PodMetric:
    """Usage of a pod, and whether it was reported with the class koord-prod."""

    usage: Amounts
    prod: bool


@dataclass(frozen=True, slots=True)
class NodeMetric:
    """Metrics of a node. `updated` (unix seconds) is None if nothing was ever reported, `usage` is None if nothing is
    measured. `aggregated` has the reported usages by type and seconds. `interval` is in seconds."""

    updated: float | None = None
    interval: float = REPORT_INTERVAL_S
    usage: Amounts | None = None
    system: Amounts = field(default_factory=dict)
    aggregated: Mapping[tuple[str, float], Amounts] = field(default_factory=dict)
    pods: Mapping[PodKey, PodMetric] = field(default_factory=dict)


def aggregated_usage(metric: NodeMetric, kind: str, duration: float) -> Amounts | None:
    """Usage of this type over `duration` seconds; None if not reported. For 0 seconds, the usage over the longest
    window, or the mean without windows."""
    if duration:
        return metric.aggregated.get((kind, duration))
    longest = max((seconds for name, seconds in metric.aggregated if name == kind), default=0.0)
    return metric.aggregated[(kind, longest)] if longest else metric.usage


class _Resources(msgspec.Struct, frozen=True):
    resources: Quantities = {}


class _Aggregated(msgspec.Struct, frozen=True):
    duration: str = ""
    usage: Mapping[str, _Resources | None] = {}


class _Usage(msgspec.Struct, frozen=True, rename="camel"):
    node_usage: _Resources | None = None
    system_usage: _Resources | None = None
    aggregated_node_usages: tuple[_Aggregated | None, ...] | None = None


class _PodUsage(msgspec.Struct, frozen=True, rename="camel"):
    namespace: str = ""
    name: str = ""
    priority: str = ""
    pod_usage: _Resources | None = None


class _CollectPolicy(msgspec.Struct, frozen=True, rename="camel"):
    report_interval_seconds: int | None = None


class NodeMetricSpec(msgspec.Struct, frozen=True, rename="camel"):
    """The spec of a NodeMetric: how often the node reports."""

    metric_collect_policy: _CollectPolicy | None = None


class NodeMetricStatus(msgspec.Struct, frozen=True, rename="camel"):
    """The status of a NodeMetric: the measured usage."""

    update_time: str | None = None
    node_metric: _Usage | None = None
    pods_metric: tuple[_PodUsage | None, ...] | None = None


class NodeMetricObject(msgspec.Struct, frozen=True):
    """The custom resource, reduced to the fields used here."""

    metadata: MinimalMetadata = MinimalMetadata()
    spec: NodeMetricSpec = NodeMetricSpec()
    status: NodeMetricStatus = NodeMetricStatus()


NODE_METRIC_OBJECTS: Resource[NodeMetricObject] = Resource(
    "slo.koordinator.sh", "v1alpha1", "nodemetrics", NodeMetricObject
)


def read_node_metric(given: NodeMetricObject) -> NodeMetric:
    """Convert a NodeMetric object. Raises ValueError that names the invalid field."""
    status, policy = given.status, given.spec.metric_collect_policy
    updated = None if status.update_time is None else read_time(status.update_time)
    if status.update_time and updated is None:
        raise ValueError(f"status.updateTime: {status.update_time[:40]!r} is not a valid time")
    interval = None if policy is None else policy.report_interval_seconds
    measured = status.node_metric
    pods = {
        (pod.namespace, pod.name): PodMetric(usage, pod.priority == "koord-prod")
        for pod in status.pods_metric or ()
        if pod is not None and (usage := _usage(f"usage of {pod.namespace}/{pod.name}", pod.pod_usage))
    }
    return NodeMetric(
        updated=updated,
        interval=REPORT_INTERVAL_S if interval is None else float(interval),
        usage=None if measured is None else _usage("nodeUsage", measured.node_usage),
        system={} if measured is None else _usage("systemUsage", measured.system_usage),
        aggregated={} if measured is None else _aggregated(measured),
        pods=pods,
    )


def _aggregated(measured: _Usage) -> dict[tuple[str, float], Amounts]:
    found: dict[tuple[str, float], Amounts] = {}
    for each in measured.aggregated_node_usages or ():
        if each is None:
            continue
        seconds = read_duration(each.duration)
        if seconds is None:
            raise ValueError(f"aggregatedNodeUsages: {each.duration[:40]!r} is not a valid duration")
        for kind, resources in each.usage.items():
            if usage := _usage(f"{kind} over {each.duration}", resources):
                found[(kind, seconds)] = usage
    return found


def _usage(what: str, given: _Resources | None) -> Amounts:
    if given is None:
        return {}
    try:
        read = amounts(given.resources)
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None
    if negative := sorted(name for name, size in read.items() if size < 0):
        raise ValueError(f"{what}: {', '.join(negative)} is negative")
    return read


# --- columns of all nodes --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PodReadings:
    """Usage of n pods, [resources, n]: 0 where unknown (`known` [resources, n] is false), whether they are reported
    (`there` [n]), and whether as koord-prod."""

    used: I64
    known: Bool
    there: Bool
    prod: Bool


class MetricColumns(ABC):
    """NodeMetrics by row. `there` [rows] marks nodes that have one; `updated` (unix seconds) is NaN if never reported;
    `silent` is the time of the last sample (unix seconds) of a silent node that has no NodeMetric any more, NaN for all
    other nodes; `known` [resources, rows] marks measured resources. `pods_known` [rows] marks nodes whose pods are
    measured: elsewhere, a pod without a measurement may nevertheless be included in the usage of its node."""

    def __init__(self, resources: Sequence[str], *, pods_known: bool = False) -> None:
        self.resources = tuple(resources)
        self.there: Bool = np.zeros(0, dtype=np.bool_)
        self.updated: F64 = np.zeros(0)
        self.silent: F64 = np.zeros(0)
        self.interval: F64 = np.zeros(0)
        self.known: Bool = np.zeros((len(self.resources), 0), dtype=np.bool_)
        self.pods_known: Bool = np.zeros(0, dtype=np.bool_)
        self._pods_known = pods_known  # of a row that was never set
        self.usage, self.system = ResourceMatrix(resources), ResourceMatrix(resources)
        self._aggregated: dict[tuple[str, float], ResourceMatrix] = {}

    def reserve(self, rows: int) -> None:
        """Make space for this number of rows; 25% more than needed when it grows."""
        more = rows + rows // 4 - len(self.there)
        if rows <= len(self.there):
            return
        self.there = np.concatenate([self.there, np.zeros(more, dtype=np.bool_)])
        self.updated = np.concatenate([self.updated, np.full(more, np.nan)])
        self.silent = np.concatenate([self.silent, np.full(more, np.nan)])
        self.pods_known = np.concatenate([self.pods_known, np.full(more, self._pods_known)])
        self.interval = np.concatenate([self.interval, np.full(more, REPORT_INTERVAL_S)])
        self.known = np.concatenate([self.known, np.zeros((len(self.resources), more), dtype=np.bool_)], axis=1)
        for matrix in (self.usage, self.system, *self._aggregated.values()):
            matrix.reserve(rows)

    def aggregated(self, kind: str, duration: float) -> ResourceMatrix:
        """Usage of a type over `duration` seconds; 0 means the longest window."""
        key = (kind, duration)
        if key not in self._aggregated:
            matrix = self._aggregated[key] = ResourceMatrix(self.resources)
            matrix.reserve(len(self.there))
        return self._aggregated[key]

    def retain(self, wanted: Collection[tuple[str, float]]) -> None:
        """Limit the maintained aggregates to these types and durations; others are computed again when requested."""
        self._aggregated = {key: matrix for key, matrix in self._aggregated.items() if key in wanted}

    @abstractmethod
    def readings(self, rows: I64, pods: Sequence[PodKey], prod: Bool, at: F64) -> PodReadings: ...


class ReportedMetrics(MetricColumns):
    """NodeMetrics as reported in the cluster, set one by one. Types and durations get columns only when requested,
    because thousands of objects may each report different ones. By Koordinator's rule, a pod that a NodeMetric lacks is
    not measured, so the pods of all nodes are known."""

    def __init__(self, resources: Sequence[str]) -> None:
        super().__init__(resources, pods_known=True)
        self._metrics: dict[int, NodeMetric] = {}

    def set(self, row: int, metric: NodeMetric | None) -> None:
        """Set the metric of the node in a row; None clears it."""
        one = metric or NodeMetric()
        self.there[row] = metric is not None
        self.updated[row] = np.nan if one.updated is None else one.updated
        self.interval[row] = one.interval
        self.known[:, row] = one.usage is not None
        self.usage.set(row, one.usage)
        self.system.set(row, one.system)
        if metric is None:
            self._metrics.pop(row, None)
        else:
            self._metrics[row] = metric
        for (kind, seconds), matrix in self._aggregated.items():
            matrix.set(row, aggregated_usage(one, kind, seconds))

    def aggregated(self, kind: str, duration: float) -> ResourceMatrix:
        """Usage of a type over `duration` seconds; 0 means the longest window of each node, or the mean if it has
        none."""
        if (kind, duration) in self._aggregated:
            return self._aggregated[(kind, duration)]
        matrix = super().aggregated(kind, duration)
        for row, metric in self._metrics.items():
            matrix.set(row, aggregated_usage(metric, kind, duration))
        return matrix

    def readings(self, rows: I64, pods: Sequence[PodKey], prod: Bool, at: F64) -> PodReadings:
        """The usage reported for each pod by its node."""
        used = np.zeros((len(self.resources), len(rows)), dtype=np.int64)
        there, reported = np.zeros(len(rows), dtype=np.bool_), np.zeros(len(rows), dtype=np.bool_)
        for i, (row, pod) in enumerate(zip(rows.tolist(), pods, strict=True)):
            metric = self._metrics.get(row)
            found = None if metric is None else metric.pods.get(pod)
            if found is not None:
                used[:, i] = [found.usage.get(name, 0) for name in self.resources]
                there[i], reported[i] = True, found.prod
        return PodReadings(used, np.broadcast_to(there, used.shape), there, reported)


class WindowMetrics(MetricColumns):
    """NodeMetrics derived from the watcher's samples, as GET /api/v1/nodemetrics returns them.

    Usage is the mean over the aggregation period, aggregated usages are koordlet's over each of the `windows`, and
    `updated` is the time of the newest sample. If the load is plain columns, usage is their average (or the newest
    reading), without aggregated usages. Usage of a pod, if known on its node, is its mean over the aggregation period,
    or its newest reading; the rest of the usage of such a node belongs to the system. `interval` (seconds) overrides
    the report interval of the policies. With `ahead`, usage is raised to the bound of the forecast over this horizon
    ("6h"), but not that of the system. GPUs are in thousandths, and the usage of a pod does not include them.
    """

    def __init__(
        self, resources: Sequence[str], *, windows: Sequence[Window], interval: float | None, ahead: str = ""
    ) -> None:
        super().__init__(resources)
        self._ahead = ahead
        self._interval = interval
        self._windows = tuple(float(window.seconds) for window in windows)
        self._load: NodeLoadColumns | None = None
        self._capacity: AmountColumns | None = None
        self._pods: PodColumns | None = None
        self._coverage = PodCoverage({})
        self._unread: frozenset[str] = frozenset()
        self._names: Sequence[str] = ()
        self._readings: I64 = np.zeros((len(self.resources), 0), dtype=np.int64)
        self._has_reading: Bool = np.zeros((len(self.resources), 0), dtype=np.bool_)
        self._reading_row: I64 = NONE  # row of the node each pod was seen on; -1 if unknown
        self._readings_on: dict[int, I64] = {}  # pod readings by row
        self.bounds: F64 = np.zeros((len(self.resources), 0))
        """Bounds of the forecasts in percent [resources, rows], NaN without one; empty without `ahead`."""

    def reserve(self, rows: int) -> None:
        super().reserve(rows)
        if self._ahead and (more := len(self.there) - self.bounds.shape[1]):
            self.bounds = np.concatenate([self.bounds, np.full((len(self.resources), more), np.nan)], axis=1)

    def take(self, rows: I64, load: NodeLoadColumns, capacity: AmountColumns, names: Sequence[str]) -> None:
        """Update these rows from the load; `names` are the node names of all rows."""
        self._load, self._capacity, self._names = load, capacity, names
        self._place_readings(rows)
        self.updated[rows], self.silent[rows] = load.sampled()[rows], load.silent[rows]
        self.interval[rows] = self._intervals(rows)
        self.pods_known[rows] = self._know_pods(rows)
        percent, sizes = self._percent(rows, load.usage), self._sizes(rows)
        self.known[:, rows] = ~np.isnan(percent) & (sizes > 0)
        self.there[rows] = ~np.isnan(percent).all(axis=0)
        self.usage.values[:, rows], self.usage.present[rows] = _of(percent, sizes), self.known[:, rows].any(axis=0)
        self._take_system(rows)
        if self._ahead:
            self.bounds[:, rows] = self._percent(rows, lambda metric: load.bound(metric, self._ahead))
            self.usage.values[:, rows] = _of(raised(percent, self.bounds[:, rows]), sizes)
        for kind, duration in self._aggregated:
            self._take_aggregated(kind, duration, rows)

    def aggregated(self, kind: str, duration: float) -> ResourceMatrix:
        """Usage of a type over `duration` seconds; 0 means the longest window of each node, or the mean if it has
        none."""
        if (kind, duration) in self._aggregated:
            return self._aggregated[(kind, duration)]
        matrix = super().aggregated(kind, duration)
        if self._load is not None:
            self._take_aggregated(kind, duration, np.arange(len(self._names)))
        return matrix

    def _take_aggregated(self, kind: str, duration: float, rows: I64) -> None:
        matrix, sizes, known = self._aggregated[(kind, duration)], self._sizes(rows), self.known[:, rows]
        values, there = np.zeros_like(sizes), np.zeros(len(rows), dtype=np.bool_)
        if not duration:
            values, there = self.usage.values[:, rows], self.usage.present[rows]
        for seconds in [duration] if duration else self._windows:
            percent = self._over(kind, seconds, rows)
            warm = known.any(axis=0) & (~np.isnan(percent) | ~known).all(axis=0)
            values, there = np.where(warm, _of(percent, sizes), values), there | warm
        matrix.values[:, rows], matrix.present[rows] = values, there

    def _over(self, kind: str, seconds: float, rows: I64) -> F64:
        load = self._load
        assert load is not None
        percent = self._percent(rows, lambda metric: load.aggregated(metric, kind, int(seconds)))
        return raised(percent, self.bounds[:, rows]) if self._ahead else percent

    def _intervals(self, rows: I64) -> F64 | float:
        if self._interval is not None or self._load is None:
            return REPORT_INTERVAL_S if self._interval is None else self._interval
        message = self._load.report_interval()[rows]
        return np.where(np.isnan(message), REPORT_INTERVAL_S, message)

    def _percent(self, rows: I64, of: Callable[[MetricType], F64]) -> F64:
        """Return the usage of these rows in percent [resources, n]; `of` returns the column of a metric. NaN if
        unknown."""
        found = np.full((len(self.resources), len(rows)), np.nan)
        for i, kind in enumerate(METRIC_OF.get(name) for name in self.resources):
            if kind is not None:
                found[i] = of(kind)[rows]
        return found

    def _sizes(self, rows: I64) -> I64:
        if self._capacity is None:
            return np.zeros((len(self.resources), len(rows)), dtype=np.int64)
        columns = [self._capacity.column(name)[rows] * units_of(name) for name in self.resources]
        return np.array(columns, dtype=np.int64).reshape(len(self.resources), len(rows))

    def take_pods(self, pods: PodColumns | None, window: str) -> None:
        """Set the usage of pods; None if unknown. `window` is the label of the window as long as the aggregation
        period. The caller must then call `take` for all rows."""
        self._pods = pods
        if pods is None:
            return
        self._coverage = pods.covered()
        self._reading_row = np.full(len(pods.pods), -1, dtype=np.int64)
        self._readings_on = {}
        cores, memory = pods.average.get(window, (pods.cores, pods.memory))
        amount_of = {
            "cpu": np.where(np.isnan(cores), pods.cores, cores) * 1000,
            "memory": np.where(np.isnan(memory), pods.memory, memory),
        }
        none = np.zeros(len(pods.pods))
        self._unread = _lacking(pods, [amount_of[name] for name in self.resources if name in amount_of])
        columns = np.array([amount_of.get(name, none) for name in self.resources]).reshape(len(self.resources), -1)
        self._readings, self._has_reading = whole(columns), ~np.isnan(columns)

    def _place_readings(self, rows: I64) -> None:
        """Assign the pod readings to rows again, because a row may now belong to another node."""
        if self._pods is None:
            return
        for row in rows.tolist():
            before = self._readings_on.pop(row, NONE)
            self._reading_row[before[self._reading_row[before] == row]] = -1
            at = self._pods.on_node.get(self._names[row])
            if at is not None:
                self._readings_on[row] = at
                self._reading_row[at] = row

    def _know_pods(self, rows: I64) -> Bool:
        """Whether the pods of these nodes were measured, in each resource, at the time of the nodes' newest samples."""
        if self._pods is None:
            return np.zeros(len(rows), dtype=np.bool_)
        of_rows = [
            (self._names[row], time) for row, time in zip(rows.tolist(), self.updated[rows].tolist(), strict=True)
        ]
        known = [name not in self._unread and self._coverage.known(name, time) for name, time in of_rows]
        return np.array(known, dtype=np.bool_)

    def _take_system(self, rows: I64) -> None:
        """Compute the system usage: the part of a node's usage that belongs to no pod. None where pods are unknown."""
        self.system.set_all(rows, None)
        rows = rows[self.pods_known[rows]]
        if not len(rows):
            return
        on_rows = [self._readings_on.get(row, NONE) for row in rows.tolist()]
        placed = np.concatenate([NONE, *on_rows])
        where = np.repeat(np.arange(len(rows)), [len(each) for each in on_rows])
        of_pods = np.zeros((len(self.resources), len(rows)), dtype=np.int64)
        for total, read in zip(of_pods, self._readings, strict=True):
            np.add.at(total, where, read[placed])
        self.system.set_all(rows, np.maximum(self.usage.values[:, rows] - of_pods, 0))

    def readings(self, rows: I64, pods: Sequence[PodKey], prod: Bool, at: F64) -> PodReadings:
        """Usage of each pod on the node where it was seen; prod is the pod's own class. A reading from before the pod
        was assigned (`at`, unix seconds) belongs to an earlier pod of the same name and is ignored."""
        there = np.zeros(len(rows), dtype=np.bool_)
        found = np.full(len(rows), -1, dtype=np.int64)
        if self._pods is not None:
            known = self._pods.row
            found = np.fromiter((known.get(pod, -1) for pod in pods), dtype=np.int64, count=len(rows))
            seen = found >= 0
            read = found[seen]
            there[seen] = (self._reading_row[read] == rows[seen]) & (self._pods.sampled[read] >= at[seen])
        used = np.zeros((len(self.resources), len(rows)), dtype=np.int64)
        used[:, there] = self._readings[:, found[there]]
        has_reading = np.zeros(used.shape, dtype=np.bool_)
        has_reading[:, there] = self._has_reading[:, found[there]]
        return PodReadings(used, has_reading, there, prod & there)


def _lacking(pods: PodColumns, amounts: Sequence[F64]) -> frozenset[str]:
    """The nodes whose pods all lack one of these amounts, NaN where unknown: the source has other series of them."""
    missing = [np.isnan(amount) for amount in amounts]
    return frozenset(node for node, at in pods.on_node.items() if any(each[at].all() for each in missing))


def units_of(resource: str) -> int:
    """Return the units of `WindowMetrics` in one unit of the resource."""
    return GPU_UNITS if resource in GPU_RESOURCES else 1


def _of(percent: F64, sizes: I64) -> I64:
    share = np.clip(np.nan_to_num(percent, nan=0.0), 0.0, None)
    return whole(share / 100.0 * sizes)
