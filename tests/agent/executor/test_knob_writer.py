"""KnobWriter: original values are recorded before a change, and restored unless another program changed them."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent.audit.log import AuditEntry, AuditOutcome
from agent.cgroups.base import Group
from agent.cgroups.detection import KubeletGroups
from agent.cgroups.errors import CgroupRefused
from agent.cgroups.paths import Driver
from agent.cgroups.values import Quota
from agent.executor.executor import Executor
from agent.executor.knob_writer import KnobWriter
from agent.executor.report import EnforcementLevel, StepOutcome
from agent.model import PODS, QuotaChange, State, Step
from tests.agent.executor.node import FakeNode, fates, restore, throttle
from tests.fakes.cgroups import FakeCgroups


@pytest.fixture(params=[("v2", Driver.SYSTEMD), ("v1", Driver.CGROUPFS)], ids=["v2", "v1"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FakeNode]:
    version, driver = request.param
    node = FakeNode(tmp_path, version=version, driver=driver)
    yield node
    node.close()


def test_a_quota_is_set_and_restored_exactly(node: FakeNode):
    node.add(0, 1, quota=150_000)
    report = node.run(throttle(0, before=150_000, after=40_000), throttle(1, before=150_000, after=30_000))
    assert (EnforcementLevel.THROTTLE_ONLY, "no Kubernetes API is configured") == (report.level, report.why)
    assert [StepOutcome.DONE, StepOutcome.DONE] == fates(report)
    assert ("40000 100000", "30000 100000") == (node.quota(0), node.quota(1))
    assert {"c0", "c1"} == set(node.audit.original_quotas())
    assert [StepOutcome.DONE] == fates(node.run(restore(0, before=40_000, after=80_000)))
    assert {"c0", "c1"} == set(node.audit.original_quotas())
    assert [StepOutcome.DONE] == fates(node.run(restore(0, before=80_000, after=150_000)))
    assert ("150000 100000", {"c1"}) == (node.quota(0), set(node.audit.original_quotas()))


def burst(node: FakeNode, microseconds: int | None = None) -> int:
    """Set the burst of the first container, and return it."""
    name = "cpu.max.burst" if node.version == "v2" else "cpu.cfs_burst_us"
    if microseconds is not None:
        node.cgroups.write(node.path(0), name, f"{microseconds}\n")
    return int(node.cgroups.read(node.path(0), name))


def test_a_burst_is_lowered_and_restored_with_its_quota(node: FakeNode):
    """The kernel refuses a burst above the quota (tests/real/test_cgroups_v1.py)."""
    node.add(0, quota=150_000)
    burst(node, 60_000)
    seen = []
    for before, after in ((150_000, 90_000), (90_000, 30_000), (30_000, 10_000)):
        assert [StepOutcome.DONE] == fates(node.run(throttle(0, before=before, after=after)))
        seen.append((node.quota(0), burst(node)))
    assert seen == [("90000 100000", 60_000), ("30000 100000", 30_000), ("10000 100000", 10_000)]
    assert [StepOutcome.DONE] == fates(node.run(restore(0, before=10_000, after=40_000)))
    assert (node.quota(0), burst(node)) == ("40000 100000", 40_000)
    assert {"c0"} == set(node.audit.original_quotas())
    assert [StepOutcome.DONE] == fates(node.run(restore(0, before=40_000, after=150_000)))
    assert (node.quota(0), burst(node)) == ("150000 100000", 60_000)
    assert not node.audit.original_quotas()


@pytest.mark.parametrize("cut_short", [False, True])
def test_restoring_all_values_restores_bursts(node: FakeNode, cut_short: bool):
    node.add(0, quota=150_000)
    burst(node, 60_000)
    node.run(throttle(0, before=150_000, after=20_000))
    if cut_short:  # between the writes of quota and burst
        node.set_quota(150_000)
    (result,) = KnobWriter(node.audit, node.groups(), clock=lambda: 0.0).restore_all(reason="the agent stops")
    assert result.fate is StepOutcome.DONE
    assert (node.quota(0), burst(node)) == ("150000 100000", 60_000)
    assert not node.audit.original_quotas()


def test_each_change_is_recorded_before_the_write(node: FakeNode):
    """The entry is reported as begun while the group has the old quota."""
    node.add(0)
    seen: list[tuple[str, str]] = []
    node.listen = lambda deed: seen.append((deed.outcome.value, node.quota()))
    node.run(throttle(before=None, after=50_000))
    assert [("begun", "max 100000"), ("done", "50000 100000")] == seen
    (deed,) = node.deeds()
    assert ("throttle", "shop/p0", "c0", "cpu_total_usage", "cpu is short", 1) == (
        deed.kind,
        deed.pod,
        deed.container_id,
        deed.metric,
        deed.reason,
        deed.cycle,
    )
    assert ({"cpu": 500.0}, {"cpu": 1000.0, "memory": 1e9}) == (deed.planned, deed.used)
    quotas = ({"quota": None, "period": 100_000}, {"quota": 50_000, "period": 100_000})
    assert quotas == (deed.before, deed.after)


def test_a_value_changed_since_the_plan_is_left_unchanged(node: FakeNode):
    node.add(0, 1)
    node.set_quota(70_000, 0)
    report = node.run(throttle(0, before=None, after=50_000), throttle(1))
    assert [StepOutcome.FOREIGN, StepOutcome.DONE] == fates(report)
    assert "its quota is 70000 of 100000 µs now, not unlimited" == report.results[0].text
    assert ("70000 100000", "50000 100000") == (node.quota(0), node.quota(1))
    assert {"uid-0"} == set(report.unavailable)


def test_a_quota_set_by_another_program_is_not_restored(node: FakeNode):
    """As an in-place resize does. It is in the audit, and no original value is left."""
    node.add(0, quota=150_000)
    node.run(throttle(before=150_000, after=50_000))
    node.set_quota(200_000)
    assert [StepOutcome.FOREIGN] == fates(node.run(restore(before=50_000, after=150_000)))
    assert "200000 100000" == node.quota()
    assert not node.audit.original_quotas()
    assert ["done", "foreign"] == [each.outcome for each in node.deeds()]


def test_a_quota_set_by_another_program_is_the_original_of_the_next_throttling(node: FakeNode):
    node.add(0, quota=150_000)
    node.run(throttle(before=150_000, after=50_000))
    node.set_quota(200_000)
    assert [StepOutcome.DONE] == fates(node.run(throttle(before=200_000, after=90_000)))
    node.acting(lambda executor: executor.restore_all(reason="a test"))
    assert "200000 100000" == node.quota()


def test_an_ended_container_does_not_affect_others(node: FakeNode):
    node.add(0, 1, 2)
    node.cgroups.remove(node.path(0))
    node.cgroups.remove(node.cgroups.pod_path("uid-1"))
    report = node.run(throttle(0), throttle(1), throttle(2))
    assert [StepOutcome.GONE, StepOutcome.GONE, StepOutcome.DONE] == fates(report)
    assert (throttle(2),) == report.booked
    node.cgroups.remove(node.path(2))
    assert [StepOutcome.GONE] == fates(node.run(restore(2)))
    assert not node.audit.original_quotas()


class Interrupting(KubeletGroups):
    """The groups of a node on which the write of a quota is interrupted: before it, or after it."""

    def __init__(self, node: FakeNode, error: BaseException, *, written: bool) -> None:
        super().__init__(node.layout, node.tree)
        self._error = error
        self._written = written

    def open(self, path: str) -> Group:
        group = super().open(path)
        write = group.set_quota

        def set_quota(quota: Quota) -> None:
            if self._written:
                write(quota)
            raise self._error

        class Interrupted(type(group)):  # type: ignore[misc]  # whatever it is
            __slots__ = ()

            def set_quota(self, quota: Quota) -> None:
                set_quota(quota)

        group.__class__ = Interrupted
        return group


def test_a_refused_quota_is_reported_and_needs_no_restore(node: FakeNode):
    node.add(0)
    groups = Interrupting(node, CgroupRefused("no", path="cpu.max", hint="Try more."), written=False)
    changed = KnobWriter(node.audit, groups, clock=lambda: 0.0).apply(throttle(), deed_of(throttle()))
    assert (StepOutcome.FAILED, "cpu.max: no. Try more.") == (changed.result.fate, changed.result.text)
    assert not node.audit.original_quotas()
    assert [AuditOutcome.FAILED] == [each.outcome for each in node.deeds()]


def test_an_invalid_file_fails_only_its_own_step(node: FakeNode):
    node.add(0, 1)
    name = "cpu.max" if node.version == "v2" else "cpu.cfs_quota_us"
    node.cgroups.write(node.path(0), name, "garbage\n")
    report = node.run(throttle(0), throttle(1))
    assert [StepOutcome.FAILED, StepOutcome.DONE] == fates(report)
    assert "garbage" in report.results[0].text
    assert {"c1"} == set(node.audit.original_quotas())


def test_originals_of_ended_containers_are_deleted(node: FakeNode):
    node.add(0, 1)
    node.run(throttle(0), throttle(1))
    node.cgroups.remove(node.path(0))
    del node.pods[0], node.pods[1]
    node.acting(lambda executor: executor.measure_effects(node.state()))
    assert {"c1"} == set(node.audit.original_quotas())  # its control group still exists, so the container may, too


def test_a_container_in_a_group_of_another_driver_is_restored_there(tmp_path: Path):
    """As after a change of the kubelet's driver: most pods have new groups, this one runs in its old group."""
    node = FakeNode(tmp_path, driver=Driver.CGROUPFS)
    node.add(0)
    node.run(throttle(0))
    systemd = FakeCgroups(node.directory / "other", "v2", Driver.SYSTEMD)
    for number in range(3):
        node.cgroups.add(systemd.pod_path(f"0000000{number}-0000-4000-8000-000000000000"))
    assert [StepOutcome.DONE] == fates(node.run(restore(0)))
    assert ("max 100000", {}) == (node.quota(), dict(node.audit.original_quotas()))
    node.close()


