"""Estimated usage of assigned pods that the measurements of their nodes do not contain yet.

Let e be the estimate of a pod, u its measured usage, s the time at which it was assigned, U the time and I the report
interval of the measurement, and D the time until which the pod must count as its estimate. The pod counts as its
estimate if

    u is unknown, or U - I < s, or D > U

for each resource, and then adds max(0, e - u) to its node. If the pods of the node are not measured, the first
condition is ignored: a pod that has run for an interval is included in the usage of its node. Pods of the class
koord-prod are additionally summed separately; prod pods that are not reported as such count as their estimate there.

Each pod's contribution is computed when the pod or the measurement changes, and later subtracted with the same values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from scorers.cluster.node_metrics import MetricColumns, PodKey
from watcher.arrays import F64, I64, Bool
from watcher.core.kubernetes.pod_resources import Amounts

ScalarT = TypeVar("ScalarT", bound=np.generic)

DELTA, PROD_USAGE, PROD_DELTA, ESTIMATED = range(4)
"""The sums: estimates beyond the node's usage; usage of prod pods; estimates beyond that; all estimates in full."""


@dataclass(frozen=True, slots=True)
class AssignedPod:
    """A pod on a node (`row`). `at` is the time of the assignment (s); `until` is the time until which the pod counts
    as its estimate (D), None without such a time. Both are in unix seconds."""

    pod: PodKey
    row: int
    estimate: Amounts
    prod: bool
    at: float
    until: float | None


class AssignedPods:
    """The sums of all rows, [4, resources, rows], updated with each pod."""

    def __init__(self, resources: Sequence[str], metrics: MetricColumns) -> None:
        self._resources = tuple(resources)
        self._metrics = metrics
        self._slot: dict[str, int] = {}
        self._on_row: dict[int, set[int]] = {}
        self._free: list[int] = []
        self._changed: set[int] = set()
        self._pods: list[PodKey] = []
        shape = (4, len(self._resources))
        self._sums: I64 = np.zeros((*shape, 0), dtype=np.int64)
        self._parts: I64 = np.zeros((*shape, 0), dtype=np.int64)
        self._estimate: I64 = np.zeros((len(self._resources), 0), dtype=np.int64)
        self._row: I64 = np.zeros(0, dtype=np.int64)
        self._prod: Bool = np.zeros(0, dtype=np.bool_)
        self._at: F64 = np.zeros(0)
        self._until: F64 = np.zeros(0)

    def reserve(self, rows: int) -> None:
        """Make space for this number of rows."""
        self._sums = _widened(self._sums, rows)

    def add(self, key: str, each: AssignedPod) -> None:
        """Add a pod to its node; the sums are updated by `apply_changes`."""
        slot = self._free.pop() if self._free else self._new_slot()
        self._slot[key], self._pods[slot] = slot, each.pod
        self._estimate[:, slot] = [each.estimate.get(name, 0) for name in self._resources]
        self._row[slot], self._prod[slot], self._at[slot] = each.row, each.prod, each.at
        self._until[slot] = -np.inf if each.until is None else each.until
        self._on_row.setdefault(each.row, set()).add(slot)
        self._changed.add(slot)

    def remove(self, key: str) -> None:
        """Remove a pod if it was added."""
        slot = self._slot.pop(key, None)
        if slot is None:
            return
        row = int(self._row[slot])
        self._sums[:, :, row] -= self._parts[:, :, slot]
        self._parts[:, :, slot] = 0
        self._changed.discard(slot)
        self._on_row[row].discard(slot)
        self._free.append(slot)

    def invalidate_row(self, row: int) -> None:
        """Schedule the pods of a node for recomputation, after its measurement changed."""
        slots = self._on_row.get(row, set())
        self._sums[:, :, row] = 0
        self._parts[:, :, list(slots)] = 0
        self._changed |= slots

    def recompute_all(self) -> None:
        """Recompute all pods, after all measurements changed."""
        self._sums[:] = 0
        self._parts[:] = 0
        self._changed = set(self._slot.values())
        self.apply_changes()

    def sums(self, which: int, rows: I64) -> I64:
        """One of the four sums, [resources, n]."""
        self.apply_changes()
        return np.take(self._sums[which], rows, axis=1)

    def count(self, row: int) -> int:
        """The number of pods on a node."""
        return len(self._on_row.get(row, ()))

    def adding(self, which: int, row: int) -> list[str]:
        """The names of the pods that contribute to one of the four sums of a node, sorted."""
        self.apply_changes()
        slots = [slot for slot in self._on_row.get(row, ()) if self._parts[which, :, slot].any()]
        return sorted("/".join(self._pods[slot]) for slot in slots)

    def apply_changes(self) -> None:
        """Add the contributions of all changed pods to the sums."""
        if not self._changed:
            return
        slots = np.fromiter(self._changed, dtype=np.int64, count=len(self._changed))
        self._changed.clear()
        slots = slots[np.argsort(self._row[slots], kind="stable")]
        rows = self._row[slots]
        parts = self._parts[:, :, slots] = self._parts_of(slots, rows)
        starts = np.flatnonzero(np.append(True, rows[1:] != rows[:-1]))
        self._sums[:, :, rows[starts]] += np.add.reduceat(parts, starts, axis=2)

    def _parts_of(self, slots: I64, rows: I64) -> I64:
        metrics = self._metrics
        prod, estimate = self._prod[slots], self._estimate[:, slots]
        measured = metrics.pods_known[rows]
        read = metrics.readings(rows, [self._pods[slot] for slot in slots.tolist()], prod, self._at[slots])
        updated = np.nan_to_num(metrics.updated[rows], nan=-np.inf)
        young = updated - metrics.interval[rows] < self._at[slots]
        estimated = young | (self._until[slots] > updated) | (measured & ~read.known)
        active = prod & read.prod
        parts = np.zeros((4, *estimate.shape), dtype=np.int64)
        parts[DELTA] = np.where(estimated, np.maximum(estimate - read.used, 0), 0)
        parts[PROD_USAGE] = np.where(active, read.used, 0)
        beyond = np.maximum(estimate - parts[PROD_USAGE], 0)
        parts[PROD_DELTA] = np.where(prod & (estimated | (read.there & ~active)), beyond, 0)
        parts[ESTIMATED] = estimate
        return parts

    def _new_slot(self) -> int:
        slot = len(self._pods)
        self._pods.append(("", ""))
        if slot >= len(self._row):
            size = max(16, 2 * slot)
            self._parts, self._estimate = _widened(self._parts, size), _widened(self._estimate, size)
            self._row, self._prod = _widened(self._row, size), _widened(self._prod, size)
            self._at, self._until = _widened(self._at, size), _widened(self._until, size)
        return slot


def _widened(array: npt.NDArray[ScalarT], size: int) -> npt.NDArray[ScalarT]:
    """The array with at least `size` elements in the last dimension; a copy has 25% more elements than needed."""
    more = size + size // 4 - array.shape[-1]
    if size <= array.shape[-1]:
        return array
    return np.concatenate([array, np.zeros((*array.shape[:-1], more), dtype=array.dtype)], axis=-1)
