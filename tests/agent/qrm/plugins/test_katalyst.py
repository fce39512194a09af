"""Katalyst's dynamic policy: its own tests' cases, and what must hold after any sequence of pods."""

from dataclasses import replace
from typing import Any

import hypothesis
import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from agent import cpuset
from agent.qrm.manager.allocation import AllocationInfo
from agent.qrm.manager.request import CannotAllocate, ContainerType, ResourceRequest
from agent.qrm.manager.topology import Hint
from agent.qrm.plugins.cpu_topology import CpuTopology, LogicalCpu
from agent.qrm.plugins.katalyst import KatalystCpuPlugin, KatalystSettings
from tests.agent.qrm.vectors import cases, machine

RESERVED = cpuset.parse("0,2")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def generated(cpus: int, sockets: int, nodes: int) -> CpuTopology:
    """Siblings half the machine apart, cores in a row on each node."""
    cores = cpus // 2
    found = {}
    for i in range(cpus):
        core = i % cores
        node = core * nodes // cores
        found[i] = LogicalCpu(i, core, node * sockets // nodes, node, node)
    return CpuTopology(found)


def plugin(on: CpuTopology, case: dict[str, Any], clock: Clock | None = None) -> KatalystCpuPlugin:
    settings = KatalystSettings(
        RESERVED,
        reclaim=case.get("enable_reclaim", False),
        debug=frozenset({"debug"}),
        enhancement=case.get("default_enhancement") or {},
    )
    return KatalystCpuPlugin(on, settings, now=clock or Clock())


def ask(case: dict[str, Any], pod: str = "p", container: str = "c") -> ResourceRequest:
    annotations = {"katalyst.kubewharf.io/qos_level": case["qos_level"]}
    for kind in ("memory_enhancement", "cpu_enhancement"):
        if case.get(kind):
            annotations[f"katalyst.kubewharf.io/{kind}"] = msgspec.json.encode(case[kind]).decode()
    if case.get("debug_pod"):
        annotations["debug"] = ""
    nodes = case.get("hint_nodes")
    return ResourceRequest(
        pod,
        container,
        "cpu",
        container_type=ContainerType[case.get("container_type", "MAIN")],
        resource_requests={"cpu": float(case.get("request_cpu") or 0)},
        hint=None if nodes is None else Hint(frozenset(nodes), preferred=True),
        annotations=annotations,
    )


@cases("cpu_dynamic_allocate")
def test_allocate(case: dict[str, Any]):
    given = plugin(machine("dummy16_2s_4n"), case)
    if case.get("error"):
        with pytest.raises(CannotAllocate):
            given.allocate(ask(case))
        assert given.allocations() == {}
        return
    info, expected = given.allocate(ask(case)), case["expected"]
    if expected is None:
        assert info is None
        return
    assert info
    found = {name: getattr(info, name) for name in expected if name != "resource_hints"}
    hints = [sorted(hint.nodes or ()) for hint in info.hints]
    assert found == {name: value for name, value in expected.items() if name != "resource_hints"}
    assert hints == [nodes for nodes in expected["resource_hints"] if nodes is not None]


@cases("cpu_dynamic_hints")
def test_hints(case: dict[str, Any]):
    topology = case["topology"]
    if isinstance(topology, str):
        on = machine(topology)
    else:
        shape = topology["generate"]
        on = generated(shape["cpus"], shape["sockets"], shape["numa_nodes"])
    given = plugin(on, case)
    if case["error"]:
        with pytest.raises(CannotAllocate):
            given.hints(ask(case))
        return
    hints = given.hints(ask(case))
    found = None if hints is None else [[sorted(hint.nodes or ()), hint.preferred] for hint in hints]
    assert found == case["expected"]


def shared(cpus: float, **more: Any) -> dict[str, Any]:
    return {"qos_level": "shared_cores", "request_cpu": cpus, **more}


BOUND = {"numa_binding": "true"}


def test_a_shared_pod_ramps_up_and_then_is_in_its_pool():
    clock = Clock()
    given = plugin(machine("dummy16_2s_4n"), {"enable_reclaim": True}, clock)
    info = given.allocate(ask(shared(2)))
    assert info
    assert info.allocation_result == "1,3-15"
    clock.now += 30
    assert given.allocations()["p"]["c"].allocated_quantity == 2
    pools = given.pools()
    assert not pools["share"] & pools["reclaim"]
    assert pools["share"] | pools["reclaim"] == machine("dummy16_2s_4n").all - RESERVED


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("step", [5.0, 60.0, 600.0, 3_600.0, 86_400.0])
def test_a_clock_that_is_set_back_does_not_prolong_the_start_of_a_shared_pod(step: float, restart: bool):
    clock = Clock()
    clock.now = 1_700_000_000.0
    given = plugin(machine("dummy16_2s_4n"), {"enable_reclaim": True}, clock)
    given.allocate(ask(shared(2)))
    clock.now -= step
    if restart:
        document = given.document()
        given = plugin(machine("dummy16_2s_4n"), {"enable_reclaim": True}, clock)
        given.load(document)
    assert given.allocations()["p"]["c"].allocated_quantity == 2


def bound(cpus: float, node: int, **more: Any) -> dict[str, Any]:
    return {
        "qos_level": "dedicated_cores",
        "request_cpu": cpus,
        "memory_enhancement": BOUND,
        "hint_nodes": [node],
        **more,
    }


def test_shared_pods_stay_off_nodes_with_bound_pods_until_their_pool_is_made():
    """Nodes are {2j, 2j+1, 2j+8, 2j+9}."""
    clock = Clock()
    given = plugin(machine("dummy16_2s_4n"), {"enable_reclaim": True}, clock)
    given.allocate(ask(bound(1, 2), "own"))
    given.allocate(ask(shared(1, memory_enhancement=BOUND, hint_nodes=[3]), "near"))
    info = given.allocate(ask(shared(2), "shared"))
    assert info
    assert info.allocation_result == "1,3,8-11"
    clock.now += 30
    assert given.allocations()["shared"]["c"].allocated_quantity == 2


def test_shared_pods_have_what_is_not_dedicated_if_each_node_has_a_bound_pod():
    given = plugin(machine("dummy16_2s_4n"), {})
    for node in range(4):
        given.allocate(ask(bound(1, node), f"own{node}"))
    info = given.allocate(ask(shared(2), "shared"))
    assert info
    taken = cpuset.parse(",".join(given.allocations()[f"own{node}"]["c"].allocation_result for node in range(4)))
    assert cpuset.parse(info.allocation_result) == machine("dummy16_2s_4n").all - RESERVED - taken


@pytest.mark.parametrize(("cpus", "share", "reclaim"), [(1, 10, 4), (9, 10, 4), (10, 10, 4), (12, 12, 2), (13, 13, 1)])
def test_without_reclaim_pools_get_all_cpus_but_a_reserve(cpus: float, share: int, reclaim: int):
    """14 CPUs that are not reserved; the reserve is 4 CPUs, but requests come first."""
    clock = Clock()
    given = plugin(machine("dummy16_2s_4n"), {}, clock)
    given.allocate(ask(shared(cpus), "shared"))
    given.allocate(ask({"qos_level": "reclaimed_cores", "request_cpu": 2}, "batch"))
    clock.now += 30
    pools = given.pools()
    assert {name: len(cpus) for name, cpus in pools.items()} == {"share": share, "reclaim": reclaim}
    assert not pools["share"] & pools["reclaim"]
    assert cpuset.parse(given.allocations()["batch"]["c"].allocation_result) == pools["reclaim"]


def test_without_reclaim_pools_grow_in_proportion():
    given = plugin(machine("dummy16_2s_4n"), {})
    given.allocate(ask(shared(4), "a"))
    given.allocate(ask(shared(2, cpu_enhancement={"cpuset_pool": "batch"}), "b"))
    assert {name: len(cpus) for name, cpus in given.pools().items()} == {"batch": 3, "share": 6, "reclaim": 5}


def test_reclaimed_pods_share_cpus_if_other_pods_request_all():
    given = plugin(machine("dummy16_2s_4n"), {})
    given.allocate(ask(shared(14)))
    assert given.pools() == {"share": machine("dummy16_2s_4n").all - RESERVED, "reclaim": cpuset.parse("1,3-4,6")}


def system(**more: Any) -> dict[str, Any]:
    return {"qos_level": "system_cores", **more}


@pytest.mark.parametrize("enhancement", [None, {"cpuset_pool": "reserve"}])
def test_pods_of_tenants_are_no_system_pods(enhancement: dict[str, str] | None):
    """Any user may write the annotation; it gives reserved CPUs and those of other pods."""
    given = KatalystCpuPlugin(
        machine("dummy16_2s_4n"),
        KatalystSettings(RESERVED, system_namespaces=frozenset({"kube-system"})),
        now=Clock(),
    )
    request = ask(system(cpu_enhancement=enhancement))
    why = r"system_cores is only for pods of kube-system \(qrm.system_namespaces\)"
    for call in (given.hints, given.allocate):
        with pytest.raises(CannotAllocate, match=why):
            call(replace(request, pod_namespace="tenant"))
    assert given.allocate(replace(request, pod_namespace="kube-system"))


@pytest.mark.parametrize(
    ("wish", "cpus"),
    [
        (system(), "0-15"),
        (system(cpu_enhancement={"cpuset_pool": "reserve"}), "0,2"),
        (system(cpu_enhancement={"cpuset_pool": "batch"}), "batch"),
        (system(cpu_enhancement={"cpuset_pool": "share"}), "share"),
        (system(cpu_enhancement={"cpuset_pool": "re"}), "reserve and reclaim"),
        (system(cpu_enhancement={"cpuset_pool": "unknown"}), "0-15"),
        (system(cpu_enhancement={"cpuset_pool": "unknown"}, memory_enhancement=BOUND), "free"),
        (system(memory_enhancement=BOUND), "free"),
    ],
)
def test_system_pods_have_the_pools_that_they_name(wish: dict[str, Any], cpus: str):
    """All pools whose names begin with the name, so that `share` includes the pools that are bound to nodes."""
    given = plugin(machine("dummy16_2s_4n"), {"enable_reclaim": True})
    given.allocate(ask(bound(2, 2), "own"))
    given.allocate(ask(shared(2), "shared"))
    given.allocate(ask(shared(1, cpu_enhancement={"cpuset_pool": "batch"}), "batch"))
    given.allocate(ask(shared(1, memory_enhancement=BOUND, hint_nodes=[3]), "near"))
    assert given.hints(ask(wish, "system")) is None
    info = given.allocate(ask(wish, "system"))
    assert info
    pools, own = given.pools(), cpuset.parse(given.allocations()["own"]["c"].allocation_result)
    named = {
        "batch": pools["batch"],
        "share": pools["share"] | pools["share-NUMA3"],
        "reserve and reclaim": RESERVED | pools["reclaim"],
        "free": machine("dummy16_2s_4n").all - RESERVED - own,
    }
    expected = named.get(cpus) or cpuset.parse(cpus)
    assert cpuset.parse(info.allocation_result) == expected
    assert cpuset.parse(given.allocations()["system"]["c"].allocation_result) == expected


def nodes_of(hints: Any) -> list[list[int]]:
    return [sorted(hint.nodes or ()) for hint in hints or ()]


@pytest.mark.parametrize(
    ("request_cpu", "enhancement", "nodes"),
    [
        (6, {"katalyst.kubewharf.io/numa_number": "2"}, [[2, 3]]),
        (6, {"distribute_evenly_across_numa": "true", "katalyst.kubewharf.io/numa_number": "2"}, []),
        (4, {"distribute_evenly_across_numa": "true", "katalyst.kubewharf.io/numa_number": "2"}, [[0, 1], [2, 3]]),
        (3, {}, []),
    ],
)
def test_hints_with_whole_cores(request_cpu: float, enhancement: dict[str, str], nodes: list[list[int]]):
    """Two of the cores are half reserved. An odd number of CPUs splits a core, also on one of several nodes."""
    given = plugin(machine("dummy16_2s_4n"), {})
    wish = {**bound(request_cpu, 0), "cpu_enhancement": {"full_pcpus_pairing": "true", **enhancement}}
    if nodes:
        hints = given.hints(ask(wish))
        assert nodes_of(hints) == nodes
        for index, each in enumerate(nodes):
            again = plugin(machine("dummy16_2s_4n"), {})
            info = again.allocate(ask({**wish, "hint_nodes": each}, f"p{index}"))
            assert info
            cpus = cpuset.parse(info.allocation_result)
            assert all(core <= cpus or not core & cpus for core in machine("dummy16_2s_4n").cores.values())
    else:
        with pytest.raises(CannotAllocate, match=r"no available cpu hints|needs whole cores of 2 CPUs"):
            given.hints(ask(wish))


@pytest.mark.parametrize(("align", "sockets"), [({}, {2, 3}), ({"align_by_socket": "true"}, {2})])
def test_align_by_socket_takes_as_few_sockets_as_possible(align: dict[str, str], sockets: set[int]):
    """Four sockets with two nodes each; three nodes fit into two sockets."""
    on = generated(64, 4, 8)
    wish = {**bound(20, 0), "memory_enhancement": {**BOUND, "numa_exclusive": "true"}, "cpu_enhancement": align}
    hints = plugin(on, {}).hints(ask(wish))
    assert hints
    preferred = [hint.nodes or frozenset() for hint in hints if hint.preferred]
    assert {len(nodes) for nodes in preferred} == {3}
    assert {len({on.cpus[cpu].socket for cpu in on.on(nodes)}) for nodes in preferred} == sockets


def test_a_sidecar_waits_for_its_main_container():
    """A native sidecar comes first; it must not take the nodes of the pod."""
    given = plugin(machine("dummy16_2s_4n"), {})
    sidecar = ask({**bound(1, 2), "container_type": "SIDECAR"}, container="proxy")
    assert (given.hints(sidecar), given.allocate(sidecar), given.allocations()) == (None, None, {})
    main = given.allocate(ask(bound(2, 2)))
    info = given.allocate(sidecar)
    assert main
    assert info
    assert info.allocation_result == main.allocation_result
    assert given.hints(sidecar) is None


def test_a_pod_that_is_debugged_has_nothing_set_and_takes_nothing():
    given = plugin(machine("dummy16_2s_4n"), {})
    case = shared(2, debug_pod=True)
    assert given.hints(ask(case)) is None
    assert given.allocate(ask(case)) == AllocationInfo(is_scalar_resource=True)
    assert given.allocations() == {}


def test_shared_pods_may_not_ask_for_more_than_there_is():
    given = plugin(machine("dummy16_2s_4n"), {})
    given.allocate(ask(shared(10), "a"))
    with pytest.raises(CannotAllocate, match="no available cpu hints: shared pods would request 15 of 14 CPUs"):
        given.allocate(ask(shared(5), "b"))
    assert set(given.allocations()) == {"a"}


def test_pods_bound_to_a_node_are_spread():
    given = plugin(machine("dummy16_2s_4n"), {})
    case = shared(2, memory_enhancement=BOUND)
    hints = given.hints(ask(case))
    assert hints
    assert [(sorted(h.nodes or ()), h.preferred) for h in hints] == [
        ([0], False),
        ([1], False),
        ([2], True),
        ([3], True),
    ]
    with pytest.raises(CannotAllocate, match="needs a hint with exactly one NUMA node"):
        given.allocate(ask({**case, "hint_nodes": [0, 1]}))


def test_a_sidecar_has_what_the_main_container_has():
    given = plugin(machine("dummy16_2s_4n"), {})
    case = {"qos_level": "dedicated_cores", "request_cpu": 2, "memory_enhancement": BOUND, "hint_nodes": [2]}
    main = given.allocate(ask(case))
    sidecar = given.allocate(ask({**case, "container_type": "SIDECAR"}, container="proxy"))
    assert main
    assert sidecar
    assert (sidecar.allocation_result, sidecar.allocated_quantity) == (main.allocation_result, 0)
    assert given.by_node("p", "c") == {2: 2.0}
    assert given.by_node("p", "proxy") == {}


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ({"qos_level": "fast_cores"}, "must be one of shared_cores, reclaimed_cores"),
        ({"qos_level": "dedicated_cores"}, "needs numa_binding"),
        (
            {
                "qos_level": "dedicated_cores",
                "memory_enhancement": BOUND,
                "cpu_enhancement": {"full_pcpus_pairing": "true"},
                "request_cpu": 3,
                "hint_nodes": [2],
            },
            "needs whole cores of 2 CPUs, not 3",
        ),
        (
            {
                "qos_level": "dedicated_cores",
                "memory_enhancement": BOUND,
                "request_cpu": 2,
                "cpu_enhancement": {"katalyst.kubewharf.io/numa_number": "two"},
            },
            "must be a whole number greater than 0",
        ),
        (
            {
                "qos_level": "dedicated_cores",
                "memory_enhancement": BOUND,
                "request_cpu": 2,
                "cpu_enhancement": {"katalyst.kubewharf.io/numa_number": "1" * 5_000},
            },
            "must be a whole number greater than 0",
        ),
        (
            {
                "qos_level": "dedicated_cores",
                "memory_enhancement": BOUND,
                "request_cpu": 2,
                "cpu_enhancement": {"katalyst.kubewharf.io/numa_ids": "a"},
            },
            "neither a number nor a range",
        ),
    ],
)
def test_what_cannot_be_read_says_why(case: dict[str, Any], words: str):
    given = plugin(machine("dummy16_2s_4n"), {})
    with pytest.raises(CannotAllocate, match=words):
        given.allocate(ask(case))


