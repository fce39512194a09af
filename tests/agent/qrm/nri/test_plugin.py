"""The plug-in with the components of `load-watcher qrm` and a runtime in the same event loop."""

import os
import tempfile
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agent.qrm.main import CHECKPOINT
from agent.qrm.nri.calls import CallFailed
from agent.qrm.nri.protos import qrm_nri_v1alpha1_pb2 as pb
from agent.qrm.pods import ROLE_ANNOTATION, PodContainer, QrmPod
from tests.agent.qrm.nri.memory import GIB, MemoryManager, PodsCopy, node_loop
from tests.agent.qrm.nri.sequences import check
from tests.fakes.nri_runtime import MemoryRuntime
from tests.waiting import eventually


@dataclass
class PluginNode:
    """A node without pods; `run` runs a test in its event loop, with the runtime."""

    directory: Path
    copy: PodsCopy = field(default_factory=PodsCopy)

    def __post_init__(self) -> None:
        self.runtime = MemoryRuntime(self.directory / "nri.sock")

    def run(self, test: Coroutine[Any, Any, None]) -> None:
        async def running() -> None:
            await self.runtime.start()
            await test
            await self.runtime.stop()

        with node_loop() as runner:
            runner.run(running())

    async def manage(self, **settings: Any) -> MemoryManager:
        manager = MemoryManager(self.directory, self.runtime.socket, self.copy, **settings)
        await manager.start()
        await eventually(lambda: self.runtime.plugin is not None, what="the plug-in")
        return manager

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """The checkpoint cannot be written: its new file is a directory."""
        fresh = self.directory / f".{CHECKPOINT}.{os.getpid()}"
        fresh.mkdir()
        yield
        fresh.rmdir()

    def pod(self, uid: str, *, cpu: float = 4.0, role: str = "storage-service") -> pb.PodSandbox:
        """Put a pod into the copy; return its sandbox."""
        containers = (PodContainer("main", {"cpu": cpu, "memory": float(GIB)}),)
        self.copy.known[uid] = QrmPod(uid, "default", uid, annotations={ROLE_ANNOTATION: role}, containers=containers)
        return pb.PodSandbox(id=uid, uid=uid, name=uid, namespace="default")

    async def create(self, sandbox: pb.PodSandbox, id: str) -> str:
        """Create a container; return its CPUs."""
        if sandbox.id not in self.runtime.pods:
            await self.runtime.run_pod(sandbox)
        await self.runtime.create(sandbox, pb.Container(id=id, name="main", pod_sandbox_id=sandbox.id))
        return self.runtime.cpus(id)


@pytest.fixture
def node() -> Iterator[PluginNode]:
    with tempfile.TemporaryDirectory(prefix="nri-") as directory:
        yield PluginNode(Path(directory))


def test_a_container_with_the_id_of_an_earlier_one_is_pinned_by_the_next_round(node: PluginNode):
    """The round must not count on what the earlier container had."""

    async def test() -> None:
        manager = await node.manage()
        sandbox = node.pod("a")
        assert await node.create(sandbox, "c") == "2-5"
        await manager.rounds.round()
        await node.runtime.end("c")
        node.copy.answered = False
        assert await node.create(sandbox, "c") == ""
        assert manager.nri.findings.unpinned == 1
        node.copy.answered = True
        await manager.rounds.round()
        assert node.runtime.cpus("c") == "2-5"
        await manager.kill()

    node.run(test())


def test_pools_shrink_in_the_answer_that_makes_cpus_exclusive(node: PluginNode):
    """The runtime applies the updates of other containers with the container that is created."""

    async def test() -> None:
        manager = await node.manage()
        pool = await node.create(node.pod("pool", role="online-micro_service"), "p")
        own = await node.create(node.pod("own"), "o")
        assert own == "2-5"
        assert node.runtime.cpus("p") != pool
        assert node.runtime.cpus("p").startswith("6-")
        await manager.kill()

    node.run(test())


def test_an_inadmissible_pod_leaves_nothing(node: PluginNode):
    async def test() -> None:
        manager = await node.manage()
        await node.create(node.pod("small"), "s")
        large = node.pod("large", cpu=500)
        await node.runtime.run_pod(large)
        with pytest.raises(CallFailed, match="default/large: TopologyAffinityError"):
            await node.create(large, "l")
        assert "l" not in node.runtime.containers
        assert manager.manager.allocations.pods == {"small"}
        assert manager.nri.table.pods == {"small"}
        assert manager.nri.state()["failures"] == {"inadmissible": 1}
        await manager.kill()

    node.run(test())


def test_allocations_are_released_with_the_last_container_of_a_deleted_pod(node: PluginNode):
    async def test() -> None:
        manager = await node.manage()
        first, second = node.pod("first"), node.pod("second")
        await node.create(first, "f")
        await node.create(second, "s")
        await node.runtime.end("s")
        assert manager.manager.allocations.pods == {"first", "second"}, "the container may start again"
        del node.copy.known["first"]
        await node.runtime.end("f")
        assert manager.manager.allocations.pods == {"second"}
        await node.runtime.end_pod("second")
        assert not manager.manager.allocations.pods
        await manager.kill()

    node.run(test())


def test_a_manager_after_sigkill_gives_the_same_cpus(node: PluginNode):
    async def test() -> None:
        manager = await node.manage()
        assert await node.create(node.pod("a"), "a") == "2-5"
        await manager.kill()
        node.copy.answered = False
        manager = await node.manage()
        assert manager.manager.allocations.pods == {"a"}
        node.copy.answered = True
        assert await node.create(node.pod("b"), "b") == "6-9"
        await manager.rounds.round()
        assert node.runtime.cpus("a") == "2-5"
        await manager.kill()

    node.run(test())


def test_refuse_prevents_a_container_of_an_unknown_pod(node: PluginNode):
    async def test() -> None:
        manager = await node.manage(on_failure="refuse")
        node.copy.answered = False
        with pytest.raises(CallFailed, match=r"has not responded yet \(qrm\.on_failure\)"):
            await node.create(node.pod("a"), "c")
        assert (node.runtime.containers, manager.nri.findings.unpinned) == ({}, 0)
        node.copy.answered = True
        assert await node.create(node.pod("a"), "c") == "2-5"
        await manager.kill()

    node.run(test())


@pytest.mark.parametrize("on_failure", ["open", "refuse"])
def test_a_checkpoint_that_cannot_be_written_is_a_failure_and_makes_no_pod_inadmissible(
    node: PluginNode, on_failure: str
):
    async def test() -> None:
        manager = await node.manage(on_failure=on_failure)
        sandbox = node.pod("a")
        with node.full_disk():
            if on_failure == "open":
                assert await node.create(sandbox, "c") == ""
            else:
                with pytest.raises(CallFailed, match=r"could not be written: Is a directory \(qrm\.on_failure\)"):
                    await node.create(sandbox, "c")
        assert manager.nri.findings.counts == {"checkpoint": 1}
        assert (manager.rounds.inadmissible, manager.rounds.admissions) == ([], {})
        if on_failure == "refuse":
            assert await node.create(sandbox, "c") == "2-5"
        await manager.rounds.round()
        assert node.runtime.cpus("c") == "2-5"
        await manager.kill()

    node.run(test())


def test_random_sequences_have_no_findings():
    """`make nri` runs 10,000."""
    findings, steps = check([f"test/{number}" for number in range(20)])
    assert not findings, "\n".join(findings)
    assert steps.keys() >= {"create", "kill", "resize", "restart", "end", "round"}
