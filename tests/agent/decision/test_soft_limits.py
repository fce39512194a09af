"""The gentler steps: a weight before a quota, memory.high before an eviction, and both given back."""

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
    EvictStep,
    KnobStep,
    Original,
    PodKnobs,
    PodQos,
    PodState,
    Policies,
    QuotaStep,
    Rule,
    State,
)
from tests.agent.scenes import CPU, MEMORY, analysis, pod, running, state

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
    """Of each pod by name, from what to what."""
    steps = [step for step in made.steps if isinstance(step, KnobStep)]
    return {step.pod.partition("/")[2]: (step.before, step.after) for step in steps}


def why(made: Plan) -> dict[str, str]:
    return {each.pod.partition("/")[2]: each.why for stage in made.stages for each in stage.candidates}


def knobs(*names: str, **values: Any) -> dict[str, PodKnobs]:
    return {f"uid-{name}": PodKnobs(**{"weight": 100, "memory_high": UNLIMITED, **values}) for name in names}


# --- cpu.weight ------------------------------------------------------------------------------------------------------


def test_a_weight_goes_down_in_the_place_of_the_first_quota():
    pods = [running("a", 2.0), running("b", 2.0)]
    made = throttles(pods, knobs("a", "b"))
    assert {"a": (100, 1)} == turned(made)
    assert not any(isinstance(step, QuotaStep) for step in made.steps)
    assert "set cpu.weight of default/a from 100 to 1: releases 1000 millicores" in made.sentences[-1]


def test_the_quota_follows_where_the_weight_was_in_vain():
    pods = [running("a", 2.0), running("b", 2.0)]
    first = throttles(pods, knobs("a", "b"))
    ledger = with_steps((), first.steps, NOW, EXACT)
    after = {**knobs("a", weight=1, original_weight=100), **knobs("b")}
    assert () == throttles(pods, after, ledger=ledger, time=NOW + 10.0).steps
    later = NOW + 31.0
    ledger = still_pending(ledger, state(pods, later), EXACT)
    (step,) = throttles(pods, after, ledger=ledger, time=later).steps
    assert isinstance(step, QuotaStep)
    assert ("default/a", 100_000) == (step.pod, step.after)


def test_while_a_weight_takes_effect_its_pod_is_left_alone_whatever_more_is_needed():
    pods = [running("a", 2.0), running("b", 2.0)]
    ledger = with_steps((), throttles(pods, knobs("a", "b")).steps, NOW, EXACT)
    after = {**knobs("a", weight=1, original_weight=100), **knobs("b")}
    made = throttles(pods, after, used=9_500.0, ledger=ledger, time=NOW + 10.0)
    assert {"b": (100, 1)} == turned(made)
    assert "its cpu.weight was lowered recently and is still taking effect" == why(made)["a"]


def test_a_second_plan_of_a_cycle_leaves_alone_what_the_first_one_turned():
    """The knobs were read before, so what they say is past."""
    pods = [running("a", 2.0), running("b", 2.0)]
    ledger = with_steps((), throttles(pods, knobs("a", "b")).steps, NOW, EXACT)
    again = throttles(pods, knobs("a", "b"), used=9_500.0, ledger=ledger)
    assert {"b": (100, 1)} == turned(again)


def test_who_goes_counts_once_whatever_was_taken_from_it_before():
    one = running("a", 2.0)
    lowered = throttles([one], knobs("a")).steps
    going = EvictStep(one.key, one.uid, 30.0, CPU, {"cpu": 2000.0})
    ledger = with_steps(with_steps((), lowered, NOW, EXACT), (going,), NOW, EXACT)
    assert {"cpu": 2000.0} == falling(ledger, state([one], NOW))


def test_a_weight_that_helped_is_no_longer_in_flight():
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
    ids=["not known", "the least already", "the least of version 1", "had its turn"],
)
def test_without_a_weight_to_lower_the_quota_is(of_a: PodKnobs):
    (step,) = throttles([running("a", 2.0)], {"uid-a": of_a}).steps
    assert isinstance(step, QuotaStep)


def test_a_policy_that_asks_for_none_gets_none():
    pods = [running("a", 2.0)]
    demand = Demand(down={CPU: (8000.0,)}, throttled=wanted(pods, CPU))
    made = plan(
        analysis(demand),
        PlanInputs(state(pods, NOW, **{CPU: 9000.0}), Metrics(), EXACT, lowered=LoweredValues(knobs=knobs("a"))),
    )
    assert {} == turned(made)


