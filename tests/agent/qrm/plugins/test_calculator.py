"""Which CPUs are taken: golden cases of Katalyst and of the kubelet, and properties for any machine."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cpuset import CpuSet, parse, text
from agent.qrm.plugins.calculator import (
    Accumulator,
    NotEnoughCpus,
    take_by_numa_balance,
    take_by_topology,
    take_single_by_numa_balance,
)
from agent.qrm.plugins.cpu_topology import CpuTopology, LogicalCpu
from tests.agent.qrm.vectors import cases, machine


@cases("take_by_topology")
def test_by_topology(case: dict[str, Any]):
    asked = (machine(case["topology"]), parse(case["available"]), case["n"])
    if "error_contains" in case:
        with pytest.raises(NotEnoughCpus, match=case["error_contains"]):
            take_by_topology(*asked, align_l3=case["align_l3"])
    else:
        assert text(take_by_topology(*asked, align_l3=case["align_l3"])) == case["result"]


@cases("take_balance")
def test_balance(case: dict[str, Any]):
    take = take_single_by_numa_balance if "_ht_" in case["function"] else take_by_numa_balance
    asked = (machine(case["topology"]), parse(case["available"]), case["n"])
    reverse = case["function"].endswith("_reversely")
    if case.get("error"):
        with pytest.raises(NotEnoughCpus):
            take(*asked, reverse=reverse)
    else:
        taken, left = take(*asked, reverse=reverse)
        assert (text(taken), text(left)) == (case["result"], case["left"])


@cases("free_sockets")
def test_free_sockets(case: dict[str, Any]):
    m = machine(case["topology"])
    acc = Accumulator(m, parse(case["available"]), 0)
    assert acc.free(acc.sized(m.sockets), m.sockets) == case["expected"]


@cases("free_numa_nodes")
def test_free_numa_nodes(case: dict[str, Any]):
    m = machine(case["topology"])
    acc = Accumulator(m, parse(case["available"]), 0)
    assert acc.free(acc.sized(m.nodes), m.nodes) == case["expected"]


@cases("free_cores_order")
def test_free_cores(case: dict[str, Any]):
    m = machine(case["topology"])
    acc = Accumulator(m, parse(case["available"]), 0)
    assert acc.free(acc.cores_by_socket(), m.cores) == case["expected"]


@cases("free_cpus_order")
def test_free_cpus(case: dict[str, Any]):
    acc = Accumulator(machine(case["topology"]), parse(case["available"]), 0)
    assert list(acc.cpus_of(acc.cores_by_socket())) == case["expected"]


@cases("seed_layouts")
def test_the_proposals_machine(case: dict[str, Any]):
    """The proposal's CPU numbers result if siblings have adjacent numbers, or if there are none."""
    m = machine(case["topology"])
    reserved, _ = take_single_by_numa_balance(m, m.all, 4)
    offline, online = take_by_numa_balance(m, m.all, 4, reverse=True)
    smaller, _ = take_by_numa_balance(m, m.all, 28)
    first, second = (cpus - reserved for cpus in m.nodes.values())
    pod1 = take_by_topology(m, first, 20, align_l3=True)
    pod2 = take_by_topology(m, second, 10, align_l3=True)
    found = {
        "topology": case["topology"],
        "reserved_4": reserved,
        "offline_4": offline,
        "online_76": online,
        "online_28": smaller,
        "example2_pod1": pod1,
        "example2_pod2": pod2,
        "example3_pod2": take_by_topology(m, second - pod2, 10, align_l3=True),
        "odd_21": take_by_topology(m, first, 21, align_l3=True),
        "single": take_by_topology(m, first, 1, align_l3=True),
    }
    assert {name: cpus if isinstance(cpus, str) else text(cpus) for name, cpus in found.items()} == case


# --- any machine -----------------------------------------------------------------------------------------------------


@st.composite
def asked(draw: st.DrawFn) -> tuple[CpuTopology, CpuSet, int]:
    """A machine of up to 48 CPUs, odd ones included (cores with one CPU offline), some of its CPUs, and how many."""
    sockets, nodes, cores, threads = (draw(st.integers(1, most)) for most in (3, 2, 4, 2))
    cpus = {}
    for i in range(sockets * nodes * cores * threads):
        core = i % (sockets * nodes * cores)
        node = core // cores
        cpus[i] = LogicalCpu(i, core, node // nodes, node, core // draw(st.sampled_from([2, 4])))
    there = draw(st.sets(st.sampled_from(sorted(cpus)), min_size=1))
    m = CpuTopology({i: cpu for i, cpu in cpus.items() if i in there})
    available = draw(st.frozensets(st.sampled_from(sorted(there))))
    return m, available, draw(st.integers(0, len(available)))


@given(asked())
def test_exactly_the_requested_number_of_available_cpus_is_taken(given: tuple[CpuTopology, CpuSet, int]):
    m, available, n = given
    for align in (False, True):
        taken = take_by_topology(m, available, n, align_l3=align)
        assert len(taken) == n
        assert taken <= available
    for reverse in (False, True):
        for take in (take_by_numa_balance, take_single_by_numa_balance):
            taken, left = take(m, available, n, reverse=reverse)
            assert len(taken) == n
            assert taken | left == available
            assert not taken & left


@given(asked())
def test_more_cpus_than_available_are_an_error(given: tuple[CpuTopology, CpuSet, int]):
    m, available, _ = given
    with pytest.raises(NotEnoughCpus, match=f"{len(available) + 1} requested, {len(available)} available"):
        take_by_numa_balance(m, available, len(available) + 1)


@pytest.mark.parametrize("n", range(4, 75))
def test_a_growing_pool_keeps_its_cpus(n: int):
    m = machine("seed80_adjacent")
    assert take_by_numa_balance(m, m.all, n)[0] <= take_by_numa_balance(m, m.all, n + 2)[0]
