"""Plug-ins that are discovered in a directory, over real sockets, and pods that are admitted with them."""

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from agent.qrm.grpc.grpc_server import PluginServer
from agent.qrm.grpc.plugin_api import PluginCallError
from agent.qrm.grpc.plugin_client import PluginEndpoint
from agent.qrm.grpc.protos import qrm_pluginregistration_v1_pb2 as pb
from agent.qrm.grpc.protos import qrm_pluginregistration_v1_pb2_grpc as pb_grpc
from agent.qrm.grpc.registration import LONGEST_PAUSE_S, Gone, Registry, ResourcePlugins
from agent.qrm.grpc.socket_server import SocketServer
from agent.qrm.manager.allocation import Allocations
from agent.qrm.manager.manager import Manager
from agent.qrm.manager.settings import AllocationSettings
from agent.qrm.manager.topology import TopologyPolicy
from agent.qrm.plugins.base import ResourcePlugin
from agent.qrm.pods import PodContainer, QrmPod
from agent.qrm.store.checkpoint import decode, encode
from agent.qrm.store.files import StateFile, write_atomic
from tests.agent.qrm.plugins.test_plugins import cpu_plugin, memory_plugin
from tests.waiting import eventually


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def manager(directory: Path, allocations: Allocations | None = None) -> Manager:
    kept = allocations or Allocations()

    async def save() -> None:
        await asyncio.to_thread(write_atomic, directory / "checkpoint", encode(kept))

    settings = AllocationSettings(policy=TopologyPolicy.RESTRICTED)
    return Manager(settings, kept, nodes=frozenset({0, 1}), save=save, monotonic=Clock())


@asynccontextmanager
async def plugin_at(path: Path, plugin: ResourcePlugin) -> AsyncIterator[PluginServer]:
    server = PluginServer(plugin, path, StateFile(path.with_suffix(".state")))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def run(test) -> None:
    asyncio.run(test)


def test_registration_admission_and_checkpoint_after_a_restart(tmp_path: Path):
    """The proposal's flow from end to end: discovery, hints, merge, allocate, checkpoint, restart."""

    async def test() -> None:
        of = manager(tmp_path)
        registry = Registry(tmp_path / "plugins", ResourcePlugins(of), monotonic=Clock())
        await registry.reconcile()  # the directory does not exist yet
        async with (
            plugin_at(tmp_path / "plugins" / "cpu.sock", cpu_plugin()) as cpu,
            plugin_at(tmp_path / "plugins" / "below" / "memory.sock", memory_plugin()) as memory,
        ):
            (tmp_path / "plugins" / ".hidden.sock").touch()
            (tmp_path / "plugins" / "a file").touch()
            await registry.reconcile()
            assert of.plugins.states == {"cpu": True, "memory": True}
            assert (cpu.contact.error, memory.contact.error) == ("", "")
            role = {"kubernetes.io/pod-role": "storage-service"}
            requests = {"cpu": 20.0, "memory": float(40 << 30)}
            pod = QrmPod("u1", "ns", "p", annotations=role, containers=(PodContainer("c", requests, id="x"),))
            assert (await of.admit(pod)).admitted
            started = await of.container_options(pod, "c")
            assert started
            assert started.properties == {"CpusetCpus": "2-21", "CpusetMems": "0"}
            kept = decode((tmp_path / "checkpoint").read_bytes())
            assert kept == of.allocations
            again = manager(tmp_path, kept)
            assert again.plugins.states == {"cpu": False, "memory": False}
            assert (await again.admit(pod)).admitted
            aware = await of.topology_aware(pod, "c")
            assert {name: each.by_node for name, each in aware.items()} == {
                "cpu": {0: 20.0},
                "memory": {0: float(40 << 30)},
            }
        await registry.reconcile()
        assert of.plugins.states == {"cpu": False, "memory": False}
        await registry.close()

    run(test())


def test_a_socket_that_is_created_again_is_registered_again(tmp_path: Path):
    async def test() -> None:
        of = manager(tmp_path)
        registry = Registry(tmp_path, ResourcePlugins(of), monotonic=Clock())
        for _ in range(2):
            async with plugin_at(tmp_path / "cpu.sock", cpu_plugin()) as cpu:
                await registry.reconcile()
                assert cpu.contact.error == ""
                cpu.contact.error = None
                await registry.reconcile()
                assert cpu.contact.error is None  # registered once
        await registry.close()
        assert of.plugins.states == {"cpu": False}

    run(test())


