"""What a resource plug-in of ours is before it is served: pure, so each of its rules is tested without a socket."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from agent.qrm.manager.allocation import AllocationInfo
from agent.qrm.manager.request import ResourceRequest
from agent.qrm.manager.topology import Hint


@runtime_checkable
class Plugin(Protocol):
    """Answers about one resource. `aligned` plug-ins have hints, `reconciled` ones may change their mind later.

    Everything that changes is in `document`, which is kept after each change, before the answer is given.
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
        """None is no preference, empty is no way. Raises CannotAllocate for a request that cannot be read."""
        ...

    def allocate(self, request: ResourceRequest) -> AllocationInfo | None:
        """None where the container gets nothing. Idempotent. Raises CannotAllocate; then the container has nothing."""
        ...

    def remove(self, pod_uid: str) -> None:
        """Idempotent."""
        ...

    def allocations(self) -> Mapping[str, Mapping[str, AllocationInfo]]:
        """By pod UID and container."""
        ...

    def by_node(self, pod_uid: str, container_name: str) -> Mapping[int, float]:
        """How much a container has on each NUMA node."""
        ...

    def allocatable_by_node(self) -> Mapping[int, float]:
        """How much pods may have on each NUMA node."""
        ...

    def capacity_by_node(self) -> Mapping[int, float]:
        """How much there is on each NUMA node."""
        ...

    def document(self) -> dict[str, Any]:
        """All that is to be kept."""
        ...

    def load(self, document: Mapping[str, Any]) -> None:
        """Raises ValueError for what cannot be taken over; then nothing of it is."""
        ...


def is_node_resource(plugin: Plugin) -> bool:
    """Whether what there is of its resource is to stand in the node's status. A plug-in says so by an attribute
    `node_resource`, which it need not have: CPUs and memory are the kubelet's to tell."""
    return bool(getattr(plugin, "node_resource", False))
