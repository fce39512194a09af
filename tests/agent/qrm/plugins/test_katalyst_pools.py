"""The pools of Katalyst's dynamic policy: which CPUs they have, and who keeps them."""

from typing import Any

import pytest

from agent import cpuset
from agent.qrm.manager.request import CannotAllocate
from agent.qrm.plugins.cpu_topology import CpuTopology, LogicalCpu
from agent.qrm.plugins.katalyst import KatalystCpuPlugin
from tests.agent.qrm.plugins.test_katalyst import BOUND, RESERVED, Clock, ask, bound, generated, plugin, shared
from tests.agent.qrm.vectors import machine

MACHINE = machine("dummy16_2s_4n")
"""NUMA node j has the cores (2j, 2j + 8) and (2j + 1, 2j + 9). CPUs 0 and 2 are reserved."""
USABLE = MACHINE.all - RESERVED
EXCLUSIVE = {**BOUND, "numa_exclusive": "true"}


def given(*, reclaim: bool = False, clock: Clock | None = None) -> KatalystCpuPlugin:
    return plugin(MACHINE, {"enable_reclaim": reclaim}, clock)


def near(cpus: float, node: int, pool: str = "") -> dict[str, Any]:
    """A shared pod that is bound to a NUMA node."""
    named = {"cpu_enhancement": {"cpuset_pool": pool}} if pool else {}
    return shared(cpus, memory_enhancement=BOUND, hint_nodes=[node], **named)


def in_pool(cpus: float, pool: str) -> dict[str, Any]:
    return shared(cpus, cpu_enhancement={"cpuset_pool": pool})


def texts(plug: KatalystCpuPlugin) -> dict[str, str]:
    return {name: cpuset.text(cpus) for name, cpus in plug.pools().items()}


def sizes(plug: KatalystCpuPlugin) -> dict[str, int]:
    return {name: len(cpus) for name, cpus in plug.pools().items()}


def test_the_first_pool_for_reclaimed_pods_has_a_cpu_of_each_node():
    assert texts(given()) == {"reclaim": "1,3-4,6"}
    on = generated(64, 2, 8)
    pool = plugin(on, {}).pools()["reclaim"]
    assert on.count_by_node(pool) == dict.fromkeys(range(8), 1)


@pytest.mark.parametrize(("cpus", "share"), [(2, "1,9"), (3, "1,8-9"), (4, "1,3,9,11"), (0.25, "1")])
def test_a_pool_has_whole_cores_of_each_node_in_turn(cpus: float, share: str):
    plug = given(reclaim=True)
    plug.allocate(ask(shared(cpus)))
    pools = plug.pools()
    assert cpuset.text(pools["share"]) == share
    assert pools["reclaim"] == USABLE - pools["share"]


def test_requests_are_rounded_up_to_thousandths_before_they_are_added():
    plug = given(reclaim=True)
    for pod in "abc":
        plug.allocate(ask(shared(0.3333), pod))
    assert sizes(plug)["share"] == 2


def test_a_pool_on_a_node_has_twice_the_cpus_that_its_pods_request():
    """The pools of other pods stay off this node; reclaimed pods get its other CPUs."""
    plug = given(reclaim=True)
    plug.allocate(ask(near(1, 3), "near"))
    plug.allocate(ask(shared(9), "far"))
    assert texts(plug) == {"share-NUMA3": "6,14", "share": "1,3-5,8-9,11-13", "reclaim": "7,10,15"}


def test_pools_of_a_node_that_is_too_small_are_reduced_in_proportion():
    plug = given(reclaim=True)
    plug.allocate(ask(near(3, 3), "large"))
    plug.allocate(ask(near(1, 3, "batch"), "small"))
    assert sizes(plug) == {"batch-NUMA3": 1, "share-NUMA3": 3, "reclaim": 10}


def test_other_shared_pods_share_cpus_if_each_node_has_a_pool():
    plug = given()
    for node in range(4):
        plug.allocate(ask(near(1, node), f"near{node}"))
    plug.allocate(ask(shared(2), "far"))
    pools = plug.pools()
    assert frozenset().union(*(pools[f"share-NUMA{node}"] for node in range(4))) == USABLE
    assert cpuset.text(pools["share"]) == "1,9"


