"""Names of resources in registrations and responses of plug-ins."""

import logging
from pathlib import Path
from typing import Any

import pytest

from agent.qrm.grpc.plugin_api import PluginCallError
from agent.qrm.grpc.plugin_client import PluginEndpoint
from agent.qrm.grpc.protos import qrm_pluginregistration_v1_pb2 as registration_pb
from agent.qrm.grpc.protos import qrm_pluginregistration_v1_pb2_grpc as registration_grpc
from agent.qrm.grpc.protos import qrm_resourceplugin_v1alpha1_pb2 as pb
from agent.qrm.grpc.protos import qrm_resourceplugin_v1alpha1_pb2_grpc as pb_grpc
from agent.qrm.grpc.registration import LegacyRegistration, Registry, ResourcePlugins
from agent.qrm.grpc.resource_names import is_resource_name
from agent.qrm.grpc.socket_server import SocketServer
from tests.agent.qrm.grpc.test_registration import Clock, manager

VALID = ("cpu", "memory", "hugepages-2Mi", "resource.katalyst.kubewharf.io/net_bandwidth", "evil.io/a.b_c-D")
INVALID = ("../../../..", "a" * 64, "UP.io/x", "a//b", "x/" * 300, "-a", "a b", "a\nb", "é", f"{'a.' * 127}aa/x", "/x")
HUGE = "a" * 3_000_000


def test_qualified_names():
    assert [name for name in VALID if not is_resource_name(name)] == []
    assert [name for name in (*INVALID, "", HUGE) if is_resource_name(name)] == []


class Hostile(registration_grpc.RegistrationServicer, pb_grpc.ResourcePluginServicer):
    """A plug-in that registers with a name, and responds with it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.reported = ""

    async def GetInfo(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        return registration_pb.PluginInfo(
            type="ResourcePlugin", name=self.name, endpoint="", supported_versions=["v1alpha1"]
        )

    async def NotifyRegistrationStatus(self, request: Any, _context: Any) -> Any:  # noqa: N802
        self.reported = request.error
        return registration_pb.RegistrationStatusResponse()

    async def GetResourcePluginOptions(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        return pb.ResourcePluginOptions()

    async def GetTopologyAwareAllocatableResources(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        answer = pb.GetTopologyAwareAllocatableResourcesResponse()
        answer.allocatable_resources[self.name].SetInParent()
        return answer

    async def GetResourcesAllocation(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        answer = pb.GetResourcesAllocationResponse()
        answer.pod_resources["p"].container_resources["c"].resource_allocation[self.name].SetInParent()
        return answer


def served(name: str, path: Path) -> tuple[Hostile, SocketServer]:
    hostile = Hostile(name)
    adds = [
        lambda server: registration_grpc.add_RegistrationServicer_to_server(hostile, server),
        lambda server: pb_grpc.add_ResourcePluginServicer_to_server(hostile, server),
    ]
    return hostile, SocketServer(path, adds)


@pytest.mark.parametrize("name", ["../../../..", "a\nb", HUGE], ids=["path", "two lines", "huge"])
async def test_an_invalid_name_is_not_registered_and_shortened_in_messages(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
):
    of = manager(tmp_path)
    registry = Registry(tmp_path / "plugins", ResourcePlugins(of), monotonic=Clock())
    hostile, server = served(name, tmp_path / "plugins" / "evil.sock")
    await server.start()
    try:
        await registry.reconcile()
    finally:
        await server.stop()
    assert {} == of.plugins.states
    assert "is not a resource name" in hostile.reported
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(line) < 500


@pytest.mark.parametrize("name", ["../../../..", HUGE], ids=["path", "huge"])
async def test_an_invalid_name_in_a_response_makes_the_response_invalid(tmp_path: Path, name: str):
    _, server = served(name, tmp_path / "evil.sock")
    await server.start()
    endpoint = PluginEndpoint("cpu", tmp_path / "evil.sock")
    try:
        for call in (endpoint.allocatable, endpoint.allocations):
            with pytest.raises(PluginCallError, match="invalid resource name") as caught:
                await call()
            assert len(str(caught.value)) < 250
    finally:
        await endpoint.close()
        await server.stop()


async def test_a_plugin_cannot_register_itself_with_an_invalid_name(tmp_path: Path):
    class Refused(Exception):
        pass

    class Context:
        async def abort(self, _code: object, message: str) -> None:
            raise Refused(message)

    of = manager(tmp_path)
    legacy = LegacyRegistration(ResourcePlugins(of), tmp_path)
    request = pb.RegisterRequest(version="v1alpha1", resource_name=HUGE, endpoint="evil.sock")
    with pytest.raises(Refused, match="is not a resource name") as caught:
        await legacy.Register(request, Context())
    assert len(str(caught.value)) < 250
    assert {} == of.plugins.states
