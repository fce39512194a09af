"""LoadAwareScheduling beyond the golden cases: with the watcher's windows, with events in any order, and with invalid
input."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from scorers.cluster.node_metrics import NodeMetric, NodeMetricObject, PodMetric, read_node_metric
from scorers.cluster.pods import identity
from scorers.cluster.table import ClusterTable
from scorers.plugin_api.arguments import ArgumentsError
from scorers.plugin_api.framework import create_plugin
from scorers.plugins.koordinator.load_aware_scheduling import LoadAwareScheduling
from tests.fakes.snapshots import WINDOWS, snapshot_of
from tests.scorers.simulated_cluster import NOW, info, load, node, pod, rows, table
from watcher.client import Columns, NodeSilence, PodColumns, to_columns
from watcher.core.koordinator.collect_policy import CollectPolicy
from watcher.core.koordinator.report import measure
from watcher.core.koordinator.usage_thresholds import ANNOTATION
from watcher.core.kubernetes.objects import Node, Pod
from watcher.core.pods.table import by_node
from watcher.core.publishing.documents import columns as columns_of
from watcher.core.publishing.selection import Selection

GI = 1 << 30
SHAPE = {"cpu": "10", "memory": "100Gi"}
ONE_CORE = {"requests": {"cpu": "1", "memory": "1Gi"}}


def busy(cpu: float, memory: float = 20.0, **more: float) -> dict[tuple[str, str], float]:
    return {("CPU", "AVG"): cpu, ("Memory", "AVG"): memory} | {("CPU", key): value for key, value in more.items()}


def usage(given: Mapping[tuple[str, str], tuple[str, float, float]]) -> PodColumns:
    """The usage of pods, from (namespace, name) -> (node, cores, bytes)."""
    pods = tuple(sorted(given))
    nodes = tuple(given[key][0] for key in pods)
    cores, memory = (np.array([given[key][part] for key in pods], dtype=np.float64) for part in (1, 2))
    return PodColumns(
        timestamp=int(NOW),
        source="Test",
        every_s=60.0,
        cores_span_s=60.0,
        memory_kind="rss",
        pods=pods,
        nodes=nodes,
        row={key: row for row, key in enumerate(pods)},
        on_node=by_node(nodes),
        sampled=np.full(len(pods), NOW),
        cores=cores,
        memory=memory,
        average={"15m": (cores, memory)},
        received=0.0,
        age_at_receipt=0.0,
    )


def ask(
    cluster: ClusterTable, args: Mapping[str, Any] | None = None, **kind: Any
) -> tuple[LoadAwareScheduling, Any, Any]:
    """The plug-in, and its verdicts and scores of all nodes for a pod of one core, by name."""
    plugin, _ = create_plugin(LoadAwareScheduling, args or {}, cluster)
    asked = info(containers=[ONE_CORE], **kind)
    at = rows(cluster, *sorted(cluster.row))
    return plugin, plugin.filter(asked, cluster, at, now=NOW), plugin.score(asked, cluster, at, now=NOW)


# --- from the watcher's windows --------------------------------------------------------------------------------------


def test_a_threshold_that_is_not_set_is_not_shown() -> None:
    """It would look like an unknown threshold."""
    cluster = table([node("a", SHAPE)], loads=load({"a": busy(60.0)}))
    _, verdicts, _ = ask(cluster, {"usageThresholds": {"cpu": 70}})
    assert [name for name in verdicts.steps if name.endswith("threshold %")] == ["cpu threshold %"]


def test_windows_are_percent_of_the_capacity_of_a_node() -> None:
    """60 % of 10 cores and 850 millicores of the pod are 68.5 %, rounded 69; the loaded node scores lower."""
    cluster = table([node("a", SHAPE), node("b", SHAPE)], loads=load({"a": busy(60.0), "b": busy(10.0)}))
    _, verdicts, scores = ask(cluster)
    assert verdicts.passed.tolist() == [False, True]
    assert verdicts.reasons[int(verdicts.codes[0])] == "node(s) cpu usage exceed threshold"
    assert {name: steps[0] for name, steps in verdicts.steps.items() if name.startswith("cpu")} == {
        "cpu measured": 6000,
        "cpu of pods not measured yet": 0,
        "cpu with the pod": 6850,
        "cpu allocatable": 10000,
        "cpu %": 69.0,
        "cpu threshold %": 65.0,
    }
    assert scores.values.tolist() == [(31 + 79) // 2, (81 + 79) // 2]
    assert scores.reason(0) == "with the pod cpu would be at 69 %, memory would be at 21 %: 55"


def test_a_percentage_of_capacity_is_compared_with_allocatable() -> None:
    """Utilization is measured of the whole machine; pods may use its allocatable resources."""
    cluster = table(
        [node("a", {"cpu": "10", "memory": "10Gi"}, {"cpu": "8", "memory": "8Gi"})], loads=load({"a": busy(40.0)})
    )
    _, verdicts, _ = ask(cluster)
    assert [verdicts.steps[name][0] for name in ("cpu measured", "cpu allocatable", "cpu %")] == [4000, 8000, 61.0]


def test_estimates_name_the_pods_of_a_node() -> None:
    pods = [
        pod(name, node=at, containers=[ONE_CORE], scheduled=NOW)
        for name, at in (("second", "a"), ("first", "a"), ("elsewhere", "b"))
    ]
    cluster = table([node("a", SHAPE), node("b", SHAPE)], pods, load({"a": busy(30.0), "b": busy(30.0)}))
    plugin, _ = create_plugin(LoadAwareScheduling, {}, cluster)
    found = plugin.estimates(cluster.row["a"])
    assert found["nodeDelta"]["cpu"] == found["nodeEstimated"]["cpu"] == 2 * 850
    for name in ("nodeDeltaPods", "prodDeltaPods", "nodeEstimatedPods"):
        assert found[name] == ["default/first", "default/second"]
    assert found["prodUsagePods"] == []


def test_without_measured_pods_only_new_pods_are_added() -> None:
    """The usage of a node contains pods that have run for a report interval. explain states this assumption."""
    pods = [
        pod(name, node="a", containers=[ONE_CORE], scheduled=NOW - age)
        for name, age in (("just-now", 0), ("young", 59), ("at-the-interval", 60), ("old", 3600))
    ]
    cluster = table([node("a", SHAPE)], pods, load({"a": busy(30.0)}))
    _, verdicts, scores = ask(cluster)
    assert verdicts.steps["cpu of pods not measured yet"].tolist() == [2 * 850]
    assert (
        "pods older than the report interval of their node are assumed to be in the usage"
        in verdicts.inputs["podUsage"]
    )
    assert "; 2 pods counted by their estimate: default/just-now, default/young: " in scores.reason(0)
    _, later, _ = ask(cluster, {"reportIntervalSeconds": 61})
    assert later.steps["cpu of pods not measured yet"].tolist() == [3 * 850]


def test_a_pod_can_count_at_its_estimate_for_longer() -> None:
    """For a workload that warms up slowly; its estimate is added in full, since its usage is unknown."""
    cluster = table(
        [node("a", SHAPE)], [pod("p", node="a", containers=[ONE_CORE], scheduled=NOW - 200)], load({"a": busy(30.0)})
    )
    found = [
        ask(cluster, {"estimatedSecondsAfterPodScheduled": seconds})[1].steps["cpu of pods not measured yet"][0]
        for seconds in (200, 201)
    ]
    assert found == [0, 850]


def test_of_a_measured_pod_the_estimate_beyond_its_usage_is_added() -> None:
    """A prod pod uses 600 of 850 millicores; another pod, which was on another node before, is not measured; an old pod
    that uses more than its estimate adds nothing."""
    pods = [
        pod("young", node="a", containers=[ONE_CORE], scheduled=NOW - 10),
        pod("moved", node="a", containers=[ONE_CORE], scheduled=NOW - 3600),
        pod("old", node="a", containers=[ONE_CORE], scheduled=NOW - 3600),
    ]
    cluster = table([node("a", SHAPE)], pods, load({"a": busy(30.0)}))
    cluster.set_pod_usage(
        usage(
            {
                ("default", "young"): ("a", 0.6, GI),
                ("default", "moved"): ("b", 0.1, GI),
                ("default", "old"): ("a", 0.9, GI),
            }
        )
    )
    args = {"nodeMetricSource": "windowsAndPods", "prodUsageThresholds": {"cpu": 20}, "scoreAccordingProdUsage": True}
    _, verdicts, scores = ask(cluster, args)
    assert verdicts.steps["cpu measured"].tolist() == [1500]  # of prod pods, as the pod is one
    assert verdicts.steps["cpu of pods not measured yet"].tolist() == [250 + 850]
    assert verdicts.reasons[int(verdicts.codes[0])] == "node(s) cpu usage exceed threshold"
    assert "2 pods counted by their estimate: default/moved, default/young" in scores.reason(0)
    cluster.set_pod_usage(None)  # they are deleted: all usage is judged, by its own thresholds
    _, verdicts, _ = ask(cluster, args)
    assert verdicts.steps["cpu measured"].tolist() == [3000]
    assert verdicts.steps["cpu threshold %"].tolist() == [65.0]
    assert "podUsage" in verdicts.inputs


def test_nodes_without_measurements_pass_and_score_lowest() -> None:
    """No resource known, one resource unknown, capacity zero; measurements that are too old, by default and by the
    arguments."""
    nodes = [node(name, SHAPE) for name in ("a", "half", "silent")] + [node("empty", {}, SHAPE)]
    loads = load({"a": busy(60.0), "half": {("CPU", "AVG"): 20.0}, "empty": busy(20.0)})
    cluster = table(nodes, loads=loads)
    _, verdicts, scores = ask(cluster, {"usageThresholds": {"cpu": 70, "memory": 1}})
    assert dict(zip(sorted(cluster.row), verdicts.passed.tolist(), strict=True)) == {
        "a": False,
        "half": True,
        "silent": True,
        "empty": True,
    }
    assert dict(zip(sorted(cluster.row), scores.values.tolist(), strict=True)) == {
        "a": 55.0,
        "half": 71 // 2,
        "silent": 0.0,
        "empty": 0.0,
    }
    assert scores.reason(sorted(cluster.row).index("silent")) == "no metrics of this node: 0"
    assert np.isnan(scores.steps["memory measured"][sorted(cluster.row).index("half")])  # and not an idle 0
    assert np.isnan(verdicts.steps["cpu with the pod"][sorted(cluster.row).index("silent")])
    assert "memory is unknown" in scores.reason(sorted(cluster.row).index("half"))
    cluster.set_load(None, now=NOW)
    _, verdicts, scores = ask(cluster)
    assert verdicts.passed.all()
    assert not scores.values.any()


def aged(ages: Mapping[str, float], *, silent: Mapping[str, float] | None = None, source_ok: bool = True) -> Columns:
    """Columns of nodes of these ages in seconds, and of silent nodes."""
    columns = load(dict.fromkeys(ages, busy(10.0)))
    sampled = np.array([NOW - ages[name] for name in columns.nodes])
    return replace(
        columns,
        sampled=dict.fromkeys(columns.sampled, sampled),
        silence=NodeSilence({name: NOW - age for name, age in (silent or {}).items()}, len(ages), source_ok),
    )


@pytest.mark.parametrize(
    ("age", "args", "passes", "scored"),
    [
        (179, {}, True, True),
        (180, {}, False, False),
        (180, {"enableScheduleWhenNodeMetricsExpired": True}, True, False),
        (180, {"filterExpiredNodeMetrics": False}, True, False),
        (180, {"usageThresholds": {"cpu": 0, "memory": 0}}, True, False),
        (299, {"nodeMetricExpirationSeconds": 300}, True, True),
    ],
)
def test_a_measurement_expires(age, args, passes, scored) -> None:
    """By the node's own newest sample; a filter without thresholds passes all nodes."""
    cluster = table([node("a", SHAPE), node("b", SHAPE)], loads=aged({"a": age, "b": 0.0}))
    _, verdicts, scores = ask(cluster, args)
    assert verdicts.passed.tolist() == [passes, True]
    assert bool(scores.values[0]) is scored
    if not scored:
        assert scores.reason(0).startswith(f"its metrics are {age} s old")


