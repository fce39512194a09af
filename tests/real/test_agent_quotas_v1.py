"""The executor on the kernel's own control groups: changes are applied, and restored."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.audit.log import Audit
from agent.cgroups.base import Tree
from agent.cgroups.detection import KubeletGroups, Layout, Version, find_layout, open_tree
from agent.cgroups.paths import Driver
from agent.cgroups.values import Quota
from agent.clocks import Clocks
from agent.decision.plan import Plan
from agent.executor.executor import Executor, Permissions
from agent.executor.knob_writer import KnobWriter
from agent.executor.report import PlanReport, StepOutcome
from agent.model import State, Step
from tests.agent.executor.node import always, restore, throttle
from tests.real.cgroups import BUSY, ROOT, Groups, need_cgroup_v1
from tests.waiting import wait_for

pytestmark = [pytest.mark.real, pytest.mark.cgroup_v1]


@pytest.fixture(scope="module")
def groups() -> Iterator[Groups]:
    need_cgroup_v1()
    with Groups() as groups:
        yield groups


@pytest.fixture(scope="module")
def layout(groups: Groups) -> Layout:
    """The layout of a kubelet whose groups are below that of the test."""
    return Layout(str(ROOT), find_layout(str(ROOT)).version, Driver.CGROUPFS, nest=groups.name)


@pytest.fixture(scope="module")
def tree(layout: Layout) -> Iterator[Tree]:
    assert layout.version in (Version.V1, Version.HYBRID)
    with open_tree(layout) as tree:
        yield tree


@pytest.fixture
def audit(tmp_path: Path) -> Iterator[Audit]:
    audit = Audit.open(tmp_path / "agent.db", now=0.0)
    yield audit
    audit.close()


def container(groups: Groups, number: int) -> str:
    """The group of the container c<number>; created if it does not exist."""
    return groups.make(f"kubepods/besteffort/poduid-{number}/c{number}")


def carried_out(audit: Audit, layout: Layout, tree: Tree, *steps: Step) -> PlanReport:
    """The outcomes of these steps on the machine's control groups."""
    executor = Executor(
        audit,
        KubeletGroups(lambda: layout),
        permissions=Permissions(enforce=True, beside_others=True),
        clocks=Clocks(wall=lambda: 0.0),
    )
    return asyncio.run(executor.run(Plan(0.0, steps), state=State(0.0), cycle=1, needed=always))


def quota(tree: Tree, path: str) -> Quota:
    with tree.open(path) as group:
        return group.quota()


def test_a_quota_is_lowered_and_restored_exactly(groups: Groups, layout: Layout, tree: Tree, audit: Audit):
    path = container(groups, 0)
    groups.run("kubepods/besteffort/poduid-0/c0", BUSY, 0.5)
    assert [StepOutcome.DONE] == [
        each.fate for each in carried_out(audit, layout, tree, throttle(0, after=20_000)).results
    ]
    with tree.open(path) as group:
        wait_for(lambda: (group.cpu().throttled_periods or 0) >= 3, what="the kernel to hold it back")
    steps = (restore(0, before=20_000, after=60_000), restore(0, before=60_000, after=None))
    assert [StepOutcome.DONE] * 2 == [each.fate for each in carried_out(audit, layout, tree, *steps).results]
    assert Quota(None) == quota(tree, path)
    assert not audit.count_originals()


def test_a_step_that_the_kernel_refuses_affects_no_other_and_needs_no_restore(
    groups: Groups, layout: Layout, tree: Tree, audit: Audit
):
    """A quota below 1000 µs is EINVAL."""
    paths = [container(groups, number) for number in (1, 2)]
    report = carried_out(audit, layout, tree, throttle(1, after=999), throttle(2, after=30_000))
    assert [StepOutcome.FAILED, StepOutcome.DONE] == [each.fate for each in report.results]
    assert "the kernel rejects the value" in report.results[0].text
    assert [Quota(None), Quota(30_000)] == [quota(tree, path) for path in paths]
    assert {"c2"} == set(audit.original_quotas())
    KnobWriter(audit, KubeletGroups(lambda: layout), clock=lambda: 0.0).restore_all(reason="the end")
    assert Quota(None) == quota(tree, paths[1])


KILLED = """
import os, signal, sys
from pathlib import Path
from agent.audit.log import Audit
from agent.audit.log import AuditEntry
from agent.cgroups.paths import Driver
from agent.cgroups.detection import Layout, open_tree
from agent.cgroups.detection import Version
from agent.cgroups.detection import KubeletGroups
from agent.executor.knob_writer import KnobWriter
from tests.agent.executor.node import throttle

file, root, version, nest = sys.argv[1:]

def tell(deed):
    if deed.outcome == "done" and deed.container_id == "c4":
        os.kill(os.getpid(), signal.SIGKILL)

layout = Layout(root, Version(version), Driver.CGROUPFS, nest=nest)
tree = open_tree(layout)
audit = Audit.open(Path(file), now=0.0, tell=tell)
quotas = KnobWriter(audit, KubeletGroups(lambda: layout), clock=lambda: 0.0)
for number in (3, 4, 5):
    step = throttle(number, before=70_000)
    entry = AuditEntry(time=0.0, kind="throttle", pod=step.pod, uid=step.uid, container_id=step.change.container_id)
    quotas.apply(step, entry)
"""


def test_after_a_kill_the_quotas_are_restored(groups: Groups, layout: Layout, tree: Tree, tmp_path: Path):
    paths = [container(groups, number) for number in (3, 4, 5)]
    for path in paths:
        with tree.open(path) as group:
            group.set_quota(Quota(70_000))
    file = tmp_path / "agent.db"
    command = [sys.executable, "-c", KILLED, str(file), layout.root, layout.version.value, layout.nest]
    run = subprocess.run(command, cwd=os.getcwd(), timeout=60, capture_output=True, text=True)
    assert -signal.SIGKILL == run.returncode, run.stderr
    assert [Quota(50_000), Quota(50_000), Quota(70_000)] == [quota(tree, path) for path in paths]
    audit = Audit.open(file, now=0.0)
    KnobWriter(audit, KubeletGroups(lambda: layout), clock=lambda: 0.0).restore_all(reason="a new start")
    assert [Quota(70_000)] * 3 == [quota(tree, path) for path in paths]
    assert not audit.count_originals()
    audit.close()
