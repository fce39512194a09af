"""Integer columns by resource name with one row per node, and statistics over the rows.

A column is created when a resource is first used and removed when all its values are zero: an extender may receive any
resource name from any client, so unused columns must not accumulate.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from watcher.arrays import F64, I64, Bool
from watcher.core.kubernetes.pod_resources import CPU, MEMORY, Amounts
from watcher.model import MetricType


class AmountColumns:
    """`column(resource)` [rows] are the current values; a resource without a column is zero in all rows."""

    def __init__(self) -> None:
        self._used = 0
        self._rows = 0
        self._columns: dict[str, I64] = {}
        self._filled: dict[str, int] = {}

    @property
    def resources(self) -> tuple[str, ...]:
        """Names of the resources that have a column, sorted."""
        return tuple(sorted(self._columns))

    def reserve(self, rows: int) -> None:
        """Set the number of rows, growing the columns with spare capacity if needed."""
        self._used = max(self._used, rows)
        if rows <= self._rows:
            return
        grown = rows + rows // 4
        for resource, column in self._columns.items():
            self._columns[resource] = np.concatenate([column, np.zeros(grown - self._rows, dtype=np.int64)])
        self._rows = grown

    def column(self, resource: str) -> I64:
        """Return all rows of a resource, read-only."""
        found = self._columns.get(resource)
        return np.zeros(self._used, dtype=np.int64) if found is None else found[: self._used]

    def set(self, row: int, amounts: Amounts) -> None:
        """Replace all amounts of a row."""
        self.add(row, self.of(row), times=-1)
        self.add(row, amounts)

    def add(self, row: int, amounts: Amounts, *, times: int = 1) -> None:
        """Add amounts to a row; `times` -1 subtracts them."""
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
        """Update the number of nonzero rows of a resource by `more`, and remove the column when none is left."""
        self._filled[resource] += more
        if self._filled[resource] == 0:
            del self._filled[resource], self._columns[resource]

    def of(self, row: int) -> dict[str, int]:
        """Return the nonzero amounts of a row."""
        return {name: int(self._columns[name][row]) for name in self.resources if self._columns[name][row]}


LOADS = {CPU: MetricType.CPU, MEMORY: MetricType.MEMORY}
GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu", "koordinator.sh/gpu-core")
"""Resources of nodes whose use the metric GPU measures: the mean utilization of all GPUs of the node."""


def mu_sigma(average: F64, deviation: F64, requested: F64 | float, capacity: F64) -> tuple[F64, F64]:
    """Return mean and deviation as shares 0 to 1 of the capacity; all four arguments have the same unit.

        mu = clamp((average + requested) / capacity)      sigma = clamp(deviation / capacity)

    Both are 0 if the capacity is 0 or less. An unknown mean stays NaN; an unknown deviation is 0.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        mu, sigma = (average + requested) / capacity, deviation / capacity
    none = capacity <= 0
    mu, sigma = where_rare(none, mu, average * 0.0), where_rare(none, sigma, 0.0)
    return np.clip(mu, 0.0, 1.0), np.minimum(np.fmax(sigma, 0.0), 1.0)


def where_rare(chosen: Bool, values: F64, others: F64 | float) -> F64:
    """Return `others` where `chosen`, otherwise `values` [n]. Faster than np.where if `chosen` is usually all False."""
    return np.where(chosen, others, values) if chosen.any() else values


def raised(load: F64, bound: F64) -> F64:
    """Return the higher one of a load and its bound; the load where there is no bound, NaN where the load is NaN."""
    return np.where(bound > load, bound, load)


class ResourceMatrix:
    """Integers by [resources, rows], and the rows that have values (`present`); grows with the table."""

    def __init__(self, resources: Sequence[str]) -> None:
        self._resources = tuple(resources)
        self.values: I64 = np.zeros((len(self._resources), 0), dtype=np.int64)
        self.present: Bool = np.zeros(0, dtype=np.bool_)

    def reserve(self, rows: int) -> None:
        """Make space for this number of rows; 25% more than needed when it grows."""
        more = rows + rows // 4 - len(self.present)
        if rows > len(self.present):
            self.values = np.concatenate([self.values, np.zeros((len(self._resources), more), dtype=np.int64)], axis=1)
            self.present = np.concatenate([self.present, np.zeros(more, dtype=np.bool_)])

    def set(self, row: int, given: Amounts | None) -> None:
        """Set the amounts of a row; None clears it."""
        self.present[row] = given is not None
        self.values[:, row] = 0 if given is None else [given.get(name, 0) for name in self._resources]

    def set_all(self, rows: I64, given: I64 | None) -> None:
        """Set many rows at once, [resources, n]; None clears them."""
        self.present[rows] = given is not None
        self.values[:, rows] = 0 if given is None else given

    def take(self, rows: I64) -> tuple[I64, Bool]:
        """The values [resources, n] of these rows, and whether they have any [n]."""
        return np.take(self.values, rows, axis=1), self.present[rows]
