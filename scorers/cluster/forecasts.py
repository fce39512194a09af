"""The forecasts of the nodes in a request, as explanations state them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from watcher.arrays import I64
from watcher.client import NodeForecasts
from watcher.core.forecast.states import reason_of
from watcher.model import MetricType

NO_FORECASTS = "the watcher serves no forecasts"
DISABLED = "forecasts are disabled in the watcher"


@dataclass(frozen=True, slots=True)
class RowForecasts:
    """The forecasts over `horizon` ("": not used) of n nodes in the table's `rows` [n]. `where` [rows of the table] are
    the columns of all nodes in `forecasts`, -1: none; `forecasts` are None if the watcher serves none. `missing` says
    why no node of the table has a bound, "" if one has. All arrays are read on request only and do not change."""

    forecasts: NodeForecasts | None
    horizon: str
    missing: str
    where: I64
    rows: I64

    def inputs(self) -> dict[str, Any]:
        """Return the inputs of an explanation that name the forecasts in use, and why there are none."""
        if not self.horizon:
            return {}
        missing = {"forecasts": f"none: {self.missing}"} if self.missing else {}
        return {"use": "forecast", "horizon": self.horizon} | missing

    def steps(self, i: int, resources: Sequence[tuple[str, MetricType]]) -> dict[str, float]:
        """Return the bounds of node i as steps of an explanation, in percent; NaN without one."""
        if not self.horizon:
            return {}
        return {f"{resource} forecast %": self._bound(i, kind) for resource, kind in resources}

    def text(self, i: int, resources: Sequence[tuple[str, MetricType]]) -> str:
        """State the bounds of node i for each (resource, metric), or why there are none; "" without a horizon."""
        if not self.horizon:
            return ""
        said: dict[str, list[str]] = {}
        for resource, kind in resources:
            said.setdefault(self._of_metric(i, kind), []).append(resource)
        if len(said) == 1:
            return f"forecast: {next(iter(said))}"
        return "forecast: " + ", ".join(f"{' and '.join(names)} {text}" for text, names in said.items())

    def _bound(self, i: int, kind: MetricType) -> float:
        place = int(self.where[self.rows[i]])
        if place < 0 or self.forecasts is None or why_unserved(self.forecasts, self.horizon):
            return math.nan
        return float(self.forecasts.bounds[kind][place]) if kind in self.forecasts.bounds else math.nan

    def _of_metric(self, i: int, kind: MetricType) -> str:
        why = why_unserved(self.forecasts, self.horizon)
        forecasts, place = self.forecasts, int(self.where[self.rows[i]])
        if forecasts is not None and not why:
            if place < 0 or kind not in forecasts.bounds:
                why = "no load data of this node"
            elif math.isnan(bound := float(forecasts.bounds[kind][place])):
                why = reason_of(forecasts.states[kind][place], _hours(self.horizon))
            else:
                coverage = float(forecasts.coverage[kind][place])
                record = "not judged yet" if math.isnan(coverage) else f"coverage {100 * coverage:.1f} %"
                level = f"level {100 * forecasts.level:g} %"
                return f"at most {math.ceil(bound - 1e-9)} % within {hours_text(self.horizon)} ({level}; {record})"
        return f"none ({why}), so the window is used"


def why_unserved(forecasts: NodeForecasts | None, horizon: str) -> str:
    """Return why the watcher serves no forecasts over a horizon, "" if it does."""
    if forecasts is None:
        return NO_FORECASTS
    if not forecasts.level:
        return DISABLED
    return "" if forecasts.horizon == horizon else f"the watcher serves no forecasts over {hours_text(horizon)}"


def why_missing(forecasts: NodeForecasts | None, horizon: str, where: I64) -> str:
    """Return why none of the nodes at the columns `where` [n] of the forecasts (-1: no load) has a bound, "" if one
    has."""
    if (reason := why_unserved(forecasts, horizon)) or forecasts is None:
        return reason
    there = where[where >= 0]
    if any(not np.isnan(bounds[there]).all() for bounds in forecasts.bounds.values()):
        return ""
    states = {states[place] for states in forecasts.states.values() for place in there.tolist()}
    return " or ".join(reason_of(each, _hours(horizon)) for each in sorted(states)) or "no node has load data"


def _hours(horizon: str) -> int:
    return int(horizon.removesuffix("h"))


def hours_text(horizon: str) -> str:
    """Return "6 h" for "6h"."""
    return f"{horizon[:-1]} {horizon[-1:]}"
