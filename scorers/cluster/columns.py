"""Columns of whole numbers by resource, one row for each node, that grow with the fleet and with what pods ask for, and
go when nobody asks for that any more: an extender may be sent any name of a resource by anybody."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from scorers.cluster.resources import Amounts

I64 = npt.NDArray[np.int64]


class AmountColumns:
    """`column(resource)` [rows] of what was set or added; a resource that nobody named is zero everywhere."""

    def __init__(self) -> None:
        self._used = 0
        self._rows = 0
        self._columns: dict[str, I64] = {}
        self._filled: dict[str, int] = {}

    @property
    def resources(self) -> tuple[str, ...]:
        """Those that have a column, sorted."""
        return tuple(sorted(self._columns))

    def reserve(self, rows: int) -> None:
        """There are so many rows now; room is made for some more."""
        self._used = max(self._used, rows)
        if rows <= self._rows:
            return
        grown = rows + rows // 4
        for resource, column in self._columns.items():
            self._columns[resource] = np.concatenate([column, np.zeros(grown - self._rows, dtype=np.int64)])
        self._rows = grown

    def column(self, resource: str) -> I64:
        """All rows of a resource; not to be written to."""
        found = self._columns.get(resource)
        return np.zeros(self._used, dtype=np.int64) if found is None else found[: self._used]

    def set(self, row: int, amounts: Amounts) -> None:
        """This and nothing else is in the row."""
        self.add(row, self.of(row), times=-1)
        self.add(row, amounts)

    def add(self, row: int, amounts: Amounts, *, times: int = 1) -> None:
        """Add to a row; `times` -1 takes away again."""
        for resource, size in amounts.items():
            if size == 0:
                continue
            column = self._columns.get(resource)
            if column is None:
                column = self._columns[resource] = np.zeros(self._rows, dtype=np.int64)
                self._filled[resource] = 0
            before = int(column[row])
            column[row] = after = before + times * size
            if (before == 0) != (after == 0):
                self._count(resource, 1 if after else -1)

    def _count(self, resource: str, more: int) -> None:
        """So many more rows have something of it; without any the column goes."""
        self._filled[resource] += more
        if self._filled[resource] == 0:
            del self._filled[resource], self._columns[resource]

    def of(self, row: int) -> dict[str, int]:
        """What is in a row, without zeros."""
        return {name: int(self._columns[name][row]) for name in self.resources if self._columns[name][row]}
