"""cpu_total_usage and cpu_total_utilization: CPU usage of the node in millicores, and in percent (0-100). Throttling
and eviction are quantified: the gap of the percentage in millicores follows from the node's cores, so one rule serves
nodes of different sizes. (In Crane, the percentage cannot be throttled.)"""

from __future__ import annotations

from agent.metrics.action_metric import ActionMetric, Scale, one
from agent.metrics.pod_actions import MILLICORES, NODE_CORES, evicting, restoring, throttling
from agent.metrics.sorters import Chains
from agent.model import CPU, State

USAGE = "cpu_total_usage"
UTILIZATION = "cpu_total_utilization"


def metrics(chains: Chains) -> tuple[ActionMetric, ...]:
    """The metrics; their steps release millicores."""
    return (_metric(USAGE, chains, one), _metric(UTILIZATION, chains, _millicores_in_a_percent))


def _metric(name: str, chains: Chains, scale: Scale) -> ActionMetric:
    return ActionMetric(
        name=name,
        action_priority=5,
        sortable=True,
        sort=chains.cpu,
        throttleable=True,
        throttle_quantified=True,
        throttle=throttling(name),
        restore=restoring(name),
        evictable=True,
        evict_quantified=True,
        evict=evicting(name, CPU),
        resource=CPU,
        scale=scale,
    )


def _millicores_in_a_percent(state: State) -> float | None:
    cores = state.value(NODE_CORES)
    return None if cores is None else cores * MILLICORES / 100.0