class Introduces(pb_grpc.RegistrationServicer):
    """A plug-in with this information, which notes the registration status that it gets."""

    def __init__(self, **info: Any) -> None:
        self.info = info
        self.reported: list[str] = []

    async def GetInfo(self, request, context):  # noqa: N802
        return pb.PluginInfo(**self.info)

    async def NotifyRegistrationStatus(self, request, context):  # noqa: N802
        self.reported.append(request.error)
        return pb.RegistrationStatusResponse()


@pytest.mark.parametrize(
    ("info", "error"),
    [
        ({"type": "CSIPlugin"}, "RegisterPlugin error -- no handler registered for plugin type: CSIPlugin at socket"),
        (
            {"type": "ResourcePlugin", "name": "cpu", "supported_versions": ["v2"]},
            "RegisterPlugin error -- plugin validation failed with err: "
            "manager version, v1alpha1, is not among plugin supported versions v2",
        ),
        (
            {"type": "ResourcePlugin", "supported_versions": ["v1alpha1"]},
            "RegisterPlugin error -- plugin validation failed with err: the plug-in does not name its resource",
        ),
        (
            {"type": "ResourcePlugin", "name": "cpu", "supported_versions": ["v1alpha1"]},
            "RegisterPlugin error -- plugin registration failed with err: the plug-in for cpu failed in "
            "GetResourcePluginOptions: UNIMPLEMENTED",
        ),
    ],
)
def test_a_plugin_that_cannot_be_registered_gets_the_reason(tmp_path: Path, info: dict[str, Any], error: str):
    async def test() -> None:
        clock, introduces = Clock(), Introduces(**info)
        served = SocketServer(
            tmp_path / "x.sock", [lambda server: pb_grpc.add_RegistrationServicer_to_server(introduces, server)]
        )
        plugins = ResourcePlugins(manager(tmp_path))
        registry = Registry(tmp_path, plugins, monotonic=clock)
        await served.start()
        try:
            for now, times in ((0.0, 1), (0.4, 1), (0.5, 2), (1.4, 2), (1.5, 3)):  # pauses of 0.5 s, then 1 s
                clock.now = now
                await registry.reconcile()
                assert len(introduces.reported) == times
        finally:
            await served.stop(grace=0)
        assert introduces.reported[0].startswith(error)

    run(test())


@pytest.mark.parametrize("says", [b"\xff\xff", None], ids=["GetInfo", "GetOptions"])
def test_an_invalid_response_of_a_plugin_does_not_prevent_other_registrations(tmp_path: Path, says: bytes | None):
    async def info(_request: bytes, _context: Any) -> bytes:
        whole = pb.PluginInfo(type="ResourcePlugin", name="odd", supported_versions=["v1alpha1"])
        return says or whole.SerializeToString()

    async def options(_request: bytes, _context: Any) -> bytes:
        return b"\xff\xff"

    def talks(server: Any) -> None:
        for service, method, answer in (
            ("pluginregistration.Registration", "GetInfo", info),
            ("resourceplugin.v1alpha1.ResourcePlugin", "GetResourcePluginOptions", options),
        ):
            handler: dict[str, Any] = {method: grpc.unary_unary_rpc_method_handler(answer)}
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handler),))

    async def test() -> None:
        of = manager(tmp_path)
        clock = Clock()
        registry = Registry(tmp_path, ResourcePlugins(of), monotonic=clock)

        async def found():
            clock.now += LONGEST_PAUSE_S  # on a busy machine, a first call may be late
            await registry.reconcile()
            return of.plugins.states == {"cpu": True}

        odd = SocketServer(tmp_path / "a.sock", [talks])
        await odd.start()
        try:
            async with plugin_at(tmp_path / "cpu.sock", cpu_plugin()):
                await eventually(found, what="the one that makes sense")
                await registry.reconcile()
        finally:
            await registry.close()
            await odd.stop(grace=0)

    run(test())


class Mute(Introduces):
    """Never responds to GetInfo; counts the calls that wait."""

    asking = 0

    async def GetInfo(self, request, context):  # noqa: N802
        self.asking += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.asking -= 1


