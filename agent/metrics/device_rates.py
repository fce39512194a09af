"""disk_* and network_*: rates and utilization of the node's disks and network interfaces, one series per device (label
diskName or NetInterface). The share of each pod is unknown, so the metrics are not quantified, and a rule acts on all
of its pods. There is no disk_write_utilization, because /proc/diskstats has only one busy time per disk, for reads and
writes."""

from __future__ import annotations

from agent.metrics.action_metric import ActionMetric
from agent.metrics.pod_actions import evicting
from agent.metrics.sorters import Chains

NAMES = (
    "disk_read_kibps",
    "disk_write_kibps",
    "disk_read_iops",
    "disk_write_iops",
    "disk_read_utilization",
    "disk_total_utilization",
    "network_receive_kibps",
    "network_sent_kibps",
    "network_receive_pckps",
    "network_sent_pckps",
    "network_drop_in",
    "network_drop_out",
)


def metrics(chains: Chains) -> tuple[ActionMetric, ...]:
    """The metrics of disks and network interfaces; they can only evict, in the general pod order."""
    return tuple(
        ActionMetric(
            name=name, action_priority=2, sortable=True, sort=chains.general, evictable=True, evict=evicting(name)
        )
        for name in NAMES
    )
