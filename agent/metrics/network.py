"""network_*: rates of the node's network interfaces, one series per interface (label NetInterface). The share of each
pod is unknown, so the metrics are not quantified, and a rule acts on all of its pods."""

from __future__ import annotations

from agent.metrics.action_metric import ActionMetric
from agent.metrics.pod_actions import evicting
from agent.metrics.sorters import Chains

NAMES = (
    "network_receive_kibps",
    "network_sent_kibps",
    "network_receive_pckps",
    "network_sent_pckps",
    "network_drop_in",
    "network_drop_out",
)


def metrics(chains: Chains) -> tuple[ActionMetric, ...]:
    """The network metrics; they can only evict, in the general pod order."""
    return tuple(
        ActionMetric(
            name=name, action_priority=2, sortable=True, sort=chains.general, evictable=True, evict=evicting(name)
        )
        for name in NAMES
    )
