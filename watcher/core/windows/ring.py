"""The samples of one metric by slot and node, in a ring of slots.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import numpy as np

from watcher.arrays import F64, I64, U16, Bool
from watcher.core.windows.records import CARRIED


class SampleRing:
    """The cells of one metric: `values` and `offset_ms` [rows, capacity]; capacity grows with the fleet."""

    def __init__(self, rows: int, nodes: int) -> None:
        self.values: F64 = np.full((rows, _capacity(nodes)), np.nan)
        self.offset_ms: U16 = np.zeros(self.values.shape, dtype=np.uint16)
        self.carries = False

    def reserve(self, nodes: int) -> None:
        rows, capacity = self.values.shape
        if nodes <= capacity:
            return
        more = _capacity(nodes) - capacity
        self.values = np.concatenate([self.values, np.full((rows, more), np.nan)], axis=1)
        self.offset_ms = np.concatenate([self.offset_ms, np.zeros((rows, more), dtype=np.uint16)], axis=1)

    def sampled(self, row: int, columns: I64) -> Bool:
        """Return which of these columns have a true sample in a row."""
        carried = np.equal(self.offset_ms[row, columns], CARRIED)
        return np.asarray(~np.isnan(self.values[row, columns]) & ~carried, dtype=np.bool_)

    def empty(self, rows: I64) -> None:
        self.values[rows] = np.nan

    def any_cell(self, nodes: int) -> Bool:
        return np.asarray((~np.isnan(self.values[:, :nodes])).any(axis=0), dtype=np.bool_)

    def keep(self, alive: Bool) -> None:
        nodes = len(alive)
        rows = self.values.shape[0]
        values, offset = self.values[:, :nodes][:, alive], self.offset_ms[:, :nodes][:, alive]
        spare = _capacity(values.shape[1]) - values.shape[1]
        self.values = np.concatenate([values, np.full((rows, spare), np.nan)], axis=1)
        self.offset_ms = np.concatenate([offset, np.zeros((rows, spare), dtype=np.uint16)], axis=1)

    def write(self, row: I64 | np.int64, column: I64, value: F64, offset_ms: U16) -> Bool:
        """Write values into cells that have no newer sample; return which cells changed."""
        row = np.broadcast_to(row, column.shape)
        old, old_offset = self.values[row, column], self.offset_ms[row, column]
        free: Bool = np.isnan(old) | np.equal(old_offset, CARRIED)
        newer: Bool = np.greater(offset_ms, old_offset) | (np.equal(offset_ms, old_offset) & np.not_equal(value, old))
        changed: Bool = free | newer
        row, column = row[changed], column[changed]
        self.values[row, column] = value[changed]
        self.offset_ms[row, column] = offset_ms[changed]
        return changed


def _capacity(nodes: int) -> int:
    """Return a capacity with a reserve for new nodes, so that a growing fleet rarely copies the ring."""
    return max(16, nodes + nodes // 8)