def test_the_arguments_decide_whether_a_node_at_the_threshold_passes() -> None:
    """The original passes it since 1.6; its documentation states that it does not."""
    cluster = table([node("a", SHAPE)], loads=load({"a": busy(56.5)}))
    assert [ask(cluster, {"comparison": each})[1].passed.tolist() for each in ("gt", "ge")] == [[True], [False]]


# --- koordlet's percentiles over the watcher's samples ---------------------------------------------------------------

POLICY = CollectPolicy()
CALM = {"CPU": [10.0] * 60, "Memory": [20.0] * 60}


def measured(samples: Mapping[str, Mapping[str, list[float]]], policy: CollectPolicy = POLICY) -> Columns:
    """The copy of the load that the client in the process of the service makes of these samples."""
    snapshot = snapshot_of(samples)
    policies = [policy] * len(snapshot.nodes)
    copy = to_columns(columns_of(snapshot, Selection(WINDOWS[-1])), received=0.0, age_at_receipt=0.0)
    return replace(copy, usages=measure(snapshot, policies=policies))


def fleet(samples: Mapping[str, Mapping[str, list[float]]], policy: CollectPolicy = POLICY) -> ClusterTable:
    cluster = ClusterTable(windows=WINDOWS)
    for name in samples:
        cluster.set_node(name, node(name, SHAPE))
    cluster.set_load(measured(samples, policy), now=NOW)
    return cluster


