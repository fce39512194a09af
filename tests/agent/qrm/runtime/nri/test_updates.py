"""The updates of a round: containers that lose CPUs come in the first message, those that get these CPUs in the next.
What fails is sent again in the next round, and what changes while the runtime handles a message is sent at once."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from agent import cpuset
from agent.cpuset import CpuSet
from agent.qrm.manager.admission import ApplyFailed
from agent.qrm.manager.allocation import AllocationInfo, Allocations
from agent.qrm.manager.manager import Manager
from agent.qrm.manager.settings import AllocationSettings
from agent.qrm.manager.topology import TopologyPolicy
from agent.qrm.pods import PodContainer, QrmPod
from agent.qrm.runtime.nri.failures import NriFindings
from agent.qrm.runtime.nri.protos import qrm_nri_v1alpha1_pb2 as pb
from agent.qrm.runtime.nri.ttrpc import CallFailed, Code
from agent.qrm.runtime.nri.updates import REPEATS, RoundUpdates

Sent = list[tuple[str, str]]


class PinnedNode:
    """Running containers with CPUs, and a runtime that remembers the messages. `meanwhile` runs while the runtime
    handles a message; the runtime cannot update the containers `refused`, and responds with `error` if there is one."""

    def __init__(self) -> None:
        self.allocations = Allocations()
        self.pods: list[QrmPod] = []
        self.messages: list[Sent] = []
        self.meanwhile: Callable[[], None] = lambda: None
        self.refused: set[str] = set()
        self.error: CallFailed | None = None
        self.findings = NriFindings(lambda: 0.0)

        async def save() -> None:
            pass

        settings, nodes = AllocationSettings(policy=TopologyPolicy.RESTRICTED), frozenset({0})
        self.manager = Manager(settings, self.allocations, nodes=nodes, collects=True, save=save, monotonic=lambda: 0.0)
        self.updates = RoundUpdates(self.manager, self._send, self.findings)

    def give(self, id: str, cpus: str) -> None:
        """The container `id` of the pod `id` has these CPUs now."""
        if id not in {pod.uid for pod in self.pods}:
            self.pods.append(QrmPod(id, "default", id, containers=(PodContainer("main", id=id),)))
        self.allocations.set(id, "main", "cpu", AllocationInfo("CpusetCpus", allocation_result=cpus))

    async def round(self) -> tuple[list[Sent], dict[str, str]]:
        """One round: the messages, and the errors by container."""
        self.messages = []
        await self.manager.reconcile(self.pods, self.updates.apply)
        failed = await self.updates.deliver()
        return self.messages, {str(each): why for each, why in failed.items()}

    async def _send(self, updates: Sequence[pb.ContainerUpdate]) -> list[pb.ContainerUpdate]:
        self.messages.append([(each.container_id, each.linux.resources.cpu.cpus) for each in updates])
        assert not any(each.ignore_failure for each in updates), "the runtime reports what failed"
        self.meanwhile()
        if self.error is not None:
            raise self.error
        return [each for each in updates if each.container_id in self.refused]


@pytest.fixture
def node() -> PinnedNode:
    node = PinnedNode()
    node.give("a", "0-3")
    node.give("b", "4-7")
    return node


async def test_those_that_lose_cpus_come_in_an_earlier_message_and_nothing_without_a_change(node: PinnedNode):
    assert await node.round() == ([[("a", "0-3"), ("b", "4-7")]], {})
    assert await node.round() == ([], {})
    node.give("a", "0-5")
    node.give("b", "6-7")
    assert await node.round() == ([[("b", "6-7")], [("a", "0-5")]], {})
    assert not node.findings.counts


async def test_a_container_that_the_runtime_cannot_update_is_sent_again_in_the_next_round(node: PinnedNode):
    why = "the runtime could not update the container"
    node.refused = {"b"}
    assert await node.round() == ([[("a", "0-3"), ("b", "4-7")]], {"default/b/main": why})
    assert await node.round() == ([[("b", "4-7")]], {"default/b/main": why})
    node.refused = set()
    assert await node.round() == ([[("b", "4-7")]], {})
    assert node.findings.counts == {"update": 2}


async def test_after_a_lost_response_all_containers_are_sent_again(node: PinnedNode):
    node.error = CallFailed(Code.DEADLINE_EXCEEDED, "no response to UpdateContainers within 5 s")
    why = "UpdateContainers: no response to UpdateContainers within 5 s"
    message = [("a", "0-3"), ("b", "4-7")]
    assert await node.round() == ([message], {"default/a/main": why, "default/b/main": why})
    node.error = None
    assert await node.round() == ([message], {})
    assert node.findings.as_json()[0]["message"].endswith(why)


async def test_cpus_that_a_container_keeps_because_its_update_failed_go_to_no_other(node: PinnedNode):
    """Neither in this round nor in the next one, also if the response was lost before."""
    await node.round()
    node.give("a", "0-5")
    node.give("b", "6-7")
    node.refused = {"b"}
    waits = "does not get CPUs 4-5 yet: default/b/main has them, and its update failed"
    failed = {"default/b/main": "the runtime could not update the container", "default/a/main": waits}
    for _ in range(2):
        assert await node.round() == ([[("b", "6-7")]], failed)
    node.error = CallFailed(Code.DEADLINE_EXCEEDED, "no response")
    assert (await node.round())[0] == [[("b", "6-7")]]
    node.error, node.refused = None, set()
    assert await node.round() == ([[("b", "6-7")], [("a", "0-5")]], {})


async def test_containers_that_exchange_cpus_lose_them_in_the_first_message(node: PinnedNode):
    node.give("a", "0-1,4")
    node.give("b", "2-3")
    await node.round()
    node.give("a", "2-4")
    node.give("b", "0-1")
    assert await node.round() == ([[("a", "4")], [("b", "0-1")], [("a", "2-4")]], {})


@pytest.mark.parametrize("seed", range(100))
async def test_random_partitions_with_refusals_and_lost_responses_never_share_a_cpu(node: PinnedNode, seed: int):
    """Each container keeps a CPU that no other wants, so that no set is empty meanwhile. A response is lost after the
    runtime has handled a part of the message."""
    chance = random.Random(seed)
    names, cpus = "abcdef"[: chance.randint(2, 6)], list(range(16))
    has: dict[str, CpuSet] = {}

    def decide() -> dict[str, str]:
        chance.shuffle(cpus)
        owned: dict[str, set[int]] = {name: {16 + at} for at, name in enumerate(names)}
        for cpu in cpus[: chance.randint(4, 16)]:
            owned[chance.choice(names)].add(cpu)
        for name, each in owned.items():
            node.give(name, cpuset.text(each))
        return {name: cpuset.text(each) for name, each in owned.items()}

    def handle() -> None:
        message = node.messages[-1]
        for id, gets in message[: chance.randint(0, len(message)) if node.error else None]:
            if id not in node.refused:
                has[id] = cpuset.parse(gets)
                taken = frozenset[int]().union(*(each for other, each in has.items() if other != id))
                assert not has[id] & taken

    node.pods.clear()
    node.meanwhile = handle
    decide()
    await node.round()
    for _ in range(4):
        decide()
        node.refused = set(chance.sample(names, chance.randint(0, 2)))
        node.error = CallFailed(Code.DEADLINE_EXCEEDED, "no response") if chance.random() < 0.3 else None
        await node.round()
        node.refused, node.error = set(), None
        wanted = decide() if chance.random() < 0.5 else None
        for _ in range(len(names)):
            _, failed = await node.round()
        assert not failed
        assert wanted is None or wanted == {name: cpuset.text(each) for name, each in has.items()}


async def test_what_changes_while_the_runtime_handles_a_message_is_sent_at_once(node: PinnedNode):
    """The runtime may have applied another answer of the plug-in before this message."""
    node.meanwhile = lambda: node.give("b", "6-7")
    assert await node.round() == ([[("a", "0-3"), ("b", "4-7")], [("b", "6-7")]], {})


async def test_a_container_that_keeps_changing_ends_the_round_after_some_messages(node: PinnedNode):
    def change() -> None:
        node.give("b", f"4-{7 + len(node.messages)}")

    node.meanwhile = change
    messages, failed = await node.round()
    assert messages == [[("a", "0-3"), ("b", "4-7")], *([("b", f"4-{last}")] for last in range(8, 7 + REPEATS))]
    assert failed == {}
    node.meanwhile = lambda: None
    assert await node.round() == ([[("b", f"4-{7 + REPEATS}")]], {})


async def test_a_container_that_fails_in_a_repeated_message_is_reported(node: PinnedNode):
    def change() -> None:
        node.give("b", "6-7")
        node.refused = {"b"} if len(node.messages) > 1 else set()

    node.meanwhile = change
    messages, failed = await node.round()
    assert (len(messages), list(failed)) == (2, ["default/b/main"])


async def test_properties_that_a_message_cannot_have_fail_for_their_container_only(node: PinnedNode):
    pods = {pod.uid: (pod, pod.containers[0]) for pod in node.pods}
    with pytest.raises(ApplyFailed, match="cannot be sent to the runtime"):
        await node.updates.apply(*pods["a"], {"CpuShares": -5})
    await node.updates.apply(*pods["b"], {"CpusetCpus": "4-7"})
    assert await node.updates.deliver() == {}
    assert node.messages == [[("b", "4-7")]]


async def test_an_invalid_allocation_of_the_checkpoint_fails_for_its_container_only(node: PinnedNode):
    node.allocations.set("a", "main", "shares", AllocationInfo("CpuShares", allocation_result="-5"))
    await node.manager.reconcile(node.pods, node.updates.apply)
    assert await node.updates.deliver() == {}
    assert node.messages == [[("b", "4-7")]]
