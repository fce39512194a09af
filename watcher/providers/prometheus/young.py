"""Samples of a recording rule that shows a new node as busy.

The mixin's CPU rule is 1 minus the rates of the unused modes over five minutes. While the counters of a node are
younger than that, all rates are too small, and the difference is shown as use. The rule's samples do not say how old
the counters are, so the samples of the first five minutes after the beginning of a series, or after a gap as long, are
dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from watcher.arrays import F64, Bool
from watcher.providers.prometheus.responses import MatrixSamples

BEGINNING_S = 120.0
"""A series without samples for this long (seconds) after the begin of the range has begun there; an earlier one may
have been there before."""


@dataclass(slots=True)
class YoungSeries:
    """The series of one query: the range that was read without a gap, and the first time of each series after its last
    gap, or -inf, with its newest time (unix seconds)."""

    since: float = np.inf
    until: float = -np.inf
    times: dict[tuple[tuple[str, str], ...], tuple[float, float]] = field(default_factory=dict)

    def begin(self, since: float, *, full_s: float) -> float:
        """The begin of a query for samples from `since` on (unix seconds): earlier than that, unless it continues the
        range."""
        return since if self._continues(since, full_s) else since - full_s - BEGINNING_S

    def _continues(self, since: float, full_s: float) -> bool:
        return self.since <= since <= self.until + full_s

    def mature(self, reading: MatrixSamples, since: float, until: float, *, full_s: float) -> Bool:
        """Mark the samples of series that are at least `full_s` seconds old. `since` and `until` are the range of the
        query (unix seconds); a later call continues the range."""
        if not self._continues(since, full_s):
            self.since, self.times = since, {}
        self.until = max(self.until, until)
        keep = np.ones(len(reading.time), dtype=np.bool_)
        ends = np.searchsorted(reading.series, np.arange(len(reading.rows) + 1))
        for row, first, end in zip(reading.rows, ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            if first < end:
                keep[first:end] = self._mature(tuple(sorted(row.items())), reading.time[first:end], full_s)
        return keep

    def _mature(self, key: tuple[tuple[str, str], ...], time: F64, full_s: float) -> Bool:
        begin, newest = self.times.get(key, (-np.inf, -np.inf))
        known = np.isfinite(newest)
        distance = np.diff(time, prepend=newest if known else self.since)
        begins = np.where(distance > full_s, time, -np.inf)
        if not known and distance[0] > BEGINNING_S:
            begins[0] = time[0]
        begins = np.maximum.accumulate(np.maximum(begins, begin))
        self.times[key] = float(begins[-1]), max(newest, float(time[-1]))
        return np.asarray(time >= begins + full_s, dtype=np.bool_)


def without_beginnings(values: F64, rows: int) -> F64:
    """The values [times, n] without the first `rows` after NaN in each column; those of the first row are kept."""
    there = ~np.isnan(values)
    begins = there[1:] & ~there[:-1]
    young = np.zeros(values.shape, dtype=np.bool_)
    for late in range(rows):
        young[1 + late :] |= begins[: len(begins) - late] if late else begins
    return np.where(young, np.nan, values)
