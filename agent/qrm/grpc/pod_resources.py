"""The pod-resources API of the kubelet: reports the CPUs, memory and other resources of each container to monitoring
agents.

CPU sets are also reported in `cpu_ids`, which clients of
the unextended API read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import grpc.aio

from agent import cpuset
from agent.cpuset import CpuSet
from agent.qrm.grpc.plugin_api import Quantity
from agent.qrm.grpc.protos import qrm_podresources_v1_pb2 as pb
from agent.qrm.grpc.protos import qrm_podresources_v1_pb2_grpc as pb_grpc
from agent.qrm.manager.allocation import CPUSET_CPUS, AllocationInfo
from agent.qrm.manager.manager import Manager
from agent.qrm.manager.request import MAX_QUANTITY, MEMORY
from agent.qrm.pods import QrmPod

Aware = Mapping[str, Mapping[str, Quantity]]
"""Quantities of the containers of a pod, by container and resource."""


class PodResources(pb_grpc.PodResourcesListerServicer):
    """The pod-resources API: `pods()` returns the pods of this node, `cpus` are the CPUs that pods may use."""

    def __init__(self, manager: Manager, pods: Callable[[], Iterable[QrmPod]], *, cpus: CpuSet) -> None:
        self._manager = manager
        self._pods = pods
        self._cpus = cpus

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register this service with a gRPC server."""
        pb_grpc.add_PodResourcesListerServicer_to_server(self, server)

    async def List(self, _request: Any, _context: Any) -> pb.ListPodResourcesResponse:  # noqa: N802
        """All pods with the allocations that each plug-in reports. A plug-in that does not respond is omitted."""
        found = []
        for pod in self._pods():
            aware = {each.name: await self._manager.topology_aware(pod, each.name) for each in pod.containers}
            infos = {each.name: self._manager.allocations.of(pod.uid, each.name) for each in pod.containers}
            found.append(pod_resources(pod, aware, infos))
        return pb.ListPodResourcesResponse(pod_resources=found)

    async def GetAllocatableResources(  # noqa: N802
        self, _request: Any, _context: Any
    ) -> pb.AllocatableResourcesResponse:
        """The resources that pods of this node may use."""
        return allocatable_resources(await self._manager.plugins.allocatable(), self._cpus)


def pod_resources(
    pod: QrmPod, aware: Aware, allocations: Mapping[str, Mapping[str, AllocationInfo]]
) -> pb.PodResources:
    """The message for one pod. `allocations` are by container name and resource."""
    return pb.PodResources(
        name=pod.name,
        namespace=pod.namespace,
        pod_role=pod.role,
        pod_type=pod.type,
        labels=dict(pod.labels),
        annotations=dict(pod.annotations),
        containers=[
            container_resources(each.name, aware.get(each.name, {}), allocations.get(each.name, {}))
            for each in pod.containers
            if not each.init or each.restarts
        ],
    )


def container_resources(
    name: str, aware: Mapping[str, Quantity], infos: Mapping[str, AllocationInfo]
) -> pb.ContainerResources:
    """The message for one container."""
    message = pb.ContainerResources(name=name)
    for info in infos.values():
        if info.oci_property_name == CPUSET_CPUS:
            with contextlib.suppress(ValueError):  # invalid checkpoint content; such a value is not applied either
                message.cpu_ids.extend(sorted(cpuset.parse(info.allocation_result)))
    memory = aware.get(MEMORY)
    if memory is not None:
        message.memory.extend(_memory(memory.by_node))
    for resource, quantity in sorted(aware.items()):
        message.resources.add(
            resource_name=resource,
            is_node_resource=quantity.is_node_resource,
            is_scalar_resource=quantity.is_scalar_resource,
            aggregated_quantity=quantity.total,
            original_aggregated_quantity=quantity.total,
            topology_aware_quantity_list=_by_node(quantity.by_node),
            original_topology_aware_quantity_list=_by_node(quantity.by_node),
        )
    return message


def allocatable_resources(
    found: Mapping[str, tuple[Quantity, Quantity]], cpus: Iterable[int]
) -> pb.AllocatableResourcesResponse:
    """The message with allocatable quantity and capacity of each resource; `cpus` are the CPUs that pods may use."""
    message = pb.AllocatableResourcesResponse(cpu_ids=sorted(cpus))
    for resource, (free, whole) in sorted(found.items()):
        if resource == MEMORY:
            message.memory.extend(_memory(free.by_node))
        message.resources.add(
            resource_name=resource,
            is_node_resource=free.is_node_resource,
            is_scalar_resource=free.is_scalar_resource,
            aggregated_allocatable_quantity=free.total,
            topology_aware_allocatable_quantity_list=_by_node(free.by_node),
            aggregated_capacity_quantity=whole.total,
            topology_aware_capacity_quantity_list=_by_node(whole.by_node),
        )
    return message


def _by_node(by_node: Mapping[int, float]) -> list[pb.TopologyAwareQuantity]:
    return [pb.TopologyAwareQuantity(resource_value=value, node=node) for node, value in sorted(by_node.items())]


def _memory(by_node: Mapping[int, float]) -> list[pb.ContainerMemory]:
    return [
        pb.ContainerMemory(memory_type=MEMORY, size=int(size), topology=pb.TopologyInfo(nodes=[pb.NUMANode(ID=node)]))
        for node, size in sorted(by_node.items())
        if 0 < size < MAX_QUANTITY
    ]
