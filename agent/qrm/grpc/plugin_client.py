"""Client for plug-ins: calls over the plug-in's unix socket, each with a timeout, and errors that name the plug-in."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any, TypeVar

import grpc
import grpc.aio

from agent.qrm.grpc.channel import open_channel
from agent.qrm.grpc.messages import by_node, hints_of, infos_from_message, request_to_message
from agent.qrm.grpc.plugin_api import PAUSED, PluginCallError, PluginOptions, Quantity
from agent.qrm.grpc.protos import qrm_pluginregistration_v1_pb2 as registration_pb
from agent.qrm.grpc.protos import qrm_pluginregistration_v1_pb2_grpc as registration_grpc
from agent.qrm.grpc.protos import qrm_resourceplugin_v1alpha1_pb2 as pb
from agent.qrm.grpc.protos import qrm_resourceplugin_v1alpha1_pb2_grpc as pb_grpc
from agent.qrm.grpc.resource_names import is_resource_name, shown
from agent.qrm.manager.allocation import AllocationInfo
from agent.qrm.manager.request import ResourceRequest
from agent.qrm.manager.topology import Hint
from watcher.core.messages import printable

CALL_S = 10.0
PRE_START_S = 30.0
BACKOFF_CALLS = 3.0
"""After a timeout, a plug-in is not called for this many call timeouts, so that not every pod waits for another
timeout."""
INFO_S = 1.0
NOTIFY_S = 5.0

T = TypeVar("T")


Observe = Callable[[str, str, float, bool], None]
"""Called after every call with resource, method, duration in seconds, and whether the call failed."""


def _unobserved(_resource: str, _method: str, _seconds: float, _failed: bool) -> None:
    """The default for `observe`: does nothing."""


class PluginEndpoint:
    """The client for one registered plug-in."""

    def __init__(
        self,
        resource: str,
        socket: Path,
        *,
        call_seconds: float = CALL_S,
        observe: Observe = _unobserved,
        monotonic: Callable[[], float] = monotonic,
    ) -> None:
        self.resource = resource
        self.socket = socket
        self.options = PluginOptions()
        self._call_seconds = call_seconds
        self._observe = observe
        self._monotonic = monotonic
        self._silent_until = -math.inf
        self._channel = open_channel(socket)
        self._stub: Any = pb_grpc.ResourcePluginStub(self._channel)

    async def open(self) -> None:
        """Get the options of the plug-in. Raises PluginCallError."""
        answer = await self._call("GetResourcePluginOptions", pb.Empty())
        self.options = PluginOptions(answer.pre_start_required, answer.with_topology_alignment, answer.need_reconcile)

    async def close(self) -> None:
        """Close the connection; running calls fail."""
        await self._channel.close()

    async def hints(self, request: ResourceRequest) -> tuple[Hint, ...] | None:
        """The hints of the plug-in: None means no preference, empty means that no nodes fit. Raises PluginCallError."""
        answer = await self._call("GetTopologyHints", request_to_message(request, aligned=True))
        self._check_subject("GetTopologyHints", request, answer)
        return hints_of(answer, request.resource_name)

    async def allocate(self, request: ResourceRequest) -> dict[str, AllocationInfo] | None:
        """The allocations by resource; a plug-in may also allocate other resources. None if the container gets nothing.
        Raises PluginCallError."""
        message = request_to_message(request, aligned=self.options.aligned)
        answer = await self._call("Allocate", message)
        self._check_subject("Allocate", request, answer)
        if not answer.HasField("allocation_result"):
            return None
        self._checked_names("Allocate", answer.allocation_result.resource_allocation)
        return infos_from_message(answer.allocation_result)

    async def pre_start(self, request: ResourceRequest) -> None:
        """Notify the plug-in that the container is about to be created. Raises PluginCallError."""
        message = pb.PreStartContainerRequest(
            pod_uid=request.pod_uid,
            pod_namespace=request.pod_namespace,
            pod_name=request.pod_name,
            container_name=request.container_name,
        )
        await self._call("PreStartContainer", message, seconds=PRE_START_S)

    async def remove_pod(self, pod_uid: str) -> None:
        """Release the allocations of a pod. Raises PluginCallError."""
        await self._call("RemovePod", pb.RemovePodRequest(pod_uid=pod_uid))

    async def allocations(self) -> dict[str, dict[str, dict[str, AllocationInfo]]]:
        """All allocations, by pod UID, container and resource. Raises PluginCallError."""
        method = "GetResourcesAllocation"
        answer = await self._call(method, pb.GetResourcesAllocationRequest())
        for containers in answer.pod_resources.values():
            for each in containers.container_resources.values():
                self._checked_names(method, each.resource_allocation)
        return {
            pod: {name: infos_from_message(each) for name, each in sorted(containers.container_resources.items())}
            for pod, containers in sorted(answer.pod_resources.items())
        }

    async def aware(self, pod_uid: str, container: str) -> dict[str, Quantity]:
        """The quantities that a container has, by resource. Raises PluginCallError."""
        asked = pb.GetTopologyAwareResourcesRequest(pod_uid=pod_uid, container_name=container)
        method = "GetTopologyAwareResources"
        answer = await self._call(method, asked)
        found = answer.container_topology_aware_resources.allocated_resources
        quantities = {}
        for name in self._checked_names(method, found):
            each = found[name]
            kind = each.is_node_resource, each.is_scalar_resource
            quantities[name] = Quantity(each.aggregated_quantity, by_node(each.topology_aware_quantity_list), *kind)
        return quantities

    async def allocatable(self) -> dict[str, tuple[Quantity, Quantity]]:
        """Allocatable quantity and capacity, by resource. Raises PluginCallError."""
        method = "GetTopologyAwareAllocatableResources"
        answer = await self._call(method, pb.GetTopologyAwareAllocatableResourcesRequest())
        found = {}
        for name in self._checked_names(method, answer.allocatable_resources):
            each = answer.allocatable_resources[name]
            kind = each.is_node_resource, each.is_scalar_resource
            free = by_node(each.topology_aware_allocatable_quantity_list)
            whole = by_node(each.topology_aware_capacity_quantity_list)
            found[name] = (
                Quantity(each.aggregated_allocatable_quantity, free, *kind),
                Quantity(each.aggregated_capacity_quantity, whole, *kind),
            )
        return found

    async def _call(self, method: str, request: Any, *, seconds: float | None = None) -> Any:
        if self._monotonic() < self._silent_until:
            # Without the remaining seconds: messages that differ in every round would be logged in every round.
            pause = BACKOFF_CALLS * self._call_seconds
            message = f"an earlier call timed out; the plug-in is not called for {pause:g} s"
            raise PluginCallError(self.resource, method, PAUSED, message)
        stub = getattr(self._stub, method)
        timeout = self._call_seconds if seconds is None else seconds
        began, failed = perf_counter(), True
        try:
            answer = await _call_translating_errors(self.resource, method, lambda: stub(request, timeout=timeout))
            failed = False
        except PluginCallError as error:
            if error.status == grpc.StatusCode.DEADLINE_EXCEEDED.name:
                self._silent_until = self._monotonic() + BACKOFF_CALLS * self._call_seconds
            raise
        finally:
            self._observe(self.resource, method, perf_counter() - began, failed)
        return answer

    def _check_subject(self, method: str, request: ResourceRequest, answer: Any) -> None:
        """Raises PluginCallError if the response names another pod, container or resource than the request. Empty
        fields are accepted."""
        for name in ("pod_uid", "container_name", "resource_name"):
            asked, answered = getattr(request, name), getattr(answer, name)
            if answered not in ("", asked):
                message = f"the response is for {name} {shown(answered)}, not {shown(asked)}"
                raise PluginCallError(self.resource, method, "NOT_OURS", message)

    def _checked_names(self, method: str, names: Iterable[str]) -> list[str]:
        """The resources of a response, sorted. Raises PluginCallError for an invalid name."""
        found = sorted(names)
        for name in found:
            if not is_resource_name(name):
                message = f"the response has the invalid resource name {shown(name)}"
                raise PluginCallError(self.resource, method, "NOT_OURS", message)
        return found


async def _call_translating_errors(resource: str, method: str, call: Callable[[], Awaitable[T]]) -> T:
    try:
        answer = await call()
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # gRPC cancels running calls when their channel is closed, which happens when the plug-in is deregistered. This
        # task itself was not cancelled, so the caller, such as the reconcile loop, must continue.
        raise PluginCallError(resource, method, "CANCELLED", "the plug-in was deregistered during the call") from None
    except grpc.aio.AioRpcError as error:
        raise PluginCallError(resource, method, error.code().name, _details(error)) from None
    except grpc.aio.UsageError as error:  # the channel was closed during the call
        raise PluginCallError(resource, method, "CANCELLED", str(error)) from None
    if answer is None:  # gRPC returns None, and logs an error, if it cannot decode the response
        raise PluginCallError(resource, method, "NOT_OURS", "the response is not a message of this protocol")
    return answer


def _details(error: grpc.aio.AioRpcError) -> str:
    return printable(error.details() or "no details")


# --- registration ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """The response of a plug-in to GetInfo."""

    type: str
    name: str
    endpoint: str
    versions: tuple[str, ...]


async def ask_info(socket: Path) -> PluginInfo:
    """Call GetInfo of the plug-in that listens on a socket in the registration directory. Raises PluginCallError."""
    async with open_channel(socket) as channel:
        stub: Any = registration_grpc.RegistrationStub(channel)
        request = registration_pb.InfoRequest()
        answer = await _call_translating_errors(socket.name, "GetInfo", lambda: stub.GetInfo(request, timeout=INFO_S))
    return PluginInfo(answer.type, answer.name, answer.endpoint, tuple(answer.supported_versions))


async def notify(socket: Path, error: str) -> None:
    """Send the result of its registration to a plug-in; an empty error means success. Raises PluginCallError."""
    status = registration_pb.RegistrationStatus(plugin_registered=not error, error=error)
    async with open_channel(socket) as channel:
        stub: Any = registration_grpc.RegistrationStub(channel)
        method = "NotifyRegistrationStatus"
        await _call_translating_errors(
            socket.name, method, lambda: stub.NotifyRegistrationStatus(status, timeout=NOTIFY_S)
        )
