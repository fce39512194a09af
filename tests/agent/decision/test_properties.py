"""Properties of each plan for any pods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.decision.analysis import Demand, PodDemand
from agent.decision.eviction_limits import Budget, EvictionLimits
from agent.decision.ledger import falling, with_steps
from agent.decision.plan import Mode, Plan
from agent.decision.plan_inputs import PlanInputs
from agent.decision.planner import CLOSED, plan
from agent.decision.pod_selection import protection
from agent.decision.restoring import LoweredValues
from agent.metrics.options import DecisionOptions
from agent.metrics.registry import Metrics
from agent.metrics.sorters import CHAINS
from agent.metrics.trigger_only import triggering
from agent.model import ContainerState, CpuThrottle, Eviction, Original, PodState, QuotaChange, State, Step
from agent.qos import QosClass
from tests.agent.scenes import CPU, MEMORY, analysis, changes, state

pytestmark = pytest.mark.slow

NOW = 1_000.0
few = settings(max_examples=40)
"""Examples are large here, and these tests are many."""
cores = st.floats(0.0, 4.0).map(lambda value: round(value, 3))
rank = CHAINS.cpu.rank


@st.composite
def containers(draw: Any, name: str) -> tuple[ContainerState, ...]:
    return tuple(
        ContainerState(
            name=f"c{number}",
            id=f"{name}-{number}",
            cpu=draw(st.none() | cores),
            quota=draw(st.none() | st.integers(1_000, 400_000)),
            cpu_request=draw(st.none() | cores),
            cpu_limit=draw(st.none() | cores),
            throttled=draw(st.none() | st.booleans()),
        )
        for number in range(draw(st.integers(0, 2)))
    )


@st.composite
def pods(draw: Any) -> list[PodState]:
    return [
        PodState(
            namespace="ns",
            name=f"p{number}",
            uid=f"u{number}",
            qos=draw(st.sampled_from(QosClass)),
            priority=draw(st.sampled_from([-10, 0, 0, 0, 1000, 2_000_000_000])),
            start_time=draw(st.none() | st.integers(0, 9)),
            cpu=draw(st.none() | cores),
            memory=draw(st.none() | st.integers(0, 1000)),
            phase=draw(st.sampled_from(["Running", "Running", "Running", "Succeeded"])),
            terminating=draw(st.integers(0, 9)) == 0,
            static=draw(st.integers(0, 9)) == 0,
            managed=draw(st.integers(0, 4)) > 0,
            containers=draw(containers(f"p{number}")),
        )
        for number in range(draw(st.integers(0, 8)))
    ]


ratios = st.builds(CpuThrottle, st.integers(0, 100), st.integers(0, 100))
options = st.builds(DecisionOptions, excess=st.sampled_from([0.0, 0.1]))


@st.composite
def scenes(draw: Any) -> tuple[Demand, PlanInputs]:
    """A demand for all three actions on all pods, and a node above and below its watermarks."""
    given_pods = draw(pods())
    opts = draw(options)
    used = {CPU: draw(st.floats(0, 20_000)), MEMORY: draw(st.floats(0, 5_000)), "cpu_core_numbers": 8.0}
    everybody = {
        pod.uid: PodDemand(frozenset({CPU, MEMORY}), draw(ratios), draw(st.none() | st.floats(0, 60)))
        for pod in given_pods
        if draw(st.booleans()) or draw(st.booleans())
    }
    originals = {
        container.id: Original(draw(st.none() | st.integers(1_000, 500_000)))
        for pod in given_pods
        for container in pod.containers
        if draw(st.booleans())
    }
    evict = {name: (draw(st.floats(1, 10_000)),) for name in draw(st.sets(st.sampled_from([CPU, MEMORY]), min_size=1))}
    demand = Demand(
        down={CPU: (draw(st.floats(1, 20_000)),)} if draw(st.booleans()) else {},
        up={CPU: (draw(st.floats(1, 20_000)),)},
        evict={name: evict[name] for name in sorted(evict)},
        throttled=everybody,
        restored=everybody,
        evicted=everybody,
        ceilings={CPU: draw(st.floats(1, 20_000))} if draw(st.booleans()) else {},
    )
    return demand, PlanInputs(state(given_pods, NOW, **used), Metrics(), opts, lowered=LoweredValues(originals))


def evicted(made: Plan) -> list[Step]:
    return [step for step in made.steps if isinstance(step.change, Eviction)]


def evicting_alone(demand: Demand) -> Demand:
    return Demand(evict=demand.evict, evicted=demand.evicted)


@st.composite
def closable(draw: Any) -> tuple[Demand, PlanInputs]:
    """A demand to evict for one or two metrics whose gaps the pods can close; all pods may be evicted."""
    given_pods = [
        PodState(
            namespace="ns",
            name=f"p{number}",
            uid=f"u{number}",
            qos=draw(st.sampled_from([QosClass.BEST_EFFORT, QosClass.BURSTABLE])),
            priority=draw(st.sampled_from([0, 0, 5])),
            start_time=draw(st.integers(0, 9)),
            cpu=draw(st.integers(1, 3_000)) / 1_000.0,
            memory=draw(st.integers(1, 1_000)),
        )
        for number in range(draw(st.integers(2, 8)))
    ]
    opts = draw(options)
    node_used = 30_000.0  # more than all pods together, because a watermark is never negative
    share = 1.0 / (1.0 + opts.excess)
    total = {
        CPU: sum((pod.cpu or 0.0) * 1_000.0 for pod in given_pods),
        MEMORY: sum(pod.memory or 0 for pod in given_pods),
    }
    names = sorted(draw(st.sets(st.sampled_from([CPU, MEMORY]), min_size=1)))
    marks = {name: (node_used - total[name] * share * draw(st.floats(0.01, 0.99)),) for name in names}
    everybody = {pod.uid: PodDemand(frozenset(names)) for pod in given_pods}
    used = dict.fromkeys(names, node_used)
    return Demand(evict=marks, evicted=everybody), PlanInputs(state(given_pods, NOW, **used), Metrics(), opts)


@given(closable(), st.booleans(), st.sets(st.integers(0, 7)), st.sets(st.integers(0, 7)))
def test_a_pod_that_must_not_be_evicted_releases_nothing(
    scene: tuple[Demand, PlanInputs], allowed: bool, unmanaged: set[int], refused: set[int]
):
    """Neither without a controller, unless the setting allows it, nor while the API refuses; and a gap is closed only
    by what the evicted pods release."""
    demand, given = scene
    bare, refusals = {f"u{each}" for each in unmanaged}, {f"u{each}": "the API refused" for each in refused}
    options = replace(given.options, evict_unmanaged=allowed)
    pods = tuple(replace(pod, managed=pod.uid not in bare) for pod in given.state.pods)
    inputs = replace(given, state=replace(given.state, pods=pods), options=options, refused_evictions=refusals)
    made = plan(analysis(demand), inputs)
    victims = {step.uid for step in evicted(made)}
    assert not victims & refusals.keys()
    assert allowed or not victims & bare
    for stage in made.stages:
        released = sum(step.released.get(given.metrics[stage.metric].resource, 0.0) for step in evicted(made))
        assert stage.gap is not None
        assert stage.gap_after is not None
        assert abs(stage.gap - released - stage.gap_after) < 1.0


def needless(made: Plan, given_: PlanInputs) -> list[Step]:
    """Evictions without which all gaps would still be closed."""
    stages = [stage for stage in made.stages if stage.mode is Mode.PRECISE]
    assert all((stage.gap_after or 0.0) <= CLOSED for stage in stages)
    resources = {stage.metric: given_.metrics[stage.metric].resource for stage in stages}
    return [
        victim
        for victim in evicted(made)
        if all((stage.gap_after or 0.0) + victim.released[resources[stage.metric]] <= CLOSED for stage in stages)
    ]


@few
@given(closable())
def test_without_the_last_eviction_a_gap_stays_open(scene):
    demand, given_ = scene
    made = plan(analysis(demand), given_)
    assert evicted(made)[-1] not in needless(made, given_)


@few
@given(closable())
def test_only_less_important_pods_are_evicted_beyond_the_gap(scene):
    demand, given_ = scene
    made = plan(analysis(demand), given_)
    by_key = {pod.key: pod for pod in given_.state.pods}
    for victim in needless(made, given_):
        assert any(rank(by_key[victim.pod], by_key[other.pod]) < 0 for other in evicted(made))


def widened(demand: Demand, pods: list[PodState], *names: str) -> Demand:
    """The demand with rules on more metrics, which select these pods."""
    keys = {pod.uid for pod in pods}

    def wider(wanted: Mapping[str, PodDemand]) -> dict[str, PodDemand]:
        more = {key: wanted.get(key, PodDemand(frozenset(), CpuThrottle(0, 50))) for key in {*wanted, *keys}}
        return {
            key: replace(more[key], metrics=more[key].metrics | (frozenset(names) if key in keys else frozenset()))
            for key in sorted(more)
        }

    marks = dict.fromkeys(names, (1.0,))
    return replace(
        demand,
        down={**demand.down, **marks},
        throttled=wider(demand.throttled),
        evict={**demand.evict, **marks},
        evicted=wider(demand.evicted),
    )


IRREDUCIBLE = ("cpu_load_1_min", "psi_memory_full_avg10", "psi_cpu_some_avg60", "window_cpu_avg_15m")


@few
@given(scenes(), st.sets(st.sampled_from(IRREDUCIBLE), min_size=1))
def test_a_rule_on_a_metric_that_no_action_reduces_changes_no_step(scene, names):
    demand, given_ = scene
    more = widened(demand, list(given_.state.pods), *names)
    more = replace(more, throttled=demand.throttled, evicted=demand.evicted)
    assert plan(analysis(demand), given_).steps == plan(analysis(more), given_).steps


@few
@given(closable(), st.sets(st.integers(0, 7)))
def test_a_rule_on_a_metric_without_a_gap_adds_at_most_its_own_pods(scene, places):
    demand, given_ = scene
    own = [pod for place, pod in enumerate(given_.state.pods) if place in places]
    made = plan(analysis(widened(demand, own, "disk_read_iops")), given_)
    victims = {victim.pod for victim in evicted(made)}
    assert victims >= {pod.key for pod in own}
    by_key = {pod.key: pod for pod in given_.state.pods}
    for victim in needless(made, given_):
        assert victim.pod in {pod.key for pod in own} or any(
            rank(by_key[victim.pod], by_key[other.pod]) < 0 for other in evicted(made)
        )


@few
@given(scenes(), st.sets(st.integers(0, 7)))
def test_a_rule_that_throttles_without_a_gap_adds_at_most_its_own_pods(scene, places):
    demand, given_ = scene
    queue = triggering("queue_length", throttleable=True, evictable=False)
    inputs = replace(given_, metrics=Metrics([queue]))
    own = [pod for place, pod in enumerate(given_.state.pods) if place in places]

    def throttled(of: Demand) -> set[str]:
        steps = plan(analysis(of), inputs).steps
        return {step.pod for step in steps if isinstance(step.change, QuotaChange) and step.kind == "throttle"}

    alone = Demand(down=demand.down, throttled=demand.throttled)
    wider = replace(widened(alone, own, "queue_length"), evict={}, evicted={})
    assert throttled(alone) <= throttled(wider) <= throttled(alone) | {pod.key for pod in own}


@few
@given(scenes())
def test_each_release_is_subtracted_from_each_gap(scene):
    demand, given_ = scene
    made = plan(analysis(evicting_alone(demand)), given_)
    for stage in made.stages:
        if stage.mode is Mode.PRECISE:
            assert stage.gap is not None
            assert stage.gap_after is not None
            resource = given_.metrics[stage.metric].resource
            released = sum(each.released.get(resource, 0.0) for each in evicted(made))
            assert abs(stage.gap - stage.gap_after - released) <= 1e-6


@few
@given(closable())
def test_no_pod_is_evicted_before_one_of_lower_rank(scene):
    demand, given_ = scene
    made = plan(analysis(demand), given_)
    gone = {step.pod for step in evicted(made)}
    for spared in (pod for pod in given_.state.pods if pod.key not in gone):
        assert not any(rank(spared, victim) < 0 for victim in given_.state.pods if victim.key in gone)


@few
@given(scenes(), st.data())
def test_a_plan_does_not_depend_on_the_order_of_the_pods(scene, data):
    demand, given_ = scene
    shuffled = State(given_.state.time, given_.state.metrics, tuple(data.draw(st.permutations(given_.state.pods))))
    again = PlanInputs(shuffled, given_.metrics, given_.options, lowered=LoweredValues(given_.lowered.originals))
    assert plan(analysis(demand), given_) == plan(analysis(demand), again)


@few
@given(scenes())
def test_protected_and_unselected_pods_are_not_changed(scene):
    demand, given_ = scene
    by_key = {pod.key: pod for pod in given_.state.pods}
    for step in plan(analysis(demand), given_).steps:
        assert not isinstance(step.change, Eviction | QuotaChange) or (
            step.uid in demand.evicted and not protection(by_key[step.pod], frozenset())
        )


@few
@given(scenes())
def test_quotas_stay_between_the_minimum_of_the_kernel_and_the_original(scene):
    demand, given_ = scene
    for step in plan(analysis(demand), given_).steps:
        if not isinstance(step.change, QuotaChange):
            continue
        if step.kind == "restore":
            assert step.change.before is not None
            original = given_.lowered.originals[step.change.container_id].quota
            assert step.change.after is None or step.change.after > step.change.before
            assert original is None or (step.change.after is not None and step.change.after <= original)
        else:
            assert step.change.after is not None
            assert step.change.after >= 1_000
            assert step.change.before is None or step.change.after < step.change.before


@few
@given(scenes())
def test_each_pod_gets_at_most_one_kind_of_step_of_a_stage(scene):
    demand, given_ = scene
    made = plan(analysis(demand), given_)
    assert len({step.uid for step in evicted(made)}) == len(evicted(made))
    per_container = [(change.container_id, step.kind) for step, change in changes(made.steps, QuotaChange)]
    assert len(set(per_container)) == len(per_container)


@few
@given(scenes(), st.integers(0, 3))
def test_evictions_do_not_exceed_the_budget(scene, allowed):
    demand, given_ = scene
    limited = PlanInputs(
        given_.state, given_.metrics, given_.options, budget=Budget(EvictionLimits(evictions_per_node=allowed))
    )
    assert len(evicted(plan(analysis(demand), limited))) <= allowed


@few
@given(closable())
def test_a_second_plan_at_the_same_time_selects_no_more_pods(scene):
    """All needed steps are in flight."""
    demand, given_ = scene
    first = plan(analysis(demand), given_)
    ledger = with_steps((), first.steps, NOW, given_.options)
    assert falling(ledger, given_.state)
    again = PlanInputs(given_.state, given_.metrics, given_.options, ledger=ledger)
    assert () == plan(analysis(demand), again).steps
