"""The proposal's examples step by step, and invariants after any sequence of pods."""

from collections.abc import Callable, Mapping
from typing import Any

import hypothesis
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agent import cpuset
from agent.qrm.manager.allocation import AllocationInfo, wire_hints
from agent.qrm.manager.request import (
    CannotAllocate,
    ContainerType,
    ResourceRequest,
    nodes_for_memory,
    whole,
)
from agent.qrm.manager.topology import Hint, Merged, TopologyPolicy, merge
from agent.qrm.plugins.base import ResourcePlugin
from agent.qrm.plugins.cpu import CpuPlugin
from agent.qrm.plugins.cpu_topology import CpuTopology, LogicalCpu
from agent.qrm.plugins.memory import MemoryPlugin
from agent.qrm.plugins.nic import Nic, NicAddress, NicPlugin
from agent.qrm.plugins.resize import PoolSettings
from agent.qrm.roles import DEFAULT_ROLES, role_table
from tests.agent.qrm.vectors import cases, group, machine

TOTAL = {0: 237706936320, 1: 237806551040}
RESERVED = dict.fromkeys(TOTAL, 524288000)
GIB = 1 << 30
SEED = CpuTopology(machine("seed80_adjacent").cpus, TOTAL)
FIRST = ("oci_property_name", "is_node_resource", "is_scalar_resource", "allocated_quantity", "allocation_result")
NICS = (
    Nic("eth0", 0, NicAddress(ipv6="fdbd:dc05:3:154::20")),
    Nic("eth1", 1, NicAddress(ipv6="fdbd:dc05:3:155::20"), netns="/var/run/netns/ns1"),
)


def cpu_plugin(*, reserved: str = "0-1,40-41") -> CpuPlugin:
    return CpuPlugin(SEED, DEFAULT_ROLES, PoolSettings(), reserved=cpuset.parse(reserved))


def memory_plugin() -> MemoryPlugin:
    return MemoryPlugin(SEED, DEFAULT_ROLES, reserved=RESERVED)


def ask(resource: str, pod: str, role: str, quantity: float, **more: Any) -> ResourceRequest:
    container = more.pop("container", "container0")
    return ResourceRequest(pod, container, resource, pod_role=role, resource_requests={resource: quantity}, **more)


def decide(plugins: Mapping[str, ResourcePlugin], pod: str, role: str, quantities: Mapping[str, float]) -> Merged:
    """The Topology Manager's part of an admission."""
    hints = {name: plugin.hints(ask(name, pod, role, quantities[name])) for name, plugin in plugins.items()}
    return merge(TopologyPolicy.RESTRICTED, SEED.nodes, [hints])


def admit(
    plugins: Mapping[str, ResourcePlugin], pod: str, role: str, quantities: Mapping[str, float]
) -> dict[str, Any]:
    """Hints, merge, allocate, as the manager does; returns the responses in their JSON form."""
    merged = decide(plugins, pod, role, quantities)
    assert merged.admit
    return {
        name: plain(plugin.allocate(ask(name, pod, role, quantities[name], hint=merged.hints[name])))
        for name, plugin in plugins.items()
    }


def plain(info: AllocationInfo | None) -> dict[str, Any]:
    """The form of the golden cases: zero values of the first fields are included, other empty ones are not."""
    assert info
    found: dict[str, Any] = {name: getattr(info, name) for name in FIRST}
    found |= {name: dict(value) for name in ("envs", "annotations") if (value := getattr(info, name))}
    hints = info.resource_hints.hints if info.resource_hints else ()
    return {**found, "resource_hints": [{"nodes": list(h.nodes), "preferred": h.preferred} for h in hints if h]}


def pairs(hints: tuple[Hint, ...] | None) -> Any:
    return None if hints is None else [[sorted(hint.nodes or ()), hint.preferred] for hint in hints]


# --- the proposal's examples -----------------------------------------------------------------------------------------


def test_example_1():
    """Two pools; the load moves their border, and the containers in them get the new CPUs."""
    plugin = cpu_plugin(reserved="")
    init, *admissions, resized = group("seed_example_1")
    assert {name: cpuset.text(cpus) for name, cpus in plugin.pools.items()} == init["pools"]
    for step in admissions:
        pod, role = step["pod_uid"], step["pod_role"]
        asked = {"cpu": step["request"]["cpu"] or 1}  # the proposal does not state the request of pod3
        assert plugin.hints(ask("cpu", pod, role, asked["cpu"])) is step["hints"] is None
        assert admit({"cpu": plugin}, pod, role, asked) == step["response"]
    plugin.resize(resized["sizes"]["online"])
    assert {name: cpuset.text(cpus) for name, cpus in plugin.pools.items()} == resized["pools"]
    found = {
        pod: {name: {"cpu": plain(info)} for name, info in containers.items()}
        for pod, containers in plugin.allocations().items()
    }
    assert found == resized["resources_allocation"]


def state(cpu: CpuPlugin, memory: MemoryPlugin) -> dict[str, Any]:
    return {"cpu_machine_state": cpu.machine_state(), "memory_machine_state": memory.machine_state()}


