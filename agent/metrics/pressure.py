"""psi_{cpu,memory,io}_{some,full}_{avg10,avg60,avg300}: share of the last seconds in which some, or all, tasks waited
for a resource, in percent (Documentation/accounting/psi.rst). Nobody can compute how much of it a pod causes, so none
is quantified: a rule on one of them acts on all of its pods. Waiting for CPU can be throttled, all can be evicted
for."""

from __future__ import annotations

from agent.metrics.attributes import Metric
from agent.metrics.pods import evicting, restoring, throttling
from agent.sorters import Chains

SHARES = ("some", "full")
SPANS = ("avg10", "avg60", "avg300")

CPU_NAMES = tuple(f"psi_cpu_{share}_{span}" for share in SHARES for span in SPANS)
MEMORY_NAMES = tuple(f"psi_memory_{share}_{span}" for share in SHARES for span in SPANS)
IO_NAMES = tuple(f"psi_io_{share}_{span}" for share in SHARES for span in SPANS)


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
        Metric(
            name=name,
            action_priority=6,
            sortable=True,
            sort=chains.memory,
            evictable=True,
            evict=evicting(name),
        )
        for name in MEMORY_NAMES
    )
    io = (
        Metric(name=name, action_priority=3, sortable=True, sort=chains.general, evictable=True, evict=evicting(name))
        for name in IO_NAMES
    )
    return (*cpu, *memory, *io)