@pytest.mark.parametrize("level", ["shared_cores", "reclaimed_cores", "system_cores", "dedicated_cores"])
@pytest.mark.parametrize("quantity", [float("nan"), float("inf"), -1.0, 1e30])
def test_quantities_that_are_none(level: str, quantity: float):
    given = plugin(machine("dummy16_2s_4n"), {"default_enhancement": {"numa_binding": "true"}})
    request = ask({"qos_level": level, "request_cpu": quantity, "hint_nodes": [0]})
    with pytest.raises(CannotAllocate, match="the requested quantity"):
        given.allocate(request)
    assert given.document()["pods"] == {}


@pytest.mark.parametrize("level", ["shared_cores", "dedicated_cores"])
def test_a_node_that_is_not_there(level: str):
    """What is given on it would be no CPU at all."""
    given = plugin(machine("dummy16_2s_4n"), {})
    wish = {"qos_level": level, "request_cpu": 0, "memory_enhancement": BOUND, "hint_nodes": [4]}
    with pytest.raises(CannotAllocate, match="NUMA node 4, which this machine does not have"):
        given.allocate(ask(wish))
    assert given.document()["pods"] == {}


def test_an_enhancement_that_is_no_json():
    request = ResourceRequest(
        "p", "c", "cpu", resource_requests={"cpu": 1.0}, annotations={"katalyst.kubewharf.io/cpu_enhancement": "{"}
    )
    with pytest.raises(CannotAllocate, match="not a JSON object of strings"):
        plugin(machine("dummy16_2s_4n"), {}).hints(request)