@pytest.mark.parametrize(
    ("kind", "duration", "expected"),
    [
        ("avg", "5m", 6250),
        ("p50", "5m", 8000),
        ("p90", "5m", 8000),
        ("p95", "10m", 8000),
        ("p50", "10m", 1000),
        ("p95", "15m", 8000),
        ("p50", "15m", 1000),
        ("p99", "15m0s", 8000),
        ("p50", "", 1000),
        ("avg", "0s", 2750),
    ],
)
def test_each_aggregation_over_each_window_equals_koordlets(kind, duration, expected) -> None:
    """A load that rose from 10 to 80 percent in the last quarter: 15 of 60 samples, and all but 5 of 20. p50 of the 40
    samples of ten minutes is the 20th, without interpolation."""
    cluster = fleet({"a": {**CALM, "CPU": [10.0] * 45 + [80.0] * 15}})
    args = {"scoreAggregationType": kind, "scoreAggregatedDuration": duration}
    _, _, scores = ask(cluster, {"aggregated": args})
    assert scores.steps["cpu measured"].tolist() == [expected]
    filtering = {"usageThresholds": {"cpu": 50}, "usageAggregationType": kind, "usageAggregatedDuration": duration}
    _, verdicts, _ = ask(cluster, {"aggregated": filtering})
    assert verdicts.steps["cpu measured"].tolist() == [expected]
    assert verdicts.passed.tolist() == [expected < 5000]


def test_a_percentile_is_a_sample_without_interpolation() -> None:
    """10 and 20 percent in turn: the median of an even number of samples is the lower one."""
    cluster = fleet({"a": {**CALM, "CPU": [10.0, 20.0] * 30}})
    _, _, scores = ask(cluster, {"aggregated": {"scoreAggregationType": "p50"}})
    assert scores.steps["cpu measured"].tolist() == [1000]


def test_a_window_that_is_less_than_half_full_is_not_used() -> None:
    """With five minutes of samples, there are only estimates over fifteen minutes, the longest available window without
    a duration, and the mean before that."""
    cluster = fleet({"new": {key: values[:20] for key, values in CALM.items()}, "newest": {"CPU": [30.0] * 3}})
    for duration, new in (("15m", np.nan), ("5m", 1000.0), ("", 1000.0)):
        args = {"scoreAggregationType": "p95", "scoreAggregatedDuration": duration}
        _, _, scores = ask(cluster, {"aggregated": args})
        newest = np.nan if duration else 3000.0
        np.testing.assert_array_equal(scores.steps["cpu measured"], [new, newest])
        assert scores.steps["cpu with the pod"][0] == (850 if np.isnan(new) else 1850)


def test_without_a_percentile_the_estimates_of_all_pods_count() -> None:
    """Also of those that are in the mean usage of the node."""
    cluster = fleet({"a": {key: values[:20] for key, values in CALM.items()}})
    cluster.set_pod(None, pod("old", node="a", containers=[ONE_CORE], scheduled=NOW - 3600), now=NOW)
    for duration, cores in (("15m", 850 + 850), ("5m", 1000 + 850)):
        args = {"scoreAggregationType": "p95", "scoreAggregatedDuration": duration}
        assert ask(cluster, {"aggregated": args})[2].steps["cpu with the pod"].tolist() == [cores]


def test_usage_is_the_mean_over_the_aggregation_period() -> None:
    """Pods are new for the report interval, unless the arguments set another time."""
    samples = {"a": {**CALM, "CPU": [20.0] * 48 + [80.0] * 12}}
    for seconds, expected in ((60, 8000), (300, 5600), (900, 3200)):
        cluster = fleet(samples, CollectPolicy(report_interval_s=90, aggregate_duration_s=seconds))
        cluster.set_pod(None, pod("p", node="a", containers=[ONE_CORE], scheduled=NOW - 80), now=NOW)
        _, verdicts, _ = ask(cluster)
        assert verdicts.steps["cpu measured"].tolist() == [expected]
        assert verdicts.steps["cpu of pods not measured yet"].tolist() == [850]
        _, verdicts, _ = ask(cluster, {"reportIntervalSeconds": 60})
        assert verdicts.steps["cpu of pods not measured yet"].tolist() == [0]


