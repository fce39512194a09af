"""memory_total_usage and memory_total_utilization: memory of the node that is not available to other programs, in
bytes, and in percent (0-100). It cannot be throttled, and a shortage kills processes, so it has the highest priority.
Eviction is quantified."""

from __future__ import annotations

from agent.metrics.action_metric import MOST_PRIORITY, ActionMetric, Scale, one
from agent.metrics.pod_actions import evicting
from agent.metrics.sorters import Chains
from agent.model import MEMORY, State

USAGE = "memory_total_usage"
UTILIZATION = "memory_total_utilization"
TOTAL = "memory_total"


def metrics(chains: Chains) -> tuple[ActionMetric, ...]:
    """The metrics; evicting a pod releases its working set in bytes."""
    return (_metric(USAGE, chains, one), _metric(UTILIZATION, chains, _bytes_in_a_percent))


def _metric(name: str, chains: Chains, scale: Scale) -> ActionMetric:
    return ActionMetric(
        name=name,
        action_priority=MOST_PRIORITY,
        sortable=True,
        sort=chains.memory,
        evictable=True,
        evict_quantified=True,
        evict=evicting(name, MEMORY),
        resource=MEMORY,
        scale=scale,
    )


def _bytes_in_a_percent(state: State) -> float | None:
    total = state.value(TOTAL)
    return None if total is None else total / 100.0
