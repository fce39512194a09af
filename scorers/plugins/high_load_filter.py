"""HighLoadFilter: keep pods off nodes that are loaded already (reference/trimaran.md, 8.4).

A node is rejected when

    measured + 100 * request / allocatable > threshold        percent; equal passes

for CPU, then for memory. Allocatable of 0 or less with a request is infinitely much. What is measured is AVG, else
Latest. A measurement is stale when the node's own newest sample is older than `nodeMetricExpirationSeconds`. Resources
that are known are checked first; then `failOpen` says whether a node of which something is not known passes.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from scorers.cluster.pods import PodInfo
from scorers.cluster.resources import CPU, MEMORY
from scorers.cluster.statistics import LOADS
from scorers.cluster.table import Table
from scorers.plugin_api.arguments import Arguments
from scorers.plugin_api.framework import Verdicts

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

RESOURCES = (CPU, MEMORY)
REASONS = (
    "",
    "node(s) cpu load with the pod is above the threshold",
    "node(s) memory load with the pod is above the threshold",
    "node(s) load is not known",
    "node(s) load is stale",
)
_UNKNOWN, _STALE = 3, 4


class HighLoadFilterArgs(Arguments, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """`usageThresholds` in percent, cpu and memory, 100 for what is not given; `failOpen` lets nodes pass of which
    nothing is known."""

    usage_thresholds: dict[str, Annotated[float, msgspec.Meta(ge=0, le=100)]] = msgspec.field(default_factory=dict)
    fail_open: bool = True
    node_metric_expiration_seconds: Annotated[int, msgspec.Meta(gt=0)] = 180

    def problems(self) -> list[str]:
        """Thresholds of resources that are not looked at."""
        unknown = sorted(set(self.usage_thresholds) - set(RESOURCES))
        return [f"usageThresholds.{name}: only cpu and memory have thresholds" for name in unknown]


class HighLoadFilter:
    """See above."""

    name = "HighLoadFilter"
    arguments = HighLoadFilterArgs

    def __init__(self, arguments: HighLoadFilterArgs, table: Table, *, profile: str = "default") -> None:
        self.args = arguments

    def filter(self, pod: PodInfo, table: Table, rows: I64, *, now: float) -> Verdicts:
        """One pass over the nodes for each resource."""
        stale = now - table.load.sampled()[rows] > self.args.node_metric_expiration_seconds
        codes = np.zeros(len(rows), dtype=np.int64)
        unknown = np.zeros(len(rows), dtype=np.bool_)
        steps: dict[str, npt.NDArray[Any]] = {"stale": stale}
        for code, resource in enumerate(RESOURCES, start=1):
            allocatable = table.allocatable.column(resource)[rows].astype(np.float64)
            measured = table.load.average(LOADS[resource])[rows]
            measured = np.where((measured < 0) | stale, np.nan, measured)
            asked = float(pod.requests.get(resource, 0))
            with np.errstate(divide="ignore", invalid="ignore"):
                more = np.where(allocatable > 0, 100.0 * asked / allocatable, np.inf if asked > 0 else 0.0)
            expected = measured + more
            threshold = self.args.usage_thresholds.get(resource, 100.0)
            codes = np.where((codes == 0) & (expected > threshold), code, codes)
            unknown |= np.isnan(measured)
            steps[f"{resource} load %"], steps[f"{resource} expected %"] = measured, expected
        if not self.args.fail_open:
            codes = np.where((codes == 0) & unknown, np.where(stale, _STALE, _UNKNOWN), codes)
        inputs = {"usageThresholds": dict(self.args.usage_thresholds), "failOpen": self.args.fail_open}
        return Verdicts(codes, REASONS, steps, inputs)
