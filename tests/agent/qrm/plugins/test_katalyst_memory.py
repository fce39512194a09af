"""Memory of pods that Katalyst's annotations bind to NUMA nodes."""

import json
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from agent import cpuset
from agent.qrm.manager.allocation import AllocationInfo
from agent.qrm.manager.request import CannotAllocate, ContainerType, ResourceRequest
from agent.qrm.manager.topology import Hint
from agent.qrm.plugins.cpu_topology import CpuTopology
from agent.qrm.plugins.memory import MemoryPlugin
from agent.qrm.roles import DEFAULT_ROLES
from tests.agent.qrm.vectors import machine

GIB = 1 << 30
NODES = range(4)
MACHINE = CpuTopology(machine("dummy16_2s_4n").cpus, dict.fromkeys(NODES, 16 * GIB))
RESERVED = dict.fromkeys(NODES, GIB)
BINDING, EXCLUSIVE = {"numa_binding": "true"}, {"numa_binding": "true", "numa_exclusive": "true"}


def plugin(*, enhancements: bool = True) -> MemoryPlugin:
    return MemoryPlugin(MACHINE, DEFAULT_ROLES, reserved=RESERVED, enhancements=enhancements)


def ask(
    pod: str,
    gib: float,
    memory: dict[str, str] | None = None,
    *,
    level: str = "dedicated_cores",
    nodes: set[int] | None = None,
    **more: Any,
) -> ResourceRequest:
    annotations = {"katalyst.kubewharf.io/qos_level": level}
    if memory:
        annotations["katalyst.kubewharf.io/memory_enhancement"] = json.dumps(memory)
    hint = None if nodes is None else Hint(frozenset(nodes), preferred=True)
    container = more.pop("container", "main")
    quantities = {"memory": gib * GIB}
    return ResourceRequest(
        pod, container, "memory", resource_requests=quantities, annotations=annotations, hint=hint, **more
    )


def given(info: AllocationInfo | None) -> tuple[str, float]:
    assert info
    return info.allocation_result, info.allocated_quantity / GIB


def nodes_of(hints: tuple[Hint, ...] | None) -> list[tuple[list[int], bool]]:
    assert hints is not None
    return [(sorted(hint.nodes or ()), hint.preferred) for hint in hints]


def test_a_bound_pod_has_memory_of_the_node_of_its_hint():
    plug = plugin()
    assert nodes_of(plug.hints(ask("p", 4, BINDING))) == [([node], True) for node in NODES]
    assert given(plug.allocate(ask("p", 4, BINDING, nodes={2}))) == ("2", 4)
    assert plug.by_node("p", "main") == {2: 4.0 * GIB}
    assert nodes_of(plug.hints(ask("p", 4, BINDING))) == [([2], True)]
    assert given(plug.allocate(ask("q", 11, BINDING, level="shared_cores", nodes={2}))) == ("2", 11)
    assert nodes_of(plug.hints(ask("r", 1, BINDING))) == [([0], True), ([1], True), ([3], True)], "node 2 is full"
    assert given(plug.allocate(ask("other", 1, level="shared_cores"))) == ("0-1,3", 1)


def test_an_exclusive_pod_has_the_whole_memory_of_its_nodes():
    plug = plugin()
    plug.allocate(ask("p", 1, BINDING, nodes={0}))
    hints = nodes_of(plug.hints(ask("own", 20, EXCLUSIVE)))
    assert hints == [([2, 3], True), ([1, 2, 3], False)], "two nodes of one socket, without the node that p is on"
    assert given(plug.allocate(ask("own", 20, EXCLUSIVE, nodes={2, 3}))) == ("2-3", 30)
    assert plug.machine_state()["2"]["free"] == 0
    assert nodes_of(plug.hints(ask("next", 1, BINDING))) == [([0], True), ([1], True)]
    with pytest.raises(CannotAllocate, match="results can't meet memory request"):
        plug.allocate(ask("next", 1, BINDING, nodes={2}))
    plug.remove("own")
    assert plug.machine_state()["2"]["free"] == 15 * GIB


def test_requests_that_no_nodes_can_hold():
    plug = plugin()
    assert plug.hints(ask("p", 16, BINDING)) == (), "only an exclusive pod can have several nodes"
    assert plug.hints(ask("p", 61, EXCLUSIVE)) == ()
    with pytest.raises(CannotAllocate, match="only a pod with numa_exclusive can have several NUMA nodes"):
        plug.allocate(ask("p", 16, BINDING, nodes={0, 1}))
    with pytest.raises(CannotAllocate, match="no available memory hints"):
        plug.allocate(ask("p", 16, BINDING))
    with pytest.raises(CannotAllocate, match="dedicated_cores needs numa_binding"):
        plug.hints(ask("p", 1))
    assert plug.allocations() == {}