def test_percentiles_follow_the_load() -> None:
    """Also those of a node that is added."""

    def at(percent: float) -> dict[str, list[float]]:
        return {**CALM, "CPU": [percent] * 60}

    cluster = ClusterTable(windows=WINDOWS)
    cluster.set_node("a", node("a", SHAPE))
    cluster.set_load(measured({"a": at(80.0), "b": at(30.0)}), now=NOW)
    plugin, _, before = ask(cluster, {"aggregated": {"scoreAggregationType": "p95"}})
    cluster.set_node("b", node("b", SHAPE))
    asked = info(containers=[ONE_CORE])
    both = plugin.score(asked, cluster, rows(cluster, "a", "b"), now=NOW)
    cluster.set_load(measured({"a": at(40.0)}), now=NOW)
    after = plugin.score(asked, cluster, rows(cluster, "a"), now=NOW)
    assert [scores.steps["cpu measured"].tolist() for scores in (before, both, after)] == [[8000], [8000, 3000], [4000]]


def test_an_annotation_with_a_window_that_is_not_kept_is_ignored(caplog) -> None:
    """Otherwise the node would have only estimates forever."""
    cluster = fleet({"a": CALM})
    wanted = {"usageThresholds": {"cpu": 5}, "usageAggregationType": "p95", "usageAggregatedDuration": "30m"}
    cluster.set_node("a", node("a", SHAPE, annotations={ANNOTATION: json.dumps({"aggregatedUsage": wanted})}))
    _, verdicts, _ = ask(cluster)
    assert verdicts.steps["cpu threshold %"].tolist() == [65]
    assert "'30m' is not served; served windows: 5m, 10m, 15m" in caplog.text


def test_usage_without_pods_is_the_usage_of_the_system() -> None:
    """A prod pod uses 600 of 1000 millicores; with the system, all are used."""
    cluster = fleet({"a": CALM})
    cluster.set_pod(None, pod("p", node="a", containers=[ONE_CORE], scheduled=NOW - 3600), now=NOW)
    cluster.set_pod_usage(usage({("default", "p"): ("a", 0.6, GI), ("kube-system", "q"): ("elsewhere", 0.2, GI)}))
    for with_system, expected in ((False, 600), (True, 1000)):
        args = {"nodeMetricSource": "windowsAndPods", "scoreAccordingProdUsage": True}
        _, _, scores = ask(cluster, {**args, "prodUsageIncludeSys": with_system})
        assert scores.steps["cpu measured"].tolist() == [expected]


def test_two_pods_in_quick_succession_see_each_other() -> None:
    """A reservation of the extender counts as an estimate at once."""
    cluster = table([node("a", SHAPE)], loads=load({"a": busy(10.0)}))
    plugin, _, before = ask(cluster)
    cluster.reserve(pod("p", containers=[ONE_CORE]), "a", now=NOW, until=NOW + 5)
    after = plugin.score(info(containers=[ONE_CORE]), cluster, rows(cluster), now=NOW)
    assert after.steps["cpu with the pod"] - before.steps["cpu with the pod"] == [850]
    cluster.release("p")
    again = plugin.score(info(containers=[ONE_CORE]), cluster, rows(cluster), now=NOW)
    assert again.values.tolist() == before.values.tolist()


# --- annotations -----------------------------------------------------------------------------------------------------

THRESHOLDS = "scheduling.koordinator.sh/usage-thresholds"


@pytest.mark.parametrize(
    ("annotation", "threshold", "kind"),
    [
        ({"usageThresholds": {"cpu": 30}}, 30, "usage"),
        ({"prodUsageThresholds": {"cpu": 5}}, 65, "usage"),  # the usage of prod pods is unknown
        ({"aggregatedUsage": {"usageThresholds": {"cpu": 40}, "usageAggregationType": "p95"}}, 40, "aggregated usage"),
        ({"aggregatedUsage": {"usageThresholds": {"cpu": 40}}}, 65, "usage"),
        ({}, 65, "usage"),
    ],
)
def test_a_node_can_have_its_own_thresholds(annotation, threshold, kind) -> None:
    """Each part of the annotation replaces that of the arguments."""
    cluster = table([node("a", SHAPE, annotations={THRESHOLDS: json.dumps(annotation)})], loads=load({"a": busy(60.0)}))
    plugin, verdicts, _ = ask(cluster)
    assert verdicts.steps["cpu threshold %"].tolist() == [threshold]
    assert verdicts.reasons[int(verdicts.codes[0])] == f"node(s) cpu {kind} exceed threshold"
    cluster.set_node("a", node("a", SHAPE))
    after = plugin.filter(info(containers=[ONE_CORE]), cluster, rows(cluster), now=NOW)
    assert after.steps["cpu threshold %"].tolist() == [65]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (THRESHOLDS, "{"),
        (THRESHOLDS, '{"usageThresholds": {"cpu": -1}}'),
        (THRESHOLDS, '{"usageThresholds": {"cpu": "40"}}'),
        (THRESHOLDS, '{"aggregatedUsage": {"usageThresholds": {"cpu": 40}, "usageAggregationType": "p42"}}'),
        (
            THRESHOLDS,
            '{"aggregatedUsage": {"usageThresholds": {"cpu": 40}, "usageAggregationType": "avg",'
            ' "usageAggregatedDuration": "-5m"}}',
        ),
        ("node.koordinator.sh/raw-allocatable", '{"cpu": "many"}'),
        ("node.koordinator.sh/raw-allocatable", "[]"),
    ],
)
def test_an_invalid_annotation_of_a_node_is_ignored(name, text, caplog) -> None:
    """A log line names the node and the annotation."""
    cluster = table([node("a", SHAPE, annotations={name: text})], loads=load({"a": busy(10.0)}))
    _, verdicts, _ = ask(cluster)
    assert verdicts.steps["cpu threshold %"].tolist() == [65]
    assert verdicts.steps["cpu allocatable"].tolist() == [10000]
    assert "node a: " in caplog.text


