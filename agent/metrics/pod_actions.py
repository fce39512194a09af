"""Creates the functions with which metrics plan steps on a pod: lowering and restoring the CPU quotas of its
containers, and evicting it.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from agent.metrics import cpu_quota
from agent.metrics.action_metric import EvictFunction, PlanContext, PodSteps, ThrottleFunction, eviction
from agent.metrics.cpu_quota import MILLICORES, NewQuota, quota_lowered
from agent.model import CPU, EXTENDED_CPU, MEMORY, ContainerState, CpuThrottle, PodState, QuotaStep

NODE_CORES = "cpu_core_numbers"
UNKNOWN_CPU = "its CPU usage is unknown, so the release cannot be computed"
UNKNOWN_MEMORY = "its memory usage is unknown, so the release cannot be computed"

NextQuota = Callable[[ContainerState, float, CpuThrottle, PlanContext], NewQuota | None]


def usage_released(pod: PodState) -> dict[str, float]:
    """Known usage of the pod, which its eviction releases: by resource, in millicores and bytes."""
    released: dict[str, float] = {}
    if pod.cpu is not None:
        released[CPU] = MILLICORES * pod.cpu
        if pod.extended_cpu_limit:
            released[EXTENDED_CPU] = released[CPU]
    if pod.memory is not None:
        released[MEMORY] = float(pod.memory)
    return released


def evicting(metric: str, resource: str = "") -> EvictFunction:
    """Return a function that plans the eviction of a pod for a metric. If the pod's usage of `resource` is unknown, it
    plans no step. Without `resource` the metric is not quantified, and the known usage is the release."""

    def evict(pod: PodState, grace: float | None, circumstances: PlanContext) -> PodSteps:
        released = usage_released(pod)
        if resource == EXTENDED_CPU and not pod.extended_cpu_limit:
            return PodSteps(problem="it has no extended CPU (gocrane.io/cpu)")
        if resource and resource not in released:
            unknown = UNKNOWN_MEMORY if resource == MEMORY else UNKNOWN_CPU
            return PodSteps(problem=pod.unmeasured or unknown, unknown=True)
        return eviction(pod, grace, metric, released)

    return evict


def throttling(metric: str) -> ThrottleFunction:
    """Return a function that plans lowering the CPU quota of each container of a pod by one step."""

    def throttle(pod: PodState, ratio: CpuThrottle, circumstances: PlanContext) -> PodSteps:
        if ratio.step_ratio <= 0:
            return PodSteps(problem="its action has stepCPURatio 0, which lowers nothing")
        planned = _steps(pod, metric, ratio, circumstances, _lower)
        if planned.steps or planned.problem:
            return planned
        return PodSteps(problem="its quotas are at their minimum (request, minCPURatio, or the kernel's minimum)")

    return throttle


def restoring(metric: str) -> ThrottleFunction:
    """Return a function that plans raising the CPU quota of each container of a pod by one step, towards the
    original."""

    def restore(pod: PodState, ratio: CpuThrottle, circumstances: PlanContext) -> PodSteps:
        planned = _steps(pod, metric, ratio, circumstances, _raise)
        if planned.steps or planned.problem:
            return planned
        at_home = not quota_lowered(pod, circumstances.originals)
        return PodSteps(problem="it has its original quotas" if at_home else "a step would exceed the watermark")

    return restore


def _lower(container: ContainerState, usage: float, ratio: CpuThrottle, _: PlanContext) -> NewQuota | None:
    return cpu_quota.lowered(container, usage, ratio)


def _raise(container: ContainerState, usage: float, ratio: CpuThrottle, circumstances: PlanContext) -> NewQuota | None:
    original = circumstances.originals.get(container.id)
    if original is None:
        return None
    cores = circumstances.state.value(NODE_CORES)
    room, share = circumstances.max_restore, circumstances.restore_share
    return cpu_quota.raised(container, usage, ratio, original, node_cores=cores, room=room, share=share)


def _steps(
    pod: PodState, metric: str, ratio: CpuThrottle, circumstances: PlanContext, next_quota: NextQuota
) -> PodSteps:
    """The steps of all containers with a name (the sandbox has none) and a known usage, and their total release."""
    steps: list[QuotaStep] = []
    changes: list[float] = []
    containers = [container for container in pod.containers if container.name]
    known = [container for container in containers if container.cpu is not None]
    if not known and (containers or pod.unmeasured):
        return PodSteps(problem=pod.unmeasured or UNKNOWN_CPU, unknown=True)
    if not known:
        return PodSteps(problem="it has no running container")
    if circumstances.restore_share is not None:
        circumstances = replace(circumstances, restore_share=circumstances.restore_share / len(known))
    for container in known:
        new = next_quota(container, container.cpu or 0.0, ratio, circumstances)
        if new is None:
            continue
        restores = next_quota is _raise
        steps.append(_step(pod, container, metric, new, restores=restores))
        changes.append(new.millicores)
        if restores and circumstances.max_restore is not None:
            room = max(0.0, circumstances.max_restore - new.millicores)
            circumstances = replace(circumstances, max_restore=room)
    if not steps:
        return PodSteps()
    return PodSteps(tuple(steps), _released(pod, sum(changes)))


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
