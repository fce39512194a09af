"""The samples of the last minutes, and the windows computed from them.

Schedulers use the mean and the deviation of the last 5, 10 and 15 minutes; sources return anything from the current
value to raw series. The history therefore stores the samples, in one ring per metric, and every tick computes every
window from them. All sources are handled alike, a tick fetches only the last minute, and percentiles and coverage need
no further data.

A ring has one value per slot and node, slot-major: row (slot mod rows), so that sums over time read contiguous memory
and a new slot is one row. Each value has its sample time, in milliseconds after the slot's start.

Pure: no I/O and no clock. Not thread-safe, except for `statistic` and `samples`: other threads may call them while the
owner appends, because all of these hold the lock.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from watcher.arrays import F64, I64, U16, Bool
from watcher.core.windows.records import CARRIED, SampleBlock
from watcher.core.windows.ring import SampleRing
from watcher.core.windows.statistics import cadences, covers, quantile, window_statistics
from watcher.model import (
    METRIC_BY_NAME,
    METRIC_ORDER,
    QUANTILE,
    Cells,
    Metric,
    MetricWindows,
    Operator,
    Provenance,
    Window,
)


@dataclass(frozen=True, slots=True)
class RecentSamples:
    """One metric's ring, unrolled: `values` and `time` (unix seconds) [rows, n]; row 0 is the slot of `end`, followed
    by older slots; NaN without a sample. `sampled` [rows, n] marks true samples, not carried values."""

    values: F64
    time: F64
    sampled: Bool


class History:
    """Samples of all nodes and metrics over the longest window, plus slack for late samples.

    `resolution` is in whole seconds, `windows` in ascending order. A sample may be `slack_s` older than the longest
    window and is still stored, so that samples between two ticks do not evict samples that the last snapshot covers.
    """

    def __init__(self, *, resolution: int, windows: Sequence[Window], slack_s: float = 180.0) -> None:
        self.resolution = resolution
        self.windows = tuple(windows)
        self._lengths = tuple(window.seconds // resolution for window in windows)
        self._rows = self._lengths[-1] + int(np.ceil(slack_s / resolution)) + 1
        self._rings: dict[str, SampleRing] = {}
        self._names: list[str] = []
        self._index: dict[str, int] = {}
        self._names_tuple: tuple[str, ...] | None = ()
        self._head: int | None = None  # newest slot that has a row
        self._dirty: dict[str, set[int]] = {}
        self._end = -np.inf
        self._lock = threading.Lock()

    @property
    def seconds(self) -> float:
        return float(self._rows * self.resolution)

    # --- nodes and extent --------------------------------------------------------------------------------------------

    @property
    def names(self) -> tuple[str, ...]:
        """The nodes, in the order of the arrays' columns."""
        if self._names_tuple is None:
            self._names_tuple = tuple(self._names)
        return self._names_tuple

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics that have a ring, in wire order."""
        return tuple(METRIC_BY_NAME[name] for name in sorted(self._rings, key=METRIC_ORDER.__getitem__))

    @property
    def end(self) -> float:
        """Unix seconds of the newest sample, -inf before the first sample."""
        return self._end

    def clear(self) -> None:
        """Remove all samples and nodes, and reset the extent."""
        with self._lock:
            self._rings.clear()
            self._names.clear()
            self._index.clear()
            self._names_tuple = ()
            self._dirty.clear()
            self._head = None
            self._end = -np.inf

    def drop(self, metric: str) -> None:
        """Remove one metric: its source changed, and old and new samples must not share a window."""
        with self._lock:
            self._rings.pop(metric, None)
            self._dirty.pop(metric, None)

    def drop_empty_nodes(self) -> tuple[str, ...]:
        """Remove the nodes that have no value left in any ring; return their names, sorted."""
        if not self._names:
            return ()
        alive = np.zeros(len(self._names), dtype=bool)
        for ring in self._rings.values():
            alive |= ring.any_cell(len(self._names))
        if alive.all():
            return ()
        gone = tuple(sorted(name for name, keep in zip(self._names, alive, strict=True) if not keep))
        with self._lock:
            for ring in self._rings.values():
                ring.keep(alive)
            self._names = [name for name, keep in zip(self._names, alive, strict=True) if keep]
            self._index = {name: column for column, name in enumerate(self._names)}
            self._names_tuple = None
        return gone

    def rename(self, metric: str, names: Mapping[str, str | None]) -> tuple[str, ...]:
        """Move one metric's cells to other node names, all at once (two nodes may swap names); None removes the cells.
        Return the old names that had cells, sorted.

        If the new name already has a cell in a slot, the newer sample wins, and a sample wins over a carried value.
        """
        ring = self._rings.get(metric)
        if ring is None or self._head is None:
            return ()
        known = sorted(name for name in names if name in self._index)
        columns = np.array([self._index[name] for name in known], dtype=np.int64)
        filled = ~np.isnan(ring.values[:, columns])
        if not filled.any():
            return ()
        done = tuple(known[place] for place in np.flatnonzero(filled.any(axis=0)).tolist())
        row, moving = np.nonzero(filled)
        with self._lock:
            value, offset_ms = ring.values[row, columns[moving]], ring.offset_ms[row, columns[moving]]
            ring.values[row, columns[moving]] = np.nan
            self._touch(metric, self._head - (self._head - row) % self._rows)
            new = self._columns([names[name] or name for name in known])
            kept = np.array([names[name] is not None for name in known])[moving]
            true = kept & (offset_ms != CARRIED)
            ring.write(row[true], new[moving[true]], value[true], offset_ms[true])
            free = kept & ~true & np.isnan(ring.values[row, new[moving]])
            ring.values[row[free], new[moving[free]]] = value[free]
            ring.offset_ms[row[free], new[moving[free]]] = CARRIED
        return done

    # --- samples in --------------------------------------------------------------------------------------------------

    def append(self, metric: Metric, cells: Cells) -> int:
        """Write reviewed samples into their slots; return the number of samples that are too old to have a slot.

        Idempotent: appending the same samples again changes nothing. In a slot that already has a sample, the sample
        with the newer time wins, so a repeated response cannot overwrite a later one.
        """
        if not len(cells.slot):
            return 0
        with self._lock:
            columns = self._columns(cells.names)
            self._advance(int(cells.slot.max()))
            assert self._head is not None
            fits = (cells.slot > self._head - self._rows) & np.isfinite(cells.value)
            column, slot, value = columns[cells.node[fits]], cells.slot[fits], cells.value[fits]
            offset = np.round((cells.time[fits] - slot * self.resolution) * 1000.0)
            offset_ms = np.clip(offset, 0, self.resolution * 1000 - 1).astype(np.uint16)
            changed = self._ring(metric.name).write(slot % self._rows, column, value, offset_ms)
            self._touch(metric.name, slot[changed])
            if len(slot):
                # the time as stored, so that a restart continues with exactly the same end
                kept = slot * self.resolution + offset_ms / 1000.0
                self._end = max(self._end, float(kept.max()))
            return int(np.count_nonzero(cells.slot <= self._head - self._rows))

    def drop_newest(self, metric: Metric, names: Sequence[str], *, value: float) -> None:
        """Remove the newest samples of these nodes as long as they equal `value`: they turned out to be wrong."""
        ring = self._rings.get(metric.name)
        if ring is None or self._head is None:
            return
        columns = np.array([self._index[name] for name in names if name in self._index], dtype=np.int64)
        with self._lock:
            for slot in range(self._head, self._head - self._rows, -1):
                cells = ring.values[slot % self._rows, columns]
                wrong = cells == value
                if wrong.any():
                    ring.values[slot % self._rows, columns[wrong]] = np.nan
                    self._touch(metric.name, np.array([slot], dtype=np.int64))
                columns = columns[wrong | np.isnan(cells)]
                if not len(columns):
                    break

    def carry(self, metric: Metric, bad: Cells, *, slots: int) -> Cells:
        """Fill the slots of dropped samples with the previous sample, if it is at most `slots` slots older; return the
        filled cells.

        A carried value is marked: averages include it, it never counts as coverage, and a true sample replaces it.
        """
        ring = self._rings.get(metric.name)
        known = np.array([name in self._index for name in bad.names], dtype=bool)
        if ring is None or self._head is None or not len(bad.slot) or not known.any():
            return bad.where(np.zeros(len(bad.slot), dtype=bool))
        with self._lock:
            oldest = self._head - self._rows
            inside = known[bad.node] & (bad.slot > oldest) & (bad.slot <= self._head)
            of_name = np.array([self._index.get(name, 0) for name in bad.names], dtype=np.int64)
            column = of_name[bad.node]
            empty = inside & np.isnan(ring.values[bad.slot % self._rows, column])
            value = np.full(len(bad.slot), np.nan)
            for back in range(1, slots + 1):
                row = (bad.slot - back) % self._rows
                usable = empty & np.isnan(value) & (bad.slot - back > oldest)
                usable &= ring.offset_ms[row, column] != CARRIED
                value[usable] = ring.values[row[usable], column[usable]]
            filled = empty & ~np.isnan(value)
            row, column = bad.slot[filled] % self._rows, column[filled]
            ring.values[row, column] = value[filled]
            ring.offset_ms[row, column] = CARRIED
            ring.carries = ring.carries or bool(filled.any())
            self._touch(metric.name, bad.slot[filled])
        kept = bad.where(filled)
        return Cells(kept.names, kept.node, kept.slot, kept.time, value[filled])

    def newest(self, metric: Metric, names: Sequence[str]) -> tuple[F64, F64]:
        """Return time (unix seconds) and value of each node's newest sample, each [len(names)]; NaN if there is
        none."""
        time, value = np.full(len(names), np.nan), np.full(len(names), np.nan)
        ring = self._rings.get(metric.name)
        if ring is None or self._head is None:
            return time, value
        column = np.fromiter(map(self._index.get, names, repeat(-1)), dtype=np.int64, count=len(names))
        waiting = np.flatnonzero(column >= 0)
        for slot in range(self._head, self._head - self._rows, -1):  # most nodes are found in the first few rows
            found = ring.sampled(slot % self._rows, column[waiting])
            here = waiting[found]
            value[here] = ring.values[slot % self._rows, column[here]]
            time[here] = slot * self.resolution + ring.offset_ms[slot % self._rows, column[here]] / 1000.0
            waiting = waiting[~found]
            if not len(waiting):
                break
        return time, value

    def spread(self, metric: Metric, names: Sequence[str]) -> tuple[F64, F64, I64]:
        """Return median, median absolute deviation and number of each node's samples; arrays [len(names)]."""
        count = np.zeros(len(names), dtype=np.int64)
        median, mad = np.full(len(names), np.nan), np.full(len(names), np.nan)
        ring = self._rings.get(metric.name)
        for position, name in enumerate(names):
            column = self._index.get(name)
            if ring is None or column is None:
                continue
            values = ring.values[:, column]
            values = values[~np.isnan(values)]
            count[position] = len(values)
            if len(values):
                median[position] = np.median(values)
                mad[position] = np.median(np.abs(values - median[position]))
        return median, mad, count

    def repeats(self, metric: Metric) -> float:
        """Return the share of samples that equal the previous sample of their node; 1 with fewer than three such pairs
        per node."""
        recent = self.recent(metric)
        values = np.where(recent.sampled, recent.values, np.nan)
        pairs, equal, before = 0, 0, np.full(values.shape[1], np.nan)
        for row in values:
            known = ~np.isnan(row)
            pairs += int(np.count_nonzero(known & ~np.isnan(before)))
            equal += int(np.count_nonzero(known & (row == before)))
            before = np.where(known, row, before)
        nodes = int(np.count_nonzero(~np.isnan(before)))
        return equal / pairs if nodes and pairs >= 3 * nodes else 1.0

    # --- windows out -------------------------------------------------------------------------------------------------

    def recent(self, metric: Metric) -> RecentSamples:
        """Return a copy of a metric's ring over the longest window, newest slot first."""
        return self._unroll(metric.name, end_slot=self._end_slot(), rows=self._lengths[-1], columns=len(self._names))

    def windows_of(self, metric: Metric, *, recent: RecentSamples, provenance: Provenance, order: I64) -> MetricWindows:
        """Compute all windows of a metric, with the nodes in `order` (column indexes of this history)."""
        statistics = window_statistics(recent.values, recent.sampled, lengths=self._lengths)
        cadence = cadences(recent.time, resolution=self.resolution)
        seconds = np.array([window.seconds for window in self.windows], dtype=np.float64)[:, None]
        covered = covers(statistics.count, cadence=cadence, seconds=seconds)
        newest = _first_row(recent.time, recent.sampled)
        return MetricWindows(
            metric=metric,
            provenance=provenance,
            latest=_first_row(recent.values, recent.sampled)[order],
            sampled=newest[order],
            cadence=cadence[order],
            count=statistics.count[:, order],
            coverage=np.minimum(1.0, statistics.count * cadence / seconds)[:, order],
            average=np.where(covered, statistics.mean, np.nan)[:, order],
            deviation=np.where(covered, statistics.deviation, np.nan)[:, order],
        )

    def statistic(self, name: str, operator: Operator, *, end: float, nodes: Sequence[str]) -> F64:
        """Return the maximum or percentile (linear interpolation, as in NumPy and PromQL) of each window that ends at
        `end` (unix seconds), for `nodes`; [W, len(nodes)], NaN without a sample. May be called from any thread."""
        values, _ = self.samples(name, end=end, nodes=nodes)
        return np.array([quantile(values[:length], QUANTILE[operator]) for length in self._lengths])

    def samples(self, name: str, *, end: float, nodes: Sequence[str]) -> tuple[F64, F64]:
        """Return values and times of a metric over the longest window that ends at `end` (unix seconds), for `nodes`;
        each [slots, len(nodes)], newest slot first, NaN without a sample. A carried value has no time. May be
        called from any thread."""
        values = np.full((self._lengths[-1], len(nodes)), np.nan)
        time = values.copy()
        with self._lock:
            if name not in self._rings or self._head is None or not np.isfinite(end):
                return values, time
            columns = np.array([self._index.get(node, -1) for node in nodes], dtype=np.int64)
            end_slot = int(end // self.resolution)
            recent = self._unroll(name, end_slot=end_slot, rows=self._lengths[-1], columns=len(self._names))
        known = columns >= 0
        values[:, known], time[:, known] = recent.values[:, columns[known]], recent.time[:, columns[known]]
        return values, time

    # --- blocks for the store ----------------------------------------------------------------------------------------

    @property
    def block_slots(self) -> int:
        """Number of slots in one stored block: about a minute."""
        return max(1, 60 // self.resolution)

    def take_changed(self) -> tuple[SampleBlock, ...]:
        """Return copies of the whole blocks that changed since the last call."""
        with self._lock:
            blocks = [
                self._block(metric, block)
                for metric in sorted(self._dirty)
                for block in sorted(self._dirty[metric])
                if self._head is not None and block + self.block_slots > self._head - self._rows
            ]
            self._dirty.clear()
        return tuple(blocks)

    def blocks(self) -> tuple[SampleBlock, ...]:
        """Return copies of all blocks."""
        with self._lock:
            if self._head is None:
                return ()
            oldest = (self._head - self._rows + 1) // self.block_slots
            firsts = [block * self.block_slots for block in range(oldest, self._head // self.block_slots + 1)]
            return tuple(self._block(metric, first) for metric in sorted(self._rings) for first in firsts)

    def load(self, blocks: Sequence[SampleBlock], *, changed: bool = False) -> None:
        """Load stored blocks, except slots that are too old. `changed`: the cells are not stored in these slots yet."""
        columns: dict[tuple[str, ...], I64] = {}  # blocks of one fleet share their names, and the lookup is slow
        with self._lock:
            for block in sorted(blocks, key=lambda block: block.first_slot):
                if block.metric not in METRIC_BY_NAME or not block.values.size:
                    continue
                if block.nodes not in columns:
                    columns[block.nodes] = self._columns(block.nodes)
                for row, values in enumerate(block.values):
                    slot = block.first_slot + row
                    self._load_row(block.metric, slot, columns[block.nodes], values, block.offset_ms[row])
                if changed:
                    self._touch(block.metric, block.first_slot + np.arange(len(block.values), dtype=np.int64))
            if not changed:
                self._dirty.clear()

    # --- internal ----------------------------------------------------------------------------------------------------

    def _load_row(self, metric: str, slot: int, columns: I64, values: F64, offset_ms: U16) -> None:
        """Write the stored cells of one slot: true samples and carried values."""
        there = ~np.isnan(values)
        if not there.any():
            return
        self._advance(slot)
        assert self._head is not None
        if slot <= self._head - self._rows:
            return
        ring, row = self._ring(metric), slot % self._rows
        carried = there & np.equal(offset_ms, CARRIED)
        true = there & ~carried
        if true.any():
            ring.write(np.int64(row), columns[true], values[true], offset_ms[true])
            self._end = max(self._end, slot * self.resolution + float(offset_ms[true].max()) / 1000.0)
        if carried.any():
            ring.values[row, columns[carried]] = values[carried]
            ring.offset_ms[row, columns[carried]] = CARRIED
            ring.carries = True

    def _columns(self, names: Sequence[str]) -> I64:
        new = [name for name in names if name not in self._index]
        if new:
            for name in dict.fromkeys(new):
                self._index[name] = len(self._names)
                self._names.append(name)
            self._names_tuple = None
            for ring in self._rings.values():
                ring.reserve(len(self._names))
        return np.fromiter((self._index[name] for name in names), dtype=np.int64, count=len(names))

    def _ring(self, name: str) -> SampleRing:
        if name not in self._rings:
            self._rings[name] = SampleRing(self._rows, len(self._names))
        return self._rings[name]

    def _advance(self, slot: int) -> None:
        """Advance the ring to `slot`; empty the rows that `slot` and the slots before it reuse."""
        if self._head is None:
            self._head = slot
            return
        steps = min(slot - self._head, self._rows)
        if steps <= 0:
            return
        rows = np.arange(slot - steps + 1, slot + 1) % self._rows
        for ring in self._rings.values():
            ring.empty(rows)
        self._head = slot

    def _touch(self, metric: str, slots: I64) -> None:
        if len(slots):
            blocks = np.unique(slots // self.block_slots) * self.block_slots
            self._dirty.setdefault(metric, set()).update(blocks.tolist())

    def _end_slot(self) -> int:
        return int(self._end // self.resolution) if np.isfinite(self._end) else 0

    def _order(self, first: int, rows: int) -> I64:
        """Return the row numbers of `rows` slots, beginning with the newest slot `first`."""
        return (first - np.arange(rows, dtype=np.int64)) % self._rows

    def _unroll(self, name: str, *, end_slot: int, rows: int, columns: int) -> RecentSamples:
        ring = self._rings[name]
        assert self._head is not None
        order = self._order(end_slot, rows)
        slots = end_slot - np.arange(rows, dtype=np.int64)
        values = ring.values[order, :columns]
        values[(slots > self._head) | (slots <= self._head - self._rows)] = np.nan
        offset = ring.offset_ms[order, :columns]
        present = ~np.isnan(values)
        sampled = present & (offset != CARRIED) if ring.carries else present
        time = offset / 1000.0
        time += (slots * self.resolution)[:, None]  # in place: with thousands of nodes, allocation outweighs the sum
        time[~sampled] = np.nan
        return RecentSamples(values, time, sampled)

    def _block(self, metric: str, first_slot: int) -> SampleBlock:
        ring = self._rings[metric]
        slots = np.arange(first_slot, first_slot + self.block_slots)
        columns = len(self._names)
        values = ring.values[slots % self._rows, :columns]
        assert self._head is not None
        values[(slots > self._head) | (slots <= self._head - self._rows)] = np.nan
        offset = np.where(np.isnan(values), 0, ring.offset_ms[slots % self._rows, :columns]).astype(np.uint16)
        return SampleBlock(metric, first_slot, self.names, values, offset)


def _first_row(values: F64, present: Bool) -> F64:
    """Return each column's value in its first row where `present` is true; NaN without such a row."""
    if not values.shape[1]:
        return np.empty(0)
    first = present.argmax(axis=0)
    columns = np.arange(values.shape[1])
    return np.where(present[first, columns], values[first, columns], np.nan)


def name_order(names: Sequence[str], keep: NDArray[np.bool_] | None = None) -> I64:
    """Return the column indexes in the order of their names; if `keep` is given, only the columns that it marks."""
    columns = range(len(names)) if keep is None else np.flatnonzero(keep).tolist()
    return np.array(sorted(columns, key=names.__getitem__), dtype=np.int64)
