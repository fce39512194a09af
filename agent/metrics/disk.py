"""disk_*: rates and utilization of the node's disks, one series a disk (label diskName). Which pod reads and writes how
much is not known here, so they are not quantified, and a rule on one of them acts on all of its pods. There is no
disk_write_utilization: /proc/diskstats has one time in which a disk was busy, with whatever."""

from __future__ import annotations

from agent.metrics.action_metric import Metric
from agent.metrics.pod_actions import evicting
from agent.metrics.sorters import Chains

NAMES = (
    "disk_read_kibps",
    "disk_write_kibps",
    "disk_read_iops",
    "disk_write_iops",
    "disk_read_utilization",
    "disk_total_utilization",
)


def metrics(chains: Chains) -> tuple[Metric, ...]:
    """Evictable, in the general order."""
    return tuple(
        Metric(name=name, action_priority=2, sortable=True, sort=chains.general, evictable=True, evict=evicting(name))
        for name in NAMES
    )
