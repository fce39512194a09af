"""The plug-in with the components of `load-watcher qrm` and a runtime in the same event loop."""

import asyncio
import functools
import os
import re
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.qrm.grpc.plugin_api import PluginCallError, PluginOptions
from agent.qrm.manager.allocation import AllocationInfo, DeviceNode
from agent.qrm.manager.request import ResourceRequest
from agent.qrm.manager.topology import Hint
from agent.qrm.pods import ROLE_ANNOTATION, PodContainer, QrmPod
from agent.qrm.runtime.nri.protos import qrm_nri_v1alpha1_pb2 as pb
from agent.qrm.runtime.nri.runtime_config import TOLERATION
from agent.qrm.runtime.nri.ttrpc import CallFailed
from agent.qrm.store.checkpoint import CHECKPOINT
from tests.agent.qrm.manager.test_manager import Fake
from tests.agent.qrm.runtime.nri.memory import GIB, MemoryManager, PodsCopy, node_loop
from tests.agent.qrm.runtime.nri.overlap import overlaps
from tests.agent.qrm.runtime.nri.sequences import check
from tests.agent.qrm.runtime.nri.test_messages import container as runtime_container
from tests.agent.qrm.runtime.nri.test_messages import guaranteed
from tests.fakes.nri_runtime import MemoryRuntime
from tests.waiting import eventually

HELD = "held"


@dataclass
class PluginNode:
    """A node without pods; `run` runs a test in its event loop, with the runtime."""

    directory: Path
    timeout: float = 60.0
    copy: PodsCopy = field(default_factory=PodsCopy)

    def __post_init__(self) -> None:
        self.runtime = MemoryRuntime(self.directory / "nri.sock", timeout=self.timeout)

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

    def pod(self, uid: str, *, cpu: float = 4.0, role: str = "storage-service", **more: float) -> pb.PodSandbox:
        """Put a pod into the copy, which requests `more`; return its sandbox."""
        containers = (PodContainer("main", {"cpu": cpu, "memory": float(GIB), **more}),)
        self.copy.known[uid] = QrmPod(uid, "default", uid, annotations={ROLE_ANNOTATION: role}, containers=containers)
        return pb.PodSandbox(id=uid, uid=uid, name=uid, namespace="default")

    async def create(self, sandbox: pb.PodSandbox, id: str, *, start: bool = True) -> str:
        """Create a container; return its CPUs."""
        if sandbox.id not in self.runtime.pods:
            await self.runtime.run_pod(sandbox)
        await self.runtime.create(sandbox, pb.Container(id=id, name="main", pod_sandbox_id=sandbox.id), start=start)
        return self.runtime.cpus(id)


class Cards(Fake):
    """A plug-in that gives devices. A container cannot start while `broken`."""

    def __init__(self, *devices: DeviceNode) -> None:
        super().__init__("card", prop="", options=PluginOptions(aligned=True, reconcile=True, pre_start=True))
        self.devices = devices
        self.broken = False

    async def allocate(self, request: ResourceRequest) -> Mapping[str, AllocationInfo] | None:
        given = await super().allocate(request)
        assert given is not None
        info = msgspec.structs.replace(given["card"], devices=self.devices)
        self.has[request.pod_uid][request.container_name] = {"card": info}
        return {"card": info}

    async def pre_start(self, request: ResourceRequest) -> None:
        if self.broken:
            raise PluginCallError("card", "PreStartContainer", "UNKNOWN", "the card does not respond")


Test = Callable[..., Coroutine[Any, Any, None]]


def on_node(test: Test) -> Callable[..., None]:
    """Run a test in the event loop of its argument `node`."""

    @functools.wraps(test)
    def run(node: PluginNode, **more: Any) -> None:
        node.run(test(node=node, **more))

    return run


@pytest.fixture
def node() -> Iterator[PluginNode]:
    with tempfile.TemporaryDirectory(prefix="nri-") as directory:
        yield PluginNode(Path(directory))


@on_node
async def test_a_container_with_the_id_of_an_earlier_one_is_pinned_by_the_next_round(node: PluginNode):
    """The round must not count on what the earlier container had."""
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


@on_node
async def test_pools_shrink_in_the_answer_that_makes_cpus_exclusive(node: PluginNode):
    """The runtime applies the updates of other containers with the container that is created."""
    manager = await node.manage()
    pool = await node.create(node.pod("pool", role="online-micro_service"), "p")
    own = await node.create(node.pod("own"), "o")
    assert own == "2-5"
    assert node.runtime.cpus("p") != pool
    assert node.runtime.cpus("p").startswith("6-")
    await manager.kill()


