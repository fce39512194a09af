"""The emulator of Crane, compared with the golden cases of Crane (tests/vectors/crane.json): the answers of its code as
it is (`head`), and with its fatal faults repaired (`head_gapfix`)."""

from __future__ import annotations

from typing import Any

import pytest

from agent.model import AvoidanceAction, CpuThrottle, LabelSelector, PodState, Rule
from agent.policy.objects import whole_number
from tests.agent.crane import VECTORS, cases, names, pod_of, state_of, watermarks
from tests.reference.crane import executors, sorters
from tests.reference.crane.analyzer import CraneAnalyzer, CranePolicies
from tests.reference.crane.executors import CraneInputs, CranePlan
from tests.reference.crane.faults import FATAL
from tests.reference.crane.pod_qos import CranePodQos, CraneScope, matches

variants = pytest.mark.parametrize("repaired", [False, True], ids=["as it is", "repaired"])


def expected_of(case: dict[str, Any], *, repaired: bool) -> dict[str, Any]:
    expected: dict[str, Any] = case["expected"]["head"]
    return case["expected"].get("head_gapfix", expected) if repaired else expected


def inputs_of(case: dict[str, Any], pods: list[dict[str, Any]], *, repaired: bool) -> CraneInputs:
    return CraneInputs(
        state=case["input"]["state"],
        pods=[pod_of(each) for each in pods],
        ratios={pod_of(each).key: CpuThrottle(each.get("min", 0), each.get("step", 0)) for each in pods},
        excess=case["input"].get("excess", 0.0),
        absent=frozenset(pod_of(each).key for each in pods if each.get("absent")),
        failing=frozenset(
            [*case["input"].get("fail_containers", ()), *(pod_of(each).key for each in pods if each.get("evict_fails"))]
        ),
        repaired=FATAL if repaired else frozenset(),
    )


def shown(gaps: executors.Gaps) -> dict[str, Any]:
    return {name: "missed" if gap is None else pytest.approx(gap, abs=1e-6) for name, gap in gaps.items()}


@cases("sort")
def test_order(case: dict[str, Any]):
    found = sorters.ordered(case["input"]["sorter"], [pod_of(each) for each in case["input"]["pods"]])
    assert case["expected"]["head"]["order"] == [pod.name for pod in found]


def test_more_pods_than_go_sorts_by_insertion_are_refused():
    pods = [PodState("d", f"p{number}", f"p{number}") for number in range(13)]
    assert len(sorters.ordered("cpu", pods[:12])) == 12
    with pytest.raises(ValueError, match="13 pods"):
        sorters.ordered("cpu", pods)


@variants
@cases("gaps")
def test_gaps(case: dict[str, Any], repaired: bool):
    given = inputs_of(case, [], repaired=repaired)
    marks = {name: watermarks(case["input"].get(name)) for name in ("evict", "down", "up")}
    expected = expected_of(case, repaired=repaired)
    lower, higher = executors.throttling_gaps(given, marks["down"], marks["up"])
    found = {"throttle": lower, "throttle_down": lower, "throttle_up": higher}
    if "evict" in expected:
        found["evict"] = executors.eviction_gaps(given, marks["evict"])
    assert expected == {name: shown(found[name]) for name in expected}


@cases("divide")
def test_metrics_are_divided(case: dict[str, Any]):
    expected = case["expected"]["head"]
    for kind in ("evict", "throttle"):
        able, others = executors.quantified(kind, watermarks(case["input"]["evict"]))
        assert expected[f"{kind}_quantified"] == sorted(able)
        assert expected[f"{kind}_not_quantified"] == sorted(others)
        assert (able or [""])[-1] in expected[f"highest_{kind}able_any_of"]


def check(expected: dict[str, Any], made: CranePlan) -> None:
    if expected.get("panic"):
        assert made.panicked
        return
    assert not made.panicked
    assert expected["calls"] == [{"container": container, "cpu_quota": quota} for container, quota in made.calls]
    assert expected["error"] == made.failed
    assert expected["gaps_left"] == shown(made.gaps)
    assert expected["order"] == names(made.order)


