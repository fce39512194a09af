"""Control groups of version 1 in the kernel: accepted and refused values, and measurements.

Child processes burn CPU on a machine that others use, so no test expects a minimum of use: only that it is at most the
allowed one, and that the kernel counts it.
"""

import asyncio
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.cgroups.base import CgroupDirectory, Group, Tree, read
from agent.cgroups.detection import Version, find_layout, open_tree
from agent.cgroups.errors import CgroupBusy, CgroupDenied, CgroupGone, CgroupRefused
from agent.cgroups.paths import Driver
from agent.cgroups.values import CPU_MAX, Quota
from agent.model import ContainerState, PodState, State
from agent.qos import QosClass
from agent.state.collector import Collector
from agent.state.readings import PodFacts
from tests.agent.state.node import KnownPods, container_id, uid
from tests.real.cgroups import BUSY, CACHE, HOLD, ROOT, Groups, need_cgroup_v1
from tests.waiting import wait_for

pytestmark = [pytest.mark.real, pytest.mark.cgroup_v1]

MIB = 1 << 20


@pytest.fixture(scope="module")
def groups() -> Iterator[Groups]:
    need_cgroup_v1()
    with Groups() as groups:
        yield groups


@pytest.fixture(scope="module")
def tree(groups: Groups) -> Iterator[Tree]:
    layout = find_layout(str(ROOT))
    assert layout.version in (Version.V1, Version.HYBRID)
    with open_tree(layout) as tree:
        yield tree


def used_cores(group: Group) -> float:
    """Mean over the next half second."""
    began, before = time.monotonic(), group.cpu_usage_ns()
    time.sleep(0.5)
    after, elapsed = group.cpu_usage_ns(), time.monotonic() - began
    return (after - before) / 1e9 / elapsed


def test_a_quota_is_enforced_and_the_kernel_counts_the_throttled_periods(groups: Groups, tree: Tree):
    path = groups.make("quota")
    with tree.open(path) as group:
        assert group.quota() == Quota(None)
        assert (group.weight(), group.shares()) == (1024, 1024)
        group.set_quota(Quota(20_000))
        groups.run("quota", BUSY, 1.0)
        wait_for(lambda: (group.cpu().throttled_periods or 0) >= 3, what="the kernel to hold it back")
        # A pause of the whole machine may count as use: half a second without a pause is needed.
        wait_for(lambda: 0 < used_cores(group) <= 0.26, what="half a second in which it used no more than its quota")
        group.set_quota(Quota(None))
        assert group.quota() == Quota(None)
        assert len(group.processes()) == 1


@pytest.mark.parametrize("quota", [Quota(999), Quota(0), Quota(5000, 999), Quota(5000, 1_000_001)], ids=str)
def test_a_value_out_of_range_is_an_error_with_the_range(groups: Groups, tree: Tree, quota: Quota):
    path = groups.path("range")
    if not next(groups.directories("range")).exists():
        groups.make("range")
    with tree.open(path) as group:
        with pytest.raises(CgroupRefused, match="rejects") as raised:
            group.set_quota(quota)
        assert "1000" in raised.value.hint
        assert group.quota() == Quota(None)
        with pytest.raises(CgroupRefused, match="shares") as raised:
            group.set_weight(-1)
        assert "262144" in raised.value.hint


def test_no_group_can_have_more_than_its_parent(groups: Groups, tree: Tree):
    parent, child = groups.make("order"), groups.make("order/child")

    with tree.open(parent) as group:
        group.set_quota(Quota(50_000))
    with tree.open(child) as group:
        group.set_quota(Quota(40_000))
    with tree.open(child) as group, pytest.raises(CgroupRefused) as raised:
        group.set_quota(Quota(60_000))
    assert "The parent group has 50000 of 100000 µs" in raised.value.hint
    with tree.open(parent) as group, pytest.raises(CgroupRefused):
        group.set_quota(Quota(30_000))
    for path, quota in ((child, 20_000), (parent, 30_000), (parent, 90_000), (child, 80_000)):
        with tree.open(path) as group:
            group.set_quota(Quota(quota))
            assert group.quota() == Quota(quota)


def test_a_quota_below_the_burst_lowers_the_burst(groups: Groups, tree: Tree):
    path = groups.make("burst")
    (directory,) = (each for each in groups.directories("burst") if (each / "cpu.cfs_burst_us").exists())
    with tree.open(path) as group:
        group.set_quota(Quota(50_000, burst=40_000))
        with pytest.raises(OSError, match="Invalid argument"):
            (directory / "cpu.cfs_quota_us").write_text("20000")
        group.set_quota(Quota(20_000, burst=20_000))
        assert read(group, CPU_MAX) == Quota(20_000, burst=20_000)
        with pytest.raises(CgroupRefused):
            group.set_quota(Quota(999, burst=0))
        assert group.burst() == 20_000, "a refused quota leaves the burst"
        group.set_quota(Quota(50_000, burst=40_000))
        assert read(group, CPU_MAX) == Quota(50_000, burst=40_000)
        group.set_quota(Quota(None))


