"""What acting on a whole pod does: CPU quotas of its containers, and its eviction. The metrics' functions are made
here.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable

from agent.metrics import cpu_quota, upstream_quota
from agent.metrics.action_metric import Circumstances, EvictFunction, Planned, ThrottleFunction, eviction
from agent.metrics.cpu_quota import MILLICORES, NewQuota
from agent.metrics.options import Quirk
from agent.metrics.original_values import owed
from agent.model import CPU, EXTENDED_CPU, MEMORY, ContainerState, CpuThrottle, PodState, QuotaStep

NODE_CORES = "cpu_core_numbers"
UNKNOWN_CPU = "its CPU usage is not known, so nobody can tell what this would release"
UNKNOWN_MEMORY = "its memory usage is not known, so nobody can tell what this would release"

NextQuota = Callable[[ContainerState, float, CpuThrottle, Circumstances], NewQuota | None]


def usage_released(pod: PodState) -> dict[str, float]:
    """What the node gets back when the pod is gone, so far as it is known: by resource, in millicores and bytes."""
    released: dict[str, float] = {}
    if pod.cpu is not None:
        released[CPU] = MILLICORES * pod.cpu
        if pod.extended_cpu_limit:
            released[EXTENDED_CPU] = released[CPU]
    if pod.memory is not None:
        released[MEMORY] = float(pod.memory)
    return released


def evicting(metric: str, resource: str = "") -> EvictFunction:
    """Evicts a pod for a metric. Where the pod's usage of `resource` is not known there is no step; a metric that names
    none is not quantified, and takes what is known."""

    def evict(pod: PodState, grace: float | None, circumstances: Circumstances) -> Planned:
        released = usage_released(pod)
        futile = Quirk.FUTILE in circumstances.options.quirks
        if resource == EXTENDED_CPU and not pod.extended_cpu_limit:
            return Planned(problem="it has no extended CPU")
        if resource and resource not in released and not futile:
            return Planned(problem=UNKNOWN_MEMORY if resource == MEMORY else UNKNOWN_CPU, unknown=True)
        return eviction(pod, grace, metric, released)

    return evict


def throttling(metric: str) -> ThrottleFunction:
    """Lowers the CPU quota of each container of a pod by one step."""

    def throttle(pod: PodState, ratio: CpuThrottle, circumstances: Circumstances) -> Planned:
        quirks = Quirk.QUOTAS in circumstances.options.quirks
        if ratio.step_ratio <= 0 and not quirks:
            return Planned(problem="its action takes nothing: stepCPURatio is 0")
        lower = upstream_quota.lowered if quirks else cpu_quota.lowered
        planned = _steps(pod, metric, ratio, circumstances, lambda c, usage, step, _: lower(c, usage, step))
        if planned.steps or planned.problem:
            return planned
        return Planned(problem="its quotas are at their floor (request, minCPURatio, or what the kernel takes)")

    return throttle


def restoring(metric: str) -> ThrottleFunction:
    """Raises the CPU quota of each container of a pod by one step, towards the original one."""

    def restore(pod: PodState, ratio: CpuThrottle, circumstances: Circumstances) -> Planned:
        next_quota = _upstream_raise if Quirk.QUOTAS in circumstances.options.quirks else _raise
        planned = _steps(pod, metric, ratio, circumstances, next_quota)
        if planned.steps or planned.problem:
            return planned
        at_home = not owed((pod,), circumstances.originals)
        return Planned(problem="it has its original quotas" if at_home else "there is no room for a step")

    return restore


def _raise(
    container: ContainerState, usage: float, ratio: CpuThrottle, circumstances: Circumstances
) -> NewQuota | None:
    original = circumstances.originals.get(container.id)
    if original is None:
        return None
    cores = circumstances.state.value(NODE_CORES)
    return cpu_quota.raised(container, usage, ratio, original, node_cores=cores, room=circumstances.room)


def _upstream_raise(container: ContainerState, usage: float, ratio: CpuThrottle, _: Circumstances) -> NewQuota | None:
    return upstream_quota.raised(container, usage, ratio)


def _steps(
    pod: PodState, metric: str, ratio: CpuThrottle, circumstances: Circumstances, next_quota: NextQuota
) -> Planned:
    """The steps of all containers with a name (one without is the sandbox) and a usage, and what they change
    together."""
    steps: list[QuotaStep] = []
    changes: list[float] = []
    containers = [container for container in pod.containers if container.name]
    known = [container for container in containers if container.cpu is not None]
    if not known:
        return Planned(problem=UNKNOWN_CPU if containers else "it has no running container", unknown=bool(containers))
    for container in known:
        new = next_quota(container, container.cpu or 0.0, ratio, circumstances)
        if new is None:
            continue
        restores = next_quota in (_raise, _upstream_raise)
        steps.append(_step(pod, container, metric, new, restores=restores))
        changes.append(new.millicores)
        if restores and circumstances.room is not None:
            room = max(0.0, circumstances.room - new.millicores)
            circumstances = Circumstances(circumstances.state, circumstances.options, circumstances.originals, room)
    if not steps:
        return Planned()
    last_only = Quirk.QUOTAS in circumstances.options.quirks
    return Planned(tuple(steps), _released(pod, changes[-1] if last_only else sum(changes)))


def _step(pod: PodState, container: ContainerState, metric: str, new: NewQuota, *, restores: bool) -> QuotaStep:
    return QuotaStep(
        pod=pod.key,
        uid=pod.uid,
        container=container.name,
        container_id=container.id,
        before=container.quota,
        after=new.quota,
        period=container.period,
        metric=metric,
        released=_released(pod, new.millicores),
        kind="restore" if restores else "throttle",
    )


def _released(pod: PodState, millicores: float) -> dict[str, float]:
    return {CPU: millicores, **({EXTENDED_CPU: millicores} if pod.extended_cpu_limit else {})}