def test_without_a_hint_the_best_nodes_are_taken():
    assert given(plugin().allocate(ask("p", 4, BINDING))) == ("0", 4)


def test_a_sidecar_is_on_the_nodes_of_its_main_container():
    plug = plugin()
    sidecar = ask("p", 1, EXCLUSIVE, container="proxy", container_type=ContainerType.SIDECAR)
    assert (plug.hints(sidecar), plug.allocate(sidecar), plug.allocations()) == (None, None, {})
    plug.allocate(ask("p", 4, EXCLUSIVE, nodes={1}))
    assert plug.hints(sidecar) is None
    assert given(plug.allocate(sidecar)) == ("1", 0)
    assert plug.machine_state()["1"]["Allocated"] == 15 * GIB
    assert plug.allocate(ask("p", 4, EXCLUSIVE, container="init", container_type=ContainerType.INIT)) is None


def test_pods_with_exclusive_roles_and_bound_pods_do_not_share_nodes():
    plug = plugin()
    role = ask("role", 1, level="shared_cores", pod_role="storage-service")
    assert given(plug.allocate(role)) == ("0", 1)
    assert [nodes for nodes, _ in nodes_of(plug.hints(ask("p", 1, BINDING)))] == [[1], [2], [3]]
    with pytest.raises(CannotAllocate, match="other pods have exclusive memory of NUMA node 0"):
        plug.allocate(ask("p", 1, BINDING, nodes={0}))
    plug.allocate(ask("p", 1, BINDING, nodes={1}))
    again = ask("again", 1, level="shared_cores", pod_role="storage-service")
    assert [nodes for nodes, _ in nodes_of(plug.hints(again))] == [[0], [2], [3]]


def test_shared_pods_do_not_have_whole_nodes():
    """Their CPUs are in a pool of the node, which other shared pods can use too."""
    plug = plugin()
    for pod in "pq":
        assert given(plug.allocate(ask(pod, 4, EXCLUSIVE, level="shared_cores", nodes={2}))) == ("2", 4)
    assert plug.hints(ask("r", 16, EXCLUSIVE, level="shared_cores")) == ()


def test_reclaimed_pods_and_roles_without_enhancements_are_not_bound():
    assert plugin().hints(ask("p", 1, BINDING, level="reclaimed_cores")) is None
    assert plugin(enhancements=False).hints(ask("p", 1, BINDING)) is None
    assert given(plugin(enhancements=False).allocate(ask("p", 1, BINDING, nodes={1}))) == ("0-3", 1)


def test_the_state_is_restored():
    plug, again = plugin(), plugin()
    plug.allocate(ask("p", 4, EXCLUSIVE, nodes={1}))
    plug.allocate(ask("p", 1, EXCLUSIVE, container="proxy", container_type=ContainerType.SIDECAR))
    plug.allocate(ask("q", 2, BINDING, nodes={2}))
    again.load(json.loads(json.dumps(plug.document())))
    assert again.allocations() == plug.allocations()
    assert again.machine_state() == plug.machine_state()


class Pods(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.plugin = plugin()

    @rule(
        pod=st.sampled_from("abcd"),
        gib=st.integers(0, 70),
        memory=st.sampled_from([None, BINDING, EXCLUSIVE]),
        level=st.sampled_from(["dedicated_cores", "shared_cores", "reclaimed_cores"]),
        nodes=st.none() | st.sets(st.integers(0, 4), max_size=3),
        role=st.sampled_from(["", "ETL", "storage-service", "reranker"]),
        kind=st.sampled_from([ContainerType.MAIN, ContainerType.SIDECAR]),
    )
    def admit(self, pod: str, gib: int, memory: Any, level: str, nodes: Any, role: str, kind: ContainerType) -> None:
        asked = ask(
            pod, gib, memory, level=level, nodes=nodes, pod_role=role, container_type=kind, container=kind.name.lower()
        )
        before = self.plugin.document()
        try:
            info = self.plugin.allocate(asked)
        except CannotAllocate:
            assert self.plugin.document() == before
        else:
            assert self.plugin.allocate(asked) == info

    @rule(pod=st.sampled_from("abcd"))
    def remove(self, pod: str) -> None:
        self.plugin.remove(pod)

    @invariant()
    def no_byte_belongs_to_two_pods(self) -> None:
        for state in self.plugin.machine_state().values():
            assert 0 <= state["Allocated"] <= 15 * GIB

    @invariant()
    def every_result_can_be_set(self) -> None:
        for containers in self.plugin.allocations().values():
            for info in containers.values():
                assert cpuset.parse(info.allocation_result)


TestPods = Pods.TestCase
TestPods.settings = hypothesis.settings(max_examples=20, stateful_step_count=15)
