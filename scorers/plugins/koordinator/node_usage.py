"""The usage of nodes as LoadAwareScheduling sees it for one pod, and its scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from scorers.cluster.forecasts import RowForecasts
from scorers.plugin_api.framework import round_half_away
from watcher.arrays import F64, I64, Bool
from watcher.core.kubernetes.times import time_text


def resource_scores(used: I64, allocatable: I64) -> I64:
    """(allocatable - used) * 100 / allocatable, rounded down; 0 if used exceeds allocatable or nothing is
    allocatable."""
    fits = (allocatable > 0) & (used <= allocatable)
    return np.where(fits, (allocatable - used) * 100 // np.where(allocatable > 0, allocatable, 1), 0)


def combined(scores: I64, weights: I64, dominant_weight: int) -> I64:
    """The mean [n] of scores [resources, n] by weights, with the lowest score weighted by `dominant_weight`; 0 without
    weights."""
    whole = int(weights.sum()) + dominant_weight
    if whole <= 0:
        return np.zeros(scores.shape[1], dtype=np.int64)
    total: I64 = weights @ scores
    if dominant_weight:
        total = total + dominant_weight * np.minimum(scores.min(axis=0), 100)
    return total // whole


@dataclass(frozen=True, slots=True)
class NodeUsageView:
    """Usage of n nodes, [resources, n]. Where `there` [n] is false, `measured` is not available and only the
    estimates of pods are used. `found` [n] marks nodes with a NodeMetric and silent nodes, `judged` nodes whose
    NodeMetric has usage, and `pods_known` nodes whose pods are measured. `prod` [n]: the usage is that of prod pods,
    which has no forecast. `age` is in seconds, and `silent` is the time of the last sample (unix seconds) of nodes
    without a valid measurement, NaN for all others.
    """

    measured: I64
    delta: I64
    used: I64
    allocatable: I64
    known: Bool
    there: Bool
    found: Bool
    judged: Bool
    expired: Bool
    age: F64
    silent: F64
    prod: Bool
    pods_known: Bool
    forecasts: RowForecasts

    def percent(self) -> F64:
        """Percent of allocatable [resources, n]; NaN if unknown."""
        whole = np.full(self.used.shape, np.nan)
        np.divide(self.used, self.allocatable, out=whole, where=self.known & (self.allocatable > 0))
        return round_half_away(whole * 100.0)

    def silent_since(self, i: int) -> str:
        """Since when the node in column `i` is silent, in words; "" if it is not."""
        return "" if np.isnan(self.silent[i]) else f"silent since {time_text(self.silent[i])}"

    def unmeasured(self, i: int) -> str:
        """That the pods of the node in column `i` are not measured, if other nodes have pod usage; otherwise ""."""
        return "its pod usage is unknown" if not self.pods_known[i] and self.pods_known.any() else ""

    def compared(self, names: Sequence[str], i: int, *, percent: F64, limits: I64, over: Bool, inclusive: bool) -> str:
        """The usage with the pod and the threshold in column `i`: of the first resource that exceeds it, otherwise of
        all that have one. `inclusive`: a usage equal to the threshold exceeds it."""
        of = " of prod pods" if self.prod[i] else ""
        which = [int(over[:, i].argmax())] if over[:, i].any() else np.flatnonzero(limits[:, i] > 0).tolist()
        reached, passing = ("not below", "below") if inclusive else ("above", "at most")
        return "; ".join(
            f"{names[r]}{of} unknown"
            if np.isnan(percent[r, i])
            else f"{names[r]}{of} {percent[r, i]:.0f} %, {reached if over[r, i] else passing} {limits[r, i]} %"
            for r in which
        )

    def steps(self, names: Sequence[str], percent: F64) -> dict[str, npt.NDArray[Any]]:
        """The steps of the computation by name, each [n]; `percent` [resources, n] is that of `percent()`."""
        steps: dict[str, npt.NDArray[Any]] = {"age s": self.age}
        for i, name in enumerate(names):
            steps |= {
                f"{name} measured": nan_where_unknown(self.measured[i], self.known[i] & self.there),
                f"{name} of pods not measured yet": self.delta[i],
                f"{name} with the pod": nan_where_unknown(self.used[i], self.known[i]),
                f"{name} allocatable": self.allocatable[i],
                f"{name} %": percent[i],
            }
        return steps


def nan_where_unknown(values: I64, known: Bool) -> npt.NDArray[Any]:
    """The values as they are, NaN where unknown."""
    return values if known.all() else np.where(known, values, np.nan)


def chosen_by_node(which: Bool, one: NodeUsageView, other: NodeUsageView) -> NodeUsageView:
    """For each node, the values of `one` where `which` is true, otherwise of `other`."""
    return replace(
        other,
        measured=np.where(which, one.measured, other.measured),
        delta=np.where(which, one.delta, other.delta),
        used=np.where(which, one.used, other.used),
        there=np.where(which, one.there, other.there),
        prod=np.where(which, one.prod, other.prod),
    )
