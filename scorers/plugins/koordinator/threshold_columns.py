"""The thresholds of all nodes, by row of a table."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import numpy as np

from scorers.cluster.columns import ResourceMatrix
from scorers.plugins.koordinator.thresholds import Thresholds
from watcher.arrays import I64


class ThresholdColumns:
    """Thresholds by row: `plain`, those of prod pods, and those of an aggregate (a type and seconds). `aggregates`
    numbers the aggregates that some node has, and `aggregate` [rows] has the number of each node (-1 without one)."""

    def __init__(self, resources: Sequence[str]) -> None:
        self.plain, self.prod, self.aggregated = (ResourceMatrix(resources) for _ in range(3))
        self.aggregates: dict[tuple[str, float], int] = {}
        self.aggregate: I64 = np.zeros(0, dtype=np.int64)

    def reserve(self, rows: int) -> None:
        """Make space for this number of rows; 25% more than needed when it grows."""
        for each in (self.plain, self.prod, self.aggregated):
            each.reserve(rows)
        if rows > len(self.aggregate):
            more = np.full(rows + rows // 4 - len(self.aggregate), -1, dtype=np.int64)
            self.aggregate = np.concatenate([self.aggregate, more])

    def set(self, row: int, own: Thresholds) -> bool:
        """Set the thresholds of a row. Returns whether an aggregate was dropped because no node has it."""
        self.plain.set(row, own.usage)
        self.prod.set(row, own.prod)
        self.aggregated.set(row, own.aggregated)
        before = int(self.aggregate[row])
        self.aggregate[row] = self._number_of((own.aggregation, own.seconds)) if own.aggregation else -1
        if before < 0 or (self.aggregate == before).any():
            return False
        self.aggregates = {key: each for key, each in self.aggregates.items() if each != before}
        return True

    def _number_of(self, aggregate: tuple[str, float]) -> int:
        if aggregate not in self.aggregates:
            taken = set(self.aggregates.values())
            self.aggregates[aggregate] = next(number for number in count() if number not in taken)
        return self.aggregates[aggregate]
