"""Resources of a pod while an in-place resize is under way, as kube-scheduler counts them.

The spec has the new resources as soon as the resize is requested, but the node still has to hold the old ones until the
kubelet has set the new ones. Therefore a request counts with the largest of the spec, the resources that are set
(`status.containerStatuses[].resources`), and those that the kubelet has granted (`allocatedResources`); a limit counts
with the larger of the spec and the limit that is set. If the resize is infeasible on the node, the spec does not count
(component-helpers, `determineEffectiveRequests` and `determineEffectiveLimits`; the default since Kubernetes 1.33, for
pod-level resources since 1.36). Init containers other than sidecars cannot be resized.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from watcher.core.kubernetes.objects import (
    Condition,
    Container,
    Pod,
    PodSpec,
    Quantities,
    Quantity,
    ReportedResources,
    Resources,
)
from watcher.core.kubernetes.quantity import nano


def spec_in_effect(pod: Pod) -> PodSpec:
    """Return the spec with the resources that count now; the spec itself for a pod without a resize under way. Raises
    ValueError for an invalid quantity."""
    spec, status = pod.spec, pod.status
    if not (status.container_statuses or status.init_container_statuses or status.resources):
        return spec
    infeasible = is_infeasible(status.conditions)
    of_pod = spec.resources
    if of_pod is not None and status.resources is not None:
        found = in_effect(of_pod, ReportedResources("", status.resources, status.allocated_resources), infeasible)
        limits = found.limits or of_pod.limits  # an infeasible resize of a pod without limits: those of the spec
        of_pod = Resources(_only(found.requests, of_pod.requests), _only(limits, of_pod.limits))
    return msgspec.structs.replace(
        spec,
        containers=_in_effect(spec.containers, status.container_statuses, infeasible),
        init_containers=_in_effect(spec.init_containers, status.init_container_statuses, infeasible, init=True),
        resources=of_pod,
    )


def resize_state(pod: Pod) -> tuple[object, ...]:
    """Return the parts of the status that `spec_in_effect` depends on, for comparison with those of another version."""
    status = pod.status
    of_containers = status.container_statuses, status.init_container_statuses
    return *of_containers, status.resources, status.allocated_resources, is_infeasible(status.conditions)


def is_infeasible(conditions: Iterable[Condition]) -> bool:
    """Whether the node can never grant the requested resize."""
    return any(each.type == "PodResizePending" and each.reason == "Infeasible" for each in conditions)


def in_effect(spec: Resources, reported: ReportedResources, infeasible: bool) -> Resources:
    """Return the resources of one container that count now. Raises ValueError for an invalid quantity."""
    actual = reported.resources
    if actual is None:
        return spec
    wanted = () if infeasible else (spec,)
    granted = reported.allocated_resources or {}
    return Resources(
        _largest(*(each.requests for each in wanted), actual.requests, granted),
        _largest(*(each.limits for each in wanted), actual.limits),
    )


def _in_effect(
    containers: tuple[Container, ...], statuses: tuple[ReportedResources, ...], infeasible: bool, *, init: bool = False
) -> tuple[Container, ...]:
    reported = {each.name: each for each in statuses}
    return tuple(
        msgspec.structs.replace(each, resources=in_effect(each.resources, reported[each.name], infeasible))
        if each.name in reported and not (init and each.restart_policy != "Always")
        else each
        for each in containers
    )


def _largest(*all_of: Quantities) -> Quantities:
    found: dict[str, Quantity] = {}
    for quantities in all_of:
        for name, quantity in quantities.items():
            if name not in found or nano(quantity) > nano(found[name]):
                found[name] = quantity
    return found


def _only(found: Quantities, names: Quantities) -> Quantities:
    return {name: found.get(name, 0) for name in names}
