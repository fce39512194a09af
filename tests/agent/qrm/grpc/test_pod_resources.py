"""The pod-resources API and the registration of old plug-ins, over real sockets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from agent.qrm.grpc.grpc_server import PluginServer
from agent.qrm.grpc.plugin_client import Observe, PluginEndpoint
from agent.qrm.grpc.pod_resources import PodResources, container_resources
from agent.qrm.grpc.protos import qrm_podresources_v1_pb2 as pb
from agent.qrm.grpc.protos import qrm_podresources_v1_pb2_grpc as pb_grpc
from agent.qrm.grpc.protos import qrm_resourceplugin_v1alpha1_pb2 as plugin_pb
from agent.qrm.grpc.protos import qrm_resourceplugin_v1alpha1_pb2_grpc as plugin_grpc
from agent.qrm.grpc.registration import LegacyRegistration, ResourcePlugins
from agent.qrm.grpc.socket_server import SocketServer
from agent.qrm.manager.allocation import AllocationInfo, Allocations
from agent.qrm.manager.manager import Manager
from agent.qrm.manager.settings import AllocationSettings
from agent.qrm.manager.topology import TopologyPolicy
from agent.qrm.plugins.base import ResourcePlugin
from agent.qrm.pods import PodContainer, QrmPod
from agent.qrm.store.files import StateFile
from tests.agent.qrm.plugins.test_plugins import RESERVED, SEED, TOTAL, cpu_plugin, memory_plugin

ROLE = {"kubernetes.io/pod-role": "storage-service"}
POD = QrmPod(
    "u1",
    "ns",
    "p",
    annotations=ROLE,
    containers=(
        PodContainer("setup", init=True),
        PodContainer("main", {"cpu": 4.0, "memory": float(1 << 30)}, id="x"),
    ),
)


async def save() -> None: ...


def ignore(*_: object) -> None: ...


@asynccontextmanager
async def world(
    directory: Path, *plugins: ResourcePlugin, observe: Observe = ignore
) -> AsyncIterator[tuple[Manager, Any, Any]]:
    """A manager with these plug-ins over sockets, its pod-resources API and its registration for old plug-ins."""
    manager = Manager(
        AllocationSettings(policy=TopologyPolicy.RESTRICTED),
        Allocations(),
        nodes=frozenset({0, 1}),
        save=save,
        monotonic=float,
    )
    servers: list[Any] = []
    for plugin in plugins:
        path = directory / f"{plugin.resource}.sock"
        servers.append(PluginServer(plugin, path, StateFile(path.with_suffix(".state"))))
    cpus = SEED.all - cpu_plugin().reserved
    listing = PodResources(manager, lambda: [POD], cpus=cpus)
    servers.append(SocketServer(directory / "pod-resources.sock", [listing.add_to]))
    itself = ResourcePlugins(manager, open_endpoint=partial(PluginEndpoint, observe=observe))
    legacy = LegacyRegistration(itself, directory)
    servers.append(SocketServer(directory / "kubelet.sock", [legacy.add_to]))
    for server in servers:
        await server.start()
    async with (
        grpc.aio.insecure_channel(f"unix:{directory / 'pod-resources.sock'}") as asking,
        grpc.aio.insecure_channel(f"unix:{directory / 'kubelet.sock'}") as registering,
    ):
        try:
            yield manager, pb_grpc.PodResourcesListerStub(asking), plugin_grpc.RegistrationStub(registering)
        finally:
            for resource in manager.plugins.states:
                await manager.plugins.deregister(resource)
            for server in servers:
                await server.stop()


def run(test) -> None:
    asyncio.run(test)


def registration(**changes: Any) -> plugin_pb.RegisterRequest:
    return plugin_pb.RegisterRequest(
        **{"version": "v1alpha1", "endpoint": "cpu.sock", "resource_name": "cpu", **changes}
    )


def test_list_and_allocatable_resources_of_the_pod_resources_api(tmp_path: Path):
    async def test() -> None:
        async with world(tmp_path, cpu_plugin(), memory_plugin()) as (manager, listing, registering):
            for resource in ("cpu", "memory"):
                await registering.Register(registration(endpoint=f"{resource}.sock", resource_name=resource))
            assert manager.plugins.states == {"cpu": True, "memory": True}
            assert (await manager.admit(POD)).admitted
            (pod,) = (await listing.List(pb.ListPodResourcesRequest())).pod_resources
            assert (pod.namespace, pod.name, pod.pod_role) == ("ns", "p", "storage-service")
            (container,) = pod.containers
            assert (container.name, list(container.cpu_ids)) == ("main", [2, 3, 4, 5])
            assert [(each.memory_type, each.size) for each in container.memory] == [("memory", 1 << 30)]
            assert [node.ID for node in container.memory[0].topology.nodes] == [0]
            found = {each.resource_name: each for each in container.resources}
            assert found["cpu"].aggregated_quantity == 4.0
            assert [(q.node, q.resource_value) for q in found["cpu"].topology_aware_quantity_list] == [(0, 4.0)]
            allocatable = await listing.GetAllocatableResources(pb.AllocatableResourcesRequest())
            assert len(allocatable.cpu_ids) == 76
            assert [each.size for each in allocatable.memory] == [TOTAL[node] - RESERVED[node] for node in (0, 1)]
            whole = {each.resource_name: each.aggregated_capacity_quantity for each in allocatable.resources}
            assert whole == {"cpu": 80.0, "memory": float(sum(TOTAL.values()))}

    run(test())


def test_an_invalid_cpu_set_does_not_hide_other_containers():
    """A checkpoint may contain one."""
    infos = {"cpu": AllocationInfo("CpusetCpus", False, True, 2.0, "0-")}
    assert list(container_resources("c", {}, infos).cpu_ids) == []


def test_a_plugin_that_does_not_respond_does_not_hide_others(tmp_path: Path):
    async def test() -> None:
        async with world(tmp_path, cpu_plugin()) as (manager, listing, registering):
            await registering.Register(registration())
            await manager.admit(POD)
            await manager.plugins.register("memory", PluginEndpoint("memory", tmp_path / "nobody.sock"))
            (pod,) = (await listing.List(pb.ListPodResourcesRequest())).pod_resources
            assert [each.resource_name for each in pod.containers[0].resources] == ["cpu"]

    run(test())


def test_calls_to_old_plugins_are_counted_too(tmp_path: Path):
    calls: list[str] = []

    def observe(_resource: str, method: str, _seconds: float, _failed: bool) -> None:
        calls.append(method)

    async def test() -> None:
        async with world(tmp_path, cpu_plugin(), observe=observe) as (manager, _, registering):
            await registering.Register(registration())
            await manager.admit(POD)

    run(test())
    assert calls == ["GetResourcePluginOptions", "GetTopologyHints", "Allocate"]


@pytest.mark.parametrize(
    ("changes", "reported"),
    [
        (
            {"version": "v2"},
            "requested API version v2 is not supported by kubelet. Supported version is v1alpha1",
        ),
        ({"resource_name": ""}, "resource_name and endpoint are required"),
        ({"endpoint": ""}, "the name of a socket in this directory"),
        ({"endpoint": "../elsewhere.sock"}, "the name of a socket in this directory"),
        ({"endpoint": "nobody.sock"}, "the plug-in for cpu failed in GetResourcePluginOptions: UNAVAILABLE"),
    ],
)
def test_the_refused_registration_of_an_old_plugin_names_the_reason(
    tmp_path: Path, changes: dict[str, str], reported: str
):
    async def test() -> None:
        async with world(tmp_path) as (manager, _, registering):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await registering.Register(registration(**changes))
            assert reported in (raised.value.details() or "")
            assert manager.plugins.states == {}

    run(test())
