"""The values that a report is computed from, as the queries returned them.

Grids have one row per step, oldest first. Row i of a grid that begins at `begins` covers the `step` seconds from
`begins + i * step` on. NaN is an absent value.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from watcher.arrays import F64, Bool
from watcher.core.forecast.maxima import SLOT_S

_STEEPEST = 105.0
"""Points of percent by which a mean of SLOT_S seconds changes in that time at most, with 5 % for late scrapes."""


@dataclass(frozen=True, slots=True)
class MissingData:
    """Data that the report lacks: what is missing, what the report would show with it, and how to get it."""

    what: str
    shows: str
    cure: str


@dataclass(frozen=True, slots=True)
class QueryUse:
    """What one question cost: its expression, the step in seconds, the number of requests, and of values in the
    responses."""

    purpose: str
    expression: str
    step: int
    requests: int
    values: int


@dataclass(frozen=True, slots=True)
class UtilizationGrid:
    """Utilization of nodes in percent of capacity [slots, n], at SLOT_S seconds per slot: the mean and the highest
    value of a slot, and the part of the slot (0 to 1) above the threshold of the report. `sampled_every` are the
    seconds between the values; if longer than a slot, values are repeated."""

    mean: F64
    peak: F64
    hot: F64
    sampled_every: int = SLOT_S

    def of(self, columns: Sequence[int]) -> UtilizationGrid:
        """The grid of these nodes; a column of -1 has no values."""
        index = np.array(columns, dtype=np.int64)
        absent = np.full((len(self.mean), 1), np.nan)
        mean, peak, hot = (np.hstack([each, absent])[:, index] for each in (self.mean, self.peak, self.hot))
        return UtilizationGrid(mean, peak, hot, self.sampled_every)


def utilization_grid(
    values: F64, every: int, *, slots: int, threshold: float, smoothed: bool = False, peaks: F64 | None = None
) -> UtilizationGrid:
    """The grid of values [steps, n] in percent, one at the end of each `every` seconds: a divisor or a multiple of
    SLOT_S. A value of `smoothed` is a mean of SLOT_S seconds, so that the last one of a slot is the mean of the slot.
    `peaks` has the highest value of each slot or step, if others than `values` are known."""
    if every < SLOT_S:
        shape = slots, SLOT_S // every, values.shape[1]
        parts = values[: slots * shape[1]].reshape(shape)
        hot = _above(values, every, threshold)[: slots * shape[1]].reshape(shape).mean(axis=1)
        count = np.count_nonzero(np.isfinite(parts), axis=1)
        mean = np.nansum(parts, axis=1) / np.where(count > 0, count, np.nan)
        if smoothed:
            mean = np.where(np.isfinite(parts[:, -1]), parts[:, -1], mean)
        highest = np.where(np.isfinite(parts), parts, -np.inf).max(axis=1, initial=-np.inf)
    else:
        mean = repeated(values, every // SLOT_S, slots)
        hot, highest = (mean > threshold).astype(np.float64), np.nan_to_num(mean, nan=-np.inf)
    known = np.isfinite(mean)
    if peaks is not None:
        highest = np.fmax(highest, repeated(peaks, max(1, every // SLOT_S), slots))
    return UtilizationGrid(mean, np.where(known, highest, np.nan), np.where(known, hot, np.nan), every)


def _above(values: F64, every: int, threshold: float) -> F64:
    """The part of each step (0 to 1) above the threshold. A mean of SLOT_S seconds changes evenly, so the crossing is
    between the values at both ends of the step. A value that changes faster is not a mean, and counts for half of the
    step."""
    before = np.vstack([values[:1], values[:-1]])
    before = np.where(np.isfinite(before), before, values)
    low, high = np.fmin(values, before), np.fmax(values, before)
    rise = np.where(high > low, high - low, 1.0)
    crossing = np.where(rise <= _STEEPEST * every / SLOT_S, (high - threshold) / rise, 0.5)
    above = np.where(low > threshold, 1.0, np.where(high > threshold, crossing, 0.0))
    return np.where(np.isfinite(values), above, 0.0)


def repeated(values: F64, times: int, rows: int) -> F64:
    """Each row `times` times, cut or filled with NaN to `rows`."""
    result = np.full((rows, values.shape[1]), np.nan)
    longer = np.repeat(values, times, axis=0)[:rows]
    result[: len(longer)] = longer
    return result


@dataclass(frozen=True, slots=True)
class NodeLoads:
    """Utilization of nodes from the unix time `begins` on. A node is hot above `threshold` percent."""

    nodes: tuple[str, ...]
    begins: int
    cpu: UtilizationGrid
    memory: UtilizationGrid
    threshold: float


@dataclass(frozen=True, slots=True)
class NodeSizes:
    """Capacity and allocatable resources of nodes in the order of NodeLoads [n]; NaN if unknown."""

    cores: F64
    bytes: F64
    allocatable_cores: F64
    allocatable_bytes: F64


@dataclass(frozen=True, slots=True)
class NodeRequests:
    """Sums of the requests of the pods that run at the end of the report, by node [n], in the order of NodeLoads."""

    cores: F64
    bytes: F64


PodKey = tuple[str, str, str]
"""Namespace, name and node of a pod."""


@dataclass(frozen=True, slots=True)
class NodeSample:
    """The nodes, sorted, whose pods were read, of `total` nodes: `hottest` were chosen by their load, the others by a
    hash of their names."""

    nodes: tuple[str, ...]
    hottest: tuple[str, ...]
    total: int

    @property
    def is_complete(self) -> bool:
        return len(self.nodes) == self.total

    @property
    def weight(self) -> float:
        """The number of nodes that each node stands for that was chosen by its hash."""
        chosen = len(self.nodes) - len(self.hottest)
        return (self.total - len(self.hottest)) / chosen if chosen else 1.0


@dataclass(frozen=True, slots=True)
class PodLoads:
    """Cores used by each pod of the sampled nodes [steps, pods]."""

    pods: tuple[PodKey, ...]
    begins: int
    step: int
    cores: F64
    sample: NodeSample


@dataclass(frozen=True, slots=True)
class RecordedPods:
    """The pods of some nodes over the last days: whether each pod existed, cores and bytes that it used
    [steps, pods], and its requests [pods]."""

    sample: NodeSample
    pods: tuple[PodKey, ...]
    owners: tuple[str, ...]
    begins: int
    step: int
    exists: Bool
    cores: F64
    bytes: F64
    requested_cores: F64
    requested_bytes: F64


@dataclass(frozen=True, slots=True)
class ClusterHistory:
    """Everything that was collected. `owners` maps (namespace, pod) to "KIND/NAME"."""

    address: str
    begins: int
    ends: int
    loads: NodeLoads
    sizes: NodeSizes
    requests: NodeRequests | None = None
    pods: PodLoads | None = None
    owners: Mapping[tuple[str, str], str] = field(default_factory=dict)
    recorded: RecordedPods | None = None
    missing: tuple[MissingData, ...] = ()
    remarks: tuple[str, ...] = ()
    queries: tuple[QueryUse, ...] = ()
