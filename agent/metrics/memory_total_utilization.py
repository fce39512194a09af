"""memory_total_utilization: memory of the node that is not available to other programs, in percent (0-100). Eviction is
quantified."""

from __future__ import annotations

from agent.metrics.action_metric import MOST_PRIORITY, ActionMetric
from agent.metrics.pod_actions import evicting
from agent.metrics.sorters import Chains
from agent.model import MEMORY, State

NAME = "memory_total_utilization"
TOTAL = "memory_total"


def _bytes_in_a_percent(state: State) -> float | None:
    total = state.value(TOTAL)
    return None if total is None else total / 100.0


def metrics(chains: Chains) -> tuple[ActionMetric, ...]:
    """The metric; one percent is a hundredth of the node's memory, in bytes."""
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
            scale=_bytes_in_a_percent,
        ),
    )
