"""Requests of the manager to a resource plug-in for one container, and their quantities.

The fields are those of the message `resourceplugin.v1alpha1.ResourceRequest`.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from agent.qrm.manager.topology import Hint

CPU = "cpu"
MEMORY = "memory"
NIC = "NIC"
MAX_QUANTITY = float(1 << 63)
"""Upper bound for quantities of any resource."""
RECLAIMED_MILLICPU = "resource.katalyst.kubewharf.io/reclaimed_millicpu"


def may_be_of_node(resource: str) -> bool:
    """Whether a resource may be published in the node's status, guessed from its name as in Katalyst's kubelet
    (extended resources, huge pages, attachable volumes). Used if no other information is available."""
    named = "/" in resource and not resource.startswith("requests.")
    return named or resource.startswith(("hugepages-", "attachable-volumes-"))


class ContainerType(IntEnum):
    """Container types of the protocol. A restartable init container is a SIDECAR."""

    INIT = 0
    MAIN = 1
    SIDECAR = 2
    EPHEMERAL = 3


class CannotAllocate(ValueError):
    """A plug-in cannot satisfy a request; the message is used in the event on the pod."""


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """A request of one container for one resource. `hint` is the decision of the Topology Manager; None, or a hint
    without nodes, means no decision."""

    pod_uid: str
    container_name: str
    resource_name: str
    pod_namespace: str = ""
    pod_name: str = ""
    container_type: ContainerType = ContainerType.MAIN
    container_index: int = 0
    pod_role: str = ""
    pod_type: str = ""
    hint: Hint | None = None
    resource_requests: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    native_qos_class: str = ""

    @property
    def quantity(self) -> float:
        """The requested quantity in the unit of the resource. Raises CannotAllocate if the request does not contain
        it."""
        try:
            return self.resource_requests[self.resource_name]
        except KeyError:
            asked = ", ".join(sorted(self.resource_requests)) or "no resource"
            raise CannotAllocate(f"the request for {self.resource_name} contains quantities only for {asked}") from None

    @property
    def nodes(self) -> frozenset[int]:
        """The NUMA nodes of the hint; empty without a hint."""
        return (self.hint.nodes if self.hint else None) or frozenset()

    @property
    def must_follow_hint(self) -> bool:
        """Whether the allocation must be on the nodes of the hint. A hint that is not preferred is what was left after
        the merge: the plug-in may choose other nodes."""
        return self.hint is not None and self.hint.preferred and bool(self.nodes)


def whole(request: ResourceRequest) -> int:
    """The quantity as a whole number, rounded up: CPUs (also for millicpu), bytes, or devices. Raises
    CannotAllocate."""
    quantity = request.quantity
    if not 0 <= quantity < MAX_QUANTITY:
        raise CannotAllocate(f"the requested quantity {quantity} of {request.resource_name} is invalid")
    unit = 1000.0 if request.resource_name == RECLAIMED_MILLICPU else 1.0
    return math.ceil(round(quantity / unit, 6))


def whole_exclusive(request: ResourceRequest) -> int:
    """Like `whole`, for a container that gets an exclusive allocation: at least one. Raises CannotAllocate."""
    quantity = whole(request)
    if not quantity:
        raise CannotAllocate(
            f"container {request.container_name} needs exclusive {request.resource_name}, but does not request any"
        )
    return quantity


def nodes_for_memory(size: int, *, each: int, nodes: int) -> tuple[int, int]:
    """The minimum number of NUMA nodes for `size` bytes with `each` bytes per node, and the bytes on each of them.
    Raises CannotAllocate."""
    if each <= 0 or nodes <= 0:
        raise CannotAllocate(f"no capacity: {nodes} NUMA nodes with {each} bytes of memory each")
    count = max(1, -(-size // each))
    if count > nodes:
        raise CannotAllocate(f"requested {size} bytes of memory, but {nodes} NUMA nodes have {each} each")
    return count, -(-size // count)
