"""Decode pod objects from the API or the kubelet: attributes that permit or forbid actions, and the requested
resources.

The identity of a pod is metadata.uid. A static pod comes from a file on the node, and has the hash of that file as its
uid at the kubelet; the API has it as a mirror pod with another uid, and the hash in an annotation. The kubelet sets the
source annotation of every pod in its own list, so its value matters there, not its presence (Crane checks only its
presence); in the API, users may write it. docs/concepts/trust.md lists who can write what.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from agent.model import ContainerState, PodState
from agent.qos import QosClass
from agent.state.readings import PodFacts
from watcher.core.kubernetes.objects import (
    Condition,
    Container,
    ObjectMetadata,
    Owner,
    Pod,
    PodSpec,
    PodStatus,
    Quantities,
    ReportedResources,
    Resources,
)
from watcher.core.kubernetes.pod_origin import daemon_set_of, mirrored_uid
from watcher.core.kubernetes.pod_resources import (
    CPU,
    MEMORY,
    Amounts,
    exact_amounts,
    exact_limits_of,
    exact_requests_of,
    is_sidecar,
)
from watcher.core.kubernetes.quantity import nano
from watcher.core.kubernetes.resize import spec_in_effect
from watcher.core.kubernetes.times import read_time
from watcher.core.kubernetes.wire import Resource

SOURCE = "kubernetes.io/config.source"
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


class PodVolume(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """A volume of a pod, reduced to whether it is a directory of the host."""

    host_path: dict[str, Any] | None = None


class AgentPodSpec(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Desired state of a pod."""

    node_name: str = ""
    priority: int | None = None
    termination_grace_period_seconds: int | None = None
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    overhead: Quantities = {}
    resources: Resources | None = None
    volumes: tuple[PodVolume, ...] | None = None


class AgentPodStatus(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Current status of a pod and its containers."""

    phase: str = ""
    qos_class: str = ""
    start_time: str | None = None
    conditions: tuple[Condition, ...] | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None
    init_container_statuses: tuple[ContainerStatus, ...] | None = None
    resources: Resources | None = None
    allocated_resources: Quantities | None = None


class PodOwner(Owner, frozen=True, rename="camel", gc=False):
    """An owner reference with the uid of the owner."""

    uid: str = ""


class AgentPodMetadata(ObjectMetadata, frozen=True, rename="camel", gc=False):
    """Metadata of a pod with the uids of its owners."""

    owner_references: tuple[PodOwner, ...] = ()


class AgentPod(msgspec.Struct, frozen=True, gc=False):
    """A Pod object, reduced to the fields that the agent and the QoS Resource Manager use."""

    metadata: AgentPodMetadata = AgentPodMetadata()
    spec: AgentPodSpec = AgentPodSpec()
    status: AgentPodStatus = AgentPodStatus()


PODS: Resource[AgentPod] = Resource("", "v1", "pods", AgentPod)


def facts_of(pod: AgentPod, *, from_api: bool = False) -> PodFacts:
    """Convert a pod object of the kubelet or of the API. Raises ValueError for an invalid quantity."""
    metadata, spec, status = pod.metadata, pod.spec, pod.status
    mirrored = mirrored_uid(metadata, spec.node_name) if from_api else ""
    statuses = (*(status.container_statuses or ()), *(status.init_container_statuses or ()))
    whole = with_resources(spec, status)
    effective = spec_in_effect(whole)
    declared = {each.name: each for each in (*effective.containers, *effective.init_containers)}
    running = [each for each in statuses if "running" in each.state and each.name in declared]
    requests, limits = exact_requests_of(whole), exact_limits_of(whole)
    shared = _shared_cpu(effective)
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
        static=bool(mirrored) if from_api else is_static(metadata.annotations),
        daemon=daemon_set_of(metadata.owner_references) is not None,
        host_paths=any(each.host_path is not None for each in spec.volumes or ()),
        managed=any(owner.controller for owner in metadata.owner_references),
        grace_seconds=_grace(spec.termination_grace_period_seconds),
        extended_cpu_limit=_extended(limits, EXTENDED_CPU),
        extended_memory_limit=_bytes(_extended(limits, EXTENDED_MEMORY)),
        memory_request=_bytes(requests.get(MEMORY, 0) / NANO or None),
        containers=tuple(_container(declared[each.name], each.container_id, shared) for each in running),
    )
    return PodFacts(
        state,
        group_uid=mirrored or metadata.uid,
        extended=frozenset(each.name for each in declared.values() if _has_extended(each.resources.limits)),
        extended_cpu_request=_extended(requests, EXTENDED_CPU) or 0.0,
        created=created_at(metadata),
    )


def with_resources(spec: AgentPodSpec, status: AgentPodStatus) -> Pod:
    """Return the pod as the arithmetic of requests reads it (watcher.core.kubernetes.pod_resources)."""
    return Pod(
        spec=PodSpec(
            containers=spec.containers,
            init_containers=spec.init_containers,
            overhead=spec.overhead,
            resources=spec.resources,
        ),
        status=PodStatus(
            conditions=status.conditions or (),
            container_statuses=_reported(status.container_statuses),
            init_container_statuses=_reported(status.init_container_statuses),
            resources=status.resources,
            allocated_resources=status.allocated_resources,
        ),
    )


def _reported(statuses: tuple[ContainerStatus, ...] | None) -> tuple[ReportedResources, ...]:
    return tuple(ReportedResources(each.name, each.resources, each.allocated_resources) for each in statuses or ())


def _shared_cpu(spec: PodSpec) -> float:
    """Cores of the pod-level request that no container requests; each running container may use them all."""
    if spec.resources is None or CPU not in spec.resources.requests:
        return 0.0
    running = [*spec.containers, *filter(is_sidecar, spec.init_containers)]
    own = sum(_amount(each.resources.requests, CPU) or 0.0 for each in running)
    return max(0.0, (_amount(spec.resources.requests, CPU) or 0.0) - own)


def is_static(annotations: Mapping[str, str]) -> bool:
    """Whether a pod comes from a file or URL on the node, by its annotations at the kubelet or the container runtime,
    where the kubelet has set this one. The API cannot evict it."""
    return annotations.get(SOURCE, FROM_API) != FROM_API


def _container(container: Container, container_id: str, shared: float) -> ContainerState:
    requests, limits = container.resources.requests, container.resources.limits
    return ContainerState(
        name=container.name,
        id=container_id.rpartition("//")[2],
        cpu_request=(_amount(requests, CPU) or 0.0) + shared or None,
        cpu_limit=_amount(limits, CPU),
        extended_cpu_limit=_extended(exact_amounts(limits), EXTENDED_CPU),
    )


def _amount(quantities: Quantities, name: str) -> float | None:
    """Cores or bytes; None if missing or 0, which is equivalent."""
    return nano(quantities[name]) / NANO or None if name in quantities else None


def _extended(billionths: Amounts, prefix: str) -> float | None:
    """The sum of the resources whose names begin with `prefix` (as in Crane), in cores or bytes; None if there are
    none."""
    found = [size for name, size in billionths.items() if name.startswith(prefix)]
    return sum(found) / NANO if found else None


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


def created_at(metadata: ObjectMetadata) -> float:
    """The creation time in the API in unix seconds; infinity if unknown, as of a static pod at the kubelet."""
    return math.inf if metadata.creation_timestamp is None else metadata.creation_timestamp.timestamp()


def _grace(seconds: int | None) -> float:
    return DEFAULT_GRACE_S if seconds is None else float(seconds)


def _time(text: str | None) -> float | None:
    return read_time(text) if text else None
