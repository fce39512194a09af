"""A built-in plug-in of load-watcher on a real socket, called by the manager's endpoint."""

import asyncio
import os
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from agent.qrm.grpc.grpc_server import PluginServer
from agent.qrm.grpc.plugin_api import PluginCallError, PluginOptions
from agent.qrm.grpc.plugin_client import BACKOFF_CALLS, PluginEndpoint, PluginInfo, ask_info, notify
from agent.qrm.grpc.protos import qrm_resourceplugin_v1alpha1_pb2 as pb
from agent.qrm.grpc.protos import qrm_resourceplugin_v1alpha1_pb2_grpc as pb_grpc
from agent.qrm.grpc.socket_server import SocketServer
from agent.qrm.main import Checkpoint
from agent.qrm.manager.allocation import Allocations
from agent.qrm.manager.manager import Manager
from agent.qrm.manager.settings import AllocationSettings
from agent.qrm.manager.topology import Hint, TopologyPolicy
from agent.qrm.plugins.base import ResourcePlugin
from agent.qrm.plugins.cpu import CpuPlugin
from agent.qrm.plugins.resize import PoolSettings
from agent.qrm.pods import QOS_ANNOTATION, ROLE_ANNOTATION, PodContainer, QrmPod
from agent.qrm.roles import DEFAULT_ROLES
from agent.qrm.store.checkpoint import fnv1a
from agent.qrm.store.files import BadState, StateFile, set_aside, write_atomic
from tests.agent.qrm.plugins.test_plugins import SEED, ask, cpu_plugin
from tests.waiting import eventually

ON_0, ON_1 = (Hint(frozenset({node}), preferred=True) for node in (0, 1))


@asynccontextmanager
async def serving(
    directory: Path, *, plugin: ResourcePlugin | None = None, external: bool = False
) -> AsyncIterator[tuple[PluginServer, PluginEndpoint]]:
    state = StateFile(directory / "cpu_plugin_state")
    server = PluginServer(plugin or cpu_plugin(), directory / "cpu.sock", state, external=external)
    await server.start()
    endpoint = PluginEndpoint("cpu", directory / "cpu.sock")
    try:
        await endpoint.open()
        yield server, endpoint
    finally:
        await endpoint.close()
        await server.stop()


def run(test) -> None:
    asyncio.run(test)


def test_an_admission_over_the_socket(tmp_path: Path):
    async def test() -> None:
        async with serving(tmp_path) as (_, endpoint):
            assert endpoint.options == PluginOptions(pre_start=False, aligned=True, reconcile=True)
            request = ask("cpu", "pod1", "storage-service", 20)
            assert await endpoint.hints(request) == (ON_0, Hint(frozenset({1}), preferred=True))
            allocated = await endpoint.allocate(ask("cpu", "pod1", "storage-service", 20, hint=ON_0))
            assert allocated
            assert allocated["cpu"].allocation_result == "2-21"
            assert await endpoint.allocations() == {"pod1": {"container0": allocated}}
            aware = await endpoint.aware("pod1", "container0")
            assert (aware["cpu"].total, aware["cpu"].by_node) == (20.0, {0: 20.0})
            assert await endpoint.aware("nobody", "container0") == {}
            free, whole = (await endpoint.allocatable())["cpu"]
            assert (free.by_node, whole.by_node) == ({0: 38.0, 1: 38.0}, {0: 40.0, 1: 40.0})
            await endpoint.pre_start(request)
            await endpoint.remove_pod("pod1")
            assert await endpoint.allocations() == {}

    run(test())


def test_hints_without_preference_and_without_a_possible_node_over_the_socket(tmp_path: Path):
    async def test() -> None:
        async with serving(tmp_path) as (_, endpoint):
            assert await endpoint.hints(ask("cpu", "p", "online-micro_service", 2)) is None
            assert await endpoint.hints(ask("cpu", "p", "storage-service", 200)) == ()

    run(test())


def test_a_failed_allocation_is_an_error_with_its_reason(tmp_path: Path):
    async def test() -> None:
        async with serving(tmp_path) as (_, endpoint):
            with pytest.raises(PluginCallError, match="the plug-in for cpu failed in Allocate: UNKNOWN: no available"):
                await endpoint.allocate(ask("cpu", "p", "storage-service", 200))
            with pytest.raises(
                PluginCallError, match="INVALID_ARGUMENT: this is the plug-in for cpu, but the request is for"
            ):
                await endpoint.allocate(ask("x", "p", "storage-service", 200))

    run(test())