@pytest.mark.parametrize("listed", [True, False], ids=["without containers", "not listed"])
def test_values_of_unlisted_containers_are_restored_after_a_minute(node: FakeNode, listed: bool, caplog):
    """The kubelet lists the pod without its containers, or has other groups now, so no step can name the container."""
    node.add(0, 1)
    node.run(throttle(0), throttle(1))
    if listed:
        node.pods[0] = replace(node.pods[0], containers=())
    else:
        del node.pods[0]
    start = node.now

    async def act(executor: Executor) -> list[str]:
        found = []
        for seconds in (0.0, 50.0, 61.0, 71.0):
            node.now = start + seconds
            missing = {PODS: "the kubelet does not respond"} if seconds == 50.0 else {}
            await executor.measure_effects(replace(node.state(), missing=missing))
            found.append(node.quota().split()[0])
        return found

    lowered = node.quota().split()[0]
    assert [lowered, lowered, "max", "max"] == node.acting(act)
    assert lowered == node.quota(1).split()[0], "a plan restores what is listed"
    assert {"c1"} == set(node.audit.original_quotas())
    assert 1 == sum("has not been listed for a minute" in each for each in caplog.messages)


# --- restoring all values --------------------------------------------------------------------------------------------


def test_all_values_are_restored_on_request(node: FakeNode):
    node.add(0, 1, 2, 3)
    node.run(*(throttle(number) for number in range(4)))
    node.set_quota(None, 1)
    node.set_quota(77_000, 2)
    node.cgroups.remove(node.path(3))
    found = node.acting(lambda executor: executor.restore_all(reason="a test"))
    assert {"c0": StepOutcome.DONE, "c1": StepOutcome.DONE, "c2": StepOutcome.FOREIGN, "c3": StepOutcome.GONE} == {
        each.remembered.container_id: each.fate for each in found
    }
    assert ("max 100000", "max 100000", "77000 100000") == (node.quota(0), node.quota(1), node.quota(2))
    assert not node.audit.original_quotas()
    assert ["restore", "restore"] == [each.kind for each in node.deeds()[4:]]


