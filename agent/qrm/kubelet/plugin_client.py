"""The manager's end of a plug-in: calls over its unix socket, each with a deadline, and errors that say whose they are.

With `channel.py`, `server.py` and `runtime/cri.py` the only file that knows gRPC.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any, TypeVar

import grpc
import grpc.aio

from agent.qrm.kubelet.channel import open_channel
from agent.qrm.kubelet.messages import by_node, hints_of, infos_from_message, request_to_message
from agent.qrm.kubelet.plugin_api import Options, PluginFailed, Quantity
from agent.qrm.kubelet.protos import qrm_pluginregistration_v1_pb2 as registration_pb
from agent.qrm.kubelet.protos import qrm_pluginregistration_v1_pb2_grpc as registration_grpc
from agent.qrm.kubelet.protos import qrm_resourceplugin_v1alpha1_pb2 as pb
from agent.qrm.kubelet.protos import qrm_resourceplugin_v1alpha1_pb2_grpc as pb_grpc
from agent.qrm.manager.allocation import AllocationInfo
from agent.qrm.manager.request import ResourceRequest
from agent.qrm.manager.topology import Hint

CALL_S = 10.0
PRE_START_S = 30.0
SILENT_CALLS = 3.0
"""A plug-in that let a call time out is left alone for as long as so many calls may take: else each pod would wait for
it as long again."""
INFO_S = 1.0
NOTIFY_S = 5.0

T = TypeVar("T")


Observe = Callable[[str, str, float, bool], None]
"""Told of every call: resource, method, seconds, and whether it failed."""


def _unobserved(_resource: str, _method: str, _seconds: float, _failed: bool) -> None:
    """Nobody wants to know."""


class Endpoint:
    """One plug-in that is registered under a resource's name."""

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
        self.options = Options()
        self._call_seconds = call_seconds
        self._observe = observe
        self._monotonic = monotonic
        self._silent_until = -math.inf
        self._channel = open_channel(socket)
        self._stub: Any = pb_grpc.ResourcePluginStub(self._channel)

    async def open(self) -> None:
        """Ask for its options. Raises PluginFailed."""
        answer = await self._call("GetResourcePluginOptions", pb.Empty())
        self.options = Options(answer.pre_start_required, answer.with_topology_alignment, answer.need_reconcile)

    async def close(self) -> None:
        """Calls that are under way fail."""
        await self._channel.close()

    async def hints(self, request: ResourceRequest) -> tuple[Hint, ...] | None:
        """None is no preference, empty is no way. Raises PluginFailed."""
        answer = await self._call("GetTopologyHints", request_to_message(request, aligned=True))
        self._same("GetTopologyHints", request, answer)
        return hints_of(answer, request.resource_name)

    async def allocate(self, request: ResourceRequest) -> dict[str, AllocationInfo] | None:
        """By resource: a plug-in may give others with its own. None where the container gets nothing. Raises
        PluginFailed."""
        message = request_to_message(request, aligned=self.options.aligned)
        answer = await self._call("Allocate", message)
        self._same("Allocate", request, answer)
        return infos_from_message(answer.allocation_result) if answer.HasField("allocation_result") else None

    async def pre_start(self, request: ResourceRequest) -> None:
        """Tell it that the container is created next. Raises PluginFailed."""
        message = pb.PreStartContainerRequest(
            pod_uid=request.pod_uid,
            pod_namespace=request.pod_namespace,
            pod_name=request.pod_name,
            container_name=request.container_name,
        )
        await self._call("PreStartContainer", message, seconds=PRE_START_S)

    async def remove_pod(self, pod_uid: str) -> None:
        """Raises PluginFailed."""
        await self._call("RemovePod", pb.RemovePodRequest(pod_uid=pod_uid))

    async def allocations(self) -> dict[str, dict[str, dict[str, AllocationInfo]]]:
        """By pod, container and resource. Raises PluginFailed."""
        answer = await self._call("GetResourcesAllocation", pb.GetResourcesAllocationRequest())
        return {
            pod: {name: infos_from_message(each) for name, each in sorted(containers.container_resources.items())}
            for pod, containers in sorted(answer.pod_resources.items())
        }

    async def aware(self, pod_uid: str, container: str) -> dict[str, Quantity]:
        """What a container has, by resource. Raises PluginFailed."""
        asked = pb.GetTopologyAwareResourcesRequest(pod_uid=pod_uid, container_name=container)
        answer = await self._call("GetTopologyAwareResources", asked)
        found = answer.container_topology_aware_resources.allocated_resources
        return {
            name: Quantity(
                each.aggregated_quantity,
                by_node(each.topology_aware_quantity_list),
                each.is_node_resource,
                each.is_scalar_resource,
            )
            for name, each in sorted(found.items())
        }

    async def allocatable(self) -> dict[str, tuple[Quantity, Quantity]]:
        """What there is for pods, and what there is, by resource. Raises PluginFailed."""
        method = "GetTopologyAwareAllocatableResources"
        answer = await self._call(method, pb.GetTopologyAwareAllocatableResourcesRequest())
        found = {}
        for name, each in sorted(answer.allocatable_resources.items()):
            kind = each.is_node_resource, each.is_scalar_resource
            free = by_node(each.topology_aware_allocatable_quantity_list)
            whole = by_node(each.topology_aware_capacity_quantity_list)
            found[name] = (
                Quantity(each.aggregated_allocatable_quantity, free, *kind),
                Quantity(each.aggregated_capacity_quantity, whole, *kind),
            )
        return found

    async def _call(self, method: str, request: Any, *, seconds: float | None = None) -> Any:
        left = self._silent_until - self._monotonic()
        if left > 0:
            told = f"it did not answer in time before, and is asked again in {left:.0f} s"
            raise PluginFailed(self.resource, method, "UNAVAILABLE", told)
        stub = getattr(self._stub, method)
        timeout = self._call_seconds if seconds is None else seconds
        began, failed = perf_counter(), True
        try:
            answer = await _translated(self.resource, method, lambda: stub(request, timeout=timeout))
            failed = False
        except PluginFailed as error:
            if error.status == grpc.StatusCode.DEADLINE_EXCEEDED.name:
                self._silent_until = self._monotonic() + SILENT_CALLS * self._call_seconds
            raise
        finally:
            self._observe(self.resource, method, perf_counter() - began, failed)
        return answer

    def _same(self, method: str, request: ResourceRequest, answer: Any) -> None:
        """Whether an answer is about what was asked. An answer that names nobody is taken for one to the question."""
        for name in ("pod_uid", "container_name", "resource_name"):
            asked, answered = getattr(request, name), getattr(answer, name)
            if answered not in ("", asked):
                raise PluginFailed(
                    self.resource, method, "NOT_OURS", f"its answer is about {name} {answered!r}, not {asked!r}"
                )