def test_example_2():
    """Different roles are on different nodes; a pod may join its own role."""
    cpu, memory = cpu_plugin(), memory_plugin()
    plugins: dict[str, ResourcePlugin] = {"cpu": cpu, "memory": memory}
    for step in group("seed_example_2"):
        if "pod_uid" in step:
            pod, role, asked = step["pod_uid"], step["pod_role"], step["request"]
            assert pairs(cpu.hints(ask("cpu", pod, role, asked["cpu"]))) == step["cpu_hints"]
            assert pairs(memory.hints(ask("memory", pod, role, asked["memory"]))) == step["memory_hints"]
            assert set(decide(plugins, pod, role, asked).hints.values()) == {
                Hint(frozenset(step["merged"]["nodes"]), step["merged"]["preferred"])
            }
        elif "response" in step:
            assert admit(plugins, pod, role, asked) == step["response"]
        elif "cpu_hints" in step:
            request = ask("cpu", "another", step["pod_role"], step["request"]["cpu"])
            assert pairs(cpu.hints(request)) == step["cpu_hints"]
            if step.get("cpu_result"):
                info = cpu.allocate(request)
                assert info
                assert info.allocation_result == step["cpu_result"]
                cpu.remove("another")
        expected = {name: step[name] for name in step if name.endswith("_machine_state")}
        assert {name: state(cpu, memory)[name] for name in expected} == expected


def test_a_third_role_finds_no_node():
    """The two nodes have two other roles: no node is left, and the hint of best-effort does not help."""
    cpu = cpu_plugin()
    cpu.allocate(ask("cpu", "a", "storage-service", 20, hint=Hint(frozenset({0}), preferred=True)))
    cpu.allocate(ask("cpu", "b", "reranker", 10, hint=Hint(frozenset({1}), preferred=True)))
    assert cpu.hints(ask("cpu", "c", "retriever", 2)) == ()
    for hint in (None, Hint(frozenset({0, 1}), preferred=False)):
        with pytest.raises(CannotAllocate, match="no available cpu hints"):
            cpu.allocate(ask("cpu", "c", "retriever", 2, hint=hint))
    assert "c" not in cpu.allocations()


def test_example_3():
    """Node 0 is full; two pods share the card of node 1."""
    cpu, memory, nic = cpu_plugin(), memory_plugin(), NicPlugin(NICS, nodes=SEED.nodes)
    plugins: dict[str, ResourcePlugin] = {"cpu": cpu, "memory": memory, "NIC": nic}
    init, *steps, last = group("seed_example_3")
    on_0 = Hint(frozenset({0}), preferred=True)
    cpu.allocate(ask("cpu", "full", "re-caller", 38, hint=on_0))
    memory.allocate(ask("memory", "full", "re-caller", TOTAL[0] - RESERVED[0], hint=on_0))
    assert msgspec.to_builtins(nic.machine_state()) == init["nic_machine_state"]
    for number, step in enumerate([init, *steps]):
        if "response" in step:
            assert step["hints"] == [[[1], True]]
            asked = {**step["request"], "NIC": 1}
            assert set(decide(plugins, f"pod{number}", step["pod_role"], asked).hints.values()) == {
                Hint(frozenset({1}), preferred=True)
            }
            assert admit(plugins, f"pod{number}", step["pod_role"], asked) == step["response"]
        expected = {name: step[name] for name in step if name in {"cpu_machine_state", "memory_machine_state"}}
        assert {name: state(cpu, memory)[name] for name in expected} == expected
    info = nic.allocate(ask("NIC", "host", "numa-enhancement", 1, hint=on_0))
    assert info
    assert (info.envs, info.annotations) == (last["expected_envs"], last["expected_annotations"])


# --- quantities ------------------------------------------------------------------------------------------------------


@cases("quantity_from_request")
def test_whole(case: dict[str, Any]):
    request = ResourceRequest("p", "c", case["resource_name"], resource_requests=case["requests"])
    if case.get("error"):
        with pytest.raises(CannotAllocate, match="the request for cpu contains quantities only for test"):
            whole(request)
    else:
        assert whole(request) == case["expected"]


@cases("numa_count_for_memory")
def test_nodes_for_memory(case: dict[str, Any]):
    if case["error"]:
        with pytest.raises(CannotAllocate):
            nodes_for_memory(case["memory_request"], each=case["bytes_per_numa"], nodes=case["num_numa"])
    else:
        expected = case["expected"]["nodes"], case["expected"]["bytes_per_node"]
        found = nodes_for_memory(case["memory_request"], each=case["bytes_per_numa"], nodes=case["num_numa"])
        assert found == expected


@pytest.mark.parametrize("quantity", [float("nan"), float("inf"), -1.0, 1e30])
@pytest.mark.parametrize("role", ["storage-service", "ETL"])
def test_an_invalid_quantity_is_an_error(role: str, quantity: float):
    for plugin in (cpu_plugin(), memory_plugin()):
        with pytest.raises(CannotAllocate, match="the requested quantity"):
            plugin.allocate(ask(plugin.resource, "p", role, quantity))
        assert not plugin.allocations()


# --- unusual pods ----------------------------------------------------------------------------------------------------


def test_an_init_container_gets_nothing():
    for plugin in (cpu_plugin(), memory_plugin()):
        request = ask(plugin.resource, "p", "storage-service", 2, container_type=ContainerType.INIT)
        assert plugin.hints(request) is None
        assert plugin.allocate(request) is None
        assert plugin.allocations() == {}


