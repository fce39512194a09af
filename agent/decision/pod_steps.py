"""The steps planned for one pod: reclaiming page cache, and what is changed or dropped in the steps of any action."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from agent.metrics.action_metric import ActionMetric, PodSteps
from agent.metrics.pod_actions import UNKNOWN_MEMORY
from agent.model import KnobChange, PageCacheReclaim, PodState, QuotaChange, StageKind, Step


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
    """The reason why there are no steps for the pod; "" if there are."""
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
