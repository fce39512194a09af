"""A container runtime over a real unix socket: knows its containers, checks what it is sent, and remembers it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from agent.qrm import cpuset
from agent.qrm.kubelet.protos import qrm_cri_v1_pb2 as pb
from agent.qrm.kubelet.protos import qrm_cri_v1_pb2_grpc as pb_grpc

KNOWN = {"cpuset_cpus", "cpuset_mems", "cpu_shares", "cpu_quota", "cpu_period", "unified"}


class FakeRuntime(pb_grpc.RuntimeServiceServicer):
    """`cpus` are those of the machine. `updates` are (container, what was set), in their order; an update that does not
    make sense is refused as containerd does, and remembered in `refused`."""

    def __init__(self, path: Path, *, containers: set[str], cpus: str = "0-79") -> None:
        self.path = path
        self.containers = containers
        self.cpus = cpuset.parse(cpus)
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
        self.updates.append((request.container_id, given))
        return pb.UpdateContainerResourcesResponse()

    def _wrong(self, request: pb.UpdateContainerResourcesRequest) -> str:
        if request.container_id not in self.containers:
            return f"no such container {request.container_id!r}"
        names = {field.name for field, _ in request.linux.ListFields()}
        if not names or names - KNOWN:
            return f"what is to be set of {sorted(names)}?"
        if strange := cpuset.parse(request.linux.cpuset_cpus) - self.cpus:
            return f"CPUs {cpuset.text(strange)} are not there"
        return ""

    def cpusets(self) -> dict[str, str]:
        """What each container has now."""
        return {container: given["cpuset_cpus"] for container, given in self.updates if "cpuset_cpus" in given}
