"""A balancer in the closed loop: evicted pods come back, lose work, and marks change placements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.balancers.registry import BALANCERS
from lab.balancers.view import BalancerActions, ClusterView, ObservedPod, is_evictable
from lab.simulate.constant_demand import with_constant_demand
from lab.simulate.engine import SimulationOptions, simulate
from lab.simulate.policies import find_policy
from lab.simulate.results import BalancingResult, SimulationRun
from lab.simulate.trace_columns import TraceColumns, read_course
from lab.traces.generating import generate
from lab.traces.records import BindRecord, Record
from tests.lab.simulate.small import BEGUN, course, cpu, load, node, pod, usage
from watcher.arrays import F64


@dataclass(slots=True)
class Script:
    """Actions by minute; what it observed is kept."""

    at: dict[int, BalancerActions]
    interval_s: float = 60.0
    horizon: str = ""
    score_weight: int = 0
    seen: list[ClusterView] = field(default_factory=list)

    def decide(self, view: ClusterView) -> BalancerActions:
        self.seen.append(view)
        return self.at.get(round((view.now - BEGUN) / 60.0), BalancerActions())


def balanced(of: TraceColumns, at: dict[int, BalancerActions], *, weight: int = 0) -> tuple[SimulationRun, Script]:
    script = Script(at, score_weight=weight)
    policy, _ = find_policy("LeastAllocated", {}, cwd=Path())
    return simulate(of, policy, SimulationOptions(), balancer=script), script


def done(result: SimulationRun) -> BalancingResult:
    assert result.balancing is not None
    return result.balancing


def taints(*counts: int) -> BalancerActions:
    return BalancerActions(taints=np.array(counts, dtype=np.int64))


def two(*records: Record, minutes: int = 10) -> TraceColumns:
    return course(node("a"), node("b"), *records, minutes=minutes)


def test_an_evicted_pod_leaves_its_node_and_is_placed_again_after_its_start_up():
    """Two minutes; node b has taints by then, so the pod returns to the first node."""
    of = two(pod("x", 2.0, owner="ReplicaSet/x"), BindRecord(BEGUN, "x", "b"))
    result, _ = balanced(of, {3: BalancerActions(["x"], np.array([0, 2]))})
    assert [25.0, 25.0, 25.0, 0.0, 0.0, 0.0] == cpu(result, 1)[:6]
    assert [0.0, 0.0, 0.0, 0.0, 0.0, 25.0] == cpu(result, 0)[:6]
    assert [(3, 0, 1)] == [((each.time - BEGUN) / 60.0, each.pod, each.node) for each in done(result).moves]


def test_the_demand_of_an_evicted_service_continues_and_is_lost():
    """Of 2 cores for two minutes: 4 core-minutes. The pod ends at the same time, and skips the usage that it missed."""
    of = two(
        pod("x", 2.0, owner="ReplicaSet/x", lifetime=480.0),
        *(usage("x", cores, at=60.0 * i) for i, cores in enumerate((2.0, 2.0, 2.0, 2.0, 2.0, 4.0, 6.0, 6.0))),
        BindRecord(BEGUN, "x", "b"),
    )
    result, _ = balanced(of, {3: BalancerActions(["x"], np.array([0, 1]))})
    assert [0.0] * 5 + [50.0, 75.0, 75.0, 0.0, 0.0] == cpu(result, 0)
    assert 4.0 / 60.0 == pytest.approx(done(result).lost.sum())


def test_an_evicted_pod_of_a_job_repeats_its_work():
    """5 core-minutes; the job then runs for its whole time."""
    of = two(
        pod("x", 1.0, owner="Job/x", lifetime=240.0),
        *(usage("x", cores, at=60.0 * i) for i, cores in enumerate((1.0, 3.0, 1.0, 2.0))),
        BindRecord(BEGUN, "x", "b"),
    )
    result, _ = balanced(of, {3: BalancerActions(["x"], np.array([0, 1]))})
    assert [0.0] * 5 + [12.5, 37.5, 12.5, 25.0, 0.0] == cpu(result, 0)
    assert 5.0 / 60.0 == pytest.approx(done(result).lost.sum())


def test_an_evicted_pod_that_ends_during_its_start_up_does_not_come_back():
    of = two(pod("x", 2.0, owner="ReplicaSet/x", lifetime=240.0), BindRecord(BEGUN, "x", "b"))
    result, _ = balanced(of, {3: BalancerActions(["x"])})
    assert [0.0] * 7 == cpu(result, 0)[3:]
    assert [0.0] * 7 == cpu(result, 1)[3:]


def test_soft_taints_outweigh_requests_but_do_not_exclude_nodes():
    """LeastAllocated prefers b by a few points, a taint counts 300; a pod that fits only on b is placed there."""
    records = (pod("x", 1.0, at=60.0), pod("y", 7.5, at=120.0))
    of = course(node("a"), node("b", 16.0, gib=64), *records, minutes=4)
    free, _ = balanced(of, {})
    tainted, _ = balanced(of, {0: taints(0, 1)})
    assert [1, 1] == free.first_node.tolist()
    assert [0, 1] == tainted.first_node.tolist()
    assert (4, 1) == (done(tainted).marked.sum(), done(tainted).patches)


def test_the_annotation_counts_with_the_weight_of_its_plugin():
    of = course(node("a"), node("b", 16.0, gib=64), pod("x", 1.0, at=60.0), minutes=3)
    marked = {0: BalancerActions(scores=np.array([60, 50]))}
    assert [1] == balanced(of, marked)[0].first_node.tolist()
    assert [0] == balanced(of, marked, weight=1)[0].first_node.tolist()


def test_a_balancer_observes_only_what_is_published():
    """Samples are a minute old. The pod uses 6 of 8 cores, of which the node has 4 left; a third is not served."""
    of = two(load("a", 4.0), pod("x", 2.0, owner="ReplicaSet/x"), usage("x", 8.0), BindRecord(BEGUN, "x", "a"))
    _, script = balanced(of, {})
    assert [0, 0, 1, 2] == [len(view.used) for view in script.seen[:4]]
    view = script.seen[6]
    assert [1.0, 0.0] == view.used[-1, 0].tolist()
    assert [pytest.approx(1 / 3), 0.0] == view.stalled[-1, 0].tolist()
    assert [pytest.approx(8.0), 0.0] == view.current()[0].tolist()
    (seen,) = view.pods(0)
    assert ("x", "shop", "ReplicaSet/x", {"cpu": 5333, "memory": 2**30 * 2 // 2}) == (
        *(seen.uid, seen.namespace, seen.owner),
        seen.usage,
    )
    assert not view.pods(1)


def test_a_balancer_observes_moves_from_and_to_nodes():
    of = two(pod("x", 2.0, owner="ReplicaSet/x"), BindRecord(BEGUN, "x", "b"))
    _, script = balanced(of, {3: BalancerActions(["x"], np.array([0, 1]))})
    assert [0, 0] == script.seen[3].moves(600.0).tolist()
    assert [0, 1] == script.seen[4].moves(600.0).tolist()
    assert [1, 1] == script.seen[6].moves(600.0).tolist()
    assert [1, 0] == script.seen[6].moves(120.0).tolist()
    assert [300.0, 180.0] == (script.seen[6].last_move - BEGUN).tolist()


def test_a_pod_that_does_not_run_is_an_error_of_the_balancer():
    of = two(pod("x", 2.0, at=240.0))
    with pytest.raises(ValueError, match="evicts x, which does not run"):
        balanced(of, {1: BalancerActions(["x"])})


def test_demand_is_constant_after_the_end_of_its_changes():
    of = course(
        node("a"),
        load("a", 1.0),
        load("a", 3.0, at=240.0),
        pod("x", 1.0, lifetime=240.0),
        usage("x", 2.0, at=60.0),
        usage("x", 4.0, at=240.0),
        pod("y", 1.0, at=240.0),
        minutes=6,
    )
    constant = with_constant_demand(of, since=BEGUN + 180.0, until=BEGUN + 480.0)
    result, _ = balanced(constant, {})
    assert [25.0, 37.5, 37.5, 37.5, 37.5, 37.5, 37.5, 37.5] == cpu(result, 0)


# --- properties of each balancer -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Checked:
    """Compares each decision of a balancer with what it observed."""

    of: Callable[[ClusterView], BalancerActions]
    interval_s: float
    horizon: str
    score_weight: int
    most_per_node: int
    most: int = 10_000
    evicted: int = 0

    def decide(self, view: ClusterView) -> BalancerActions:
        pods = {each.uid: (each, i) for i in range(len(view.names)) for each in view.pods(i)}
        actions = self.of(view)
        found = [pods[uid] for uid in actions.evict]
        assert len(found) == len({each.uid for each, _ in found}) <= self.most
        assert [each for each, _ in found if not is_evictable(each)] == []
        on = np.array([i for _, i in found], dtype=np.int64)
        assert np.bincount(on, minlength=1).max() <= self.most_per_node
        self.evicted += len(found)
        if actions.taints is not None:
            assert 0 <= actions.taints.min() <= actions.taints.max() <= 3
        return actions


LIMITS: dict[str, tuple[int, int]] = {
    "OpenShift": (2, 5),
    "Koordinator": (2, 10_000),
    "KoordinatorDeviation10": (2, 10_000),
}


def checked(name: str, of: TraceColumns, *, seed: int) -> tuple[SimulationRun, int]:
    balancer = BALANCERS[name]()
    limits = LIMITS.get(name, (1, 10_000))
    check = Checked(balancer.decide, balancer.interval_s, balancer.horizon, balancer.score_weight, *limits)
    policy, _ = find_policy("DefaultScheduler", {}, cwd=Path())
    return simulate(of, policy, SimulationOptions(seed=seed), balancer=check), check.evicted


def facts(result: SimulationRun) -> tuple[object, ...]:
    found = done(result)
    return (result.summary(), found.moves, found.lost.tolist(), found.marked.tolist(), found.patches)


@pytest.mark.parametrize("name", sorted(BALANCERS))
@settings(max_examples=4)
@given(seed=st.integers(1, 1000), scenario=st.sampled_from(("daily", "overcommit")))
def test_no_forbidden_pod_is_evicted_and_limits_hold(name: str, seed: int, scenario: str):
    of = read_course(generate(scenario, nodes=6, pods=120, seed=seed, hours=2.0))
    result, evicted = checked(name, of, seed=seed)
    assert evicted == len(done(result).moves)


@pytest.mark.parametrize("name", sorted(BALANCERS))
def test_equal_seeds_give_equal_results(name: str):
    of = read_course(generate("overcommit", nodes=6, pods=120, seed=3, hours=2.0))
    assert facts(checked(name, of, seed=3)[0]) == facts(checked(name, of, seed=3)[0])


def test_without_actions_a_balancer_changes_nothing():
    of = read_course(generate("daily", nodes=5, pods=60, seed=1, hours=2.0))
    policy, _ = find_policy("DefaultScheduler", {}, cwd=Path())
    alone = simulate(of, policy, SimulationOptions())
    watched = simulate(of, policy, SimulationOptions(), balancer=Script({}))
    assert alone.summary() == watched.summary()
    assert 0.0 == done(watched).lost.sum()


def test_openshift_waits_longer_after_each_migration_of_a_pod():
    """15, then 30 and 60 minutes."""
    balancer = BALANCERS["OpenShift"]()
    hot = ("hot", "idle")
    times = []
    for minute in range(200):
        view = view_of(hot, np.array([0.9, 0.1]), now=60.0 * minute)
        if balancer.decide(view).evict:
            times.append(minute)
    assert [0, 15, 45, 105] == times


def view_of(names: tuple[str, ...], share: F64, *, now: float) -> ClusterView:
    """Nodes with a constant use of CPU, each with one pod."""
    count = len(names)
    used = np.stack([np.stack([share, np.full(count, 0.3)])] * 15)
    zeros = np.zeros(count, dtype=np.int64)
    return ClusterView(
        now,
        names,
        used,
        np.zeros_like(used),
        lambda: used[-1],
        np.full((2, count), np.nan),
        np.ones((count, 3), dtype=np.int64),
        np.ones((count, 3), dtype=np.int64),
        zeros,
        np.full(count, -np.inf),
        lambda _: zeros,
        lambda node: [ObservedPod(f"p{node}", "shop", f"p{node}", "ReplicaSet/p")],
    )
