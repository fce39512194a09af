"""The load of all nodes as columns, in the order of the rows of the cluster table."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from scorers.cluster.columns import raised
from scorers.cluster.forecasts import RowForecasts, why_missing
from watcher.arrays import F64, I64
from watcher.client import Columns, NodeForecasts
from watcher.model import MetricType, Operator

NOT_USED = RowForecasts(None, "", "", np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


@dataclass(slots=True)
class NodeLoadColumns:
    """Load of all rows by metric type and operator, from one copy of the watcher's columns."""

    columns: Columns | None = None
    where: I64 = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # row -> column of the copy, -1: none
    silent: F64 = field(default_factory=lambda: np.empty(0))
    """Time of the last sample (unix seconds) of each row without load whose node had samples before; NaN for all other
    rows [rows]."""
    _aligned: dict[tuple[str, str], F64] = field(default_factory=dict)
    _missing: dict[str, str] = field(default_factory=dict)
    _fixed_where: I64 = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    def values(self, kind: MetricType, operator: Operator) -> F64:
        """Return a metric in percent [rows], NaN if unknown."""
        key = (kind.value, operator.value)
        if key not in self._aligned:
            found = np.empty(0) if self.columns is None else self.columns.of_type(kind, operator)
            self._aligned[key] = self._align(found)
        return self._aligned[key]

    def average(self, kind: MetricType) -> F64:
        """Return AVG, or Latest if there is no AVG, as the plug-ins' load; percent [rows]."""
        key = (kind.value, "")
        if key not in self._aligned:
            average = self.values(kind, Operator.AVG)
            self._aligned[key] = np.where(np.isnan(average), self.values(kind, Operator.LATEST), average)
        return self._aligned[key]

    def bound(self, kind: MetricType, horizon: str) -> F64:
        """Return the upper bound of the load over the next `horizon`, NaN without one; percent [rows]."""
        forecasts = self._forecasts
        known = forecasts is not None and forecasts.horizon == horizon
        found = forecasts.bounds.get(kind.value, np.empty(0)) if forecasts is not None and known else np.empty(0)
        return self._aligned_values((kind.value, f"bound {horizon}"), found)

    def expected(self, kind: MetricType, horizon: str) -> F64:
        """Return the average, or the bound over `horizon` where that is higher; the average if `horizon` is "". Unknown
        loads stay NaN; percent [rows]."""
        if not horizon:
            return self.average(kind)
        key = (kind.value, f"expected {horizon}")
        if key not in self._aligned:
            self._aligned[key] = raised(self.average(kind), self.bound(kind, horizon))
        return self._aligned[key]

    def usage(self, kind: MetricType) -> F64:
        """Return koordlet's mean over each node's aggregation period, or the average if the copy has no usages; percent
        [rows]."""
        usages = None if self.columns is None else self.columns.usages
        if usages is None:
            return self.average(kind)
        return self._aligned_values((kind.value, "usage"), usages.usage.get(kind.value, np.empty(0)))

    def aggregated(self, kind: MetricType, of: str, seconds: int) -> F64:
        """Return koordlet's percentile or mean ("p95", "avg") over a period in seconds, NaN if unknown; percent
        [rows]."""
        usages = None if self.columns is None else self.columns.usages
        found = None if usages is None else usages.aggregated.get((kind.value, of, seconds))
        return self._aligned_values((kind.value, f"{of} {seconds}"), np.empty(0) if found is None else found)

    def report_interval(self) -> F64:
        """Return the report interval of each node in seconds, NaN if unknown [rows]."""
        usages = None if self.columns is None else self.columns.usages
        return self._aligned_values(("report interval", ""), np.empty(0) if usages is None else usages.interval)

    def _aligned_values(self, key: tuple[str, str], found: F64) -> F64:
        if key not in self._aligned:
            self._aligned[key] = self._align(found)
        return self._aligned[key]

    def share(self, kind: MetricType, operator: Operator | None = None) -> F64:
        """Return the average, or the operator's value, as a share of the node's capacity, 0 to 1 [rows]."""
        key = (kind.value, f"share {operator.value if operator else ''}")
        if key not in self._aligned:
            percent = self.average(kind) if operator is None else self.values(kind, operator)
            self._aligned[key] = np.clip(percent, 0.0, 100.0) / 100.0
        return self._aligned[key]

    def sampled(self) -> F64:
        """Return the time of each node's newest sample (unix seconds), NaN if there is none [rows]."""
        key = ("sampled", "")
        if key not in self._aligned:
            times = [] if self.columns is None else list(self.columns.sampled.values())
            newest = np.full(len(times[0]), np.nan) if times else np.empty(0)
            for each in times:
                newest = np.fmax(newest, each)
            self._aligned[key] = self._align(newest)
        return self._aligned[key]

    def forecast(self, horizon: str, rows: I64) -> RowForecasts:
        """Return the forecasts of these rows for explanations; not used without a horizon, and without load."""
        if not horizon or self.columns is None:
            return NOT_USED
        missing = self.missing_forecasts(horizon)
        return RowForecasts(self._forecasts, horizon, missing, self._fixed_where, rows)

    def missing_forecasts(self, horizon: str) -> str:
        """Return why no node has a bound over `horizon`, "" if one has, and without load."""
        if self.columns is None:
            return ""
        if horizon not in self._missing:
            self._fixed_where = self.where.copy()  # the table changes it in place before it makes other NodeLoadColumns
            self._missing[horizon] = why_missing(self._forecasts, horizon, self._fixed_where)
        return self._missing[horizon]

    @property
    def _forecasts(self) -> NodeForecasts | None:
        return None if self.columns is None else self.columns.forecasts

    def _align(self, found: F64) -> F64:
        padded = np.append(found, np.nan)
        return (
            padded[np.where(self.where < 0, len(found), self.where)] if len(found) else np.full(len(self.where), np.nan)
        )