def test_each_container_of_an_exclusive_pod_has_its_own_cpus():
    """Katalyst's policy has a rule for sidecars; by role, a proxy of 1 CPU and an application of 16 have 17."""
    for plugin, unit in ((cpu_plugin(), 1), (memory_plugin(), 1 << 30)):
        kinds = {"proxy": ContainerType.SIDECAR, "app": ContainerType.MAIN, "log": ContainerType.SIDECAR}
        for (name, kind), size in zip(kinds.items(), (1, 16, 4), strict=True):
            request = ask(plugin.resource, "p", "storage-service", size * unit, container=name, container_type=kind)
            assert plugin.hints(request) == (
                Hint(frozenset({0}), preferred=True),
                Hint(frozenset({1}), preferred=True),
            )
            info = plugin.allocate(request)
            assert info
            assert info.allocated_quantity == size * unit
        assert plugin.by_node("p", "app") == {0: 16.0 * unit}
        if plugin.resource == "cpu":
            sets = [cpuset.parse(each.allocation_result) for each in plugin.allocations()["p"].values()]
            assert len(frozenset().union(*sets)) == sum(map(len, sets)) == 21


@pytest.mark.parametrize("hint", [None, Hint(frozenset({0}), preferred=False), Hint(frozenset({7}), preferred=False)])
def test_a_hint_that_is_not_preferred_does_not_bind(hint: Hint | None):
    """A pod larger than a NUMA node gets its CPUs and its memory across nodes."""
    cpu, memory = cpu_plugin(), memory_plugin()
    for plugin, size in ((cpu, 50), (memory, 300 << 30)):
        info = plugin.allocate(ask(plugin.resource, "p", "retriever", size, hint=hint))
        assert info
        assert info.allocated_quantity == size
        assert set(plugin.by_node("p", "container0")) == {0, 1}
        fresh = cpu_plugin() if plugin is cpu else memory_plugin()
        with pytest.raises(CannotAllocate):
            fresh.allocate(ask(plugin.resource, "p", "retriever", size, hint=Hint(frozenset({0}), preferred=True)))


def test_a_pod_that_fits_no_single_node_gets_hints_of_several_without_preference():
    """With best-effort it runs across nodes, with restricted it is not admitted."""
    cpu = cpu_plugin()
    for number in range(2):
        cpu.allocate(ask("cpu", f"p{number}", "retriever", 20, hint=Hint(frozenset({number}), preferred=True)))
    assert pairs(cpu.hints(ask("cpu", "q", "retriever", 26))) == [[[0, 1], False]]
    assert pairs(cpu.hints(ask("cpu", "q", "retriever", 18))) == [[[0], True], [[1], True]]


def test_an_equal_request_changes_nothing_and_a_larger_one_keeps_the_allocated_cpus():
    cpu = cpu_plugin()
    cpu.allocate(ask("cpu", "first", "storage-service", 2))
    first = cpu.allocate(ask("cpu", "p", "storage-service", 4))
    cpu.remove("first")
    document = cpu.document()
    assert cpu.allocate(ask("cpu", "p", "storage-service", 4)) == first
    assert cpu.document() == document
    given = [cpu.allocate(ask("cpu", "p", "storage-service", size)) for size in (4, 6, 50, 3)]
    sets = [cpuset.parse(info.allocation_result) for info in given if info]
    assert [len(each) for each in sets] == [4, 6, 50, 3]
    assert sets[0] < sets[1] < sets[2] > sets[3]
    (stays,) = cpu.hints(ask("cpu", "p", "storage-service", 5)) or ()
    assert stays == Hint(frozenset(cpu.by_node("p", "container0")), preferred=True)


def test_after_a_lost_state_exclusive_cpus_come_from_the_checkpoint():
    """No other container gets them before the manager asks again. Pools, and CPUs that cannot be exclusive, are not
    taken."""
    role, before = "storage-service", cpu_plugin()
    infos = {name: before.allocate(ask("cpu", name, role, 4.0)) for name in ("a", "b")}
    pooled = before.allocate(ask("cpu", "p", "ETL", 2.0))
    assert pooled
    assert infos["a"]
    known = [(name, "container0", info) for name, info in infos.items() if info is not None]
    reserved = msgspec.structs.replace(infos["a"], allocation_result="0-1")
    after = cpu_plugin()
    others = [("p", "container0", pooled), ("r", "container0", reserved), ("again", "c", known[0][2])]
    assert [("a", "container0"), ("b", "container0")] == after.adopt([*known, *others]).kept
    assert after.hints(ask("cpu", "other", "reranker", 4.0))
    assert [Hint(frozenset({1}), preferred=True)] == [
        each for each in after.hints(ask("cpu", "new", role, 4.0)) or () if each.preferred
    ], "the role of the pods is not known yet"
    for name in ("b", "a"):
        assert infos[name] == after.allocate(ask("cpu", name, role, 4.0))
    assert infos == {name: after.allocate(ask("cpu", name, role, 4.0)) for name in ("a", "b")}
    fresh = cpu_plugin()
    fresh.load(after.document())
    assert after.document() == fresh.document()
    assert ([], {}) == after.adopt(known)


