"""The analyzer: from samples and counts to the demand of the policies."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, permutations
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.decision.analysis import Analysis, AnalyzerState, PodDemand
from agent.decision.analyzer import analyze, merge
from agent.decision.plan import RuleVerdict
from agent.decision.pod_selection import protection
from agent.decision.restoring import LoweredValues
from agent.metrics.registry import Metrics
from agent.model import (
    AvoidanceAction,
    CpuThrottle,
    LabelSelector,
    MetricSample,
    Original,
    PodKnobs,
    PodQos,
    PodScope,
    PodState,
    Policies,
    Rule,
    State,
)
from agent.qos import QosClass
from tests.agent.scenes import CPU, MEMORY, pod, running, state

EVERYBODY = PodQos("all", frozenset({"throttle", "evict", "away"}), scopes=())
THROTTLE = AvoidanceAction("throttle", 60.0, throttle=CpuThrottle(10, 20))
EVICT = AvoidanceAction("evict", 60.0, evicts=True, grace_seconds=5.0)
AWAY = AvoidanceAction("away", 60.0)


def rule(name: str = "r", action: str = "throttle", watermark: float = 100.0, **values: Any) -> Rule:
    return Rule("nq", name, values.pop("metric", "m"), watermark, action, **values)


def policies(*rules: Rule, pod_qos: tuple[PodQos, ...] = (EVERYBODY,)) -> Policies:
    return Policies(rules, {each.name: each for each in (THROTTLE, EVICT, AWAY)}, pod_qos)


class Cycles:
    """Runs the analyzer with one sample after the other."""

    def __init__(self, held: Policies, pods: tuple[PodState, ...] = (), originals: dict[str, Original] | None = None):
        self.policies, self.pods, self.originals = held, pods, originals or {}
        self.memory, self.now = AnalyzerState(), 1_000.0

    def see(self, sample: float | None, seconds: float = 10.0) -> Analysis:
        self.now += seconds
        metrics = {} if sample is None else {"m": (MetricSample(sample, self.now),)}
        seen = State(self.now, metrics, self.pods, {"m": "the collector failed"} if sample is None else {})
        found = analyze(seen, self.policies, self.memory, lowered=LoweredValues(self.originals))
        self.memory = found.memory
        return found

    def verdicts(self, *samples: float | None) -> list[RuleVerdict]:
        return [self.see(sample).findings[0].verdict for sample in samples]


Q, C, T, H, R, M = (
    RuleVerdict.QUIET,
    RuleVerdict.COUNTING,
    RuleVerdict.TRIGGERED,
    RuleVerdict.HOLDING,
    RuleVerdict.RESTORED,
    RuleVerdict.MISSING,
)


def test_above_is_strictly_greater():
    assert [Q, T] == Cycles(policies(rule())).verdicts(100.0, 100.1)


def test_consecutive_samples_above_are_counted():
    cycles = Cycles(policies(rule(avoidance_threshold=2)))
    assert [C, Q, C, T, T] == cycles.verdicts(101, 50, 101, 101, 101)


def test_only_triggered_rules_are_restored():
    cycles = Cycles(policies(rule()))
    assert [Q, Q, Q] == cycles.verdicts(1, 1, 1)
    assert not cycles.memory.rules["nq.r"].restored


def test_a_restore_lasts_until_the_cool_down_is_over_and_all_values_are_restored():
    held = policies(rule(restore_threshold=2))
    throttled = running("p", 0.5, quota=50_000)
    cycles = Cycles(held, (throttled,), {"p-main": Original(None)})
    assert [T, H, R, R, R, R, R] == cycles.verdicts(101, 1, 1, 1, 1, 1, 1)
    later = cycles.see(1)  # 70 s after the trigger
    assert later.may_restore
    assert {"uid-p"} == set(later.demand.restored)
    assert cycles.see(1).may_restore
    cycles.originals = {}
    assert [R, Q, Q] == cycles.verdicts(1, 1, 1)


def test_after_a_restart_lowered_pods_are_restored_after_all_samples():
    throttled = running("p", 0.5, quota=50_000)
    cycles = Cycles(policies(rule(restore_threshold=2)), (throttled,), {"p-main": Original(None)})
    assert [H, R] == cycles.verdicts(1, 1)


def test_samples_between_the_watermarks_are_not_counted():
    cycles = Cycles(policies(rule(restore_watermark=80.0, restore_threshold=2, avoidance_threshold=2)))
    assert [C, Q, C, T] == cycles.verdicts(101, 90, 101, 101)
    assert [H, H, H, H, R] == cycles.verdicts(90, 80, 90, 80, 80)


def test_a_finding_compares_the_sample_with_both_watermarks():
    cycles = Cycles(policies(rule(restore_watermark=80.0)))
    texts = [cycles.see(sample).findings[0].text for sample in (100.1, 100.0, 80.1, 80.0)]
    assert [text.partition(", ")[2].rpartition(":")[0] for text in texts] == [
        "above the watermark 100",
        "not above the watermark 100, above the restore value 80",
        "not above the watermark 100, above the restore value 80",
        "not above the watermark 100 and the restore value 80",
    ]


def test_a_restore_watermark_above_the_watermark_is_the_watermark():
    cycles = Cycles(policies(rule(restore_watermark=200.0)))
    assert [T, R] == cycles.verdicts(150, 90)


def test_a_triggered_rule_stays_triggered_for_its_dwell_time():
    cycles = Cycles(policies(rule(action="evict", min_dwell_seconds=35.0)))
    assert [T, H, H, H, R] == cycles.verdicts(101, 1, 1, 1, 1)


def test_a_clock_set_back_does_not_hold_a_rule_forever():
    cycles = Cycles(policies(rule(action="evict", min_dwell_seconds=35.0)))
    cycles.see(101)
    back = cycles.see(1, seconds=-100_000.0)
    assert R is back.findings[0].verdict
    assert not back.may_restore
    assert [cycles.see(1).may_restore for _ in range(7)] == [False] * 6 + [True]


@pytest.mark.parametrize("why", ["the collector failed"])
def test_a_missing_metric_does_not_change_the_counts(why):
    cycles = Cycles(policies(rule(avoidance_threshold=2)))
    assert [C, M, T] == cycles.verdicts(101, None, 101)
    assert cycles.see(None).findings[0].text == f"nq.r: m is missing ({why}): counts unchanged, no action taken"


def test_a_missing_metric_counts_as_above_only_with_on_missing_and_after_a_sample():
    never_seen = Cycles(policies(rule(on_missing="all", avoidance_threshold=2)))
    assert [M, M, M] == never_seen.verdicts(None, None, None)
    assert [Q, C, T] == never_seen.verdicts(1, None, None)
    last = never_seen.see(None)
    assert frozenset({"m"}) == last.demand.missed
    assert last.findings[0].blind
    assert "counts as above (onMissing: all)" in last.findings[0].text


def test_the_highest_selected_series_counts():
    selector = LabelSelector((("diskName", "In", ("sda", "sdb")),))
    series = tuple(
        MetricSample(value, 1.0, {"diskName": name}) for name, value in (("sda", 5.0), ("sdb", 150.0), ("sdc", 999.0))
    )
    found = analyze(State(1.0, {"m": series}), policies(rule(selector=selector)), AnalyzerState())
    assert (T, 150.0, {"diskName": "sdb"}) == (
        found.findings[0].verdict,
        found.findings[0].sample,
        found.findings[0].series,
    )
    nothing = replace(selector, requirements=(("diskName", "In", ("sdz",)),))
    found = analyze(State(1.0, {"m": series}), policies(rule(selector=nothing)), AnalyzerState())
    assert "no series matches the selector" in found.findings[0].text


def test_any_triggered_rule_keeps_pods_away_until_its_cool_down_is_over():
    cycles = Cycles(policies(rule(action="away")))
    assert cycles.see(1).keep_away is False  # an earlier run may have left its taint
    assert [cycles.see(sample).keep_away for sample in (101, 101, 1, 1, 1, 1, 1, 1)] == [True, True] + [None] * 6
    done = cycles.see(1)
    assert (done.keep_away, done.because) == (False, "nq.r is restored and its cool-down is over")
    assert cycles.see(1).keep_away is None


def test_a_rule_in_its_dead_band_keeps_new_pods_away_but_no_quotas():
    memory = rule("memory", "away", metric="n", watermark=100.0, restore_watermark=70.0)
    held = policies(rule(), memory)
    cycles = Cycles(held, (running("p", 0.5, quota=50_000),), {"p-main": Original(None)})

    def see(m: float, n: float) -> Analysis:
        cycles.now += 100.0
        metrics = {"m": (MetricSample(m, cycles.now),), "n": (MetricSample(n, cycles.now),)}
        found = analyze(
            State(cycles.now, metrics, cycles.pods),
            cycles.policies,
            cycles.memory,
            lowered=LoweredValues(cycles.originals),
        )
        cycles.memory = found.memory
        return found

    assert see(101, 101).keep_away
    between = see(1, 80)
    assert (None, True, {"uid-p"}) == (between.keep_away, between.may_restore, set(between.demand.restored))
    assert see(1, 60).keep_away is False


SHORT = AvoidanceAction("short", 0.0, evicts=True)
LONG = AvoidanceAction("long", 300.0, throttle=CpuThrottle(10, 20))
BRIEF = AvoidanceAction("brief", 20.0, throttle=CpuThrottle(10, 20))


def cooling(*rules: Rule, allowed_on: dict[str, str] | None = None) -> Policies:
    """Rules with the actions above, allowed on pods by label `may`, or on every pod."""
    actions = {each.name: each for each in (SHORT, LONG, BRIEF)}
    everywhere = (PodQos("all", frozenset(actions), scopes=()),)
    some = tuple(
        PodQos(name, frozenset({name}), LabelSelector((("may", "In", tuple(values.split())),)))
        for name, values in (allowed_on or {}).items()
    )
    return Policies(rules, actions, everywhere if allowed_on is None else some)


def test_the_cool_down_of_one_rule_does_not_end_those_of_others():
    held = cooling(rule("r0", "short"), rule("r1", "long"))
    cycles = Cycles(held, (running("p", 0.5, quota=50_000),), {"p-main": Original(None)})
    assert cycles.see(101).keep_away
    for _ in range(30):  # up to 300 s after the trigger
        found = cycles.see(1)
        assert (None, {}) == (found.keep_away, found.demand.restored)
    done = cycles.see(1)
    assert (False, {"uid-p"}) == (done.keep_away, set(done.demand.restored))


def test_a_cool_down_starts_with_the_last_trigger_of_its_own_rule():
    held = cooling(rule("r0", "short", watermark=200.0), rule("r1", "long"))
    cycles = Cycles(held, (running("p", 0.5, quota=50_000),), {"p-main": Original(None)})
    assert cycles.see(101).keep_away  # r1 alone
    assert cycles.see(1, 290.0).keep_away is None
    assert cycles.see(201).keep_away  # both
    assert [None] * 30 == [cycles.see(1).keep_away for _ in range(30)]
    assert cycles.see(1).keep_away is False


def test_a_pod_is_restored_when_all_its_throttling_rules_allow_it():
    held = cooling(rule("r0", "brief"), rule("r1", "long"), allowed_on={"brief": "brief both", "long": "long both"})
    names = ("brief", "both", "long")
    pods = tuple(running(name, 0.5, quota=50_000, labels={"may": name}) for name in names)
    cycles = Cycles(held, pods, {f"{name}-main": Original(None) for name in names})
    cycles.see(101)
    assert {} == cycles.see(1, 20.0).demand.restored
    first = cycles.see(1)
    assert (["uid-brief"], None, ()) == (list(first.demand.restored), first.keep_away, first.released)
    late = cycles.see(1, 280.0)
    assert sorted(f"uid-{name}" for name in names) == list(late.demand.restored)
    assert late.keep_away is False


def test_a_rule_with_a_missing_metric_keeps_its_changes():
    """It is unknown whether they are still needed."""
    other = rule("r1", "brief", metric="n")
    cycles = Cycles(cooling(rule("r0", "brief"), other), (running("p", 0.5, quota=50_000),), {"p-main": Original(None)})

    def see(values: dict[str, float]) -> Analysis:
        cycles.now += 100.0
        metrics = {name: (MetricSample(value, cycles.now),) for name, value in values.items()}
        seen = State(cycles.now, metrics, cycles.pods)
        found = analyze(seen, cycles.policies, cycles.memory, lowered=LoweredValues(cycles.originals))
        cycles.memory = found.memory
        return found

    assert see({"m": 101.0, "n": 101.0}).keep_away
    missing = see({"m": 1.0})
    assert (None, {}) == (missing.keep_away, missing.demand.restored)
    assert see({"m": 1.0, "n": 1.0}).keep_away is False


def test_a_cool_down_survives_a_restart_and_a_jump_of_the_clock():
    cycles = Cycles(cooling(rule("r0", "short"), rule("r1", "long")))
    cycles.see(101)
    cycles.see(1, 100.0)
    cycles.memory = msgspec.json.decode(msgspec.json.encode(cycles.memory), type=AnalyzerState).shifted(5_000.0)
    cycles.now += 5_000.0
    assert cycles.see(1, 200.0).keep_away is None
    assert cycles.see(1).keep_away is False


def test_a_rule_selects_only_pods_whose_steps_reduce_the_metric():
    held = Policies(
        (
            rule("cpu", "cut", metric=CPU, watermark=1.0),
            rule("memory", "hard", metric=MEMORY, watermark=1.0),
            rule("load", "evict", metric="cpu_load_1_min", watermark=1.0),
        ),
        {
            "cut": AvoidanceAction("cut", throttle=CpuThrottle(10, 20)),
            "hard": AvoidanceAction("hard", throttle=CpuThrottle(10, 50), force_gc=True),
            "evict": EVICT,
        },
        (PodQos("all", frozenset({"cut", "hard", "evict"}), scopes=()),),
    )
    seen = state([running("p", 0.5)], **{CPU: 5.0, MEMORY: 5.0, "cpu_load_1_min": 5.0})
    found = analyze(seen, held, AnalyzerState(), metrics=Metrics())
    assert found.keep_away
    throttled = found.demand.throttled["uid-p"]
    assert (frozenset({CPU}), 20) == (throttled.metrics, throttled.throttle.step_ratio)
    assert frozenset({MEMORY}) == found.demand.reclaimed["uid-p"].metrics
    assert {} == found.demand.evicted


def test_a_new_agent_leaves_the_taint_until_it_has_samples():
    cycles = Cycles(policies(rule(action="away", avoidance_threshold=2)))
    assert [cycles.see(sample).keep_away for sample in (None, 101, 101)] == [None, None, True]


def test_a_removed_policy_allows_new_pods_and_restores_quotas():
    throttled, other = running("p", 0.5, quota=50_000), running("q", 0.5, quota=50_000)
    cycles = Cycles(policies(rule()), (throttled, other), {"p-main": Original(None)})
    assert cycles.see(101).keep_away
    assert () == cycles.see(101).released
    cycles.policies = policies()
    gone = cycles.see(101)
    assert (gone.keep_away, gone.because) == (False, "no rule requires it")
    assert ("uid-p",) == gone.released
    assert {} == gone.memory.rules
    assert cycles.see(101).keep_away is None  # the decision was reported before


def test_a_rule_in_preview_does_not_cover_throttled_pods():
    cycles = Cycles(policies(rule(preview=True)), (running("p", 0.5, quota=50_000),), {"p-main": Original(None)})
    assert ("uid-p",) == cycles.see(101).released


def test_a_rule_in_preview_has_a_verdict_and_no_demand():
    cycles = Cycles(policies(rule(preview=True), rule("e", "evict", preview=True)), (running("p", 0.5),))
    found = cycles.see(101)
    assert [T, T] == [each.verdict for each in found.findings]
    assert found.keep_away is False
    assert ({}, {}) == (found.demand.throttled, found.demand.evicted)
    assert {"uid-p"} == set(found.preview.throttled) == set(found.preview.evicted)
    assert found.findings[0].text.endswith("(preview: no action is taken)")
    assert 2 == len(found.events)


def test_page_cache_is_reclaimed_only_with_force_gc():
    held = policies(rule(), rule("gc", "gc"))
    held = replace(held, actions={**held.actions, "gc": AvoidanceAction("gc", force_gc=True)})
    held = replace(held, pod_qos=(PodQos("all", frozenset({"gc"}), scopes=()),))
    found = Cycles(held, (pod("p"),)).see(101)
    assert ({"m": (100.0,)}, ["uid-p"]) == (found.demand.reclaim, list(found.demand.reclaimed))
    assert {} == Cycles(held, (pod("p"),)).see(1).demand.reclaimed


def test_events_are_written_for_changes_only():
    cycles = Cycles(policies(rule(action="evict")))
    reported = [[event.note for event in cycles.see(sample).events] for sample in (1, 101, 101, 1, 1, 101, 101)]
    assert reported == [
        [],
        ["nq/r triggered action evict"],
        [],
        ["nq/r restored action evict"],
        [],
        ["nq/r triggered action evict"],
        [],
    ]


def test_rules_merge_into_the_smallest_watermark_and_the_strongest_action():
    strong = AvoidanceAction("strong", throttle=CpuThrottle(5, 40))
    held = Policies(
        (rule("a", watermark=90.0), rule("b", "strong", watermark=95.0)),
        {"throttle": THROTTLE, "strong": strong},
        (PodQos("all", frozenset({"throttle", "strong"}), scopes=()),),
    )
    found = Cycles(held, (pod("p"),)).see(101)
    assert {"m": (90.0, 95.0)} == found.demand.down
    assert CpuThrottle(10, 40) == found.demand.throttled["uid-p"].throttle


def test_restoring_follows_all_rules_of_the_metric():
    low, high = rule("low", watermark=100.0, restore_watermark=70.0), rule("high", watermark=200.0)
    cycles = Cycles(policies(low, high), (running("p", 0.5, quota=1000),), {"p-main": Original(None)})
    cycles.see(201)
    for _ in range(8):
        found = cycles.see(60)
    assert {"m": (70.0, 200.0)} == found.demand.up
    assert {"m": 100.0} == found.demand.ceilings


def test_a_restore_may_have_a_smaller_step():
    gentle = replace(THROTTLE, restore_step_ratio=5)
    held = Policies((rule(),), {"throttle": gentle}, (EVERYBODY,))
    cycles = Cycles(held, (running("p", 0.5, quota=1000),), {"p-main": Original(None)})
    assert 20 == cycles.see(101).demand.throttled["uid-p"].throttle.step_ratio
    cycles.see(1)
    assert 5 == cycles.see(1, seconds=100.0).demand.restored["uid-p"].throttle.step_ratio


def test_a_missing_action_does_nothing_and_is_reported():
    cycles = Cycles(policies(rule(action="nowhere")))
    found = cycles.see(101)
    assert not found.keep_away
    assert ("AvoidanceAction nowhere, named by a rule, does not exist: no action is taken for it",) == found.warnings[
        -1:
    ]
    assert [R, Q] == cycles.verdicts(1, 1)


def test_a_rule_with_a_missing_action_covers_no_lowered_values():
    everything = PodQos("all", frozenset({"nowhere"}), scopes=())
    lowered = LoweredValues({"p-main": Original(None)}, {"uid-p": PodKnobs(memory_high=1.0, original_high=2.0)})
    held = policies(rule(action="nowhere"), pod_qos=(everything,))
    found = analyze(state([running("p", 0.5, quota=50_000)], m=1.0), held, AnalyzerState(), lowered=lowered)
    assert (("uid-p",), ("uid-p",)) == (found.released, found.unheld)
    assert Q is found.findings[0].verdict


def test_a_pod_qos_that_matches_every_pod_is_reported():
    found = Cycles(policies(rule())).see(1)
    assert ("PodQOS all matches every pod of the node: its scopes are an empty list",) == found.warnings


def test_only_pods_that_a_pod_qos_selects_are_candidates():
    best_effort = PodQos("be", frozenset({"throttle"}), scopes=(PodScope("QOSClass", "In", ("BestEffort",)),))
    held = policies(rule(), rule("e", "evict"), pod_qos=(best_effort,))
    found = Cycles(held, (pod("be"), pod("g", qos=QosClass.GUARANTEED))).see(101)
    assert ["uid-be"] == list(found.demand.throttled)
    assert {} == found.demand.evicted
    assert {"m": (100.0,)} == found.demand.evict


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"terminating": True}, "terminating"),
        ({"phase": "Succeeded"}, "finished"),
        ({"phase": "Failed"}, "finished"),
        ({"static": True}, "static"),
        ({"priority": 2_000_000_000}, "critical"),
        ({"uid": "mine"}, "the agent's own pod"),
        ({"name": "me", "namespace": "system"}, "the agent's own pod"),
        ({"priority": 1_999_999_999}, ""),
        ({}, ""),
    ],
)
def test_protected_pods_are_not_candidates(values, reason):
    reported = protection(pod(values.pop("name", "p"), **values), frozenset({"mine", "system/me"}))
    assert reason in reported
    assert bool(reason) == bool(reported)


@given(
    st.lists(st.booleans(), max_size=30),
    st.integers(min_value=1, max_value=4),
    st.integers(min_value=1, max_value=4),
)
def test_triggered_and_restored_follow_from_the_last_samples_alone(above, needed, calm):
    cycles = Cycles(policies(rule(action="evict", avoidance_threshold=needed, restore_threshold=calm)))
    verdicts = cycles.verdicts(*(101.0 if each else 1.0 for each in above))
    for place, verdict in enumerate(verdicts):
        seen = above[: place + 1]
        assert (verdict is T) == (len(seen) >= needed and all(seen[-needed:]))
        if verdict is R:
            assert T in verdicts[:place]
            assert not any(seen[-calm:])
    for before, after in pairwise(verdicts):
        assert not (before in (T, H, R) and after is Q and cycles.now < 1_000.0 + 60.0)


ratios = st.builds(CpuThrottle, st.integers(0, 100), st.integers(0, 100))
wanted = st.builds(
    PodDemand,
    st.frozensets(st.sampled_from(["a", "b", "c"])),
    ratios,
    st.none() | st.floats(0, 100),
)


@given(st.lists(wanted, min_size=3, max_size=3))
def test_merging_does_not_depend_on_the_order(three):
    merged = {merge(merge(first, second), third) for first, second, third in permutations(three)}
    assert 1 == len(merged)
    (only,) = merged
    assert only == merge(only, three[0])


@given(st.permutations(range(4)), st.floats(0, 200))
def test_rules_do_not_depend_on_their_order(places, sample):
    rules = [
        rule("a", watermark=50.0),
        rule("b", "evict", watermark=90.0),
        rule("c", "away", watermark=10.0),
        rule("d", watermark=70.0, avoidance_threshold=2),
    ]
    pods = (pod("p"), pod("q"))
    straight = Cycles(policies(*rules), pods).see(sample)
    shuffled = Cycles(policies(*(rules[place] for place in places)), pods).see(sample)
    assert straight.demand == shuffled.demand
    assert straight.keep_away == shuffled.keep_away
    assert straight.memory == shuffled.memory


def test_the_analysis_is_a_function_of_its_inputs():
    held, seen = policies(rule(), rule("e", "evict")), state([running("p", 0.5)], **{CPU: 5.0, "m": 101.0})
    memory = AnalyzerState()
    first = analyze(seen, held, memory)
    assert first == analyze(seen, held, memory)
    assert AnalyzerState() == memory


def test_counts_of_zero_are_reported_as_one():
    found = Cycles(policies(rule(avoidance_threshold=0, restore_threshold=0))).see(101).findings[0]
    assert (1, 1) == (found.avoidance_threshold, found.restore_threshold)


def test_evictions_of_two_rules_wait_from_the_first_trigger():
    held = policies(rule("later", "evict", 200.0), rule("first", "evict", 100.0))
    cycles = Cycles(held, (pod("p"),))
    first = cycles.see(101)
    assert {"m": cycles.now} == first.demand.since
    assert first.demand.since == cycles.see(201).demand.since
