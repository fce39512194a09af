"""When which nodes are hot.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lab.report.collected import NodeLoads
from watcher.arrays import F64
from watcher.core.forecast.maxima import HOUR_SLOTS, SLOT_S

DAY_S = 86400
LONGEST_BUSY_H = 8


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


def hot_hours(loads: NodeLoads) -> HotHours:
    """Compute when which nodes are above the threshold."""
    days, by_day = _by_day(loads)
    grids = (loads.cpu, loads.memory)
    stats = [each for grid in grids for each in (mean_of(grid.mean), peak_of(grid.peak))]
    hours = [np.nansum(grid.hot, axis=0) / HOUR_SLOTS for grid in grids]
    known = np.count_nonzero(np.isfinite(loads.cpu.mean), axis=0) / HOUR_SLOTS
    columns = (*hours, *stats, known)
    nodes = [NodeHeat(node, *map(float, row)) for node, *row in zip(loads.nodes, *columns, strict=True)]
    nodes.sort(key=lambda each: (-each.cpu_hot_hours, -each.memory_hot_hours, -np.nan_to_num(each.cpu_peak), each.node))
    return HotHours(
        loads.threshold,
        float(hours[0].sum()),
        float(hours[1].sum()),
        int(np.count_nonzero(hours[0])),
        int(np.count_nonzero(hours[1])),
        days,
        by_day,
        busy_span(np.nansum(by_day, axis=0)),
        tuple(nodes),
        float(np.count_nonzero(np.isfinite(loads.cpu.mean).any(axis=1)) / HOUR_SLOTS),
    )


def mean_of(values: F64) -> F64:
    """The mean of each column; NaN without values."""
    known = np.isfinite(values)
    count = known.sum(axis=0)
    mean: F64 = np.where(known, values, 0.0).sum(axis=0) / np.where(count > 0, count, np.nan)
    return mean


def peak_of(values: F64) -> F64:
    """The highest value of each column; NaN without values."""
    highest = np.where(np.isfinite(values), values, -np.inf).max(axis=0, initial=-np.inf)
    return np.where(np.isfinite(highest), highest, np.nan)


def _by_day(loads: NodeLoads) -> tuple[tuple[int, ...], F64]:
    hot = loads.cpu.hot
    begins = loads.begins // DAY_S * DAY_S
    count = -(-(loads.begins + len(hot) * SLOT_S - begins) // DAY_S)
    days = tuple(begins + i * DAY_S for i in range(count))
    grid = np.full((count * 24, HOUR_SLOTS), np.nan)
    first = (loads.begins - begins) // SLOT_S
    anything = np.isfinite(hot).any(axis=1)
    grid.ravel()[first : first + len(hot)] = np.where(anything, np.nansum(hot, axis=1) / HOUR_SLOTS, np.nan)
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
    values = loads.cpu.peak[:, [place[node] for node in nodes]]
    hours = len(values) // HOUR_SLOTS
    grid = values[: hours * HOUR_SLOTS].reshape(hours, HOUR_SLOTS, len(nodes))
    highest = np.where(np.isfinite(grid), grid, -1.0).max(axis=1)
    return np.where(highest >= 0.0, highest, np.nan)
