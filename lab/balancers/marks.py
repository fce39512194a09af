"""The marks of load-watcher on nodes, and descheduler with its signal of pressure.

The arithmetic is that of the service, `scorers.marks`. A window is the mean of 15 minutes.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from lab.balancers.low_node_utilization import EvictionLimits, PodFilter, UtilizationThresholds, pods_to_evict
from lab.balancers.view import Balancer, BalancerActions, ClusterView
from scorers.marks.annotation import ABSENT, ScoreRules, next_scores
from scorers.marks.degrees import DegreeRules, next_degrees
from scorers.marks.excess import LOWEST, FleetLoad
from scorers.marks.pressure import Moves, PressureRules, PressureState, next_pressures
from watcher.arrays import F64, I64
from watcher.model import MetricType

WINDOW_MINUTES = 15
HORIZON = "6h"
FILLING_S = 3600.0
"""Seconds from the begin of a trace in which its empty cluster is filled; pods of this time count as old."""
PRESSURE_THRESHOLDS = UtilizationThresholds(35.0, 65.0)
"""In the gaps between the ranges of the pressure."""


def fleet_load(view: ClusterView) -> FleetLoad:
    """The windows and the forecast bounds of all nodes."""
    lowest = np.array([LOWEST[MetricType.CPU], LOWEST[MetricType.MEMORY]])
    return FleetLoad(view.names, 100.0 * view.mean_use(WINDOW_MINUTES), view.bounds, lowest)


@dataclass(slots=True)
class _NodeValues:
    """A value of each node, and when it changed last (unix seconds, -inf: never), while nodes come and go."""

    default: int
    names: tuple[str, ...] = ()
    values: I64 = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    changed_at: F64 = field(default_factory=lambda: np.zeros(0))

    def follow(self, names: tuple[str, ...]) -> None:
        """Keep the values of these nodes; others begin with the default."""
        if names == self.names:
            return
        before = {name: i for i, name in enumerate(self.names)}
        places = [before.get(name, -1) for name in names]
        self.values = np.array([self.values[i] if i >= 0 else self.default for i in places], dtype=self.values.dtype)
        self.changed_at = np.array([self.changed_at[i] if i >= 0 else -np.inf for i in places], dtype=np.float64)
        self.names = names

    def set(self, values: I64, now: float) -> None:
        self.changed_at = np.where(values != self.values, now, self.changed_at)
        self.values = values


@dataclass(slots=True)
class SoftTaints:
    """Soft taints by windows, and with a `horizon` also by forecasts."""

    horizon: str = ""
    rules: DegreeRules = field(default_factory=DegreeRules)
    interval_s: float = 60.0
    score_weight: int = 0
    degrees: _NodeValues = field(default_factory=lambda: _NodeValues(0))

    def decide(self, view: ClusterView) -> BalancerActions:
        self.degrees.follow(view.names)
        before = self.degrees
        self.degrees.set(
            next_degrees(fleet_load(view), before.values, before.changed_at, self.rules, view.now), view.now
        )
        return BalancerActions(taints=self.degrees.values)


@dataclass(slots=True)
class NodeScores:
    """The annotation with the score of a node, which NodeMetadata reads with the weight `score_weight`."""

    score_weight: int = 1
    horizon: str = ""
    rules: ScoreRules = field(default_factory=ScoreRules)
    interval_s: float = 60.0
    scores: _NodeValues = field(default_factory=lambda: _NodeValues(ABSENT))

    def decide(self, view: ClusterView) -> BalancerActions:
        self.scores.follow(view.names)
        before = self.scores
        self.scores.set(next_scores(fleet_load(view), before.values, before.changed_at, self.rules, view.now), view.now)
        return BalancerActions(scores=self.scores.values)


@dataclass(slots=True)
class PressureDescheduler:
    """Descheduler's LowNodeUtilization with the pressure as its metric, in rounds of five minutes; the pressure is
    computed each minute. `min_pod_age_s` is the default evictor's minPodAge: younger pods are not evicted, so no
    replacement of an evicted pod is either."""

    horizon: str = ""
    rules: PressureRules = field(default_factory=PressureRules)
    thresholds: UtilizationThresholds = PRESSURE_THRESHOLDS
    min_pod_age_s: float = 86_400.0
    round_s: float = 300.0
    interval_s: float = 60.0
    score_weight: int = 0
    names: tuple[str, ...] = ()
    state: PressureState = field(default_factory=lambda: PressureState.start(0))
    first: float | None = None

    def decide(self, view: ClusterView) -> BalancerActions:
        self.first = view.now if self.first is None else self.first
        self._follow(view.names)
        moves = Moves(view.last_move, view.moves(self.rules.memory_s))
        found = next_pressures(fleet_load(view), self.state, moves, self.rules, view.now)
        self.state = found.state
        if view.now % self.round_s or view.now < self.first + FILLING_S:
            return BalancerActions()
        evicted = pods_to_evict(
            found.values,
            self.thresholds,
            view.pods,
            limits=EvictionLimits(),
            taints=view.taints,
            allowed=self._old_enough(view.now),
        )
        return BalancerActions(evicted)

    def _follow(self, names: tuple[str, ...]) -> None:
        """Keep the state of these nodes; others begin."""
        if names == self.names:
            return
        start, before = PressureState.start(len(names)), self.state
        places = {name: i for i, name in enumerate(self.names)}
        kept = [(i, places[name]) for i, name in enumerate(names) if name in places]
        here, there = np.array(kept, dtype=np.int64).reshape(-1, 2).T
        start.ranges[here] = before.ranges[there]
        start.hot_since[here] = before.hot_since[there]
        start.answered[here] = before.answered[there]
        self.state, self.names = start, names

    def _old_enough(self, now: float) -> PodFilter:
        filled = (now if self.first is None else self.first) + FILLING_S
        return lambda pod: pod.created <= filled or now - pod.created >= self.min_pod_age_s


@dataclass(slots=True)
class Combined:
    """Several balancers at once, with the same interval; each mark is that of the last one that sets it."""

    parts: Sequence[Balancer]

    @property
    def interval_s(self) -> float:
        return self.parts[0].interval_s

    @property
    def horizon(self) -> str:
        return max(part.horizon for part in self.parts)

    @property
    def score_weight(self) -> int:
        return max(part.score_weight for part in self.parts)

    def decide(self, view: ClusterView) -> BalancerActions:
        found = [part.decide(view) for part in self.parts]
        return BalancerActions(
            [uid for each in found for uid in each.evict],
            next((each.taints for each in reversed(found) if each.taints is not None), None),
            next((each.scores for each in reversed(found) if each.scores is not None), None),
        )
