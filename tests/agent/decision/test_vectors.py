"""The agent's decisions, compared with the golden cases of Crane (tests/vectors/crane.json).

The expected result is `recommended`, or that of Crane with its two fatal faults repaired (`head_gapfix`, `head`) where
`recommended` is absent. EXCEPTIONS has the cases in which the agent differs on purpose and that have no `recommended`.
tests/reference/crane/test_vectors.py compares the emulator of Crane with the same cases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agent.decision.analysis import AnalyzerState, Demand, PodDemand, gathered
from agent.decision.analyzer import analyze, merge
from agent.decision.plan import Mode, Plan, RuleVerdict
from agent.decision.plan_inputs import PlanInputs, gaps, reducible
from agent.decision.planner import plan
from agent.decision.pod_selection import matches
from agent.decision.restoring import LoweredValues
from agent.metrics.options import DecisionOptions
from agent.metrics.registry import Metrics
from agent.metrics.sorters import CHAINS, Chains, Sorter
from agent.model import (
    AvoidanceAction,
    CpuThrottle,
    Eviction,
    LabelSelector,
    Original,
    PodQos,
    PodScope,
    Policies,
    QuotaChange,
    Rule,
    StageKind,
)
from tests.agent.crane import CRANE_CHAINS, VECTORS, cases, names, pod_of, quantity, state_of, watermarks
from tests.agent.scenes import analysis, changes

EXCEPTIONS: dict[str, dict[str, Any]] = {
    # The eviction of a pod without usage releases nothing.
    "evict-zero-usage-pods-all-go": {
        "evicted_set": [],
        "executed_in_order": [],
        "grace": {},
        "gaps_left": {"cpu_total_usage": 1},
    },
    # Throttling does not reduce memory, so the rule on memory adds no pods: the gap of CPU needs both here.
    "throttle-not-quantified-all-pods": {"gaps_left": {"cpu_total_usage": 1700}},
    # Both gaps are open, and memory comes first; the case has the order of the second metric.
    "evict-two-metrics-double": {"order": ["mem-hog", "cpu-hog"]},
}


def expected_of(case: dict[str, Any]) -> dict[str, Any]:
    given = case["expected"]
    expected: dict[str, Any] = given.get("recommended", given.get("head_gapfix", given.get("head")))
    return {**expected, **EXCEPTIONS.get(case["id"], {})}


def options_of(case: dict[str, Any]) -> DecisionOptions:
    return DecisionOptions(excess=case["input"].get("excess", 0.0))


# --- before the selection of pods ------------------------------------------------------------------------------------


@cases("watermark")
def test_the_smallest_watermark_counts(case: dict[str, Any]):
    pushed = case["input"]["push"]
    expected = case["expected"]["head"]
    smallest = [gathered(("m", quantity(text)) for text in pushed[: count + 1])["m"][0] for count in range(len(pushed))]
    assert [quantity(text) for text in expected["smallest_after_each_push"]] == smallest
    ascending = gathered(("m", quantity(text)) for text in pushed)["m"]
    assert [quantity(text) for text in expected["pop_order"]] == list(ascending)
    assert expected["value_rounded_up"] == watermarks({"m": pushed})["m"][0]


@cases("gaps")
def test_gaps(case: dict[str, Any]):
    sets = {"evict": ("evict", "evict"), "throttle_down": ("throttle", "down"), "throttle_up": ("restore", "up")}
    given = PlanInputs(state_of(case["input"]["state"]), Metrics(), options_of(case))
    for name, expected in expected_of(case).items():
        kind, key = sets[name]
        marks = watermarks(case["input"].get(key))
        found = gaps(kind, marks, given)  # type: ignore[arg-type]
        shown = {metric: "missed" if gap is None else pytest.approx(gap, abs=1e-6) for metric, gap in found.items()}
        assert expected == (shown if marks else {}), name


@cases("divide")
def test_metrics_are_grouped_by_the_actions_that_reduce_them(case: dict[str, Any]):
    """A metric that an action cannot reduce is "not quantified" in Crane and selects all pods; here it selects none."""
    marks, metrics = watermarks(case["input"]["evict"]), Metrics()
    expected = expected_of(case)
    kinds: tuple[StageKind, ...] = ("evict", "throttle")
    for kind in kinds:
        able = reducible(kind, marks, metrics)
        if kind == "throttle" and "cpu_total_utilization" in able:  # in Crane it cannot be throttled
            able.remove("cpu_total_utilization")
        assert expected[f"{kind}_quantified"] == sorted(name for name in able if metrics[name].quantified_for(kind))
        assert expected[f"{kind}_not_quantified"] == sorted(set(marks) - set(able))
        assert next(iter(able), "") in expected[f"highest_{kind}able_any_of"]


def sorter_of(chains: Chains, case: dict[str, Any]) -> Sorter:
    return {"cpu": chains.cpu, "mem": chains.memory, "general": chains.general}[case["input"]["sorter"]]


@cases("sort")
def test_the_order_of_crane(case: dict[str, Any]):
    sorter = sorter_of(CRANE_CHAINS, case)
    # Crane keeps the input order of pods that are equal in all sort keys.
    pods = [replace(pod_of(each), namespace=f"{place:02}") for place, each in enumerate(case["input"]["pods"])]
    assert case["expected"]["head"]["order"] == [pod.name for pod in sorter.sort(pods)]


@pytest.mark.parametrize(
    "case_id", ["sort-cpu-usage-direction", "sort-elastic-ratio", "sort-runtime", "sort-mem-direction"]
)
def test_the_default_order_equals_that_of_crane_by_usage_and_age(case_id: str):
    case = next(each for each in VECTORS if each["id"] == case_id)
    sorter = sorter_of(CHAINS, case)
    given = [pod_of(each) for each in case["input"]["pods"]]
    assert case["expected"]["head"]["order"] == [pod.name for pod in sorter.sort(given)]


# --- throttle, restore, evict ----------------------------------------------------------------------------------------


def demand_of(case: dict[str, Any], kind: str) -> Demand:
    """All pods of the case for all of its watermarks; every metric is one that a rule names and may miss."""
    key = {"throttle": "down", "restore": "up", "evict": "evict"}[kind]
    marks = watermarks(case["input"].get(key))
    pods = case["input"].get("up_pods" if kind == "restore" else "pods", [])
    wanted = {
        pod_of(each).uid: PodDemand(
            frozenset(marks), CpuThrottle(each.get("min", 0), each.get("step", 0)), each.get("grace")
        )
        for each in pods
    }
    if kind == "throttle":
        return Demand(down=marks, throttled=wanted, missed=frozenset(marks))
    if kind == "restore":
        return Demand(up=marks, restored=wanted, missed=frozenset(marks))
    return Demand(evict=marks, evicted=wanted, missed=frozenset(marks))


def played(case: dict[str, Any], kind: str) -> tuple[Plan, Plan, list[str], PlanInputs]:
    """The first plan, the plan whose steps all succeed, and the failed pods, each of which the next plan leaves out."""
    given_pods = case["input"].get("up_pods" if kind == "restore" else "pods", [])
    pods = [pod_of(each) for each in given_pods]
    failing_containers = set(case["input"].get("fail_containers", ()))
    failing = {pod_of(each).key for each in given_pods if each.get("absent") or each.get("evict_fails")}
    originals = {container.id: Original(None) for pod in pods for container in pod.containers}
    given = PlanInputs(
        state_of(case["input"]["state"], pods), Metrics(), options_of(case), lowered=LoweredValues(originals)
    )
    demanded = analysis(demand_of(case, kind))
    first = made = plan(demanded, given)
    failed: list[str] = []
    while True:
        broken = [
            step
            for step in made.steps
            if isinstance(step.change, Eviction | QuotaChange)
            and (
                step.pod in failing
                or (isinstance(step.change, QuotaChange) and step.change.container_id in failing_containers)
            )
        ]
        if not broken:
            return first, made, failed, given
        failed.append(broken[0].pod)
        given = replace(given, unavailable={**given.unavailable, broken[0].uid: "it failed"})
        made = plan(demanded, given)


def gaps_left(case: dict[str, Any], kind: str, made: Plan, given: PlanInputs) -> dict[str, Any]:
    if not case["input"].get("up_pods" if kind == "restore" else "pods"):
        return {}
    if any(stage.mode is Mode.MISSED for stage in made.stages):
        key = {"throttle": "down", "restore": "up", "evict": "evict"}[kind]
        found = gaps(kind, watermarks(case["input"][key]), given)  # type: ignore[arg-type]
        return {name: "missed" if gap is None else gap for name, gap in found.items()}
    return {
        stage.metric: pytest.approx(stage.gap_after, abs=1e-6) for stage in made.stages if stage.mode is Mode.PRECISE
    }


def check_order(expected: list[str] | None, first: Plan) -> None:
    looked = [names([each.pod for each in stage.candidates]) for stage in first.stages if stage.candidates]
    if expected is not None and looked:
        assert expected in looked


def check_quotas(case: dict[str, Any], kind: str) -> None:
    expected = expected_of(case)
    first, made, failed, given = played(case, kind)
    calls = [
        {"container": step.change.container_id, "cpu_quota": -1 if step.change.after is None else step.change.after}
        for step in made.steps
        if isinstance(step.change, QuotaChange)
    ]
    assert expected["calls"] == calls
    assert expected["error"] == bool(failed)
    assert expected["gaps_left"] == gaps_left(case, kind, made, given)
    check_order(expected["order"], first)


@cases("throttle")
def test_throttling(case: dict[str, Any]):
    check_quotas(case, "throttle")


@cases("restore")
def test_restoring(case: dict[str, Any]):
    check_quotas(case, "restore")


@cases("evict")
def test_evictions(case: dict[str, Any]):
    expected = expected_of(case)
    first, made, failed, given = played(case, "evict")
    steps = changes(made.steps, Eviction)
    lost = {pod["name"] for pod in case["input"]["pods"] if pod.get("evict_fails") or pod.get("absent")}
    gone = {step.pod.partition("/")[2]: change for step, change in steps if step.pod.partition("/")[2] not in lost}
    assert expected["evicted_set"] == sorted(gone)
    assert expected["grace"] == {name: change.grace_seconds for name, change in gone.items()}
    if expected.get("executed_in_order"):
        assert expected["executed_in_order"] == names([*failed, *(step.pod for step, _ in steps)])
    assert expected["gaps_left"] == gaps_left(case, "evict", made, given)
    check_order(expected.get("order"), first)


# --- rules -----------------------------------------------------------------------------------------------------------


def scope_of(given: dict[str, Any]) -> PodScope:
    """As policies read it; Crane cannot read negative priorities."""
    values, ranges = tuple(given["values"]), []
    if given["scope"] == "Priority":
        for text in values:
            lowest, dash, highest = text.rpartition("-") if text.count("-") == 1 and text[0] != "-" else ("", "", text)
            ranges.append((int(lowest), int(highest)) if dash else (int(text), int(text)))
        values = ()
        ranges = [each for each in ranges if each[0] <= each[1]]
    operator = given["operator"]
    if operator not in ("In", "NotIn"):
        operator, values, ranges = "In", (), []
    return PodScope(given["scope"], operator, values, tuple(ranges))


def pod_qos_of(given: dict[str, Any], actions: frozenset[str] = frozenset()) -> PodQos:
    requirements: list[Any] = [(key, "In", (value,)) for key, value in given.get("labels", {}).items()]
    requirements += [(each["key"], each["op"], tuple(each["values"])) for each in given.get("exprs", ())]
    scopes = None if given.get("nil_scope") else tuple(scope_of(each) for each in given.get("scopes", ()))
    return PodQos(given["name"], actions, LabelSelector(tuple(requirements)), scopes)


MENDED = {
    # A priority below 0 can be written, and every value that is excluded counts, not only the last.
    ("prio-negative", "n100"): True,
    ("prio-notin-two", "p1000"): False,
}


def test_pod_qos():
    case = next(each for each in VECTORS if each["id"] == "podqos-scopes")
    pods = [pod_of(each) for each in case["input"]["pods"]]
    for given in case["input"]["podqos"]:
        for pod in pods:
            expected = case["expected"]["head"]["match"][given["name"]][pod.name]
            expected = MENDED.get((given["name"], pod.name), expected)
            assert expected == matches(pod_qos_of(given), pod), (given["name"], pod.name)


def test_a_pod_without_a_priority_has_priority_0():
    case = next(each for each in VECTORS if each["id"] == "podqos-nil-priority-panics")
    (pod,), (given,) = case["input"]["pods"], case["input"]["podqos"]
    assert matches(pod_qos_of(given), pod_of(pod))


@cases("debounce_schedule_v06")
def test_counting_and_cool_down_as_in_v06(case: dict[str, Any]):
    given, memory, now, away = case["input"], AnalyzerState(), 1_000_000.0, None
    thresholds = {name: given[name] for name in ("avoidance_threshold", "restore_threshold")}
    rule = Rule("nq", "r", "m", 10.0, "a", **thresholds)
    policies = Policies((rule,), {"a": AvoidanceAction("a", given["cool_down_seconds"])})
    for above, elapsed, expected in zip(
        given["above"], given["seconds_since_previous"], case["expected"]["v0_6_0"], strict=True
    ):
        now += elapsed
        found = analyze(state_of({"m": 20.0 if above else 5.0}, time=now), policies, memory)
        memory = found.memory
        away = expected["disable"] or (away and not expected["restore"])
        assert memory.keeps_away is away
        assert expected["triggered"] == (found.findings[0].verdict is RuleVerdict.TRIGGERED)


@cases("merge_ratio")
def test_merged_ratios_are_the_largest(case: dict[str, Any]):
    merged = PodDemand(frozenset(), CpuThrottle(0, 0))
    for least, step in case["input"]["ratios"]:
        merged = merge(merged, PodDemand(frozenset(), CpuThrottle(least, step)))
    expected = case["expected"]["head"]
    assert CpuThrottle(expected["min"], expected["step"]) == merged.throttle


@cases("merge_grace")
def test_the_merged_grace_period_is_the_shortest(case: dict[str, Any]):
    merged = PodDemand(frozenset())
    for grace in case["input"]["graces"]:
        merged = merge(merged, PodDemand(frozenset(), grace_seconds=grace))
    assert case["expected"]["head"]["grace"] == merged.grace_seconds