def test_restoring_hundreds_of_values_syncs_the_disk_twice(node: FakeNode):
    """Once for all begun entries and once for all results: a process has ten seconds to shut down."""
    numbers = range(20)
    node.add(*numbers)
    with node.audit.batch():
        for number in numbers:
            step = throttle(number)
            begun = node.audit.begin_change(
                deed_of(step), path=node.path(number), found=Quota(None), intended=Quota(50_000)
            )
            node.set_quota(50_000, number)
            node.audit.finish_change(begun, AuditOutcome.DONE, now=0.0, written=Quota(50_000))
    reported: list[tuple[str, int]] = []
    node.listen = lambda deed: reported.append(
        (deed.outcome.value, sum(node.quota(n) == "max 100000" for n in numbers))
    )
    node.acting(lambda executor: executor.restore_all(reason="a test"))
    assert [("begun", 0)] * 20 + [("done", 20)] * 20 == reported
    assert not node.audit.original_quotas()


def test_a_failed_restore_keeps_the_original(node: FakeNode):
    node.add(0, 1)
    node.run(throttle(0), throttle(1))
    name = "cpu.max" if node.version == "v2" else "cpu.cfs_quota_us"
    node.cgroups.write(node.path(0), name, "garbage\n")
    found = node.acting(lambda executor: executor.restore_all(reason="a test"))
    assert [StepOutcome.DONE, StepOutcome.FAILED] == sorted(each.fate for each in found)
    assert {"c0"} == set(node.audit.original_quotas())