def test_an_allocation_that_cannot_be_stored_is_undone(tmp_path: Path):
    async def test() -> None:
        async with serving(tmp_path) as (server, endpoint):
            server.state.path = tmp_path / "gone" / "cpu_plugin_state"  # as if the disk had been removed
            with pytest.raises(PluginCallError, match="cannot write the decision to disk: No such file or directory"):
                await endpoint.allocate(ask("cpu", "p", "storage-service", 2))
            assert await endpoint.allocations() == {}

    run(test())


def test_methods_for_whole_pods_are_not_implemented(tmp_path: Path):
    """As in Katalyst's plug-ins. The manager asks for containers, in the scope pod too."""

    async def test() -> None:
        async with serving(tmp_path) as (_, endpoint), grpc.aio.insecure_channel(f"unix:{endpoint.socket}") as channel:
            stub: Any = pb_grpc.ResourcePluginStub(channel)
            for method in (stub.GetPodTopologyHints, stub.AllocateForPod):
                with pytest.raises(grpc.aio.AioRpcError) as reported:
                    await method(pb.PodResourceRequest(pod_uid="p", resource_name="cpu"))
                assert reported.value.code() is grpc.StatusCode.UNIMPLEMENTED
            settings = AllocationSettings(policy=TopologyPolicy.RESTRICTED, scope="pod")
            manager = Manager(settings, Allocations(), nodes=frozenset({0, 1}), save=nothing, monotonic=lambda: 0.0)
            await manager.plugins.register("cpu", endpoint)
            containers = tuple(PodContainer(name, {"cpu": 20.0}) for name in ("a", "b"))
            pod = QrmPod("p", annotations={ROLE_ANNOTATION: "storage-service"}, containers=containers)
            admission = await manager.admit(pod)
            assert admission.admitted, admission
            assert admission.decided["a"] == admission.decided["b"]

    async def nothing() -> None:
        """No allocation is stored."""

    run(test())


class Unkeepable(CpuPlugin):
    """After its first allocation, its document cannot be written as JSON."""

    def document(self) -> dict[str, Any]:
        return {**super().document(), "odd": object() if self.allocations() else ""}


def test_an_allocation_whose_document_is_not_json_is_undone(tmp_path: Path):
    async def test() -> None:
        plugin = Unkeepable(SEED, DEFAULT_ROLES, PoolSettings())
        async with serving(tmp_path, plugin=plugin) as (server, endpoint):
            with pytest.raises(PluginCallError, match=r"failed in Allocate: UNKNOWN: .*TypeError"):
                await endpoint.allocate(ask("cpu", "p", "storage-service", 2))
            assert await endpoint.allocations() == {}
            assert not server.state.path.exists()

    run(test())


def test_a_request_of_katalysts_manager(tmp_path: Path):
    """The role is only in an annotation; the CPUs of a reclaimed pod are thousandths under the name cpu."""
    batch = {ROLE_ANNOTATION: "ETL", QOS_ANNOTATION: "reclaimed_cores"}
    own = {ROLE_ANNOTATION: "storage-service"}

    async def test() -> None:
        async with serving(tmp_path, external=True) as (server, endpoint):
            given = await endpoint.allocate(ask("cpu", "batch", "", 2000, annotations=batch))
            assert given is not None
            assert server.plugin.allocations()["batch"]["container0"].allocation_result == "38-39,78-79"
            assert server.plugin.document()["pods"]["batch"]["container0"]["request"] == 2
            assert await endpoint.hints(ask("cpu", "own", "", 4, annotations=own)) == (ON_0, ON_1)

    run(test())


def test_registration(tmp_path: Path):
    async def test() -> None:
        async with serving(tmp_path) as (server, _):
            path = tmp_path / "cpu.sock"
            assert await ask_info(path) == PluginInfo("ResourcePlugin", "cpu", "", ("v1alpha1",))
            reported = [server.contact.error]
            for error in ("no handler registered for plugin type: ResourcePlugin", ""):
                await notify(path, error)
                reported.append(server.contact.error)
            assert reported == [None, "no handler registered for plugin type: ResourcePlugin", ""]

    run(test())


