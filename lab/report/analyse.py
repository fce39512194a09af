"""The findings of a report, computed from the collected history.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lab.report.collected import ClusterHistory, NodeLoads, NodeSample, PodLoads
from lab.report.names import workload_of
from watcher.arrays import F64, I64, Bool
from watcher.core.forecast.bound import Calibration
from watcher.core.forecast.maxima import DAY_SLOTS, HOUR_SLOTS, SLOT_S, decode, encode, span_maxima

HOUR_S, DAY_S = 3600, 86400
LEVEL = 0.95
HORIZON_H = 6
LONGEST_BUSY_H = 8
NORMAL_975 = 1.96
"""Quantile 0.975 of the normal distribution."""


# --- hot hours -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeHeat:
    """Load of one node: hours above the threshold, mean and peak in percent (NaN if unknown), and the hours with a
    value."""

    node: str
    cpu_hot_hours: float
    memory_hot_hours: float
    cpu_mean: float
    cpu_peak: float
    memory_mean: float
    memory_peak: float
    known_hours: float


@dataclass(frozen=True, slots=True)
class HotHours:
    """Node-hours above `threshold` percent. `by_day` [days, 24] has the node-hours by CPU for each UTC day, NaN for
    hours without values; `days` are the begins of the days (unix seconds). `busy` is the span of the day
    (first hour, hour after the last) with most of the hot time; None if there is no such span. `nodes` are sorted by
    their hot hours. In `known_hours`, at least one node has a value."""

    threshold: float
    node_hours: float
    memory_node_hours: float
    hot_nodes: int
    memory_hot_nodes: int
    days: tuple[int, ...]
    by_day: F64
    busy: tuple[int, int] | None
    nodes: tuple[NodeHeat, ...]
    known_hours: float


def hot_hours(loads: NodeLoads, threshold: float) -> HotHours:
    """Compute when which nodes are above the threshold (percent)."""
    hot, memory_hot = loads.cpu > threshold, loads.memory > threshold
    days, by_day = _by_day(loads, hot)
    stats = [_mean_and_peak(values) for values in (loads.cpu, loads.memory)]
    hours = [np.count_nonzero(each, axis=0) / HOUR_SLOTS for each in (hot, memory_hot)]
    known = np.count_nonzero(np.isfinite(loads.cpu), axis=0) / HOUR_SLOTS
    columns = (*hours, *stats[0], *stats[1], known)
    nodes = [NodeHeat(node, *map(float, row)) for node, *row in zip(loads.nodes, *columns, strict=True)]
    nodes.sort(key=lambda each: (-each.cpu_hot_hours, -each.memory_hot_hours, -np.nan_to_num(each.cpu_peak), each.node))
    return HotHours(
        threshold,
        float(hours[0].sum()),
        float(hours[1].sum()),
        int(np.count_nonzero(hours[0])),
        int(np.count_nonzero(hours[1])),
        days,
        by_day,
        busy_span(np.nansum(by_day, axis=0)),
        tuple(nodes),
        float(np.count_nonzero(np.isfinite(loads.cpu).any(axis=1)) / HOUR_SLOTS),
    )


def _mean_and_peak(values: F64) -> tuple[F64, F64]:
    known = np.isfinite(values)
    count = known.sum(axis=0)
    total = np.where(known, values, 0.0).sum(axis=0)
    highest = np.where(known, values, -1.0).max(axis=0, initial=-1.0)
    return total / np.where(count > 0, count, np.nan), np.where(count > 0, highest, np.nan)


def _by_day(loads: NodeLoads, hot: Bool) -> tuple[tuple[int, ...], F64]:
    begins = loads.begins // DAY_S * DAY_S
    count = -(-(loads.begins + len(hot) * SLOT_S - begins) // DAY_S)
    days = tuple(begins + i * DAY_S for i in range(count))
    grid = np.full((count * 24, HOUR_SLOTS), np.nan)
    first = (loads.begins - begins) // SLOT_S
    anything = np.isfinite(loads.cpu).any(axis=1)
    grid.ravel()[first : first + len(hot)] = np.where(anything, hot.sum(axis=1) / HOUR_SLOTS, np.nan)
    known = np.isfinite(grid).any(axis=1)
    return days, np.where(known, np.nansum(grid, axis=1), np.nan).reshape(count, 24)


def busy_span(by_hour: F64) -> tuple[int, int] | None:
    """The shortest span of hours of the day (it may cross midnight) with more than half of the total; None if it is
    longer than LONGEST_BUSY_H or the total is 0."""
    total = float(by_hour.sum())
    if total <= 0.0:
        return None
    twice = np.concatenate([by_hour, by_hour])
    for length in range(1, LONGEST_BUSY_H + 1):
        sums = [float(twice[start : start + length].sum()) for start in range(24)]
        best = int(np.argmax(sums))
        if sums[best] > total / 2.0:
            return best, (best + length) % 24
    return None


def hourly_peaks(loads: NodeLoads, nodes: Sequence[str]) -> F64:
    """The highest CPU utilization of each hour [hours, nodes] in percent; NaN without values."""
    place = {node: i for i, node in enumerate(loads.nodes)}
    values = loads.cpu[:, [place[node] for node in nodes]]
    hours = len(values) // HOUR_SLOTS
    grid = values[: hours * HOUR_SLOTS].reshape(hours, HOUR_SLOTS, len(nodes))
    highest = np.where(np.isfinite(grid), grid, -1.0).max(axis=1)
    return np.where(highest >= 0.0, highest, np.nan)


# --- peaks, requests and the bound -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BoundRecord:
    """How the bounds of the last week compare with the outcomes, over all nodes. `count` is the number of bounds with a
    known outcome, `hours` the highest number of a node; coverage and severity are shares, NaN without bounds. `reason`
    states why there is no bound."""

    horizon_h: int
    level: float
    count: int
    coverage: float
    severity: float
    reason: str = ""
    hours: int = 0


@dataclass(frozen=True, slots=True)
class NodePeaks:
    """One resource of one node, or of the cluster: percent, or cores and bytes where the size is known (NaN
    otherwise). `freed` is what is allocatable beyond the bound, `excess` what is requested beyond it."""

    node: str
    capacity: float
    allocatable: float
    requested: float
    mean: float
    peak: float
    bound: float
    mean_percent: float
    peak_percent: float
    bound_percent: float
    coverage: float

    @property
    def freed(self) -> float:
        return float(np.maximum(self.allocatable - self.bound, 0.0))

    @property
    def excess(self) -> float:
        return float(np.maximum(self.requested - self.bound, 0.0))


@dataclass(frozen=True, slots=True)
class ResourcePeaks:
    """One resource, `cpu` or `memory`: the nodes sorted by their peak, the sum of the nodes with a known size (None if
    there are none), and the record of the bounds."""

    resource: str
    nodes: tuple[NodePeaks, ...]
    cluster: NodePeaks | None
    record: BoundRecord


def resource_peaks(history: ClusterHistory, resource: str) -> ResourcePeaks | None:
    """Compare use, requests and sizes of a resource; None if its utilization is unknown."""
    cpu = resource == "cpu"
    loads, sizes = history.loads, history.sizes
    percent = loads.cpu if cpu else loads.memory
    if not np.isfinite(percent).any():
        return None
    capacity = sizes.cores if cpu else sizes.bytes
    allocatable = sizes.allocatable_cores if cpu else sizes.allocatable_bytes
    requested = np.full(len(loads.nodes), np.nan)
    if history.requests is not None:
        requested = history.requests.cores if cpu else history.requests.bytes
    mean, peak = _mean_and_peak(percent)
    bound, coverage, record = bounds(percent, loads.begins)
    share = capacity / 100.0
    columns = (
        capacity, allocatable, requested, mean * share, peak * share, bound * share, mean, peak, bound, coverage,
    )  # fmt: skip
    nodes = [NodePeaks(node, *map(float, row)) for node, *row in zip(loads.nodes, *columns, strict=True)]
    nodes.sort(key=lambda each: (-np.nan_to_num(each.peak_percent), each.node))
    return ResourcePeaks(resource, tuple(nodes), _cluster(nodes, percent, capacity, record), record)


def _cluster(nodes: Sequence[NodePeaks], percent: F64, capacity: F64, record: BoundRecord) -> NodePeaks | None:
    sized = [each for each in nodes if np.isfinite(each.capacity)]
    if not sized:
        return None
    amounts = percent * capacity / 100.0
    used = np.nansum(amounts[np.isfinite(amounts).any(axis=1)], axis=1)
    if not len(used):
        return None
    total = sum(each.capacity for each in sized)
    bound = sum(each.bound for each in sized)  # NaN if a node has no bound
    requested = [each.requested for each in sized if np.isfinite(each.requested)]
    return NodePeaks(
        "",
        total,
        float(np.nansum([each.allocatable for each in sized])),
        sum(requested) if requested else float("nan"),
        float(used.mean()),
        float(used.max()),
        bound,
        float(100.0 * used.mean() / total),
        float(100.0 * used.max() / total),
        100.0 * bound / total,
        record.coverage,
    )


def bounds(percent: F64, begins: int) -> tuple[F64, F64, BoundRecord]:
    """The bound of each node for the next HORIZON_H hours in percent [n], its coverage [n], and the record of all.
    `percent` [slots, n] begins at the unix time `begins`, and ends with a whole hour."""
    nodes = percent.shape[1]
    absent = np.full(nodes, np.nan)
    nothing = BoundRecord(HORIZON_H, LEVEL, 0, float("nan"), float("nan"))
    spans = span_maxima(encode(percent), HORIZON_H * HOUR_SLOTS)
    if len(percent) < DAY_SLOTS:
        reason = "less than a day of history"
        return absent, absent, BoundRecord(HORIZON_H, LEVEL, 0, float("nan"), float("nan"), reason)
    calibration = Calibration(nodes, horizon=HORIZON_H, level=LEVEL, history=len(percent))
    calibration.advance(spans, (begins + len(percent) * SLOT_S) // HOUR_S)
    record = calibration.record(spans)
    count: I64 = record.count
    total = int(count.sum())
    if total:
        coverage, severity = (float(np.nansum(each * count) / total) for each in (record.coverage, record.severity))
        nothing = BoundRecord(HORIZON_H, LEVEL, total, coverage, severity, hours=int(count.max()))
    return decode(calibration.bound()), record.coverage, nothing


# --- workloads -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkloadShare:
    """Cores of one workload: mean and peak of the sum over its pods; its share of the cores of all pods, and of those
    on hot nodes while they were hot (NaN if no node was hot). Estimates, if the nodes are a sample: the errors are half
    of the 95 % intervals of the shares, 0 if all nodes were read and NaN if unknown."""

    namespace: str
    workload: str
    pods: int
    mean_cores: float
    peak_cores: float
    share: float
    hot_share: float
    share_error: float = 0.0
    hot_share_error: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkloadShares:
    """Workloads sorted by their share of the hot hours, then by share. `hot_values` is the number of values of pods on
    hot nodes. `pods` were read, on the nodes of `sample`. For a part of the time, the pods of the nodes in `gaps` have
    no values although the nodes have load; then each pod counts with its mean over the rest of the time."""

    workloads: tuple[WorkloadShare, ...]
    pods: int
    step: int
    total_cores: float
    hot_values: int
    sample: NodeSample
    gaps: tuple[str, ...] = ()


def workload_shares(
    pods: PodLoads, loads: NodeLoads, owners: Mapping[tuple[str, str], str], threshold: float
) -> WorkloadShares:
    """Sum the cores of pods by workload."""
    names = [(namespace, workload_of(pod, owners.get((namespace, pod), ""))) for namespace, pod, _ in pods.pods]
    order = sorted(set(names))
    place = {name: i for i, name in enumerate(order)}
    index = np.array([place[name] for name in names], dtype=np.int64)
    known = np.isfinite(pods.cores).any(axis=1)
    unknown = _unknown_at(pods, loads)[known]
    used = np.nan_to_num(pods.cores[known])
    measured = (~unknown).sum(axis=0)
    used = np.where(unknown, used.sum(axis=0) / np.maximum(measured, 1), used)
    hot = _hot_at(pods, loads, threshold)[known] & ~unknown
    weights = _weights(pods)
    sums = np.zeros((len(used), len(order)))
    np.add.at(sums.T, index, (used * weights).T)
    mean, peak = sums.mean(axis=0), sums.max(axis=0)
    share, share_error = _shares(pods, index, used.mean(axis=0), len(order))
    heat, heat_error = _shares(pods, index, np.where(hot, used, 0.0).sum(axis=0), len(order))
    count = np.rint(np.bincount(index, weights=weights, minlength=len(order)))
    columns = (count.astype(np.int64), mean, peak, share, heat, share_error, heat_error)
    rows = [
        WorkloadShare(namespace, workload, *(column[i].item() for column in columns))
        for i, (namespace, workload) in enumerate(order)
    ]
    rows.sort(
        key=lambda each: (-np.nan_to_num(each.hot_share), -np.nan_to_num(each.share), each.namespace, each.workload)
    )
    values = int(np.count_nonzero(hot & (used > 0.0)))
    gaps = sorted({pods.pods[i][2] for i in np.flatnonzero(unknown.any(axis=0)).tolist()})
    return WorkloadShares(tuple(rows), len(pods.pods), pods.step, float(mean.sum()), values, pods.sample, tuple(gaps))


def _weights(pods: PodLoads) -> F64:
    """The number of nodes that the node of each pod stands for [pods]."""
    sample = pods.sample
    if sample.is_complete:
        return np.ones(len(pods.pods))
    hottest = set(sample.hottest)
    return np.array([1.0 if node in hottest else sample.weight for _, _, node in pods.pods])


def _shares(pods: PodLoads, index: I64, amounts: F64, workloads: int) -> tuple[F64, F64]:
    """The share of each workload in the amounts of all pods [pods], and half of its 95 % interval; NaN if all amounts
    are 0. `index` has the workload of each pod.

    The share is a ratio of two totals, estimated from the nodes that were chosen by a hash; the variance of such an
    estimate is that of the residuals by node (Cochran, Sampling Techniques, 1977, chapter 6). The hottest nodes add no
    variance, because all of them were read."""
    weighted = np.bincount(index, weights=amounts * _weights(pods), minlength=workloads)
    total = float(weighted.sum())
    if not total:
        return np.full(workloads, np.nan), np.full(workloads, np.nan)
    share = weighted / total
    sample = pods.sample
    if sample.is_complete:
        return share, np.zeros(workloads)
    chosen = sorted(set(sample.nodes) - set(sample.hottest))
    if len(chosen) < 2:
        return share, np.full(workloads, np.nan)
    row = {node: i for i, node in enumerate(chosen)}
    rows = np.array([row.get(node, -1) for _, _, node in pods.pods], dtype=np.int64)
    inside = rows >= 0
    by_node = np.bincount(
        rows[inside] * workloads + index[inside], weights=amounts[inside], minlength=len(chosen) * workloads
    ).reshape(len(chosen), workloads)
    residuals = by_node - share * by_node.sum(axis=1, keepdims=True)
    population = sample.total - len(sample.hottest)
    variance = population**2 * (1.0 - len(chosen) / population) * residuals.var(axis=0, ddof=1) / len(chosen)
    return share, NORMAL_975 * np.sqrt(variance) / total


def _hot_at(pods: PodLoads, loads: NodeLoads, threshold: float) -> Bool:
    """Whether the node of each pod was hot at the time of each value [steps, pods]."""
    return _at(pods, loads, loads.cpu > threshold)


def _unknown_at(pods: PodLoads, loads: NodeLoads) -> Bool:
    """Whether the node of each pod had load, and no pod of the node had a value, at the time of each value
    [steps, pods]."""
    place = {node: i for i, node in enumerate(dict.fromkeys(node for _, _, node in pods.pods))}
    index = np.array([place[node] for _, _, node in pods.pods], dtype=np.int64)
    measured = np.zeros((len(pods.cores), len(place)), dtype=np.bool_)
    np.logical_or.at(measured.T, index, np.isfinite(pods.cores).T)
    return _at(pods, loads, np.isfinite(loads.cpu)) & ~measured[:, index]


def _at(pods: PodLoads, loads: NodeLoads, of_nodes: Bool) -> Bool:
    """The values [slots, nodes] for the node of each pod at the time of each value [steps, pods]; false for nodes
    without load."""
    times = pods.begins + pods.step * np.arange(1, len(pods.cores) + 1)
    slots = np.clip((times - loads.begins) // SLOT_S - 1, 0, len(loads.cpu) - 1)
    place = {node: i for i, node in enumerate(loads.nodes)}
    columns = np.array([place.get(node, -1) for _, _, node in pods.pods], dtype=np.int64)
    found: Bool = of_nodes[slots][:, columns] & (columns >= 0)
    return found
