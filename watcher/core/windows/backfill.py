"""Backfill planning: the time ranges that must still be fetched.

A tick fetches the newest samples, with an overlap so that late samples are not lost. Older samples that are missing
(before a start, during a gap, of a metric that failed for a while) are fetched afterwards in slices of two minutes,
newest first: the first response does not wait for the backfill, and no query grows with the length of an outage.

Pure: no I/O, no clock. All times are unix seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from watcher.core.windows.records import CARRIED, SampleBlock
from watcher.core.windows.statistics import MAX_CADENCE_S

SLICE_S = 120.0  # longest time range of one backfill query, in seconds
OVERLAP_S = 120.0  # a fetch begins at least this many seconds before the previous end, so that late nodes are not lost
LATE_INTERVALS = 2.0  # a gap longer than this many intervals is fetched in slices
HOLE_CADENCES = 3.0  # stored samples that are further apart than this many cadences have a gap between them


@dataclass(frozen=True, slots=True)
class Slice:
    """A time range of the past that must still be fetched; `only` names the metrics, None means all."""

    since: float
    until: float
    only: frozenset[str] | None = None


def slices(since: float, until: float, *, only: frozenset[str] | None = None) -> list[Slice]:
    """Split `since`..`until` into slices of at most two minutes, newest first."""
    pieces: list[Slice] = []
    while until > since:
        start = max(since, until - SLICE_S)
        pieces.append(Slice(start, until, only))
        until = start
    return pieces


def gaps(blocks: Iterable[SampleBlock], *, resolution: int, since: float, until: float) -> list[Slice]:
    """Return slices for the gaps of the stored samples within `since`..`until`, newest first.

    A crash before the end of a backfill leaves gaps, because the newest two minutes are stored before the past is
    fetched. A gap of a metric is a range longer than three cadences in which no node has a sample; the cadence is the
    median distance of the slots in which some node has a sample, at least `resolution` and at most 120 s. Metrics with
    the same gap share its slices. A metric without stored samples has no gap here.
    """
    covered: dict[str, set[int]] = {}
    for block in blocks:
        sampled = (np.isfinite(block.values) & (block.offset_ms != CARRIED)).any(axis=1)
        covered.setdefault(block.metric, set()).update((block.first_slot + np.flatnonzero(sampled)).tolist())
    missing: dict[tuple[float, float], set[str]] = {}
    for metric, slots in covered.items():
        edges = np.array(sorted(slots), dtype=np.float64) * resolution
        edges = np.concatenate(([since], edges[(edges > since) & (edges < until)], [until]))
        distances = np.diff(edges)
        longest = HOLE_CADENCES * min(max(float(np.median(distances)), resolution), MAX_CADENCE_S)
        for k in np.flatnonzero(distances > longest).tolist():
            missing.setdefault((float(edges[k]), float(edges[k + 1])), set()).add(metric)
    pieces = [piece for (begin, end), names in missing.items() for piece in slices(begin, end, only=frozenset(names))]
    return sorted(pieces, key=lambda piece: (-piece.until, piece.since, sorted(piece.only or ())))


class Backfill:
    """Tracks the fetched time range and the missing slices. `reach`: samples older than this many seconds are not
    needed; `interval`: seconds between two ticks; `remembers`: the source has history. Without it, the past is never
    fetched."""

    def __init__(self, *, reach: float, interval: float, remembers: bool) -> None:
        self._reach = reach
        self._interval = interval
        self.remembers = remembers
        self._until: float | None = None  # end of the fetched range
        self._behind: dict[str, float] = {}  # metric that failed -> time since which its samples are missing
        self._slices: list[Slice] = []

    @property
    def begun(self) -> bool:
        """Whether samples were fetched or restored."""
        return self._until is not None

    def resume_from(self, until: float, *, missing: Iterable[Slice] = ()) -> None:
        """Continue after restored samples: the range up to `until` is present, except for the slices in `missing`."""
        self._until = until
        if self.remembers:
            self._slices.extend(missing)

    def forget(self) -> None:
        """Reset: the next fetch begins without any fetched range."""
        self._until = None
        self._behind.clear()
        self._slices.clear()

    def begin(self, now: float, *, overlap: float) -> float:
        """Return the begin of the fetch of the newest samples; an earlier missing range becomes slices."""
        oldest = now - self._reach
        asked = oldest if self._until is None else max(oldest, self._until - overlap)
        if not self.remembers:
            return asked
        if self._until is not None and now - self._until <= LATE_INTERVALS * self._interval:
            return asked
        newest = max(oldest, now - SLICE_S)
        self._slices = [*slices(asked, newest), *self._slices]
        return newest

    def fetched(self, now: float) -> None:
        """Record that the newest samples up to `now` were fetched."""
        self._until = now

    @property
    def complete(self) -> bool:
        """Whether no failed metric still waits for its recovery."""
        return not self._behind

    def mark_behind(self, metric: str, *, since: float) -> bool:
        """Record that samples of a metric are missing from `since` on. Return True if it was complete before."""
        known = metric in self._behind
        self._behind[metric] = min(since, self._behind.get(metric, since))
        return not known

    def mark_still_missing(self, metrics: Iterable[str], *, since: float) -> None:
        """Record that a backfill of these metrics failed: for metrics that are still behind, the gap begins at `since`
        at the latest. For metrics that recovered, the missing past is given up, so that it is not queried every tick.
        """
        for metric in metrics:
            if metric in self._behind:
                self.mark_behind(metric, since=since)

    def catch_up(self, metrics: Iterable[str], *, now: float, since: float, overlap: float) -> list[str]:
        """Record that these metrics were fetched from `since` to `now`: gaps of metrics that were behind become
        slices. Return the names of these metrics, sorted."""
        missed: dict[float, set[str]] = {}
        for metric in metrics:
            if metric in self._behind:
                begin = max(self._behind.pop(metric), now - self._reach) - overlap
                missed.setdefault(begin, set()).add(metric)
        if self.remembers:
            for begin, names in sorted(missed.items()):
                self._slices.extend(slices(begin, since, only=frozenset(names)))
        return sorted(name for names in missed.values() for name in names)

    def next_slice(self, now: float) -> Slice | None:
        """Return the next slice to fetch, None if no needed samples are missing."""
        self._slices = [piece for piece in self._slices if piece.until > now - self._reach]
        return self._slices[0] if self._slices else None

    def slice_fetched(self) -> None:
        """Record that the slice returned by `next_slice` was fetched."""
        self._slices.pop(0)
