"""Decides what is restored: the values that the agent lowered, and the steps that set the original values again.

The stages of agent/decision/planner.py restore pods that a rule covers, step by step. A pod with a lowered value
that no rule covers any more gets its original values in one cycle.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from agent.decision.analysis import Analysis
from agent.decision.soft_limits import limit
from agent.metrics.action_metric import PodSteps
from agent.metrics.pod_actions import is_original, quota_lowered
from agent.model import CPU_WEIGHT, MEMORY_HIGH, KnobChange, Knobs, Originals, PodKnobs, PodState, QuotaChange, Step

UNCOVERED = "no rule covers it any more"
_UNKNOWN = PodKnobs()


@dataclass(frozen=True, slots=True)
class LoweredValues:
    """The values of pods that the agent may have lowered. `originals` are the CPU quotas before the agent's first
    write; `knobs` are the current and original cpu.weight and memory.high of pods, by uid. Without `knobs` there are no
    soft limits."""

    originals: Originals = field(default_factory=dict)
    knobs: Knobs = field(default_factory=dict)

    def knobs_of(self, pod: PodState) -> PodKnobs:
        """The knobs of a pod; unknown values if they were not read."""
        return self.knobs.get(pod.uid, _UNKNOWN)

    def quota(self, pod: PodState) -> bool:
        """Whether any container of the pod has a quota below its original value."""
        return quota_lowered(pod, self.originals)

    def cpu(self, pod: PodState) -> bool:
        """Whether the pod has a quota or cpu.weight below its original value."""
        return self.quota(pod) or self.knobs_of(pod).owes_weight

    def memory(self, pod: PodState) -> bool:
        """Whether the pod has a memory.high below its original value."""
        return self.knobs_of(pod).owes_memory


def uncovered(
    pods: Iterable[PodState], covering: Iterable[Iterable[PodState]], is_lowered: Callable[[PodState], bool]
) -> tuple[str, ...]:
    """The pods (uid) with a lowered value that no rule covers: the policy was removed or changed, or is in
    preview. `covering` has the pods of each rule."""
    covered = {pod.uid for each in covering for pod in each}
    left = (pod for pod in pods if pod.uid not in covered and is_lowered(pod))
    return tuple(pod.uid for pod in sorted(left, key=lambda pod: (pod.key, pod.uid)))


def uncovered_steps(
    analysis: Analysis, pods: Mapping[str, PodState], lowered: LoweredValues, changed: Collection[str]
) -> tuple[Step, ...]:
    """Steps that restore the original values of pods that no rule covers any more: the quotas first, then the knobs.
    `pods` may be changed, by uid; `changed` has the ids of containers and uids of pods that were changed in
    this cycle already."""
    quotas = [pods[key] for key in analysis.released if key in pods]
    weights = [pod for pod in quotas if lowered.knobs_of(pod).owes_weight]
    highs = [pods[key] for key in analysis.unheld if key in pods and lowered.memory(pods[key])]
    planned = [
        *((pod, weight_restored(pod, lowered.knobs_of(pod), "")) for pod in weights),
        *((pod, memory_high_restored(pod, lowered.knobs_of(pod), "")) for pod in highs),
    ]
    knobs = [
        replace(step, reason=UNCOVERED)
        for pod, each in sorted(planned, key=lambda pair: pair[0].key)
        for step in each.steps
        if pod.uid not in changed
    ]
    return (*(step for pod in quotas for step in _quotas_restored(pod, lowered.originals, changed)), *knobs)


def _quotas_restored(pod: PodState, originals: Originals, changed: Collection[str]) -> Iterable[Step]:
    return (
        Step(
            "restore",
            QuotaChange(container.name, container.id, container.quota, original.quota, original.period),
            pod.key,
            pod.uid,
            reason=UNCOVERED,
        )
        for container in pod.containers
        if container.id not in changed
        and (original := originals.get(container.id)) is not None
        and not is_original(container, original)
    )


def weight_restored(pod: PodState, knobs: PodKnobs, metric: str) -> PodSteps:
    """Plan restoring the original cpu.weight in one step."""
    if knobs.weight is None:
        return PodSteps(problem="its cpu.weight is currently unreadable")
    change = KnobChange(CPU_WEIGHT, knobs.weight, knobs.original_weight)
    return PodSteps((Step("restore", change, pod.key, pod.uid, metric),))


def memory_high_restored(pod: PodState, knobs: PodKnobs, metric: str) -> PodSteps:
    """Plan restoring the original memory.high in one step."""
    if knobs.memory_high is None:
        return PodSteps(problem="its memory.high is currently unreadable")
    change = KnobChange(MEMORY_HIGH, limit(knobs.memory_high), limit(knobs.original_high))
    return PodSteps((Step("restore", change, pod.key, pod.uid, metric),))
