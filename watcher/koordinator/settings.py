"""The section [koordinator] of the settings: the collect policy, and what is written to the cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from watcher import model
from watcher.core.config import values
from watcher.core.config.fields import SettingsTable
from watcher.core.config.model_values import WINDOWS
from watcher.core.koordinator.collect_policy import PolicyRule
from watcher.koordinator.policy_rules import AGGREGATE_DURATION, POLICY_RULES, REPORT_INTERVAL

PERCENT = values.integer(lowest=1, highest=100)


@dataclass(frozen=True, repr=False)
class KoordinatorSettings(SettingsTable, section="koordinator"):
    """The collect policy of the NodeMetrics that the API serves and the plug-in LoadAwareScheduling uses, with
    koordlet's defaults."""

    report_interval: Annotated[int, REPORT_INTERVAL] = 60
    """Interval at which NodeMetrics are updated. The effective interval is at least refresh.interval."""
    aggregate_duration: Annotated[int, AGGREGATE_DURATION] = 300
    """Period over which the usage of nodes and pods is averaged. The effective period is at most the longest of
    refresh.windows."""
    aggregate_durations: Annotated[tuple[model.Window, ...] | None, WINDOWS.like('["5m", "10m", "15m"]')] = None
    """Periods over which NodeMetrics contain mean and percentiles of nodes; each must be in refresh.windows. Default:
    all of refresh.windows."""
    nodes: Annotated[
        tuple[PolicyRule, ...],
        POLICY_RULES.like('[{ names = ["gpu-*"], labels = { pool = "gpu" }, report_interval = "30s" }]'),
    ] = ()
    """Rules with other values of the three settings above for some nodes, selected by name patterns, labels or both;
    the first rule that matches a node applies."""
    publish: Annotated[bool, values.BOOLEAN] = False
    """Write NodeMetrics to the cluster, for koord-scheduler. docs/concepts/koordinator.md lists the permissions. Nodes
    that are reported by a koordlet are skipped."""
    writes_per_second: Annotated[int, values.integer(lowest=1, highest=1000)] = 18
    """Most write requests for NodeMetrics per second; in large clusters each object is then written less often than
    once per report interval. 18 keep 2,160 nodes within koord-scheduler's expiration of 180 s."""
    thresholds: Annotated[bool, values.BOOLEAN] = False
    """Write the annotation scheduling.koordinator.sh/usage-thresholds to nodes, from their forecasts, for
    koord-scheduler. docs/concepts/koordinator.md has the rule and the permissions."""
    lowest_cpu_threshold: Annotated[int, PERCENT] = 50
    """CPU threshold in percent that koordinator.thresholds writes at the peak of a node's load."""
    highest_cpu_threshold: Annotated[int, PERCENT] = 65
    """CPU threshold in percent of nodes without load, and the limit in the valley of a node's load."""
    lowest_memory_threshold: Annotated[int, PERCENT] = 85
    """Memory threshold in percent that koordinator.thresholds writes at the peak of a node's load."""
    highest_memory_threshold: Annotated[int, PERCENT] = 95
    """Memory threshold in percent of nodes without load, and the limit in the valley of a node's load."""
    lease_namespace: Annotated[str | None, values.TEXT.like('"load-watcher"')] = None
    """Namespace of the Leases load-watcher-nodemetrics and load-watcher-thresholds, with which the replicas elect the
    writers. Default: the namespace of this pod, or else default."""
