"""The interface of plug-in clients, and the values they return, independent of the transport.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from agent.qrm.manager.allocation import AllocationInfo
from agent.qrm.manager.request import ResourceRequest
from agent.qrm.manager.topology import Hint

PAUSED = "PAUSED"
"""Status of a call that was not made because an earlier call timed out."""

UNANSWERED = frozenset({PAUSED, "UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"})
"""Statuses of calls without a response."""


class PluginCallError(RuntimeError):
    """A plug-in did not respond or returned an error. `status` is the gRPC status, or NOT_OURS for an invalid
    response."""

    def __init__(self, resource: str, method: str, status: str, message: str) -> None:
        super().__init__(f"the plug-in for {resource} failed in {method}: {status}: {message}")
        self.resource = resource
        self.method = method
        self.status = status

    @property
    def unanswered(self) -> bool:
        """Whether the plug-in did not respond, so that nothing is known about the request."""
        return self.status in UNANSWERED


@dataclass(frozen=True, slots=True)
class PluginOptions:
    """Options that a plug-in declares: `pre_start` requires PreStartContainer calls, `aligned` provides topology hints,
    `reconcile` reports allocations that may change later."""

    pre_start: bool = False
    aligned: bool = False
    reconcile: bool = False


@dataclass(frozen=True, slots=True)
class Quantity:
    """The quantity of a resource in its unit, in total and by NUMA node."""

    total: float
    by_node: Mapping[int, float]
    is_node_resource: bool = False
    is_scalar_resource: bool = False


class ResourcePluginClient(Protocol):
    """A plug-in as called by the manager; `plugin_client.PluginEndpoint` implements it. All methods raise
    PluginCallError."""

    @property
    def options(self) -> PluginOptions: ...

    async def hints(self, request: ResourceRequest) -> tuple[Hint, ...] | None: ...

    async def allocate(self, request: ResourceRequest) -> Mapping[str, AllocationInfo] | None: ...

    async def pre_start(self, request: ResourceRequest) -> None: ...

    async def remove_pod(self, pod_uid: str) -> None: ...

    async def allocations(self) -> Mapping[str, Mapping[str, Mapping[str, AllocationInfo]]]: ...

    async def aware(self, pod_uid: str, container: str) -> Mapping[str, Quantity]: ...

    async def allocatable(self) -> Mapping[str, tuple[Quantity, Quantity]]: ...

    async def close(self) -> None: ...