def test_a_weight_comes_back_after_the_quotas():
    owing = running("a", 0.5, quota=50_000, throttled=False)
    lowered = knobs("a", weight=1, original_weight=100)

    def restored(one: PodState, originals: dict[str, Original]) -> Plan:
        demand = Demand(up={CPU: (8000.0,)}, restored=wanted([one], CPU))
        seen = state([one], NOW, **{CPU: 1000.0, "cpu_core_numbers": 8.0})
        return plan(analysis(demand), PlanInputs(seen, Metrics(), EXACT, LoweredValues(originals, lowered)))

    (first,) = restored(owing, {"a-main": Original(None)}).steps
    assert isinstance(first, QuotaStep)
    assert {"a": (1, 100)} == turned(restored(running("a", 0.5), {}))


@settings(max_examples=60)
@given(
    uses=st.lists(st.integers(0, 40).map(lambda tenths: tenths / 10.0), min_size=1, max_size=8),
    used=st.floats(7_000.0, 20_000.0),
)
def test_as_many_pods_lose_weight_as_would_lose_quota_and_no_others(uses: list[float], used: float):
    pods = [running(f"p{number}", cpu) for number, cpu in enumerate(uses)]
    weights = knobs(*(each.name for each in pods))
    gently, hard = throttles(pods, weights, used=used), throttles(pods, {}, used=used)
    quotas = {step.pod.partition("/")[2] for step in hard.steps if isinstance(step, QuotaStep)}
    assert quotas == set(turned(gently))


# --- memory.high -----------------------------------------------------------------------------------------------------


def test_memory_high_is_set_to_just_below_the_usage():
    pods = [pod("a", memory=100 * MIB), pod("b", memory=80 * MIB)]
    made = holds(pods, 3.0 * MIB, knobs("a", "b"))
    assert {"a": (None, 97 * MIB)} == turned(made)
    assert "the gap is already closed" == why(made)["b"]


def test_no_more_than_a_twentieth_is_taken_from_a_pod_and_the_rest_from_the_next():
    pods = [pod("a", memory=100 * MIB), pod("b", memory=80 * MIB), pod("c", memory=1 * MIB)]
    made = holds(pods, 7.0 * MIB, knobs("a", "b", "c"))
    assert {"a": (None, 95 * MIB), "b": (None, 78 * MIB)} == turned(made)


def test_a_request_is_left_alone():
    pods = [pod("a", memory=100 * MIB, memory_request=99 * MIB + 1), pod("b", memory=80 * MIB, memory_request=90 * MIB)]
    made = holds(pods, 50.0 * MIB, knobs("a", "b"))
    assert {"a": (None, 99 * MIB + GRAIN)} == turned(made)
    assert "its memory usage does not exceed its request" == why(made)["b"]


@pytest.mark.parametrize(
    ("of_a", "memory", "reason"),
    [
        (PodKnobs(weight=100), 100 * MIB, "its control group has no memory.high (cgroup v2 only)"),
        (PodKnobs(memory_high=99.0 * MIB), 100 * MIB, "below its usage already"),
        (PodKnobs(memory_high=UNLIMITED), None, "its memory usage is unknown"),
    ],
    ids=["version 1", "in vain", "not known"],
)
def test_who_cannot_be_held_back_is_told_why(of_a: PodKnobs, memory: int | None, reason: str):
    made = holds([pod("a", memory=memory)], 5.0 * MIB, {"uid-a": of_a})
    assert () == made.steps
    assert reason in why(made)["a"]


def test_what_is_hoped_for_is_not_evicted_for_and_then_it_is():
    pods = [pod("a", memory=100 * MIB)]
    first = holds(pods, 4.0 * MIB, knobs("a"), evict=True)
    assert [KnobStep] == [type(step) for step in first.steps]
    ledger = with_steps((), first.steps, NOW, EXACT)
    lowered = knobs("a", memory_high=96.0 * MIB, original_high=UNLIMITED)
    assert () == holds(pods, 4.0 * MIB, lowered, evict=True, ledger=ledger, time=NOW + 10.0).steps
    later = NOW + 31.0
    ledger = still_pending(ledger, state(pods, later), EXACT)
    in_vain = holds(pods, 4.0 * MIB, lowered, evict=True, ledger=ledger, time=later)
    assert [EvictStep] == [type(step) for step in in_vain.steps]


def test_a_step_whose_gap_has_closed_by_itself_is_dropped():
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
def test_nobody_is_held_back_for_nothing_or_below_its_request(crowd: tuple[list[PodState], float]):
    pods, gap = crowd
    made = holds(pods, gap, knobs(*(each.name for each in pods)))
    steps = [step for step in made.steps if isinstance(step, KnobStep)]
    by_key = {each.key: each for each in pods}
    for step in steps:
        one = by_key[step.pod]
        assert step.after is not None
        assert one.memory is not None
        assert (one.memory_request or 0) <= step.after < one.memory
        assert step.after % GRAIN == 0
        assert step.released == {"memory": one.memory - step.after}
    released = [step.released["memory"] for step in steps]
    assert sum(released[:-1]) < max(gap, 0.0) or not steps
    (stage,) = made.stages
    assert stage.gap_after == pytest.approx(gap - sum(released), abs=1.0)


