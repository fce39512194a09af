"""memory_total_utilization: share of the node's memory that nobody else could have, in percent. Evicted precisely."""

from __future__ import annotations

from agent.metrics.action_metric import MOST_PRIORITY, Metric
from agent.metrics.pod_actions import evicting
from agent.metrics.sorters import Chains
from agent.model import MEMORY, State

NAME = "memory_total_utilization"
TOTAL = "memory_total"


def _bytes_in_a_percent(state: State) -> float | None:
    total = state.value(TOTAL)
    return None if total is None else total / 100.0


def metrics(chains: Chains) -> tuple[Metric, ...]:
    """A percent is a hundredth of the node's memory."""
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
            scale=_bytes_in_a_percent,
        ),
    )