def test_a_call_without_a_process_on_the_socket_fails(tmp_path: Path):
    async def test() -> None:
        with pytest.raises(PluginCallError, match="failed in GetInfo: UNAVAILABLE"):
            await ask_info(tmp_path / "none.sock")
        endpoint = PluginEndpoint("cpu", tmp_path / "none.sock")
        with pytest.raises(PluginCallError, match="failed in GetResourcePluginOptions: UNAVAILABLE"):
            await endpoint.open()
        await endpoint.close()

    run(test())


class Odd(pb_grpc.ResourcePluginServicer):
    """Responds for another pod, and hangs in RemovePod."""

    async def GetTopologyHints(self, request, context):  # noqa: N802
        return pb.ResourceHintsResponse(pod_uid="another pod", resource_name="cpu")

    async def Allocate(self, request, context):  # noqa: N802
        return pb.ResourceAllocationResponse(pod_uid=request.pod_uid, container_name="another")

    async def RemovePod(self, request, context):  # noqa: N802
        await asyncio.Event().wait()


def test_responses_for_another_pod_or_container_are_errors(tmp_path: Path):
    async def test() -> None:
        path = tmp_path / "odd.sock"
        served = SocketServer(path, [lambda server: pb_grpc.add_ResourcePluginServicer_to_server(Odd(), server)])
        await served.start()
        endpoint, impatient = PluginEndpoint("cpu", path), PluginEndpoint("cpu", path, call_seconds=0.2)
        try:
            with pytest.raises(PluginCallError, match="the response is for pod_uid 'another pod', not 'p'"):
                await endpoint.hints(ask("cpu", "p", "", 1))
            with pytest.raises(PluginCallError, match="the response is for container_name 'another', not 'container0'"):
                await endpoint.allocate(ask("cpu", "p", "", 1))
            with pytest.raises(PluginCallError, match="failed in RemovePod: DEADLINE_EXCEEDED"):
                await impatient.remove_pod("p")
            with pytest.raises(PluginCallError, match="failed in GetResourcesAllocation: UNIMPLEMENTED"):
                await endpoint.allocations()
        finally:
            await endpoint.close()
            await impatient.close()
            await served.stop(grace=0)
        with pytest.raises(PluginCallError, match="CANCELLED"):
            await endpoint.allocations()

    run(test())


def test_bytes_that_are_not_a_message_are_an_error(tmp_path: Path):
    """gRPC passes None for them."""

    async def nonsense(_request: bytes, _context: Any) -> bytes:
        return b"\xff\xff"

    methods = ("GetTopologyHints", "Allocate", "GetResourcesAllocation", "GetTopologyAwareAllocatableResources")
    handlers: dict[str, Any] = {name: grpc.unary_unary_rpc_method_handler(nonsense) for name in methods}
    talks = grpc.method_handlers_generic_handler("resourceplugin.v1alpha1.ResourcePlugin", handlers)

    async def test() -> None:
        path = tmp_path / "nonsense.sock"
        served = SocketServer(path, [lambda server: server.add_generic_rpc_handlers((talks,))])
        await served.start()
        endpoint, request = PluginEndpoint("cpu", path), ask("cpu", "p", "", 1)
        try:
            for asked in (endpoint.hints(request), endpoint.allocate(request), endpoint.allocations()):
                with pytest.raises(PluginCallError, match="NOT_OURS: the response is not a message of this protocol"):
                    await asked
            with pytest.raises(PluginCallError, match="NOT_OURS"):
                await endpoint.allocatable()
        finally:
            await endpoint.close()
            await served.stop(grace=0)

    run(test())


class Slow(pb_grpc.ResourcePluginServicer):
    """Responds once `let` is set."""

    def __init__(self) -> None:
        self.asked = 0
        self.let = asyncio.Event()

    async def RemovePod(self, request, context):  # noqa: N802
        self.asked += 1
        await self.let.wait()
        return pb.RemovePodResponse()


def test_a_plugin_that_hangs_delays_only_the_first_call(tmp_path: Path):
    async def test() -> None:
        path, slow, now = tmp_path / "slow.sock", Slow(), [1000.0]
        served = SocketServer(path, [lambda server: pb_grpc.add_ResourcePluginServicer_to_server(slow, server)])
        await served.start()
        endpoint = PluginEndpoint("cpu", path, call_seconds=0.2, monotonic=lambda: now[0])
        try:
            with pytest.raises(PluginCallError, match="DEADLINE_EXCEEDED"):
                await endpoint.remove_pod("p")
            slow.let.set()
            with pytest.raises(PluginCallError, match="PAUSED: an earlier call timed out; the plug-in is not"):
                await endpoint.remove_pod("p")
            assert slow.asked <= 1  # on a busy machine, the first call may not have arrived
            now[0] += 0.2 * BACKOFF_CALLS

            async def answered():
                now[0] += 0.2 * BACKOFF_CALLS  # on a busy machine, it may be late again
                await endpoint.remove_pod("p")
                return True

            await eventually(answered, what="an answer", ignoring=(PluginCallError,))
        finally:
            await endpoint.close()
            await served.stop(grace=0)

    run(test())