async def _translated(resource: str, method: str, call: Callable[[], Awaitable[T]]) -> T:
    try:
        answer = await call()
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # gRPC cancels what is under way when a channel is closed, as a plug-in's is when that goes. Nobody has
        # cancelled us: who asks, as the rounds do, must not end for it.
        raise PluginFailed(resource, method, "CANCELLED", "the plug-in went before it had answered") from None
    except grpc.aio.AioRpcError as error:
        raise PluginFailed(resource, method, error.code().name, error.details() or "no details") from None
    except grpc.aio.UsageError as error:  # the channel was closed under the call
        raise PluginFailed(resource, method, "CANCELLED", str(error)) from None
    if answer is None:  # which is how gRPC gives bytes that it cannot read, after a word in the log
        raise PluginFailed(resource, method, "NOT_OURS", "its answer is no message of this protocol")
    return answer


# --- registration ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """How a plug-in introduces itself."""

    type: str
    name: str
    endpoint: str
    versions: tuple[str, ...]


async def ask_info(socket: Path) -> PluginInfo:
    """GetInfo of whoever listens on a socket in the registration directory. Raises PluginFailed."""
    async with open_channel(socket) as channel:
        stub: Any = registration_grpc.RegistrationStub(channel)
        request = registration_pb.InfoRequest()
        answer = await _translated(socket.name, "GetInfo", lambda: stub.GetInfo(request, timeout=INFO_S))
    return PluginInfo(answer.type, answer.name, answer.endpoint, tuple(answer.supported_versions))


async def notify(socket: Path, error: str) -> None:
    """Tell a plug-in what became of its registration: an empty error is success. Raises PluginFailed."""
    status = registration_pb.RegistrationStatus(plugin_registered=not error, error=error)
    async with open_channel(socket) as channel:
        stub: Any = registration_grpc.RegistrationStub(channel)
        method = "NotifyRegistrationStatus"
        await _translated(socket.name, method, lambda: stub.NotifyRegistrationStatus(status, timeout=NOTIFY_S))