@variants
@cases("throttle")
def test_throttling(case: dict[str, Any], repaired: bool):
    given = inputs_of(case, case["input"]["pods"], repaired=repaired)
    check(expected_of(case, repaired=repaired), executors.throttle(given, watermarks(case["input"]["down"])))


@variants
@cases("restore")
def test_restoring(case: dict[str, Any], repaired: bool):
    given = inputs_of(case, case["input"]["up_pods"], repaired=repaired)
    check(expected_of(case, repaired=repaired), executors.restore(given, watermarks(case["input"]["up"])))


@cases("evict")
def test_evictions(case: dict[str, Any]):
    expected = case["expected"]["head"]
    made = executors.evict(
        inputs_of(case, case["input"]["pods"], repaired=False), watermarks(case["input"].get("evict"))
    )
    assert expected["evicted_set"] == sorted(names(made.evicted))
    assert expected["gaps_left"] == shown(made.gaps)
    if "order" in expected:
        assert expected["order"] == names(made.order)
        assert expected["executed_in_order"] == names(made.executed)


def labels_of(given: dict[str, Any]) -> LabelSelector | None:
    requirements: list[Any] = [(key, "In", (value,)) for key, value in given.get("labels", {}).items()]
    requirements += [(each["key"], each["op"], tuple(each["values"])) for each in given.get("exprs", ())]
    return LabelSelector(tuple(requirements)) if requirements else None


def pod_qos_of(given: dict[str, Any]) -> CranePodQos:
    scopes = tuple(CraneScope(each["scope"], each["operator"], each["values"]) for each in given.get("scopes", ()))
    return CranePodQos(
        given["name"],
        frozenset(given.get("allowed", ())),
        labels_of(given),
        None if given.get("nil_scope") else scopes,
    )


def test_pod_qos():
    case = next(each for each in VECTORS if each["id"] == "podqos-scopes")
    for given in case["input"]["podqos"]:
        found = {pod["name"]: matches(pod_qos_of(given), pod_of(pod)) for pod in case["input"]["pods"]}
        assert case["expected"]["head"]["match"][given["name"]] == found, given["name"]


def policies_of(given: dict[str, Any]) -> CranePolicies:
    return CranePolicies(
        rules=tuple(
            Rule(
                policy=each["nodeqos"],
                name=each["name"],
                metric=each["metric"],
                watermark=float(whole_number(each["value"])),
                action=each["action"],
                avoidance_threshold=each["avoid"],
                restore_threshold=each["restore"],
                preview=each["strategy"] == "Preview",
            )
            for each in given["rules"]
        ),
        actions={
            each["name"]: AvoidanceAction(
                each["name"],
                each["cooldown"],
                throttle=CpuThrottle(each["throttle"]["min"], each["throttle"]["step"]) if "throttle" in each else None,
                evicts="evict" in each,
            )
            for each in given["actions"]
        },
        pod_qos=tuple(pod_qos_of(each) for each in given["podqos"]),
    )


@cases("analyze")
def test_cycles_of_the_analyzer(case: dict[str, Any]):
    analyzer, pods = CraneAnalyzer(policies_of(case["input"])), [pod_of(each) for each in case["input"]["pods"]]
    now = 1_000_000.0
    for cycle, expected in zip(case["input"]["cycles"], case["expected"]["head"]["cycles"], strict=True):
        now += cycle["dt"]
        made = analyzer.analyze(state_of(cycle["state"], pods, now))
        assert expected["notified"] == made.notified
        assert (expected["triggered"], expected["restored"]) == (made.triggered, made.restored)
        assert (expected["disable"], expected["restore"]) == (made.disable, made.restore)
        assert (expected["events"] or []) == made.events
        for name, marks, chosen in (
            ("down", made.down, made.down_pods),
            ("up", made.up, made.up_pods),
            ("evict", made.evict, made.evict_pods),
        ):
            assert watermarks(expected[f"{name}_wm"]) == {metric: tuple(values) for metric, values in marks.items()}
            assert expected[f"{name}_pods"] == names(sorted(chosen))
        assert set(expected["evict_grace"].values()) <= {None}
