"""The results of simulated policies, and their paired differences to the default scheduler.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from watcher.core.intervals import student_975


@dataclass(frozen=True, slots=True)
class PolicyDay:
    """One policy on one day: node-hours above the threshold, the mean number of nodes in use, and the pods that fitted
    nowhere."""

    policy: str
    overload: float
    nodes_used: float
    unschedulable: int


@dataclass(frozen=True, slots=True)
class Interval:
    """Mean of paired differences with its 95 % interval; `low` and `high` are NaN with one pair."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class PolicyOutcome:
    """One policy over all replays: means per day, and differences to the default scheduler (None for itself)."""

    policy: str
    overload: float
    nodes_used: float
    unschedulable: float
    overload_difference: Interval | None
    nodes_difference: Interval | None


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """`recorded_overload` is the mean number of node-hours per day above the threshold on the recorded nodes with the
    recorded placement, from the same values. `over` is what the intervals are over: days, or random orders of a
    day."""

    threshold: float
    nodes: int
    hottest: int
    pods: int
    replays: int
    over: str
    recorded_overload: float
    policies: tuple[PolicyOutcome, ...]


def outcomes(results: Sequence[Sequence[PolicyDay]]) -> tuple[PolicyOutcome, ...]:
    """Means of each policy over the replays, and paired differences to the first policy."""
    found = []
    for i, policy in enumerate(day.policy for day in results[0]):
        own, first = [days[i] for days in results], [days[0] for days in results]
        differences = None
        if i:
            differences = (
                interval([a.overload - b.overload for a, b in zip(own, first, strict=True)]),
                interval([a.nodes_used - b.nodes_used for a, b in zip(own, first, strict=True)]),
            )
        found.append(
            PolicyOutcome(
                policy,
                float(np.mean([day.overload for day in own])),
                float(np.mean([day.nodes_used for day in own])),
                float(np.mean([day.unschedulable for day in own])),
                *(differences or (None, None)),
            )
        )
    return tuple(found)


def interval(differences: Sequence[float]) -> Interval:
    """Mean of paired differences with the 95 % interval of Student's t distribution."""
    mean = float(np.mean(differences))
    if len(differences) < 2:
        return Interval(mean, math.nan, math.nan)
    half = student_975(len(differences) - 1) * float(np.std(differences, ddof=1)) / math.sqrt(len(differences))
    return Interval(mean, mean - half, mean + half)
