"""Attributes of the metrics, and their arithmetic for steps on a pod."""

from __future__ import annotations

from typing import get_args

import pytest

from agent.metrics.action_metric import ActionMetric, PlanContext, PodSteps
from agent.metrics.pod_actions import lower_quota, raise_quota
from agent.metrics.registry import Metrics
from agent.metrics.sorters import CHAINS
from agent.metrics.trigger_only import triggering
from agent.model import ContainerState, CpuThrottle, Eviction, Original, QuotaChange, StageKind
from tests.agent.scenes import CPU, CPU_PERCENT, MEMORY, pod, running, state

TEN = CpuThrottle(min_ratio=0, step_ratio=10)
HALF = CpuThrottle(min_ratio=0, step_ratio=50)
KINDS: tuple[StageKind, ...] = get_args(StageKind)


def container(**values) -> ContainerState:
    return ContainerState(name="main", id="id", **values)


@pytest.mark.parametrize(
    ("given", "usage", "ratio", "quota", "millicores"),
    [
        pytest.param({}, 2.0, TEN, 180_000, 200, id="no quota: a step below the usage"),
        pytest.param({"quota": 300_000}, 2.9, TEN, 270_000, 200, id="a step below the quota"),
        pytest.param({"quota": 400_000}, 1.0, TEN, 360_000, 0, id="a quota above the usage releases nothing"),
        pytest.param({"quota": 100_000}, 1.3, HALF, 50_000, 500, id="no more than the quota lets it use"),
        pytest.param({"cpu_request": 1.9}, 2.0, HALF, 190_000, 100, id="not below the request"),
        pytest.param({"cpu_limit": 4.0}, 3.0, CpuThrottle(50, 50), 200_000, 1000, id="not below half of the limit"),
        pytest.param(
            {"extended_cpu_limit": 2.0}, 1.0, CpuThrottle(80, 50), 160_000, 0, id="not below the extended request"
        ),
        pytest.param({}, 0.005, TEN, 1_000, 0, id="not below the minimum of the kernel"),
        pytest.param({"period": 50_000}, 2.0, TEN, 90_000, 200, id="of another period"),
    ],
)
def test_lowering_a_quota(given, usage, ratio, quota, millicores):
    new = lower_quota(container(**given), usage, ratio)
    assert new is not None
    assert (quota, pytest.approx(millicores)) == (new.quota, new.millicores)


@pytest.mark.parametrize(
    ("given", "ratio"),
    [
        pytest.param({"quota": 1_000}, TEN, id="at the minimum of the kernel"),
        pytest.param({"quota": 50_000, "cpu_request": 1.0}, TEN, id="already below the request"),
        pytest.param({"quota": 200_000, "cpu_limit": 4.0}, CpuThrottle(50, 50), id="at its share of the limit"),
        pytest.param({"quota": 200_000}, CpuThrottle(0, 0), id="a step of 0"),
    ],
)
def test_lowering_never_raises_a_quota(given, ratio):
    assert lower_quota(container(**given), 3.0, ratio) is None


@pytest.mark.parametrize(
    ("given", "usage", "original", "options", "quota", "millicores"),
    [
        pytest.param({"quota": 100_000}, 0.9, None, {}, 110_000, 200, id="one step"),
        pytest.param({"quota": 100_000}, 1.0, 105_000, {}, 105_000, 50, id="not beyond the original"),
        pytest.param({"quota": 100_000, "throttled": False}, 0.5, 777_777, {}, 777_777, 0, id="does not need it"),
        pytest.param({"quota": 100_000, "throttled": False}, 0.5, None, {}, None, 0, id="unlimited again"),
        pytest.param({"quota": 7_000_000}, 60.0, None, {}, None, 0, id="more than the node has"),
        pytest.param({"quota": 390_000}, 3.9, None, {"node_cores": 4.0}, None, 100, id="all that the node has"),
        pytest.param({"quota": 100_000}, 1.0, None, {"room": 50.0}, 105_000, 50, id="as far as there is room"),
        pytest.param({"quota": 50_000, "period": 50_000}, 1.0, 300_000, {}, 55_000, 100, id="of another period"),
    ],
)
def test_raising_a_quota(given, usage, original, options, quota, millicores):
    new = raise_quota(container(**given), usage, TEN, Original(original), **options)
    assert new is not None
    assert (quota, pytest.approx(millicores)) == (new.quota, new.millicores)