def test_a_plugin_that_ends_during_a_call_fails_the_call_but_not_its_caller(tmp_path: Path):
    """gRPC cancels the call; to asyncio this looks as if the caller had been cancelled."""

    async def test() -> None:
        path, slow = tmp_path / "slow.sock", Slow()
        served = SocketServer(path, [lambda server: pb_grpc.add_ResourcePluginServicer_to_server(slow, server)])
        await served.start()
        endpoint, other = PluginEndpoint("cpu", path), PluginEndpoint("cpu", path)
        asking = asyncio.create_task(endpoint.remove_pod("p"))
        cancelled = asyncio.create_task(other.remove_pod("p"))
        try:
            await eventually(lambda: slow.asked == 2, what="both calls to be under way")
            await endpoint.close()
            with pytest.raises(
                PluginCallError, match="failed in RemovePod: CANCELLED: the plug-in was deregistered during"
            ):
                await asking
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
        finally:
            await other.close()
            await served.stop(grace=0)

    run(test())


# --- the state file ----------------------------------------------------------------------------------------------


def test_the_state_is_restored_after_a_restart(tmp_path: Path):
    async def test() -> None:
        async with serving(tmp_path) as (_, endpoint):
            before = await endpoint.allocate(ask("cpu", "p", "storage-service", 2))
        async with serving(tmp_path) as (_, endpoint):
            assert await endpoint.allocations() == {"p": {"container0": before}}

    run(test())


@pytest.mark.parametrize("content", [b"", b"{}", b'{"machineState": {}, "crc32": 1}', b"[1]"])
def test_an_invalid_state_file_is_set_aside(tmp_path: Path, content: bytes):
    (tmp_path / "cpu_plugin_state").write_bytes(content)

    async def test() -> None:
        async with serving(tmp_path) as (_, endpoint):
            assert await endpoint.allocations() == {}

    run(test())
    (kept,) = tmp_path.glob("cpu_plugin_state.corrupt-*")
    assert kept.read_bytes() == content


def test_a_state_of_another_machine_is_set_aside(tmp_path: Path):
    state = StateFile(tmp_path / "cpu_plugin_state")
    state.write({**cpu_plugin().document(), "machineState": {}})

    async def test() -> None:
        async with serving(tmp_path) as (_, endpoint):
            assert await endpoint.allocations() == {}

    run(test())
    assert list(tmp_path.glob("cpu_plugin_state.corrupt-*"))


def test_two_files_that_are_set_aside_within_a_second_are_both_kept(tmp_path: Path):
    for content in ("one", "two", "three"):
        (tmp_path / "state").write_text(content)
        set_aside(tmp_path / "state", "a test")
    assert {kept.read_text() for kept in tmp_path.glob("state.corrupt-*")} == {"one", "two", "three"}


def test_the_checksum_is_of_the_canonical_content(tmp_path: Path):
    state = StateFile(tmp_path / "s")
    state.write({"b": 1, "a": {"d": 2, "c": "x"}})
    content = b'{"a":{"c":"x","d":2},"b":1}'
    assert (tmp_path / "s").read_bytes() == content[:-1] + b',"crc32":%d}' % zlib.crc32(content)
    assert StateFile(tmp_path / "s").read() == {"b": 1, "a": {"d": 2, "c": "x"}}
    (tmp_path / "s").write_bytes((tmp_path / "s").read_bytes().replace(b"x", b"y"))
    with pytest.raises(BadState, match="the checksum is"):
        state.read()