# --- memory.high, back -----------------------------------------------------------------------------------------------

HOLD = AvoidanceAction("hold", 60.0, soft_limits=frozenset({MEMORY_HIGH}))
EVERYBODY = PodQos("all", frozenset({"hold", "throttle"}), scopes=())


def judged(used: float, of_pods: dict[str, PodKnobs], pods: list[PodState], time: float, ledger: Ledger = ()) -> Plan:
    """By a rule that holds back above 1000 MiB, and has been quiet for long enough."""
    rule = Rule("memory", "high", MEMORY, 1000.0 * MIB, "hold")
    seen: State = state(pods, time, **{MEMORY: used})
    policies = Policies((rule,), {"hold": HOLD}, (EVERYBODY,))
    found = analyze(seen, policies, AnalyzerState(), lowered=LoweredValues(knobs=of_pods))
    return plan(found, PlanInputs(seen, Metrics(), EXACT, ledger=ledger, lowered=LoweredValues(knobs=of_pods)))


def test_memory_high_comes_back_to_one_pod_at_a_time():
    pods = [pod("a", memory=95 * MIB), pod("b", memory=76 * MIB)]
    held = knobs("a", "b", memory_high=95.0 * MIB, original_high=UNLIMITED)
    made = judged(500.0 * MIB, held, pods, NOW)
    assert {"b": (95 * MIB, None)} == turned(made)  # the last one to be held back
    assert [Mode.ONE] == [stage.mode for stage in made.stages]
    assert "one at a time" == why(made)["a"]
    ledger = with_steps((), made.steps, NOW, EXACT)
    left = {**held, **knobs("b")}
    for seconds, back in ((10.0, {}), (31.0, {"a": (95 * MIB, None)})):
        now = NOW + seconds
        seen = state(pods, now)
        made = judged(500.0 * MIB, left, pods, now, still_pending(ledger, seen, EXACT))
        assert back == turned(made)


def test_over_the_watermark_nothing_comes_back():
    pods = [pod("a", memory=95 * MIB)]
    held = knobs("a", memory_high=95.0 * MIB, original_high=UNLIMITED)
    assert () == tuple(s for s in judged(1001.0 * MIB, held, pods, NOW).steps if s.kind == "restore")


def test_whom_no_rule_holds_back_any_more_gets_everything_back_at_once():
    pods = [running("a", 1.0, memory=95 * MIB), running("b", 1.0, memory=76 * MIB)]
    taken = knobs("a", "b", weight=1, original_weight=50, memory_high=70.0 * MIB, original_high=200.0 * MIB)
    seen = state(pods, NOW)
    found = analyze(seen, Policies(), AnalyzerState(), lowered=LoweredValues(knobs=taken))
    made = plan(found, PlanInputs(seen, Metrics(), EXACT, lowered=LoweredValues(knobs=taken)))
    steps = [(step.pod, step.knob, step.after, step.kind) for step in made.steps if isinstance(step, KnobStep)]
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
    assert not [step for step in second.steps if isinstance(step, KnobStep)]


# --- over many cycles ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reclaimable", [True, False], ids=["what is over the limit goes", "nothing goes"])
def test_fifty_cycles_settle_just_under_the_watermark_or_give_up(reclaimable: bool):
    """Pods that want more than there is, between a watermark of 1000 MiB and 900 MiB that restore: they are held back
    once, and no more than is needed; in vain, each is tried once and then left alone."""
    rule = Rule("memory", "high", MEMORY, 1000.0 * MIB, "hold", restore_watermark=900.0 * MIB)
    policies = Policies((rule,), {"hold": HOLD}, (EVERYBODY,))
    wants = {f"p{number}": (110 - number) * MIB for number in range(10)}  # 1055 MiB
    highs = dict.fromkeys(wants, UNLIMITED)
    memory, ledger, steps = AnalyzerState(), Ledger(), list[KnobStep]()
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
            if isinstance(step, KnobStep):
                steps.append(step)
                highs[step.pod.partition("/")[2]] = UNLIMITED if step.after is None else float(step.after)
    assert {"hold"} == {step.kind for step in steps}
    if reclaimable:
        assert 1000.0 * MIB - GRAIN < used <= 1000.0 * MIB
        assert len(steps) == 11  # a twentieth of all is not enough: the first pod gives a little more
    else:
        assert [step.pod for step in steps] == [f"default/{name}" for name in wants]