@on_node
async def test_a_created_container_does_not_start_with_cpus_that_became_exclusive(node: PluginNode):
    """No round is needed."""
    manager = await node.manage()
    await node.create(node.pod("pool", role="online-micro_service"), "p", start=False)
    assert await node.create(node.pod("own"), "o") == "2-5"
    await node.runtime.start_container("p")
    assert not overlaps({id: node.runtime.cpus(id) for id in ("p", "o")})
    await manager.rounds.round()
    assert node.runtime.cpus("p").startswith("6-")
    await manager.kill()


@on_node
async def test_an_inadmissible_pod_leaves_nothing(node: PluginNode):
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


@on_node
async def test_allocations_are_released_with_the_last_container_of_a_deleted_pod(node: PluginNode):
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


@on_node
async def test_a_manager_after_sigkill_gives_the_same_cpus(node: PluginNode):
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


@on_node
async def test_refuse_prevents_a_container_of_an_unknown_pod(node: PluginNode):
    manager = await node.manage(on_failure="refuse")
    node.copy.answered = False
    with pytest.raises(CallFailed, match=r"has not responded yet \(qrm\.on_failure\)"):
        await node.create(node.pod("a"), "c")
    assert (node.runtime.containers, manager.nri.findings.unpinned) == ({}, 0)
    node.copy.answered = True
    assert await node.create(node.pod("a"), "c") == "2-5"
    await manager.kill()


@on_node
async def test_updates_in_an_answer_are_in_order_may_fail_and_are_repeated_by_the_round(node: PluginNode):
    """Containers that lose CPUs come first, and the others get them after the round has confirmed it. A container that
    has ended unnoticed does not prevent the new one."""
    manager = await node.manage()
    await node.create(node.pod("a", role="online-micro_service"), "online")
    await node.create(node.pod("b", role="ETL"), "offline")
    await node.create(node.pod("c"), "own")
    await manager.rounds.round()
    assert (await manager.rounds.round()).result.applied == (), "all is applied"
    for size, order in ((20, ["online", "offline"]), (40, ["offline", "online"])):
        await manager.resize(size)
        node.runtime.updated.clear()
        await node.create(node.pod(f"new{size}", cpu=1), f"new{size}")
        assert node.runtime.updated == [order[:1]]
        await manager.rounds.round()
        assert node.runtime.updated == [order[:1], order[:1], order[1:]]
    del node.runtime.containers["offline"]
    assert await node.create(node.pod("last"), "last")
    await manager.kill()


@on_node
async def test_a_new_manager_updates_nothing_that_is_right(node: PluginNode):
    """Neither in its answer to Synchronize nor in its first round."""
    manager = await node.manage()
    await node.create(node.pod("a"), "a")
    await node.create(node.pod("b", role="ETL"), "b")
    await manager.rounds.round()
    await manager.kill()
    node.runtime.updated.clear()
    manager = await node.manage()
    await manager.rounds.round()
    assert not node.runtime.updated
    await manager.kill()


@on_node
async def test_a_deleted_pod_whose_container_runs_keeps_its_cpus_before_the_runtime_is_there(node: PluginNode):
    manager = await node.manage()
    assert await node.create(node.pod("a"), "a") == "2-5"
    await manager.kill()
    await node.runtime.stop()
    del node.copy.known["a"]
    manager = MemoryManager(node.directory, node.runtime.socket, node.copy)
    await manager.start()
    await manager.rounds.round()
    assert manager.manager.allocations.pods == {"a"}
    await node.runtime.start()
    await eventually(lambda: node.runtime.plugin is not None, what="the plug-in")
    assert await node.create(node.pod("b"), "b") == "6-9"
    await node.runtime.end("a")
    assert manager.manager.allocations.pods == {"b"}
    await manager.kill()


@on_node
async def test_a_guaranteed_pod_is_pinned_without_the_kubernetes_api(node: PluginNode):
    """The runtime knows all that matters of it."""
    manager = await node.manage()
    node.copy.answered = False
    sandbox, container = guaranteed(), runtime_container()
    await node.runtime.run_pod(sandbox)
    await node.runtime.create(sandbox, container)
    assert (node.runtime.cpus("c"), manager.nri.findings.unpinned) == ("2-3", 0)
    await manager.kill()


@on_node
async def test_an_update_by_the_kubelet_leaves_the_cpus(node: PluginNode):
    manager = await node.manage()
    sandbox = node.pod("a")
    await node.create(sandbox, "c")
    assert node.runtime.plugin is not None
    asked = pb.UpdateContainerRequest(pod=sandbox, container=node.runtime.containers["c"])
    answer = await node.runtime.plugin.call("UpdateContainer", asked, pb.UpdateContainerResponse)
    assert [(each.container_id, each.linux.resources.cpu.cpus) for each in answer.update] == [("c", "2-5")]
    await manager.kill()


