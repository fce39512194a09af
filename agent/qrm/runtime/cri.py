"""Sets properties of containers through the container runtime: UpdateContainerResources of the CRI, over its unix
socket.

Only the given properties are sent: the runtime leaves the values of fields unchanged that are zero or empty.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from agent import cpuset
from agent.qrm.grpc.channel import open_channel
from agent.qrm.grpc.protos import qrm_cri_v1_pb2 as pb
from agent.qrm.grpc.protos import qrm_cri_v1_pb2_grpc as pb_grpc
from agent.qrm.manager.admission import ApplyFailed
from agent.qrm.manager.allocation import CPUSETS, FIELDS, UNIFIED, Properties, Value
from agent.qrm.runtime import ContainerGone, FoundContainer

NAME, NAMESPACE, POD, UID = (f"io.kubernetes.{of}" for of in ("container.name", "pod.namespace", "pod.name", "pod.uid"))
"""Labels that the kubelet gives each container."""
CALL_S = 5.0
"""Timeout in seconds. A slow runtime delays all containers of the round."""


class CriRuntime:
    """A container runtime that listens on `socket` (/run/containerd/containerd.sock, /run/crio/crio.sock)."""

    def __init__(self, socket: Path, *, call_seconds: float = CALL_S) -> None:
        self.socket = socket
        self._seconds = call_seconds
        self._channel = open_channel(socket)
        self._stub: Any = pb_grpc.RuntimeServiceStub(self._channel)

    async def close(self) -> None:
        """Close the connection to the runtime."""
        await self._channel.close()

    def _failed(self, what: str, error: grpc.aio.AioRpcError) -> ApplyFailed:
        return ApplyFailed(f"{self.socket}: {what}: {error.code().name}: {error.details()}")

    async def containers(self) -> list[FoundContainer]:
        """The running containers of pods, by the kubelet's labels. Raises ApplyFailed."""
        running = pb.ContainerStateValue(state=pb.CONTAINER_RUNNING)
        request = pb.ListContainersRequest(filter=pb.ContainerFilter(state=running))
        try:
            response = await self._stub.ListContainers(request, timeout=self._seconds)
        except grpc.aio.AioRpcError as error:
            raise self._failed("ListContainers", error) from None
        return [
            FoundContainer(each.id, each.labels[NAME], f"{each.labels[NAMESPACE]}/{each.labels[POD]}", each.labels[UID])
            for each in response.containers
            if {NAME, NAMESPACE, POD, UID} <= each.labels.keys()
        ]

    async def values(self, container: FoundContainer, names: Iterable[str]) -> Properties | None:
        """Those of the properties that a container has; None if the runtime does not report them. Raises ApplyFailed
        and ContainerGone."""
        request = pb.ContainerStatusRequest(container_id=container.id)
        try:
            response: pb.ContainerStatusResponse = await self._stub.ContainerStatus(request, timeout=self._seconds)
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.NOT_FOUND:
                raise ContainerGone from None
            raise self._failed(f"ContainerStatus of {container.called} ({container.id[:12]})", error) from None
        if response.status.state == pb.CONTAINER_EXITED:
            raise ContainerGone
        resources = response.status.resources
        return properties_in(resources.linux, names) if resources.HasField("linux") else None

    async def set(self, container: FoundContainer, properties: Properties) -> None:
        """Set properties on a container. Raises ApplyFailed."""
        request = pb.UpdateContainerResourcesRequest(container_id=container.id, linux=resources_of(properties))
        try:
            await self._stub.UpdateContainerResources(request, timeout=self._seconds)
        except grpc.aio.AioRpcError as error:
            what = f"UpdateContainerResources of {container.called} ({container.id[:12]})"
            raise self._failed(what, error) from None


def properties_in(resources: pb.LinuxContainerResources, names: Iterable[str]) -> dict[str, Value]:
    """The properties with these names in a CRI message; zero and empty are unset."""
    found: dict[str, Value] = {}
    for name in sorted(names):
        if name.startswith(UNIFIED):
            value = resources.unified.get(name.removeprefix(UNIFIED), "")
        else:
            value = getattr(resources, FIELDS[name], "") if name in FIELDS else ""
        if value:
            found[name] = cpuset.canonical_or_unchanged(value) if name in CPUSETS else value
    return found


def resources_of(properties: Properties) -> pb.LinuxContainerResources:
    """The properties as a CRI message."""
    message = pb.LinuxContainerResources()
    for name, value in properties.items():
        if name.startswith(UNIFIED):
            message.unified[name.removeprefix(UNIFIED)] = str(value)
        else:
            setattr(message, FIELDS[name], value)
    return message