def why_not(path: Path, caplog: pytest.LogCaptureFixture) -> list[str]:
    """The reason that the log has for a socket."""
    return [each.getMessage() for each in caplog.records if str(path) in each.getMessage()]


def never_said(path: Path) -> list[str]:
    failed = f"the plug-in for {path.name} failed in GetInfo: DEADLINE_EXCEEDED: Deadline Exceeded"
    return [f"cannot register {path}, trying again: {failed}"]


@pytest.mark.slow
def test_a_plugin_that_does_not_answer_getinfo_does_not_delay_others(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """Others are registered while the call is pending. Then the call times out, which is logged once."""
    path, mute = tmp_path / "a.sock", Mute()
    meanwhile = False

    class Notes(ResourcePlugins):
        async def register(self, resource: str, endpoint: Path) -> Gone:
            nonlocal meanwhile
            gone = await super().register(resource, endpoint)
            meanwhile = mute.asking > 0
            return gone

    async def test() -> None:
        clock, of = Clock(), manager(tmp_path)
        registry = Registry(tmp_path, Notes(of), monotonic=clock)

        async def registered_meanwhile():
            clock.now += (
                LONGEST_PAUSE_S  # on a busy machine, a call may be late, or the other one may have timed out before
            )
            async with plugin_at(tmp_path / "cpu.sock", cpu_plugin()):
                await registry.reconcile()
                return of.plugins.states == {"cpu": True} and meanwhile

        served = SocketServer(path, [lambda server: pb_grpc.add_RegistrationServicer_to_server(mute, server)])
        await served.start()
        try:
            async with asyncio.timeout(120):
                await eventually(registered_meanwhile, what="the other to be taken on meanwhile")
                await eventually(lambda: not mute.asking, what="the question to be given up")
        finally:
            await registry.close()
            await served.stop(grace=0)

    run(test())
    assert why_not(path, caplog) == never_said(path)


@pytest.mark.slow
def test_a_socket_that_accepts_and_never_responds_does_not_delay_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """The server at the socket may not be a gRPC server."""
    path = tmp_path / "a.sock"

    async def test() -> None:
        clock, of = Clock(), manager(tmp_path)
        registry = Registry(tmp_path, ResourcePlugins(of), monotonic=clock)

        async def found():
            clock.now += LONGEST_PAUSE_S  # on a busy machine, a first call may be late
            await registry.reconcile()
            return of.plugins.states == {"cpu": True}

        async with plugin_at(tmp_path / "cpu.sock", cpu_plugin()):
            async with asyncio.timeout(120):
                await eventually(found, what="the other")
            await registry.close()

    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()  # a client is connected whether accept is called or not
        run(test())
    assert why_not(path, caplog) == never_said(path)


class Deaf(Introduces):
    """Refuses NotifyRegistrationStatus."""

    async def GetInfo(self, request, context):  # noqa: N802
        self.reported.append("asked")
        return await super().GetInfo(request, context)

    async def NotifyRegistrationStatus(self, request, context):  # noqa: N802
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "not implemented")


def test_a_plugin_that_refuses_its_registration_status_is_retried_after_the_usual_pauses(tmp_path: Path):
    async def test() -> None:
        clock, deaf = Clock(), Deaf(type="CSIPlugin", name="disk")
        served = SocketServer(
            tmp_path / "x.sock", [lambda server: pb_grpc.add_RegistrationServicer_to_server(deaf, server)]
        )
        registry = Registry(tmp_path, ResourcePlugins(manager(tmp_path)), monotonic=clock)
        await served.start()
        try:
            for now, times in ((0.0, 1), (0.5, 2), (1.4, 2), (1.5, 3)):  # pauses of 0.5 s, then 1 s
                clock.now = now
                await registry.reconcile()
                assert len(deaf.reported) == times
        finally:
            await served.stop(grace=0)

    run(test())


def test_a_socket_without_a_process_is_retried_and_found_later(tmp_path: Path):
    async def test() -> None:
        clock, of = Clock(), manager(tmp_path)
        registry = Registry(tmp_path, ResourcePlugins(of), monotonic=clock)
        async with plugin_at(tmp_path / "cpu.sock", cpu_plugin()):
            pass
        leave_behind(tmp_path / "cpu.sock")
        await registry.reconcile()
        assert of.plugins.states == {}
        async with plugin_at(tmp_path / "cpu.sock", cpu_plugin()):
            clock.now += 1
            await registry.reconcile()
            assert of.plugins.states == {"cpu": True}
        await registry.close()

    run(test())


