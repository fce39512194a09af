"""cpu_total_usage: CPU usage of the node in millicores. Throttling and eviction are quantified."""

from __future__ import annotations

from agent.metrics.action_metric import ActionMetric
from agent.metrics.pod_actions import evicting, restoring, throttling
from agent.metrics.sorters import Chains
from agent.model import CPU

NAME = "cpu_total_usage"


def metrics(chains: Chains) -> tuple[ActionMetric, ...]:
    """Metric of the total CPU usage of the node in millicores; its steps release millicores."""
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
        ),
    )
