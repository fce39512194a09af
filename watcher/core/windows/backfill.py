"""Which spans of time are still to be asked for.

A tick asks for the present, and reaches back a little so that late samples are not lost. What lies further back and was
never had (before a start, over a gap, of a metric that failed for a while) is fetched afterwards in slices of two
minutes, newest first: the first answer must not wait for the past, and no query may grow with the length of an outage.

Pure: no I/O, no clock. All times are unix seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from watcher.core.windows.statistics import MAX_CADENCE_S
from watcher.model import CARRIED, SampleBlock

SLICE_S = 120.0  # longest span that one query of a backfill covers
OVERLAP_S = 120.0  # a fetch looks back at least this far, so that late nodes are not lost
LATE_INTERVALS = 2.0  # a gap longer than this many intervals is fetched in slices
HOLE_CADENCES = 3.0  # stored samples that lie further apart than this many cadences have a hole between them


@dataclass(frozen=True, slots=True)
class Slice:
    """A span of the past that is still to be fetched; `only` names the metrics, None means all."""

    since: float
    until: float
    only: frozenset[str] | None = None


def slices(since: float, until: float, *, only: frozenset[str] | None = None) -> list[Slice]:
    """`since`..`until` in pieces of at most two minutes, newest first."""
    pieces: list[Slice] = []
    while until > since:
        start = max(since, until - SLICE_S)
        pieces.append(Slice(start, until, only))
        until = start
    return pieces


def holes(blocks: Iterable[SampleBlock], *, resolution: int, since: float, until: float) -> list[Slice]:
    """What of `since`..`until` the stored samples do not cover, newest first.

    A crash before the end of a backfill leaves such holes: the newest two minutes are stored before the past is
    fetched. A metric's hole is a span longer than three cadences in which no node has a sample; its cadence is the
    median distance of the slots in which some node has one, bounded as for coverage (contract 5.1). Metrics with the
    same hole share its slices; a metric that is not stored at all has no hole here.
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


class Spans:
    """What was asked for, and what is missing. `reach` is how far back samples are of use, `interval` the distance of
    two ticks, both in seconds; a source that does not `remember` is never asked for the past."""

    def __init__(self, *, reach: float, interval: float, remembers: bool) -> None:
        self._reach = reach
        self._interval = interval
        self._remembers = remembers
        self._until: float | None = None  # everything up to here was asked for
        self._behind: dict[str, float] = {}  # metric that failed -> up to where it was had
        self._slices: list[Slice] = []

    @property
    def begun(self) -> bool:
        """Whether something was asked for, or was there already."""
        return self._until is not None

    def go_on_from(self, until: float, *, missing: Iterable[Slice] = ()) -> None:
        """Everything up to here is there already, but for what is `missing`."""
        self._until = until
        if self._remembers:
            self._slices.extend(missing)

    def forget(self) -> None:
        """Begin anew: nothing was ever asked for."""
        self._until = None
        self._behind.clear()
        self._slices.clear()

    def begin(self, now: float, *, overlap: float) -> float:
        """Where a fetch of the present begins; what lies before it and is missing becomes slices."""
        oldest = now - self._reach
        asked = oldest if self._until is None else max(oldest, self._until - overlap)
        if not self._remembers:
            return asked
        if self._until is not None and now - self._until <= LATE_INTERVALS * self._interval:
            return asked
        newest = max(oldest, now - SLICE_S)
        self._slices = [*slices(asked, newest), *self._slices]
        return newest

    def fetched(self, now: float) -> None:
        """The present was fetched."""
        self._until = now

    @property
    def complete(self) -> bool:
        """Whether no metric is behind the others."""
        return not self._behind

    def falls_behind(self, metric: str, *, since: float) -> bool:
        """A metric was not had, or not all of it, from `since` on. True if that is new."""
        known = metric in self._behind
        self._behind[metric] = min(since, self._behind.get(metric, since))
        return not known

    def still_lacks(self, metrics: Iterable[str], *, since: float) -> None:
        """The past of these metrics was asked for and not had: those that are behind are so from `since` on. The others
        are had again, and what they lack of the past is given up, lest it be asked for at each tick."""
        for metric in metrics:
            if metric in self._behind:
                self.falls_behind(metric, since=since)

    def catch_up(self, metrics: Iterable[str], *, now: float, since: float, overlap: float) -> list[str]:
        """These metrics were had from `since` to `now`: the past of those that were behind becomes slices. Returns
        their names, sorted."""
        missed: dict[float, set[str]] = {}
        for metric in metrics:
            if metric in self._behind:
                begin = max(self._behind.pop(metric), now - self._reach) - overlap
                missed.setdefault(begin, set()).add(metric)
        if self._remembers:
            for begin, names in sorted(missed.items()):
                self._slices.extend(slices(begin, since, only=frozenset(names)))
        return sorted(name for names in missed.values() for name in names)

    def next_slice(self, now: float) -> Slice | None:
        """The next span of the past to fetch, None if nothing of use is missing."""
        self._slices = [piece for piece in self._slices if piece.until > now - self._reach]
        return self._slices[0] if self._slices else None

    def slice_fetched(self) -> None:
        """The slice that `next_slice` gave was fetched."""
        self._slices.pop(0)
