"""Effective requests and limits of a pod, computed as Kubernetes does, as integers.

CPU is in millicores, every other resource in its own unit (bytes, devices). A sum is rounded up once, as in
kube-scheduler (`MilliValue`, `Value`). Integers make sums over the pods of a node independent of the order in which
pods are added and removed.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Literal, TypeVar, cast, get_args

from watcher.core.kubernetes.objects import Container, Pod, PodSpec, Quantities, Quantity, Resources
from watcher.core.kubernetes.quantity import nano
from watcher.core.kubernetes.resize import spec_in_effect

CPU = "cpu"
MEMORY = "memory"

Amounts = Mapping[str, int]
"""Amounts by resource name: millicores for cpu, whole units for the rest. A missing resource is zero."""

Number = TypeVar("Number", int, float)

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
    return _in_units(resource, nano(quantity))


def _in_units(resource: str, billionths: int) -> int:
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


def exact_amounts(quantities: Quantities) -> Amounts:
    """Return all amounts in billionths, for requests and limits of a pod, which must not be negative. Raises ValueError
    that names the resource."""
    return _exact(tuple(quantities.items()))


@lru_cache(maxsize=1 << 14)  # replicas have equal requests
def _exact(quantities: tuple[tuple[str, Quantity], ...]) -> Amounts:
    read: dict[str, int] = {}
    for resource, quantity in quantities:
        try:
            read[resource] = nano(quantity)
        except ValueError as error:
            raise ValueError(f"{resource}: {error}") from None
        if read[resource] < 0:
            raise ValueError(f"{resource}: must not be negative (given: {quantity!r})")
    return read


def rounded(billionths: Amounts) -> dict[str, int]:
    """Return amounts in billionths in the units of this module, rounded up."""
    return {name: _in_units(name, size) for name, size in billionths.items()}


def requests_of(pod: Pod) -> Amounts:
    """Return the effective requests of a pod (component-helpers, `PodRequests`): the sum over containers and sidecars,
    or the highest need while an init container runs if that is more. Pod-level requests replace this result; the
    overhead is added. During an in-place resize, old and new requests count as described in `resize`."""
    return rounded(exact_requests_of(pod))


def exact_requests_of(pod: Pod) -> Amounts:
    """As `requests_of`, in billionths of a core, byte or device."""
    return _requests(spec_in_effect(pod), lambda resources: resources.requests)


def counted_requests_of(pod: Pod) -> Amounts:
    """Return CPU (millicores) and memory (bytes) as kube-scheduler's scoring counts them (`NonZeroRequested`): a
    container without a request counts with a default, so that pods without requests are spread too."""
    total = rounded(_requests(spec_in_effect(pod), lambda resources: {**DEFAULT_REQUESTS, **resources.requests}))
    return {name: total.get(name, 0) for name in DEFAULT_REQUESTS}


def limits_of(pod: Pod) -> Amounts:
    """Return the effective limits of a pod (`PodLimits`), as `requests_of`; the overhead is added only to resources
    with a limit above 0."""
    return rounded(exact_limits_of(pod))


def exact_limits_of(pod: Pod) -> Amounts:
    """As `limits_of`, in billionths of a core, byte or device."""
    spec = spec_in_effect(pod)
    most = of_containers(spec, lambda each: exact_amounts(each.resources.limits))
    if spec.resources is not None:
        most |= of_pod_level(exact_amounts(spec.resources.limits))
    return _added(most, {name: size for name, size in exact_amounts(spec.overhead).items() if most.get(name)})


def _requests(spec: PodSpec, of_container: Callable[[Resources], Quantities]) -> dict[str, int]:
    asked = of_containers(spec, lambda each: exact_amounts(of_container(each.resources)))
    if spec.resources is not None:
        asked |= of_pod_level(exact_amounts(spec.resources.requests))
    return _added(asked, exact_amounts(spec.overhead))


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


def of_containers(spec: PodSpec, amounts_of: Callable[[Container], Amounts]) -> dict[str, int]:
    """Return the amounts of all containers of a pod, as `combined` counts them."""
    containers = (amounts_of(each) for each in spec.containers)
    return combined(containers, ((amounts_of(each), is_sidecar(each)) for each in spec.init_containers))


def combined(
    containers: Iterable[Mapping[str, Number]], init_containers: Iterable[tuple[Mapping[str, Number], bool]]
) -> dict[str, Number]:
    """Combine the amounts of containers, and of init containers in their order, each with whether it is a sidecar: the
    sum over containers and sidecars, or the highest need while an init container runs, which is that of the init
    container and of the sidecars before it."""
    total: dict[str, Number] = {}
    for own in containers:
        total = _added(total, own)
    sidecars: dict[str, Number] = {}
    at_most: dict[str, Number] = {}
    for own, stays in init_containers:
        turn = _added(sidecars, own)
        if stays:
            total, sidecars = _added(total, own), turn
        for name, size in turn.items():
            at_most[name] = max(at_most.get(name, size), size)
    for name, size in at_most.items():
        total[name] = max(total.get(name, size), size)
    return total


def is_sidecar(container: Container) -> bool:
    """Whether an init container keeps running beside the containers of its pod (a native sidecar)."""
    return container.restart_policy == "Always"


def of_pod_level(amounts: Mapping[str, Number]) -> Mapping[str, Number]:
    """Return the amounts of those resources that a pod can have as a whole; others are ignored."""
    return {name: size for name, size in amounts.items() if _may_be_of_pod(name)}


def _may_be_of_pod(resource: str) -> bool:
    return resource in (CPU, MEMORY) or resource.startswith("hugepages-")


def _added(left: Mapping[str, Number], right: Mapping[str, Number]) -> dict[str, Number]:
    if not (left and right):
        return dict(left or right)
    total = dict(left)
    for name, size in right.items():
        total[name] = total[name] + size if name in total else size
    return total