@pytest.mark.parametrize(
    ("text", "estimate"),
    [
        ('{"cpu": 50}', {"cpu": 500, "memory": 751619277}),
        ('{"cpu": 0}', {"cpu": 0, "memory": 751619277}),
        ('{"cpu": 150}', {"cpu": 1500, "memory": 751619277}),
        ('{"cpu": -1}', {"cpu": 850, "memory": 751619277}),
        ('{"cpu": 99999}', {"cpu": 850, "memory": 751619277}),
        ('{"cpu": "50"}', {"cpu": 850, "memory": 751619277}),
        ("{", {"cpu": 850, "memory": 751619277}),
    ],
)
def test_a_pod_can_have_its_own_factors_if_allowed(text, estimate) -> None:
    """An invalid annotation is ignored as a whole."""
    cluster = table([node("a", SHAPE)], loads=load({"a": busy(10.0)}))
    annotations = {"scheduling.koordinator.sh/load-estimated-scaling-factors": text}
    _, _, scores = ask(cluster, {"allowCustomizeEstimation": True}, metadata={"annotations": annotations})
    assert scores.inputs["podEstimate"] == estimate
    _, _, scores = ask(cluster, {}, metadata={"annotations": annotations})
    assert scores.inputs["podEstimate"] == {"cpu": 850, "memory": 751619277}


# --- arguments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ({"usageThresholds": {"cpu": 101}}, "usageThresholds.cpu: must be 0 to 100 (given: 101)"),
        ({"usageThresholds": {"cpu": "65"}}, "usageThresholds.cpu: must be a whole number"),
        ({"resourceWeights": {"cpu": 0}}, "resourceWeights.cpu: must be 1 to 100 (given: 0)"),
        ({"dominantResourceWeight": -1}, "dominantResourceWeight: must be 0 to 100 (given: -1)"),
        ({"nodeMetricExpirationSeconds": 0}, "nodeMetricExpirationSeconds: must be a whole number of at least 1"),
        ({"comparison": "eq"}, "comparison: must be gt or ge"),
        (
            {"estimator": "defaultEstimater"},
            "estimator: unknown estimator 'defaultEstimater'; did you mean defaultEstimator?",
        ),
        ({"usageTresholds": {}}, "unknown argument; did you mean usageThresholds?"),
        (
            {"aggregated": {"usageAggregationType": "p42"}},
            "aggregated.usageAggregationType: must be avg, p50, p90, p95 or p99",
        ),
        (
            {"nodeMetricSource": "cluster", "aggregated": {"scoreAggregatedDuration": "-5m"}},
            'aggregated.scoreAggregatedDuration: must be a duration like "5m", not negative',
        ),
        (
            {"nodeMetricSource": "cluster", "prodUsageThresholds": {"cpu": 500}},
            "prodUsageThresholds.cpu: must be 0 to 100 (given: 500)",
        ),
        (
            {"nodeMetricSource": "cluster", "resourceWeights": {"example.com/io": 1}},
            "estimatedScalingFactors.example.com/io: is missing, but resourceWeights has example.com/io",
        ),
        ({"prodUsageThresholds": {"cpu": 50}}, "prodUsageThresholds: needs the usage of each pod"),
        ({"scoreAccordingProdUsage": True}, "scoreAccordingProdUsage: needs the usage of each pod"),
        (
            {"aggregated": {"usageAggregationType": "p95", "usageAggregatedDuration": "30m"}},
            "aggregated.usageAggregatedDuration: '30m' is not served; served windows: 5m, 10m, 15m (add more in",
        ),
        ({"prodUsageIncludeSys": True}, "prodUsageIncludeSys: needs the usage of each pod"),
        (
            {"supportedResources": ["example.com/io"]},
            "example.com/io: the watcher does not measure it as a share of a resource of the node; measured are cpu, "
            "memory, nvidia.com/gpu, amd.com/gpu, koordinator.sh/gpu-core;",
        ),
    ],
)
def test_invalid_arguments_are_named(args, problem) -> None:
    """With the place, the problem and valid values."""
    with pytest.raises(ArgumentsError) as caught:
        create_plugin(LoadAwareScheduling, args, ClusterTable(windows=WINDOWS))
    assert problem in str(caught.value)


def test_the_default_weights_are_those_of_the_original() -> None:
    """If only the dominant resource has a weight, the others have none."""
    found = [
        create_plugin(LoadAwareScheduling, args, ClusterTable())[0].args.weights
        for args in ({}, {"dominantResourceWeight": 1}, {"resourceWeights": {"cpu": 2}, "dominantResourceWeight": 1})
    ]
    assert found == [{"cpu": 1, "memory": 1}, {}, {"cpu": 2}]


# --- NodeMetrics of the cluster --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        ({"updateTime": "yesterday"}, "status.updateTime: 'yesterday' is not a valid time"),
        (
            {"nodeMetric": {"nodeUsage": {"resources": {"cpu": "x"}}}},
            "nodeUsage: cpu: 'x' is not a Kubernetes quantity",
        ),
        ({"nodeMetric": {"nodeUsage": {"resources": {"cpu": "-1"}}}}, "nodeUsage: cpu is negative"),
        ({"nodeMetric": {"aggregatedNodeUsages": [{"duration": "5 min"}]}}, "'5 min' is not a valid duration"),
    ],
)
def test_an_invalid_node_metric_is_logged_with_the_reason(status, problem) -> None:
    """Its node does not count as idle."""
    given = msgspec.json.decode(json.dumps({"metadata": {"name": "n"}, "status": status}), type=NodeMetricObject)
    with pytest.raises(ValueError, match=problem):
        read_node_metric(given)


def test_a_deleted_node_metric_leaves_its_node_without_measurement() -> None:
    """A NodeMetric without a time keeps the time of the one before."""
    cluster = table([node("a", SHAPE)])
    metric = NodeMetric(updated=NOW, usage={"cpu": 2000, "memory": GI})
    cluster.set_node_metric("a", metric)
    plugin, _, before = ask(cluster, {"nodeMetricSource": "cluster"})
    cluster.set_node_metric("a", replace(metric, updated=None))
    asked = info(containers=[ONE_CORE])
    assert plugin.score(asked, cluster, rows(cluster), now=NOW).values.tolist() == before.values.tolist() == [84.0]
    cluster.set_node_metric("a", None)
    assert plugin.score(asked, cluster, rows(cluster), now=NOW).reason(0) == "no metrics of this node: 0"
    cluster.set_node_metric("nobody", metric)  # its node may come later
    cluster.set_node("nobody", node("nobody", SHAPE))
    assert plugin.score(asked, cluster, rows(cluster, "nobody"), now=NOW).values.tolist() == [84.0]