@pytest.mark.parametrize("value", ["all", "3-1", "0-99999999", "-1"])
def test_an_invalid_cpu_set_of_the_checkpoint_is_reported(value: str):
    """The other containers keep their CPUs."""
    infos = [cpu_plugin().allocate(ask("cpu", name, "storage-service", 4.0)) for name in "ab"]
    damaged = msgspec.structs.replace(infos[0] or AllocationInfo(), allocation_result=value)
    kept, invalid = cpu_plugin().adopt([("a", "c", damaged), ("b", "c", infos[1] or AllocationInfo())])
    assert ([("b", "c")], [("a", "c")]) == (kept, list(invalid))
    assert value in invalid["a", "c"]


def test_after_a_lost_state_exclusive_memory_comes_from_the_checkpoint():
    """Also of a container on two nodes. What does not fit is left out."""
    role, before = "storage-service", memory_plugin()
    sizes = {"a": 150 * GIB, "b": 230 * GIB}
    infos = {name: before.allocate(ask("memory", name, role, float(size))) for name, size in sizes.items()}
    known = [(name, "container0", info) for name, info in infos.items() if info is not None]
    assert {0, 1} == set(known[1][2].topology_assignments)
    after = memory_plugin()
    found = after.adopt([*known, ("more", "container0", known[0][2])])
    assert [("a", "container0"), ("b", "container0")] == found.kept
    for name in ("b", "a"):
        assert infos[name] == after.allocate(ask("memory", name, role, float(sizes[name])))
    assert before.document() == after.document()


def test_a_container_that_cannot_grow_keeps_its_allocation():
    for plugin, size in ((cpu_plugin(), 4), (memory_plugin(), 4 << 30)):
        for role in ("storage-service", "online-micro_service"):
            before = plugin.allocate(ask(plugin.resource, role, role, size))
            with pytest.raises(CannotAllocate):
                plugin.allocate(ask(plugin.resource, role, role, size * 400))
            assert plugin.allocate(ask(plugin.resource, role, role, size)) == before


def test_exclusive_memory_grows_and_shrinks_on_its_node():
    memory = memory_plugin()
    on_1 = Hint(frozenset({1}), preferred=True)
    for size, hint in ((4 << 30, on_1), (8 << 30, None), (2 << 30, None)):
        info = memory.allocate(ask("memory", "p", "retriever", size, hint=hint))
        assert info
        assert (info.topology_assignments, info.allocated_quantity) == ({1: size}, size)


