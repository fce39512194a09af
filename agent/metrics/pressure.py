"""psi_{cpu,memory,io}_{some,full}_{avg10,avg60,avg300}: percentage (0-100) of the last 10, 60 or 300 seconds in which
some or all tasks waited for a resource (Documentation/accounting/psi.rst in the Linux kernel). The share that a pod
causes cannot be computed, so the metrics are not quantified, and a rule acts on all of its pods. Rules on
CPU pressure can throttle; rules on all of them can evict."""

from __future__ import annotations

from agent.metrics.action_metric import ActionMetric
from agent.metrics.pod_actions import evicting, restoring, throttling
from agent.metrics.sorters import Chains

SHARES = ("some", "full")
SPANS = {"avg10": 10.0, "avg60": 60.0, "avg300": 300.0}
"""Averaging period in seconds of each suffix."""


def metrics(chains: Chains) -> tuple[ActionMetric, ...]:
    """The pressure metrics. Memory has a higher priority than CPU, because tasks that wait for memory are close to
    being killed."""
    return tuple(
        make(f"psi_{resource}_{share}_{span}", chains, seconds)
        for resource, make in (("cpu", _cpu), ("memory", _memory), ("io", _io))
        for share in SHARES
        for span, seconds in SPANS.items()
    )


def _cpu(name: str, chains: Chains, seconds: float) -> ActionMetric:
    return ActionMetric(
        name=name,
        action_priority=3,
        sortable=True,
        sort=chains.cpu,
        throttleable=True,
        throttle=throttling(name),
        restore=restoring(name),
        evictable=True,
        evict=evicting(name),
        lag_seconds=seconds,
    )


def _memory(name: str, chains: Chains, seconds: float) -> ActionMetric:
    return ActionMetric(
        name=name,
        action_priority=6,
        sortable=True,
        sort=chains.memory,
        evictable=True,
        evict=evicting(name),
        lag_seconds=seconds,
    )


def _io(name: str, chains: Chains, seconds: float) -> ActionMetric:
    return ActionMetric(
        name=name,
        action_priority=3,
        sortable=True,
        sort=chains.general,
        evictable=True,
        evict=evicting(name),
        lag_seconds=seconds,
    )
