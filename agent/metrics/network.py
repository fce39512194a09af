"""network_*: rates of the node's network interfaces, one series an interface (label NetInterface). Which pod sends and
receives how much is not known here, so they are not quantified, and a rule on one of them acts on all of its pods."""

from __future__ import annotations

from agent.metrics.action_metric import Metric
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


def metrics(chains: Chains) -> tuple[Metric, ...]:
    """Evictable, in the general order."""
    return tuple(
        Metric(name=name, action_priority=2, sortable=True, sort=chains.general, evictable=True, evict=evicting(name))
        for name in NAMES
    )