def test_an_exclusive_container_that_shrinks_keeps_the_cpus_of_one_cache():
    cpu = CpuPlugin(
        CpuTopology({cpu: LogicalCpu(cpu, cpu, 0, 0, cpu // 4) for cpu in range(16)}, {0: 1 << 30}),
        DEFAULT_ROLES,
        PoolSettings(),
    )
    given = [cpu.allocate(ask("cpu", "p", "retriever", size)) for size in (6, 2)]
    assert [info and info.allocation_result for info in given] == ["0-5", "4-5"]


LARGE = CpuTopology(
    {cpu: LogicalCpu(cpu, cpu, cpu // 32, cpu // 4, cpu // 4) for cpu in range(256)}, dict.fromkeys(range(64), 1 << 30)
)
"""64 NUMA nodes with four CPUs and a gibibyte each."""


@pytest.mark.parametrize(("size", "count"), [(3, 64), (4, 64), (9, 62), (150, 27)])
def test_64_numa_nodes(size: int, count: int):
    """Their sets are not enumerated: sets of adjacent nodes are offered."""
    cpu = CpuPlugin(LARGE, DEFAULT_ROLES, PoolSettings(min_online=4, min_offline=4))
    memory = MemoryPlugin(LARGE, DEFAULT_ROLES)
    for plugin, quantity in ((cpu, size), (memory, size << 28)):
        offered = plugin.hints(ask(plugin.resource, "p", "retriever", quantity))
        assert offered
        assert len(offered) == count
        assert {(len(hint.nodes or ()), hint.preferred) for hint in offered} == {(-(-size // 4), True)}
        info = plugin.allocate(ask(plugin.resource, "p", "retriever", quantity))
        assert info
        assert info.allocated_quantity == quantity
    hints = cpu.hints(ask("cpu", "q", "retriever", 4))
    assert merge(TopologyPolicy.RESTRICTED, range(64), [{"cpu": hints, "memory": hints}]).admit


def test_of_64_numa_nodes_those_with_the_most_free_memory_are_found():
    """No adjacent nodes have enough; two nodes far apart have."""
    cpu = CpuPlugin(LARGE, DEFAULT_ROLES, PoolSettings(min_online=4, min_offline=4))
    for node in range(64):
        if node not in (7, 50):
            hint = Hint(frozenset({node}), preferred=True)
            cpu.allocate(ask("cpu", f"p{node}", "retriever", 2, hint=hint))
    assert pairs(cpu.hints(ask("cpu", "q", "retriever", 8))) == [[[7, 50], True]]


PAIR = CpuTopology({cpu: LogicalCpu(cpu, 0, 0, cpu, cpu) for cpu in range(2)}, {0: 1 << 30})


def test_without_a_minimum_exclusive_cpus_may_leave_no_cpu_to_the_offline_pool_alone():
    """Both pools have the remaining CPU, and offline requests keep their CPUs."""
    cpu = CpuPlugin(PAIR, DEFAULT_ROLES, PoolSettings(min_offline=0))
    assert cpu.hints(ask("cpu", "p", "retriever", 1))
    assert cpu.allocate(ask("cpu", "p", "retriever", 1))
    assert cpu.pools["online"] == cpu.pools["offline"]
    assert 1 == len(cpu.pools["online"])
    assert cpu.hints(ask("cpu", "q", "retriever", 1)) == ()
    with pytest.raises(CannotAllocate):
        cpu.allocate(ask("cpu", "q", "retriever", 1))
    busy = CpuPlugin(PAIR, DEFAULT_ROLES, PoolSettings(min_offline=0))
    busy.allocate(ask("cpu", "batch", "ETL", 1))
    with pytest.raises(CannotAllocate):
        busy.allocate(ask("cpu", "q", "retriever", 1))


@pytest.mark.parametrize("order", [(("web", "web", 2), ("batch", "ETL", 1)), (("web", "web", 2),)])
def test_without_a_minimum_online_requests_may_leave_no_cpu_to_the_offline_pool_alone(
    order: tuple[tuple[str, str, int], ...],
):
    """Both pools have all CPUs then; a pool with a CPU of its own keeps its requests."""
    cpu = CpuPlugin(PAIR, DEFAULT_ROLES, PoolSettings(min_offline=0))
    assert cpu.pools == {"online": {0}, "offline": {1}}
    for pod, role, size in order:
        assert cpu.allocate(ask("cpu", pod, role, size))
    assert cpu.pools == {"online": {0, 1}, "offline": {0, 1}}
    assert cpu.hints(ask("cpu", "q", "retriever", 1)) == ()
    loaded = CpuPlugin(PAIR, DEFAULT_ROLES, PoolSettings(min_offline=0))
    loaded.load(cpu.document())
    assert loaded.pools == cpu.pools
    cpu.remove("web")
    assert cpu.pools == {"online": {0}, "offline": {1}}
    busy = CpuPlugin(PAIR, DEFAULT_ROLES, PoolSettings(min_offline=0))
    busy.allocate(ask("cpu", "batch", "ETL", 1))
    with pytest.raises(CannotAllocate, match="requested 2 CPUs, but the online pool can have 1"):
        busy.allocate(ask("cpu", "web", "web", 2))


def test_memory_of_a_node_without_cpus_is_allocated():
    """The pools have it, and an exclusive container for which the other nodes have too little."""
    cxl = CpuTopology(SEED.cpus, {0: 4 << 30, 1: 4 << 30, 2: 16 << 30})
    memory = MemoryPlugin(cxl, DEFAULT_ROLES)
    shared = memory.allocate(ask("memory", "web", "online-micro_service", 1 << 30))
    own = memory.allocate(ask("memory", "db", "retriever", 8 << 30))
    assert shared
    assert own
    assert (shared.allocation_result, own.allocation_result) == ("0-2", "2")


def test_a_pool_has_at_least_the_largest_request_of_its_containers():
    """An allocated quantity below the request is not a success: neither later resizes nor exclusive pods cause it."""
    cpu = cpu_plugin()
    for pod, role, size in (("batch", "ETL", 12), ("web", "online-micro_service", 20)):
        info = cpu.allocate(ask("cpu", pod, role, size))
        assert info
        assert info.allocated_quantity >= size
    for size in (4, 76):
        cpu.resize(size)
        assert len(cpu.pools["offline"]) >= 12
        assert len(cpu.pools["online"]) >= 20
    assert cpu.hints(ask("cpu", "db", "storage-service", 45)) == ()
    cpu.allocate(ask("cpu", "db", "storage-service", 44))
    assert {name: len(cpus) for name, cpus in cpu.pools.items()} == {"online": 20, "offline": 12}
    with pytest.raises(CannotAllocate, match="requested 13 CPUs, but the offline pool can have 12"):
        cpu.allocate(ask("cpu", "more", "ETL", 13))


def test_shared_memory_is_at_least_the_request():
    memory = memory_plugin()
    memory.allocate(ask("memory", "db", "retriever", 1 << 30))
    with pytest.raises(CannotAllocate, match="but shared NUMA nodes have"):
        memory.allocate(ask("memory", "web", "online-micro_service", 300 << 30))


def test_sidecars_of_an_earlier_version_are_allocated_again():
    cpu = cpu_plugin()
    cpu.allocate(ask("cpu", "p", "storage-service", 4))
    document = cpu.document()
    proxy = {"pod_uid": "p", "container_name": "proxy", "pod_role": "storage-service", "request": 1, "sidecar": True}
    document["pods"]["p"]["proxy"] = proxy
    again = cpu_plugin()
    again.load(document)
    assert again.document() == cpu.document()


def test_exclusive_pods_leave_the_pools_their_minimum():
    cpu = cpu_plugin()
    assert cpu.hints(ask("cpu", "p", "storage-service", 68)) == (Hint(frozenset({0, 1}), preferred=True),)
    assert cpu.hints(ask("cpu", "p", "storage-service", 69)) == ()
    with pytest.raises(
        CannotAllocate, match="would leave the pools fewer CPUs than their minimum, 4 online and 4 offline"
    ):
        cpu.allocate(ask("cpu", "p", "storage-service", 69, hint=Hint(frozenset({0, 1}), preferred=True)))
    cpu.allocate(ask("cpu", "p", "storage-service", 68))
    assert {name: len(cpus) for name, cpus in cpu.pools.items()} == {"online": 4, "offline": 4}


def test_a_pool_grows_back_when_an_exclusive_pod_goes():
    cpu = cpu_plugin()
    before = cpu.pools
    cpu.allocate(ask("cpu", "p", "storage-service", 20))
    assert len(cpu.pools["online"]) == len(before["online"]) - 20
    cpu.remove("p")
    assert cpu.pools == before


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_small_machines_have_both_pools(count: int):
    small = CpuTopology({i: cpu for i, cpu in machine("single_socket_ht8").cpus.items() if i < count})
    pools = CpuPlugin(small, DEFAULT_ROLES, PoolSettings()).pools
    assert all(pools.values())
    assert pools["online"] | pools["offline"] == small.all
    assert count == 1 or not pools["online"] & pools["offline"]


def test_all_cpus_reserved_is_refused():
    with pytest.raises(ValueError, match="pods need at least one"):
        cpu_plugin(reserved="0-79")
    with pytest.raises(ValueError, match="reserved CPUs 80 do not exist on this machine"):
        cpu_plugin(reserved="80")


def test_memory_over_two_nodes_is_filled_in_order():
    memory = memory_plugin()
    size = 300 << 30
    assert pairs(memory.hints(ask("memory", "p", "retriever", size))) == [[[0, 1], True]]
    info = memory.allocate(ask("memory", "p", "retriever", size))
    assert info
    assert info.allocation_result == "0-1"
    assert info.topology_assignments == {0: TOTAL[0] - RESERVED[0], 1: size - TOTAL[0] + RESERVED[0]}
    assert memory.hints(ask("memory", "q", "retriever", 1 << 40)) == ()
    with pytest.raises(CannotAllocate, match="results can't meet memory request"):
        memory.allocate(ask("memory", "q", "retriever", 1 << 38, hint=Hint(frozenset({0}), preferred=True)))


@pytest.mark.parametrize("plugin", [cpu_plugin, memory_plugin], ids=["cpu", "memory"])
def test_a_hint_with_unknown_numa_nodes_is_an_error(plugin: Callable[[], ResourcePlugin]):
    asked = plugin()
    with pytest.raises(CannotAllocate, match=r"no NUMA node 7|NUMA node 7 has no memory or does not exist"):
        asked.allocate(ask(asked.resource, "p", "retriever", 1, hint=Hint(frozenset({0, 7}), preferred=True)))
    assert asked.allocations() == {}


def test_a_card_without_known_addresses_is_given_by_its_name():
    info = NicPlugin((Nic("eth7", 1),), nodes=SEED.nodes).allocate(ask("NIC", "p", "", 1))
    assert info
    assert info.envs == {"AFFINITY_NIC_NAME": "eth7"}


def test_each_node_with_a_card_is_offered():
    cards = (*NICS, Nic("eth9", -1))
    assert pairs(NicPlugin(cards, nodes=range(3)).hints(ask("NIC", "p", "", 1))) == [
        [[0], True],
        [[1], True],
        [[0, 1, 2], False],
    ]


def test_the_capacity_is_the_number_of_cards_of_each_known_node():
    nic = NicPlugin((*NICS, Nic("eth8", 0), Nic("eth9", -1)), nodes=SEED.nodes)
    assert ({0: 2.0, 1: 1.0}, {0: 2.0, 1: 1.0}) == (nic.capacity_by_node(), nic.allocatable_by_node())


def test_allocations_of_cards_do_not_change_later():
    assert [True, True, False] == [each.reconciled for each in (cpu_plugin(), memory_plugin(), NicPlugin((), nodes=()))]


def test_of_cards_on_one_node_the_one_with_the_fewest_containers_is_given():
    nic = NicPlugin([Nic(name, 1, NicAddress(ipv4=name)) for name in ("b", "a")], nodes=SEED.nodes)
    given = [nic.allocate(ask("NIC", pod, "", 1)) for pod in ("p", "q", "r", "p")]
    assert [info and info.envs["AFFINITY_NIC_ADDR_IPV4"] for info in given] == ["a", "b", "a", "a"]


def test_a_state_of_cards_with_the_proposals_spelling_is_read():
    document = NicPlugin(NICS, nodes=SEED.nodes).document()
    for node in document["machineState"].values():
        for nic in node["nics"]:
            nic["nuam_node"] = nic.pop("numa_node")
    NicPlugin(NICS, nodes=SEED.nodes).load(document)


def test_the_memory_of_a_pool_excludes_the_nodes_of_other_roles():
    memory = memory_plugin()
    info = memory.allocate(ask("memory", "web", "online-micro_service", 1 << 30))
    assert info
    assert info.allocation_result == "0-1"
    memory.allocate(ask("memory", "p", "retriever", 1 << 30, hint=Hint(frozenset({0}), preferred=True)))
    assert memory.allocations()["web"]["container0"].allocation_result == "1"
    memory.allocate(ask("memory", "q", "re-caller", 1 << 30, hint=Hint(frozenset({1}), preferred=True)))
    assert memory.allocations()["web"]["container0"].allocation_result == "0-1"


def test_a_pod_that_must_be_near_its_card_gets_hints_of_nodes_with_cards_only():
    nic = NicPlugin(NICS[1:], nodes=SEED.nodes)
    near = {"katalyst.kubewharf.io/network_enhancement": '{"topology_affinity_restricted": "true"}'}
    assert pairs(nic.hints(ask("NIC", "p", "", 1))) == [[[1], True], [[0, 1], False]]
    assert pairs(nic.hints(ask("NIC", "p", "", 1, annotations=near))) == [[[1], True]]
    with pytest.raises(CannotAllocate, match="NUMA nodes 0 have none"):
        nic.allocate(ask("NIC", "p", "", 1, annotations=near, hint=Hint(frozenset({0}), preferred=True)))
    with pytest.raises(CannotAllocate, match="not a JSON object of strings"):
        nic.hints(ask("NIC", "p", "", 1, annotations=dict.fromkeys(near, "{")))
    assert NicPlugin((), nodes=SEED.nodes).hints(ask("NIC", "p", "", 1)) == ()


def test_a_role_in_two_classes_is_an_error():
    with pytest.raises(ValueError, match="the role 'a' is in the classes online and offline"):
        role_table({"online": ["a"], "offline": ["a"]})
    with pytest.raises(
        ValueError, match="'onlin' is not a class of roles; valid classes are online, offline, exclusive"
    ):
        role_table({"onlin": ["a"]})


# --- stored state ----------------------------------------------------------------------------------------------------


def filled() -> list[ResourcePlugin]:
    cpu, memory, nic = cpu_plugin(), memory_plugin(), NicPlugin(NICS, nodes=SEED.nodes)
    for pod, role in (("a", "storage-service"), ("b", "ETL"), ("c", "reranker")):
        cpu.allocate(ask("cpu", pod, role, 3))
        memory.allocate(ask("memory", pod, role, 1 << 30))
        nic.allocate(ask("NIC", pod, role, 1))
    cpu.resize(50)
    return [cpu, memory, nic]


def empty() -> list[ResourcePlugin]:
    return [cpu_plugin(), memory_plugin(), NicPlugin(NICS, nodes=SEED.nodes)]


def test_a_document_restores_all_allocations():
    for before, after in zip(filled(), empty(), strict=True):
        after.load(msgspec.json.decode(msgspec.json.encode(before.document())))
        assert after.document() == before.document()
        assert after.allocations() == before.allocations()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"pods": []}, "not a state of the CPU plug-in"),
        ({"machineState": {}}, "machineState does not match the pods"),
    ],
)
def test_an_inconsistent_document_is_an_error(change: dict[str, Any], reason: str):
    cpu, document = cpu_plugin(), filled()[0].document()
    with pytest.raises(ValueError, match=reason):
        cpu.load({**document, **change})
    assert cpu.document() == cpu_plugin().document()


@pytest.mark.parametrize(
    ("cpus", "reason"), [("42-44", "exclusive to two containers"), ("0-2", "reserved, offline or do not exist")]
)
def test_a_document_with_invalid_exclusive_cpus_is_an_error(cpus: str, reason: str):
    document = filled()[0].document()
    document["pods"]["a"]["container0"]["cpus"] = cpus
    with pytest.raises(ValueError, match=reason):
        cpu_plugin().load(document)


def test_a_document_with_an_unknown_pool_is_an_error():
    document = filled()[0].document()
    document["pods"]["b"]["container0"]["pool"] = "nightly"
    with pytest.raises(ValueError, match="unknown pool 'nightly'"):
        cpu_plugin().load(document)


def test_records_of_earlier_versions_are_read_and_written_without_a_change():
    """Role and request are written also if they are empty; earlier records of network cards had neither."""
    adopted = {"pod_uid": "p", "container_name": "c", "pod_role": "", "request": 4, "cpus": "2-5"}
    pooled = {"pod_uid": "q", "container_name": "c", "pod_role": "ETL", "request": 0, "pool": "offline"}
    cpu, pods = cpu_plugin(), {"p": {"c": adopted}, "q": {"c": pooled}}
    expected = cpu_plugin()
    hints = wire_hints([Hint(frozenset({0}), preferred=True)])
    expected.adopt([("p", "c", AllocationInfo("CpusetCpus", False, True, 4.0, "2-5", resource_hints=hints))])
    cpu.load({**expected.document(), "pods": pods})
    assert cpu.document()["pods"] == pods
    memory, pods = memory_plugin(), {"p": {"c": {**pooled, "pod_uid": "p", "pool": "x", "numa": {"1": 5}}}}
    memory.load({"machineState": {}, "pods": pods, "policyName": "role-numa"})
    del pods["p"]["c"]["pool"]
    assert memory.document()["pods"] == pods
    nic = NicPlugin(NICS, nodes=SEED.nodes)
    earlier = {"pod_uid": "p", "container_name": "c", "interface_name": "eth1"}
    nic.load({"machineState": {}, "pods": {"p": {"c": earlier}}})
    assert nic.by_node("p", "c") == {1: 1.0}


def test_memory_that_the_removed_policy_of_katalyst_bound_is_kept_until_the_pod_is_allocated_again():
    bound = {"pod_uid": "p", "container_name": "container0", "pod_role": "ETL", "request": 1 << 30, "bound": True}
    document = {"machineState": {}, "pods": {"p": {"container0": {**bound, "numa": {"1": 1 << 30}}}}, "policyName": ""}
    memory = memory_plugin()
    memory.load(document)
    assert memory.by_node("p", "container0") == {1: float(1 << 30)}
    info = memory.allocate(ask("memory", "p", "ETL", 1 << 30))
    assert info is not None
    assert (info.allocation_result, memory.by_node("p", "container0")) == ("0-1", {})


# --- any sequence of pods --------------------------------------------------------------------------------------------

ROLES = ["online-micro_service", "ETL", "storage-service", "reranker", "retriever", "unheard-of"]
hints = st.none() | st.builds(Hint, st.frozensets(st.integers(0, 3)), st.booleans())


def offered(plugin: ResourcePlugin, request: ResourceRequest) -> tuple[Hint, ...]:
    try:
        return plugin.hints(request) or ()
    except CannotAllocate:  # nothing is asked for
        return ()


class Pods(RuleBasedStateMachine):
    """Pods come with any hint and are deleted, pools are resized, and the plug-ins restart with their stored state."""

    def __init__(self) -> None:
        super().__init__()
        small = CpuTopology(machine("dummy16_2s_4n").cpus, dict.fromkeys(range(4), 1000))
        self.machine = small
        self.reserved = cpuset.parse("0,2")
        self.start()

    def start(self) -> None:
        self.cpu = CpuPlugin(
            self.machine, DEFAULT_ROLES, PoolSettings(min_online=2, min_offline=2), reserved=self.reserved
        )
        self.memory = MemoryPlugin(self.machine, DEFAULT_ROLES, reserved={0: 100})

    @rule(
        pod=st.sampled_from("abcdef"),
        role=st.sampled_from(ROLES),
        kind=st.sampled_from(ContainerType),
        size=st.floats(0, 20),
        hint=hints,
    )
    def admit(self, pod: str, role: str, kind: ContainerType, size: float, hint: Hint | None) -> None:
        for plugin, quantity in ((self.cpu, size), (self.memory, size * 100)):
            request = ask(plugin.resource, pod, role, quantity, hint=hint, container_type=kind, container=kind.name)
            before = plugin.document()["pods"]
            try:
                info = plugin.allocate(request)
            except CannotAllocate:
                assert plugin.document()["pods"] == before
            else:
                again = plugin.allocate(request)
                assert again == info

    @rule(pod=st.sampled_from("abcdef"), role=st.sampled_from(ROLES), size=st.floats(0, 20))
    def what_is_offered_can_be_had(self, pod: str, role: str, size: float) -> None:
        for plugin, quantity in ((self.cpu, size), (self.memory, size * 100)):
            request = ask(plugin.resource, pod, role, quantity)
            for hint in offered(plugin, request):
                fresh = type(plugin)(self.machine, DEFAULT_ROLES, **self.options(plugin))
                fresh.load(plugin.document())
                assert fresh.allocate(ask(plugin.resource, pod, role, quantity, hint=hint))

    def options(self, plugin: CpuPlugin | MemoryPlugin) -> dict[str, Any]:
        return (
            {"settings": self.cpu.settings, "reserved": self.reserved}
            if isinstance(plugin, CpuPlugin)
            else {"reserved": {0: 100}}
        )

    @rule(pod=st.sampled_from("abcdef"))
    def remove(self, pod: str) -> None:
        self.cpu.remove(pod)
        self.memory.remove(pod)

    @rule(online=st.integers(-5, 30))
    def resize(self, online: int) -> None:
        self.cpu.resize(online)

    @precondition(lambda self: self.cpu.allocations())
    @rule()
    def restart(self) -> None:
        documents = self.cpu.document(), self.memory.document()
        self.start()
        self.cpu.load(documents[0])
        self.memory.load(documents[1])
        assert (self.cpu.document(), self.memory.document()) == documents

    @invariant()
    def everything_is_one_thing(self) -> None:
        """Each CPU is reserved, or exclusive to one container, or in one pool; no pool is empty, no node is
        overbooked."""
        own = [
            cpuset.parse(record["cpus"])
            for pod in self.cpu.document()["pods"].values()
            for record in pod.values()
            if record.get("cpus")
        ]
        parts = [self.reserved, *self.cpu.pools.values(), *own]
        assert sum(map(len, parts)) == len(self.machine.all)
        assert frozenset().union(*parts) == self.machine.all
        assert all(self.cpu.pools.values())
        for node in self.memory.machine_state().values():
            assert 0 <= node["Allocated"] <= node["allocatable"] <= node["total"]

    @invariant()
    def every_result_is_a_value_of_its_property(self) -> None:
        for containers in (*self.cpu.allocations().values(), *self.memory.allocations().values()):
            for info in containers.values():
                assert cpuset.parse(info.allocation_result)


TestPods = Pods.TestCase
TestPods.settings = hypothesis.settings(max_examples=40, stateful_step_count=25)


@given(st.sampled_from(ROLES), st.floats(1, 100))
def test_hints_of_both_plugins_name_the_same_nodes_when_empty(role: str, size: float):
    cpu, memory = cpu_plugin(), memory_plugin()
    assert (cpu.hints(ask("cpu", "p", role, size)) is None) == (memory.hints(ask("memory", "p", role, size)) is None)