# --- crashes ---------------------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from pathlib import Path
from agent.audit.log import Audit
from agent.cgroups.detection import find_layout, open_tree
from agent.cgroups.detection import KubeletGroups
from agent.executor.knob_writer import KnobWriter
from agent.audit.log import AuditEntry
from tests.agent.executor.node import throttle

directory, when = Path(sys.argv[1]), sys.argv[2]

def tell(deed):
    # The entry of the third container, just before the write, or just after it.
    if deed.outcome == when and deed.container_id == "c2":
        os.kill(os.getpid(), signal.SIGKILL)

layout = find_layout(str(directory / "cgroup"))
tree = open_tree(layout)
audit = Audit.open(directory / "agent.db", now=0.0, tell=tell)
quotas = KnobWriter(audit, KubeletGroups(lambda: layout), clock=lambda: 0.0)
for number in range(4):
    step = throttle(number)
    entry = AuditEntry(time=0.0, kind="throttle", pod=step.pod, uid=step.uid, container_id=f"c{number}")
    quotas.apply(step, entry)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("when", "throttled"), [("begun", [0, 1]), ("done", [0, 1, 2])])
def test_originals_are_restored_by_the_next_start_after_a_kill(node: FakeNode, when: str, throttled: list[int]):
    node.add(0, 1, 2, 3)
    node.audit.close()
    run = subprocess.run(
        [sys.executable, "-c", KILLED, str(node.directory), when],
        cwd=Path.cwd(),
        timeout=60,
        capture_output=True,
        text=True,
    )
    assert -signal.SIGKILL == run.returncode, run.stderr
    assert throttled == [number for number in range(4) if node.quota(number) == "50000 100000"]
    node.audit = node.open_audit()
    assert {"c0", "c1", "c2"} == set(node.audit.original_quotas())
    found = node.acting(lambda executor: executor.restore_all(reason="the agent was killed"))
    assert [StepOutcome.DONE] * 3 == [each.fate for each in found]
    assert ["max 100000"] * 4 == [node.quota(number) for number in range(4)]


