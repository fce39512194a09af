"""Decode pod objects from the API or the kubelet: attributes that permit or forbid actions, and the requested
resources.

A static pod comes from a file on the node. The kubelet names its control group after the hash of that file; the API has
it as a mirror pod with another uid, and the hash in an annotation. The kubelet's own list has the source annotation on
every pod, so its value matters, not its presence (Crane checks only its presence).

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from agent.model import ContainerState, PodState
from agent.qos import QosClass
from agent.state.readings import PodFacts
from watcher.core.kubernetes.objects import (
    Condition,
    Container,
    ObjectMetadata,
    Quantities,
    ReportedResources,
    Resources,
)
from watcher.core.kubernetes.quantity import nano
from watcher.core.kubernetes.resize import in_effect, is_infeasible
from watcher.core.kubernetes.times import read_time
from watcher.core.kubernetes.wire import Resource

SOURCE = "kubernetes.io/config.source"
MIRROR = "kubernetes.io/config.mirror"
HASH = "kubernetes.io/config.hash"
FROM_API = "api"
EXTENDED_CPU = "gocrane.io/cpu"
EXTENDED_MEMORY = "gocrane.io/memory"
DEFAULT_GRACE_S = 30.0
NANO = 1e9


_NAMES = {"container_id": "containerID", "allocated_resources": "allocatedResources"}


class ContainerStatus(msgspec.Struct, frozen=True, rename=_NAMES, gc=False):
    """Status of a container: `container_id` is "containerd://" followed by the id, "" before the container is created;
    `state` has one key: waiting, running or terminated. `resources` are those that are set, `allocated_resources` the
    requests that the kubelet has granted."""

    name: str = ""
    container_id: str = ""
    state: dict[str, Any] = {}
    resources: Resources | None = None
    allocated_resources: Quantities | None = None


class AgentPodSpec(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Desired state of a pod."""

    node_name: str = ""
    priority: int | None = None
    termination_grace_period_seconds: int | None = None
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()


class AgentPodStatus(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Current status of a pod and its containers."""

    phase: str = ""
    qos_class: str = ""
    start_time: str | None = None
    conditions: tuple[Condition, ...] | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None
    init_container_statuses: tuple[ContainerStatus, ...] | None = None


class AgentPod(msgspec.Struct, frozen=True, gc=False):
    """A Pod object, reduced to the fields that the agent uses."""

    metadata: ObjectMetadata = ObjectMetadata()
    spec: AgentPodSpec = AgentPodSpec()
    status: AgentPodStatus = AgentPodStatus()


PODS: Resource[AgentPod] = Resource("", "v1", "pods", AgentPod)


def facts_of(pod: AgentPod) -> PodFacts:
    """Convert a pod object. Raises ValueError for an invalid quantity."""
    metadata, spec, status = pod.metadata, pod.spec, pod.status
    statuses = (*(status.container_statuses or ()), *(status.init_container_statuses or ()))
    declared = _in_effect((*spec.containers, *spec.init_containers), statuses, is_infeasible(status.conditions or ()))
    running = [each for each in statuses if "running" in each.state and each.name in declared]
    resources = [declared[each.name].resources for each in spec.containers]
    state = PodState(
        namespace=metadata.namespace,
        name=metadata.name,
        uid=metadata.uid,
        qos=_class_of(status.qos_class),
        priority=spec.priority or 0,
        start_time=_time(status.start_time),
        labels=metadata.labels,
        owner=_owner(metadata),
        phase=status.phase or "Pending",
        terminating=metadata.deletion_timestamp is not None,
        static=is_static(metadata.annotations),
        daemon=any(owner.kind == "DaemonSet" for owner in metadata.owner_references),
        managed=any(owner.controller for owner in metadata.owner_references),
        grace_seconds=_grace(spec.termination_grace_period_seconds),
        extended_cpu_limit=_extended((each.limits for each in resources), EXTENDED_CPU),
        extended_memory_limit=_bytes(_extended((each.limits for each in resources), EXTENDED_MEMORY)),
        memory_request=_bytes(_sum_of((each.requests for each in resources), "memory")),
        containers=tuple(_container(declared[each.name], each.container_id) for each in running),
    )
    return PodFacts(
        state,
        group_uid=metadata.annotations.get(MIRROR) or _hash_of_static(metadata) or metadata.uid,
        extended=frozenset(each.name for each in declared.values() if _has_extended(each.resources.limits)),
        extended_cpu_request=_extended((each.requests for each in resources), EXTENDED_CPU) or 0.0,
    )


def _in_effect(
    containers: Iterable[Container], statuses: Iterable[ContainerStatus], infeasible: bool
) -> dict[str, Container]:
    """The containers by name; during an in-place resize with the resources that count (`resize`), so that a container
    is not throttled below a request that the kubelet still guarantees."""
    reported = {each.name: ReportedResources(each.name, each.resources, each.allocated_resources) for each in statuses}
    found = {}
    for container in containers:
        status = reported.get(container.name)
        if status is not None and status.differs_from(container.resources):
            resources = in_effect(container.resources, status, infeasible)
            container = msgspec.structs.replace(container, resources=resources)
        found[container.name] = container
    return found


def is_static(annotations: Mapping[str, str]) -> bool:
    """Whether the pod comes from a file or URL on the node, or is the mirror pod of one: the API cannot evict it."""
    return MIRROR in annotations or annotations.get(SOURCE, FROM_API) != FROM_API


def _hash_of_static(metadata: ObjectMetadata) -> str:
    return metadata.annotations.get(HASH, "") if is_static(metadata.annotations) else ""


def _container(container: Container, container_id: str) -> ContainerState:
    requests, limits = container.resources.requests, container.resources.limits
    return ContainerState(
        name=container.name,
        id=container_id.rpartition("//")[2],
        cpu_request=_amount(requests, "cpu"),
        cpu_limit=_amount(limits, "cpu"),
        extended_cpu_limit=_extended((limits,), EXTENDED_CPU),
    )


def _amount(quantities: Quantities, name: str) -> float | None:
    """Cores or bytes; None if missing or 0, which is equivalent."""
    return nano(quantities[name]) / NANO or None if name in quantities else None


def _extended(resources: Iterable[Quantities], prefix: str) -> float | None:
    """The sum of the resources whose names begin with `prefix` (as in Crane), in cores or bytes; None if there are
    none."""
    found = [nano(value) for each in resources for name, value in each.items() if name.startswith(prefix)]
    return sum(found) / NANO if found else None


def _sum_of(resources: Iterable[Quantities], name: str) -> float | None:
    """The sum in cores or bytes over all that have the resource; None if none has it or the sum is 0, which is
    equivalent."""
    return sum(_amount(each, name) or 0.0 for each in resources) or None


def _has_extended(limits: Quantities) -> bool:
    return any(name.startswith((EXTENDED_CPU, EXTENDED_MEMORY)) for name in limits)


def _bytes(amount: float | None) -> int | None:
    return None if amount is None else int(amount)


def _class_of(name: str) -> QosClass:
    return QosClass(name) if name in set(QosClass) else QosClass.UNKNOWN


def _owner(metadata: ObjectMetadata) -> str:
    """Kind/name of the controller; "" for a pod without one. Other owners only delete the pod with them: they do not
    recreate it."""
    return next((f"{each.kind}/{each.name}" for each in metadata.owner_references if each.controller), "")


def _grace(seconds: int | None) -> float:
    return DEFAULT_GRACE_S if seconds is None else float(seconds)


def _time(text: str | None) -> float | None:
    return read_time(text) if text else None
