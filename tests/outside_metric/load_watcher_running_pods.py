"""kubelet_running_pods: the number of pods on the node. An eviction releases one; throttling releases none."""

from __future__ import annotations

from agent.metrics.action_metric import ActionMetric, PlanContext, PodSteps, eviction
from agent.metrics.pod_actions import usage_released
from agent.metrics.sorters import Chains, class_and_priority, ordered_by, running_time
from agent.model import PodState

NAME = "kubelet_running_pods"


def evict(pod: PodState, grace: float | None, circumstances: PlanContext) -> PodSteps:
    """Release one pod and its usage, which closes the gaps of other metrics too."""
    return eviction(pod, grace, NAME, {**usage_released(pod), "pods": 1.0})


def metrics(chains: Chains) -> tuple[ActionMetric, ...]:
    """Pods of the lowest class and priority are evicted first, of these the youngest."""
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
