"""memory_total_usage: memory of the node that is not available to other programs, in bytes. It cannot be throttled, and
a shortage kills processes, so it has the highest priority. Eviction is quantified."""

from __future__ import annotations

from agent.metrics.action_metric import MOST_PRIORITY, ActionMetric
from agent.metrics.pod_actions import evicting
from agent.metrics.sorters import Chains
from agent.model import MEMORY

NAME = "memory_total_usage"


def metrics(chains: Chains) -> tuple[ActionMetric, ...]:
    """The metric; evicting a pod releases its working set in bytes."""
    return (
        ActionMetric(
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
