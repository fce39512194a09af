"""Steps in flight count until their effect is visible or their deadline passes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.decision.ledger import (
    Ledger,
    falling,
    lowered,
    pods_being_evicted,
    raised,
    rising,
    set_since,
    still_pending,
    with_steps,
)
from agent.metrics.options import DecisionOptions
from agent.model import Eviction, PodState, QuotaChange, SchedulingChange, State, Step, StepKind
from tests.agent.scenes import pod, running, state

OPTIONS = DecisionOptions(effect=30.0, grace_slack=30.0)
NOW = 1_000.0


def evict(name: str = "p", grace: float = 30.0, **released: float) -> Step:
    return Step("evict", Eviction(grace), f"default/{name}", f"uid-{name}", "m", released or {"cpu": 500.0})


def quota(name: str = "p", after: int | None = 50_000, kind: StepKind = "throttle", **released: float) -> Step:
    change = QuotaChange("main", f"{name}-main", None, after, 100_000)
    return Step(kind, change, f"default/{name}", f"uid-{name}", "m", released)


def seen(*pods: PodState, after: float = 0.0) -> State:
    return state(pods, NOW + after)


def after(ledger: Ledger, *pods: PodState, seconds: float) -> Ledger:
    return still_pending(ledger, seen(*pods, after=seconds), OPTIONS)


def test_an_evicted_pod_counts_with_its_usage_until_it_is_gone():
    ledger = with_steps((), [evict(cpu=500.0, memory=100.0)], NOW, OPTIONS)
    burning = pod("p", 0.8, memory=90)
    assert {"cpu": 800.0, "memory": 90.0} == falling(ledger, seen(burning))
    assert {"cpu": 500.0, "memory": 100.0} == falling(ledger, seen(pod("p")))
    assert {} == falling(ledger, seen(pod("other", 3.0)))
    assert frozenset({"uid-p"}) == pods_being_evicted(ledger, NOW)
    assert () == after(ledger, pod("other"), seconds=10.0)


def test_a_pod_that_outlives_its_deadline_gets_no_second_one():
    ledger = with_steps((), [evict(grace=30.0)], NOW, OPTIONS)
    stuck = pod("p", 0.5, terminating=True)
    ledger = after(ledger, stuck, seconds=60.0)
    assert {"cpu": 500.0} == falling(ledger, seen(stuck, after=60.0))
    ledger = after(ledger, stuck, seconds=61.0)
    assert {} == falling(ledger, seen(stuck, after=61.0))
    assert frozenset() == pods_being_evicted(ledger, NOW + 61.0)
    assert {} == falling(after(ledger, stuck, seconds=70.0), seen(stuck, after=70.0))


def test_an_eviction_without_effect_expires():
    ledger = with_steps((), [evict(grace=30.0)], NOW, OPTIONS)
    assert 1 == len(after(ledger, pod("p", 0.5), seconds=60.0))
    assert () == after(ledger, pod("p", 0.5), seconds=61.0)


def test_pods_deleted_by_others_count():
    leaving = pod("p", 0.5, terminating=True, grace_seconds=5.0)
    ledger = after((), leaving, seconds=0.0)
    assert {"cpu": 500.0} == falling(ledger, seen(leaving, after=35.0))
    assert {} == falling(ledger, seen(leaving, after=36.0))


def test_a_throttled_container_counts_with_its_usage_above_the_quota():
    ledger = with_steps((), [quota(cpu=500.0)], NOW, OPTIONS)
    assert {"cpu": 500.0} == falling(ledger, seen(running("p", 1.0)))
    assert {"cpu": pytest.approx(200.0)} == falling(ledger, seen(running("p", 0.7)))
    assert {"cpu": 500.0} == falling(ledger, seen(running("p", 3.0)))
    assert {"cpu": 500.0} == falling(ledger, seen(replace(running("p", 1.0), containers=running("p", None).containers)))  # type: ignore[arg-type]
    assert {"p-main": 0.5} == lowered(ledger, NOW)
    assert () == after(ledger, running("p", 0.5), seconds=10.0)
    assert 1 == len(after(ledger, running("p", 0.6), seconds=30.0))
    assert () == after(ledger, running("p", 0.6), seconds=31.0)
    assert () == after(ledger, pod("p"), seconds=1.0)
    assert {} == rising(ledger, seen(running("p", 0.1)))


def test_extended_cpu_falls_with_cpu():
    ledger = with_steps((), [quota(cpu=500.0, extended_cpu=500.0)], NOW, OPTIONS)
    falls = falling(ledger, seen(running("p", 0.6)))
    assert {"cpu": pytest.approx(100.0), "extended_cpu": pytest.approx(100.0)} == falls


def test_a_restored_amount_counts_until_it_is_used():
    ledger = with_steps((), [quota(after=80_000, kind="restore", cpu=300.0)], NOW, OPTIONS)
    assert {"cpu": 300.0} == rising(ledger, seen(running("p", 0.5)))
    assert {"cpu": pytest.approx(100.0)} == rising(ledger, seen(running("p", 0.7)))
    assert {} == falling(ledger, seen(running("p", 0.7)))
    assert frozenset({"p-main"}) == raised(ledger, NOW)
    assert () == after(ledger, running("p", 0.8), seconds=10.0)
    unlimited = with_steps((), [quota(after=None, kind="restore", cpu=300.0)], NOW, OPTIONS)
    assert {"cpu": 300.0} == rising(unlimited, seen(running("p", 0.7)))


def test_a_container_that_is_gone_has_no_pending_increase():
    ledger = with_steps((), [quota(after=80_000, kind="restore", cpu=300.0)], NOW, OPTIONS)
    assert {"cpu": 0.0} == rising(ledger, seen(pod("p")))
    assert () == after(ledger, pod("p"), seconds=1.0)


def test_a_restore_without_a_known_increase_is_not_awaited():
    ledger = with_steps((), [quota(after=80_000, kind="restore")], NOW, OPTIONS)
    assert () == after(ledger, running("p", 0.5), seconds=1.0)


def test_a_later_step_replaces_an_earlier_one():
    ledger = with_steps((), [quota(after=50_000, cpu=500.0)], NOW, OPTIONS)
    ledger = with_steps(
        ledger,
        [quota(after=40_000, cpu=100.0), Step("scheduling", SchedulingChange(disable=True), reason="")],
        NOW + 10.0,
        OPTIONS,
    )
    assert {"p-main": 0.4} == lowered(ledger, NOW + 40.0)
    assert 1 == len(ledger)


def test_a_clock_set_back_prolongs_no_deadline():
    ledger = with_steps((), [evict(grace=30.0)], NOW, OPTIONS)
    ledger = after(ledger, pod("p", 0.5, terminating=True), seconds=-5_000.0)
    assert {"cpu": 500.0} == falling(ledger, seen(pod("p", 0.5), after=-5_000.0 + 60.0))
    assert {} == falling(ledger, seen(pod("p", 0.5), after=-5_000.0 + 61.0))


def test_a_step_up_to_one_second_before_a_reading_belongs_to_its_cycle():
    ledger = with_steps((), [quota(cpu=500.0), evict("q")], NOW, OPTIONS)
    found = [set_since(ledger, NOW + late) for late in (-5.0, 1.0, 1.5)]
    assert [frozenset({"p-main"}), frozenset({"p-main"}), frozenset()] == found
