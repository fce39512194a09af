"""The windows that decisions use: one sample per minute and node, processed by the watcher's own history, with a
realistic delay. The forecasts are those of a watcher that started with the trace: a node has none on the first day.

No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from lab.simulate.trace_columns import STEP_S
from watcher.arrays import F64, I64
from watcher.client import Columns, columns_of_snapshot
from watcher.client.arrays import seconds_of
from watcher.core.forecast.document import snapshot_forecasts
from watcher.core.forecast.fleet import FleetForecast
from watcher.core.forecast.settings import ForecastSettings
from watcher.core.koordinator.collect_policy import CollectPolicy
from watcher.core.koordinator.report import measure
from watcher.core.publishing.selection import Selection
from watcher.core.windows.history import History, name_order
from watcher.core.windows.snapshot import served
from watcher.model import METRIC_BY_KEY, Cells, MetricType, Operator, Provenance, Snapshot, SnapshotForecasts, Window

WINDOWS = (Window("5m", 300), Window("10m", 600), Window("15m", 900))
OPERATORS = (Operator.LATEST, Operator.AVG, Operator.STD)
KEYS = ("CPU", "Memory")
MAX_STALENESS_S = 300.0
SOURCE = "Simulation"


class SimulatedWindows:
    """The watcher's data on the nodes `names`. `measures` enables koordlet's usages in addition, `horizon` ("6h")
    forecasts."""

    def __init__(self, names: Sequence[str], *, measures: bool, horizon: str = "") -> None:
        self._names = tuple(names)
        self._measures = measures
        self._horizon = horizon
        hours = int(seconds_of(horizon)) // 3600
        self._forecast = FleetForecast(ForecastSettings(horizons=(hours,), horizon=hours)) if horizon else None
        self._history = History(resolution=int(STEP_S), windows=WINDOWS)
        self._provenance = Provenance(SOURCE, "a trace", "percent", 0.0)

    def sample(self, time: float, there: I64, cpu: F64, memory: F64) -> None:
        """Add samples in percent [n] of the nodes with the indices `there` [n], at `time` (unix seconds)."""
        slot = np.full(len(there), int(time // STEP_S), dtype=np.int64)
        for key, values in zip(KEYS, (cpu, memory), strict=True):
            cells = Cells(self._names, there, slot, np.full(len(there), time), values)
            self._history.append(METRIC_BY_KEY[key], cells)
            if self._forecast is not None:
                self._forecast.maxima.add(METRIC_BY_KEY[key].name, self._names, there, cells.time, values)

    def columns(self, now: float) -> Columns | None:
        """The columns published at `now` (unix seconds); None before the first sample."""
        if not self._history.names:
            return None
        snapshot = self._snapshot(now)
        if not snapshot.nodes:
            return None
        operators = (*OPERATORS, Operator.FORECAST) if self._horizon else OPERATORS
        selection = Selection(WINDOWS[-1], (MetricType.CPU, MetricType.MEMORY), operators, self._horizon)
        found = columns_of_snapshot(snapshot, selection, received=now, age_at_receipt=now - snapshot.end)
        if not self._measures:
            return found
        return replace(found, usages=measure(snapshot, policies=[CollectPolicy()] * len(snapshot.nodes)))

    def _snapshot(self, now: float) -> Snapshot:
        history = self._history
        order = name_order(history.names)
        metrics = [
            history.windows_of(metric, recent=history.recent(metric), provenance=self._provenance, order=order)
            for metric in history.metrics
        ]
        oldest = now - MAX_STALENESS_S
        sampled = np.fmax(*(windows.sampled for windows in metrics))
        rows = np.flatnonzero(sampled >= oldest)
        nodes = tuple(history.names[column] for column in order[rows].tolist())
        return Snapshot(
            timestamp=now,
            end=history.end,
            source=SOURCE,
            resolution=history.resolution,
            windows=WINDOWS,
            nodes=nodes,
            metrics=tuple(served(windows, rows=rows, oldest=oldest) for windows in metrics),
            sampled=sampled[rows],
            age_s=np.full(len(rows), np.nan),
            samples=partial(history.samples, end=history.end, nodes=nodes),
            forecasts=self._forecasts(nodes, now),
        )

    def _forecasts(self, nodes: Sequence[str], now: float) -> SnapshotForecasts | None:
        if self._forecast is None:
            return None
        for chunk in self._forecast.due_chunks(now):
            self._forecast.advance(chunk, now)
        return snapshot_forecasts(self._forecast.table(now), nodes)
