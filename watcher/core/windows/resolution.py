"""The resolution of the history: the width of a slot, chosen from the cadence of the source.

A slot stores one sample. If a source has a sample every 10 s and a slot is 15 s wide, a third of the samples is
dropped, and the windows are not the statistics of all samples. A narrower slot needs more memory. `choose_resolution`
therefore returns the widest slot that drops almost no samples, as long as the memory bound allows it.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from watcher.arrays import F64, I64
from watcher.core.windows.records import CARRIED, SampleBlock
from watcher.model import SeriesBatch

ALMOST_NONE = 0.01
"""Share of dropped samples up to which a width counts as that of the source: jitter moves a few samples to the slot of
their neighbour."""
MIN_DISTANCES = 8
CELL_BYTES = 10  # a value and the offset of its time
SPARE = 1.125  # capacity of the history for new nodes


@dataclass(frozen=True, slots=True)
class SourceCadence:
    """The sample times of a fetch: the median distance in seconds between two samples of a series, in the metric with
    the shortest one, and the share of samples that each width of a slot drops."""

    seconds: float
    dropped: dict[int, float]


def source_cadence(batches: Iterable[SeriesBatch], widths: Iterable[int]) -> SourceCadence | None:
    """Return the cadence of the fetched samples, None if there are too few."""
    shortest, widths = math.inf, tuple(widths)
    dropped, total = dict.fromkeys(widths, 0), 0
    for batch in batches:
        series, time = _by_series(batch)
        same = series[1:] == series[:-1]
        distance = np.diff(time)
        following = same & (distance > 0.0)
        if np.count_nonzero(following) < MIN_DISTANCES:
            continue
        shortest = min(shortest, float(np.median(distance[following])))
        total += len(time)
        for width in widths:
            slot = np.floor_divide(time, width)
            dropped[width] += int(np.count_nonzero(following & (slot[1:] == slot[:-1])))
    if not total:
        return None
    return SourceCadence(shortest, {width: count / total for width, count in dropped.items()})


def _by_series(batch: SeriesBatch) -> tuple[I64, F64]:
    if bool((np.diff(batch.series) >= 0).all()):
        return batch.series, batch.time
    order = np.argsort(batch.series, kind="stable")
    return batch.series[order], batch.time[order]


def choose_resolution(cadence: SourceCadence, *, widths: Sequence[int], most: int) -> int:
    """Return the widest of `widths` that drops almost no samples, the narrowest if each drops some. `most` widths are
    allowed by the memory bound, counted from the widest."""
    allowed = widths[: max(1, most)]
    return next((width for width in allowed if cadence.dropped[width] <= ALMOST_NONE), allowed[-1])


def history_bytes(width: int, *, nodes: int, metrics: int, seconds: float) -> int:
    """Return the size of a history over `seconds` with slots of `width` seconds."""
    return math.ceil(CELL_BYTES * SPARE * nodes * metrics * (seconds / width + 1))


def resample(blocks: Sequence[SampleBlock], *, before: int, after: int) -> tuple[SampleBlock, ...]:
    """Return samples of slots of `before` seconds in slots of `after` seconds, at their true times. In narrower slots
    nothing is lost; in a wider slot the last sample wins. Carried values, which have no time, are left out."""
    if before == after:
        return tuple(blocks)
    return tuple(made for block in blocks if (made := _resampled(block, before=before, after=after)) is not None)


def _resampled(block: SampleBlock, *, before: int, after: int) -> SampleBlock | None:
    row, node = np.nonzero(np.isfinite(block.values) & (block.offset_ms != CARRIED))
    if not len(row):
        return None
    time_ms = (block.first_slot + row.astype(np.int64)) * before * 1000 + block.offset_ms[row, node]
    slot = time_ms // (after * 1000)
    first = int(slot.min())
    shape = (int(slot.max()) - first + 1, len(block.nodes))
    values, offset_ms = np.full(shape, np.nan), np.zeros(shape, dtype=np.uint16)
    # rows ascend in time, and the last assignment to a cell wins
    values[slot - first, node] = block.values[row, node]
    offset_ms[slot - first, node] = (time_ms - slot * after * 1000).astype(np.uint16)
    return SampleBlock(block.metric, first, block.nodes, values, offset_ms)
