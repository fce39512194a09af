"""Pods that were assigned to a node recently, so that no measurement includes their load yet.

A measurement of a node at time t averages over a period before t. Therefore the demand of a pod that was assigned
shortly before t, or later, is added to the measurement: by default if it was assigned after t - 60 s (the rule of
upstream Trimaran). A pod stays here for at least five minutes, and longer while measurements lag behind or a demand
counts longer. Upstream uses the time at which it learned of a pod, so all pods are recent after a restart; here it is
the time at which the pod was scheduled.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from scorers.cluster.pods import PodInfo
from watcher.arrays import F64, I64
from watcher.core.kubernetes.objects import Pod

UPSTREAM_S = 60.0
KEPT_S = 300.0

Demand = Callable[["PodInfo"], float]


@dataclass(frozen=True, slots=True)
class UnmeasuredShare:
    """The share of a new pod's load that a measurement does not include, by the age of the pod at the measurement: 1
    below `seconds`, then 0. `gradual`: it falls evenly from 1 to 0 within `seconds`."""

    seconds: float = UPSTREAM_S
    gradual: bool = False

    def of(self, amount: F64, age: F64) -> F64:
        """Return the unmeasured part of each amount [n], in whole units, for pods of these ages in seconds [n]."""
        if not self.gradual:
            return np.where(age < self.seconds, amount, 0.0)
        return np.rint(amount * np.clip(1.0 - age / self.seconds, 0.0, 1.0))


DEFAULT_SHARE = UnmeasuredShare()


class RecentPods:
    """Assigned pods by key, each with its node's row and, for each registered demand, its expected load."""

    def __init__(self) -> None:
        self._slot: dict[str, int] = {}
        self._key: list[str | None] = []
        self._info: list[PodInfo | None] = []
        self._free: list[int] = []
        self._row: I64 = np.full(16, -1, dtype=np.int64)
        self._at: F64 = np.full(16, -np.inf)
        self._demands: dict[str, tuple[Demand, UnmeasuredShare]] = {}
        self._amount: dict[str, F64] = {}
        self._sums: dict[str, tuple[F64, F64]] = {}  # by demand: measurement times, unmeasured sums

    def __len__(self) -> int:
        return len(self._slot)

    def register(self, name: str, demand: Demand, share: UnmeasuredShare = DEFAULT_SHARE) -> None:
        """Add a demand function that is evaluated for current and future pods. Registering a name again replaces its
        demand. Pods that were removed before a demand with a longer time is registered do not count for it."""
        self._demands[name] = demand, share
        column = np.zeros(len(self._row))
        for slot, info in enumerate(self._info):
            column[slot] = 0.0 if info is None else demand(info)
        self._amount[name] = column
        self._sums.pop(name, None)

    def unregister(self, prefix: str) -> None:
        """Remove all demands whose names start with `prefix`."""
        for name in [each for each in self._demands if each.startswith(prefix)]:
            del self._demands[name], self._amount[name]
            self._sums.pop(name, None)

    def add(self, info: PodInfo, *, row: int, at: float) -> None:
        """Add a pod that was assigned to the node in this row at this time (unix seconds)."""
        self.remove(info.key)
        slot = self._free.pop() if self._free else self._new_slot()
        self._slot[info.key], self._key[slot], self._info[slot] = slot, info.key, info
        self._row[slot], self._at[slot] = row, at
        for name, (demand, _) in self._demands.items():
            self._amount[name][slot] = demand(info)
        self._count(slot, 1)

    def remove(self, key: str) -> None:
        """Remove a pod; unknown keys are ignored."""
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
        """Remove pods that are older than five minutes and were assigned early enough to be in the oldest measurement
        (`measured`, unix seconds) for every demand."""
        longest = max((share.seconds for _, share in self._demands.values()), default=0.0)
        old = (self._row >= 0) & (self._at <= min(now - KEPT_S, measured - longest))
        for slot in np.flatnonzero(old).tolist():
            key = self._key[slot]
            if key is not None:
                self.remove(key)

    def unmeasured(self, name: str, *, measured: F64) -> F64:
        """Return, per node, the demand of its pods that its measurement does not include; read-only [rows].

        `measured` [rows] is each node's measurement time (unix seconds; NaN, never measured: the demand is 0). The
        array must not change: a later call with the same array returns the incrementally updated sums.
        """
        kept = self._sums.get(name)
        if kept is None or kept[0] is not measured:
            kept = self._sums[name] = measured, self._summed(name, measured)
        return kept[1]

    def _summed(self, name: str, measured: F64) -> F64:
        used = self._row >= 0
        row, share = self._row[used], self._demands[name][1]
        known = ~np.isnan(measured[row])
        row, age = row[known], measured[row[known]] - self._at[used][known]
        weights = share.of(self._amount[name][used][known], age)
        return np.bincount(row, weights=weights, minlength=len(measured)).astype(np.float64)

    def _count(self, slot: int, times: int) -> None:
        """Add the pod in this slot to the cached sums, or subtract it (`times` -1)."""
        row, at = int(self._row[slot]), float(self._at[slot])
        for name, (measured, sums) in self._sums.items():
            if row < len(measured) and not np.isnan(measured[row]):
                share = self._demands[name][1]
                sums[row] += times * share.of(self._amount[name][slot : slot + 1], measured[row : row + 1] - at)[0]

    def of(self, row: int) -> list[tuple[str, Pod, float]]:
        """Return key, pod, and assignment time (unix seconds) of the pods on a node, oldest first."""
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
