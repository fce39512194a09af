"""The pods that one stage of a plan considers and selects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from agent.decision.analysis import PodDemand, Watermarks
from agent.metrics.action_metric import ActionMetric, PodSteps
from agent.model import PodState, StageKind


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
