"""The gRPC services of the built-in plug-ins on unix sockets, for this manager or any other manager with the same
protocol.

Only this package and `runtime/cri.py` use gRPC.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio

from agent.qrm.grpc.contact import ManagerContact
from agent.qrm.grpc.messages import (
    PLUGIN_TYPE,
    VERSION,
    add_hints,
    allocation_message,
    quantities,
    request_for_plugin,
    subject,
)
from agent.qrm.grpc.protos import qrm_pluginregistration_v1_pb2 as registration_pb
from agent.qrm.grpc.protos import qrm_pluginregistration_v1_pb2_grpc as registration_grpc
from agent.qrm.grpc.protos import qrm_resourceplugin_v1alpha1_pb2 as pb
from agent.qrm.grpc.protos import qrm_resourceplugin_v1alpha1_pb2_grpc as pb_grpc
from agent.qrm.grpc.socket_server import CannotServe, SocketServer
from agent.qrm.manager.request import CannotAllocate, ResourceRequest
from agent.qrm.plugins.base import ResourcePlugin, is_node_resource
from agent.qrm.store.files import BadState, StateFile, set_aside
from watcher.core.messages import printable

log = logging.getLogger(__name__)

T = TypeVar("T")


# --- a plug-in ---------------------------------------------------------------------------------------------------


class PluginServer:
    """Serves one plug-in on its socket. Decisions are written to the state file before they are returned.

    `external`: whether the manager is another program (Katalyst's, or a patched kubelet).
    """

    def __init__(
        self,
        plugin: ResourcePlugin,
        path: Path,
        state: StateFile,
        *,
        external: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.plugin = plugin
        self.state = state
        self.external = external
        self.contact = ManagerContact(monotonic, called_regularly=plugin.reconciled)
        self._changing = asyncio.Lock()
        registration, resource = _Registration(self), _ResourcePlugin(self)
        self._server = SocketServer(
            path,
            (
                lambda server: registration_grpc.add_RegistrationServicer_to_server(registration, server),
                lambda server: pb_grpc.add_ResourcePluginServicer_to_server(resource, server),
            ),
            lost=self.contact.lost,
        )

    async def start(self) -> None:
        """Load the stored state and start the server. An unusable state file is renamed. Raises CannotServe."""
        try:
            kept = await asyncio.to_thread(self.state.read)
            if kept is not None:
                self.plugin.load(kept)
        except OSError as error:
            raise CannotServe(f"cannot read the state file {self.state.path}: {error.strerror}") from None
        except (BadState, ValueError) as error:
            await asyncio.to_thread(set_aside, self.state.path, str(error))
        await self._server.start()

    async def stop(self) -> None:
        """Stop serving the plug-in. Idempotent."""
        await self._server.stop()

    async def read(self, ask: Callable[[ResourcePlugin], T]) -> T:
        """Call a function with the plug-in while its state cannot change. Changes that the function makes are not
        stored."""
        async with self._changing:
            return ask(self.plugin)

    async def change(self, act: Callable[[ResourcePlugin], T]) -> T:
        """Call a function that may change the state of the plug-in, and store the new state. If it cannot be stored,
        the change is undone.

        Raises CannotAllocate, OSError if the state cannot be written, and any exception of a plug-in from another
        package.
        """
        # A cancelled call must not leave a decision partly stored.
        return await asyncio.shield(asyncio.create_task(self._change(act)))

    async def _change(self, act: Callable[[ResourcePlugin], T]) -> T:
        async with self._changing:
            before = self.plugin.document()
            try:
                return act(self.plugin)
            finally:
                await self._keep(before)

    async def _keep(self, before: dict[str, Any]) -> None:
        after = self.plugin.document()
        if after == before:
            return
        try:
            await asyncio.to_thread(self.state.write, after)
        except Exception:  # the document of an external plug-in may not be valid JSON
            self.plugin.load(before)
            raise


class _Registration(registration_grpc.RegistrationServicer):
    def __init__(self, served: PluginServer) -> None:
        self._served = served

    async def GetInfo(self, _request: Any, _context: Any) -> registration_pb.PluginInfo:  # noqa: N802
        resource = self._served.plugin.resource
        return registration_pb.PluginInfo(type=PLUGIN_TYPE, name=resource, supported_versions=[VERSION])

    async def NotifyRegistrationStatus(  # noqa: N802
        self, request: registration_pb.RegistrationStatus, _context: Any
    ) -> registration_pb.RegistrationStatusResponse:
        resource, contact = self._served.plugin.resource, self._served.contact
        error = "" if request.plugin_registered else printable(request.error) or "refused without a reason"
        if error != contact.error:
            if error:
                log.warning("the plug-in for %s was not registered: %s", resource, error)
            else:
                log.info("the plug-in for %s was registered", resource)
        contact.registered(error)
        return registration_pb.RegistrationStatusResponse()


class _ResourcePlugin(pb_grpc.ResourcePluginServicer):
    """The methods of the protocol. The methods for whole pods return UNIMPLEMENTED, as in Katalyst's plug-ins."""

    def __init__(self, served: PluginServer) -> None:
        self._served = served

    async def GetResourcePluginOptions(self, _request: pb.Empty, _context: Any) -> pb.ResourcePluginOptions:  # noqa: N802
        self._served.contact.called()
        plugin = self._served.plugin
        return pb.ResourcePluginOptions(with_topology_alignment=plugin.aligned, need_reconcile=plugin.reconciled)

    async def GetTopologyHints(self, message: pb.ResourceRequest, context: Any) -> pb.ResourceHintsResponse:  # noqa: N802
        request = await self._request(message, context)
        response = pb.ResourceHintsResponse(**subject(message))
        with _GrpcErrors() as refusing:
            add_hints(response, request.resource_name, await self._served.read(lambda p: p.hints(request)))
        return await refusing.respond(context, response)

    async def Allocate(self, message: pb.ResourceRequest, context: Any) -> pb.ResourceAllocationResponse:  # noqa: N802
        request = await self._request(message, context)
        response = pb.ResourceAllocationResponse(**subject(message))
        with _GrpcErrors() as refusing:
            info = await self._served.change(lambda plugin: plugin.allocate(request))
            if info is not None:
                response.allocation_result.CopyFrom(allocation_message({request.resource_name: info}))
        return await refusing.respond(context, response)

    async def RemovePod(self, message: pb.RemovePodRequest, context: Any) -> pb.RemovePodResponse:  # noqa: N802
        with _GrpcErrors() as refusing:
            await self._served.change(lambda plugin: plugin.remove(message.pod_uid))
        return await refusing.respond(context, pb.RemovePodResponse())

    async def GetResourcesAllocation(self, _request: Any, _context: Any) -> pb.GetResourcesAllocationResponse:  # noqa: N802
        self._served.contact.called()
        resource = self._served.plugin.resource
        found = await self._served.read(lambda plugin: plugin.allocations())
        return pb.GetResourcesAllocationResponse(
            pod_resources={
                pod: pb.ContainerResources(
                    container_resources={name: allocation_message({resource: info}) for name, info in each.items()}
                )
                for pod, each in found.items()
            }
        )

    async def GetTopologyAwareResources(  # noqa: N802
        self, message: pb.GetTopologyAwareResourcesRequest, _context: Any
    ) -> pb.GetTopologyAwareResourcesResponse:
        resource, pod, name = self._served.plugin.resource, message.pod_uid, message.container_name
        found = await self._served.read(lambda plugin: plugin.by_node(pod, name))
        aware = pb.TopologyAwareResource(
            is_node_resource=is_node_resource(self._served.plugin),
            is_scalar_resource=True,
            aggregated_quantity=sum(found.values()),
            original_aggregated_quantity=sum(found.values()),
            topology_aware_quantity_list=quantities(found),
            original_topology_aware_quantity_list=quantities(found),
        )
        resources = pb.ContainerTopologyAwareResources(
            container_name=name, allocated_resources={resource: aware} if found else {}
        )
        return pb.GetTopologyAwareResourcesResponse(pod_uid=pod, container_topology_aware_resources=resources)

    async def GetTopologyAwareAllocatableResources(  # noqa: N802
        self, _request: Any, _context: Any
    ) -> pb.GetTopologyAwareAllocatableResourcesResponse:
        resource = self._served.plugin.resource
        free, whole = await self._served.read(lambda p: (p.allocatable_by_node(), p.capacity_by_node()))
        allocatable = pb.AllocatableTopologyAwareResource(
            is_node_resource=is_node_resource(self._served.plugin),
            is_scalar_resource=True,
            aggregated_allocatable_quantity=sum(free.values()),
            topology_aware_allocatable_quantity_list=quantities(free),
            aggregated_capacity_quantity=sum(whole.values()),
            topology_aware_capacity_quantity_list=quantities(whole),
        )
        return pb.GetTopologyAwareAllocatableResourcesResponse(allocatable_resources={resource: allocatable})

    async def PreStartContainer(self, _request: Any, _context: Any) -> pb.PreStartContainerResponse:  # noqa: N802
        return pb.PreStartContainerResponse()

    async def _request(self, message: pb.ResourceRequest, context: Any) -> ResourceRequest:
        self._served.contact.called()
        try:
            request = request_for_plugin(message, external=self._served.external)
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise
        if request.resource_name != self._served.plugin.resource:
            ours = self._served.plugin.resource
            text = f"this is the plug-in for {ours}, but the request is for {request.resource_name!r}"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        return request


class _GrpcErrors(contextlib.AbstractContextManager["_GrpcErrors"]):
    """Turns CannotAllocate and OSError into the gRPC status UNKNOWN with the message, as Katalyst's plug-ins do."""

    def __init__(self) -> None:
        self._why = ""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, CannotAllocate):
            self._why = str(error)
        elif isinstance(error, OSError):
            self._why = f"cannot write the decision to disk: {error.strerror or error}"
        return bool(self._why)

    async def respond(self, context: Any, response: T) -> T:
        if self._why:
            await context.abort(grpc.StatusCode.UNKNOWN, self._why)
        return response
