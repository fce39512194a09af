"""The machine, read from the files of Linux."""

from pathlib import Path

import pytest

from agent import cpuset
from agent.qrm.plugins.cpu_topology import CpuTopology
from agent.qrm.plugins.nic import Nic
from agent.qrm.plugins.sysfs import NoTopology, read_machine, read_nics
from tests.agent.qrm.vectors import machine


def put(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text + "\n")


def as_files(root: Path, given: CpuTopology) -> None:
    put(root, "devices/system/cpu/online", cpuset.text(given.all))
    for node, cpus in given.nodes.items():
        put(root, f"devices/system/node/node{node}/cpulist", cpuset.text(cpus))
        put(root, f"devices/system/node/node{node}/meminfo", f"Node {node} MemTotal:       {4096 + node} kB")
    for cpu in given.cpus.values():
        at = f"devices/system/cpu/cpu{cpu.id}"
        put(root, f"{at}/topology/thread_siblings_list", cpuset.text(given.cores[cpu.core]))
        put(root, f"{at}/topology/physical_package_id", str(cpu.socket))
        put(root, f"{at}/topology/core_id", "0")  # repeats in each socket; must not matter
        shared = [other.id for other in given.cpus.values() if other.l3 == cpu.l3]
        put(root, f"{at}/cache/index3/shared_cpu_list", cpuset.text(shared))


def units(given: CpuTopology) -> list[set[frozenset[int]]]:
    """The parts of a machine, without their numbers."""
    caches: dict[int, set[int]] = {}
    for cpu in given.cpus.values():
        caches.setdefault(cpu.l3, set()).add(cpu.id)
    return [
        set(given.cores.values()),
        set(given.sockets.values()),
        set(given.nodes.values()),
        {frozenset(cpus) for cpus in caches.values()},
    ]


@pytest.mark.parametrize("name", ["seed80_adjacent", "linux80", "dummy16_2s_4n", "l3_24"])
def test_a_machine_from_its_files(name: str, tmp_path: Path):
    as_files(tmp_path, machine(name))
    found = read_machine(tmp_path)
    assert units(found) == units(machine(name))
    assert found.memory == {node: (4096 + node) * 1024 for node in machine(name).nodes}


def test_offline_cpus_are_left_out(tmp_path: Path):
    as_files(tmp_path, machine("linux80"))
    put(tmp_path, "devices/system/cpu/online", "0-38,40-79")
    found = read_machine(tmp_path)
    assert 39 not in found.all
    assert found.cores[79] == {79}
    assert found.cpus_per_core == 2


def test_a_kernel_that_only_lists_its_cpus_has_one_node(tmp_path: Path):
    put(tmp_path, "devices/system/cpu/online", "0-3")
    found = read_machine(tmp_path)
    assert found.nodes == {0: {0, 1, 2, 3}}
    assert found.sockets == {0: {0, 1, 2, 3}}
    assert list(found.cores.values()) == [{0}, {1}, {2}, {3}]
    assert found.memory == {}


def test_a_node_of_memory_only_is_a_memory_node(tmp_path: Path):
    """CXL memory has a NUMA node without CPUs; a node without both is left out."""
    as_files(tmp_path, machine("linux80"))
    put(tmp_path, "devices/system/node/node2/cpulist", "")
    put(tmp_path, "devices/system/node/node2/meminfo", "Node 2 MemTotal: 8192 kB")
    put(tmp_path, "devices/system/node/node7/cpulist", "")
    found = read_machine(tmp_path)
    assert set(found.nodes) == {0, 1}
    assert set(found.memory) == found.numa_nodes == {0, 1, 2}
    assert found.memory[2] == 8192 * 1024


def test_the_error_names_the_file_that_cannot_be_read(tmp_path: Path):
    with pytest.raises(NoTopology, match=r"cannot read .*cpu/online"):
        read_machine(tmp_path)
    put(tmp_path, "devices/system/cpu/online", "\n")
    with pytest.raises(NoTopology, match=r"cannot read .*cpu/online"):
        read_machine(tmp_path)
    put(tmp_path, "devices/system/cpu/online", "zero")
    with pytest.raises(NoTopology, match="cpu/online: 'zero'"):
        read_machine(tmp_path)


def test_network_cards_are_physical_devices_that_are_up(tmp_path: Path):
    for name, node, state, hardware in [
        ("eth1", "1", "up", True),
        ("eth0", "-1", "unknown", True),
        ("eth2", "0", "down", True),
        ("veth9", "0", "up", False),
    ]:
        put(tmp_path, f"class/net/{name}/operstate", state)
        if hardware:
            put(tmp_path, f"class/net/{name}/device/numa_node", node)
    assert read_nics(tmp_path) == (Nic("eth0", -1), Nic("eth1", 1))


def test_this_machine_can_be_read():
    found = read_machine()
    assert found.all
    assert frozenset().union(*found.nodes.values()) == found.all
