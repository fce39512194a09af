"""cpu_total_utilization: CPU utilization of the node in percent (0-100). Throttling and eviction are quantified: the
gap in millicores follows from the node's cores, so one rule serves nodes of different sizes. (In Crane it cannot be
throttled.)"""

from __future__ import annotations

from agent.metrics.action_metric import ActionMetric
from agent.metrics.cpu_quota import MILLICORES
from agent.metrics.pod_actions import NODE_CORES, evicting, restoring, throttling
from agent.metrics.sorters import Chains
from agent.model import CPU, State

NAME = "cpu_total_utilization"


def _millicores_in_a_percent(state: State) -> float | None:
    cores = state.value(NODE_CORES)
    return None if cores is None else cores * MILLICORES / 100.0


def metrics(chains: Chains) -> tuple[ActionMetric, ...]:
    """The metric; one percent is a hundredth of the node's cores, in millicores."""
    return (
        ActionMetric(
            name=NAME,
            action_priority=5,
            sortable=True,
            sort=chains.cpu,
            throttleable=True,
            throttle_quantified=True,
            throttle=throttling(NAME),
            restore=restoring(NAME),
            evictable=True,
            evict_quantified=True,
            evict=evicting(NAME, CPU),
            resource=CPU,
            scale=_millicores_in_a_percent,
        ),
    )