@on_node
async def test_an_update_by_the_kubelet_resizes_the_cpus(node: PluginNode):
    """Up: in the same answer, a pool loses the CPUs first. Infeasible: none change. Down: others gain them later."""
    manager = await node.manage()
    pool = node.pod("pool", role="online-micro_service")
    await node.create(pool, "p")
    sandbox = node.pod("a")
    await node.create(sandbox, "c")
    assert node.runtime.plugin is not None

    async def resized(cpu: float) -> list[tuple[str, str]]:
        node.pod("a", cpu=cpu)
        assert node.runtime.plugin is not None
        asked = pb.UpdateContainerRequest(pod=sandbox, container=node.runtime.containers["c"])
        answer = await node.runtime.plugin.call("UpdateContainer", asked, pb.UpdateContainerResponse)
        return [(each.container_id, each.linux.resources.cpu.cpus) for each in answer.update]

    others, own = await resized(8.0)
    assert (others[0], own) == ("p", ("c", "2-9"))
    assert others[1].startswith("10-")
    assert (await resized(80.0))[-1] == ("c", "2-9")
    assert manager.manager.missing("a", "main") == {"cpu": "Resources cannot be allocated with Topology locality"}
    assert await resized(2.0) == [("c", "2-3")]
    await manager.rounds.round()
    assert manager.manager.missing("a", "main") == {}
    assert node.runtime.cpus("p").startswith("4-")
    await manager.kill()


@on_node
async def test_a_container_that_is_created_again_has_what_it_requests_now(node: PluginNode):
    """The rest of its CPUs is free at once, also without a round."""
    manager = await node.manage()
    sandbox = node.pod("a", cpu=5)
    assert await node.create(sandbox, "c") == "2-6"
    node.pod("a", cpu=1)
    await node.runtime.end("c")
    assert await node.create(sandbox, "again") == "6"
    assert await node.create(node.pod("b", cpu=30), "b") == "2-5,8-33"
    assert node.runtime.cpus("again") == "6"
    await manager.kill()


@on_node
async def test_cpus_of_a_container_that_had_none_are_free_first(node: PluginNode):
    """Another container, which requests less now, loses them in the same answer."""
    manager = await node.manage()
    await node.create(node.pod("a", cpu=5), "c")
    assert await node.create(node.pod("b", cpu=0), "b") == ""
    node.pod("a", cpu=1)
    node.pod("b", cpu=30)
    node.runtime.updated.clear()
    await node.runtime.update("b")
    assert node.runtime.updated == [["c", "b"]]
    assert (node.runtime.cpus("c"), node.runtime.cpus("b")) == ("6", "2-5,8-33")
    await manager.kill()


@on_node
async def test_a_container_that_moves_to_another_node_gives_up_its_cpus_before_others_get_them(node: PluginNode):
    """The others lose the new CPUs in the same answer, and gain the old CPUs in the next round."""
    manager = await node.manage()
    await node.create(node.pod("pool", role="online-micro_service"), "p")
    sandbox = node.pod("a", memory=0.0)
    await node.create(sandbox, "c")
    await node.create(node.pod("b"), "b")
    await manager.rounds.round()
    assert (node.runtime.cpus("c"), node.runtime.cpus("b")) == ("2-5", "6-9")
    node.pod("a", cpu=36, memory=0.0)
    asked = pb.UpdateContainerRequest(pod=sandbox, container=node.runtime.containers["c"])
    assert node.runtime.plugin is not None
    answer = await node.runtime.plugin.call("UpdateContainer", asked, pb.UpdateContainerResponse)
    (pool, others), (own, moved) = ((each.container_id, each.linux.resources.cpu.cpus) for each in answer.update)
    assert (pool, own) == ("p", "c")
    assert not overlaps({"p": others, "before": "2-5", "after": moved})
    await manager.rounds.round()
    assert node.runtime.cpus("c") == moved
    assert node.runtime.cpus("p").startswith("2-5,")
    await manager.kill()


@on_node
async def test_a_resize_that_fails_leaves_the_cpus_that_others_still_have(node: PluginNode):
    manager = await node.manage()
    await node.create(node.pod("pool", role="online-micro_service"), "p")
    await node.create(node.pod("a"), "c")
    await manager.rounds.round()
    node.pod("a", cpu=8)
    with node.full_disk():
        await node.runtime.update("c")
    assert node.runtime.cpus("c") == "2-5"
    await manager.rounds.round()
    assert node.runtime.cpus("c") == "2-9"
    assert node.runtime.cpus("p").startswith("10-")
    await manager.kill()