@pytest.mark.parametrize(
    ("given", "original", "options"),
    [
        pytest.param({}, None, {}, id="has none"),
        pytest.param({"quota": 100_000}, 100_000, {}, id="has the original"),
        pytest.param({"quota": 200_000}, 100_000, {}, id="another program raised it"),
        pytest.param({"quota": 100_000}, None, {"room": 0.0}, id="no room"),
        pytest.param({"quota": 100_000}, None, {"room": 9.0}, id="less room than the minimum step"),
    ],
)
def test_a_quota_that_cannot_be_raised(given, original, options):
    assert raise_quota(container(**given), 1.0, TEN, Original(original), **options) is None


def test_a_quota_with_another_period_is_restored_to_the_same_cores():
    new = raise_quota(container(quota=10_000, period=50_000, throttled=False), 0.1, TEN, Original(300_000, 100_000))
    assert new is not None
    assert 150_000 == new.quota


def circumstances(**values) -> PlanContext:
    return PlanContext(state(cpu_core_numbers=8.0, memory_total=1000.0), **values)


def test_throttling_a_pod_counts_all_of_its_containers_and_skips_the_sandbox():
    containers = (
        ContainerState(name="", id="pause", cpu=0.1),
        ContainerState(name="one", id="1", cpu=2.0),
        ContainerState(name="two", id="2", cpu=1.0),
        ContainerState(name="unknown", id="3"),
    )
    throttle = Metrics()[CPU].throttle
    assert throttle is not None
    planned = throttle(pod("p", 3.1, containers=containers), HALF, circumstances())
    assert ["1", "2"] == [step.change.container_id for step in planned.steps if isinstance(step.change, QuotaChange)]
    assert {"cpu": pytest.approx(1500.0)} == planned.released


def test_a_pod_with_an_unknown_usage_is_explained_and_gets_no_step():
    metrics = Metrics()
    unknown = pod("p", containers=(ContainerState(name="one", id="1"),))
    for name in (CPU, CPU_PERCENT, MEMORY):
        metric = metrics[name]
        assert metric.evict is not None
        planned = metric.evict(unknown, None, circumstances())
        assert planned.unknown
        assert "unknown" in planned.problem
        assert not planned.steps
    throttle = metrics[CPU].throttle
    assert throttle is not None
    assert throttle(unknown, HALF, circumstances()).unknown


def test_evicting_releases_the_whole_usage_of_a_pod():
    evict = Metrics()[CPU].evict
    assert evict is not None
    planned = evict(pod("p", 1.5, memory=100, extended_cpu_limit=2.0, owner="ReplicaSet/r"), 7.0, circumstances())
    assert {"cpu": 1500.0, "extended_cpu": 1500.0, "memory": 100.0} == planned.released
    (step,) = planned.steps
    assert ("evict", Eviction(7.0, "ReplicaSet/r"), "uid-p") == (step.kind, step.change, step.uid)


def test_only_pods_with_extended_cpu_release_it():
    metric = Metrics()["ext_res_container_cpu_total_usage"]
    assert metric.throttle is not None
    assert metric.evict is not None
    without = running("plain", 1.0)
    assert "no extended CPU" in metric.throttle(without, HALF, circumstances()).problem
    assert "no extended CPU" in metric.evict(without, None, circumstances()).problem
    planned = metric.throttle(running("extended", 1.0, quota=200_000), HALF, circumstances())
    assert not planned.steps  # the limit of the pod counts, not that of the container
    having = pod("extended", 1.0, extended_cpu_limit=2.0, containers=(container(cpu=1.0),))
    assert {"cpu": 500.0, "extended_cpu": 500.0} == metric.throttle(having, HALF, circumstances()).released
    assert 1000.0 == metric.scale(state())


