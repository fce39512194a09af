"""kubelet_running_pods: how many pods run on the node. Each that is evicted releases one, so that a rule can keep a
node to a number of pods; they cannot be throttled for it."""

from __future__ import annotations

from agent.metrics.action_metric import ActionMetric, PlanContext, PodSteps, eviction
from agent.metrics.pod_actions import usage_released
from agent.metrics.sorters import Chains, class_and_priority, ordered_by, running_time
from agent.model import PodState

NAME = "kubelet_running_pods"


def evict(pod: PodState, grace: float | None, circumstances: PlanContext) -> PodSteps:
    """One pod fewer, and what it uses besides, which closes other gaps too."""
    return eviction(pod, grace, NAME, {**usage_released(pod), "pods": 1.0})


def metrics(chains: Chains) -> tuple[ActionMetric, ...]:
    """The youngest of the least important goes first."""
    return (
        ActionMetric(
            name=NAME,
            action_priority=1,
            sortable=True,
            sort=ordered_by(class_and_priority, running_time),
            evictable=True,
            evict_quantified=True,
            evict=evict,
            resource="pods",
        ),
    )
