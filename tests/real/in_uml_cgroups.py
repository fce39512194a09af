"""The program of test_cgroups_v2.py inside a separate Linux, started by its init; no other program runs there.

It needs only the standard library and agent/cgroups. Each check is a function; its result is the exception that it
raises, or nothing if it passes. At the end, it halts the machine.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, os.getcwd())

from agent.cgroups import base, values
from agent.cgroups.base import Group, Tree
from agent.cgroups.detection import Version, find_layout, open_tree
from agent.cgroups.errors import CgroupError, CgroupGone, CgroupRefused, CgroupUnsupported
from agent.cgroups.paths import Driver, group_path, pod_segments
from agent.cgroups.values import CpuWeight, MemoryHigh, Quota

ROOT = Path("/sys/fs/cgroup")
MIB = 1 << 20
HALT = 0x4321FEDC
UID = "04e5e9e7-8d95-44dd-9af7-ab944405fff8"
POD = group_path(pod_segments("BestEffort", UID), Driver.SYSTEMD)
PATIENCE_S = 60.0

BURN = "while True: pass"
HOLD = "import os, sys; held = os.urandom(1 << 20) * int(sys.argv[1]); print('held', flush=True); sys.stdin.read()"


def make(path: str, *, memory: bool = False) -> str:
    """Make a group, with controllers for it and its parents."""
    here = ROOT
    for name in path.strip("/").split("/"):
        (here / "cgroup.subtree_control").write_text("+cpu +memory +pids")
        here /= name
        here.mkdir(exist_ok=True)
    return path


@contextlib.contextmanager
def child(path: str, program: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Start a process in a group."""
    wait = f"import sys; sys.stdin.readline()\n{program}"
    command = [sys.executable, "-S", "-c", wait, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        (ROOT / path.lstrip("/") / "cgroup.procs").write_text(str(process.pid))
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        try:
            yield process
        finally:
            process.kill()


def until(condition: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up, f"waited for {what}"
        time.sleep(0.01)


def refused(action: Callable[[], object], kind: type[CgroupError]) -> CgroupError:
    try:
        action()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


def used_cores(group: Group) -> float:
    """Mean over the next second."""
    began, before = time.monotonic(), group.cpu_usage_ns()
    time.sleep(1.0)
    after, elapsed = group.cpu_usage_ns(), time.monotonic() - began
    return (after - before) / 1e9 / elapsed


# --- checks ----------------------------------------------------------------------------------------------------------


def layout_is_found(tree: Tree) -> None:
    layout = find_layout(str(ROOT))
    assert (layout.version, layout.driver) == (Version.V2, Driver.SYSTEMD), layout


def a_quota_holds(tree: Tree) -> None:
    path = make(f"{POD}/cri-containerd-{'a' * 64}.scope")
    with tree.open(path) as group, child(path, BURN):
        assert group.quota() == Quota(None)
        group.set_quota(Quota(20_000))
        assert group.quota() == Quota(20_000)
        until(lambda: (group.cpu().throttled_periods or 0) >= 3, "the kernel to hold it back")
        # A pause of the whole machine counts as use of the running process: a second without a pause is needed.
        until(lambda: 0 < used_cores(group) <= 0.26, "a second in which it used no more than its quota")
        assert len(group.processes()) == 1
        group.set_quota(Quota(None))
        assert group.quota() == Quota(None)


def an_out_of_range_value_is_refused(tree: Tree) -> None:
    with tree.open(make("/range")) as group:
        for quota in (Quota(999), Quota(0), Quota(5000, 999), Quota(5000, 1_000_001), Quota(-1)):
            error = refused(lambda quota=quota: group.set_quota(quota), CgroupRefused)  # type: ignore[misc]
            assert "1000" in error.hint, error.hint
        assert group.quota() == Quota(None)
        group.set_quota(Quota(1000, 50_000))
        assert group.quota() == Quota(1000, 50_000)
        for weight in (0, 10_001):
            refused(lambda weight=weight: group.set_weight(weight), CgroupRefused)  # type: ignore[misc]
        group.set_weight(39)
        assert (group.weight(), group.shares()) == (39, 999)


def a_child_may_have_more_than_its_parent(tree: Tree) -> None:
    with tree.open(make("/above")) as above, tree.open(make("/above/below")) as below:
        above.set_quota(Quota(20_000))
        below.set_quota(Quota(60_000))
        assert below.quota() == Quota(60_000)


def memory_high_is_in_pages(tree: Tree) -> None:
    with tree.open(make("/high")) as group:
        assert group.memory_high() is None
        group.set_memory_high(32 * MIB + 1)
        assert group.memory_high() == 32 * MIB
        group.set_memory_high(None)
        assert group.memory_high() is None


def written_knobs_are_read_back(tree: Tree) -> None:
    with tree.open(make("/knobs")) as group:
        for value in (
            CpuWeight(group.least_weight),
            CpuWeight(100),
            MemoryHigh(64 * MIB),
            MemoryHigh(None),
            Quota(5000),
            Quota(None),
        ):
            base.write(group, value)
            assert base.read(group, values.knob_of(value)) == value
        refused(lambda: base.write(group, CpuWeight(group.least_weight - 1)), CgroupRefused)


def the_group_with_the_least_weight_gets_less_cpu(tree: Tree) -> None:
    """There is one CPU here."""
    heavy, light = make("/heavy"), make("/light")
    with tree.open(heavy) as much, tree.open(light) as little, child(heavy, BURN), child(light, BURN):
        little.set_weight(little.least_weight)
        until(lambda: min(much.cpu_usage_ns(), little.cpu_usage_ns()) > 0, "both to run")

        def yielded() -> bool:
            before = much.cpu_usage_ns(), little.cpu_usage_ns()
            until(lambda: much.cpu_usage_ns() - before[0] > 500_000_000, "half a second of the heavy one")
            return little.cpu_usage_ns() - before[1] < 150_000_000

        # A pause of the whole machine counts as use of the running process: some time without a pause is needed.
        until(yielded, "the light one to have little while the heavy one had half a second")


def a_group_above_memory_high_keeps_running(tree: Tree) -> None:
    path = make("/held")
    with tree.open(path) as group, child(path, HOLD, 8) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        group.set_memory_high(4 * MIB)
        assert group.memory().usage >= 8 * MIB, "there is no swap"
        assert holder.poll() is None


def reclaiming_more_than_the_usage_is_not_an_error(tree: Tree) -> None:
    """The kernel returns EAGAIN then. The amount is tested with version 1: files of this machine's root are charged to
    no group here."""
    path = make("/reclaim")
    with tree.open(path) as group, child(path, HOLD, 4) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        held = group.memory()
        assert 4 * MIB <= held.working_set <= held.usage, held
        assert 0 <= group.reclaim(1 << 40) <= held.usage


def a_removed_group_is_gone(tree: Tree) -> None:
    with tree.open(make("/gone")) as group:
        group.cpu()
        group.memory()
        (ROOT / "gone").rmdir()
        for reading in (group.cpu_usage_ns, group.quota, group.memory, group.processes):
            refused(reading, CgroupGone)
        refused(lambda: group.set_quota(Quota(5000)), CgroupGone)


def a_controller_that_is_not_enabled_is_reported(tree: Tree) -> None:
    make("/bare")
    (ROOT / "bare/sub").mkdir()
    with tree.open("/bare/sub") as group:
        assert group.cpu_usage_ns() >= 0, "usage is counted without the controller"
        assert group.cpu().throttled_periods is None
        error = refused(group.quota, CgroupUnsupported)
        assert "subtree_control" in error.hint
        refused(lambda: group.set_memory_high(MIB), CgroupUnsupported)


def an_ended_process_leaves_the_list(tree: Tree) -> None:
    path = make("/processes")
    with tree.open(path) as group:
        with child(path, BURN) as burning:
            assert group.processes() == (burning.pid,)
        until(lambda: group.processes() == (), "the process to be gone")


CHECKS = (
    a_quota_holds,
    layout_is_found,
    an_out_of_range_value_is_refused,
    a_child_may_have_more_than_its_parent,
    memory_high_is_in_pages,
    written_knobs_are_read_back,
    the_group_with_the_least_weight_gets_less_cpu,
    a_group_above_memory_high_keeps_running,
    reclaiming_more_than_the_usage_is_not_an_error,
    a_removed_group_is_gone,
    a_controller_that_is_not_enabled_is_reported,
    an_ended_process_leaves_the_list,
)


def main() -> None:
    results = {"controllers": (ROOT / "cgroup.controllers").read_text().split()}
    with open_tree(find_layout(str(ROOT))) as tree:
        for check in CHECKS:
            try:
                check(tree)
                results[check.__name__] = []
            except Exception:
                results[check.__name__] = traceback.format_exc().splitlines()
    print(f"\nRESULT {json.dumps(results)}", flush=True)


if __name__ == "__main__":
    try:
        main()
    finally:
        sys.stdout.flush()
        ctypes.CDLL(None).reboot(HALT)