def test_a_pod_that_is_listed_before_its_node_counts_by_its_measurement() -> None:
    """Nodes, pods and NodeMetrics come from three watches."""
    cluster = table([node("z", SHAPE)])
    plugin, _, _ = ask(cluster, {"nodeMetricSource": "cluster"})
    reported = {("default", "p"): PodMetric({"cpu": 900, "memory": GI}, prod=True)}
    cluster.set_node_metric("a", NodeMetric(updated=NOW, usage={"cpu": 2000}, pods=reported))
    cluster.set_pod(None, pod("p", node="a", containers=[ONE_CORE], scheduled=NOW - 3600), now=NOW)
    asked = info(containers=[ONE_CORE])
    plugin.score(asked, cluster, rows(cluster, "z"), now=NOW)
    cluster.set_node("a", node("a", SHAPE))
    assert plugin.score(asked, cluster, rows(cluster, "a"), now=NOW).steps["cpu with the pod"].tolist() == [2850]


def test_a_reading_of_a_pod_does_not_count_on_the_next_node_of_the_row() -> None:
    """The node of the reading was deleted; a pod of the same name is on another node."""
    cluster = table([node("a", SHAPE)], loads=load({"a": busy(10.0), "b": busy(10.0)}))
    cluster.set_pod_usage(usage({("default", "p"): ("a", 0.8, GI), ("default", "q"): ("b", 0.1, GI)}))
    plugin, _, _ = ask(cluster, {"nodeMetricSource": "windowsAndPods"})
    row = cluster.row["a"]
    cluster.set_node("a", None)
    cluster.set_node("b", node("b", SHAPE))
    assert cluster.row["b"] == row
    cluster.set_pod(None, pod("p", node="b", containers=[ONE_CORE], scheduled=NOW - 3600), now=NOW)
    scores = plugin.score(info(containers=[ONE_CORE]), cluster, rows(cluster, "b"), now=NOW)
    assert scores.steps["cpu of pods not measured yet"].tolist() == [850]


def test_an_event_of_a_node_reads_only_its_own_pods() -> None:
    """The kubelets of thousands of nodes send events all the time; no event may create an array of all 20,000 pods."""
    many = {("default", f"p{i}"): (f"n{i % 50}", 0.1, 1.0) for i in range(20_000)}
    names = ["a", *(f"n{i}" for i in range(50))]
    cluster = table([node(name, SHAPE) for name in names], loads=load({name: busy(10.0) for name in names}))
    cluster.set_pod_usage(usage({("default", "p"): ("a", 0.4, GI), **many}))
    args = {"nodeMetricSource": "windowsAndPods", "scoreAccordingProdUsage": True}
    plugin, _, _ = ask(cluster, args)
    changed = node("a", {"cpu": "20", "memory": "100Gi"})
    tracemalloc.start()
    try:
        cluster.set_node("a", changed)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 100_000  # one number for each of them is 160,000 bytes
    assert plugin.metrics.system.take(rows(cluster, "a"))[0][0].tolist() == [1600]


def aggregated(seconds: int) -> NodeMetric:
    """A p95 over this number of seconds, of this number of millicores."""
    usage = {("p95", float(seconds)): {"cpu": seconds}, ("invented", float(seconds)): {"cpu": 1}}
    return NodeMetric(updated=NOW, usage={"cpu": 1}, aggregated=usage)


@pytest.mark.slow
@pytest.mark.parametrize("reported_by", ["NodeMetrics", "annotations"])
def test_unused_aggregations_and_durations_are_removed(reported_by: str) -> None:
    """koordlets and annotations can name others for as long as the service runs. Each has an array over all nodes: 6 kB
    here."""
    names = [f"n{i:03}" for i in range(300)]
    cluster = table([node(name, SHAPE) for name in names])
    scoring = {"scoreAggregationType": "p95", "scoreAggregatedDuration": "5m"}
    plugin, _, _ = ask(cluster, {"nodeMetricSource": "cluster", "aggregated": scoring})
    cluster.set_node_metric("n001", aggregated(300))
    asked, at = info(containers=[ONE_CORE]), rows(cluster, *names)

    def step(seconds: int) -> None:
        """The percentile of n000 is over this number of seconds, that of n001 always over the same."""
        cluster.set_node_metric("n000", aggregated(seconds))
        own = {"usageThresholds": {"cpu": 90}, "usageAggregationType": "p95", "usageAggregatedDuration": f"{seconds}s"}
        annotation = {THRESHOLDS: json.dumps({"aggregatedUsage": own})} if reported_by == "annotations" else {}
        cluster.set_node("n000", node("n000", SHAPE, annotations=annotation))
        measured = plugin.filter(asked, cluster, at, now=NOW).steps["cpu measured"].tolist()
        assert [seconds if annotation else 1, 1] == measured[:2]
        scored = plugin.score(asked, cluster, at, now=NOW).steps["cpu measured"].tolist()
        assert [300 if seconds == 300 else 0, 300] == [np.nan_to_num(each) for each in scored[:2]]

    step(300)
    tracemalloc.start()
    try:
        for seconds in range(301, 601):
            step(seconds)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 600_000  # else 2,700,000 and more
    step(300)  # an aggregation that was removed is known again when it is requested


