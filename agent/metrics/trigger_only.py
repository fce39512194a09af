"""Metrics that only trigger rules: the watcher's windows (window_cpu_avg_5m, …) and user-defined PromQL expressions.

They show that a limit is exceeded, but not how much a pod contributes: a window lags by minutes, and the meaning of an
expression is unknown. So they have no gap and are never quantified; a rule on such a metric acts on all of its pods,
one step at a time."""

from __future__ import annotations

from typing import Literal

from agent.metrics.action_metric import LEAST_PRIORITY, ActionMetric
from agent.metrics.pod_actions import evicting, restoring, throttling
from agent.metrics.sorters import Chains

WINDOW_PREFIX = "window_"

ActsOn = Literal["cpu", "memory", "anything"]


def window(name: str, chains: Chains) -> ActionMetric:
    """The metric for a window of the watcher, by its name; windows of CPU can be throttled."""
    kind, _, minutes = name.removeprefix(WINDOW_PREFIX).partition("_")
    return triggering(
        name,
        chains,
        acts_on="cpu" if kind == "cpu" else "memory" if kind == "memory" else "anything",
        throttleable=kind == "cpu",
        lag_seconds=_seconds(minutes.rpartition("_")[2]),
    )


def triggering(
    name: str,
    chains: Chains,
    *,
    acts_on: ActsOn = "anything",
    action_priority: int = LEAST_PRIORITY,
    throttleable: bool = False,
    evictable: bool = True,
    lag_seconds: float = 60.0,
) -> ActionMetric:
    """Create a trigger-only metric. `acts_on` selects the pod order; `throttleable` and `evictable` are the allowed
    actions; `lag_seconds` is the delay until the metric shows their effect. Raises ValueError for an invalid
    priority."""
    return ActionMetric(
        name=name,
        action_priority=action_priority,
        sortable=True,
        sort={"cpu": chains.cpu, "memory": chains.memory, "anything": chains.general}[acts_on],
        throttleable=throttleable,
        throttle=throttling(name) if throttleable else None,
        restore=restoring(name) if throttleable else None,
        evictable=evictable,
        evict=evicting(name) if evictable else None,
        lag_seconds=lag_seconds,
    )


def _seconds(span: str) -> float:
    """Seconds of a window such as "5m"; 900 for any other text, the longest window of the watcher."""
    return float(span[:-1]) * 60.0 if span.endswith("m") and span[:-1].isdecimal() else 900.0