@on_node
async def test_while_the_kubelet_sets_cpus_itself_containers_are_left_alone(node: PluginNode):
    manager = await node.manage()
    sandbox, why = node.pod("a"), "the kubelet of this node sets cpusets itself"
    assert await node.create(sandbox, "c") == "2-5"
    manager.objection = why
    await manager.rounds.round()
    assert manager.rounds.last.trouble == why
    assert await node.create(node.pod("b"), "d") == ""
    asked = pb.UpdateContainerRequest(pod=sandbox, container=node.runtime.containers["c"])
    assert node.runtime.plugin is not None
    assert not (await node.runtime.plugin.call("UpdateContainer", asked, pb.UpdateContainerResponse)).update
    manager.objection = ""
    await manager.rounds.round()
    assert node.runtime.cpus("d") == "6-9"
    assert manager.nri.findings.counts["kubelet"] == 2
    await manager.kill()


@on_node
async def test_a_runtime_with_an_earlier_nri_reports_a_removed_pod_as_a_change_of_state(node: PluginNode):
    manager = await node.manage()
    sandbox = node.pod("a")
    await node.create(sandbox, "c")
    assert node.runtime.plugin is not None
    removed = pb.StateChangeEvent(event=pb.REMOVE_POD_SANDBOX, pod=sandbox)
    await node.runtime.plugin.call("StateChange", removed, pb.Empty)
    assert not manager.manager.allocations.pods
    await manager.kill()


class HeldPlugin(Fake):
    """A plug-in that gives hints once it is released."""

    def __init__(self) -> None:
        super().__init__(HELD)
        self.released = asyncio.Event()

    async def hints(self, request: ResourceRequest) -> tuple[Hint, ...] | None:
        await self.released.wait()
        return None


def test_an_answer_comes_before_the_runtime_drops_the_plugin_and_the_work_continues(node: PluginNode):
    """With a resource plug-in that does not answer: the container starts unpinned, and is pinned later."""
    node = PluginNode(node.directory, timeout=1.0)

    async def test() -> None:
        manager = await node.manage()
        held = HeldPlugin()
        await manager.manager.plugins.register(HELD, held)
        connection = node.runtime.plugin
        assert await node.create(node.pod("a", held=1.0), "c") == ""
        assert node.runtime.plugin is connection
        assert manager.nri.findings.unpinned == 1
        assert manager.nri.state()["findings"][0]["message"].endswith("CreateContainer took more than 0.5 s")
        held.released.set()


@pytest.mark.parametrize("on_failure", ["open", "refuse"])
@on_node
async def test_a_checkpoint_that_cannot_be_written_is_a_failure_and_makes_no_pod_inadmissible(
    node: PluginNode, on_failure: str
):
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


STATIC = {"kubernetes.io/config.source": "file"}


@pytest.mark.parametrize(
    ("annotations", "starts"),
    [
        (STATIC, True),
        ({TOLERATION: "true"}, True),
        ({f"{TOLERATION}/container.main": "false", TOLERATION: "true"}, False),
        ({f"{TOLERATION}/pod": "true"}, True),
        ({TOLERATION: "false"}, False),
        ({"kubernetes.io/config.source": "api"}, False),
    ],
)
@on_node
async def test_refuse_never_prevents_a_static_or_tolerant_pod_after_a_failure(
    node: PluginNode, annotations: dict[str, str], starts: bool
):
    """The Kubernetes API, without which a changed static pod is unknown, may run in it."""
    manager = await node.manage(on_failure="refuse")
    sandbox = pb.PodSandbox(id="s", uid="s", name="apiserver", namespace="kube-system", annotations=annotations)
    if starts:
        assert await node.create(sandbox, "c") == ""
    else:
        with pytest.raises(CallFailed, match="do not have the pod yet"):
            await node.create(sandbox, "c")
    findings = manager.nri.findings
    assert (findings.unpinned, findings.refused) == ((1, 0) if starts else (0, 1))
    assert findings.counts == {"unknown-pod": 1}
    says = "starts without allocations" if starts else "is not created"
    assert f"kube-system/apiserver, container main {says}: " in manager.nri.state()["findings"][0]["message"]
    await manager.kill()


