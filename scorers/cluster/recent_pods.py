"""Pods that were given to a node a moment ago, whose load no measurement contains yet.

A measurement of a node at time t contains what ran for a while before t. So a pod that was assigned after t - 60 s
counts as not yet measured (upstream's rule; seed 004, "recently scheduled pods"; reference/trimaran.md, 4.2). It is
kept for five minutes at least, and for as long as measurements lag behind. Upstream took the time at which it heard of
a pod, so that after a restart all pods were recent; here it is the time at which the pod was scheduled.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from watcher.core.kubernetes.objects import Pod

if TYPE_CHECKING:
    from scorers.cluster.pods import PodInfo

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

MEASURED_AFTER_S = 60.0
KEPT_S = 300.0

Demand = Callable[["PodInfo"], float]


class RecentPods:
    """Assigned pods by a key, with the row of their node, and for each registered demand what they will add."""

    def __init__(self) -> None:
        self._slot: dict[str, int] = {}
        self._key: list[str | None] = []
        self._info: list[PodInfo | None] = []
        self._free: list[int] = []
        self._row: I64 = np.full(16, -1, dtype=np.int64)
        self._at: F64 = np.full(16, -np.inf)
        self._demands: dict[str, Demand] = {}
        self._amount: dict[str, F64] = {}
        self._sums: dict[str, tuple[F64, F64]] = {}  # by demand: when nodes were measured, and what is missing there

    def __len__(self) -> int:
        return len(self._slot)

    def register(self, name: str, demand: Demand) -> None:
        """Count this of each pod from now on, and of those that are here. The same name again replaces the demand."""
        self._demands[name] = demand
        column = np.zeros(len(self._row))
        for slot, info in enumerate(self._info):
            column[slot] = 0.0 if info is None else demand(info)
        self._amount[name] = column
        self._sums.pop(name, None)

    def unregister(self, prefix: str) -> None:
        """Count the demands whose names begin so no more."""
        for name in [each for each in self._demands if each.startswith(prefix)]:
            del self._demands[name], self._amount[name]
            self._sums.pop(name, None)

    def add(self, info: PodInfo, *, row: int, at: float) -> None:
        """A pod was assigned to the node in this row at this time (unix seconds)."""
        self.remove(info.key)
        slot = self._free.pop() if self._free else self._new_slot()
        self._slot[info.key], self._key[slot], self._info[slot] = slot, info.key, info
        self._row[slot], self._at[slot] = row, at
        for name, demand in self._demands.items():
            self._amount[name][slot] = demand(info)
        self._count(slot, 1)

    def remove(self, key: str) -> None:
        """Forget a pod, if it is here."""
        slot = self._slot.pop(key, None)
        if slot is None:
            return
        self._count(slot, -1)
        self._key[slot] = self._info[slot] = None
        self._row[slot], self._at[slot] = -1, -np.inf
        for column in self._amount.values():
            column[slot] = 0.0
        self._free.append(slot)

    def prune(self, *, now: float, measured: float) -> None:
        """Forget those that are older than five minutes and were there when the oldest measurement (`measured`, unix
        seconds) was taken."""
        old = (self._row >= 0) & (self._at <= min(now - KEPT_S, measured - MEASURED_AFTER_S))
        for slot in np.flatnonzero(old).tolist():
            key = self._key[slot]
            if key is not None:
                self.remove(key)

    def unmeasured(self, name: str, *, measured: F64) -> F64:
        """What the pods that the measurements do not contain will add to each node; [rows], not to be written to.

        `measured` [rows] is when each node was measured (unix seconds, NaN: never, then nothing is missing from it). It
        must not change: asked about the same array again, the sums that events keep up are the answer.
        """
        kept = self._sums.get(name)
        if kept is None or kept[0] is not measured:
            kept = self._sums[name] = measured, self._summed(name, measured)
        return kept[1]

    def _summed(self, name: str, measured: F64) -> F64:
        used = self._row >= 0
        row, at = self._row[used], self._at[used]
        counts = at > measured[row] - MEASURED_AFTER_S
        weights = self._amount[name][used][counts]
        return np.bincount(row[counts], weights=weights, minlength=len(measured)).astype(np.float64)

    def _count(self, slot: int, times: int) -> None:
        """Keep the sums up, with what the slot has."""
        row, at = int(self._row[slot]), float(self._at[slot])
        for name, (measured, sums) in self._sums.items():
            if row < len(measured) and at > measured[row] - MEASURED_AFTER_S:
                sums[row] += times * self._amount[name][slot]

    def of(self, row: int) -> list[tuple[str, Pod, float]]:
        """The pods of a node with their times, oldest first."""
        slots = np.flatnonzero(self._row == row).tolist()
        found = [(info.key, info.pod, float(self._at[slot])) for slot in slots if (info := self._info[slot])]
        return sorted(found, key=lambda each: (each[2], each[0]))

    def _new_slot(self) -> int:
        slot = len(self._key)
        self._key.append(None)
        self._info.append(None)
        if slot >= len(self._row):
            more = len(self._row)
            self._row = np.concatenate([self._row, np.full(more, -1, dtype=np.int64)])
            self._at = np.concatenate([self._at, np.full(more, -np.inf)])
            self._amount = {name: np.concatenate([column, np.zeros(more)]) for name, column in self._amount.items()}
        return slot