@pytest.mark.parametrize(("seconds", "counted"), [(0, 50), (1, 850)])
def test_a_reading_from_before_the_assignment_belongs_to_another_pod(seconds, counted) -> None:
    """A pod of a StatefulSet that returns to its node has the same name; 50 or all of its estimate remains."""
    again = pod("p", node="a", containers=[ONE_CORE], scheduled=NOW + seconds)
    cluster = table([node("a", SHAPE)], [again], load({"a": busy(10.0)}))
    cluster.set_pod_usage(usage({("default", "p"): ("a", 0.8, GI)}))
    _, _, scores = ask(cluster, {"nodeMetricSource": "windowsAndPods"})
    assert scores.steps["cpu of pods not measured yet"].tolist() == [counted]


def test_with_prod_thresholds_the_explanation_has_measured_usage_and_no_forecast() -> None:
    """Prod pods use 650 of 10,000 millicores, 15 % with the new pod, which is compared with their threshold; another
    pod is compared with the bound of the node."""
    old = pod("p", node="a", containers=[ONE_CORE], scheduled=NOW - 3600, priority=9500)
    loads = load({"a": {**busy(30.0), ("CPU", "FORECAST"): 80.0}}, horizon="6h")
    cluster = table([node("a", SHAPE)], [old], loads)
    cluster.set_pod_usage(usage({("default", "p"): ("a", 0.65, GI)}))
    args = {
        "nodeMetricSource": "windowsAndPods",
        "usageThresholds": {"cpu": 70},
        "prodUsageThresholds": {"cpu": 10},
        "scoreAccordingProdUsage": True,
        "use": "forecast",
    }
    _, verdicts, scores = ask(cluster, args, priority=9500)
    compared = "prod pods have no forecast; their measured usage counts"
    assert verdicts.details(0) == f"cpu of prod pods 15 %, above 10 %; {compared}"
    assert compared in scores.reason(0)
    assert verdicts.more_steps(0) == scores.more_steps(0) == {}
    _, verdicts, scores = ask(cluster, args, priority=5500)
    assert verdicts.details(0).startswith("cpu 83 %, above 70 %; forecast: cpu at most 80 % within 6 h")
    assert verdicts.more_steps(0)["cpu forecast %"] == 80.0


def test_prod_thresholds_take_precedence_over_percentiles() -> None:
    """The reason is that of plain usage."""
    reported = {("default", "p"): PodMetric({"cpu": 7000}, prod=True)}
    metric = NodeMetric(updated=NOW, usage={"cpu": 8000}, aggregated={("p95", 300.0): {"cpu": 9000}}, pods=reported)
    old = pod("p", node="a", containers=[ONE_CORE], scheduled=NOW - 3600)
    cluster = table([node("a", SHAPE)], [old])
    cluster.set_node_metric("a", metric)
    aggregated = {"usageThresholds": {"cpu": 50}, "usageAggregationType": "p95"}
    args = {"nodeMetricSource": "cluster", "aggregated": aggregated, "prodUsageThresholds": {"cpu": 60}}
    for priority, measured, reason in ((9500, 7000, "cpu usage"), (5500, 9000, "cpu aggregated usage")):
        _, verdicts, _ = ask(cluster, args, priority=priority)
        assert verdicts.steps["cpu measured"].tolist() == [measured]
        assert verdicts.reasons[int(verdicts.codes[0])] == f"node(s) {reason} exceed threshold"


def test_pods_that_are_deleted_before_a_request_leave_nothing() -> None:
    """Between a new measurement and the next request."""
    here = pod("p", node="a", containers=[ONE_CORE], scheduled=NOW)
    cluster = table([node("a", SHAPE)], [here])
    cluster.set_node_metric("a", NodeMetric(updated=NOW, usage={"cpu": 2000, "memory": GI}))
    plugin, _, before = ask(cluster, {"nodeMetricSource": "cluster"})
    assert before.steps["cpu of pods not measured yet"].tolist() == [850]
    cluster.set_node_metric("a", NodeMetric(updated=NOW, usage={"cpu": 3000, "memory": GI}))
    cluster.set_pod(here, None, now=NOW)
    after = plugin.score(info(containers=[ONE_CORE]), cluster, rows(cluster), now=NOW)
    assert after.steps["cpu with the pod"].tolist() == [3000 + 850]


def test_a_pod_that_is_prod_to_only_one_source_counts_as_its_estimate() -> None:
    """It was just relabelled, so its measured usage is in no sum of prod pods."""
    old = pod("p", node="a", containers=[ONE_CORE], scheduled=NOW - 3600)
    cluster = table([node("a", SHAPE)], [old])
    reported = {("default", "p"): PodMetric({"cpu": 500, "memory": GI}, prod=False)}
    cluster.set_node_metric("a", NodeMetric(updated=NOW, usage={"cpu": 2000}, pods=reported))
    args = {"nodeMetricSource": "cluster", "scoreAccordingProdUsage": True}
    _, verdicts, scores = ask(cluster, args)
    assert [scores.steps[f"cpu {each}"][0] for each in ("measured", "of pods not measured yet")] == [0, 850]
    assert verdicts.steps["cpu of pods not measured yet"].tolist() == [0]


# --- events in any order ---------------------------------------------------------------------------------------------

NODES = ("n0", "n1", "n2")
PODS = ("p0", "p1", "p2")
ARGUMENTS: dict[str, dict[str, Any]] = {
    "windows": {},
    "windowsAndPods": {"prodUsageThresholds": {"cpu": 30}, "scoreAccordingProdUsage": True},
    "cluster": {
        "prodUsageThresholds": {"cpu": 30},
        "prodUsageIncludeSys": True,
        "supportedResources": ["example.com/io"],
        "aggregated": {"usageThresholds": {"cpu": 40}, "usageAggregationType": "p95", "scoreAggregationType": "p95"},
        "estimatedSecondsAfterPodScheduled": 100,
    },
}
ASKED = (info(containers=[ONE_CORE]), info("batch", containers=[ONE_CORE], priority=5500))


