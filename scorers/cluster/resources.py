"""Effective requests and limits of a pod, computed as Kubernetes does, as integers.

CPU is in millicores, every other resource in its own unit (bytes, devices), rounded up as kube-scheduler does
(`MilliValue`, `Value`). Integers make sums over the pods of a node independent of the order in which pods are added and
removed.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Literal, cast, get_args

from watcher.core.kubernetes.objects import Container, Pod, PodSpec, Quantities, Quantity, Resources
from watcher.core.kubernetes.quantity import nano
from watcher.core.kubernetes.resize import spec_in_effect

CPU = "cpu"
MEMORY = "memory"

Amounts = Mapping[str, int]
"""Amounts by resource name: millicores for cpu, whole units for the rest. A missing resource is zero."""

Qos = Literal["Guaranteed", "Burstable", "BestEffort"]
_QOS_CLASSES = frozenset(get_args(Qos))

DEFAULT_REQUESTS: Quantities = {CPU: "100m", MEMORY: "200Mi"}
"""Amounts that kube-scheduler's scoring counts for a container without CPU or memory request."""

MAX_AMOUNT = 1 << 53
"""Upper bound of an amount (9 petabytes), so that sums over a thousand pods fit into 64 bits."""

_MILLI, _WHOLE = 10**6, 10**9  # units in nano


