"""The interface of resource plug-ins, without I/O, so that each rule can be tested without a socket."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from agent.qrm.manager.allocation import AllocationInfo
from agent.qrm.manager.request import ResourceRequest
from agent.qrm.manager.topology import Hint


@runtime_checkable
class ResourcePlugin(Protocol):
    """A plug-in for one resource. `aligned` plug-ins provide hints; `reconciled` plug-ins may change allocations later.

    The complete state is in `document`, which is stored after each change, before the response is sent.
    """

    @property
    def name(self) -> str: ...

    @property
    def resource(self) -> str: ...

    @property
    def aligned(self) -> bool: ...

    @property
    def reconciled(self) -> bool: ...

    def hints(self, request: ResourceRequest) -> tuple[Hint, ...] | None:
        """The hints for a request: None means no preference, empty means that no nodes fit. Raises CannotAllocate for
        an invalid request."""
        ...

    def allocate(self, request: ResourceRequest) -> AllocationInfo | None:
        """The allocation for a request; None if the container gets nothing. Idempotent. Raises CannotAllocate; the
        container then has no allocation."""
        ...

    def remove(self, pod_uid: str) -> None:
        """Release all allocations of a pod. Idempotent."""
        ...

    def allocations(self) -> Mapping[str, Mapping[str, AllocationInfo]]:
        """All allocations by pod UID and container name."""
        ...

    def by_node(self, pod_uid: str, container_name: str) -> Mapping[int, float]:
        """The quantity that a container has on each NUMA node, in the unit of the resource."""
        ...

    def allocatable_by_node(self) -> Mapping[int, float]:
        """The quantity that pods may use on each NUMA node, in the unit of the resource."""
        ...

    def capacity_by_node(self) -> Mapping[int, float]:
        """The total quantity on each NUMA node, in the unit of the resource."""
        ...

    def document(self) -> dict[str, Any]:
        """The complete state as JSON-compatible values."""
        ...

    def load(self, document: Mapping[str, Any]) -> None:
        """Restore a state. Raises ValueError if it is invalid; the current state then remains unchanged."""
        ...


def is_node_resource(plugin: ResourcePlugin) -> bool:
    """Whether the resource is published in the node's status. A plug-in can set the optional attribute `node_resource`;
    CPUs and memory are published by the kubelet."""
    return bool(getattr(plugin, "node_resource", False))
