"""Peaks of nodes beside requests and sizes, and bounds of the peaks to come.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lab.report.analyse import mean_of, peak_of
from lab.report.collected import ClusterHistory, UtilizationGrid
from watcher.arrays import F64, I64
from watcher.core.forecast.bound import Calibration
from watcher.core.forecast.maxima import DAY_SLOTS, HOUR_SLOTS, SLOT_S, decode, encode, span_maxima

HOUR_S = 3600
LEVEL = 0.95
HORIZON_H = 6


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
    grid = loads.cpu if cpu else loads.memory
    if not np.isfinite(grid.mean).any():
        return None
    capacity = sizes.cores if cpu else sizes.bytes
    allocatable = sizes.allocatable_cores if cpu else sizes.allocatable_bytes
    requested = np.full(len(loads.nodes), np.nan)
    if history.requests is not None:
        requested = history.requests.cores if cpu else history.requests.bytes
    mean, peak = mean_of(grid.mean), peak_of(grid.peak)
    bound, coverage, record = bounds(grid.peak, loads.begins)
    share = capacity / 100.0
    columns = (
        capacity, allocatable, requested, mean * share, peak * share, bound * share, mean, peak, bound, coverage,
    )  # fmt: skip
    nodes = [NodePeaks(node, *map(float, row)) for node, *row in zip(loads.nodes, *columns, strict=True)]
    nodes.sort(key=lambda each: (-np.nan_to_num(each.peak_percent), each.node))
    return ResourcePeaks(resource, tuple(nodes), _cluster(nodes, grid, capacity, record), record)


def _cluster(nodes: Sequence[NodePeaks], grid: UtilizationGrid, capacity: F64, record: BoundRecord) -> NodePeaks | None:
    sized = [each for each in nodes if np.isfinite(each.capacity)]
    if not sized:
        return None
    amounts = grid.mean * capacity / 100.0
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
