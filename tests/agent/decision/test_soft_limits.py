"""Soft limits: cpu.weight before a quota, memory.high before an eviction, and the restore of both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.decision.analysis import AnalyzerState, Demand, PodDemand
from agent.decision.analyzer import analyze
from agent.decision.ledger import Ledger, falling, still_pending, with_steps
from agent.decision.plan import Mode, Plan
from agent.decision.plan_inputs import PlanInputs
from agent.decision.planner import plan, still_needed
from agent.decision.restoring import LoweredValues
from agent.decision.soft_limits import GRAIN
from agent.metrics.options import DecisionOptions
from agent.metrics.registry import Metrics
from agent.model import (
    CPU_WEIGHT,
    MEMORY_HIGH,
    AvoidanceAction,
    CpuThrottle,
    Eviction,
    KnobChange,
    Original,
    PodKnobs,
    PodQos,
    PodState,
    Policies,
    QuotaChange,
    Rule,
    State,
    Step,
)
from tests.agent.scenes import CPU, MEMORY, analysis, changes, pod, running, state

EXACT = DecisionOptions(excess=0.0)
NOW = 1_000.0
MIB = 1 << 20
UNLIMITED = float("inf")


def wanted(pods: list[PodState], metric: str, **values: Any) -> dict[str, PodDemand]:
    return {each.uid: PodDemand(frozenset({metric}), CpuThrottle(0, 50), **values) for each in pods}


def throttles(pods: list[PodState], knobs: dict[str, PodKnobs], *, used: float = 9000.0, **values: Any) -> Plan:
    demand = Demand(down={CPU: (8000.0,)}, throttled=wanted(pods, CPU, weight_first=True))
    seen = state(pods, values.pop("time", NOW), **{CPU: used})
    return plan(analysis(demand), PlanInputs(seen, Metrics(), EXACT, lowered=LoweredValues(knobs=knobs), **values))


def holds(pods: list[PodState], gap: float, knobs: dict[str, PodKnobs], *, evict: bool = False, **values: Any) -> Plan:
    everybody = wanted(pods, MEMORY)
    marks = {MEMORY: (1000.0 * MIB,)}
    demand = Demand(memory_high=marks, held=everybody, evict=marks if evict else {}, evicted=everybody if evict else {})
    seen = state(pods, values.pop("time", NOW), **{MEMORY: 1000.0 * MIB + gap})
    return plan(analysis(demand), PlanInputs(seen, Metrics(), EXACT, lowered=LoweredValues(knobs=knobs), **values))


def turned(made: Plan) -> dict[str, tuple[int | None, int | None]]:
    """The values before and after the change, by the name of the pod."""
    found = changes(made.steps, KnobChange)
    return {step.pod.partition("/")[2]: (change.before, change.after) for step, change in found}


def why(made: Plan) -> dict[str, str]:
    return {each.pod.partition("/")[2]: each.why for stage in made.stages for each in stage.candidates}


def knobs(*names: str, **values: Any) -> dict[str, PodKnobs]:
    return {f"uid-{name}": PodKnobs(**{"weight": 100, "memory_high": UNLIMITED, **values}) for name in names}


# --- cpu.weight ------------------------------------------------------------------------------------------------------


def test_a_weight_is_lowered_instead_of_the_first_quota():
    pods = [running("a", 2.0), running("b", 2.0)]
    made = throttles(pods, knobs("a", "b"))
    assert {"a": (100, 1)} == turned(made)
    assert not any(isinstance(step.change, QuotaChange) for step in made.steps)
    assert "set cpu.weight of default/a from 100 to 1: releases 1000 millicores" in made.sentences[-1]


def test_the_quota_follows_if_the_weight_has_no_effect():
    pods = [running("a", 2.0), running("b", 2.0)]
    first = throttles(pods, knobs("a", "b"))
    ledger = with_steps((), first.steps, NOW, EXACT)
    after = {**knobs("a", weight=1, original_weight=100), **knobs("b")}
    assert () == throttles(pods, after, ledger=ledger, time=NOW + 10.0).steps
    later = NOW + 31.0
    ledger = still_pending(ledger, state(pods, later), EXACT)
    (step,) = throttles(pods, after, ledger=ledger, time=later).steps
    assert isinstance(step.change, QuotaChange)
    assert ("default/a", 100_000) == (step.pod, step.change.after)


def test_a_pod_gets_no_step_while_its_weight_takes_effect():
    pods = [running("a", 2.0), running("b", 2.0)]
    ledger = with_steps((), throttles(pods, knobs("a", "b")).steps, NOW, EXACT)
    after = {**knobs("a", weight=1, original_weight=100), **knobs("b")}
    made = throttles(pods, after, used=9_500.0, ledger=ledger, time=NOW + 10.0)
    assert {"b": (100, 1)} == turned(made)
    assert "its cpu.weight was lowered recently and is still taking effect" == why(made)["a"]


def test_a_second_plan_of_a_cycle_does_not_change_knobs_of_the_first():
    """The knobs were read before, so their values are outdated."""
    pods = [running("a", 2.0), running("b", 2.0)]
    ledger = with_steps((), throttles(pods, knobs("a", "b")).steps, NOW, EXACT)
    again = throttles(pods, knobs("a", "b"), used=9_500.0, ledger=ledger)
    assert {"b": (100, 1)} == turned(again)


def test_an_evicted_pod_counts_once_after_other_steps():
    one = running("a", 2.0)
    lowered = throttles([one], knobs("a")).steps
    going = Step("evict", Eviction(30.0), one.key, one.uid, CPU, {"cpu": 2000.0})
    ledger = with_steps(with_steps((), lowered, NOW, EXACT), (going,), NOW, EXACT)
    assert {"cpu": 2000.0} == falling(ledger, state([one], NOW))


def test_a_weight_with_an_effect_is_not_in_flight():
    first = throttles([running("a", 2.0)], knobs("a"))
    ledger = with_steps((), first.steps, NOW, EXACT)
    for uses, left in ((2.0, {"cpu": 1000.0}), (1.4, {"cpu": pytest.approx(400.0)}), (1.0, {})):
        seen = state([running("a", uses)], NOW + 10.0)
        assert left == falling(still_pending(ledger, seen, EXACT), seen)


@pytest.mark.parametrize(
    "of_a",
    [
        PodKnobs(),
        PodKnobs(weight=1),
        PodKnobs(weight=2, least_weight=2),
        PodKnobs(weight=50, original_weight=100),
    ],
    ids=["unknown", "the minimum already", "the minimum of version 1", "lowered before"],
)
def test_the_quota_is_lowered_if_the_weight_cannot_be(of_a: PodKnobs):
    (step,) = throttles([running("a", 2.0)], {"uid-a": of_a}).steps
    assert isinstance(step.change, QuotaChange)


def test_no_weight_is_lowered_without_the_annotation():
    pods = [running("a", 2.0)]
    demand = Demand(down={CPU: (8000.0,)}, throttled=wanted(pods, CPU))
    made = plan(
        analysis(demand),
        PlanInputs(state(pods, NOW, **{CPU: 9000.0}), Metrics(), EXACT, lowered=LoweredValues(knobs=knobs("a"))),
    )
    assert {} == turned(made)


def test_a_weight_is_restored_after_the_quotas():
    owing = running("a", 0.5, quota=50_000, throttled=False)
    lowered = knobs("a", weight=1, original_weight=100)

    def restored(one: PodState, originals: dict[str, Original]) -> Plan:
        demand = Demand(up={CPU: (8000.0,)}, restored=wanted([one], CPU))
        seen = state([one], NOW, **{CPU: 1000.0, "cpu_core_numbers": 8.0})
        return plan(analysis(demand), PlanInputs(seen, Metrics(), EXACT, LoweredValues(originals, lowered)))

    (first,) = restored(owing, {"a-main": Original(None)}).steps
    assert isinstance(first.change, QuotaChange)
    assert {"a": (1, 100)} == turned(restored(running("a", 0.5), {}))


@settings(max_examples=60)
@given(
    uses=st.lists(st.integers(0, 40).map(lambda tenths: tenths / 10.0), min_size=1, max_size=8),
    used=st.floats(7_000.0, 20_000.0),
)
def test_weights_are_lowered_on_the_pods_whose_quotas_would_be(uses: list[float], used: float):
    pods = [running(f"p{number}", cpu) for number, cpu in enumerate(uses)]
    weights = knobs(*(each.name for each in pods))
    gently, hard = throttles(pods, weights, used=used), throttles(pods, {}, used=used)
    quotas = {step.pod.partition("/")[2] for step in hard.steps if isinstance(step.change, QuotaChange)}
    assert quotas == set(turned(gently))


# --- memory.high -----------------------------------------------------------------------------------------------------


def test_memory_high_is_set_to_just_below_the_usage():
    pods = [pod("a", memory=100 * MIB), pod("b", memory=80 * MIB)]
    made = holds(pods, 3.0 * MIB, knobs("a", "b"))
    assert {"a": (None, 97 * MIB)} == turned(made)
    assert "the gap is already closed" == why(made)["b"]


def test_a_pod_releases_at_most_a_twentieth_and_the_next_one_the_rest():
    pods = [pod("a", memory=100 * MIB), pod("b", memory=80 * MIB), pod("c", memory=1 * MIB)]
    made = holds(pods, 7.0 * MIB, knobs("a", "b", "c"))
    assert {"a": (None, 95 * MIB), "b": (None, 78 * MIB)} == turned(made)


def test_memory_high_stays_above_the_request():
    equal = pod("c", memory=70 * MIB, memory_request=70 * MIB)
    pods = [pod("a", memory=100 * MIB, memory_request=99 * MIB + 1), pod("b", memory=80 * MIB, memory_request=90 * MIB)]
    made = holds([*pods, equal], 50.0 * MIB, knobs("a", "b", "c"))
    assert {"a": (None, 99 * MIB + GRAIN)} == turned(made)
    assert ["its memory usage does not exceed its request"] * 2 == [why(made)[name] for name in "bc"]


@pytest.mark.parametrize(
    ("of_a", "memory", "reason"),
    [
        (PodKnobs(weight=100), 100 * MIB, "its control group has no memory.high (cgroup v2 only)"),
        (PodKnobs(memory_high=99.0 * MIB), 100 * MIB, "below its usage already"),
        (PodKnobs(memory_high=UNLIMITED), None, "its memory usage is unknown"),
    ],
    ids=["version 1", "without effect", "unknown"],
)
def test_a_pod_whose_memory_high_cannot_be_lowered_is_explained(of_a: PodKnobs, memory: int | None, reason: str):
    made = holds([pod("a", memory=memory)], 5.0 * MIB, {"uid-a": of_a})
    assert () == made.steps
    assert reason in why(made)["a"]


def test_a_limit_works_while_the_usage_exceeds_it_by_at_most_a_hundredth():
    for usage, after in ((101 * MIB, {"a": (100 * MIB, 99 * MIB)}), (101 * MIB + 1, {})):
        assert after == turned(holds([pod("a", memory=usage)], 2.0 * MIB, knobs("a", memory_high=100.0 * MIB)))


def test_evictions_wait_for_the_effect_of_memory_high():
    pods = [pod("a", memory=100 * MIB)]
    first = holds(pods, 4.0 * MIB, knobs("a"), evict=True)
    assert [KnobChange] == [type(step.change) for step in first.steps]
    ledger = with_steps((), first.steps, NOW, EXACT)
    lowered = knobs("a", memory_high=96.0 * MIB, original_high=UNLIMITED)
    assert () == holds(pods, 4.0 * MIB, lowered, evict=True, ledger=ledger, time=NOW + 10.0).steps
    later = NOW + 31.0
    ledger = still_pending(ledger, state(pods, later), EXACT)
    in_vain = holds(pods, 4.0 * MIB, lowered, evict=True, ledger=ledger, time=later)
    assert [Eviction] == [type(step.change) for step in in_vain.steps]


def test_a_step_is_dropped_if_its_gap_is_closed():
    pods = [pod("a", memory=100 * MIB)]
    made = holds(pods, 4.0 * MIB, knobs("a"))
    (step,) = made.steps
    for gap, needed in ((4.0, ""), (0.0, f"the gap of {MEMORY} is closed already")):
        again = PlanInputs(
            state(pods, NOW, **{MEMORY: (1000.0 + gap) * MIB}),
            Metrics(),
            EXACT,
            lowered=LoweredValues(knobs=knobs("a")),
        )
        assert needed == still_needed(step, made, again)


@st.composite
def crowds(draw: Any) -> tuple[list[PodState], float]:
    sizes = draw(st.lists(st.integers(0, 500 * MIB), min_size=1, max_size=8))
    requests = st.none() | st.integers(1, 600 * MIB)
    pods = [pod(f"p{number}", memory=size, memory_request=draw(requests)) for number, size in enumerate(sizes)]
    return pods, draw(st.floats(-10.0 * MIB, 200.0 * MIB))


@settings(max_examples=100)
@given(crowds())
def test_memory_high_is_lowered_only_for_a_gap_and_not_below_the_request(crowd: tuple[list[PodState], float]):
    pods, gap = crowd
    made = holds(pods, gap, knobs(*(each.name for each in pods)))
    steps = changes(made.steps, KnobChange)
    by_key = {each.key: each for each in pods}
    for step, change in steps:
        one = by_key[step.pod]
        assert change.after is not None
        assert one.memory is not None
        assert (one.memory_request or 0) <= change.after < one.memory
        assert change.after % GRAIN == 0
        assert step.released == {"memory": one.memory - change.after}
    released = [step.released["memory"] for step, _ in steps]
    assert sum(released[:-1]) < max(gap, 0.0) or not steps
    (stage,) = made.stages
    assert stage.gap_after == pytest.approx(gap - sum(released), abs=1.0)


# --- restoring memory.high -------------------------------------------------------------------------------------------

HOLD = AvoidanceAction("hold", 60.0, soft_limits=frozenset({MEMORY_HIGH}))
EVERYBODY = PodQos("all", frozenset({"hold", "throttle"}), scopes=())


def judged(used: float, of_pods: dict[str, PodKnobs], pods: list[PodState], time: float, ledger: Ledger = ()) -> Plan:
    """The plan for a rule that lowers memory.high above 1000 MiB and has been quiet for long enough."""
    rule = Rule("memory", "high", MEMORY, 1000.0 * MIB, "hold")
    seen: State = state(pods, time, **{MEMORY: used})
    policies = Policies((rule,), {"hold": HOLD}, (EVERYBODY,))
    found = analyze(seen, policies, AnalyzerState(), lowered=LoweredValues(knobs=of_pods))
    return plan(found, PlanInputs(seen, Metrics(), EXACT, ledger=ledger, lowered=LoweredValues(knobs=of_pods)))


def test_memory_high_is_restored_on_one_pod_at_a_time_near_the_watermark():
    pods = [pod("a", memory=95 * MIB), pod("b", memory=76 * MIB)]
    held = knobs("a", "b", memory_high=95.0 * MIB, original_high=UNLIMITED)
    made = judged(900.0 * MIB, held, pods, NOW)
    assert {"b": (95 * MIB, None)} == turned(made)  # the last pod whose memory.high was lowered
    assert [Mode.ASSUMED] == [stage.mode for stage in made.stages]
    assert "the gap is too small for it and the pods before it" == why(made)["a"]
    ledger = with_steps((), made.steps, NOW, EXACT)
    left = {**held, **knobs("b")}
    for seconds, back in ((10.0, {}), (31.0, {"a": (95 * MIB, None)})):
        now = NOW + seconds
        seen = state(pods, now)
        made = judged(900.0 * MIB, left, pods, now, still_pending(ledger, seen, EXACT))
        assert back == turned(made)


@pytest.mark.parametrize(("used", "count"), [(100.0, 50), (500.0, 50), (940.0, 6), (995.0, 1), (1000.0, 1)])
def test_memory_high_of_as_many_pods_is_restored_as_the_gap_has_room_for(used: float, count: int):
    """An idle node is restored at once, however many pods have a lowered memory.high."""
    pods = [pod(f"p{number:02}", memory=10 * MIB) for number in range(50)]
    held = knobs(*(each.name for each in pods), memory_high=10.0 * MIB, original_high=UNLIMITED)
    assert len(turned(judged(used * MIB, held, pods, NOW))) == count


def test_memory_high_is_not_restored_above_the_watermark():
    pods = [pod("a", memory=95 * MIB)]
    held = knobs("a", memory_high=95.0 * MIB, original_high=UNLIMITED)
    assert () == tuple(s for s in judged(1001.0 * MIB, held, pods, NOW).steps if s.kind == "restore")


def test_knobs_without_a_rule_are_restored_at_once():
    pods = [running("a", 1.0, memory=95 * MIB), running("b", 1.0, memory=76 * MIB)]
    taken = knobs("a", "b", weight=1, original_weight=50, memory_high=70.0 * MIB, original_high=200.0 * MIB)
    seen = state(pods, NOW)
    found = analyze(seen, Policies(), AnalyzerState(), lowered=LoweredValues(knobs=taken))
    made = plan(found, PlanInputs(seen, Metrics(), EXACT, lowered=LoweredValues(knobs=taken)))
    steps = [(step.pod, change.knob, change.after, step.kind) for step, change in changes(made.steps, KnobChange)]
    assert [
        (f"default/{name}", knob, after, "restore")
        for name in "ab"
        for knob, after in ((CPU_WEIGHT, 50), (MEMORY_HIGH, 200 * MIB))
    ] == steps


def test_a_second_plan_of_a_cycle_does_not_restore_a_pod_without_a_rule_again():
    pods = [running("a", 1.0, memory=95 * MIB)]
    lowered = LoweredValues(knobs=knobs("a", weight=1, original_weight=50, memory_high=70.0 * MIB, original_high=1e9))
    given = PlanInputs(state(pods, NOW), Metrics(), EXACT, lowered)
    found = analyze(given.state, Policies(), AnalyzerState(), lowered=lowered)
    first = plan(found, given)
    assert len(first.steps) == 3  # weight, memory.high, and scheduling
    second = plan(found, replace(given, ledger=with_steps((), first.steps, NOW, EXACT)))
    assert not [step for step in second.steps if isinstance(step.change, KnobChange)]


# --- over many cycles ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reclaimable", [True, False], ids=["what is over the limit goes", "nothing goes"])
def test_fifty_cycles_end_just_below_the_watermark_or_stop(reclaimable: bool):
    """Pods that use more memory than is available, between a watermark of 1000 MiB and a restore at 900 MiB:
    memory.high is lowered once per pod, by no more than is needed. If this has no effect, each pod is tried once and
    then left alone."""
    rule = Rule("memory", "high", MEMORY, 1000.0 * MIB, "hold", restore_watermark=900.0 * MIB)
    policies = Policies((rule,), {"hold": HOLD}, (EVERYBODY,))
    wants = {f"p{number}": (110 - number) * MIB for number in range(10)}  # 1055 MiB
    highs = dict.fromkeys(wants, UNLIMITED)
    memory, ledger, steps = AnalyzerState(), Ledger(), list[Step]()
    used = 0.0
    for cycle in range(50):
        now = NOW + 10.0 * cycle
        uses = {name: int(min(want, highs[name])) if reclaimable else want for name, want in wants.items()}
        used = float(sum(uses.values()))
        pods = [pod(name, memory=uses[name]) for name in wants]
        lowered = {
            f"uid-{name}": PodKnobs(memory_high=high, original_high=None if high == UNLIMITED else UNLIMITED)
            for name, high in highs.items()
        }
        seen = state(pods, now, **{MEMORY: used})
        ledger = still_pending(ledger, seen, EXACT)
        found = analyze(seen, policies, memory, lowered=LoweredValues(knobs=lowered))
        memory = found.memory
        made = plan(found, PlanInputs(seen, Metrics(), EXACT, ledger=ledger, lowered=LoweredValues(knobs=lowered)))
        ledger = with_steps(ledger, made.steps, now, EXACT)
        for step in made.steps:
            if isinstance(step.change, KnobChange):
                steps.append(step)
                highs[step.pod.partition("/")[2]] = UNLIMITED if step.change.after is None else float(step.change.after)
    assert {"hold"} == {step.kind for step in steps}
    if reclaimable:
        assert 1000.0 * MIB - GRAIN < used <= 1000.0 * MIB
        assert len(steps) == 11  # a twentieth of all is not enough: the first pod gives a little more
    else:
        assert [step.pod for step in steps] == [f"default/{name}" for name in wants]
