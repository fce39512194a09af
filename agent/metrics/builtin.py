"""The built-in metrics.

    cpu_total_usage, memory_total_usage               usage of the node in millicores, and in bytes
    cpu_total_utilization, memory_total_utilization   the same in percent (0-100)
    ext_res_container_cpu_total_usage                 cores in use by all containers with gocrane.io/cpu
    disk_*, network_*                                 rates and utilization, one series per device (label diskName or
                                                      NetInterface)

Throttling and eviction for CPU are quantified: the gap of the percentage in millicores follows from the node's cores,
so one rule serves nodes of different sizes. (In Crane, the percentage cannot be throttled.) Extended CPU only affects
pods with that resource; other pods would release none of it.

Memory in use is what is not available to other programs. It cannot be throttled, and a shortage kills processes, so it
has the highest priority. Its eviction is quantified.

The share of each pod in the load of a device is unknown, so these metrics are not quantified: they can only evict, and
a rule acts on all of its pods. There is no disk_write_utilization, because /proc/diskstats has only one busy time per
disk, for reads and writes.
"""

from __future__ import annotations

from collections.abc import Iterator

from agent.metrics.action_metric import MOST_PRIORITY, ActionMetric, PlanContext, PodSteps, Scale, ThrottleFunction, one
from agent.metrics.pod_actions import MILLICORES, NODE_CORES, evicting, restoring, throttling
from agent.metrics.sorters import Chains, class_and_priority, cpu_usage, ext_cpu_usage, ordered_by, running_time
from agent.model import CPU, EXTENDED_CPU, MEMORY, CpuThrottle, PodState, State

CPU_USAGE = "cpu_total_usage"
CPU_UTILIZATION = "cpu_total_utilization"
MEMORY_TOTAL = "memory_total"
MEMORY_USAGE = "memory_total_usage"
MEMORY_UTILIZATION = "memory_total_utilization"
EXTENDED_CPU_USAGE = "ext_res_container_cpu_total_usage"
DISK = (
    "disk_read_kibps",
    "disk_write_kibps",
    "disk_read_iops",
    "disk_write_iops",
    "disk_read_utilization",
    "disk_total_utilization",
)
NETWORK = (
    "network_receive_kibps",
    "network_sent_kibps",
    "network_receive_pckps",
    "network_sent_pckps",
    "network_drop_in",
    "network_drop_out",
)


def builtin_metrics(chains: Chains) -> Iterator[ActionMetric]:
    """All built-in metrics, with these orders of pods."""
    yield _cpu(CPU_USAGE, chains, one)
    yield _cpu(CPU_UTILIZATION, chains, _millicores_in_a_percent)
    yield _memory(MEMORY_USAGE, chains, one)
    yield _memory(MEMORY_UTILIZATION, chains, _bytes_in_a_percent)
    yield ActionMetric(
        name=EXTENDED_CPU_USAGE,
        action_priority=4,
        sortable=True,
        sort=ordered_by(class_and_priority, ext_cpu_usage, cpu_usage, running_time),
        throttleable=True,
        throttle_quantified=True,
        throttle=_if_extended(throttling(EXTENDED_CPU_USAGE)),
        restore=_if_extended(restoring(EXTENDED_CPU_USAGE)),
        evictable=True,
        evict_quantified=True,
        evict=evicting(EXTENDED_CPU_USAGE, EXTENDED_CPU),
        resource=EXTENDED_CPU,
        scale=_millicores_in_a_core,
    )
    for name in (*DISK, *NETWORK):
        yield ActionMetric(
            name=name, action_priority=2, sortable=True, sort=chains.general, evictable=True, evict=evicting(name)
        )


def _cpu(name: str, chains: Chains, scale: Scale) -> ActionMetric:
    """A metric whose steps release millicores."""
    return ActionMetric(
        name=name,
        action_priority=5,
        sortable=True,
        sort=chains.cpu,
        throttleable=True,
        throttle_quantified=True,
        throttle=throttling(name),
        restore=restoring(name),
        evictable=True,
        evict_quantified=True,
        evict=evicting(name, CPU),
        resource=CPU,
        scale=scale,
    )


def _memory(name: str, chains: Chains, scale: Scale) -> ActionMetric:
    """A metric of which evicting a pod releases its working set in bytes."""
    return ActionMetric(
        name=name,
        action_priority=MOST_PRIORITY,
        sortable=True,
        sort=chains.memory,
        evictable=True,
        evict_quantified=True,
        evict=evicting(name, MEMORY),
        resource=MEMORY,
        scale=scale,
    )


def _millicores_in_a_percent(state: State) -> float | None:
    cores = state.value(NODE_CORES)
    return None if cores is None else cores * MILLICORES / 100.0


def _bytes_in_a_percent(state: State) -> float | None:
    total = state.value(MEMORY_TOTAL)
    return None if total is None else total / 100.0


def _millicores_in_a_core(_: State) -> float:
    return MILLICORES


def _if_extended(function: ThrottleFunction) -> ThrottleFunction:
    def of_extended(pod: PodState, ratio: CpuThrottle, circumstances: PlanContext) -> PodSteps:
        if not pod.extended_cpu_limit:
            return PodSteps(problem="it has no extended CPU (gocrane.io/cpu)")
        return function(pod, ratio, circumstances)

    return of_extended
