"""gRPC services on unix sockets: the built-in plug-ins, for this manager or any other manager with the same protocol,
the manager's pod-resources API, and the registration of plug-ins that do not use the plugin watcher.

Only this module, `socket_server.py`, `channel.py`, `plugin_client.py` and `runtime/cri.py` use gRPC.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio

from agent.cpuset import CpuSet
from agent.qrm.grpc.contact import ManagerContact
from agent.qrm.grpc.messages import (
    PLUGIN_TYPE,
    VERSION,
    add_hints,
    allocation_message,
    quantities,
    request_for_plugin,
)
from agent.qrm.grpc.plugin_api import PluginCallError
from agent.qrm.grpc.plugin_client import PluginEndpoint
from agent.qrm.grpc.pod_resources import allocatable_resources, pod_resources
from agent.qrm.grpc.protos import qrm_pluginregistration_v1_pb2 as registration_pb
from agent.qrm.grpc.protos import qrm_pluginregistration_v1_pb2_grpc as registration_grpc
from agent.qrm.grpc.protos import qrm_podresources_v1_pb2 as podresources_pb
from agent.qrm.grpc.protos import qrm_podresources_v1_pb2_grpc as podresources_grpc
from agent.qrm.grpc.protos import qrm_resourceplugin_v1alpha1_pb2 as pb
from agent.qrm.grpc.protos import qrm_resourceplugin_v1alpha1_pb2_grpc as pb_grpc
from agent.qrm.grpc.resource_names import is_resource_name, shown
from agent.qrm.grpc.socket_server import CannotServe, SocketServer
from agent.qrm.manager.manager import Manager
from agent.qrm.manager.request import CannotAllocate, ResourceRequest
from agent.qrm.plugins.base import ResourcePlugin, is_node_resource
from agent.qrm.pods import QrmPod
from agent.qrm.store.files import BadState, StateFile, set_aside
from watcher.core.messages import printable

log = logging.getLogger(__name__)

T = TypeVar("T")
Adder = Callable[[Any, grpc.aio.Server], None]


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
        response = pb.ResourceHintsResponse(**_echo(message))
        with _GrpcErrors() as refusing:
            add_hints(response, request.resource_name, await self._served.read(lambda p: p.hints(request)))
        return await refusing.respond(context, response)

    async def Allocate(self, message: pb.ResourceRequest, context: Any) -> pb.ResourceAllocationResponse:  # noqa: N802
        request = await self._request(message, context)
        response = pb.ResourceAllocationResponse(**_echo(message))
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


# --- the manager -------------------------------------------------------------------------------------------------


class PodResources(podresources_grpc.PodResourcesListerServicer):
    """The pod-resources API: `pods()` returns the pods of this node, `cpus` are the CPUs that pods may use."""

    def __init__(self, manager: Manager, pods: Callable[[], Iterable[QrmPod]], *, cpus: CpuSet) -> None:
        self._manager = manager
        self._pods = pods
        self._cpus = cpus

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register this service with a gRPC server."""
        podresources_grpc.add_PodResourcesListerServicer_to_server(self, server)

    async def List(self, _request: Any, _context: Any) -> podresources_pb.ListPodResourcesResponse:  # noqa: N802
        """All pods with the allocations that each plug-in reports. A plug-in that does not respond is omitted."""
        found = []
        for pod in self._pods():
            aware = {each.name: await self._manager.topology_aware(pod, each.name) for each in pod.containers}
            infos = {each.name: self._manager.allocations.of(pod.uid, each.name) for each in pod.containers}
            found.append(pod_resources(pod, aware, infos))
        return podresources_pb.ListPodResourcesResponse(pod_resources=found)

    async def GetAllocatableResources(  # noqa: N802
        self, _request: Any, _context: Any
    ) -> podresources_pb.AllocatableResourcesResponse:
        """The resources that pods of this node may use."""
        return allocatable_resources(await self._manager.plugins.allocatable(), self._cpus)


class LegacyRegistration(pb_grpc.RegistrationServicer):
    """The registration of plug-ins that do not use the plugin watcher: they call Register and name a socket in
    `directory`."""

    def __init__(
        self,
        manager: Manager,
        directory: Path,
        *,
        open_endpoint: Callable[[str, Path], PluginEndpoint] = PluginEndpoint,
    ) -> None:
        self._manager = manager
        self._directory = directory
        self._open_endpoint = open_endpoint

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register this service with a gRPC server."""
        pb_grpc.add_RegistrationServicer_to_server(self, server)

    async def Register(self, request: pb.RegisterRequest, context: Any) -> pb.Empty:  # noqa: N802
        """Get the options of the plug-in and register its endpoint with the manager."""
        if request.version != VERSION:
            asked = f"requested API version {printable(request.version)} is not supported by kubelet"
            message = f"{asked}. Supported version is {VERSION}"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, message)
        if not request.resource_name or not request.endpoint or Path(request.endpoint).name != request.endpoint:
            message = "resource_name and endpoint are required; endpoint must be the name of a socket in this directory"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, message)
        if not is_resource_name(request.resource_name):
            message = f"{shown(request.resource_name)} is not a resource name, such as cpu or example.com/gpu"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, message)
        endpoint = self._open_endpoint(request.resource_name, self._directory / request.endpoint)
        try:
            await endpoint.open()
        except PluginCallError as error:
            await endpoint.close()
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        await self._manager.plugins.register(request.resource_name, endpoint)
        log.info("the plug-in for %s at %s registered itself", request.resource_name, endpoint.socket)
        return pb.Empty()


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


def _echo(message: pb.ResourceRequest) -> dict[str, Any]:
    """The fields of a request that the response repeats."""
    names = (
        *("pod_uid", "pod_namespace", "pod_name", "container_name", "container_type", "container_index"),
        *("pod_role", "pod_type", "resource_name", "native_qos_class"),
    )
    plain = {name: getattr(message, name) for name in names}
    return {**plain, "labels": dict(message.labels), "annotations": dict(message.annotations)}
