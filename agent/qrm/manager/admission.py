"""Values and errors of the manager: settings, admissions, released resources, and results of a round."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from agent.qrm.manager.allocation import AllocationInfo, BindMount, DeviceNode, Properties, properties_of
from agent.qrm.manager.request import ResourceRequest
from agent.qrm.manager.topology import Hint
from agent.qrm.pods import PodContainer, QrmPod

log = logging.getLogger(__name__)

AFFINITY_ERROR = "TopologyAffinityError"
AFFINITY_MESSAGE = "Resources cannot be allocated with Topology locality"
UNEXPECTED_ERROR = "UnexpectedAdmissionError"
ADMISSION_GRACE_S = 60.0
"""Seconds after its admission in which a pod is not treated as ended, because the source of pods may not contain it
yet."""
Offered = Mapping[str, Sequence[Hint] | None]
"""Hints by resource."""
Apply = Callable[[QrmPod, PodContainer, Properties], Awaitable[None]]
"""Sets properties on a running container. Raises ApplyFailed."""


class ApplyFailed(RuntimeError):
    """The container runtime or the kernel rejected the properties; the message names the container and the reason."""


class ReleaseResult(StrEnum):
    """Whether the allocations of a rejected pod were released."""

    ALL = "all"
    LATER = "later: a plug-in did not respond; tried again in each round"
    NONE = "nothing: the pod keeps the allocations that it had before"


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether a pod may run. For a rejected pod, `reason` and `message` are as in the kubelet, and `released` shows
    whether its allocations were released. By container and resource: `offered` are the hints (None: no preference),
    `decided` are the merged hints, and `failed` are the reasons for missing allocations. `unanswered`: a plug-in did
    not respond, so the pod is admissible as far as is known. An admitted pod runs without the missing resources."""

    admitted: bool
    reason: str = ""
    message: str = ""
    decided: Mapping[str, Mapping[str, Hint]] = field(default_factory=dict)
    offered: Mapping[str, Offered] = field(default_factory=dict, compare=False)
    failed: Mapping[str, Mapping[str, str]] = field(default_factory=dict, compare=False)
    released: ReleaseResult | None = field(default=None, compare=False)
    unanswered: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class ContainerOptions:
    """What a container that is about to be created gets from the plug-ins."""

    envs: Mapping[str, str]
    annotations: Mapping[str, str]
    properties: Properties
    mounts: tuple[BindMount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()


class ContainerRef(NamedTuple):
    """A container of a pod. Two pods may have one name: one that ends, and its successor. `pod` is for messages."""

    pod_uid: str
    name: str
    pod: str

    @classmethod
    def of(cls, pod: QrmPod, container: PodContainer) -> ContainerRef:
        """The reference to a container of this pod."""
        return cls(pod.uid, container.name, pod.key)

    def __str__(self) -> str:
        return f"{self.pod}/{self.name}"


Failures = Mapping[ContainerRef, str]
"""Errors by container."""


@dataclass(frozen=True, slots=True)
class Reconciled:
    """The result of one round: containers whose properties were set, and errors by container."""

    applied: tuple[ContainerRef, ...] = ()
    failed: Failures = field(default_factory=dict)


class NotAllocated(RuntimeError):
    """A container does not get a resource that it needs; the message is used in the event on its pod. `unanswered`: the
    plug-in did not respond."""

    def __init__(self, message: str, *, container: str, resource: str, unanswered: bool = False) -> None:
        super().__init__(message)
        self.container = container
        self.resource = resource
        self.unanswered = unanswered


def suffices(stored: AllocationInfo, request: ResourceRequest) -> bool:
    """Whether a stored allocation satisfies a request. False for allocations that are not scalar, because they have no
    comparable quantity."""
    had = stored.allocated_quantity
    return stored.is_scalar_resource and math.isfinite(had) and math.ceil(had) >= math.ceil(round(request.quantity, 6))


def options_of(infos: Mapping[str, AllocationInfo]) -> ContainerOptions:
    """The options that a container's allocations give it. For a name that several resources set, the value of the first
    resource is used. Raises BadProperty."""
    envs: dict[str, str] = {}
    annotations: dict[str, str] = {}
    for resource, info in infos.items():
        for kept, more in ((envs, info.envs), (annotations, info.annotations)):
            for name, value in more.items():
                if kept.setdefault(name, value) != value:
                    log.warning(
                        "%s and another resource set different values for %s; using that of the other resource",
                        resource,
                        name,
                    )
    mounts = {each.container_path: each for info in reversed(list(infos.values())) for each in info.mounts}
    devices = {each.container_path: each for info in reversed(list(infos.values())) for each in info.devices}
    return ContainerOptions(
        envs,
        annotations,
        properties_of(infos),
        mounts=tuple(mount for _, mount in sorted(mounts.items())),
        devices=tuple(device for _, device in sorted(devices.items())),
    )


def error_text(error: Exception) -> str:
    """Return the message of an error, with its cause if the checkpoint could not be written."""
    if isinstance(error, OSError):
        return f"the checkpoint could not be written: {error.strerror or error}"
    return str(error)
