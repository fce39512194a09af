"""The load of the whole fleet over time: means of the stored windows of all nodes, weighted by their capacity.

Only windows that are not in the trend yet are added, so a trend that is updated at every tick reads few of them.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec
import numpy as np

from watcher.arrays import F32, F64, I64
from watcher.core.koordinator.report import Capacity
from watcher.core.publishing.documents import to_wire
from watcher.core.publishing.wire import UnixSeconds
from watcher.model import METRIC_BY_KEY, Operator

TREND_S = 86_400
"""Length of the trend in seconds."""
SHORTEST_STEP_S = 300
HOUR_S = 3600
_COLUMNS = tuple((METRIC_BY_KEY[key].name, Operator.AVG) for key in ("CPU", "Memory"))


class TrendDocument(msgspec.Struct, frozen=True):
    """Body of GET /api/v1/trend: one mean of `window` over all nodes per `step` seconds, at the `time` of the value;
    `cpu` and `memory` in percent, null where no node has the metric. `nodes` counts the nodes of each mean. `weighted`:
    the nodes count by their capacity, otherwise equally because no capacity is known. `reason` says why there are no
    means, "" if there are some."""

    start: UnixSeconds
    end: UnixSeconds
    step: int
    window: str
    weighted: bool
    reason: str
    time: list[int]
    nodes: list[int]
    cpu: list[float | None]
    memory: list[float | None]


class WindowGrid(Protocol):
    """Stored minutes of one window: `times` [t] in unix seconds, `values` [t, columns, names], NaN where unknown."""

    @property
    def times(self) -> I64: ...
    @property
    def columns(self) -> tuple[tuple[str, Operator], ...]: ...
    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def values(self) -> F32: ...


class FleetMean(NamedTuple):
    """The mean load of `nodes` nodes at `time` (unix seconds), NaN where unknown."""

    time: int
    nodes: int
    cpu: float
    memory: float


class CapacityWeights:
    """Weights of nodes by capacity. A node without known capacity has the mean weight; without any known capacity, all
    nodes have the same weight."""

    def __init__(self, capacities: Mapping[str, Capacity]) -> None:
        self.known = bool(capacities)
        self._capacities = capacities
        every = np.array([*capacities.values()], dtype=np.float64).reshape(-1, 2)
        self._other = every.mean(axis=0) if len(every) else np.ones(2)
        self._of: dict[tuple[str, ...], F64] = {}  # the hours of a day have the same chunks of nodes

    def of(self, names: tuple[str, ...]) -> F64:
        """The weights [2, n] for CPU and memory."""
        if names not in self._of:
            rows = [self._capacities.get(name, self._other) for name in names]
            self._of[names] = np.array(rows, dtype=np.float64).reshape(-1, 2).T
        return self._of[names]


@dataclass(slots=True)
class _FleetSums:
    """Sums over nodes by time: weighted `values` and their `weights` [t, 2], and the number of `nodes` [t]."""

    times: I64
    values: F64
    weights: F64
    nodes: I64


class FleetTrend:
    """The means of one window, at most one per step; `version` changes with them."""

    def __init__(self, window: str, *, seconds: int) -> None:
        self.window = window
        self.step = max(SHORTEST_STEP_S, seconds)
        self.version = 0
        self._means: dict[int, FleetMean] = {}  # number of the step -> its last mean
        self._hours: set[tuple[str, int]] = set()

    def copy(self) -> FleetTrend:
        """A trend with the same means, which can change independently."""
        made = FleetTrend(self.window, seconds=self.step)
        made.version, made._means, made._hours = self.version, dict(self._means), set(self._hours)
        return made

    def lacking_hours(self, watcher: str, hours: Iterable[int], *, start: int, end: int) -> list[int]:
        """The hours (unix seconds of their begin) of a watcher with steps between `start` and `end` without a mean."""
        return [
            hour
            for hour in hours
            if (watcher, hour) not in self._hours
            and any(
                at // self.step not in self._means
                for at in range(max(hour, start), min(hour + HOUR_S, end + 1), self.step)
            )
        ]

    def lacking_minutes(self, times: Sequence[int], *, again: bool) -> list[int]:
        """The last of these times (unix seconds) of each step without a mean; with `again`, also of steps whose mean is
        older."""
        last: dict[int, int] = {}
        for time in times:
            last[time // self.step] = max(time, last.get(time // self.step, time))
        known = self._means
        return [time for step, time in last.items() if step not in known or (again and known[step].time < time)]

    def add(self, grids: Iterable[WindowGrid], weights: CapacityWeights) -> None:
        """Add the means over the nodes of all grids together; the last mean of a step counts."""
        sums: _FleetSums | None = None
        for grid in grids:
            found = _sums(grid, weights)
            if sums is None or not np.array_equal(sums.times, found.times):
                self._take(sums)
                sums = found
            else:
                sums.values += found.values
                sums.weights += found.weights
                sums.nodes += found.nodes
        self._take(sums)

    def add_hour(self, watcher: str, hour: int, grids: Iterable[WindowGrid], weights: CapacityWeights) -> None:
        """Add an hour, which is not lacking any more even if it has gaps."""
        self.add(grids, weights)
        self._hours.add((watcher, hour))

    def forget(self, *, before: int) -> None:
        """Remove the means of steps that end before a time (unix seconds)."""
        for step in [step for step in self._means if (step + 1) * self.step <= before]:
            del self._means[step]
        self._hours = {(watcher, hour) for watcher, hour in self._hours if hour + HOUR_S > before}

    def document(self, *, start: int, end: int, weighted: bool, reason: str) -> TrendDocument:
        """The means between two times in unix seconds; `reason` says why there may be none."""
        means = [each for _, each in sorted(self._means.items()) if start <= each.time <= end]
        return TrendDocument(
            start=start,
            end=end,
            step=self.step,
            window=self.window,
            weighted=weighted,
            reason="" if means else reason,
            time=[each.time for each in means],
            nodes=[each.nodes for each in means],
            cpu=_rounded([each.cpu for each in means]),
            memory=_rounded([each.memory for each in means]),
        )

    def _take(self, sums: _FleetSums | None) -> None:
        if sums is None:
            return
        with np.errstate(invalid="ignore"):
            means = sums.values / sums.weights
        for row, time in enumerate(sums.times.tolist()):
            before = self._means.get(time // self.step)
            if sums.nodes[row] and (before is None or before.time < time):
                self._means[time // self.step] = FleetMean(
                    time, int(sums.nodes[row]), float(means[row, 0]), float(means[row, 1])
                )
                self.version += 1


def _sums(grid: WindowGrid, weights: CapacityWeights) -> _FleetSums:
    weighted, total = np.zeros((len(grid.times), 2)), np.zeros((len(grid.times), 2))
    any_known = np.zeros((len(grid.times), len(grid.names)), dtype=bool)
    for row, column in enumerate(_COLUMNS):
        if column in grid.columns:
            values, weight = grid.values[:, grid.columns.index(column)], weights.of(grid.names)[row]
            known = ~np.isnan(values)
            any_known |= known
            weighted[:, row] = np.where(known, values, 0.0) @ weight
            total[:, row] = known @ weight
    return _FleetSums(grid.times, weighted, total, any_known.sum(axis=1))


def _rounded(values: Sequence[float]) -> list[float | None]:
    rounded = np.round(to_wire(np.array(values, dtype=np.float64)), 3)
    return [None if np.isnan(value) else value for value in rounded.tolist()]
