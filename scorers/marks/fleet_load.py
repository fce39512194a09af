"""The load of the nodes of the cluster as the marks use it, from a snapshot.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scorers.marks.excess import LOWEST, FleetLoad
from watcher.arrays import F64, I64
from watcher.model import METRIC_BY_KEY, MetricWindows, Operator, Snapshot, default_window


@dataclass(frozen=True, slots=True)
class MarkLoads:
    """The same nodes by two measures of the window: `mean` for marks, `median` for the pressure, which must not rise
    because of a burst that is over before a pod has moved."""

    mean: FleetLoad
    median: FleetLoad


def mark_loads(snapshot: Snapshot | None, names: Sequence[str], *, forecast: bool) -> MarkLoads:
    """Return the loads of the nodes `names`. All are unknown without a snapshot and in a partial outage; so are nodes
    that are silent or not in the snapshot. A resource that no node has is left out. With `forecast`, the bounds over
    the default horizon count."""
    if snapshot is None or snapshot.lost:
        nothing = np.empty((0, len(names)))
        unknown = FleetLoad(names, nothing, nothing, np.empty(0))
        return MarkLoads(unknown, unknown)
    rows = _rows(snapshot, names)
    means, medians, bounds, lowest = [], [], [], []
    window = snapshot.windows.index(default_window(snapshot.windows))
    for metric in _measured(snapshot):
        mean, name = metric.average[window], metric.metric.name
        median = mean if snapshot.on_demand is None else snapshot.on_demand(name, Operator.P50)[window]
        means.append(_at(mean, rows))
        medians.append(_at(median, rows))
        bounds.append(_at(_bound(snapshot, name) if forecast else np.empty(0), rows))
        lowest.append(LOWEST[metric.metric.type])
    shape = (len(means), len(names))
    limits, bound = np.array(lowest), np.array(bounds).reshape(shape)
    return MarkLoads(
        FleetLoad(names, np.array(means).reshape(shape), bound, limits),
        FleetLoad(names, np.array(medians).reshape(shape), bound, limits),
    )


def _measured(snapshot: Snapshot) -> list[MetricWindows]:
    wanted = [METRIC_BY_KEY[kind.value].name for kind in LOWEST]
    found = {each.metric.name: each for each in snapshot.metrics if not np.isnan(each.latest).all()}
    return [found[name] for name in wanted if name in found]


def _rows(snapshot: Snapshot, names: Sequence[str]) -> I64:
    """Return the row of each node in the snapshot, -1 if its load is not known now."""
    known = np.isnan(snapshot.age_s)
    row = {name: place for place, name in enumerate(snapshot.nodes) if known[place]}
    return np.array([row.get(name, -1) for name in names], dtype=np.int64)


def _bound(snapshot: Snapshot, name: str) -> F64:
    forecasts = snapshot.forecasts
    return np.empty(0) if forecasts is None else forecasts.bounds.get((name, forecasts.horizon), np.empty(0))


def _at(values: F64, rows: I64) -> F64:
    """Return the values of these rows, NaN for -1 and without values."""
    return np.where(rows < 0, np.nan, values[rows]) if len(values) else np.full(len(rows), np.nan)