@on_node
async def test_a_pod_of_which_a_container_cannot_be_created_is_inadmissible_until_it_can(node: PluginNode):
    """Also after rounds, and each retry of the kubelet counts once altogether."""
    manager = await node.manage()
    cards = Cards()
    await manager.manager.plugins.register("card", cards)
    cards.broken = True
    sandbox = node.pod("a", card=2.0)
    for number in range(3):
        with pytest.raises(CallFailed, match="the card does not respond"):
            await node.create(sandbox, f"c{number}")
        await manager.rounds.round()
        (found,) = manager.rounds.state()["inadmissible"]
        assert found["pod"] == "default/a"
        assert "container main: the plug-in for card failed in PreStartContainer" in found["message"]
    rejected = ("rejected", "UnexpectedAdmissionError")
    assert manager.rounds.admissions == {("admitted", ""): 1, rejected: 1}
    assert len(manager.rounds.history) == 2
    cards.broken = False
    assert await node.create(sandbox, "c") == "2-5"
    assert manager.rounds.inadmissible == []
    cards.broken = True
    with pytest.raises(CallFailed, match="the card does not respond"):
        await node.create(sandbox, "again")
    await node.runtime.end_pod("a")
    assert manager.rounds.inadmissible == []
    await manager.kill()


def test_a_container_that_is_created_after_its_sandbox_was_removed_keeps_no_cpus(node: PluginNode, caplog):
    """Its pod has ended: no event would ever release its allocations. Its id may be used again."""

    async def test() -> None:
        manager = await node.manage()
        sandbox = node.pod("a")
        cpus = await node.create(sandbox, "c")
        await node.runtime.end("c")
        await node.runtime.end_pod("a")
        for late in ("late", "later"):
            await node.runtime.create(sandbox, pb.Container(id=late, name="main", pod_sandbox_id="a"))
            assert node.runtime.cpus(late) == ""
        del node.copy.known["a"]
        await manager.rounds.round()
        assert manager.manager.allocations.pods == frozenset()
        assert manager.nri.table.pods == frozenset()
        assert manager.nri.findings.counts == {"late": 2}
        assert await node.create(node.pod("b"), "d") == cpus
        assert await node.create(node.pod("a"), "e") != ""
        await manager.kill()

    node.run(test())
    said = [each for each in caplog.messages if "created after its sandbox was removed" in each]
    assert said == ["default/a, container main, is created after its sandbox was removed: ignoring it"]


@pytest.mark.parametrize("on_failure", ["open", "refuse"])
@on_node
async def test_a_device_that_cannot_be_read_is_a_failure_of_the_device_only(node: PluginNode, on_failure: str):
    """A directory is not a device either."""
    manager = await node.manage(on_failure=on_failure)
    lost, folder = str(node.directory / "card0"), str(node.directory)
    devices = (DeviceNode("/dev/a", "/dev/null", "r"), DeviceNode("/dev/b", lost), DeviceNode("/dev/c", folder))
    await manager.manager.plugins.register("card", Cards(*devices))
    sandbox = node.pod("a", card=2.0)
    why = f"cannot read {lost}: No such file or directory, {folder}: it is not a device; mount /dev of the host"
    if on_failure == "refuse":
        with pytest.raises(CallFailed, match=re.escape(why)):
            await node.create(sandbox, "c")
        sandbox.annotations.update(STATIC)
    assert await node.create(sandbox, "d") == "2-5"
    given = node.runtime.containers["d"].linux
    assert [(each.path, each.major, each.minor) for each in given.devices] == [("/dev/a", 1, 3)]
    assert [each.access for each in given.resources.devices] == ["w"]
    assert why in manager.nri.state()["findings"][0]["message"]
    assert manager.nri.findings.counts["device"] == (2 if on_failure == "refuse" else 1)
    assert manager.nri.findings.unpinned == 0
    await manager.kill()


@on_node
async def test_original_values_go_with_their_containers_without_another_write(node: PluginNode):
    """Each of these writes would be in the way of a container that is created."""
    manager = await node.manage()
    path = node.directory / "original_values"

    async def create(uid: str) -> None:
        container = pb.Container(id=f"{uid}-c", name="main", pod_sandbox_id=uid)
        container.linux.resources.cpu.cpus = "0-9"
        await node.runtime.run_pod(sandbox := node.pod(uid))
        await node.runtime.create(sandbox, container)

    await create("a")
    written = path.read_bytes()
    assert b'"a-c"' in written
    await node.runtime.end("a-c")
    assert path.read_bytes() == written
    await create("b")
    assert b'"a-c"' not in path.read_bytes()
    assert b'"b-c"' in path.read_bytes()
    await manager.kill()


def test_random_sequences_have_no_findings():
    """`make nri` runs 10,000."""
    findings, steps = check([f"test/{number}" for number in range(20)])
    assert not findings, "\n".join(findings)
    assert steps.keys() >= {"create", "kill", "resize", "restart", "end", "round"}
