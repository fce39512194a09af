"""Metrics without a gap: the watcher's windows (window_cpu_avg_5m, …) and user-defined PromQL expressions.

A window lags by minutes, so it is above its watermark long after the load has ended: a rule on it only keeps new pods
away. The meaning of an expression is unknown, so its metric is never quantified; if its settings allow an action, a
rule on it acts on all of its pods, one step at a time."""

from __future__ import annotations

from typing import Literal

from agent.metrics.action_metric import LEAST_PRIORITY, ActionMetric
from agent.metrics.pod_actions import evicting, restoring, throttling
from agent.metrics.sorters import CHAINS

WINDOW_PREFIX = "window_"

ActsOn = Literal["cpu", "memory", "anything"]


def triggering(
    name: str,
    *,
    acts_on: ActsOn = "anything",
    action_priority: int = LEAST_PRIORITY,
    throttleable: bool = False,
    evictable: bool = True,
    lag_seconds: float = 60.0,
) -> ActionMetric:
    """Create the metric of an expression. `acts_on` selects the pod order; `throttleable` and `evictable` are the
    allowed actions; `lag_seconds` is the delay until the metric shows their effect. Raises ValueError for an invalid
    priority."""
    return ActionMetric(
        name=name,
        action_priority=action_priority,
        sortable=True,
        sort={"cpu": CHAINS.cpu, "memory": CHAINS.memory, "anything": CHAINS.general}[acts_on],
        throttleable=throttleable,
        throttle=throttling(name) if throttleable else None,
        restore=restoring(name) if throttleable else None,
        evictable=evictable,
        evict=evicting(name) if evictable else None,
        lag_seconds=lag_seconds,
    )
