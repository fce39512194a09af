"""Since when the CPU or memory load of nodes is high.

The samples in memory are those of the longest window, so the start of a load is kept from one snapshot to the next
while the load stays high. After a start of the service, the stored windows continue it (service/hot_history.py).

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from watcher.arrays import F64
from watcher.core.windows.stored_series import StoredSeries
from watcher.model import MetricWindows, Snapshot

HOT_PERCENT = 85.0
DIP_PERCENT = 10.0
"""A sample this many points below HOT_PERCENT ends the time for which a node is hot; smaller dips do not."""
HOT_METRICS = ("CPU", "Memory")  # their keys

NodeMetric = tuple[str, str]
"""A node and the name of a metric."""


@dataclass(frozen=True, slots=True)
class LoadStart:
    """`since` is in unix seconds; `longer`: the load was high already in the first known sample or window."""

    since: float
    longer: bool


@dataclass(frozen=True, slots=True)
class HotLoads:
    """The known starts of the high loads in a snapshot whose newest sample is of `end` (unix seconds)."""

    end: float = -np.inf
    starts: Mapping[NodeMetric, LoadStart] = field(default_factory=dict)

    def without(self, metric: str) -> HotLoads:
        """Return the starts without those of a metric, whose samples have another source now."""
        return replace(self, starts={key: start for key, start in self.starts.items() if key[1] != metric})

    def continued(self, found: Mapping[NodeMetric, LoadStart]) -> HotLoads:
        """Return the starts with earlier ones from stored windows, for loads that are still high."""
        earlier = {
            key: start for key, start in found.items() if key in self.starts and _precedes(start, self.starts[key])
        }
        return replace(self, starts={**self.starts, **earlier})


def current_load(windows: MetricWindows) -> F64:
    """Return the load of each node [n]: the mean over the shortest window, or the newest sample without one."""
    return np.where(np.isnan(windows.average[0]), windows.latest, windows.average[0])


def hot_loads(snapshot: Snapshot, before: HotLoads) -> HotLoads:
    """Return the starts of the high loads of a snapshot. A load that was high `before`, too, keeps its start, unless
    all samples in memory are newer: what happened in between is unknown then."""
    known = before.starts if snapshot.end - before.end <= snapshot.windows[-1].seconds else {}
    starts: dict[NodeMetric, LoadStart] = {}
    for windows in snapshot.metrics:
        if windows.metric.key not in HOT_METRICS:
            continue
        keys = {row: (snapshot.nodes[row], windows.metric.name) for row in hot_rows(windows)}
        starts |= {key: known[key] for key in keys.values() if key in known}
        unsettled = [row for row, key in keys.items() if key not in known or known[key].longer]
        for row, start in _sampled_starts(snapshot, windows.metric.name, unsettled):
            if keys[row] not in starts or _precedes(start, starts[keys[row]]):
                starts[keys[row]] = start
    return HotLoads(snapshot.end, starts)


def hot_rows(windows: MetricWindows) -> list[int]:
    """Return the rows of the nodes with a high load."""
    return np.flatnonzero(current_load(windows) >= HOT_PERCENT).tolist()


def stored_start(series: StoredSeries, start: LoadStart, *, gap_s: float) -> LoadStart | None:
    """Return the start of a load by its stored means, which reach back from `start`; None if they do not continue it.
    Stored means that are more than `gap_s` seconds apart do not belong to one load."""
    earliest, high = start.since, True
    for time, value in zip(reversed(series.time.tolist()), reversed(series.value.tolist()), strict=True):
        if time >= start.since or np.isnan(value):
            continue
        if earliest - time > gap_s:
            break
        high = value >= HOT_PERCENT
        if not high:
            break
        earliest = float(time)
    return LoadStart(earliest, high) if earliest < start.since else None


def _precedes(start: LoadStart, known: LoadStart) -> bool:
    """Whether a start replaces a known one, before which the load may have been high already."""
    return known.longer and start.since <= known.since


def _sampled_starts(snapshot: Snapshot, metric: str, rows: Sequence[int]) -> Iterator[tuple[int, LoadStart]]:
    if not rows or snapshot.samples is None:
        return
    values, times = snapshot.samples(metric)  # [slots, n], newest first
    for row in rows:
        below = values[:, row] < HOT_PERCENT - DIP_PERCENT
        end = int(np.argmax(below)) if below.any() else len(below)
        high = (values[:end, row] >= HOT_PERCENT) & ~np.isnan(times[:end, row])
        if high.any():
            yield row, LoadStart(float(times[:end, row][high].min()), not below.any())
