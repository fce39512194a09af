"""ext_res_container_cpu_total_usage: total CPU usage in cores of all containers with gocrane.io/cpu. Throttling and
eviction are quantified, and only affect pods with that resource; other pods would release none of it."""

from __future__ import annotations

from agent.metrics.action_metric import ActionMetric, PlanContext, PodSteps, ThrottleFunction
from agent.metrics.pod_actions import MILLICORES, evicting, restoring, throttling
from agent.metrics.sorters import Chains, class_and_priority, cpu_usage, ext_cpu_usage, ordered_by, running_time
from agent.model import EXTENDED_CPU, CpuThrottle, PodState, State

NAME = "ext_res_container_cpu_total_usage"


def _millicores_in_a_core(_: State) -> float:
    return MILLICORES


def _if_extended(function: ThrottleFunction) -> ThrottleFunction:
    def of_extended(pod: PodState, ratio: CpuThrottle, circumstances: PlanContext) -> PodSteps:
        if not pod.extended_cpu_limit:
            return PodSteps(problem="it has no extended CPU (gocrane.io/cpu)")
        return function(pod, ratio, circumstances)

    return of_extended


def metrics(_: Chains) -> tuple[ActionMetric, ...]:
    """Metric of the extended CPU usage in cores; its steps release millicores."""
    return (
        ActionMetric(
            name=NAME,
            action_priority=4,
            sortable=True,
            sort=ordered_by(class_and_priority, ext_cpu_usage, cpu_usage, running_time),
            throttleable=True,
            throttle_quantified=True,
            throttle=_if_extended(throttling(NAME)),
            restore=_if_extended(restoring(NAME)),
            evictable=True,
            evict_quantified=True,
            evict=evicting(NAME, EXTENDED_CPU),
            resource=EXTENDED_CPU,
            scale=_millicores_in_a_core,
        ),
    )
