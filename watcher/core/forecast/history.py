"""The maxima of each five minutes of all nodes, for the days of `forecast.history`, one byte each.

Nodes are columns of chunks of 250: a fleet that grows adds chunks and copies nothing, and a calculation over one chunk
takes milliseconds. A chunk has one ring per metric, [rows, 250], slot-major: row (slot mod rows), code 0 for no sample.
5,000 nodes with two metrics and seven days take 20.4 MB.

Pure: no I/O, no clock. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from watcher.arrays import F64, I64, U8, Bool
from watcher.core.forecast.maxima import HOUR_SLOTS, SLOT_S, encode
from watcher.core.windows.records import MaximaHour

CHUNK_COLUMNS = 250
SLACK_SLOTS = 2 * HOUR_SLOTS
"""Rows beyond the history: bounds are computed from whole hours, up to an hour after the last one ended."""
ADDED_SAMPLES = 1 << 15
"""Samples that are added at once: those of the first fetch of 5,000 nodes would briefly take 15 MB."""


class MaximaChunk:
    """The rings of one chunk of nodes by metric."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self.rings: dict[str, U8] = {}

    def ring(self, metric: str) -> U8:
        """Return the ring [rows, 250] of a metric; a new one is empty."""
        if metric not in self.rings:
            self.rings[metric] = np.zeros((self._rows, CHUNK_COLUMNS), dtype=np.uint8)
        return self.rings[metric]


