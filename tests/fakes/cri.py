"""A container runtime over a real unix socket: it has containers, checks requests, and records them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from agent import cpuset
from agent.qrm.runtime.protos import qrm_cri_v1_pb2 as pb
from agent.qrm.runtime.protos import qrm_cri_v1_pb2_grpc as pb_grpc

KNOWN = {"cpuset_cpus", "cpuset_mems", "cpu_shares", "cpu_quota", "cpu_period", "unified"}


class FakeRuntime(pb_grpc.RuntimeServiceServicer):
    """`cpus` are those of the machine. `updates` are (container, set values) in order; an invalid update is refused as
    by containerd, and recorded in `refused`. `reports`: whether the status of a container has its resources, which
    older runtimes do not report."""

    def __init__(self, path: Path, *, containers: set[str], cpus: str = "0-79", reports: bool = True) -> None:
        self.path = path
        self.containers = containers
        self.cpus = cpuset.parse(cpus)
        self.reports = reports
        self.labels: dict[str, dict[str, str]] = {}
        self.resources: dict[str, pb.LinuxContainerResources] = {}
        self.hold = asyncio.Event()
        """Updates wait until it is set, after `held` of them."""
        self.held: int | None = None
        self.waiting = 0
        """The number of waiting updates."""
        self.updates: list[tuple[str, dict[str, Any]]] = []
        self.refused: list[str] = []

    async def __aenter__(self) -> FakeRuntime:
        self._server = grpc.aio.server()
        pb_grpc.add_RuntimeServiceServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self.path}")
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(0)

    async def UpdateContainerResources(  # noqa: N802
        self, request: pb.UpdateContainerResourcesRequest, context: Any
    ) -> pb.UpdateContainerResourcesResponse:
        if wrong := self._wrong(request):
            self.refused.append(wrong)
            code = grpc.StatusCode.NOT_FOUND if "no such" in wrong else grpc.StatusCode.INVALID_ARGUMENT
            await context.abort(code, wrong)
        given = {
            field.name: dict(value) if field.name == "unified" else value for field, value in request.linux.ListFields()
        }
        if self.held is not None and len(self.updates) >= self.held:
            self.waiting += 1
            try:
                await self.hold.wait()
            finally:
                self.waiting -= 1
        self.updates.append((request.container_id, given))
        self._resources(request.container_id).MergeFrom(request.linux)
        return pb.UpdateContainerResourcesResponse()

    def add(self, id: str, name: str, pod: str, uid: str, **resources: Any) -> None:
        """A running container with the labels of the kubelet."""
        namespace, _, short = pod.partition("/")
        labels = {"container.name": name, "pod.namespace": namespace, "pod.name": short, "pod.uid": uid}
        self.containers.add(id)
        self.labels[id] = {f"io.kubernetes.{key}": value for key, value in labels.items()}
        self.resources[id] = pb.LinuxContainerResources(**resources)

    def _resources(self, id: str) -> pb.LinuxContainerResources:
        return self.resources.setdefault(id, pb.LinuxContainerResources())

    async def ListContainers(  # noqa: N802
        self, _request: pb.ListContainersRequest, _context: Any
    ) -> pb.ListContainersResponse:
        return pb.ListContainersResponse(
            containers=[pb.Container(id=id, labels=self.labels.get(id, {})) for id in sorted(self.containers)]
        )

    async def ContainerStatus(  # noqa: N802
        self, request: pb.ContainerStatusRequest, context: Any
    ) -> pb.ContainerStatusResponse:
        id = request.container_id
        if id not in self.containers:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no such container {id!r}")
        found = pb.ContainerResources(linux=self._resources(id)) if self.reports else None
        return pb.ContainerStatusResponse(status=pb.ContainerStatus(id=id, state=pb.CONTAINER_RUNNING, resources=found))

    def _wrong(self, request: pb.UpdateContainerResourcesRequest) -> str:
        if request.container_id not in self.containers:
            return f"no such container {request.container_id!r}"
        names = {field.name for field, _ in request.linux.ListFields()}
        if not names or names - KNOWN:
            return f"what is to be set of {sorted(names)}?"
        if strange := cpuset.parse(request.linux.cpuset_cpus) - self.cpus:
            return f"CPUs {cpuset.text(strange)} are not there"
        return ""

    def cpuset_of(self, id: str) -> tuple[str, str]:
        """CPUs and memory nodes of a container, "" if they are not set."""
        return self.resources[id].cpuset_cpus, self.resources[id].cpuset_mems

    def cpusets(self) -> dict[str, str]:
        """The current cpuset of each container."""
        return {container: given["cpuset_cpus"] for container, given in self.updates if "cpuset_cpus" in given}