def test_memory_usage_contains_the_cache(groups: Groups, tree: Tree, tmp_path: Path):
    path = groups.make("memory")
    *_, directory = groups.directories("memory")
    with tree.open(path) as group:
        (directory / "memory.limit_in_bytes").write_text(str(64 * MIB))
        holder = groups.run("memory", HOLD, 32)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert 32 * MIB <= group.memory().working_set <= group.memory().usage <= 64 * MIB
        limits = CgroupDirectory.at(str(directory))
        with pytest.raises(CgroupBusy, match="busy") as raised:
            limits.write("memory.limit_in_bytes", str(4 * MIB))
        limits.close()
        assert "cannot be reclaimed" in raised.value.hint
        cacher = groups.run("memory", CACHE, tmp_path / "file", 12)
        assert cacher.stdout is not None
        assert cacher.stdout.readline() == "cached\n"
        assert group.reclaim(8 * MIB) > 4 * MIB


def test_pressure_is_read_from_a_version_2_tree_beside_version_1(groups: Groups):
    unified = ROOT / "unified"
    if not (unified / "cgroup.controllers").exists():
        pytest.skip("there is no tree of version 2 beside version 1's")
    with Groups(controllers=("unified",)) as beside:
        path = beside.make("pressure")
        for _ in range((os.cpu_count() or 1) + 1):
            beside.run("pressure", BUSY, 1.0)
        with open_tree(find_layout(str(ROOT))) as tree, tree.open(path) as group:
            wait_for(lambda: group.pressure("cpu").some.total_us > 0, what="one to wait for a CPU")
            assert 0.0 <= group.pressure("memory").some.avg10 <= 100.0


def test_pressure_rises_while_a_process_waits_for_its_own_quota():
    """The reason why rules on pressure select no pods: a process that waits for its quota alone counts as waiting for a
    CPU, in its own group and in all groups above, and so on the node."""
    need_cgroup_v1()
    if not (ROOT / "unified" / "cgroup.controllers").exists():
        pytest.skip("there is no tree of version 2 beside version 1's")
    with Groups(controllers=("cpu", "unified")) as groups:
        groups.make("waits")
        limited, pressed = groups.directories("waits")
        (limited / "cpu.cfs_quota_us").write_text("1000")  # a hundredth of a CPU
        groups.run("waits", BUSY, 1.0)

        def throttled_us() -> float:
            return int(re.findall(r"throttled_time (\d+)", (limited / "cpu.stat").read_text())[0]) / 1000.0

        wait_for(lambda: throttled_us() > 1_000_000, what="a second of waiting for the quota")
        throttled, (some,) = throttled_us(), re.findall(r"some .*total=(\d+)", (pressed / "cpu.pressure").read_text())
        cpus = os.cpu_count() or 1  # throttled_time is the sum over the CPUs on which the process waited
        assert int(some) >= 0.9 * throttled / cpus


def test_a_group_that_is_removed_while_it_is_open_is_gone(groups: Groups, tree: Tree):
    path = groups.make("gone")
    with tree.open(path) as group:
        group.cpu()
        group.memory()
        groups.remove("gone")
        for reading in (group.cpu_usage_ns, group.cpu, group.quota, group.memory, group.processes):
            with pytest.raises(CgroupGone):
                reading()
        with pytest.raises(CgroupGone):
            group.set_quota(Quota(5000))


def test_without_the_right_to_write_the_error_names_what_is_needed(groups: Groups, tree: Tree):
    path = groups.make("denied")
    user = os.geteuid()
    os.seteuid(65534)
    try:
        with tree.open(path) as group, pytest.raises(CgroupDenied, match="Permission denied") as raised:
            group.set_quota(Quota(5000))
    finally:
        os.seteuid(user)
    assert "privileged" in raised.value.hint


def test_the_state_of_real_pods_has_the_counters_of_the_kernel(groups: Groups, tree: Tree):
    """Two pods of a kubelet whose cgroupRoot is the group of the test, with usage and quota."""
    facts = []
    for number, share in ((1, 0.2), (2, 0.1)):
        pod = f"kubepods/besteffort/pod{uid(number)}"
        groups.make(f"{pod}/{container_id(number)}")
        groups.run(f"{pod}/{container_id(number)}", BUSY, share)
        containers = (ContainerState("main", container_id(number)),)
        known = PodState("default", f"pod-{number}", uid(number), qos=QosClass.BEST_EFFORT, containers=containers)
        facts.append(PodFacts(known, uid(number)))
    collector = Collector(KnownPods(facts), nest=groups.name, run_queues=True)
    with tree.open(groups.path(f"kubepods/besteffort/pod{uid(1)}/{container_id(1)}")) as group:
        group.set_quota(Quota(50_000))

    def look() -> State:
        return asyncio.run(collector.collect(time.time()))

    def used() -> State | None:
        state = look()
        return state if all((found.cpu or 0) > 0 for found in state.pods) else None

    layout = find_layout(str(ROOT), nest=groups.name)
    assert layout.driver is Driver.CGROUPFS
    assert all(found.cpu is None and found.memory is not None for found in look().pods)
    state = wait_for(used, what="CPU to be used")
    assert state is not None
    for found in state.pods:
        assert found.containers[0].cpu is not None
        assert found.containers[0].memory is not None
        assert found.memory is not None
    assert [found.containers[0].quota for found in state.pods] == [50_000, None]
    names = {"cpu_total_usage", "memory_total_usage", "cpu_core_numbers", "container_sched_run_queue_time"}
    assert names <= state.metrics.keys()
    assert (state.value("cpu_core_numbers") or 0) >= 1
