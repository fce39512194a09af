"""cpu.weight and memory.high of pods: recorded before a change, and restored unless another program changed them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agent.audit.log import AuditEntry
from agent.cgroups.paths import Driver
from agent.cgroups.values import CpuWeight, MemoryHigh
from agent.executor.report import StepOutcome
from agent.model import CPU_WEIGHT, MEMORY_HIGH, GentleKnob, KnobChange, Knobs, PodKnobs, Step, StepKind
from agent.service.main import in_words
from tests.agent.executor.node import FakeNode, events, fates, restore, step_on, throttle, with_api
from tests.fakes.kube import FakeKube

MIB = 1 << 20
UNLIMITED = float("inf")


@pytest.fixture
def node(local_node: FakeNode) -> FakeNode:
    local_node.add(0, 1)
    return local_node


def turn(knob: GentleKnob, before: int | None, after: int | None, *, number: int = 0, back: bool = False) -> Step:
    kind: StepKind = "restore" if back else "throttle" if knob == CPU_WEIGHT else "hold"
    released = {} if back else {"cpu": 500.0}
    change = KnobChange(knob, before, after)
    return step_on(kind, change, number, metric="a_metric", released=released, reason="something is short")


LOWER, HOLD = turn(CPU_WEIGHT, 100, 1), turn(MEMORY_HIGH, None, 64 * MIB)


def has(node: FakeNode, knob: str, number: int = 0) -> str:
    return node.cgroups.read(node.cgroups.pod_path(f"uid-{number}"), knob).strip()


def knobs(node: FakeNode, *, wanted: bool = True) -> Knobs:
    return node.acting(lambda executor: executor.knobs(node.state(), wanted=wanted))


def test_both_knobs_are_set_and_restored_exactly(node: FakeNode):
    assert [StepOutcome.DONE, StepOutcome.DONE] == fates(node.run(LOWER, HOLD))
    assert ("1", str(64 * MIB)) == (has(node, CPU_WEIGHT), has(node, MEMORY_HIGH))
    assert {} == node.audit.original_quotas()  # which are quotas
    assert {"uid-0/cpu.weight": CpuWeight(100), "uid-0/memory.high": MemoryHigh(None)} == {
        key: each.original for key, each in node.audit.originals_by_key().items()
    }
    again = turn(MEMORY_HIGH, 64 * MIB, 63 * MIB)
    assert [StepOutcome.DONE] == fates(node.run(again))
    back = turn(CPU_WEIGHT, 1, 100, back=True), turn(MEMORY_HIGH, 63 * MIB, None, back=True)
    report = node.run(*back)
    assert ["its cpu.weight is 100, the original value", "its memory.high is unlimited, the original value"] == [
        each.text for each in report.results
    ]
    assert ("100", "max") == (has(node, CPU_WEIGHT), has(node, MEMORY_HIGH))
    assert not node.audit.originals_by_key()


def test_each_change_is_recorded_before_the_write(node: FakeNode):
    seen: list[tuple[str, str]] = []

    def listen(deed: AuditEntry) -> None:
        seen.append((deed.outcome.value, has(node, CPU_WEIGHT)))

    node.listen = listen
    node.run(LOWER)
    assert [("begun", "100"), ("done", "1")] == seen
    (deed,) = node.deeds()
    assert ({"cpu.weight": 100}, {"cpu.weight": 1}, "throttle") == (deed.before, deed.after, deed.kind)
    assert ({"cpu": 500.0}, {"cpu": 1000.0, "memory": 1e9}) == (deed.planned, deed.used)


def test_originals_of_quotas_and_knobs_of_a_pod_are_independent(node: FakeNode):
    node.run(LOWER, HOLD, throttle(0))
    assert 3 == node.audit.count_originals()
    node.run(restore(0))
    assert {"uid-0/cpu.weight", "uid-0/memory.high"} == set(node.audit.originals_by_key())


@pytest.mark.parametrize(("knob", "text"), [(CPU_WEIGHT, "7"), (MEMORY_HIGH, str(3 * MIB))])
def test_a_knob_set_by_another_program_stays(node: FakeNode, knob: GentleKnob, text: str):
    """An in-place resize writes weights, for example."""
    node.run(LOWER, HOLD)
    path = node.cgroups.pod_path("uid-0")
    node.cgroups.write(path, knob, text)
    found = node.acting(lambda executor: executor.restore_all(reason="a test"))
    fate = {each.remembered.knob: each.fate for each in found}
    assert {CPU_WEIGHT: StepOutcome.DONE, MEMORY_HIGH: StepOutcome.DONE, knob: StepOutcome.FOREIGN} == fate
    assert text == has(node, knob)
    assert not node.audit.originals_by_key()


def test_a_knob_raised_by_another_program_needs_no_restore(node: FakeNode):
    node.run(LOWER)
    node.cgroups.write(node.cgroups.pod_path("uid-0"), CPU_WEIGHT, "300")
    node.now += 10.0
    node.acting(lambda executor: executor.measure_effects(node.state()))
    assert not node.audit.originals_by_key()
    assert "300" == has(node, CPU_WEIGHT)


def test_a_step_from_an_outdated_value_is_not_carried_out(node: FakeNode):
    report = node.run(turn(CPU_WEIGHT, 50, 1))
    assert [(StepOutcome.FOREIGN, "its cpu.weight is 100 now, not 50")] == [
        (each.fate, each.text) for each in report.results
    ]


def test_a_removed_pod_needs_no_restore(node: FakeNode):
    node.run(LOWER, turn(CPU_WEIGHT, 100, 1, number=1))
    node.cgroups.remove(node.cgroups.pod_path("uid-0"))
    assert [StepOutcome.GONE] == fates(node.run(turn(CPU_WEIGHT, 1, 100, back=True)))
    node.cgroups.remove(node.cgroups.pod_path("uid-1"))
    del node.pods[1]
    node.acting(lambda executor: executor.measure_effects(node.state()))
    assert not node.audit.originals_by_key()


def test_a_finished_pod_needs_no_restore_although_it_is_listed(node: FakeNode):
    node.run(LOWER, turn(CPU_WEIGHT, 100, 1, number=1))
    for number in (0, 1):  # the containers of the other pod are restarting
        node.pods[number] = replace(node.pods[number], containers=())
    node.cgroups.remove(node.cgroups.pod_path("uid-0"))
    node.acting(lambda executor: executor.measure_effects(node.state()))
    assert {"uid-1/cpu.weight"} == set(node.audit.originals_by_key())


def test_an_interrupted_change_is_restored_by_the_next_start(node: FakeNode):
    """As after `kill -9` between the write to the group and the write to the audit."""
    deed = AuditEntry(time=0.0, kind="throttle", pod="shop/p0", uid="uid-0")
    path = node.cgroups.pod_path("uid-0")
    node.audit.begin_change(deed, path=path, found=CpuWeight(100), intended=CpuWeight(1))
    node.cgroups.write(path, CPU_WEIGHT, "1")
    node.audit.close()
    node.audit = node.open_audit()
    (found,) = node.acting(lambda executor: executor.restore_all(reason="a test"))
    assert "shop/p0: its cpu.weight is 100, the original value" == in_words(found)
    assert "100" == has(node, CPU_WEIGHT)


def test_preview_changes_no_knob_and_reports_the_step(node: FakeNode):
    report = node.run(LOWER, HOLD, enforce=False)
    assert ["would set cpu.weight of shop/p0 to 1", f"would set memory.high of shop/p0 to {64 * MIB}"] == [
        each.text for each in report.results
    ]
    assert ("100", "max") == (has(node, CPU_WEIGHT), has(node, MEMORY_HIGH))


def test_knobs_are_read_only_if_wanted_or_to_be_restored(node: FakeNode):
    assert {} == knobs(node, wanted=False)
    assert {"uid-0": PodKnobs(100, 1, UNLIMITED), "uid-1": PodKnobs(100, 1, UNLIMITED)} == knobs(node)
    node.run(LOWER, HOLD)
    assert PodKnobs(1, 1, 64.0 * MIB, 100, UNLIMITED) == knobs(node, wanted=False)["uid-0"]
    node.cgroups.write(node.cgroups.pod_path("uid-1"), CPU_WEIGHT, "heavy")
    assert PodKnobs(None, 1, UNLIMITED) == knobs(node)["uid-1"]
    node.cgroups.remove(node.cgroups.pod_path("uid-1"))
    assert PodKnobs() == knobs(node)["uid-1"]


def test_version_1_has_weights_but_not_memory_high(tmp_path: Path):
    node = FakeNode(tmp_path, version="v1", driver=Driver.CGROUPFS)
    node.add(0)
    assert {"uid-0": PodKnobs(1024, 2, None)} == knobs(node)
    assert [StepOutcome.DONE] == fates(node.run(turn(CPU_WEIGHT, 1024, 2)))
    assert "2" == has(node, "cpu.shares")
    node.acting(lambda executor: executor.restore_all(reason="a test"))
    assert "1024" == has(node, "cpu.shares")
    node.close()


def test_the_first_and_the_last_change_are_events(tmp_path: Path):
    with FakeKube() as server:
        node = with_api(tmp_path, server)
        node.add(0)
        node.run(LOWER, HOLD, turn(MEMORY_HIGH, 64 * MIB, 63 * MIB))
        node.run(turn(CPU_WEIGHT, 1, 100, back=True), turn(MEMORY_HIGH, 63 * MIB, None, back=True))
        reasons = ["CpuWeightLowered", "MemoryHeldBack", "CpuWeightRestored", "MemoryRestored"]
        assert [("Pod", "p0", reason) for reason in reasons] == events(server)
        node.close()