def test_a_restarted_plugin_is_registered_in_the_next_round(tmp_path: Path):
    """Although calls failed meanwhile, and the earlier socket is in a pause."""

    async def test() -> None:
        clock, of, path = Clock(), manager(tmp_path), tmp_path / "cpu.sock"
        registry = Registry(tmp_path, ResourcePlugins(of), monotonic=clock)
        async with plugin_at(path, cpu_plugin()):
            await registry.reconcile()
            # Another user of the same path: gRPC would let both wait for its growing pauses.
            other = PluginEndpoint("cpu", path)
            await other.open()
        leave_behind(path)
        for _ in range(3):
            with pytest.raises(PluginCallError):
                await other.allocations()
        await registry.reconcile()
        assert of.plugins.states == {"cpu": False}
        async with plugin_at(path, cpu_plugin()):
            await registry.reconcile()
            assert of.plugins.states == {"cpu": True}
        await registry.close()
        await other.close()

    run(test())


def test_a_socket_whose_mode_changes_is_not_registered_again(tmp_path: Path):
    async def test() -> None:
        of, path = manager(tmp_path), tmp_path / "cpu.sock"
        registry = Registry(tmp_path, ResourcePlugins(of), monotonic=Clock())
        async with plugin_at(path, cpu_plugin()):
            await registry.reconcile()
            path.chmod(0o600)
            await registry.reconcile()
            assert of.plugins.registrations == 1
        await registry.close()

    run(test())


def leave_behind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))


def test_run_registers_a_plugin_that_appears_later(tmp_path: Path):
    """With the real clock."""

    async def test() -> None:
        of = manager(tmp_path)
        looking: Callable[[], float] = asyncio.get_running_loop().time
        registry = Registry(tmp_path, ResourcePlugins(of), monotonic=looking, every=0.01)
        running = asyncio.create_task(registry.run())
        async with plugin_at(tmp_path / "cpu.sock", cpu_plugin()):
            await eventually(lambda: of.plugins.states == {"cpu": True}, what="the plug-in to be found")
        await eventually(lambda: of.plugins.states == {"cpu": False}, what="the plug-in to be missed")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await registry.close()

    run(test())


def test_a_directory_that_cannot_be_read_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    directory = tmp_path / "plugins"
    directory.write_text("not a directory")

    class Counted(Registry):
        scans = 0

        async def reconcile(self) -> None:
            self.scans += 1
            await super().reconcile()

    async def test() -> None:
        registry = Counted(directory, ResourcePlugins(manager(tmp_path)), monotonic=Clock(), every=0.001)
        running = asyncio.create_task(registry.run())
        await eventually(lambda: registry.scans >= 5, what="five scans")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        (reported,) = caplog.messages
        assert reported == f"cannot read the registration directory {directory}: Not a directory"

    run(test())


def test_a_plugin_that_died_and_left_its_socket_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """Then it is not live, until a plug-in at this socket responds or registers again."""

    async def test() -> None:
        of = manager(tmp_path)
        registry = Registry(tmp_path / "plugins", ResourcePlugins(of), monotonic=Clock())
        path = tmp_path / "plugins" / "cpu.sock"

        async def round_() -> None:
            await registry.reconcile()
            await of.plugins.reported()
            await of.plugins.capacity()

        def warnings() -> list[str]:
            return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]

        async with plugin_at(path, cpu_plugin()):
            await round_()
            os.link(path, tmp_path / "kept")
        os.rename(tmp_path / "kept", path)  # as if it had not removed its socket at its end
        for _ in range(5):
            await round_()
        assert {"cpu": False} == of.plugins.states
        (line,) = warnings()
        assert "the plug-in for cpu failed in GetResourcesAllocation: UNAVAILABLE" in line
        path.unlink()
        async with plugin_at(path, cpu_plugin()):
            await round_()
            assert {"cpu": True} == of.plugins.states
        assert [line] == warnings()
        await registry.close()

    run(test())