def test_nodes_on_which_pools_request_the_cpus_are_not_offered():
    plug = given()
    plug.allocate(ask(near(3, 2), "near"))
    hints = plug.hints(ask(shared(2, memory_enhancement=BOUND), "next"))
    assert hints
    assert [(sorted(hint.nodes or ()), hint.preferred) for hint in hints] == [([0], False), ([1], False), ([3], True)]


def test_the_cpus_of_dedicated_pods_are_not_for_shared_pods():
    plug = given()
    plug.allocate(ask({**bound(8, 2), "memory_enhancement": EXCLUSIVE, "hint_nodes": [2, 3]}, "own"))
    with pytest.raises(CannotAllocate, match="shared pods would request 7 of 6 CPUs"):
        plug.allocate(ask(shared(7), "shared"))
    assert plug.allocate(ask(shared(6), "shared"))


@pytest.mark.parametrize("small", range(2, 9))
def test_pools_grow_without_the_reserve_for_reclaimed_pods(small: int):
    """Each pool grows by at least one CPU while there are any; so the share of the last one can be too large."""
    plug = plugin(generated(128, 2, 2), {})
    for number in range(small):
        plug.allocate(ask(in_pool(1, f"batch{number}"), f"small{number}"))
    plug.allocate(ask(shared(126 - 4 - small - small - 1), "large"))
    found = sizes(plug)
    assert found["reclaim"] == 4
    assert all(found[f"batch{number}"] == 2 for number in range(small))
    assert sum(found.values()) == 126


def test_a_sidecar_of_a_shared_pod_is_on_the_node_of_its_main_container():
    """As its memory is; the node of the main container is not the one with the most free CPUs."""
    plug = given(reclaim=True)
    sidecar = ask({**near(1, 3), "container_type": "SIDECAR"}, "near", "proxy")
    assert (plug.hints(sidecar), plug.allocate(sidecar), plug.allocations()) == (None, None, {})
    plug.allocate(ask(near(1, 2), "near"))
    assert plug.hints(sidecar) is None
    info = plug.allocate(sidecar)
    assert info
    assert info.allocation_result == "4-5,12-13"
    assert sizes(plug)["share-NUMA2"] == 4


# --- containers that are admitted again ------------------------------------------------------------------------------


def test_a_container_that_is_admitted_again_stays_in_its_pool():
    """Its ramp-up does not begin again."""
    clock = Clock()
    plug = given(reclaim=True, clock=clock)
    plug.allocate(ask(shared(2)))
    clock.now += 30
    info = plug.allocate(ask(shared(2)))
    assert info
    assert info.allocation_result == "1,9"


def test_a_container_that_is_admitted_again_stays_on_its_node():
    plug = given()
    plug.allocate(ask(near(3, 2), "near"))
    hints = plug.hints(ask(near(3, 2), "near"))
    assert hints
    assert [sorted(hint.nodes or ()) for hint in hints] == [[2]]


def test_a_pod_with_another_level_is_allocated_again():
    plug = given()
    plug.allocate(ask(shared(2)))
    info = plug.allocate(ask({"qos_level": "reclaimed_cores", "request_cpu": 2}))
    assert info
    assert info.allocation_result == "1,3-4,6"


# --- dedicated pods --------------------------------------------------------------------------------------------------


def test_reclaimed_pods_leave_nodes_to_exclusive_pods():
    """Katalyst's manager sends all NUMA nodes as the hint of a pod without a preference."""
    plug = given()
    plug.allocate(ask({"qos_level": "reclaimed_cores", "request_cpu": 1, "hint_nodes": [0, 1, 2, 3]}, "batch"))
    hints = plug.hints(ask({**bound(4, 0), "memory_enhancement": EXCLUSIVE}, "own"))
    assert hints
    assert [sorted(hint.nodes or ()) for hint in hints if hint.preferred] == [[2], [3]]


def test_dedicated_cpus_share_a_cache():
    on = CpuTopology({id: LogicalCpu(id, id, 0, 0, l3=id // 4) for id in range(8)})
    info = plugin(on, {}).allocate(ask(bound(4, 0)))
    assert info
    assert info.allocation_result == "4-7"
