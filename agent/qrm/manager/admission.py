"""Values and errors of the manager: settings, admissions, released resources, and results of a round."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from agent.qrm.cpuset import CpuSet, parse
from agent.qrm.kubelet.plugin_api import Asked
from agent.qrm.manager.allocation import AllocationInfo
from agent.qrm.manager.oci import CPUSETS, Properties
from agent.qrm.manager.request import ResourceRequest
from agent.qrm.manager.topology import Hint, Policy
from agent.qrm.pods import PodContainer, QrmPod

AFFINITY_ERROR = "TopologyAffinityError"
AFFINITY_MESSAGE = "Resources cannot be allocated with Topology locality"
UNEXPECTED_ERROR = "UnexpectedAdmissionError"
RECENT_S = 60.0
"""A pod that was admitted is not taken for gone for so long, where who lists pods may not have heard of it."""
Offered = Mapping[str, Sequence[Hint] | None]
"""Hints by resource."""
Apply = Callable[[QrmPod, PodContainer, Properties], Awaitable[None]]
"""Sets properties on a running container. Raises ApplyFailed."""


class ApplyFailed(RuntimeError):
    """The runtime or the kernel refused; the message says what and where."""


@dataclass(frozen=True, slots=True)
class ManagerSettings:
    """`nodes` are the machine's NUMA nodes that have CPUs; `names` maps a requested resource to the one that a plug-in
    serves."""

    nodes: frozenset[int]
    policy: Policy = Policy.NONE
    pod_scope: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    skip_annotations: frozenset[str] = frozenset()
    nic_roles: frozenset[str] = frozenset()
    """Roles whose containers ask for a network card without saying so."""
    recent: float = RECENT_S
    """0 where the pods that are admitted are those of the same list."""
    cpus: CpuSet | None = None
    """The CPUs that are online: no others are given. None where they are not known."""


class GivenBack(StrEnum):
    """What became of the allocations of a pod that was refused."""

    ALL = "all"
    LATER = "later: a plug-in could not be told of it, and is when the pod goes"
    NONE = "nothing: the pod had allocations before, and keeps them"


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether a pod may run. If not, `reason` and `message` are the kubelet's, and `given_back` is what became of what
    it had been given. By container and resource, `offered` are the hints that went into the decision (None: no
    preference), `decided` what came of them, and `failed` is why there is no allocation all the same: an ordinary pod
    that is admitted runs without it."""

    admitted: bool
    reason: str = ""
    message: str = ""
    decided: Mapping[str, Mapping[str, Hint]] = field(default_factory=dict)
    offered: Mapping[str, Offered] = field(default_factory=dict, compare=False)
    failed: Mapping[str, Mapping[str, str]] = field(default_factory=dict, compare=False)
    given_back: GivenBack | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Started:
    """What a container is to be created with."""

    envs: Mapping[str, str]
    annotations: Mapping[str, str]
    properties: Properties


@dataclass(frozen=True, slots=True)
class Reconciled:
    """One round: containers whose properties were set, and what went wrong, by container."""

    applied: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Registered:
    """A resource and who serves it: nobody (`endpoint` None) after a restart, and after it has stopped."""

    endpoint: Asked | None
    since: float
    stopped: float | None = None
    of_node: bool | None = None
    """Whether it stands in the node's status, as the plug-in said last; None while it has not said."""
    remembers: bool = False
    """Whether the plug-in is known to have what it gave before it registered."""


class NotAllocated(RuntimeError):
    """A container does not get what it needs of a resource; the message is for the event on its pod."""

    def __init__(self, message: str, *, container: str, resource: str) -> None:
        super().__init__(message)
        self.container = container
        self.resource = resource


def _suffices(stored: AllocationInfo, request: ResourceRequest) -> bool:
    """Whether a stored allocation is as much as is asked for; of what is not scalar nobody can say."""
    had = stored.allocated_quantity
    return stored.is_scalar_resource and math.isfinite(had) and math.ceil(had) >= math.ceil(round(request.quantity, 6))


def _growth(before: Properties, after: Properties) -> int:
    """How many CPUs and memory nodes a container gains; below zero if it loses some. One that was never set has all
    there are, so setting it is a loss."""
    gained = 0
    for name in CPUSETS & after.keys():
        had = before.get(name)
        gained += len(parse(str(after[name]))) - (len(parse(str(had))) if had is not None else 1 << 16)
    return gained


def _words(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"the checkpoint could not be written: {error.strerror or error}"
    return str(error)
