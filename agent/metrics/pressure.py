"""psi_{cpu,memory,io}_{some,full}_{avg10,avg60,avg300}: share of the last seconds in which some, or all, tasks waited
for a resource, in percent (Documentation/accounting/psi.rst). Nobody can compute how much of it a pod causes, so none
is quantified: a rule on one of them acts on all of its pods. Waiting for CPU can be throttled, all can be evicted
for."""

from __future__ import annotations

from agent.metrics.action_metric import Metric
from agent.metrics.pod_actions import evicting, restoring, throttling
from agent.metrics.sorters import Chains

SHARES = ("some", "full")
SPANS = {"avg10": 10.0, "avg60": 60.0, "avg300": 300.0}
"""The seconds over which each is an average."""


def metrics(chains: Chains) -> tuple[Metric, ...]:
    """Memory's is more urgent than that of CPU: what waits for memory is about to be killed."""
    return tuple(
        make(f"psi_{resource}_{share}_{span}", chains, seconds)
        for resource, make in (("cpu", _cpu), ("memory", _memory), ("io", _io))
        for share in SHARES
        for span, seconds in SPANS.items()
    )


def _cpu(name: str, chains: Chains, seconds: float) -> Metric:
    return Metric(
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


def _memory(name: str, chains: Chains, seconds: float) -> Metric:
    return Metric(
        name=name,
        action_priority=6,
        sortable=True,
        sort=chains.memory,
        evictable=True,
        evict=evicting(name),
        lag_seconds=seconds,
    )


def _io(name: str, chains: Chains, seconds: float) -> Metric:
    return Metric(
        name=name,
        action_priority=3,
        sortable=True,
        sort=chains.general,
        evictable=True,
        evict=evicting(name),
        lag_seconds=seconds,
    )
