"""A resource plug-in that is not part of load-watcher, as a program: `python -c TEXT WAY RESOURCE DIRECTORY`.

`DIRECTORY` is `qrm.state_dir` of the manager. `WAY` is how the plug-in registers: with a socket in the directory of the
plug-ins, which the manager watches, or with a call of Register. The plug-in gives each container one of two disks: an
environment variable, a mount and a device. It keeps what it gave in a file.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import grpc

from agent.qrm.grpc.protos import qrm_pluginregistration_v1_pb2 as registration_pb
from agent.qrm.grpc.protos import qrm_pluginregistration_v1_pb2_grpc as registration_grpc
from agent.qrm.grpc.protos import qrm_resourceplugin_v1alpha1_pb2 as pb
from agent.qrm.grpc.protos import qrm_resourceplugin_v1alpha1_pb2_grpc as pb_grpc

Way = Literal["watched", "called"]
VERSION = "v1alpha1"
DISKS = ("disk-0", "disk-1")
LOCAL = [("grpc.use_local_subchannel_pool", 1)]
"""Without it, a new connection waits because an earlier one to the same path failed."""
NULL = (1, 3)
"""Numbers of the device /dev/null, which stands for a disk."""


class Disks(pb_grpc.ResourcePluginServicer):
    """The plug-in of a resource whose files are below a directory."""

    def __init__(self, resource: str, directory: Path) -> None:
        self._resource = resource
        self._label = resource.rpartition("/")[2]
        self._directory = directory
        self._state = directory / "state.json"
        self._changing = threading.Lock()
        for disk in DISKS:
            (directory / disk).mkdir(parents=True, exist_ok=True)
            (directory / disk / "name").write_text(disk)
        with contextlib.suppress(FileExistsError, PermissionError):  # only root can make a device
            os.mknod(directory / "device", 0o666 | stat.S_IFCHR, os.makedev(*NULL))
        self._given: dict[str, dict[str, str]] = {}
        if self._state.exists():
            self._given = json.loads(self._state.read_text())

    def GetResourcePluginOptions(self, request: Any, context: Any) -> Any:  # noqa: N802
        return pb.ResourcePluginOptions(with_topology_alignment=True, need_reconcile=True)

    def GetTopologyHints(self, request: Any, context: Any) -> Any:  # noqa: N802
        with self._changing:
            fits = self._disk(request) is not None
        response = pb.ResourceHintsResponse(**_subject(request))
        entry = response.resource_hints.add(key=self._resource)
        entry.value.SetInParent()
        if fits:
            entry.value.hints.add(nodes=[0], preferred=True)
        return response

    def Allocate(self, request: Any, context: Any) -> Any:  # noqa: N802
        with self._changing:
            disk = self._disk(request)
            if disk is not None:
                self._given.setdefault(request.pod_uid, {})[request.container_name] = disk
                self._save()
        if disk is None:
            context.abort(grpc.StatusCode.UNKNOWN, "no disk is left")
        response = pb.ResourceAllocationResponse(**_subject(request))
        response.allocation_result.CopyFrom(self._allocation(str(disk)))
        return response

    def RemovePod(self, request: Any, context: Any) -> Any:  # noqa: N802
        with self._changing:
            self._given.pop(request.pod_uid, None)
            self._save()
        return pb.RemovePodResponse()

    def GetResourcesAllocation(self, request: Any, context: Any) -> Any:  # noqa: N802
        with self._changing:
            pods = {
                pod: pb.ContainerResources(
                    container_resources={name: self._allocation(disk) for name, disk in containers.items()}
                )
                for pod, containers in self._given.items()
            }
        return pb.GetResourcesAllocationResponse(pod_resources=pods)

    def GetTopologyAwareResources(self, request: Any, context: Any) -> Any:  # noqa: N802
        return pb.GetTopologyAwareResourcesResponse(pod_uid=request.pod_uid)

    def GetTopologyAwareAllocatableResources(self, request: Any, context: Any) -> Any:  # noqa: N802
        quantities = [pb.TopologyAwareQuantity(resource_value=len(DISKS), node=0)]
        resource = pb.AllocatableTopologyAwareResource(
            is_node_resource=True,
            is_scalar_resource=True,
            aggregated_allocatable_quantity=len(DISKS),
            topology_aware_allocatable_quantity_list=quantities,
            aggregated_capacity_quantity=len(DISKS),
            topology_aware_capacity_quantity_list=quantities,
        )
        return pb.GetTopologyAwareAllocatableResourcesResponse(allocatable_resources={self._resource: resource})

    def PreStartContainer(self, request: Any, context: Any) -> Any:  # noqa: N802
        return pb.PreStartContainerResponse()

    def _disk(self, request: Any) -> str | None:
        """The disk that a container has, otherwise one that no container has."""
        own = self._given.get(request.pod_uid, {}).get(request.container_name)
        used = {disk for containers in self._given.values() for disk in containers.values()}
        return own or next((disk for disk in DISKS if disk not in used), None)

    def _allocation(self, disk: str) -> Any:
        info = pb.ResourceAllocationInfo(
            is_node_resource=True,
            is_scalar_resource=True,
            allocated_quantity=1,
            allocation_result=disk,
            envs={self._label.upper(): disk},
            mounts=[
                pb.Mount(container_path=f"/{self._label}", host_path=str(self._directory / disk), read_only=True),
            ],
            devices=[
                pb.DeviceSpec(
                    container_path=f"/dev/{self._label}", host_path=str(self._directory / "device"), permissions="rw"
                ),
            ],
        )
        info.resource_hints.hints.add(nodes=[0], preferred=True)
        return pb.ResourceAllocation(resource_allocation={self._resource: info})

    def _save(self) -> None:
        part = self._state.with_suffix(".part")
        part.write_text(json.dumps(self._given))
        part.replace(self._state)


class Watched(registration_grpc.RegistrationServicer):
    """The registration of a plug-in whose socket is in the directory that the manager watches."""

    def __init__(self, resource: str) -> None:
        self._resource = resource

    def GetInfo(self, request: Any, context: Any) -> Any:  # noqa: N802
        return registration_pb.PluginInfo(type="ResourcePlugin", name=self._resource, supported_versions=[VERSION])

    def NotifyRegistrationStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        print("registered" if request.plugin_registered else f"not registered: {request.error}", flush=True)
        return registration_pb.RegistrationStatusResponse()


def _subject(request: Any) -> dict[str, Any]:
    names = ("pod_uid", "pod_namespace", "pod_name", "container_name", "resource_name")
    return {name: getattr(request, name) for name in names}


def call_register(resource: str, socket: Path) -> None:
    """Call Register of each new manager, which has a new socket."""
    manager, known = socket.with_name("kubelet.sock"), None
    request = pb.RegisterRequest(version=VERSION, endpoint=socket.name, resource_name=resource)
    while True:
        with contextlib.suppress(FileNotFoundError):
            status = manager.stat()
            if (status.st_ino, status.st_mtime_ns) != known:
                try:
                    with grpc.insecure_channel(f"unix:{manager}", LOCAL) as channel:
                        pb_grpc.RegistrationStub(channel).Register(request, timeout=5)
                    known = status.st_ino, status.st_mtime_ns
                    print("registered", flush=True)
                except grpc.RpcError as error:
                    print(f"not registered: {error}", flush=True)
        time.sleep(0.5)


def main(way: Way, resource: str, directory: Path) -> None:
    """Serve the resource until the process is killed."""
    home = directory / f"outside-{way}"
    socket = directory / "plugins" / "outside.sock" if way == "watched" else directory / "outside.sock"
    socket.unlink(missing_ok=True)
    server = grpc.server(ThreadPoolExecutor(4))
    pb_grpc.add_ResourcePluginServicer_to_server(Disks(resource, home), server)
    registration_grpc.add_RegistrationServicer_to_server(Watched(resource), server)
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    if way == "called":
        call_register(resource, socket)
    server.wait_for_termination()


if __name__ == "__main__":
    main("watched" if sys.argv[1] == "watched" else "called", sys.argv[2], Path(sys.argv[3]))
