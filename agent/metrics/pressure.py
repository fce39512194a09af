"""psi_{cpu,memory,io}_{some,full}_avg10: share of the last ten seconds in which tasks waited for a resource, in percent
(Documentation/accounting/psi.rst). Nobody can compute how much of it a pod causes, so none is quantified: a rule on one
of them acts on all of its pods. Waiting for CPU can be throttled, all can be evicted for."""

from __future__ import annotations

from agent.metrics.attributes import Metric
from agent.metrics.pods import evicting, restoring, throttling
from agent.sorters import Chains

CPU_NAMES = ("psi_cpu_some_avg10", "psi_cpu_full_avg10")
MEMORY_NAMES = ("psi_memory_some_avg10", "psi_memory_full_avg10")
IO_NAMES = ("psi_io_some_avg10", "psi_io_full_avg10")


def metrics(chains: Chains) -> tuple[Metric, ...]:
    """Memory's is more urgent than that of CPU: what waits for memory is about to be killed."""
    cpu = (
        Metric(
            name=name,
            action_priority=3,
            sortable=True,
            sort=chains.cpu,
            throttleable=True,
            throttle=throttling(name),
            restore=restoring(name),
            evictable=True,
            evict=evicting(name),
        )
        for name in CPU_NAMES
    )
    memory = (
        Metric(name=name, action_priority=6, sortable=True, sort=chains.memory, evictable=True, evict=evicting(name))
        for name in MEMORY_NAMES
    )
    io = (
        Metric(name=name, action_priority=3, sortable=True, sort=chains.general, evictable=True, evict=evicting(name))
        for name in IO_NAMES
    )
    return (*cpu, *memory, *io)