def reported(cluster: ClusterTable, plugin: LoadAwareScheduling) -> dict[str, Any]:
    """All results of the plug-in for each known node."""
    known = sorted(name for name, row in cluster.row.items() if cluster.known[row])
    at = rows(cluster, *known) if known else np.zeros(0, dtype=np.int64)
    found: dict[str, Any] = {}
    for asked in ASKED:
        verdicts = plugin.filter(asked, cluster, at, now=NOW)
        scores = plugin.score(asked, cluster, at, now=NOW)
        for i, name in enumerate(known):
            found[f"{name} {asked.pod.metadata.name}"] = (
                int(verdicts.codes[i]),
                {key: repr(values[i]) for key, values in verdicts.steps.items()},
                {key: repr(values[i]) for key, values in scores.steps.items()},
                scores.reason(i),
            )
    return found


class Events(RuleBasedStateMachine):
    """Nodes, pods, reservations and measurements that are added and removed; with each of the three sources."""

    def __init__(self) -> None:
        super().__init__()
        self.table = ClusterTable()
        self.plugins = {name: self.made(name, self.table) for name in ARGUMENTS}
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, Pod] = {}
        self.serial = 0

    def made(self, source: str, cluster: ClusterTable) -> LoadAwareScheduling:
        return create_plugin(LoadAwareScheduling, {**ARGUMENTS[source], "nodeMetricSource": source}, cluster)[0]

    @rule(
        name=st.sampled_from(NODES),
        cpu=st.integers(0, 4),
        custom=st.sampled_from(
            [
                "",
                '{"usageThresholds": {"cpu": 10}}',
                '{"aggregatedUsage": {"usageThresholds": {"cpu": 9}, "usageAggregationType": "avg"}}',
                *(
                    '{"aggregatedUsage": {"usageThresholds": {"cpu": 9}, "usageAggregationType": "p95",'
                    f' "usageAggregatedDuration": "{duration}"}}}}'
                    for duration in ("5m", "10m")
                ),
            ]
        ),
    )
    def node_comes_or_changes(self, name: str, cpu: int, custom: str) -> None:
        annotations = {THRESHOLDS: custom} if custom else {}
        self.nodes[name] = node(name, {"cpu": str(cpu), "memory": "8Gi"}, annotations=annotations)
        self.table.set_node(name, self.nodes[name])

    @rule(name=st.sampled_from(NODES))
    def node_goes(self, name: str) -> None:
        self.nodes.pop(name, None)
        self.table.set_node(name, None)

    @rule(
        name=st.sampled_from(PODS),
        where=st.sampled_from(["", *NODES]),
        containers=st.sampled_from([[], [ONE_CORE], [ONE_CORE, ONE_CORE]]),
        priority=st.sampled_from([9500, 7500, 5500]),
        age=st.sampled_from([10, 70, 3600]),
        phase=st.sampled_from(["Running", "Running", "Succeeded"]),
        again=st.booleans(),
    )
    def pod_comes_or_changes(
        self, name: str, where: str, containers: Any, priority: int, age: int, phase: str, again: bool
    ) -> None:
        old = self.pods.get(name)
        self.serial += again or old is None
        uid = f"{name}-{self.serial}" if old is None or again else identity(old)
        new = pod(name, uid=uid, node=where, containers=containers, phase=phase, scheduled=NOW - age, priority=priority)
        self.table.set_pod(old, new, now=NOW)
        self.pods[name] = new

    @rule(name=st.sampled_from(PODS))
    def pod_goes(self, name: str) -> None:
        if old := self.pods.pop(name, None):
            self.table.set_pod(old, None, now=NOW)

    @rule(name=st.sampled_from(PODS), where=st.sampled_from(NODES))
    def pod_is_reserved(self, name: str, where: str) -> None:
        if name in self.pods:
            self.table.reserve(self.pods[name], where, now=NOW, until=NOW + 5)

    @rule(cpu=st.sampled_from([5.0, 50.0]), percentile=st.booleans(), among=st.integers(0, 3))
    def load_comes(self, cpu: float, percentile: bool, among: int) -> None:
        more = {"P95": cpu * 2} if percentile else {}
        loads = load({name: busy(cpu + i, **more) for i, name in enumerate(NODES[:among])}) if among else None
        self.table.set_load(loads, now=NOW)

    @rule(node_=st.sampled_from(NODES), known=st.sets(st.sampled_from(PODS)), there=st.booleans())
    def pods_are_measured(self, node_: str, known: set[str], there: bool) -> None:
        given = {("default", name): (node_, 0.1 * len(known), 1e8) for name in known}
        self.table.set_pod_usage(usage(given) if there else None)

    @rule(
        name=st.sampled_from(NODES),
        updated=st.sampled_from([None, NOW, NOW - 50, NOW - 500]),
        measured=st.booleans(),
        durations=st.sets(st.sampled_from([300.0, 600.0])),
        prod=st.sets(st.sampled_from(PODS)),
        there=st.booleans(),
    )
    def node_metric_comes_or_goes(
        self, name: str, updated: float | None, measured: bool, durations: set[float], prod: set[str], there: bool
    ) -> None:
        metric = NodeMetric(
            updated=updated,
            usage={"cpu": 700, "memory": GI, "example.com/io": 3} if measured else None,
            system={"cpu": 90},
            aggregated={("p95", seconds): {"cpu": int(seconds)} for seconds in durations},
            pods={("default", each): PodMetric({"cpu": 300}, each != "p2") for each in prod},
        )
        self.table.set_node_metric(name, metric if there else None)

    @invariant()
    def equals_a_rebuild(self) -> None:
        """After all reservations have expired."""
        self.table.expire(NOW + 100)
        rebuilt = table(self.nodes.values(), self.pods.values(), self.table.load.columns)
        for name, metric in self.table.node_metrics.items():
            rebuilt.set_node_metric(name, metric)
        rebuilt.set_pod_usage(self.table.pod_usage)
        for source, plugin in self.plugins.items():
            assert reported(self.table, plugin) == reported(rebuilt, self.made(source, rebuilt)), source


TestEvents = Events.TestCase
TestEvents.settings = settings(max_examples=20, stateful_step_count=15, deadline=None)
TestEvents.pytestmark = [pytest.mark.slow]  # type: ignore[attr-defined]
