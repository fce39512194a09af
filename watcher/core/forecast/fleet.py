"""The bounds of all nodes: their hourly calculation in chunks, and the table that is served.

A calibration is not stored: after a start, after a gap that was filled, and after a rename, it goes through the history
again, as if its bounds had been issued then. A new calibration has less than the whole history before each hour, so it
judges fewer bounds.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from watcher.arrays import F64, I64, U8, Bool
from watcher.core.forecast.bound import Calibration, least_history
from watcher.core.forecast.history import CHUNK_COLUMNS, MaximaHistory
from watcher.core.forecast.maxima import HOUR_SLOTS, SLOT_S, decode, span_maxima
from watcher.core.forecast.settings import ForecastSettings
from watcher.core.forecast.states import STATES, ForecastState
from watcher.model import METRIC_BY_KEY

Number = TypeVar("Number", bound=Any)
METRICS = tuple(METRIC_BY_KEY[key].name for key in ("CPU", "Memory"))
LATE_S = 150.0
"""Seconds after the end of an hour until its bounds are computed: late samples belong to it."""


@dataclass(frozen=True, slots=True)
class NodeBounds:
    """The bounds of one metric and horizon for the nodes of a table; each [n]. `bound` in percent: the issued bound, or
    the highest load since it was issued if that is higher; NaN without a bound. `issued` in unix seconds, 0 without
    one. `judged` is the number of bounds of the last week with a known outcome, `coverage` the share of these that
    held and `severity` their mean excess; NaN without any. `states` are codes of STATES."""

    states: U8
    bound: F64
    issued: I64
    judged: I64
    coverage: F64
    severity: F64


@dataclass(frozen=True, slots=True)
class ForecastTable:
    """The forecasts of all nodes at `timestamp` (unix seconds); immutable. `nodes` are sorted; `columns` are by metric
    name and horizon in hours; `known_s` [n] by metric name are the seconds of history that have samples, as of the
    newest bounds."""

    config: ForecastSettings
    timestamp: int
    nodes: tuple[str, ...]
    known_s: Mapping[str, I64]
    columns: Mapping[tuple[str, int], NodeBounds]

    def equals(self, other: ForecastTable) -> bool:
        """Whether both have the same content, apart from the timestamp."""
        return (
            self.nodes == other.nodes
            and self.config == other.config
            and all(np.array_equal(known, other.known_s[name]) for name, known in self.known_s.items())
            and all(_same(column, other.columns[key]) for key, column in self.columns.items())
        )

    def places(self, nodes: Sequence[str]) -> I64:
        """Return the rows of nodes, -1 for nodes that are not in the table."""
        row = {name: place for place, name in enumerate(self.nodes)}
        return np.array([row.get(name, -1) for name in nodes], dtype=np.int64)

    def bounds(self, metric: str, horizon: int, places: I64) -> F64:
        """Return the bounds in percent in the rows `places`; NaN for -1, and for nodes without a bound."""
        return self._values(self.columns[metric, horizon].bound, places)

    def coverage(self, metric: str, horizon: int, places: I64) -> F64:
        """Return the shares of bounds that held, like `bounds`; NaN where none was judged."""
        return self._values(self.columns[metric, horizon].coverage, places)

    def _values(self, column: F64, places: I64) -> F64:
        return np.where(places >= 0, column[places], np.nan) if self.nodes else np.full(len(places), np.nan)


def _same(one: NodeBounds, other: NodeBounds) -> bool:
    return (
        np.array_equal(one.states, other.states)
        and np.array_equal(one.bound, other.bound, equal_nan=True)
        and np.array_equal(one.issued, other.issued)
        and np.array_equal(one.judged, other.judged)
        and np.array_equal(one.coverage, other.coverage, equal_nan=True)
        and np.array_equal(one.severity, other.severity, equal_nan=True)
    )


class ChunkBounds:
    """The calibration of one chunk for one metric and horizon, and the record of its bounds."""

    def __init__(self, config: ForecastSettings, horizon: int) -> None:
        self.calibration = Calibration(CHUNK_COLUMNS, horizon=horizon, level=config.level, history=config.slots)
        self.judged: I64 = np.zeros(CHUNK_COLUMNS, dtype=np.int64)
        self.coverage: F64 = np.full(CHUNK_COLUMNS, np.nan)
        self.severity: F64 = np.full(CHUNK_COLUMNS, np.nan)

    def advance(self, maxima: U8, hour: int) -> None:
        spans = span_maxima(maxima, self.calibration.horizon * HOUR_SLOTS)
        if len(spans):
            self.calibration.advance(spans, hour)
            record = self.calibration.record(spans)
            self.judged, self.coverage, self.severity = record.count, record.coverage, record.severity

    def clear(self, column: int) -> None:
        """Forget a node: its column is free."""
        self.calibration.forget(column)
        self.judged[column] = 0
        self.coverage[column] = self.severity[column] = np.nan


@dataclass(frozen=True, slots=True)
class Extent:
    """How much history the nodes of a chunk have, in slots: `known` [250] have a sample, and `age` [250] began since
    the first of these."""

    known: I64
    age: I64


NO_EXTENT = Extent(np.zeros(CHUNK_COLUMNS, dtype=np.int64), np.zeros(CHUNK_COLUMNS, dtype=np.int64))


def _extent_of(maxima: U8, *, stop: int) -> Extent:
    """Return the extent of [rows, 250] maxima at row `stop`."""
    known = maxima > 0
    age = np.where(known.any(axis=0), np.maximum(stop - known.argmax(axis=0), 0), 0)
    return Extent(np.count_nonzero(known, axis=0).astype(np.int64), age.astype(np.int64))


class FleetForecast:
    """The maxima of a fleet and the calibrations of its chunks."""

    def __init__(self, config: ForecastSettings) -> None:
        self.config = config
        self.maxima = MaximaHistory(config.slots)
        self.bounds: list[dict[tuple[str, int], ChunkBounds]] = []
        self._hours: list[int] = []  # of each chunk: the hour of its newest bounds; -1: it has none
        self._extent: list[dict[str, Extent]] = []  # of each chunk, by metric

    # --- bounds ------------------------------------------------------------------------------------------------------

    def due_chunks(self, now: float) -> list[int]:
        """Return the chunks whose bounds of this hour are not computed yet, new ones first."""
        hour = _newest_hour(now)
        self._reserve()
        due = [number for number, done in enumerate(self._hours) if done < hour]
        return sorted(due, key=lambda number: (self._hours[number], number))

    def is_new(self, chunk: int) -> bool:
        """Whether a chunk has no calibration: computing it takes about ten times as long as an hourly step."""
        return self._hours[chunk] < 0

    def advance(self, chunk: int, now: float) -> None:
        """Compute the bounds of a chunk for the newest hour that has ended at `now` (unix seconds)."""
        hour = _newest_hour(now)
        stop = hour * HOUR_SLOTS
        end = stop if self.maxima.head is None else max(stop, self.maxima.head + 1)
        for metric in METRICS:
            known = self.maxima.rows(chunk, metric, first=end - self.maxima.slots, stop=end)
            self._extent[chunk][metric] = _extent_of(known, stop=len(known) - (end - stop))
            maxima = self.maxima.rows(chunk, metric, first=stop - self.maxima.slots, stop=stop)
            for horizon in self.config.horizons:
                self.bounds[chunk][metric, horizon].advance(maxima, hour)
        self._hours[chunk] = hour

    def restart(self, columns: Sequence[int] | None = None) -> None:
        """Have the calibrations of the chunks with these columns, or of all chunks, go through the history again."""
        self._reserve()
        chunks = range(len(self._hours)) if columns is None else {column // CHUNK_COLUMNS for column in columns}
        for chunk in chunks:
            self._hours[chunk] = -1
            self.bounds[chunk] = self._new_bounds()

    def _reserve(self) -> None:
        while len(self._hours) < len(self.maxima.chunks):
            self._hours.append(-1)
            self.bounds.append(self._new_bounds())
            self._extent.append(dict.fromkeys(METRICS, NO_EXTENT))

    def _new_bounds(self) -> dict[tuple[str, int], ChunkBounds]:
        return {
            (metric, horizon): ChunkBounds(self.config, horizon)
            for metric in METRICS
            for horizon in self.config.horizons
        }

    # --- changes of nodes, sources and clocks ------------------------------------------------------------------------

    def rename(self, metric: str, names: Mapping[str, str | None]) -> None:
        """Move the maxima of one metric to other nodes (MaximaHistory.rename)."""
        if names and (changed := self.maxima.rename(metric, names)):
            self.restart(changed)

    def drop(self, metric: str) -> None:
        """Remove the maxima and bounds of one metric: its source changed."""
        self.maxima.drop(metric)
        for extent in self._extent:
            extent[metric] = NO_EXTENT
        for bounds in self.bounds:
            for horizon in self.config.horizons:
                bounds[metric, horizon] = ChunkBounds(self.config, horizon)

    def step_back(self, now: float) -> None:
        """Remove what lies after `now` (unix seconds): the clock was set back."""
        self.maxima.step_back(int(now // SLOT_S))
        if any(hour > _newest_hour(now) for hour in self._hours):
            self.restart()

    def drop_empty_nodes(self) -> None:
        """Forget the nodes without a maximum in the history."""
        for column in self.maxima.drop_empty_nodes():
            for bounds in self.bounds[column // CHUNK_COLUMNS].values():
                bounds.clear(column % CHUNK_COLUMNS)

    # --- the table ---------------------------------------------------------------------------------------------------

    def table(self, now: float) -> ForecastTable:
        """Return the forecasts of all nodes at `now` (unix seconds)."""
        self._reserve()
        nodes = tuple(sorted(self.maxima.nodes))
        order = self.maxima.columns_of(nodes)
        columns: dict[tuple[str, int], NodeBounds] = {}
        known: dict[str, I64] = {}
        for metric in METRICS:
            since = _joined([self._since(number, metric) for number in range(len(self.bounds))], order)
            known[metric] = _joined([each[metric].known for each in self._extent], order) * SLOT_S
            for horizon in self.config.horizons:
                columns[metric, horizon] = self._column(metric, horizon, order, since=since, now=now)
        return ForecastTable(self.config, int(now), nodes, known, columns)

    def _issued(self, order: I64) -> I64:
        """Return the hour of the newest bounds of the nodes in `order`, -1 for nodes whose chunk has none."""
        hours: I64 = np.array(self._hours, dtype=np.int64)[order // CHUNK_COLUMNS] if len(order) else order
        return hours

    def _column(self, metric: str, horizon: int, order: I64, *, since: U8, now: float) -> NodeBounds:
        bounds = [each[metric, horizon] for each in self.bounds]
        issued = self._issued(order)
        codes = _joined([each.calibration.bound() for each in bounds], order)
        expired = (codes > 0) & (now >= (issued + horizon + 1) * 3600 + LATE_S)
        codes = np.where(expired, 0, codes).astype(np.uint8)
        served = np.where(codes > 0, np.maximum(codes, since), 0).astype(np.uint8)
        known = (since > 0) | (_joined([each[metric].known for each in self._extent], order) > 0)
        young = _joined([each[metric].age for each in self._extent], order) < least_history(horizon)
        return NodeBounds(
            states=_states(bound=codes > 0, pending=issued < 0, expired=expired, known=known, young=young),
            bound=np.ceil(decode(served) * 100.0 - 1e-6) / 100.0,  # rounded up: a bound is not rounded below a load
            issued=np.where(codes > 0, issued * 3600, 0),
            judged=_joined([each.judged for each in bounds], order),
            coverage=_joined([each.coverage for each in bounds], order),
            severity=_joined([each.severity for each in bounds], order),
        )

    def _since(self, chunk: int, metric: str) -> U8:
        """Return the maximum of each node of a chunk since its bounds were issued."""
        first = self._hours[chunk] * HOUR_SLOTS
        if self._hours[chunk] < 0 or self.maxima.head is None or first > self.maxima.head:
            return np.zeros(CHUNK_COLUMNS, dtype=np.uint8)
        highest: U8 = self.maxima.rows(chunk, metric, first=first, stop=self.maxima.head + 1).max(axis=0)
        return highest


def _states(*, bound: Bool, pending: Bool, expired: Bool, known: Bool, young: Bool) -> U8:
    """Return the codes of the states of nodes: the first of these that applies, each [n]."""
    cases = (
        (bound, ForecastState.BOUND),
        (pending, ForecastState.PENDING),
        (expired, ForecastState.EXPIRED),
        (~known, ForecastState.NO_SAMPLES),
        (young, ForecastState.SHORT_HISTORY),
    )
    codes = np.select(
        [each for each, _ in cases], [STATES.index(state) for _, state in cases], STATES.index(ForecastState.GAPS)
    )
    return codes.astype(np.uint8)


def _newest_hour(now: float) -> int:
    """The hour that began last, at least LATE_S seconds ago; its bounds use the slots before it."""
    return int((now - LATE_S) // 3600)


def _joined(parts: Sequence[NDArray[Number]], order: I64) -> NDArray[Number]:
    """Return the values of the columns in `order` from arrays of all chunks; `order` is empty without chunks."""
    return np.concatenate(parts)[order] if parts else np.empty(0, dtype=np.float64)