class Died(BaseException):
    """Stands for the end of the process."""


DEATHS = ["dies before writing", "dies after writing", "dies when done"]
ACTS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["throttle", *DEATHS]), st.integers(2, 9)),
        st.tuples(st.just("restore"), st.just(0)),
        st.tuples(st.just("foreign"), st.integers(11, 19)),
        st.tuples(st.just("restart"), st.just(0)),
    ),
    max_size=8,
)


def carried_out(node: FakeNode, act: str, value: int) -> None:
    """Carry out one step, during which the process may end."""
    found = node.quota().split()[0]
    before = None if found == "max" else int(found)
    original = node.audit.original_quotas().get("c0")
    step = throttle(before=before, after=value * 10_000)
    if act == "restore":
        step = restore(before=before, after=original.quota if original else before)
    groups = node.groups()
    if act in DEATHS[:2]:
        groups = Interrupting(node, Died(), written=act == "dies after writing")

    def tell(deed: AuditEntry) -> None:
        if act == "dies when done" and deed.outcome is AuditOutcome.DONE:
            raise Died

    node.listen = tell
    try:
        KnobWriter(node.audit, groups, clock=lambda: 0.0).apply(step, deed_of(step))
    except Died:
        node.audit.close()
        node.audit = node.open_audit()
    finally:
        node.listen = lambda _: None


MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None  # where a disk sync takes no time


@pytest.mark.slow
@settings(max_examples=60)
@given(ACTS)
@example([("dies after writing", 2), ("dies before writing", 3)])
@example([("throttle", 2), ("foreign", 11), ("dies before writing", 3), ("restore", 0)])
def test_the_last_quota_is_the_original_or_that_of_another_program(acts: list[tuple[str, int]]):
    """After any sequence of throttling, restoring, ends of the process, and writes of other programs."""
    with TemporaryDirectory(dir=MEMORY) as directory:
        node = FakeNode(Path(directory))
        node.add(0)
        theirs = "max 100000"
        for act, value in acts:
            if act == "foreign":
                node.set_quota(value * 10_000)
                theirs = node.quota()
            elif act == "restart":
                node.audit.close()
                node.audit = node.open_audit()
            else:
                carried_out(node, act, value)
        KnobWriter(node.audit, node.groups(), clock=lambda: 0.0).restore_all(reason="the end")
        assert theirs == node.quota()
        assert not node.audit.original_quotas()
        node.close()


def deed_of(step: Step) -> AuditEntry:
    assert isinstance(step.change, QuotaChange)
    return AuditEntry(time=0.0, kind=step.kind, pod=step.pod, uid=step.uid, container_id=step.change.container_id)


def test_containers_are_not_gone_if_the_tree_has_no_kubelet_groups(node: FakeNode):
    """The host's tree is not mounted: originals must not be lost until it is."""
    node.add(0)
    node.run(throttle(0))
    kubepods = [path for path in sorted((node.directory / "cgroup").rglob("kubepods*")) if path.is_dir()]
    tops = [path for path in kubepods if not any(other in path.parents for other in kubepods)]
    for top in tops:
        top.rename(top.with_name("elsewhere"))
    (put_back,) = node.acting(lambda executor: executor.restore_all(reason="the end"))
    assert (StepOutcome.FAILED, True) == (put_back.fate, "no kubelet groups found" in put_back.text)
    assert [StepOutcome.FAILED] == fates(node.run(restore(0)))
    node.acting(lambda executor: executor.measure_effects(State(node.now)))
    assert {"c0"} == set(node.audit.original_quotas())
    for top in tops:
        top.with_name("elsewhere").rename(top)
    (put_back,) = node.acting(lambda executor: executor.restore_all(reason="the end"))
    assert (StepOutcome.DONE, "max 100000") == (put_back.fate, node.quota())
