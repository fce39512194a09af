"""cpu_total_usage: what all of the node's CPUs are busy with, in millicores. Throttled and evicted precisely."""

from __future__ import annotations

from agent.metrics.action_metric import Metric
from agent.metrics.pod_actions import evicting, restoring, throttling
from agent.metrics.sorters import Chains
from agent.model import CPU

NAME = "cpu_total_usage"


def metrics(chains: Chains) -> tuple[Metric, ...]:
    """Millicores are what its steps release."""
    return (
        Metric(
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