wishes = st.fixed_dictionaries(
    {"qos_level": st.sampled_from(["shared_cores", "reclaimed_cores", "dedicated_cores", "system_cores"])},
    optional={
        "memory_enhancement": st.sampled_from([BOUND, {**BOUND, "numa_exclusive": "true"}]),
        "cpu_enhancement": st.sampled_from(
            [
                {"full_pcpus_pairing": "true"},
                {"cpuset_pool": "batch"},
                {"cpuset_pool": "re"},
                {"align_by_socket": "true"},
            ]
        ),
        "hint_nodes": st.sets(st.integers(0, 4), max_size=3).map(sorted),
        "request_cpu": st.floats(0, 10),
        "container_type": st.sampled_from(["MAIN", "SIDECAR", "INIT"]),
    },
)


class Pods(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.reclaim = {"enable_reclaim": True}
        self.given = plugin(machine("dummy16_2s_4n"), self.reclaim, self.clock)

    @initialize(on=st.booleans())
    def start(self, on: bool) -> None:
        self.reclaim = {"enable_reclaim": on}
        self.given = plugin(machine("dummy16_2s_4n"), self.reclaim, self.clock)

    @rule(wish=wishes, pod=st.sampled_from("abcd"), container=st.sampled_from("xy"))
    def admit(self, wish: dict[str, Any], pod: str, container: str) -> None:
        request = ask(wish, pod, container)
        before = self.given.document()
        try:
            info = self.given.allocate(request)
        except CannotAllocate:
            assert self.given.document() == before
        else:
            assert self.given.allocate(request) == info

    @rule(pod=st.sampled_from("abcd"))
    def remove(self, pod: str) -> None:
        self.given.remove(pod)

    @rule(seconds=st.floats(0, 60))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule()
    def restart(self) -> None:
        document = msgspec.json.decode(msgspec.json.encode(self.given.document()))
        again = plugin(machine("dummy16_2s_4n"), self.reclaim, self.clock)
        again.load(document)
        assert again.allocations() == self.given.allocations()
        self.given = again

    @invariant()
    def what_is_somebodys_own_is_nobody_elses(self) -> None:
        records = [record for pod in self.given.document()["pods"].values() for record in pod.values()]
        own = [cpuset.parse(record["cpus"]) for record in records if record.get("cpus")]
        assert sum(map(len, own)) == len(frozenset().union(*own))
        for name, cpus in self.given.pools().items():
            assert not cpus & frozenset().union(*own), name

    @invariant()
    def reclaimed_pods_share_cpus_only_if_none_is_left(self) -> None:
        pools = self.given.pools()
        others = frozenset().union(*(cpus for name, cpus in pools.items() if name != "reclaim"))
        free = self.given.machine.all - RESERVED - self.given._dedicated()
        assert not pools["reclaim"] & others or others == free

    @invariant()
    def every_result_can_be_set(self) -> None:
        for containers in self.given.allocations().values():
            for info in containers.values():
                free = self.given.machine.all - RESERVED - self.given._dedicated()
                assert cpuset.parse(info.allocation_result) or not free


TestPods = Pods.TestCase
TestPods.settings = hypothesis.settings(max_examples=20, stateful_step_count=15)
