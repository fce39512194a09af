"""The planner: from the demand of the policies to steps on no more pods than needed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from agent.decision.analysis import Analysis, AnalyzerState, Demand, RuleState
from agent.decision.analyzer import analyze
from agent.decision.eviction_limits import Budget, EvictionLimits, EvictionRecord
from agent.decision.ledger import still_pending, with_steps
from agent.decision.plan import Mode, Plan, PodLeftAlone
from agent.decision.plan_inputs import PlanInputs
from agent.decision.planner import plan, still_needed
from agent.decision.restoring import LoweredValues
from agent.metrics.action_metric import ActionMetric, PodSteps, eviction
from agent.metrics.options import DecisionOptions
from agent.metrics.registry import Metrics
from agent.metrics.trigger_only import triggering
from agent.model import (
    CRITICAL_PRIORITY,
    AvoidanceAction,
    ContainerState,
    CpuThrottle,
    Eviction,
    LabelSelector,
    Original,
    PageCacheReclaim,
    PodQos,
    PodState,
    Policies,
    QuotaChange,
    Rule,
    SchedulingChange,
    State,
    Step,
)
from agent.qos import QosClass
from tests.agent.scenes import CPU, CPU_PERCENT, MEMORY, analysis, changes, pod, running, state, wanted

EXACT = DecisionOptions(excess=0.0)
QUEUE = "queue_length_5m"
NOW = 1_000.0


def evictions(
    pods: list[PodState],
    marks: dict[str, float],
    used: dict[str, float],
    options: DecisionOptions = EXACT,
    **values: Any,
) -> Plan:
    demand = Demand(evict={name: (value,) for name, value in marks.items()}, evicted=wanted(pods, *marks))
    return plan(analysis(demand), PlanInputs(state(pods, NOW, **used), Metrics(), options, **values))


def throttles(pods: list[PodState], watermark: float, used: float, step: int = 50, **values: Any) -> Plan:
    demand = Demand(down={CPU: (watermark,)}, throttled=wanted(pods, CPU, step=step))
    return plan(analysis(demand), PlanInputs(state(pods, NOW, **{CPU: used}), Metrics(), EXACT, **values))


def restores(pods: list[PodState], watermark: float, used: float, step: int = 50, **values: Any) -> Plan:
    demand = Demand(up={CPU: (watermark,)}, restored=wanted(pods, CPU, step=step), ceilings=values.pop("ceilings", {}))
    originals = {each.id: Original(None) for one in pods for each in one.containers}
    given = {"lowered": LoweredValues(originals), **values}
    seen = state(pods, NOW, **{CPU: used, "cpu_core_numbers": 8.0})
    return plan(analysis(demand), PlanInputs(seen, Metrics(), EXACT, **given))


def queue_metrics() -> Metrics:
    """The metrics with one that throttles without a gap and shows the effect after five minutes."""
    return Metrics([triggering(QUEUE, throttleable=True, lag_seconds=300.0)])


def gone(made: Plan) -> list[str]:
    return [step.pod.partition("/")[2] for step in made.steps if isinstance(step.change, Eviction)]


def quotas(made: Plan) -> dict[str, int | None]:
    return {step.pod.partition("/")[2]: change.after for step, change in changes(made.steps, QuotaChange)}


def left_alone(made: Plan) -> dict[str, str]:
    return {each.pod: each.reason for each in made.left_alone}


def why(made: Plan) -> dict[str, str]:
    return {each.pod.partition("/")[2]: each.why for stage in made.stages for each in stage.candidates}


# --- evicting --------------------------------------------------------------------------------------------------------


def test_evicts_until_just_under_the_watermark():
    pods = [pod("a", 0.5), pod("b", 1.5), pod("c", 1.0), pod("d", 0.4)]
    made = evictions(pods, {CPU: 4000.0}, {CPU: 6000.0})
    assert ["b", "c"] == gone(made)
    (stage,) = made.stages
    assert (Mode.PRECISE, 6000.0, 2000.0, -500.0) == (stage.mode, stage.used, stage.gap, stage.gap_after)
    assert why(made) == {
        "b": "releases 1500 millicores",
        "c": "releases 1000 millicores",
        "a": "the gap is already closed",
        "d": "the gap is already closed",
    }
    assert {"classAndPriority": "BestEffort/0", "cpuUsage": 1.5}.items() <= stage.candidates[0].keys.items()


def test_a_gap_closed_exactly_needs_no_further_pod():
    pods = [pod(name, 0.1) for name in "abcde"]
    made = evictions(
        pods, {CPU: 700.0}, {CPU: 1000.0}
    )  # 3 × 0.1 × 1000 is a little over 300 in floating point, or under
    assert 3 == len(gone(made))


def test_a_release_reduces_all_gaps():
    pods = [pod("both", 2.0, memory=1200), pod("memory-only", 0.1, memory=1100)]
    made = evictions(pods, {CPU: 5000.0, MEMORY: 5000.0}, {CPU: 6000.0, MEMORY: 6000.0})
    assert ["both"] == gone(made)
    assert {"cpu": 2000.0, "memory": 1200.0} == made.steps[0].released


def test_an_eviction_that_others_make_unnecessary_is_dropped():
    pods = [pod("cpu-hog", 2.0, memory=1200), pod("memory-hog", 0.1, memory=2000)]
    made = evictions(pods, {CPU: 5000.0, MEMORY: 5000.0}, {CPU: 6000.0, MEMORY: 6000.0})
    assert ["cpu-hog"] == gone(made)
    reported = {(stage.metric, each.pod): each.why for stage in made.stages for each in stage.candidates}
    assert "the other chosen pods release enough" == reported[MEMORY, "default/memory-hog"]


def test_a_more_important_pod_does_not_replace_a_less_important_one():
    small = pod("small", 0.5)
    large = pod("large", 5.0, priority=100)
    made = evictions([large, small], {CPU: 5000.0}, {CPU: 6000.0})
    assert ["small", "large"] == gone(made)


def test_pods_with_no_or_an_unknown_release_are_explained_and_not_evicted():
    pods = [pod("idle", 0.0), pod("unknown"), pod("busy", 0.2)]
    made = evictions(pods, {CPU: 1000.0}, {CPU: 9000.0})
    assert ["busy"] == gone(made)
    assert "it would release nothing" == why(made)["idle"]
    assert "unknown" in why(made)["unknown"]
    assert made.stages[0].candidates[-1].released is None


def test_evictions_stay_within_the_budget():
    pods = [pod(name, 0.1) for name in "abcde"]
    made = evictions(
        pods,
        {CPU: 1000.0},
        {CPU: 9000.0},
        budget=Budget(EvictionLimits(evictions_per_node=2, evictions_per_namespace=9)),
    )
    assert ["a", "b"] == gone(made)
    assert "eviction limit of this node reached (2 in 600 s)" == why(made)["c"]
    blind = {"disk_read_iops": 50.0}
    past = (EvictionRecord(0.0, "shop", ""),)
    assert ["a"] == gone(evictions(pods, blind, {}, budget=Budget(EvictionLimits(evictions_per_node=2), past)))
    assert [] == gone(evictions(pods, blind, {}, budget=Budget(EvictionLimits(evictions_per_node=1), past)))


def test_a_limit_counts_only_needed_evictions():
    """`b` is selected for CPU, and then not needed, because `c` is evicted for the disk."""
    pods = {name: pod(name, 1.0) for name in "abcde"}
    demand = Demand(
        evict={CPU: (5000.0,), "disk_read_iops": (5.0,)},
        evicted={
            **wanted([pods[name] for name in "ab"], CPU),
            **wanted([pods[name] for name in "cde"], "disk_read_iops"),
        },
    )
    seen = state(list(pods.values()), NOW, **{CPU: 7000.0})
    made = plan(
        analysis(demand),
        PlanInputs(
            seen, Metrics(), EXACT, budget=Budget(EvictionLimits(evictions_per_node=3, evictions_per_namespace=9))
        ),
    )
    assert ["c", "d", "e"] == sorted(gone(made))


def test_a_pod_kept_by_a_limit_is_replaced_by_the_next():
    """As a pod that a disruption budget protects."""
    pods = [pod(name, 0.5, owner="ReplicaSet/web") for name in "ab"] + [pod("c", 0.4, owner="Job/batch")]
    made = evictions(pods, {CPU: 8300.0}, {CPU: 9000.0}, budget=Budget(EvictionLimits()))
    assert ["a", "c"] == gone(made)
    assert "eviction limit of ReplicaSet/web in namespace default reached (1 in 600 s)" == why(made)["b"]


@pytest.mark.parametrize(
    "values",
    [
        {"terminating": True},
        {"phase": "Failed"},
        {"static": True},
        {"priority": 2_000_001_000},
        {"uid": "me"},
        {"daemon": True},
        {"managed": False},
    ],
)
@pytest.mark.parametrize("metric", [CPU, "disk_read_iops"])
def test_protected_pods_are_not_evicted_for_any_usage(values, metric):
    pods = [pod("protected", 9.0, **values), pod("other", 0.1)]
    made = evictions(pods, {metric: 1.0}, {CPU: 9000.0}, own=frozenset({"me"}))
    assert ["other"] == gone(made)
    reason = left_alone(made).get("default/protected") or why(made)["protected"]
    assert reason
    if not values.get("managed", True):
        assert "it has no controller, so nothing would recreate it" == reason


def test_two_pods_with_the_same_name_are_both_explained():
    """A terminating pod and its successor."""
    old = replace(pod("db", 2.0), uid="old", terminating=True)
    new = replace(pod("db", 2.0), uid="new", priority=CRITICAL_PRIORITY)
    made = evictions([old, new], {CPU: 1000.0}, {CPU: 9000.0})
    assert [("new", "it is system-critical"), ("old", "it is terminating already")] == [
        (each.uid, each.reason.partition(" (")[0]) for each in made.left_alone
    ]


def test_pods_without_a_controller_are_evicted_only_if_the_setting_allows_it():
    pods = [pod("bare", 2.0, managed=False), pod("web", 0.5)]
    refusing = evictions(pods, {CPU: 4000.0}, {CPU: 6000.0})
    assert ["web"] == gone(refusing)
    (stage,) = (each for each in refusing.stages if each.kind == "evict")
    assert 1500.0 == stage.gap_after  # only the release of web counts
    allowing = evictions(pods, {CPU: 4000.0}, {CPU: 6000.0}, options=replace(EXACT, evict_unmanaged=True))
    assert ["bare"] == gone(allowing)


def test_a_pod_with_a_refused_eviction_is_throttled_instead():
    """It may be the largest consumer, and its quota can be lowered."""
    pods = [pod("refused", 3.0), pod("other", 2.0)]
    refused = {pods[0].uid: "the API refused to evict it"}
    made = evictions(pods, {CPU: 5000.0}, {CPU: 6000.0}, refused_evictions=refused)
    assert ["other"] == gone(made)
    assert "the API refused to evict it" == why(made)["refused"]
    containers = [running("refused", 3.0), running("other", 2.0)]
    assert "refused" in quotas(throttles(containers, 4000.0, 6000.0, refused_evictions=refused))


def test_unavailable_pods_are_replaced_by_others():
    pods = [pod("big", 2.5), pod("small", 1.0)]
    unavailable = {"uid-big": "its PodDisruptionBudget refused (429)"}
    made = evictions(pods, {CPU: 4000.0}, {CPU: 6000.0}, unavailable=unavailable)
    assert ["small"] == gone(made)
    assert (PodLeftAlone("default/big", "uid-big", unavailable["uid-big"]),) == made.left_alone


def test_evicted_pods_that_still_run_are_not_replaced():
    pods = [pod("a", 1.0), pod("b", 1.0)]
    first = evictions(pods, {CPU: 5500.0}, {CPU: 6000.0})
    ledger = with_steps((), first.steps, NOW, EXACT)
    second = evictions(pods, {CPU: 5500.0}, {CPU: 6000.0}, ledger=ledger)
    assert (["a"], []) == (gone(first), gone(second))
    assert (1000.0, -500.0) == (second.stages[0].in_flight, second.stages[0].gap)
    assert "its eviction is in progress" in left_alone(second)["default/a"]
    late = state(pods, NOW + 61.0, **{CPU: 6000.0})
    demand = Demand(evict={CPU: (5500.0,)}, evicted=wanted(pods, CPU))
    assert ["a"] == gone(plan(analysis(demand), PlanInputs(late, Metrics(), EXACT, ledger=ledger)))


def test_a_pod_is_evicted_only_for_the_metrics_of_its_rules():
    pods = [pod("for-cpu", 0.5, memory=9000), pod("for-memory", 5.0, memory=100)]
    demand = Demand(
        evict={CPU: (5000.0,), MEMORY: (5000.0,)},
        evicted={**wanted(pods[:1], CPU), **wanted(pods[1:], MEMORY)},
    )
    seen = state(pods, NOW, **{CPU: 5400.0, MEMORY: 1.0})
    assert ["for-cpu"] == gone(plan(analysis(demand), PlanInputs(seen, Metrics(), EXACT)))


def test_a_percentage_of_an_unknown_capacity_selects_no_pods():
    made = evictions([pod("a", 1.0)], {CPU_PERCENT: 50.0}, {CPU_PERCENT: 90.0})
    assert () == made.steps
    assert "the node's capacity is unknown: no action is taken" in made.stages[0].text


def test_a_missing_usage_selects_no_pods_without_on_missing():
    pods = [pod("a", 1.0), pod("b", 1.0)]
    demand = Demand(evict={CPU: (1.0,)}, evicted=wanted(pods, CPU))
    given = PlanInputs(state(pods, NOW), Metrics(), EXACT)
    made = plan(analysis(demand), given)
    assert ((), Mode.NOTHING) == (made.steps, made.stages[0].mode)
    made = plan(analysis(replace(demand, missed=frozenset({CPU}))), given)
    assert (["a", "b"], Mode.MISSED) == (gone(made), made.stages[0].mode)
    other = plan(analysis(replace(demand, missed=frozenset({MEMORY}))), given)
    assert () == other.steps


def test_a_metric_that_cannot_be_quantified_selects_all_pods_of_its_rules():
    mine, others = [pod("a", 1.0), pod("b", 1.0)], [pod("c", 0.5), pod("d", 0.4)]
    demand = Demand(
        evict={CPU: (5000.0,), "disk_read_iops": (5.0,)},
        evicted={**wanted(mine, "disk_read_iops"), **wanted(others, CPU)},
    )

    def made(used: float) -> Plan:
        return plan(analysis(demand), PlanInputs(state([*mine, *others], NOW, **{CPU: used}), Metrics(), EXACT))

    alone = made(4999.0)
    assert ["a", "b"] == gone(alone)
    assert [("cpu_total_usage", Mode.PRECISE), ("disk_read_iops", Mode.NOT_QUANTIFIED)] == [
        (stage.metric, stage.mode) for stage in alone.stages
    ]
    assert ["a", "b"] == gone(made(7000.0))  # they release what CPU needs
    assert ["c", "a", "b"] == gone(made(7400.0))


@pytest.mark.parametrize("name", ["cpu_load_1_min", "window_cpu_avg_5m", "psi_cpu_some_avg10", "psi_memory_full_avg10"])
def test_a_metric_that_an_action_cannot_reduce_selects_no_pods(name: str):
    pods = [pod(each, 1.0, memory=100) for each in "abcdef"]
    alone = evictions(pods, {name: 1.0}, {name: 9.0})
    assert ((), Mode.NOTHING) == (alone.steps, alone.stages[0].mode)
    assert (
        f"{name} is 9, watermark 1: selects no pods, because evicting pods does not reduce it" == alone.stages[0].text
    )
    beside = evictions(pods, {MEMORY: 1000.0, name: 1.0}, {MEMORY: 1100.0, name: 9.0})
    assert ["a"] == gone(beside)


def test_rules_on_other_metrics_add_no_throttled_pods():
    """A rule on CPU and one on memory that share an action, as policies of Crane do."""
    pods = [running(f"p{number}", 1.0, memory=100) for number in range(8)]
    for other in ("cpu_load_1_min", MEMORY):
        demand = Demand(down={CPU: (7000.0,), other: (1.0,)}, throttled=wanted(pods, CPU, other, step=50))
        made = plan(analysis(demand), PlanInputs(state(pods, NOW, **{CPU: 8000.0, other: 90.0}), Metrics(), EXACT))
        assert {"p0": 50_000, "p1": 50_000} == quotas(made)
        assert "throttling does not reduce it" in made.stages[-1].text


@pytest.mark.parametrize("cores", [2.0, 8.0, 64.0])
def test_a_percentage_is_converted_with_the_size_of_the_node(cores: float):
    """75 % of 2 cores are 1.5 cores, of 64 cores 48."""
    pods = [running(name, cores / 8) for name in "abcdef"]
    demand = Demand(down={CPU_PERCENT: (75.0,)}, throttled=wanted(pods, CPU_PERCENT, step=50))
    seen = state(pods, NOW, **{CPU_PERCENT: 85.0, "cpu_core_numbers": cores})
    made = plan(analysis(demand), PlanInputs(seen, Metrics(), EXACT))
    assert made.stages[0].gap == pytest.approx(cores * 100.0)
    assert len(quotas(made)) == 2  # a sixteenth of the cores each
    assert set(quotas(made).values()) == {int(cores / 16 * 100_000)}


# --- throttling and restoring ----------------------------------------------------------------------------------------


def test_throttles_until_the_gap_is_closed():
    pods = [running("small", 1.0), running("big", 2.0), running("guaranteed", 9.0, qos=QosClass.GUARANTEED)]
    made = throttles(pods, 4000.0, 4500.0)
    assert {"big": 100_000} == quotas(made)
    assert {"small": "the gap is already closed", "guaranteed": "the gap is already closed"}.items() <= why(
        made
    ).items()


def test_a_container_gets_no_quota_that_would_release_nothing():
    idle = running("idle", 0.0)
    made = throttles([idle, running("quota-above-use", 0.1, quota=400_000)], 100.0, 9000.0)
    assert {"quota-above-use": 200_000} == quotas(made)
    assert "a quota would release nothing" == why(made)["idle"]


def test_a_recent_quota_is_not_counted_twice():
    before = running("p", 2.0)
    first = throttles([before], 4000.0, 4500.0)
    lagging = running("p", 2.0, quota=100_000)
    second = throttles([lagging], 4000.0, 4500.0, ledger=with_steps((), first.steps, NOW, EXACT))
    assert ({"p": 100_000}, {}) == (quotas(first), quotas(second))
    assert 1000.0 == second.stages[0].in_flight
    third = throttles([lagging], 3000.0, 4500.0, ledger=with_steps((), first.steps, NOW - 10.0, EXACT))
    assert {"p": 50_000} == quotas(third)
    assert {"cpu": 500.0} == third.stages[0].candidates[0].released


def test_an_eviction_releases_what_a_recent_quota_leaves():
    """The quota of one core takes effect later; the usage of the second container stays."""
    before = running("p", 2.0)
    steps = throttles([before], 4000.0, 4500.0).steps
    other = ContainerState(name="other", id="p-other", cpu=0.25)
    two = running("p", 2.0, quota=100_000)
    lagging = replace(two, cpu=2.25, containers=(*two.containers, other))
    ledger = with_steps((), steps, NOW - 10.0, EXACT)
    made = evictions([lagging, pod("q", 0.5)], {CPU: 2000.0}, {CPU: 4000.0}, ledger=ledger)
    assert {"p": "releases 1250 millicores"}.items() <= why(made).items()


def test_a_share_of_the_node_is_restored_less_the_restore_in_progress():
    """Of the 10 % of 8 cores up to the watermark, a restore in progress takes 500 millicores."""
    first, other = running("p", 0.5, quota=50_000), running("q", 0.5, quota=50_000)
    step = restores([first], 4000.0, 3000.0).steps
    demand = Demand(up={CPU_PERCENT: (50.0,)}, restored=wanted([other], CPU_PERCENT, step=90))
    seen = state(
        [replace(first, containers=running("p", 0.5, quota=100_000).containers), other],
        NOW,
        **{CPU_PERCENT: 40.0, "cpu_core_numbers": 8.0},
    )
    given = PlanInputs(seen, Metrics(), EXACT, lowered=LoweredValues({"q-main": Original(None)}))
    for ledger, gap in (((), 800.0), (with_steps((), step, NOW, EXACT), 300.0)):
        (stage,) = plan(analysis(demand), replace(given, ledger=ledger)).stages
        assert pytest.approx(gap) == stage.gap


def test_the_default_limits_of_evictions():
    limits = EvictionLimits()
    assert (600.0, 6, 3, 1) == (
        limits.eviction_window,
        limits.evictions_per_node,
        limits.evictions_per_namespace,
        limits.evictions_per_owner,
    )


def test_a_second_plan_of_a_cycle_does_not_change_quotas_of_the_first():
    """The state was read before, so its quotas are outdated."""
    pods = [running("a", 2.0), running("b", 1.0)]
    first = throttles(pods, 1000.0, 9000.0)
    assert {"a": 100_000, "b": 50_000} == quotas(first)
    ledger = with_steps((), first.steps[:1], NOW, EXACT)
    second = throttles(pods, 1000.0, 9000.0, ledger=ledger)
    assert {"b": 50_000} == quotas(second)
    assert "it was already changed in this cycle" == why(second)["a"]
    back = analysis(released=("uid-c",))
    given = PlanInputs(
        state([running("c", 0.5, quota=50_000)]), Metrics(), EXACT, lowered=LoweredValues({"c-main": Original(None)})
    )
    given_back = plan(back, given)
    again = replace(given, ledger=with_steps((), given_back.steps, NOW, EXACT))
    assert (1, ()) == (len(given_back.steps), plan(back, again).steps)


def test_without_a_gap_a_pod_gets_its_next_step_after_the_effect():
    demand = Demand(down={QUEUE: (50.0,)}, throttled=wanted([running("p", 1.0)], QUEUE))
    first = plan(analysis(demand), PlanInputs(state([running("p", 1.0)]), queue_metrics(), EXACT))
    ledger = with_steps((), first.steps, NOW - 10.0, EXACT)
    lagging = PlanInputs(state([running("p", 1.0, quota=90_000)]), queue_metrics(), EXACT, ledger=ledger)
    made = plan(analysis(demand), lagging)
    assert {} == quotas(made)
    assert "its last step is still taking effect" == why(made)["p"]


def test_a_step_waits_for_the_lag_of_its_metric():
    """A mean over five minutes stays high for minutes after the load ended: one step in that time is enough."""
    unlimited, slowed = running("p", 1.0), running("p", 0.9, quota=90_000)
    demand = Demand(down={QUEUE: (50.0,), CPU: (1.0,)}, throttled=wanted([unlimited], QUEUE, CPU))
    first = plan(analysis(demand), PlanInputs(state([unlimited], NOW), queue_metrics(), EXACT))
    ledger = with_steps((), first.steps, NOW, EXACT)
    for seconds, expected in ((10.0, {}), (290.0, {}), (310.0, {"p": 81_000})):
        seen = state([slowed], NOW + seconds)
        given = PlanInputs(seen, queue_metrics(), EXACT, ledger=still_pending(ledger, seen, EXACT))
        assert expected == quotas(plan(analysis(demand), given))


def test_an_action_that_lowers_nothing_is_explained():
    made = throttles([running("p", 2.0)], 1000.0, 9000.0, step=0)
    assert {} == quotas(made)
    assert "its action has stepCPURatio 0, which lowers nothing" == why(made)["p"]


def test_the_most_important_pod_is_restored_first():
    low, high = running("low", 0.5, quota=50_000), running("high", 0.5, quota=50_000, priority=9)
    assert {"high": 75_000} == quotas(restores([low, high], 4000.0, 3900.0))
    assert {"high": 75_000, "low": 75_000} == quotas(restores([low, high], 4000.0, 3000.0))


def test_an_idle_node_is_restored_by_its_gap_however_small_the_quota():
    """A step of five percent of 1000 µs would take half an hour."""
    tiny = [running(name, 0.01, quota=1_000, throttled=True) for name in "ab"]
    assert {"a": 51_000, "b": 51_000} == quotas(restores(tiny, 4000.0, 2000.0, step=5))
    assert {"a": 3_500, "b": 3_500} == quotas(restores(tiny, 4000.0, 3900.0, step=5, ceilings={CPU: 9000.0}))


def test_a_quota_that_was_not_lowered_is_not_raised():
    made = restores([running("p", 0.5, quota=50_000)], 4000.0, 1000.0, lowered=LoweredValues())
    assert {} == quotas(made)
    assert () == made.stages[0].candidates


def test_restoring_stays_below_the_throttling_watermark():
    made = restores([running("p", 0.5, quota=50_000)], 3500.0, 3400.0, step=90, ceilings={CPU: 3700.0})
    assert {"p": 80_000} == quotas(made)
    assert {} == quotas(restores([running("p", 0.5, quota=50_000)], 3500.0, 3490.0, ceilings={CPU: 3495.0}))


def test_all_restored_pods_together_stay_below_the_throttling_watermark():
    pods = [running("low", 0.5, quota=50_000), running("high", 0.5, quota=50_000, priority=9)]
    made = restores(pods, 9000.0, 3400.0, step=40, ceilings={CPU: 3700.0})
    assert {"high": 80_000} == quotas(made)


def test_a_quota_that_the_kernel_refused_to_lower_is_only_raised():
    refused = frozenset({("p-main", "cpu.max")})
    made = throttles([running("p", 2.0), running("q", 2.0)], 4000.0, 9000.0, refused_knobs=refused)
    assert {"q": 100_000} == quotas(made)
    assert "the kernel recently refused to lower its quotas" == why(made)["p"]
    assert {"p": 75_000} == quotas(restores([running("p", 0.5, quota=50_000)], 4000.0, 3900.0, refused_knobs=refused))


def test_a_quota_without_a_rule_is_restored_at_once():
    pods = [running("p", 0.5, quota=50_000), running("leaving", 0.5, quota=50_000, terminating=True)]
    originals = {"p-main": Original(70_000), "leaving-main": Original(None)}
    found = analysis(released=("uid-leaving", "uid-p"))
    made = plan(found, PlanInputs(state(pods), Metrics(), EXACT, lowered=LoweredValues(originals)))
    (step,) = made.steps
    assert isinstance(step.change, QuotaChange)
    assert (50_000, 70_000, "restore", "no rule covers it any more") == (
        step.change.before,
        step.change.after,
        step.kind,
        step.reason,
    )
    assert "" == still_needed(step, made, PlanInputs(state(pods), Metrics(), EXACT))


# --- one after another -----------------------------------------------------------------------------------------------


def both(pods: list[PodState], since: float, **values: Any) -> tuple[Demand, PlanInputs]:
    demand = Demand(
        down={CPU: (4000.0,)},
        throttled=wanted(pods, CPU, step=10),
        evict={CPU: (4000.0,), MEMORY: (100.0,)},
        evicted=wanted(pods, CPU, MEMORY),
        since={CPU: since, MEMORY: since},
    )
    return demand, PlanInputs(state(pods, NOW, **{CPU: 5000.0, MEMORY: 50.0}), Metrics(), EXACT, **values)


def test_evicting_waits_for_the_effect_of_throttling():
    demand, given = both([running("p", 2.0, memory=10)], since=NOW - 10.0)
    made = plan(analysis(demand), given)
    assert ["throttle"] == [step.kind for step in made.steps]
    waiting = [stage for stage in made.stages if stage.mode is Mode.WAITING]
    assert ["cpu_total_usage: evicts in 20 s at the earliest, because throttling has to take effect first"] == [
        stage.text for stage in waiting
    ]


def test_evicting_closes_the_gap_that_throttling_leaves():
    pods = [running("p", 2.0), running("q", 1.0)]
    demand, given = both(pods, since=NOW - 30.0)
    made = plan(analysis(demand), given)
    assert ["throttle", "throttle", "evict"] == [step.kind for step in made.steps]
    assert pytest.approx(700.0) == next(
        stage.gap for stage in made.stages if stage.kind == "evict" and stage.metric == CPU
    )


def test_evictions_for_metrics_that_cannot_be_throttled_do_not_wait():
    pods = [running("p", 2.0, memory=10)]
    demand, given = both(pods, since=NOW)
    memory = replace(given, state=state(pods, NOW, **{CPU: 5000.0, MEMORY: 105.0}))
    assert ["throttle", "evict"] == [step.kind for step in plan(analysis(demand), memory).steps]
    floor = [running("p", 2.0, quota=1_000)]
    demand, given = both(floor, since=NOW)
    assert ["evict"] == [step.kind for step in plan(analysis(demand), given).steps]


def test_page_cache_is_reclaimed_before_evictions_and_reduces_no_gap():
    pods = [pod("a", memory=900), pod("b", memory=100), pod("unknown")]
    demand = Demand(
        reclaim={MEMORY: (5000.0,), CPU: (1.0,)},
        reclaimed=wanted(pods, MEMORY),
        evict={MEMORY: (5000.0,)},
        evicted=wanted(pods, MEMORY),
    )
    given = PlanInputs(state(pods, NOW, **{MEMORY: 5500.0, CPU: 9.0}), Metrics(), EXACT)
    made = plan(analysis(demand), given)
    reclaims = [(step.kind, change.bytes) for step, change in changes(made.steps, PageCacheReclaim)]
    assert [("reclaim", 500), ("reclaim", 100)] == reclaims
    assert ["reclaim", "reclaim", "evict"] == [step.kind for step in made.steps]
    first, second, third = made.steps
    enough = replace(given, state=state(pods, NOW, **{MEMORY: 5000.0}))
    assert ["the gap of memory_total_usage is closed already"] * 2 == [
        still_needed(second, made, enough, (first,)),
        still_needed(third, made, enough, (first,)),
    ]
    assert "" == still_needed(third, made, given, (first, second))


def natural(pods: list[PodState], **used: float) -> tuple[Plan, Analysis]:
    """A rule on CPU and one on memory with one action for both, as policies of Crane have."""
    held = Policies(
        (
            Rule("nq", "cpu", CPU, 7_000.0, "cut"),
            Rule("nq", "memory", MEMORY, 1_000.0, "cut"),
        ),
        {"cut": AvoidanceAction("cut", 0.0, throttle=CpuThrottle(0, 50), force_gc=True)},
        (PodQos("all", frozenset({"cut"}), scopes=()),),
    )
    seen = state(pods, NOW, **used)
    found = analyze(seen, held, AnalyzerState(), metrics=Metrics())
    return plan(found, PlanInputs(seen, Metrics(), EXACT)), found


def test_an_action_for_cpu_and_memory_throttles_for_cpu_and_reclaims_for_memory():
    pods = [running(f"p{number}", 1.0, memory=500) for number in range(8)]
    cpu_only, _ = natural(pods, **{CPU: 8_000.0, MEMORY: 900.0})
    both, found = natural(pods, **{CPU: 8_000.0, MEMORY: 1_600.0})
    memory_only, _ = natural(pods, **{CPU: 6_000.0, MEMORY: 1_600.0})
    assert {"p0": 50_000, "p1": 50_000} == quotas(cpu_only) == quotas(both)
    assert {} == quotas(memory_only)
    assert {"scheduling", "throttle", "reclaim"} == {step.kind for step in both.steps}
    assert {"scheduling", "reclaim"} == {step.kind for step in memory_only.steps}
    assert found.keep_away


def test_a_container_gets_one_step_if_its_pod_has_no_rule():
    """A rule on memory whose action throttles does not throttle, so no rule covers the pod `b`."""
    pods = [running(name, 0.5, quota=50_000, labels={"app": name}) for name in "ab"]
    held = Policies(
        (Rule("nq", "cpu", CPU, 4_000.0, "cut"), Rule("nq", "memory", MEMORY, 1_000.0, "hard")),
        {name: AvoidanceAction(name, 0.0, throttle=CpuThrottle(0, 10)) for name in ("cut", "hard")},
        tuple(
            PodQos(action, frozenset({action}), LabelSelector((("app", "In", (label,)),)))
            for action, label in (("cut", "a"), ("hard", "b"))
        ),
    )
    originals = {f"{name}-main": Original(None) for name in "ab"}
    memory = AnalyzerState({key: RuleState(triggered=True, since=0.0) for key in ("nq.cpu", "nq.memory")})
    seen = state(pods, NOW, **{CPU: 1_000.0, MEMORY: 1.0})
    found = analyze(seen, held, memory, lowered=LoweredValues(originals), metrics=Metrics())
    made = plan(found, PlanInputs(seen, Metrics(), EXACT, lowered=LoweredValues(originals)))
    steps = [(step.pod, step.change.after) for step in made.steps if isinstance(step.change, QuotaChange)]
    assert [("default/a", 200_000), ("default/b", None)] == steps


@pytest.mark.parametrize("order", [1, -1])
def test_a_pod_with_the_name_of_another_is_not_changed(order: int):
    """As a terminating pod of a StatefulSet and its successor."""
    allowed, other = (
        running("db-0", 2.0, uid=f"uid-{label}", memory=100, labels={"app": label}) for label in ("batch", "bank")
    )
    rules = Policies(
        (Rule("nq", "cpu", CPU, 1_000.0, "cut"),),
        {"cut": AvoidanceAction("cut", 0.0, throttle=CpuThrottle(0, 10), evicts=True)},
        (PodQos("batch", frozenset({"cut"}), LabelSelector((("app", "In", ("batch",)),))),),
    )
    seen = state([allowed, other][::order], NOW, **{CPU: 9_000.0})
    found = analyze(seen, rules, AnalyzerState(), metrics=Metrics())
    made = plan(found, PlanInputs(seen, Metrics(), replace(EXACT, settle=0.0)))
    assert {"uid-batch"} == {step.uid for step in made.steps if isinstance(step.change, QuotaChange | Eviction)}


def test_evictions_for_memory_do_not_wait_for_an_action_that_throttles_too():
    pods = [running("p", 2.0, memory=10)]
    demand = Demand(
        down={CPU: (4000.0,), MEMORY: (100.0,)},
        throttled=wanted(pods, CPU),
        evict={MEMORY: (100.0,)},
        evicted=wanted(pods, MEMORY),
        since={MEMORY: NOW},
    )
    made = plan(analysis(demand), PlanInputs(state(pods, NOW, **{CPU: 5000.0, MEMORY: 105.0}), Metrics(), EXACT))
    assert ["throttle", "evict"] == [step.kind for step in made.steps]


def test_a_pod_throttled_for_two_metrics_is_restored_within_both_gaps():
    extended = "ext_res_container_cpu_total_usage"
    pods = [replace(running(name, 0.5, quota=50_000), extended_cpu_limit=4.0) for name in "ab"]
    demand = Demand(
        up={CPU: (4000.0,), extended: (10.0,)},
        restored=wanted(pods, CPU, extended, step=50),
        ceilings={CPU: 4000.0, extended: 10.0},
    )
    seen = state(pods, NOW, **{CPU: 3750.0, extended: 1.0, "cpu_core_numbers": 8.0})
    originals = {f"{name}-main": Original(None) for name in "ab"}
    made = plan(analysis(demand), PlanInputs(seen, Metrics(), EXACT, lowered=LoweredValues(originals)))
    assert {"b": 75_000} == quotas(made)


def test_only_memory_metrics_reclaim():
    pods = [pod("a", memory=900)]
    demand = Demand(reclaim={CPU: (1.0,), "psi_memory_full_avg10": (1.0,)}, reclaimed=wanted(pods, CPU))
    made = plan(analysis(demand), PlanInputs(state(pods, NOW, **{CPU: 9.0}), Metrics(), EXACT))
    assert ((), ()) == (made.steps, made.stages)


def test_scheduling_comes_first():
    demand, given = both([running("p", 2.0)], since=NOW)
    made = plan(analysis(demand, keep_away=True, because="triggered: nq.r"), given)
    assert Step("scheduling", SchedulingChange(disable=True), reason="triggered: nq.r") == made.steps[0]


# --- just before acting ----------------------------------------------------------------------------------------------


def test_a_step_is_dropped_once_its_gap_is_closed():
    pods = [pod("a", 1.0), pod("b", 1.0)]
    made = evictions(pods, {CPU: 4500.0}, {CPU: 6000.0})
    first, second = made.steps

    def asked(step: Any, used: float | None, done: tuple[Any, ...] = (), **values: Any) -> str:
        fresh: State = state(values.get("pods", pods), NOW + 1, **({} if used is None else {CPU: used}))
        return still_needed(step, made, PlanInputs(fresh, Metrics(), EXACT), done)

    assert "" == asked(first, 6000.0)
    assert "" == asked(second, 6000.0, (first,))
    assert "the gap of cpu_total_usage is closed already" == asked(second, 5400.0, (first,))
    assert "the gap of cpu_total_usage is closed already" == asked(first, 4500.0)
    assert "cpu_total_usage is missing now" == asked(first, None)
    assert "the pod is gone" == asked(first, 6000.0, pods=[pod("b", 1.0)])
    assert "the pod is gone" == asked(first, 6000.0, pods=[pod("a", 1.0, uid="a namesake")])
    assert "it is terminating already" == asked(first, 6000.0, pods=[pod("a", 1.0, terminating=True)])
    assert "" == asked(Step("scheduling", SchedulingChange(disable=True), reason=""), None)


def test_a_restore_is_dropped_when_the_node_is_busy_again():
    made = restores([running("p", 0.5, quota=50_000)], 4000.0, 3000.0)
    (step,) = made.steps
    busy = PlanInputs(state([running("p", 0.5)], **{CPU: 4100.0}), Metrics(), EXACT)
    assert "the gap of cpu_total_usage is closed already" == still_needed(step, made, busy)


def test_a_step_without_a_gap_is_needed_while_its_pod_exists():
    made = evictions([pod("a", 1.0)], {"disk_read_iops": 50.0}, {})
    (step,) = made.steps
    assert "" == still_needed(step, made, PlanInputs(state([pod("a", 1.0)]), Metrics(), EXACT))


# --- sentences -------------------------------------------------------------------------------------------------------


def whole_plan() -> Plan:
    held = Policies(
        (
            Rule("nq", "cpu", CPU, 4000.0, "throttle"),
            Rule("nq", "memory", MEMORY, 6 * 2.0**30, "evict", preview=True),
            Rule("nq", "load", "cpu_load_1_min", 4.0, "throttle"),
        ),
        {
            "throttle": AvoidanceAction("throttle", throttle=CpuThrottle(10, 50)),
            "evict": AvoidanceAction("evict", evicts=True),
        },
        (PodQos("all", frozenset({"throttle", "evict"}), scopes=()),),
    )
    pods = [
        running("worker", 3.0, memory=3 * 2**30),
        running("web", 1.0, qos=QosClass.BURSTABLE, memory=2**30),
        running("proxy", 1.0, static=True),
        pod("new", containers=(ContainerState(name="main", id="new"),)),
    ]
    seen = state(pods, NOW, **{CPU: 5000.0, MEMORY: 7 * 2.0**30, "cpu_core_numbers": 8.0})
    return plan(analyze(seen, held, AnalyzerState()), PlanInputs(seen, Metrics()))


def test_a_plan_has_sentences_about_samples_and_steps():
    assert whole_plan().sentences == (
        "PodQOS all matches every pod of the node: its scopes are an empty list",
        "nq.cpu: cpu_total_usage is 5000, above the watermark 4000: triggered, action throttle",
        "nq.memory: memory_total_usage is 7,516,192,768, above the watermark 6,442,450,944: triggered, action evict "
        "(preview: no action is taken)",
        "nq.load: cpu_load_1_min is missing (no source collects it): counts unchanged, no action taken",
        "cpu_total_usage is 5000, watermark 4000: 1100 millicores must be released; "
        "throttles default/worker, which closes the gap (1 of 3 pods)",
        "in preview: memory_total_usage is 7,516,192,768, watermark 6,442,450,944: 1126.4 MiB must be released; "
        "evicts default/worker, which closes the gap (1 of 3 pods)",
        "1. keep new pods away (triggered: nq.cpu)",
        "2. throttle default/worker, container main, from no quota to 1.5 cores: releases 1500 millicores",
        "in preview: would evict default/worker, grace period 30 s: releases 3000 millicores, 3072.0 MiB",
    )


def test_a_plan_is_plain_data():
    made = whole_plan()
    text = msgspec.json.encode(made)
    reported = json.loads(text)
    reason = "it is a static pod or a mirror pod: the kubelet would start it again"
    assert {"pod": "default/proxy", "uid": "uid-proxy", "reason": reason} in reported["left_alone"]
    assert [step["kind"] for step in reported["steps"]] == ["scheduling", "throttle"]
    assert reported["rules"][0]["verdict"] == "triggered"
    assert reported["stages"][0]["candidates"][0]["keys"]["classAndPriority"] == "BestEffort/0"


def test_a_plan_without_steps_has_a_sentence():
    assert ("nothing to do",) == plan(analysis(), PlanInputs(state(), Metrics())).sentences


def test_a_metric_of_another_package_is_planned_like_a_built_in_one():
    def evict(one: PodState, grace: float | None, _: Any) -> PodSteps:
        return eviction(one, grace, "gpu_memory", {"gpu_memory": float(one.labels["gpu"])})

    gpu = ActionMetric(
        name="gpu_memory", action_priority=7, evictable=True, evict_quantified=True, evict=evict, resource="gpu_memory"
    )
    pods = [pod(name, 0.1, labels={"gpu": amount}, start_time=1.0) for name, amount in (("a", "5"), ("b", "3"))]
    demand = Demand(evict={"gpu_memory": (10.0,)}, evicted=wanted(pods, "gpu_memory"))
    given = PlanInputs(state(pods, gpu_memory=14.0), Metrics([gpu]), EXACT)
    made = plan(analysis(demand), given)
    assert ["a"] == gone(made)
    assert "4 gpu_memory must be released" in made.stages[0].text
