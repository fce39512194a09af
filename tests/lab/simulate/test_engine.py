"""The closed loop: the placement of pods, the resulting load, and the part of it that later decisions see."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.simulate.engine import OverloadedNode, SimulationOptions, pick_tied_node, simulate
from lab.simulate.policies import find_policy
from lab.simulate.trace_columns import TraceColumns, read_course
from lab.traces.records import BindRecord, EndRecord, Record, RemoveRecord
from tests.lab.simulate.small import BEGUN, GIB, course, cpu, load, node, placed, pod, run, usage

pytestmark = pytest.mark.slow

POLICIES = (
    *("LeastAllocated", "MostAllocated", "BalancedAllocation", "DefaultScheduler", "TargetLoadPacking"),
    *("LoadVariationRiskBalancing", "LowRiskOverCommitment", "LoadAwareScheduling", "HighLoadFilter"),
    *("NodeResourceLimits", "Random", "PowerOfTwoChoices"),
)


def test_pods_start_use_cpu_and_end():
    of = course(
        node("n"),
        load("n", 0.8),
        pod("a", at=60.0, lifetime=180.0),
        usage("a", 2.0, at=60.0),
        usage("a", 4.0, at=120.0),
        minutes=6,
    )
    assert [10.0, 35.0, 60.0, 60.0, 10.0, 10.0] == cpu(run(of), 0)


def test_a_pod_without_usage_uses_its_request():
    assert [25.0] == cpu(run(course(node("n"), pod("a", 2.0), minutes=1)), 0)


def test_a_pod_uses_no_more_cpu_than_its_limit():
    assert [12.5] == cpu(run(course(node("n"), pod("a", limit=1.0), usage("a", 3.0), minutes=1)), 0)


def test_a_pod_that_does_not_fit_waits_and_then_does_all_its_work():
    of = course(
        node("n", 2.0),
        pod("a", 2.0, lifetime=120.0),
        pod("b", 2.0, lifetime=120.0),
        usage("b", 1.0),
        usage("b", 2.0, at=60.0),
        minutes=5,
    )
    result = run(of)
    assert [100.0, 100.0, 50.0, 100.0, 0.0] == cpu(result, 0)
    summary = result.summary()
    assert (1, 0.5, 0) == (summary.waited, summary.wait_mean, summary.unschedulable)


def test_the_pod_with_the_higher_priority_is_placed_first():
    of = course(node("n", 2.0), pod("a", 2.0), pod("b", 2.0, priority=10))
    assert {"b": "n"} == placed(of, run(of))


@pytest.mark.parametrize("large", [pod("a", 9.0), pod("a", 1.0, gib=33)], ids=["cpu", "memory"])
def test_a_pod_larger_than_each_node_is_never_placed(large: Record):
    summary = run(course(node("n"), large, pod("b"))).summary()
    assert (2, 1) == (summary.pods, summary.unschedulable)


def test_the_number_of_pods_of_a_node_is_limited():
    of = course(node("n", pods=1), pod("a", 0.0, gib=0), pod("b", 0.0, gib=0))
    assert {"a": "n"} == placed(of, run(of))


def test_without_pods_the_load_is_that_of_the_nodes():
    result = run(course(node("a"), node("b", 4.0), load("a", 4.0), minutes=2))
    assert [50.0, 50.0] == cpu(result, 0)
    assert (0, 0, 25.0) == (result.summary().pods, result.summary().nodes_used_most, result.summary().cpu_mean)


def test_existing_pods_keep_their_nodes():
    """For any requests and any policy."""
    of = course(node("a"), node("b"), pod("x", 20.0), BindRecord(BEGUN, "x", "b"))
    assert all({"x": "b"} == placed(of, run(of, policy)) for policy in ("LeastAllocated", "MostAllocated"))


def test_existing_pods_are_placed_again_on_request():
    """Except pods of DaemonSets."""
    of = course(
        node("a"), node("b"), pod("x"), BindRecord(BEGUN, "x", "b"), load("b", 1.0),
        pod("y", owner="DaemonSet/y"), BindRecord(BEGUN, "y", "b"),
    )  # fmt: skip
    assert {"x": "b", "y": "b"} == placed(of, run(of))
    assert {"x": "a", "y": "b"} == placed(of, run(of, place_existing=True))


def test_a_daemon_runs_on_its_node_and_does_not_count_as_a_use_of_it():
    of = course(
        node("a"),
        node("b"),
        pod("d", at=60.0, owner="DaemonSet/agent"),
        BindRecord(BEGUN + 61.0, "d", "b"),
        minutes=3,
    )
    result = run(of)
    assert [0.0, 12.5, 12.5] == cpu(result, 1)
    assert (0, 0) == (result.summary().pods, result.summary().nodes_used_most)


def test_a_recorded_pod_runs_for_its_recorded_time():
    of = course(node("n"), pod("a"), BindRecord(BEGUN + 30.0, "a", "n"), RemoveRecord(BEGUN + 150.0, "a"), minutes=4)
    assert [12.5, 12.5, 0.0, 0.0] == cpu(run(of), 0)


def test_pods_of_a_removed_node_are_placed_again():
    of = course(
        node("a"),
        pod("x", lifetime=240.0),
        usage("x", 1.0),
        usage("x", 2.0, at=180.0),
        node("b", at=60.0),
        RemoveRecord(BEGUN + 120.0, node="a"),
        minutes=5,
    )
    result = run(of)
    first, second = cpu(result, 0), cpu(result, 1)
    assert ["12.5", "12.5", "nan", "nan", "nan"] == [str(each) for each in first]
    assert ["nan", "0.0", "12.5", "25.0", "0.0"] == [str(each) for each in second]
    assert 1 == result.summary().displaced


def test_a_pod_that_ends_with_its_node_is_not_placed_again():
    of = course(
        node("a"), node("b"), pod("x", 20.0, lifetime=120.0), BindRecord(BEGUN, "x", "a"),
        RemoveRecord(BEGUN + 120.0, node="a"), minutes=4,
    )  # fmt: skip
    result = run(of)
    assert 0 == result.summary().displaced
    assert [0, 0, 0, 0] == result.series.waiting.tolist()


def test_the_load_of_a_removed_node_is_removed():
    """The node that was hot is added again, without a known load."""
    of = course(
        node("a"), node("b"), load("a", 7.6), RemoveRecord(BEGUN + 600.0, node="a"),
        RemoveRecord(BEGUN + 600.0, node="b"), node("a", at=1200.0), node("b", at=1200.0),
        load("a", 0.0, at=1200.0), pod("x", 0.1, at=1200.0), pod("y", 0.1, at=1200.0), minutes=22,
    )  # fmt: skip
    assert {"a", "b"} == set(placed(of, run(of, "LoadVariationRiskBalancing")).values())


def test_a_changed_capacity_counts_from_then_on():
    of = course(node("n", 4.0), pod("a", 4.0), pod("b", 4.0), node("n", 8.0, at=120.0), minutes=4)
    assert [100.0, 100.0, 100.0, 100.0] == cpu(run(of), 0)
    assert 1 == run(of).summary().waited


def test_decisions_use_the_measured_load_and_not_the_current_one():
    """The hot node looks idle until its load is measured, published, and in the windows."""
    hot: list[Record] = [load("a", 0.4), load("b", 0.4), load("a", 7.2, at=600.0)]
    coming = [pod(f"p{i}", 0.1, at=60.0 * i, lifetime=30.0) for i in range(30)]
    records = sorted([*hot, *coming], key=lambda each: each.time)
    of = course(node("a"), node("b"), *records, minutes=30)
    where = placed(of, run(of, "LoadVariationRiskBalancing"))
    sees = next(i for i in range(10, 30) if where[f"p{i}"] == "b" and where[f"p{i + 1}"] == "b")
    assert {"b"} == {where[f"p{i}"] for i in range(13, 30)}
    later = placed(of, run(of, "LoadVariationRiskBalancing", delay=300.0))
    assert "a" in {later[f"p{i}"] for i in range(sees, 16)}


def test_the_use_is_limited_to_the_capacity():
    result = run(course(node("n", 2.0), load("n", 3.0), minutes=60))
    summary = result.summary()
    assert (100.0, 60, 1.0) == (summary.cpu_mean, summary.overload_node_minutes, summary.unmet_core_hours)


def test_memory_is_overloaded_too():
    summary = run(course(node("n"), load("n", 0.0, gib=30), minutes=3)).summary()
    assert (3, 0, 3) == (
        summary.overload_node_minutes, summary.cpu_overload_node_minutes, summary.memory_overload_node_minutes
    )  # fmt: skip


# --- throttled pods ---------------------------------------------------------------------------------------------------


def test_a_throttled_pod_runs_longer():
    """Two pods want 8 cores each on a node of 8: each gets half, so two minutes of work take four."""
    of = course(node("n"), *(one for uid in "ab" for one in (pod(uid, lifetime=120.0), usage(uid, 8.0))), minutes=6)
    assert [200.0, 200.0, 0.0, 0.0, 0.0, 0.0] == cpu(run(of), 0)
    slow = run(of, throttle=True)
    assert [200.0, 200.0, 200.0, 200.0, 0.0, 0.0] == cpu(slow, 0)
    assert (0.0, 4 * 60 / 3600) == (run(of).summary().throttled_hours, slow.summary().throttled_hours)


def test_load_outside_of_pods_has_precedence_and_usage_is_delayed():
    """6 of 8 cores are left: 12 wanted cores take two minutes for each minute of work. The next value is a minute
    later."""
    of = course(
        node("n"), load("n", 2.0), pod("a", lifetime=180.0), usage("a", 12.0), usage("a", 2.0, at=60.0), minutes=6
    )
    assert [175.0, 50.0, 50.0, 25.0, 25.0, 25.0] == cpu(run(of), 0)
    assert [175.0, 175.0, 50.0, 50.0, 25.0, 25.0] == cpu(run(of, throttle=True), 0)


def test_the_remaining_work_of_a_removed_node_is_done_elsewhere():
    """Half of the work of the first two minutes is done on the first node, which is then removed: three of four minutes
    are left."""
    of = course(
        node("a", 4.0), pod("x", lifetime=240.0), usage("x", 8.0), usage("x", 2.0, at=120.0),
        node("b", at=120.0), RemoveRecord(BEGUN + 120.0, node="a"), minutes=8,
    )  # fmt: skip
    result = run(of, throttle=True)
    assert ["nan", "nan", "100.0", "25.0", "25.0", "0.0"] == [str(each) for each in cpu(result, 1)][:6]


def test_a_node_full_of_other_load_stops_its_pods():
    of = course(node("n"), load("n", 9.0), pod("a", lifetime=60.0), load("n", 0.0, at=180.0), minutes=6)
    assert [125.0, 125.0, 125.0, 12.5, 0.0, 0.0] == cpu(run(of, throttle=True), 0)


# --- evictions -------------------------------------------------------------------------------------------------------


def asked(of: TraceColumns, evict: Sequence[str]) -> tuple[list[OverloadedNode], int | None]:
    looks: list[OverloadedNode] = []

    def evictor(look: OverloadedNode) -> Sequence[str]:
        looks.append(look)
        return [each.uid for each in look.pods if each.uid in evict]

    result = simulate(of, find_policy("LeastAllocated", {}, cwd=Path())[0], SimulationOptions(), evictor=evictor)
    return looks, result.summary().evictions


def test_the_evictor_is_called_for_a_node_that_stays_overloaded():
    of = course(node("n"), load("n", 1.0), pod("a"), usage("a", 4.0), pod("b"), usage("b", 3.0), minutes=9)
    looks, evictions = asked(of, ["b"])
    assert evictions == 1
    (look,) = looks
    assert (BEGUN + 120.0, 8.0, 32 * GIB, 8.0) == (look.time, look.cores, look.bytes, look.used_cores)
    assert [("shop", "a", 4.0), ("shop", "b", 3.0)] == [(each.namespace, each.name, each.cores) for each in look.pods]


def test_an_evictor_without_a_result_is_not_called_again_at_once():
    looks, evictions = asked(course(node("n"), load("n", 8.0), pod("a"), minutes=30), [])
    assert 2 == len(looks)
    assert 0 == evictions


def test_without_an_evictor_the_number_of_evictions_is_unknown():
    assert run(course(node("n"))).summary().evictions is None


# --- against a slow computation --------------------------------------------------------------------------------------


@st.composite
def courses(draw: st.DrawFn) -> TraceColumns:
    nodes = [node(f"n{i}", float(draw(st.sampled_from([2, 4, 8])))) for i in range(draw(st.integers(1, 4)))]
    records: list[Record] = []
    for each in nodes:
        used = draw(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9)), min_size=5, max_size=5))
        records += [load(each.node, c / 10.0, at=300.0 * i, gib=gib) for i, (c, gib) in enumerate(used)]
    for i in range(draw(st.integers(0, 14))):
        at = float(draw(st.integers(0, 1200)))
        lifetime = draw(st.none() | st.integers(0, 900).map(float))
        asking = draw(st.sampled_from([0.0, 0.1, 0.5, 1.0, 2.0, 5.0]))
        limit = draw(st.none() | st.just(asking + 1.0))
        records.append(pod(f"p{i}", asking, at=at, gib=draw(st.integers(0, 4)), lifetime=lifetime, limit=limit,
                           priority=draw(st.integers(0, 1))))  # fmt: skip
        more = sorted(draw(st.lists(st.integers(0, 600), max_size=3)))
        records += [usage(f"p{i}", draw(st.integers(0, 30)) / 10.0, at=at + after) for after in more]
    records.sort(key=lambda each: each.time)  # stable: a pod precedes its usage
    return read_course([*nodes, *records, EndRecord(BEGUN + 1500.0)])


class Slow:
    """The same with loops over dicts, as docs/concepts/simulation.md describes it: for nodes that stay, no limits of
    memory, and two policies."""

    def __init__(self, of: TraceColumns, policy: str) -> None:
        self.of, self.policy = of, policy
        self.cores = {of.names[each.node]: each.record.cores for each in of.changes if each.record}
        self.running: dict[int, tuple[str, float]] = {}
        self.placed: dict[str, str] = {}
        self.history: dict[str, list[float]] = {name: [] for name in of.names}
        self.cpu: list[list[float]] = []

    def value(self, series: int, steps: str, time: float, base: float) -> float:
        found = getattr(self.of, steps)
        for i in range(found.first[series], found.first[series + 1]):
            if found.time[i] <= time:
                base = float(found.cores[i])
        return base

    def asks(self, index: int) -> tuple[float, int]:
        return self.of.pods[index].record.cores, self.of.pods[index].record.bytes

    def requested(self, name: str, what: int) -> float:
        return sum(self.asks(i)[what] for i, (there, _) in self.running.items() if there == name)

    def run(self) -> None:
        waiting: list[int] = []
        come = 0
        for minute in range(self.of.minutes):
            now = self.of.begins + 60.0 * minute
            for i, (_, began) in list(self.running.items()):
                if began + self.of.pods[i].lifetime <= now:
                    del self.running[i]
            while come < len(self.of.pods) and self.of.pods[come].arrives <= now:
                waiting.append(come)
                come += 1
            waiting.sort(key=lambda i: (-self.of.pods[i].record.priority, self.of.pods[i].arrives, i))
            for i in list(waiting):
                if (chosen := self.choose(i, minute, now)) is not None:
                    waiting.remove(i)
                    self.running[i] = chosen, now
                    self.placed[self.of.pods[i].record.uid] = chosen
            row = []
            for n, name in enumerate(self.of.names):
                wanted = self.value(n, "load", now, 0.0)
                for i, (there, began) in self.running.items():
                    if there == name:
                        record = self.of.pods[i].record
                        used = self.value(i, "usage", now - began, record.cores)
                        wanted += used if record.cores_limit is None else min(used, record.cores_limit)
                row.append(wanted / self.cores[name])
                self.history[name].append(min(wanted / self.cores[name], 1.0))
            self.cpu.append(row)

    def choose(self, pod: int, minute: int, now: float) -> str | None:
        cores, size = self.asks(pod)
        fitting = [
            name
            for name in self.of.names
            if (not cores or self.requested(name, 0) + cores <= self.cores[name] + 1e-9)
            and (not size or self.requested(name, 1) + size <= 32 * GIB)
        ]
        if not fitting:
            return None
        scores = {name: self.score(pod, name, minute, now) for name in fitting}
        best = [name for name in fitting if scores[name] == max(scores.values())]
        if self.policy != "LeastAllocated" and len(best) > 1:
            own = {name: self.least(pod, name) + self.balanced(pod, name) for name in best}
            best = [name for name in best if own[name] == max(own.values())]
        return best[pick_tied_node(len(best), seed=1, uid=self.of.pods[pod].record.uid)]

    def score(self, pod: int, name: str, minute: int, now: float) -> int:
        known = self.history[name][
            : max(minute - 1, 0)
        ]  # a sample is the mean of the previous minute, and a minute old
        if self.policy == "LeastAllocated":
            return self.least(pod, name)
        if not known:
            return self.curve(100.0 * (self.requested(name, 0) + self.asks(pod)[0]) / self.cores[name])
        window = next((w for w in (15, 10, 5) if len(known[-w:]) >= max(w / 2, 2)), 1)
        measured = round(100.0 * sum(known[-window:]) / len(known[-window:]), 13)
        sampled = now - 60.0
        recent = sum(
            self.predicted(i) for i, (there, began) in self.running.items() if there == name and began > sampled - 60.0
        )
        return self.curve(measured + 100.0 * (self.predicted(pod) + recent) / self.cores[name])

    def predicted(self, pod: int) -> float:
        record = self.of.pods[pod].record
        if record.cores_limit is not None:
            return record.cores_limit
        return 1.5 * record.cores if record.cores else 1.0

    def curve(self, percent: float) -> int:
        if percent > 100.0:
            return 0
        value = 60.0 * percent / 40.0 + 40.0 if percent <= 40.0 else 40.0 * (100.0 - percent) / 60.0
        return math.floor(value + 0.5)

    def shares(self, pod: int, name: str, *, counted: bool) -> list[float]:
        def asks(i: int) -> tuple[float, float]:
            cores, size = self.asks(i)
            return (cores or 0.1, size or 200 * 2**20) if counted else (cores, size)

        there = [pod, *(i for i, (where, _) in self.running.items() if where == name)]
        sums = [round(1000.0 * sum(asks(i)[0] for i in there)), sum(asks(i)[1] for i in there)]
        return [sums[0] / (1000.0 * self.cores[name]), sums[1] / (32 * GIB)]

    def least(self, pod: int, name: str) -> int:
        return (
            sum(math.floor(100.0 * max(1.0 - share, 0.0) + 1e-9) for share in self.shares(pod, name, counted=True)) // 2
        )

    def balanced(self, pod: int, name: str) -> int:
        if not any(self.asks(pod)):
            return 0
        first, second = (min(share, 1.0) for share in self.shares(pod, name, counted=False))
        return math.trunc((1.0 - abs(first - second) / 2.0) * 100.0)


@settings(max_examples=40)
@given(of=courses(), policy=st.sampled_from(["LeastAllocated", "TargetLoadPacking"]))
def test_the_result_equals_that_of_a_slow_computation(of: TraceColumns, policy: str):
    slow = Slow(of, policy)
    slow.run()
    result = run(of, policy)
    assert slow.placed == placed(of, result)
    np.testing.assert_allclose(slow.cpu, result.series.cpu, rtol=1e-5, atol=1e-6)


# --- invariants of all policies --------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(of=courses(), policy=st.sampled_from(POLICIES))
def test_each_pod_is_placed_or_counted_as_never_placed(of: TraceColumns, policy: str):
    result = run(of, policy)
    summary = result.summary()
    assert summary.pods == len(of.pods) == len(placed(of, result)) + summary.unschedulable
    assert (result.placed[result.first_node >= 0] >= result.arrived[result.first_node >= 0]).all()
    assert result.series.waiting[-1] == summary.unschedulable


@settings(max_examples=10)
@given(of=courses(), policy=st.sampled_from(POLICIES))
def test_no_node_has_more_requests_than_capacity(of: TraceColumns, policy: str):
    """At each minute."""
    result = run(of, policy)
    size = {name: change.record.cores for change in of.changes if change.record for name in [of.names[change.node]]}
    for minute in range(of.minutes):
        now = of.begins + 60.0 * minute
        for node_, name in enumerate(of.names):
            there = (result.first_node == node_) & (result.placed <= now)
            there &= np.array([now < p + each.lifetime for p, each in zip(result.placed, of.pods, strict=True)], bool)
            asked_ = sum(each.record.cores for each, is_there in zip(of.pods, there, strict=True) if is_there)
            assert asked_ <= size[name] + 1e-9


@settings(max_examples=25)
@given(
    pods=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 5), st.integers(1, 40)), min_size=1, max_size=8),
    policy=st.sampled_from(["Random", "TargetLoadPacking"]),
)
def test_throttled_pods_do_all_their_work(pods: list[tuple[int, int, int]], policy: str):
    """The used core-minutes are those of the trace, plus those of the minutes in which pods end."""
    found = sorted((60.0 * at, 60.0 * minutes, wanted / 4.0) for at, minutes, wanted in pods)
    records = [
        one
        for i, (at, lifetime, wanted) in enumerate(found)
        for one in (pod(f"p{i}", 0.1, at=at, lifetime=lifetime), usage(f"p{i}", wanted, at=at))
    ]
    result = run(course(node("a", 1.0), node("b", 2.0), *records, minutes=600), policy, throttle=True)
    assert 0.0 == result.series.cpu[-1].sum()
    used = float((np.minimum(result.series.cpu, 1.0) * [1.0, 2.0]).sum())
    work = sum(lifetime / 60.0 * wanted for _, lifetime, wanted in found)
    assert work - 1e-3 <= used <= work + sum(wanted for _, _, wanted in found) + 1e-3


@settings(max_examples=25)
@given(of=courses(), policy=st.sampled_from(POLICIES))
def test_without_overload_no_pod_is_throttled(of: TraceColumns, policy: str):
    result, usual = run(of, policy, throttle=True), run(of, policy)
    if np.nanmax(usual.series.cpu) <= 1.0:
        assert 0.0 == result.late.sum()
        assert result.series.cpu.tobytes() == usual.series.cpu.tobytes()
    assert 0.0 == usual.late.sum()


@settings(max_examples=10)
@given(of=courses(), policy=st.sampled_from(POLICIES))
def test_the_same_input_gives_the_same_result(of: TraceColumns, policy: str):
    first, second = run(of, policy), run(of, policy)
    assert first.first_node.tolist() == second.first_node.tolist()
    assert first.series.cpu.tobytes() == second.series.cpu.tobytes()
    assert first.summary() == second.summary()


def test_another_seed_chooses_other_nodes_of_equal_ones():
    of = course(*(node(f"n{i}") for i in range(9)), *(pod(f"p{i}", 0.1) for i in range(3)))
    assert placed(of, run(of, seed=1)) != placed(of, run(of, seed=2))
