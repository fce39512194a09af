"""LoadVariationRiskBalancing: prefer nodes whose load is low and steady (seed 004; reference/trimaran.md, 5).

For CPU and memory, with the mean `mu` of the measured load plus the pod's request, and the deviation `sigma` of the
load, both as shares of allocatable,

    upstream:  (1 - (mu + min(margin * sigma ** (1 / sensitivity), 1)) / 2) * 100
    kep:       (1 - min(mu + margin * sigma, 1)) * 100

and the lower of the two counts, rounded half away from zero. Under `kep`, which is the formula of KEP-61 and of seed
004, a load of mean plus margin times deviation that reaches the capacity scores 0, and pods that were assigned too late
for the measurement to contain them count with their requests; upstream forgot them.

A node without metrics scores 0. A load that is not known of a node counts as the lowest score that any of the nodes
asked about has by it, and does not count where most of them lack it. Where most lack both, the score is that of
NodeResourcesFit: the least allocated node.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from scorers.cluster.pods import PodInfo
from scorers.cluster.resources import CPU, MEMORY
from scorers.cluster.statistics import LOADS, mu_sigma, wherever
from scorers.cluster.table import Table
from scorers.plugin_api.arguments import Arguments
from scorers.plugin_api.framework import Scores, comparable, decides, round_half_away, round_half_away_one
from scorers.profiles.default_scheduler import least_allocated, requested_and_allocatable
from watcher.model import Operator

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

RESOURCES = (CPU, MEMORY)
ALLOCATION = "allocation"


class LoadVariationRiskBalancingArgs(Arguments, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """`safeVarianceMargin` multiplies the deviation (under `kep`, for a normal load, 1 leaves a risk of 16 percent, 2
    of 2.5, 3 of 0.15); a `safeVarianceSensitivity` above 1 gives small deviations more weight (`upstream` only)."""

    safe_variance_margin: Annotated[float, msgspec.Meta(ge=0, le=1000)] = 1.0
    safe_variance_sensitivity: Annotated[float, msgspec.Meta(ge=0, le=1000)] = 1.0
    formula: Literal["upstream", "kep"] = "upstream"


def risk_scores(mu: F64, sigma: F64, *, margin: float, sensitivity: float) -> F64:
    """Upstream's formula, not rounded; [n], NaN where `mu` is. Sensitivity 0 makes the deviation vanish, but for 1;
    a negative one leaves it as it is."""
    if sensitivity > 0:
        sigma = sigma ** (1.0 / sensitivity)
    elif sensitivity == 0:
        sigma = np.where(sigma == 1.0, 1.0, 0.0)
    return (1.0 - (mu + np.minimum(margin * sigma, 1.0)) / 2.0) * 100.0


def kep_scores(mu: F64, sigma: F64, *, margin: float) -> F64:
    """The document's formula, to a billionth: its 42.5, which it rounds to 43, must not be 42.49999999999999 here. [n],
    NaN where `mu` is."""
    scores: F64 = np.round((1.0 - np.minimum(mu + margin * sigma, 1.0)) * 100.0, 9)
    return scores


class LoadVariationRiskBalancing:
    """See above."""

    name = "LoadVariationRiskBalancing"
    arguments = LoadVariationRiskBalancingArgs

    def __init__(self, arguments: LoadVariationRiskBalancingArgs, table: Table, *, profile: str = "default") -> None:
        self.args = arguments
        self._recent = {resource: f"requests/{resource}" for resource in RESOURCES}  # alike for all profiles
        if arguments.formula == "kep":
            for resource, demand in self._recent.items():
                table.recent.register(demand, partial(_request, resource=resource))

    def score(self, pod: PodInfo, table: Table, rows: I64, *, now: float) -> Scores:
        """One pass over the nodes for each resource."""
        fallback = self.fallback(table, now=now)
        measured = [~np.isnan(table.load.average(LOADS[resource])[rows]) for resource in RESOURCES]
        if not any(decides(known, fallback=fallback) for known in measured):
            return self._by_allocation(pod, table, rows)
        steps: dict[str, F64] = {}
        of_resources = [self._of_resource(pod, table, rows, resource, steps) for resource in RESOURCES]
        lowest = np.fmin(*map(comparable, of_resources))
        silent = ~np.logical_or(*measured)
        values = wherever(silent, round_half_away(np.fmax(lowest, 0.0)), 0.0)
        inputs: dict[str, Any] = {
            "formula": self.args.formula,
            "safeVarianceMargin": self.args.safe_variance_margin,
            "podRequests": {resource: pod.requests.get(resource, 0) for resource in RESOURCES},
        }
        return Scores(values, steps, inputs, reason=lambda i: self._reason(i, steps, values))

    def fallback(self, table: Table, *, now: float) -> str:
        """Allocation, where neither CPU nor memory is measured of most nodes."""
        return "" if any(table.measures(LOADS[resource]) for resource in RESOURCES) else ALLOCATION

    def _of_resource(self, pod: PodInfo, table: Table, rows: I64, resource: str, steps: dict[str, F64]) -> F64:
        """Scores, not rounded, NaN where the load is not known; and the steps to them."""
        capacity = table.allocatable.column(resource)[rows].astype(np.float64)
        requested: F64 | float = float(pod.requests.get(resource, 0))
        average = table.load.share(LOADS[resource])[rows] * capacity
        deviation = table.load.share(LOADS[resource], Operator.STD)[rows] * capacity
        if self.args.formula == "kep":
            recent = table.recent.unmeasured(self._recent[resource], measured=table.load.sampled())[rows]
            requested = requested + recent
            steps[f"{resource} of recent pods"] = recent
        mu, sigma = mu_sigma(average, deviation, requested, capacity)
        margin = self.args.safe_variance_margin
        if self.args.formula == "kep":
            scores = kep_scores(mu, sigma, margin=margin)
        else:
            scores = risk_scores(mu, sigma, margin=margin, sensitivity=self.args.safe_variance_sensitivity)
        scores = wherever(capacity <= 0, scores, scores * 0.0)
        steps[f"{resource} mean"], steps[f"{resource} deviation"], steps[f"{resource} score"] = mu, sigma, scores
        return scores

    def _by_allocation(self, pod: PodInfo, table: Table, rows: I64) -> Scores:
        requested, allocatable = requested_and_allocatable(pod, table, rows, counted=True)
        values = least_allocated(requested, allocatable).astype(np.float64)
        steps: dict[str, npt.NDArray[Any]] = {}
        for i, each in enumerate(RESOURCES):
            steps[f"{each} requested, with the pod"], steps[f"{each} allocatable"] = requested[i], allocatable[i]

        def reason(i: int) -> str:
            return f"most nodes have no metrics: spread by requests, as NodeResourcesFit does: {values[i]:.0f}"

        return Scores(values, steps, {"fallback": ALLOCATION}, reason)

    def _reason(self, i: int, steps: dict[str, F64], values: F64) -> str:
        scores = {each: float(steps[f"{each} score"][i]) for each in RESOURCES}
        known = {each: score for each, score in scores.items() if not np.isnan(score)}
        if not known:
            return "no metrics of this node: 0"
        worst = min(known, key=lambda each: known[each])
        mean, deviation = 100 * float(steps[f"{worst} mean"][i]), 100 * float(steps[f"{worst} deviation"][i])
        if round_half_away_one(known[worst]) > values[i]:
            (unknown,) = set(RESOURCES) - set(known)
            return f"{unknown} is not known, and counts as the lowest of these nodes: {values[i]:.0f}"
        return f"{worst} decides: load with the pod {mean:.1f} %, deviation {deviation:.1f} %: {values[i]:.0f}"


def _request(pod: PodInfo, *, resource: str) -> float:
    return pod.requests.get(resource, 0)
