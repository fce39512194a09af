"""HighLoadFilter: reject nodes whose load with the pod would exceed a threshold.

A node is rejected when

    measured + 100 * request / allocatable > threshold        percent; an equal value passes

for CPU, then for memory. If allocatable is 0 or less, a request counts as infinite. The measured value is AVG, or
Latest if there is no AVG; with `use: forecast`, it is the upper bound of the load over the next `horizon` if the node
has one that is higher. A measurement is stale when the node's newest sample is older than
`nodeMetricExpirationSeconds`. Resources with known load are checked first; then `failOpen` decides whether a node with
unknown load passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from scorers.cluster.columns import LOADS
from scorers.cluster.forecasts import RowForecasts
from scorers.cluster.load import NodeLoadColumns
from scorers.cluster.pods import PodInfo
from scorers.cluster.table import ClusterTable
from scorers.plugin_api.framework import Verdicts
from scorers.plugins.forecast_arguments import (
    ForecastArguments,
    missing_forecasts,
)
from watcher.arrays import F64, I64
from watcher.core.kubernetes.pod_resources import CPU, MEMORY

RESOURCES = (CPU, MEMORY)
REASONS = (
    "",
    "node(s) had cpu load above the threshold with the pod",
    "node(s) had memory load above the threshold with the pod",
    "node(s) load is unknown",
    "node(s) load is stale",
)
_UNKNOWN, _STALE = 3, 4


class HighLoadFilterArgs(ForecastArguments, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """`usageThresholds` in percent for cpu and memory, default 100; `failOpen` lets nodes with unknown load pass."""

    usage_thresholds: dict[str, Annotated[float, msgspec.Meta(ge=0, le=100)]] = msgspec.field(default_factory=dict)
    fail_open: bool = True
    node_metric_expiration_seconds: Annotated[int, msgspec.Meta(gt=0)] = 180

    def problems(self) -> list[str]:
        """Report thresholds of resources other than cpu and memory, and a horizon that is not used."""
        unknown = sorted(set(self.usage_thresholds) - set(RESOURCES))
        problems = [f"usageThresholds.{name}: only cpu and memory have thresholds" for name in unknown]
        return [*super().problems(), *problems]


class HighLoadFilter:
    """The filter described in the module docstring."""

    name = "HighLoadFilter"
    arguments = HighLoadFilterArgs

    def __init__(self, arguments: HighLoadFilterArgs, table: ClusterTable, *, profile: str = "default") -> None:
        self.args = arguments
        table.require(self, arguments.forecast_needs)

    def missing_forecasts(self, table: ClusterTable) -> str:
        return missing_forecasts(self.args, table)

    def filter(self, pod: PodInfo, table: ClusterTable, rows: I64, *, now: float) -> Verdicts:
        allocatable = [table.allocatable.column(resource)[rows].astype(np.float64) for resource in RESOURCES]
        return self._verdicts(pod, table.load, rows, allocatable, now=now)

    def filter_by_load(self, pod: PodInfo, load: NodeLoadColumns, *, now: float) -> Verdicts:
        """See LoadFilterPlugin. What the pod adds is unknown, so that only the load without it counts."""
        rows = np.arange(len(load.where), dtype=np.int64)
        unknown = np.full(len(rows), np.nan)
        return self._verdicts(pod, load, rows, [unknown] * len(RESOURCES), now=now)

    def _verdicts(
        self, pod: PodInfo, load: NodeLoadColumns, rows: I64, allocatable: Sequence[F64], *, now: float
    ) -> Verdicts:
        """Judge nodes with these amounts of RESOURCES [n], NaN if unknown."""
        stale = now - load.sampled()[rows] > self.args.node_metric_expiration_seconds
        codes = np.zeros(len(rows), dtype=np.int64)
        unknown = np.zeros(len(rows), dtype=np.bool_)
        steps: dict[str, npt.NDArray[Any]] = {"stale": stale}
        for code, (resource, amount) in enumerate(zip(RESOURCES, allocatable, strict=True), start=1):
            measured = load.expected(LOADS[resource], self.args.ahead)[rows]
            measured = np.where((measured < 0) | stale, np.nan, measured)
            asked = float(pod.requests.get(resource, 0))
            with np.errstate(divide="ignore", invalid="ignore"):
                more = np.where(amount > 0, 100.0 * asked / amount, np.inf if asked > 0 else 0.0)
            more[np.isnan(amount)] = 0.0
            expected = measured + more
            threshold = self.args.usage_thresholds.get(resource, 100.0)
            codes = np.where((codes == 0) & (expected > threshold), code, codes)
            unknown |= np.isnan(measured)
            steps[f"{resource} load %"], steps[f"{resource} expected %"] = measured, expected
        if not self.args.fail_open:
            codes = np.where((codes == 0) & unknown, np.where(stale, _STALE, _UNKNOWN), codes)
        forecasts = load.forecast(self.args.ahead, rows)
        inputs = {"usageThresholds": dict(self.args.usage_thresholds), "failOpen": self.args.fail_open}
        inputs |= forecasts.inputs()

        def details(i: int) -> str:
            return self._details(i, int(codes[i]), steps, forecasts)

        bounds = partial(forecasts.steps, resources=tuple(LOADS.items()))
        return Verdicts(codes, REASONS, steps, inputs, details=details, more_steps=bounds)

    def _details(self, i: int, code: int, steps: Mapping[str, npt.NDArray[Any]], forecasts: RowForecasts) -> str:
        """The expected load, the threshold and the forecast: of the resource that rejects the node, otherwise of
        both."""
        wanted = RESOURCES[code - 1 : code] if 0 < code < _UNKNOWN else RESOURCES
        said = [self._compared(each, float(steps[f"{each} expected %"][i])) for each in wanted]
        return "; ".join([*said, *filter(None, [forecasts.text(i, [(each, LOADS[each]) for each in wanted])])])

    def _compared(self, resource: str, expected: float) -> str:
        threshold = self.args.usage_thresholds.get(resource, 100.0)
        if np.isnan(expected):
            return f"{resource} unknown"
        if np.isinf(expected):
            return f"no {resource} is allocatable"
        return f"{resource} {expected:.1f} %, {'above' if expected > threshold else 'at most'} {threshold:g} %"