@lru_cache(maxsize=1 << 12, typed=True)  # defaults are read for each pod
def amount(resource: str, quantity: Quantity) -> int:
    """Return one quantity, rounded away from zero. Raises ValueError for an invalid quantity."""
    billionths = nano(quantity)
    unit = _MILLI if resource == CPU else _WHOLE
    size = min(-(-abs(billionths) // unit), MAX_AMOUNT)
    return size if billionths >= 0 else -size


def amounts(quantities: Quantities) -> Amounts:
    """Return all amounts of a map of quantities. Raises ValueError that names the resource."""
    return _amounts(tuple(quantities.items()))


@lru_cache(maxsize=1 << 14)  # replicas have equal requests
def _amounts(quantities: tuple[tuple[str, Quantity], ...]) -> Amounts:
    read: dict[str, int] = {}
    for resource, quantity in quantities:
        try:
            read[resource] = amount(resource, quantity)
        except ValueError as error:
            raise ValueError(f"{resource}: {error}") from None
    return read


def nonnegative_amounts(quantities: Quantities) -> Amounts:
    """As `amounts`, for requests and limits of a pod, which must not be negative. Raises ValueError that names the
    resource."""
    return _asked_for(tuple(quantities.items()))


@lru_cache(maxsize=1 << 14)
def _asked_for(quantities: tuple[tuple[str, Quantity], ...]) -> Amounts:
    read = _amounts(quantities)
    for resource, quantity in quantities:
        if read[resource] < 0:
            raise ValueError(f"{resource}: must not be negative (given: {quantity!r})")
    return read


def requests_of(pod: Pod) -> Amounts:
    """Return the effective requests of a pod (component-helpers, `PodRequests`): the sum over containers and sidecars,
    or the highest need while an init container runs if that is more. Pod-level requests replace this result; the
    overhead is added. During an in-place resize, old and new requests count as described in `resize`."""
    return _effective_requests(spec_in_effect(pod), lambda resources: resources.requests)


def counted_requests_of(pod: Pod) -> Amounts:
    """Return CPU (millicores) and memory (bytes) as kube-scheduler's scoring counts them (`NonZeroRequested`): a
    container without a request counts with a default, so that pods without requests are spread too."""
    total = _effective_requests(spec_in_effect(pod), lambda resources: {**DEFAULT_REQUESTS, **resources.requests})
    return {name: total.get(name, 0) for name in DEFAULT_REQUESTS}


def limits_of(pod: Pod) -> Amounts:
    """Return the effective limits of a pod (`PodLimits`), as `requests_of`; the overhead is added only to resources
    with a limit above 0."""
    spec = spec_in_effect(pod)
    most = _of_containers(spec, lambda resources: resources.limits)
    most = _overridden(most, spec.resources, lambda resources: resources.limits)
    return _added(most, {name: size for name, size in nonnegative_amounts(spec.overhead).items() if most.get(name)})


def _effective_requests(spec: PodSpec, of_container: Callable[[Resources], Quantities]) -> dict[str, int]:
    asked = _of_containers(spec, of_container)
    asked = _overridden(asked, spec.resources, lambda resources: resources.requests)
    return _added(asked, nonnegative_amounts(spec.overhead))


def limits_raised_to_requests(limits: Amounts, requests: Amounts) -> Amounts:
    """Return limits raised to at least the requests: a resource without a limit counts with its request."""
    return {name: max(limits.get(name, 0), requests.get(name, 0)) for name in (*limits, *requests)}


def qos_class(pod: Pod) -> Qos:
    """Return the QoS class from the pod's status, or compute it for a pod that the API server has not admitted yet."""
    if pod.status.qos_class in _QOS_CLASSES:
        return cast(Qos, pod.status.qos_class)
    if is_best_effort(pod):
        return "BestEffort"
    every = [(_compute(each.requests), _compute(each.limits)) for each in _deciding(pod)]
    whole = all(len(limits) == 2 and {**limits, **requests} == limits for requests, limits in every)
    return "Guaranteed" if whole else "Burstable"


def is_best_effort(pod: Pod) -> bool:
    """Return whether the QoS class is BestEffort; for most pods the first container decides."""
    if pod.status.qos_class in _QOS_CLASSES:
        return pod.status.qos_class == "BestEffort"
    return not any(map(_is_set, _deciding(pod)))


def _deciding(pod: Pod) -> list[Resources]:
    """Return the resources that determine the class: pod-level resources if the pod has the field, even if it is empty
    (`ComputePodQOS`), otherwise those of the containers."""
    if pod.spec.resources is not None:
        return [pod.spec.resources]
    return [container.resources for container in (*pod.spec.containers, *pod.spec.init_containers)]


def _is_set(resources: Resources) -> bool:
    return bool(_compute(resources.requests) or _compute(resources.limits))


def _compute(quantities: Quantities) -> Amounts:
    """Return the nonzero amounts of CPU and memory; other resources do not affect the class."""
    read = amounts(quantities)
    return {name: read[name] for name in (CPU, MEMORY) if read.get(name, 0) > 0}


def _of_containers(spec: PodSpec, part: Callable[[Resources], Quantities]) -> dict[str, int]:
    total: dict[str, int] = {}
    for container in spec.containers:
        total = _added(total, nonnegative_amounts(part(container.resources)))
    if not spec.init_containers:
        return total
    sidecars: dict[str, int] = {}
    at_most: dict[str, int] = {}
    for container in spec.init_containers:
        own = nonnegative_amounts(part(container.resources))
        if _is_sidecar(container):
            sidecars = _added(sidecars, own)
            total = _added(total, own)
            turn = sidecars
        else:
            turn = _added(sidecars, own)
        at_most = {name: max(at_most.get(name, 0), turn.get(name, 0)) for name in (*at_most, *turn)}
    return {name: max(total.get(name, 0), at_most.get(name, 0)) for name in (*total, *at_most)}


def _is_sidecar(container: Container) -> bool:
    return container.restart_policy == "Always"


def _overridden(
    total: dict[str, int], of_pod: Resources | None, part: Callable[[Resources], Quantities]
) -> dict[str, int]:
    if of_pod is None:
        return total
    own = {name: size for name, size in nonnegative_amounts(part(of_pod)).items() if _may_be_of_pod(name)}
    return {**total, **own}


def _may_be_of_pod(resource: str) -> bool:
    return resource in (CPU, MEMORY) or resource.startswith("hugepages-")


def _added(left: Amounts, right: Amounts) -> dict[str, int]:
    if not (left and right):
        return dict(left or right)
    total = dict(left)
    for name, size in right.items():
        total[name] = total.get(name, 0) + size
    return total
