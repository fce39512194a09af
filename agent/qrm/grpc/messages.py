"""Conversion between protobuf messages of the resource plug-in protocol and domain values.

Go distinguishes a nil list of hints ("no preference") from an empty list ("impossible"). On the wire these are a map
entry without a value and an entry with an empty value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from google.protobuf.message import DecodeError

from agent.qrm.grpc.protos import qrm_resourceplugin_v1alpha1_pb2 as pb
from agent.qrm.manager.allocation import AllocationInfo, BindMount, DeviceNode, WireHint, WireHints
from agent.qrm.manager.request import CPU, RECLAIMED_MILLICPU, ContainerType, ResourceRequest
from agent.qrm.manager.topology import Hint
from agent.qrm.pods import (
    POD_TYPE_ANNOTATION,
    QOS_ANNOTATION,
    RECLAIMED_CORES,
    ROLE_ANNOTATION,
    ROLE_LABEL,
    TYPE_ANNOTATION,
)

VERSION = "v1alpha1"
PLUGIN_TYPE = "ResourcePlugin"
_SAME = (
    *("pod_uid", "pod_namespace", "pod_name", "container_name", "container_index"),
    *("pod_role", "pod_type", "resource_name", "native_qos_class"),
)

# --- requests ----------------------------------------------------------------------------------------------------


def request_to_message(request: ResourceRequest, *, aligned: bool) -> pb.ResourceRequest:
    """Convert a request. A plug-in with topology alignment always gets a hint, if necessary without nodes: Katalyst's
    plug-ins return the hint of the request, and a missing hint would become a nil element in their response."""
    message = pb.ResourceRequest(
        **_fields(request),
        container_type=request.container_type.name,
        resource_requests=dict(request.resource_requests),
    )
    if aligned:
        message.hint.CopyFrom(_hint_to_message(request.hint or Hint(None, preferred=False)))
    return message


def request_from_message(message: pb.ResourceRequest) -> ResourceRequest:
    """Convert a message. Raises ValueError for an unknown container type."""
    return ResourceRequest(
        **_fields(message),
        container_type=ContainerType(message.container_type),
        hint=_hint_from_message(message.hint) if message.HasField("hint") else None,
        resource_requests=dict(message.resource_requests),
    )


def subject(message: pb.ResourceRequest) -> dict[str, Any]:
    """The fields of a request that the response repeats."""
    return {**_fields(message), "container_type": message.container_type}


def _fields(request: ResourceRequest | pb.ResourceRequest) -> dict[str, Any]:
    """The fields that have the same value in a request and in its message."""
    plain = {name: getattr(request, name) for name in _SAME}
    return {**plain, "labels": dict(request.labels), "annotations": dict(request.annotations)}


def request_for_plugin(message: pb.ResourceRequest, *, external: bool) -> ResourceRequest:
    """Convert a message to a request as a plug-in reads it: with the pod's own role and type, and with the quantity
    under the name of the plug-in's resource. Managers differ in both; `external` is whether the manager is not
    load-watcher's. Raises ValueError for an unknown container type.

    Katalyst's manager (v0.5.0, orm/manager.go:263-269 and 471-479) takes the role only from a label. It sends the
    quantity under the requested name for hints, and the same number under the mapped name for an allocation: then a
    reclaimed pod's CPUs are thousandths under the name `cpu`.
    """
    request = request_from_message(message)
    labels, annotations = request.labels, request.annotations
    return replace(
        request,
        pod_role=annotations.get(ROLE_ANNOTATION) or request.pod_role or labels.get(ROLE_LABEL, ""),
        pod_type=annotations.get(TYPE_ANNOTATION) or request.pod_type or annotations.get(POD_TYPE_ANNOTATION, ""),
        resource_requests=_own_quantities(request, external=external),
    )


def _own_quantities(request: ResourceRequest, *, external: bool) -> Mapping[str, float]:
    """The quantities with a single quantity renamed to the plug-in's resource, in the unit of that resource."""
    quantities, name = request.resource_requests, request.resource_name
    if len(quantities) != 1:
        return quantities
    ((asked, quantity),) = quantities.items()
    reclaimed = external and request.annotations.get(QOS_ANNOTATION) == RECLAIMED_CORES
    thousandths = asked == RECLAIMED_MILLICPU or (asked == CPU and reclaimed)
    return {name: quantity / 1000 if name == CPU and thousandths else quantity}


# --- hints -------------------------------------------------------------------------------------------------------