@pytest.mark.parametrize(
    ("name", "scale"), [(CPU, 1.0), (MEMORY, 1.0), (CPU_PERCENT, 80.0), ("memory_total_utilization", 10.0)]
)
def test_the_scale_of_each_metric(name, scale):
    assert scale == Metrics()[name].scale(circumstances().state)


@pytest.mark.parametrize("name", [CPU_PERCENT, "memory_total_utilization"])
def test_the_scale_of_a_percentage_needs_the_capacity(name):
    assert Metrics()[name].scale(state()) is None


def test_memory_and_cpu_metrics_in_the_registry():
    metrics = Metrics()
    assert (10, 10, 5, 5) == tuple(
        metrics[name].action_priority for name in (MEMORY, "memory_total_utilization", CPU, CPU_PERCENT)
    )
    precise = {name for name in metrics if metrics[name].evict_quantified}
    assert {CPU, CPU_PERCENT, MEMORY, "memory_total_utilization", "ext_res_container_cpu_total_usage"} == precise
    throttleable = {name for name in metrics if metrics[name].throttleable}
    assert throttleable == {CPU, CPU_PERCENT, "ext_res_container_cpu_total_usage"}
    assert all(metrics[name].sortable for name in metrics)


def test_no_action_reduces_a_window_of_the_watcher_or_pressure():
    metrics = Metrics()
    assert not any(metrics["window_cpu_avg_5m"].reduced_by(kind) for kind in KINDS)
    assert "window_cpu_avg_5m" in metrics
    assert metrics.get("psi_cpu_some_avg10") is None
    assert metrics.get("anything_else") is None


@pytest.mark.parametrize(
    ("name", "reduced", "quantified"),
    [
        (CPU, {"throttle", "restore", "evict"}, {"throttle", "restore", "evict"}),
        (CPU_PERCENT, {"throttle", "evict", "restore"}, {"throttle", "evict", "restore"}),
        (MEMORY, {"reclaim", "hold", "evict"}, {"reclaim", "hold", "evict"}),
        ("disk_read_iops", {"evict"}, set()),
    ],
)
def test_which_steps_reduce_a_metric(name: str, reduced: set[str], quantified: set[str]):
    metric = Metrics()[name]
    assert reduced == {kind for kind in KINDS if metric.reduced_by(kind)}
    assert quantified == {kind for kind in KINDS if metric.quantified_for(kind)}


def test_a_user_defined_metric():
    own = triggering("queue_length", acts_on="cpu", action_priority=7, throttleable=True, evictable=False)
    metrics = Metrics([own])
    assert own is metrics["queue_length"]
    assert CHAINS.cpu is own.sort
    assert (True, False, False) == (own.throttleable, own.throttle_quantified, own.evictable)
    with pytest.raises(ValueError, match="the metric name cpu_total_usage is already in use"):
        metrics.register(ActionMetric(name=CPU))
    with pytest.raises(ValueError, match="window_cpu_avg_5m is already in use"):
        metrics.register(ActionMetric(name="window_cpu_avg_5m"))


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"name": ""}, "name is empty"),
        ({"action_priority": 11}, "0 to 10"),
        ({"sortable": True}, "sortable requires sort"),
        ({"throttleable": True}, "throttle or restore is missing"),
        ({"throttle_quantified": True, "resource": "r"}, "throttle_quantified requires throttleable"),
        ({"evictable": True}, "evictable requires evict"),
        ({"evict_quantified": True, "resource": "r"}, "evict_quantified requires evictable"),
        (
            {"evictable": True, "evict": lambda *_: PodSteps(), "evict_quantified": True},
            "a quantified metric requires resource",
        ),
    ],
)
def test_attributes_that_contradict_each_other_are_refused(values, problem):
    with pytest.raises(ValueError, match=problem):
        ActionMetric(**{"name": "m", **values})
