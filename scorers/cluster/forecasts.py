"""The forecasts of the nodes in a request, as explanations state them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from watcher.arrays import I64
from watcher.client import NodeForecasts
from watcher.core.forecast.document import ForecastState
from watcher.model import MetricType

NO_FORECASTS = "the watcher serves no forecasts"
DISABLED = "forecasts are disabled in the watcher"
REASONS: Mapping[str, str] = {
    ForecastState.SHORT_HISTORY: "less than a day of history",
    ForecastState.NO_SAMPLES: "no samples in the history",
    ForecastState.PENDING: "the history is not evaluated yet",
}


@dataclass(frozen=True, slots=True)
class RowForecasts:
    """The forecasts over `horizon` ("": not used) of n nodes: `where` [n] are their columns in `forecasts`, -1: none.
    `forecasts` are None if the watcher serves none."""

    forecasts: NodeForecasts | None
    horizon: str
    where: I64

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

    def missing(self, kinds: Sequence[MetricType]) -> str:
        """Return why no node has a bound of these metrics, "" if one has."""
        if not self.horizon or any(self._has_bounds(kind) for kind in kinds):
            return ""
        if (reason := self._whole()) or self.forecasts is None:
            return reason
        states = {self.forecasts.states[kind][place] for kind in kinds for place in self.where if place >= 0}
        return " or ".join(_reason(each) for each in sorted(states)) or "no node has load data"

    def _has_bounds(self, kind: MetricType) -> bool:
        forecasts = self.forecasts
        if forecasts is None or forecasts.horizon != self.horizon or kind not in forecasts.bounds:
            return False
        return bool((~np.isnan(forecasts.bounds[kind][self.where[self.where >= 0]])).any())

    def _whole(self) -> str:
        """Return why there are no forecasts of any node, "" if there are."""
        if self.forecasts is None:
            return NO_FORECASTS
        if not self.forecasts.level:
            return DISABLED
        hours = hours_text(self.horizon)
        return "" if self.forecasts.horizon == self.horizon else f"the watcher serves no forecasts over {hours}"

    def _of_metric(self, i: int, kind: MetricType) -> str:
        why = self._whole()
        forecasts, place = self.forecasts, int(self.where[i])
        if forecasts is not None and not why:
            if place < 0 or kind not in forecasts.bounds:
                why = "no load data of this node"
            elif math.isnan(bound := float(forecasts.bounds[kind][place])):
                why = _reason(forecasts.states[kind][place])
            else:
                coverage = float(forecasts.coverage[kind][place])
                record = "not judged yet" if math.isnan(coverage) else f"coverage {100 * coverage:.1f} %"
                level = f"level {100 * forecasts.level:g} %"
                return f"at most {math.ceil(bound - 1e-9)} % within {hours_text(self.horizon)} ({level}; {record})"
        return f"none ({why}), so the window is used"


def _reason(state: str) -> str:
    return REASONS.get(state, state)


def hours_text(horizon: str) -> str:
    """Return "6 h" for "6h"."""
    return f"{horizon[:-1]} {horizon[-1:]}"