def add_hints(response: pb.ResourceHintsResponse, resource: str, hints: Sequence[Hint] | None) -> None:
    """Add the hints of a resource: None means no preference, empty means that no nodes fit."""
    entry = response.resource_hints.add(key=resource)
    if hints is None:
        return
    entry.value.SetInParent()
    entry.value.hints.extend(_hint_to_message(hint) for hint in hints)


def hints_of(response: pb.ResourceHintsResponse, resource: str) -> tuple[Hint, ...] | None:
    """The hints of a resource as written by `add_hints`; None (no preference) if the resource is missing."""
    for entry in reversed(response.resource_hints):  # a map on the wire: the last entry of a key is valid
        if entry.key == resource:
            return tuple(map(_hint_from_message, entry.value.hints)) if entry.HasField("value") else None
    return None


def _hint_to_message(hint: Hint) -> pb.TopologyHint:
    return pb.TopologyHint(nodes=sorted(hint.nodes or ()), preferred=hint.preferred)


def _hint_from_message(message: pb.TopologyHint) -> Hint:
    return Hint(frozenset(message.nodes), message.preferred)


# --- allocations -------------------------------------------------------------------------------------------------


def info_to_message(info: AllocationInfo) -> pb.ResourceAllocationInfo:
    """The allocation of one resource of one container as a message."""
    message = pb.ResourceAllocationInfo(
        oci_property_name=info.oci_property_name,
        is_node_resource=info.is_node_resource,
        is_scalar_resource=info.is_scalar_resource,
        allocated_quantity=info.allocated_quantity,
        allocation_result=info.allocation_result,
        envs=info.envs or None,
        annotations=info.annotations or None,
        topology_assignments=info.topology_assignments or None,
        mounts=[pb.Mount(**msgspec.structs.asdict(mount)) for mount in info.mounts],
        devices=[pb.DeviceSpec(**msgspec.structs.asdict(device)) for device in info.devices],
    )
    if info.resource_hints is not None:
        message.resource_hints.SetInParent()
        message.resource_hints.hints.extend(
            pb.TopologyHint(nodes=hint.nodes, preferred=hint.preferred) for hint in info.resource_hints.hints if hint
        )
    return message


def info_from_message(message: pb.ResourceAllocationInfo) -> AllocationInfo:
    """The allocation in a message; the inverse of `info_to_message`."""
    hints = None
    if message.HasField("resource_hints"):
        hints = WireHints(tuple(WireHint(tuple(h.nodes), h.preferred) for h in message.resource_hints.hints))
    return AllocationInfo(
        oci_property_name=message.oci_property_name,
        is_node_resource=message.is_node_resource,
        is_scalar_resource=message.is_scalar_resource,
        allocated_quantity=message.allocated_quantity,
        allocation_result=message.allocation_result,
        envs=dict(message.envs),
        annotations=dict(message.annotations),
        resource_hints=hints,
        topology_assignments=dict(message.topology_assignments),
        mounts=tuple(BindMount(each.container_path, each.host_path, each.read_only) for each in message.mounts),
        devices=tuple(DeviceNode(each.container_path, each.host_path, each.permissions) for each in message.devices),
    )


def info_from_bytes(data: bytes) -> AllocationInfo:
    """Parse the allocation format of the patched kubelet's checkpoint. Raises ValueError."""
    try:
        return info_from_message(pb.ResourceAllocationInfo.FromString(data))
    except DecodeError as error:
        raise ValueError(f"not a ResourceAllocationInfo message: {error}") from None


def infos_from_message(message: pb.ResourceAllocation) -> dict[str, AllocationInfo]:
    """Allocations by resource, sorted by resource."""
    return {name: info_from_message(message.resource_allocation[name]) for name in sorted(message.resource_allocation)}


def allocation_message(infos: Mapping[str, AllocationInfo]) -> pb.ResourceAllocation:
    """Allocations by resource as a message."""
    return pb.ResourceAllocation(resource_allocation={name: info_to_message(info) for name, info in infos.items()})


# --- quantities by NUMA node -------------------------------------------------------------------------------------


def quantities(by_node: Mapping[int, float]) -> list[pb.TopologyAwareQuantity]:
    """Quantities by NUMA node as a list of messages, sorted by node."""
    return [pb.TopologyAwareQuantity(resource_value=value, node=node) for node, value in sorted(by_node.items())]


def by_node(messages: Iterable[pb.TopologyAwareQuantity]) -> dict[int, float]:
    """Quantities by NUMA node; several messages for one node are added up."""
    found: dict[int, float] = {}
    for message in messages:
        found[message.node] = found.get(message.node, 0.0) + message.resource_value
    return found