class MaximaHistory:
    """The maxima of all nodes over `slots` slots of five minutes, plus two hours."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.chunks: list[MaximaChunk] = []
        self.head: int | None = None
        """The newest slot that has a row."""
        self._rows = slots + SLACK_SLOTS
        self._names: list[str | None] = []  # by column; None: the column is free
        self._index: dict[str, int] = {}
        self._free: list[int] = []
        self._changed: set[tuple[str, int]] = set()  # (metric, hour)

    # --- nodes -------------------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that have a column, in order of their columns."""
        return tuple(name for name in self._names if name is not None)

    @property
    def nbytes(self) -> int:
        """Memory of the rings in bytes."""
        return sum(ring.nbytes for chunk in self.chunks for ring in chunk.rings.values())

    def columns_of(self, names: Iterable[str]) -> I64:
        """Return the columns of nodes, -1 for unknown ones."""
        return np.array([self._index.get(name, -1) for name in names], dtype=np.int64)

    def _columns(self, names: Sequence[str]) -> I64:
        for name in names:
            if name not in self._index:
                self._index[name] = column = self._free.pop() if self._free else len(self._names)
                if column == len(self._names):
                    self._names.append(None)
                self._names[column] = name
        while len(self.chunks) * CHUNK_COLUMNS < len(self._names):
            self.chunks.append(MaximaChunk(self._rows))
        return self.columns_of(names)

    def drop_empty_nodes(self) -> list[int]:
        """Free the columns of nodes without a maximum; return these columns."""
        empty = [
            start * CHUNK_COLUMNS + column
            for start, chunk in enumerate(self.chunks)
            for column in np.flatnonzero(~self._occupied(chunk)).tolist()
        ]
        freed = [column for column in empty if column < len(self._names) and self._names[column] is not None]
        for column in freed:
            name = self._names[column]
            assert name is not None
            del self._index[name]
            self._names[column] = None
        self._free = sorted({*self._free, *freed}, reverse=True)
        return freed

    def _occupied(self, chunk: MaximaChunk) -> Bool:
        used: Bool = np.zeros(CHUNK_COLUMNS, dtype=bool)
        for ring in chunk.rings.values():
            used |= ring.any(axis=0)
        return used

    # --- samples in --------------------------------------------------------------------------------------------------

    def add(self, metric: str, names: Sequence[str], node: I64, time: F64, percent: F64) -> None:
        """Raise the maxima by samples: `node` indexes `names`, `time` is in unix seconds. Idempotent; samples that are
        too old have no row and are left out."""
        if not len(node):
            return
        columns = self._columns(names)
        for first in range(0, len(node), ADDED_SAMPLES):
            part = slice(first, first + ADDED_SAMPLES)
            slot = (time[part] // SLOT_S).astype(np.int64)
            self._raise(metric, slot, columns[node[part]], encode(percent[part]))

    def _raise(self, metric: str, slot: I64, column: I64, codes: U8) -> None:
        self._advance(int(slot.max()))
        assert self.head is not None
        fits = (slot > self.head - self._rows) & (codes > 0)
        slot, column, codes = slot[fits], column[fits], codes[fits]
        # by chunk, then ascending, so that of several samples of a cell the assignment keeps the highest, which is ten
        # times as fast as np.maximum.at
        order = np.argsort((column // CHUNK_COLUMNS) * 256 + codes, kind="stable")
        slot, column, codes = slot[order], column[order], codes[order]
        edges = np.searchsorted(column // CHUNK_COLUMNS, np.arange(len(self.chunks) + 1))
        hours: set[int] = set()
        for number, chunk in enumerate(self.chunks):
            part = slice(edges[number], edges[number + 1])
            if part.start == part.stop:
                continue
            ring, row, place = chunk.ring(metric), slot[part] % self._rows, column[part] % CHUNK_COLUMNS
            higher = codes[part] > ring[row, place]
            ring[row[higher], place[higher]] = codes[part][higher]
            hours.update(np.unique(slot[part][higher] // HOUR_SLOTS).tolist())
        self._changed.update((metric, hour) for hour in hours)

    def _advance(self, slot: int) -> None:
        """Advance the rings to `slot`, and empty the rows that it and the slots before it reuse."""
        if self.head is None:
            self.head = slot
        steps = min(slot - self.head, self._rows)
        if steps <= 0:
            return
        rows = np.arange(slot - steps + 1, slot + 1) % self._rows
        for chunk in self.chunks:
            for ring in chunk.rings.values():
                ring[rows] = 0
        self.head = slot

    # --- changes of names, sources and clocks ------------------------------------------------------------------------

    def rename(self, metric: str, names: Mapping[str, str | None]) -> list[int]:
        """Move the maxima of one metric to other nodes, all at once; None removes them. Where the new node has maxima
        in the same slots, the higher one counts. Return the changed columns."""
        old = [name for name in names if name in self._index]
        taken = [self._take(metric, self._index[name]) for name in old]
        changed = [self._index[name] for name in old]
        for name, codes in zip(old, taken, strict=True):
            new = names[name]
            if new is not None and codes.any():
                column = int(self._columns([new])[0])
                ring = self.chunks[column // CHUNK_COLUMNS].ring(metric)
                np.maximum(ring[:, column % CHUNK_COLUMNS], codes, out=ring[:, column % CHUNK_COLUMNS])
                changed.append(column)
        if any(codes.any() for codes in taken) and self.head is not None:
            rows = np.flatnonzero(np.any(taken, axis=0))
            slots = self.head - (self.head - rows) % self._rows
            self._changed.update((metric, hour) for hour in np.unique(slots // HOUR_SLOTS).tolist())
        return changed

    def _take(self, metric: str, column: int) -> U8:
        """Return the maxima of a column by row, and empty them."""
        ring = self.chunks[column // CHUNK_COLUMNS].ring(metric)
        codes: U8 = ring[:, column % CHUNK_COLUMNS].copy()
        ring[:, column % CHUNK_COLUMNS] = 0
        return codes

    def drop(self, metric: str) -> None:
        """Remove the maxima of one metric: its source changed."""
        for chunk in self.chunks:
            chunk.rings.pop(metric, None)
        self._changed = {key for key in self._changed if key[0] != metric}

    def step_back(self, slot: int) -> None:
        """Empty the slots after `slot`, which is the newest possible one: the clock was set back."""
        if self.head is None or self.head <= slot:
            return
        rows = np.arange(max(slot + 1, self.head - self._rows + 1), self.head + 1) % self._rows
        for chunk in self.chunks:
            for ring in chunk.rings.values():
                ring[rows] = 0
        self._changed = {key for key in self._changed if key[1] * HOUR_SLOTS <= slot}
        self.head = slot

    # --- reading -----------------------------------------------------------------------------------------------------

    def rows(self, chunk: int, metric: str, *, first: int, stop: int) -> U8:
        """Return the maxima [stop - first, 250] of a chunk in the slots from `first` up to, without, `stop`; 0 for
        slots that have no row."""
        ring = self.chunks[chunk].rings.get(metric)
        if ring is None or self.head is None:
            return np.zeros((stop - first, CHUNK_COLUMNS), dtype=np.uint8)
        slots = np.arange(first, stop)
        found: U8 = ring[slots % self._rows]
        found[(slots > self.head) | (slots <= self.head - self._rows)] = 0
        return found

    def slots_with_samples(self, metric: str, *, first: int, stop: int) -> Bool:
        """Return which slots from `first` up to, without, `stop` have the maximum of some node."""
        known: Bool = np.zeros(stop - first, dtype=bool)
        for number in range(len(self.chunks)):
            known |= self.rows(number, metric, first=first, stop=stop).any(axis=1)
        return known

    # --- hours for the store -----------------------------------------------------------------------------------------

    def take_changed(self, *, most: int, before: int) -> list[MaximaHour]:
        """Return at most `most` hours that changed since they were returned last, the newest first, without those that
        begin at or after slot `before`."""
        due = sorted((key for key in self._changed if key[1] * HOUR_SLOTS < before), key=lambda key: (-key[1], key[0]))
        self._changed.difference_update(due[:most])
        return [self.hour(metric, hour) for metric, hour in due[:most]]

    def hour(self, metric: str, hour: int) -> MaximaHour:
        """Return the maxima of all nodes in an hour."""
        first = hour * HOUR_SLOTS
        parts = [self.rows(number, metric, first=first, stop=first + HOUR_SLOTS) for number in range(len(self.chunks))]
        used = np.array([name is not None for name in self._names], dtype=bool)
        codes = np.concatenate(parts, axis=1)[:, : len(used)][:, used] if parts else np.zeros((HOUR_SLOTS, 0), np.uint8)
        return MaximaHour(metric, hour, self.nodes, codes)

    def load(self, hours: Iterable[MaximaHour], *, newest: int, changed: bool = False) -> None:
        """Raise the maxima by stored ones, except of slots after `newest` and of hours that are too old. `changed`:
        they have to be stored for this process."""
        columns: dict[tuple[str, ...], I64] = {}  # hours share their node lists, and the lookup is slow
        kept = [each for each in hours if newest - self._rows < each.hour * HOUR_SLOTS <= newest]
        for each in sorted(kept, key=lambda each: (-each.hour, each.metric)):
            if each.nodes not in columns:
                columns[each.nodes] = self._columns(each.nodes)
            first = each.hour * HOUR_SLOTS
            codes = each.codes[: newest - first + 1]
            self._advance(first + len(codes) - 1)
            self._load_rows(each.metric, first, columns[each.nodes], codes)
            if changed:
                self._changed.add((each.metric, each.hour))

    def _load_rows(self, metric: str, first: int, columns: I64, codes: U8) -> None:
        """Raise the maxima of consecutive slots from `first` on by `codes` [slots, n]."""
        assert self.head is not None
        slots = np.arange(first, first + len(codes))
        fits = slots > self.head - self._rows
        whole = np.zeros((int(fits.sum()), len(self.chunks) * CHUNK_COLUMNS), dtype=np.uint8)
        whole[:, columns] = codes[fits]
        rows = slots[fits] % self._rows
        for number, chunk in enumerate(self.chunks):
            part = whole[:, number * CHUNK_COLUMNS : (number + 1) * CHUNK_COLUMNS]
            ring = chunk.ring(metric)
            ring[rows] = np.maximum(ring[rows], part)
