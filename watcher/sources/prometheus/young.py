"""Samples of a recording rule that shows a new node as busy.

The mixin's CPU rule is 1 minus the rates of the unused modes over five minutes. While the counters of a node are
younger than that, all rates are too small, and the difference is shown as use. The rule's samples do not say how old
the counters are, so the samples of the first five minutes after the beginning of a series, or after a gap as long, are
dropped. A rule that is evaluated less often has no gap until it lacks a sample.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from watcher.arrays import F64, Bool
from watcher.sources.prometheus.responses import MatrixSamples

BEGINNING_S = 120.0
"""A series without samples for this long (seconds) after the begin of the range has begun there; an earlier one may
have been there before."""
KEPT_GAPS = 4.0
"""Number of gaps after which a series that has ended is forgotten: if it comes back, it begins again, known or not.
Until then, it shows that the rule is evaluated less often than before."""
Key = frozenset[tuple[str, str]]


@dataclass(slots=True)
class YoungSeries:
    """The series of one query: the range that was read without a gap, and the first time of each series after its last
    gap, or -inf, with its newest time (unix seconds). `distance` is the median distance of the samples of the last
    reading in seconds, NaN before two samples were read."""

    since: float = np.inf
    until: float = -np.inf
    times: dict[Key, tuple[float, float]] = field(default_factory=dict)
    distance: float = np.nan

    def begin(self, since: float, *, full_s: float) -> float:
        """The begin of a query for samples from `since` on (unix seconds): earlier than that, unless it continues the
        range."""
        return since if self._continues(since) else since - full_s - BEGINNING_S

    def _continues(self, since: float) -> bool:
        return self.since <= since <= self.until

    def mature(self, reading: MatrixSamples, since: float, until: float, *, full_s: float) -> Bool:
        """Mark the samples of series that are at least `full_s` seconds old. `since` and `until` are the range of the
        query (unix seconds); a later call continues the range."""
        if not self._continues(since):
            self.since, self.until, self.times = since, until, {}
        self.until = max(self.until, until)
        time, series = reading.time, reading.series
        keys = [frozenset(row.items()) for row in reading.rows]
        begin, newest = self._known(keys)
        first = np.diff(series, prepend=-1) != 0
        distance = np.diff(time, prepend=0.0)
        distance[first] = time[first] - newest[series[first]]
        gap_s = self._gap(distance, full_s)
        begins = distance > gap_s
        unknown = first & np.isinf(newest[series])
        begins[unknown] = time[unknown] - self.since > BEGINNING_S
        # the last first sample, or sample after a gap, of each sample
        last = np.maximum.accumulate(np.where(first | begins, np.arange(len(time)), 0))
        began = np.where(begins, time, begin[series])[last]
        ends = np.flatnonzero(np.append(first[1:], True))[: len(time)]
        for at in ends.tolist():
            key = keys[series[at]]
            self.times[key] = float(began[at]), max(float(time[at]), self.times.get(key, (0.0, -np.inf))[1])
        oldest = self.until - KEPT_GAPS * gap_s
        self.times = {key: known for key, known in self.times.items() if known[1] >= oldest}
        return np.asarray(time >= began + full_s, dtype=np.bool_)

    def _known(self, keys: Sequence[Key]) -> tuple[F64, F64]:
        known = [self.times.get(key, (-np.inf, -np.inf)) for key in keys]
        pairs = np.array(known, dtype=np.float64).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]

    def _gap(self, distance: F64, full_s: float) -> float:
        """The distance of two samples (seconds) above which they have a gap between them. After an outage of the source
        all series have one, so the shorter of the last two medians counts."""
        between = distance[np.isfinite(distance) & (distance > 0.0)]
        median = float(np.median(between)) if len(between) else self.distance
        usual = float(np.fmin(median, self.distance))
        self.distance = median
        return full_s if math.isnan(usual) else max(full_s, 2.0 * usual)


def mature_maxima(reading: MatrixSamples, begin: float, until: float, *, full_s: float, step: float) -> Bool:
    """Mark the maxima, each of the `step` seconds before its time, of series that are at least `full_s` seconds old.
    `begin` and `until` are the range of the query (unix seconds); the maxima of its first slot may be older."""
    mature = (reading.time > begin) & (reading.time <= until)
    slot = np.ceil((reading.time[mature] - begin) / step).astype(np.int64) - 1
    series = reading.series[mature]
    grid = np.full((math.ceil((until - begin) / step), len(reading.rows)), np.nan)
    grid[slot, series] = 0.0
    kept = without_beginnings(grid, young_slots(full_s, step))
    mature[mature] = ~np.isnan(kept[slot, series])
    return mature


def young_slots(full_s: float, step: float) -> int:
    """The number of slots of `step` seconds, from the first one of a series, that may have samples of its first
    `full_s` seconds."""
    return math.ceil(full_s / step) + 1


def without_beginnings(values: F64, rows: int) -> F64:
    """The values [times, n] without the first `rows` after NaN in each column; those of the first row are kept."""
    there = ~np.isnan(values)
    begins = there[1:] & ~there[:-1]
    young = np.zeros(values.shape, dtype=np.bool_)
    for late in range(rows):
        young[1 + late :] |= begins[: len(begins) - late] if late else begins
    return np.where(young, np.nan, values)