def test_a_state_with_the_checksum_of_earlier_versions_is_read(tmp_path: Path):
    content = b'{"a":{"c":"x","d":2},"b":1}'
    (tmp_path / "s").write_bytes(content[:-1] + b',"checksum":%d}' % fnv1a(content))
    state = StateFile(tmp_path / "s")
    document = state.read()
    assert document == {"b": 1, "a": {"d": 2, "c": "x"}}
    state.write(document)
    assert (tmp_path / "s").read_bytes() == content[:-1] + b',"crc32":%d}' % zlib.crc32(content)
    (tmp_path / "s").write_bytes(content[:-1] + b',"checksum":%d}' % zlib.crc32(content))
    with pytest.raises(BadState, match="the checksum is"):
        state.read()


def test_a_write_is_on_disk_when_it_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """First the content under another name, then the new name, then the directory."""
    path, forced = tmp_path / "state", []
    really = os.fsync

    def fsync(descriptor: int) -> None:
        forced.append((os.readlink(f"/proc/self/fd/{descriptor}"), path.exists()))
        really(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    write_atomic(path, b"decided")
    (content, before), (directory, after) = forced
    assert Path(content).parent == tmp_path
    assert Path(content) != path
    assert (before, directory, after) == (False, str(tmp_path), True)
    assert path.read_bytes() == b"decided"
    assert [each.name for each in tmp_path.iterdir()] == ["state"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path):
    write_atomic(tmp_path / "s", b"before")
    (tmp_path / f".s.{os.getpid()}").mkdir()  # the new file cannot be created
    with pytest.raises(OSError, match="Is a directory"):
        write_atomic(tmp_path / "s", b"after")
    assert (tmp_path / "s").read_bytes() == b"before"


# --- a plug-in that is killed ------------------------------------------------------------------------------------

PROCESS = """
import asyncio, os, sys
from pathlib import Path
from agent.qrm.plugins.cpu import CpuPlugin
from agent.qrm.plugins.resize import PoolSettings
from agent.qrm.roles import DEFAULT_ROLES
from tests.agent.qrm.plugins.test_plugins import SEED
from tests.agent.qrm.grpc.test_grpc_server import serving

class Dying(CpuPlugin):
    def allocate(self, request):
        return os._exit(9) if request.pod_name == "deadly" else super().allocate(request)

async def main():
    async with serving(Path(sys.argv[1]), plugin=Dying(SEED, DEFAULT_ROLES, PoolSettings())):
        print("serving", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def start_process(directory: Path) -> subprocess.Popen[str]:
    started = subprocess.Popen([sys.executable, "-c", PROCESS, str(directory)], stdout=subprocess.PIPE, text=True)
    assert started.stdout
    assert started.stdout.readline() == "serving\n"
    return started


@pytest.mark.slow
def test_a_plugin_that_is_killed_during_a_call(tmp_path: Path):
    """Neither the manager nor the plug-in has an allocation of the pod. The channel finds the next process by itself,
    which knows the earlier allocations."""

    def pod(name: str) -> QrmPod:
        annotations = {ROLE_ANNOTATION: "storage-service", QOS_ANNOTATION: "dedicated_cores"}
        return QrmPod(name, "ns", name, annotations=annotations, containers=(PodContainer("c", {"cpu": 4.0}),))

    async def test() -> None:
        allocations, checkpoint = Allocations(), Checkpoint(tmp_path / "checkpoint", Counter())
        settings = AllocationSettings(policy=TopologyPolicy.RESTRICTED)
        save = partial(checkpoint.save, allocations)
        manager = Manager(settings, allocations, nodes=frozenset({0, 1}), save=save, monotonic=lambda: 0.0)
        endpoint = PluginEndpoint("cpu", tmp_path / "cpu.sock")
        process = await asyncio.to_thread(start_process, tmp_path)
        try:
            await endpoint.open()
            await manager.plugins.register("cpu", endpoint)
            assert (await manager.admit(pod("well"))).admitted
            before = manager.allocations.of("well", "c")
            refused = await manager.admit(pod("deadly"))
            assert "the plug-in for cpu failed in Allocate: UNAVAILABLE" in refused.message
            await asyncio.to_thread(process.communicate)
            process = await asyncio.to_thread(start_process, tmp_path)

            async def known() -> Any:
                return await endpoint.allocations()

            found = await eventually(known, what="the plug-in to be back", ignoring=(PluginCallError,))
            assert found == {"well": {"c": before}}
            assert Checkpoint(tmp_path / "checkpoint", Counter()).read() == allocations
            assert (await manager.admit(pod("other"))).admitted
        finally:
            process.kill()
            await asyncio.to_thread(process.communicate)
            await endpoint.close()

    run(test())
