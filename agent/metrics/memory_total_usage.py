"""memory_total_usage: bytes of the node's memory that nobody else could have. It cannot be throttled, and running out
of it kills: the most urgent metric there is. Evicted precisely."""

from __future__ import annotations

from agent.metrics.action_metric import MOST_PRIORITY, Metric
from agent.metrics.pod_actions import evicting
from agent.metrics.sorters import Chains
from agent.model import MEMORY

NAME = "memory_total_usage"


def metrics(chains: Chains) -> tuple[Metric, ...]:
    """Bytes are what evicting releases: the pod's working set."""
    return (
        Metric(
            name=NAME,
            action_priority=MOST_PRIORITY,
            sortable=True,
            sort=chains.memory,
            evictable=True,
            evict_quantified=True,
            evict=evicting(NAME, MEMORY),
            resource=MEMORY,
        ),
    )
