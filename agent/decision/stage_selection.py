"""The pods that one stage of a plan considers and selects, and what is changed or dropped in the steps of any action.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil

from agent.decision.analysis import PodDemand, Watermarks
from agent.metrics.action_metric import ActionMetric, PodSteps
from agent.metrics.pod_actions import UNKNOWN_MEMORY
from agent.model import KnobChange, PageCacheReclaim, PodState, QuotaChange, StageKind, Step


@dataclass(frozen=True, slots=True)
class ConsideredPod:
    """A pod considered for a metric. `why` is the reason why it was not chosen; "" if it was."""

    pod: PodState
    metric: ActionMetric
    planned: PodSteps
    why: str = ""


@dataclass(slots=True)
class StageSelection:
    """State of one stage while it selects pods. `gaps` (by metric, millicores or bytes) shrink with each chosen pod;
    `without_gap` has the metrics that select all of their pods, with the reason. `taken` has the uids of the chosen
    pods, and `came_back` the amounts that restoring them gives back, by resource."""

    kind: StageKind
    marks: Watermarks
    wanted: Mapping[str, PodDemand]
    ceilings: Mapping[str, float]
    gaps: dict[str, float] = field(default_factory=dict)
    without_gap: dict[str, str] = field(default_factory=dict)
    considered: list[ConsideredPod] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)
    came_back: dict[str, float] = field(default_factory=dict)

    def look(self, looked: ConsideredPod) -> None:
        """Add a considered pod, chosen or not."""
        self.considered.append(looked)
        if not looked.why:
            self.taken.add(looked.pod.uid)

    @property
    def chosen(self) -> list[ConsideredPod]:
        """The chosen pods in the order of selection."""
        return [each for each in self.considered if not each.why]


def reclaiming(pod: PodState, metric: ActionMetric, gap: float) -> PodSteps:
    """Plan reclaiming page cache from one pod, at most the gap (bytes), because the pod has to read reclaimed pages
    again."""
    if pod.memory is None:
        return PodSteps(problem=UNKNOWN_MEMORY, unknown=True)
    amount = min(ceil(gap), pod.memory)
    if amount <= 0:
        return PodSteps(problem="it has no memory to reclaim")
    return PodSteps((Step("reclaim", PageCacheReclaim(amount), pod.key, pod.uid, metric.name),))


def refusal(kind: StageKind, planned: PodSteps) -> str:
    """The reason why the pod gets no steps; "" if it gets some."""
    if planned.problem:
        return planned.problem
    return "" if planned.steps else f"it has nothing to {kind}"


def lagging(planned: PodSteps, seconds: float) -> PodSteps:
    """Set the delay in seconds until the metrics show the effect of the steps."""
    steps = tuple(
        replace(step, change=replace(step.change, lag_seconds=seconds))
        if isinstance(step.change, QuotaChange | KnobChange)
        else step
        for step in planned.steps
    )
    return replace(planned, steps=steps)


def worth_it(planned: PodSteps) -> PodSteps:
    """Drop quota steps for containers without a quota whose usage the new quota would not reduce."""
    steps = tuple(
        step
        for step in planned.steps
        if not (isinstance(step.change, QuotaChange) and step.change.before is None and not any(step.released.values()))
    )
    if steps or not planned.steps:
        return replace(planned, steps=steps)
    return PodSteps(problem="a quota would release nothing")
