"""Metrics that only trigger: the watcher's windows (window_cpu_avg_5m, …) and values of a PromQL expression of the
user's.

They say that something is wrong, not by how much which pod makes it so: a window lags minutes behind, and nobody knows
what an expression stands for. So they never make a gap and are never quantified; a rule on one of them acts on all of
its pods, one step at a time."""

from __future__ import annotations

from typing import Literal

from agent.metrics.action_metric import LEAST_PRIORITY, Metric
from agent.metrics.pod_actions import evicting, restoring, throttling
from agent.metrics.sorters import Chains

WINDOW_PREFIX = "window_"

ActsOn = Literal["cpu", "memory", "anything"]


def window(name: str, chains: Chains) -> Metric:
    """A window of the watcher's; those of CPU can be throttled."""
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
) -> Metric:
    """The attributes of such a metric: `acts_on` says in whose order its pods are hit, `throttleable` that lowering
    their CPU quota helps, `lag_seconds` when that shows. Raises ValueError for a priority that is none."""
    return Metric(
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
    """Of "5m"; of what is no span, the longest that the watcher has."""
    return float(span[:-1]) * 60.0 if span.endswith("m") and span[:-1].isdecimal() else 900.0
