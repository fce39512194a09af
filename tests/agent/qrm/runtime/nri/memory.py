"""The manager of a node with its NRI plug-in in the event loop of a test: the components of `load-watcher qrm`, without
process and gRPC. What a SIGKILL leaves is on disk: the checkpoint and the state files of the plug-ins."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from agent.qrm.cluster.pod_source import NodePodSources
from agent.qrm.grpc.grpc_server import PluginServer
from agent.qrm.grpc.plugin_api import PluginCallError, PluginOptions, Quantity
from agent.qrm.main import Checkpoint
from agent.qrm.manager.admission import ADMISSION_GRACE_S
from agent.qrm.manager.allocation import AllocationInfo
from agent.qrm.manager.manager import Manager
from agent.qrm.manager.request import CannotAllocate, ResourceRequest
from agent.qrm.manager.topology import Hint, TopologyPolicy
from agent.qrm.plugins.base import ResourcePlugin
from agent.qrm.plugins.cpu import CpuPlugin
from agent.qrm.plugins.cpu_topology import CpuTopology
from agent.qrm.plugins.memory import MemoryPlugin
from agent.qrm.plugins.resize import PoolSettings
from agent.qrm.pods import QrmPod
from agent.qrm.reconciler import Reconciler
from agent.qrm.roles import DEFAULT_ROLES
from agent.qrm.runtime.nri.runtime import NriRuntime
from agent.qrm.settings import read_settings
from agent.qrm.store.checkpoint import CHECKPOINT
from agent.qrm.store.files import StateFile
from agent.state.readings import PodsUnknown
from tests.agent.qrm.vectors import machine

T = TypeVar("T")
GIB = 1 << 30
MACHINE = CpuTopology(machine("seed80_adjacent").cpus, dict.fromkeys((0, 1), 200 * GIB))
RESERVED = frozenset({0, 1, 40, 41})


class DirectPlugin:
    """Calls a plug-in as its gRPC server does: its state is on disk before each answer."""

    def __init__(self, served: PluginServer) -> None:
        self._served = served
        self._resource = served.plugin.resource
        self.options = PluginOptions(aligned=served.plugin.aligned, reconcile=served.plugin.reconciled)

    async def _called(self, method: str, work: Awaitable[T]) -> T:
        try:
            return await work
        except CannotAllocate as error:
            raise PluginCallError(self._resource, method, "UNKNOWN", str(error)) from None

    async def hints(self, request: ResourceRequest) -> tuple[Hint, ...] | None:
        return await self._called("GetTopologyHints", self._served.read(lambda plugin: plugin.hints(request)))

    async def allocate(self, request: ResourceRequest) -> Mapping[str, AllocationInfo] | None:
        info = await self._called("Allocate", self._served.change(lambda plugin: plugin.allocate(request)))
        return None if info is None else {self._resource: info}

    async def pre_start(self, request: ResourceRequest) -> None:
        pass

    async def remove_pod(self, pod_uid: str) -> None:
        await self._served.change(lambda plugin: plugin.remove(pod_uid))

    async def allocations(self) -> Mapping[str, Mapping[str, Mapping[str, AllocationInfo]]]:
        found = await self._served.read(lambda plugin: plugin.allocations())
        return {pod: {name: {self._resource: info} for name, info in each.items()} for pod, each in found.items()}

    async def aware(self, pod_uid: str, container: str) -> Mapping[str, Quantity]:
        return {}

    async def allocatable(self) -> Mapping[str, tuple[Quantity, Quantity]]:
        return {}

    async def close(self) -> None:
        pass


class PodsCopy:
    """The copy of the Kubernetes API; `answered`: whether the API has ever responded."""

    def __init__(self) -> None:
        self.known: dict[str, QrmPod] = {}
        self.answered = True

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def listing(self, *, monotonic: float, max_age: float) -> Sequence[QrmPod]:
        if not self.answered:
            raise PodsUnknown("the Kubernetes API has not responded yet")
        return list(self.known.values())

    def age(self, *, monotonic: float) -> float | None:
        return 0.0 if self.answered else None


class MemoryManager:
    """A manager from its start to `kill`. `directory` has what earlier ones have stored."""

    def __init__(self, directory: Path, socket: Path, pods: PodsCopy, **settings: Any) -> None:
        given = {"mode": "nri", "nri_socket": str(socket), "state_dir": str(directory), **settings}
        made, problems = read_settings(given, cwd=directory)
        assert not problems, problems
        checkpoint = Checkpoint(directory / CHECKPOINT, Counter())
        allocations = checkpoint.read()
        self.manager = Manager(
            replace(made, policy=TopologyPolicy.RESTRICTED),
            allocations,
            nodes=frozenset(MACHINE.nodes),
            cpus=MACHINE.all,
            recent=ADMISSION_GRACE_S,
            collects=True,
            save=partial(checkpoint.save, allocations),
            monotonic=time.monotonic,
        )
        self.objection = ""
        self._served = [_served(plugin, directory) for plugin in _plugins()]
        self.nri = NriRuntime(made, self.manager, NodePodSources([pods]), first_delay=0.001)
        self.rounds = Reconciler(
            self.manager,
            self.nri.pods,
            self.nri.updates.apply,
            period=made.reconcile_period,
            active=self.nri.active,
            deliver=self.nri.updates.deliver,
            objection=lambda: self.objection,
        )
        self._tasks: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        for served in self._served:
            await self.manager.plugins.register(served.plugin.resource, DirectPlugin(served))
        self.begin(self.nri.run(self.rounds, lambda _method, _seconds: None))

    def begin(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine as a part of the manager, which ends with it."""
        token = _TASKS.set(self._tasks)
        try:
            return asyncio.get_running_loop().create_task(work)
        finally:
            _TASKS.reset(token)

    async def resize(self, online: int) -> None:
        """Resize the online pool; the next round applies it."""

        def act(plugin: ResourcePlugin) -> None:
            assert isinstance(plugin, CpuPlugin)
            plugin.resize(online)

        await self._served[0].change(act)

    async def kill(self) -> None:
        """Cancel everything that the manager runs, and wait until no write to the disk is running."""
        while self._tasks:
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(lambda: None)  # behind the last write, with one thread in the executor


@contextmanager
def node_loop() -> Iterator[asyncio.Runner]:
    """An event loop that knows the tasks of each manager, and writes to the disk with one thread."""
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        loop.set_task_factory(_owned_task)
        loop.set_default_executor(ThreadPoolExecutor(1))
        yield runner


_TASKS: ContextVar[set[asyncio.Task[Any]] | None] = ContextVar("tasks of the manager", default=None)


def _owned_task(loop: asyncio.AbstractEventLoop, work: Any, *, context: Any = None) -> asyncio.Task[Any]:
    """A task of the manager whose code creates it, or of no manager."""
    task = asyncio.Task(work, loop=loop, context=context)
    if (tasks := _TASKS.get()) is not None:
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    return task


def _plugins() -> list[ResourcePlugin]:
    return [
        CpuPlugin(MACHINE, DEFAULT_ROLES, PoolSettings(), reserved=RESERVED),
        MemoryPlugin(MACHINE, DEFAULT_ROLES, reserved=dict.fromkeys((0, 1), 0)),
    ]


def _served(plugin: ResourcePlugin, directory: Path) -> PluginServer:
    state = StateFile(directory / f"{plugin.name}_state")
    if (kept := state.read()) is not None:
        plugin.load(kept)
    return PluginServer(plugin, directory / f"{plugin.name}.sock", state)
