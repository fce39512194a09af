"""LoadVariationRiskBalancing: prefer nodes whose load is low and steady (upstream Trimaran).

For CPU and memory, with the mean `mu` of the measured load plus the pod's request and the standard deviation `sigma` of
the load, both as shares of allocatable,

    upstream:  (1 - (mu + min(margin * sigma ** (1 / sensitivity), 1)) / 2) * 100
    kep:       (1 - min(mu + margin * sigma, 1)) * 100

The lower of the two scores counts, rounded half away from zero. With `kep`, the formula of KEP-61, a load of mean plus
margin times deviation that reaches the capacity scores 0, and pods that were assigned too recently to be measured
(`assignedPodSeconds`, `assignedPodDecay`) count with their requests; upstream ignores these pods.

A node without metrics scores 0. If the load of one resource is unknown for a node, it counts as the lowest score of
that resource among the nodes in the request; if it is unknown for most of them, the resource does not count. If both
loads are unknown for most nodes, the score is that of NodeResourcesFit with LeastAllocated.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from scorers.cluster.columns import LOADS, mu_sigma, where_rare
from scorers.cluster.pods import PodInfo
from scorers.cluster.table import ClusterTable
from scorers.cluster.unmeasured_pods import UnmeasuredShare
from scorers.plugin_api.framework import Scores, fill_unknown_scores, load_decides, round_half_away, round_half_away_one
from scorers.plugins.assigned_pod_arguments import AssignedPodArguments
from scorers.profiles.default_scheduler import least_allocated, requested_and_allocatable
from watcher.arrays import F64, I64
from watcher.core.kubernetes.pod_resources import CPU, MEMORY
from watcher.model import Operator

RESOURCES = (CPU, MEMORY)
ALLOCATION = "allocation"


class LoadVariationRiskBalancingArgs(
    AssignedPodArguments, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """`safeVarianceMargin` multiplies the deviation (with `kep` and normally distributed load, a margin of 1, 2, or 3
    leaves a risk of 16, 2.5, or 0.15 percent); a `safeVarianceSensitivity` above 1 gives small deviations more weight
    (`upstream` only)."""

    safe_variance_margin: Annotated[float, msgspec.Meta(ge=0, le=1000)] = 1.0
    safe_variance_sensitivity: Annotated[float, msgspec.Meta(ge=0, le=1000)] = 1.0
    formula: Literal["upstream", "kep"] = "upstream"

    def problems(self) -> list[str]:
        """Report arguments for newly assigned pods that the formula does not use, and a decay without a time."""
        if self.formula == "upstream" and self.unmeasured != UnmeasuredShare():
            cure = 'set formula to "kep", or remove assignedPodSeconds and assignedPodDecay'
            return [f"assignedPodSeconds: the formula upstream does not add newly assigned pods; {cure}"]
        return super().problems()


def risk_scores(mu: F64, sigma: F64, *, margin: float, sensitivity: float) -> F64:
    """Return upstream's formula, not rounded [n], NaN where `mu` is NaN. Sensitivity 0 maps every deviation except 1 to
    0; a negative sensitivity leaves it unchanged."""
    if sensitivity > 0:
        sigma = sigma ** (1.0 / sensitivity)
    elif sensitivity == 0:
        sigma = np.where(sigma == 1.0, 1.0, 0.0)
    return (1.0 - (mu + np.minimum(margin * sigma, 1.0)) / 2.0) * 100.0


def kep_scores(mu: F64, sigma: F64, *, margin: float) -> F64:
    """Return the formula of KEP-61 [n], NaN where `mu` is NaN. Rounded to 9 decimals, so that 42.5 in the KEP's example
    does not become 42.49999999999999 and round to 42 instead of 43."""
    scores: F64 = np.round((1.0 - np.minimum(mu + margin * sigma, 1.0)) * 100.0, 9)
    return scores


class LoadVariationRiskBalancing:
    """The score plug-in described in the module docstring."""

    name = "LoadVariationRiskBalancing"
    arguments = LoadVariationRiskBalancingArgs

    def __init__(
        self, arguments: LoadVariationRiskBalancingArgs, table: ClusterTable, *, profile: str = "default"
    ) -> None:
        self.args = arguments
        self._recent = {resource: f"{profile}/{self.name}/{resource}" for resource in RESOURCES}
        if arguments.formula == "kep":
            for resource, demand in self._recent.items():
                table.recent.register(demand, partial(_request, resource=resource), arguments.unmeasured)

    def score(self, pod: PodInfo, table: ClusterTable, rows: I64, *, now: float) -> Scores:
        fallback = self.fallback(table, now=now)
        measured = [~np.isnan(table.load.average(LOADS[resource])[rows]) for resource in RESOURCES]
        if not any(load_decides(known, fallback=fallback) for known in measured):
            return self._by_allocation(pod, table, rows)
        steps: dict[str, F64] = {}
        of_resources = [self._of_resource(pod, table, rows, resource, steps) for resource in RESOURCES]
        lowest = np.fmin(*map(fill_unknown_scores, of_resources))
        silent = ~np.logical_or(*measured)
        values = where_rare(silent, round_half_away(np.fmax(lowest, 0.0)), 0.0)
        inputs: dict[str, Any] = {
            "formula": self.args.formula,
            "safeVarianceMargin": self.args.safe_variance_margin,
            "podRequests": {resource: pod.requests.get(resource, 0) for resource in RESOURCES},
        }
        return Scores(values, steps, inputs, reason=lambda i: self._reason(i, steps, values))

    def fallback(self, table: ClusterTable, *, now: float) -> str:
        """Return ALLOCATION if neither CPU nor memory load is known for most nodes."""
        return "" if any(table.has_load(LOADS[resource]) for resource in RESOURCES) else ALLOCATION

    def _of_resource(self, pod: PodInfo, table: ClusterTable, rows: I64, resource: str, steps: dict[str, F64]) -> F64:
        """Return the scores of one resource, not rounded, NaN where its load is unknown, and record the steps."""
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
        scores = where_rare(capacity <= 0, scores, scores * 0.0)
        steps[f"{resource} mean"], steps[f"{resource} deviation"], steps[f"{resource} score"] = mu, sigma, scores
        return scores

    def _by_allocation(self, pod: PodInfo, table: ClusterTable, rows: I64) -> Scores:
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
            return f"{unknown} load unknown, lowest score of these nodes used: {values[i]:.0f}"
        load = f"load with the pod {mean:.1f} %, deviation {deviation:.1f} %"
        return f"{worst} scores lowest: {load}: {values[i]:.0f}"


def _request(pod: PodInfo, *, resource: str) -> float:
    return pod.requests.get(resource, 0)
