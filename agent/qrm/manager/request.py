"""What the manager asks a resource plug-in about one container, and quantities of it.

The fields are those of `resourceplugin.v1alpha1.ResourceRequest` (reference/qrm.md §2.2).

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
MOST = float(1 << 63)
"""Of anything. No machine has it, and no file could say it."""
RECLAIMED_MILLICPU = "resource.katalyst.kubewharf.io/reclaimed_millicpu"


def may_be_of_node(resource: str) -> bool:
    """Whether a resource of which nothing else tells may stand in the node's status: by its name, as upstream guesses
    (extended resources, huge pages, attachable volumes; reference/qrm.md §3.9)."""
    named = "/" in resource and not resource.startswith("requests.")
    return named or resource.startswith(("hugepages-", "attachable-volumes-"))


class ContainerType(IntEnum):
    """As on the wire. A restartable init container is a SIDECAR."""

    INIT = 0
    MAIN = 1
    SIDECAR = 2
    EPHEMERAL = 3


class CannotAllocate(ValueError):
    """A plug-in has nothing that fits; the message goes into the event on the pod."""


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """One container and one resource. `hint` is the Topology Manager's decision, None where there is none; a hint
    without nodes is the same."""

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
        """How much is asked for, in the resource's own unit. Raises CannotAllocate where the request does not say."""
        try:
            return self.resource_requests[self.resource_name]
        except KeyError:
            asked = ", ".join(sorted(self.resource_requests)) or "nothing"
            raise CannotAllocate(f"the request for {self.resource_name} names {asked} in its quantities") from None

    @property
    def nodes(self) -> frozenset[int]:
        """The NUMA nodes of the hint; empty where there is none."""
        return (self.hint.nodes if self.hint else None) or frozenset()


def whole(request: ResourceRequest) -> int:
    """The quantity as a whole number: CPUs (of millicpu too), bytes, devices; rounded up. Raises CannotAllocate."""
    quantity = request.quantity
    if not 0 <= quantity < MOST:
        raise CannotAllocate(f"a quantity of {quantity} of {request.resource_name} was asked for")
    unit = 1000.0 if request.resource_name == RECLAIMED_MILLICPU else 1.0
    return math.ceil(round(quantity / unit, 6))


def whole_own(request: ResourceRequest) -> int:
    """The same of a container that is to have something of its own: at least one. Raises CannotAllocate."""
    quantity = whole(request)
    if not quantity:
        raise CannotAllocate(
            f"container {request.container_name} is to have {request.resource_name} of its own, and asks for none"
        )
    return quantity


def nodes_for_cpus(cpus: float, *, total: int, nodes: int) -> tuple[int, int]:
    """On how many NUMA nodes a request for CPUs fits at least, and how many CPUs that is on each.

    Raises CannotAllocate where all of them are too few.
    """
    return _nodes_for(math.ceil(round(cpus, 6)), each=-(-total // nodes) if nodes else 0, nodes=nodes, what="CPUs")


def nodes_for_memory(size: int, *, each: int, nodes: int) -> tuple[int, int]:
    """The same for bytes, `each` on every node. Raises CannotAllocate."""
    return _nodes_for(size, each=each, nodes=nodes, what="bytes of memory")


def _nodes_for(size: int, *, each: int, nodes: int, what: str) -> tuple[int, int]:
    if each <= 0 or nodes <= 0:
        raise CannotAllocate(f"{nodes} NUMA nodes with {each} {what} each cannot hold anything")
    count = max(1, -(-size // each))
    if count > nodes:
        raise CannotAllocate(f"{size} {what} were asked for, and {nodes} NUMA nodes have {each} each")
    return count, -(-size // count)
