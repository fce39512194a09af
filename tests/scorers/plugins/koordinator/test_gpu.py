"""LoadAwareScheduling with GPUs, whose utilization the watcher measures in percent of all GPUs of a node."""

from __future__ import annotations

from typing import Any

import pytest

from scorers.cluster.table import ClusterTable
from scorers.plugin_api.arguments import ArgumentsError
from scorers.plugin_api.framework import create_plugin
from scorers.plugins.koordinator.load_aware_scheduling import LoadAwareScheduling
from tests.fakes.snapshots import WINDOWS, snapshot_of
from tests.scorers.simulated_cluster import NOW, info, load, node, rows, table
from watcher.core.koordinator.collect_policy import CollectPolicy
from watcher.core.koordinator.report import measure

GPU = "nvidia.com/gpu"
POD = {"requests": {"cpu": "1", "memory": "1Gi", GPU: "1"}, "limits": {GPU: "1"}}


def nodes(**gpus: str) -> list[Any]:
    return [node(name, {"cpu": "10", "memory": "100Gi", GPU: size}) for name, size in gpus.items()]


def percent(gpu: float) -> dict[tuple[str, str], float]:
    return {("CPU", "AVG"): 10.0, ("Memory", "AVG"): 10.0, ("GPU", "AVG"): gpu}


def answers(cluster: ClusterTable, args: dict[str, Any]) -> tuple[LoadAwareScheduling, Any, Any]:
    plugin, _ = create_plugin(LoadAwareScheduling, args, cluster)
    at = rows(cluster, *sorted(cluster.row))
    asked = info(containers=[POD])
    return plugin, plugin.filter(asked, cluster, at, now=NOW), plugin.score(asked, cluster, at, now=NOW)


def test_a_threshold_for_gpus_counts_the_measured_percent_of_their_number() -> None:
    """Node a uses 0.7 of one GPU; b 1.4 of two: 70 %. The pod is expected to use 0.3 GPUs: 100 % of a, 85 % of b."""
    cluster = table(nodes(a="1", b="2", c="4"), (), load({name: percent(70.0) for name in "abc"}))
    args = {"usageThresholds": {GPU: 80}, "estimatedScalingFactors": {GPU: 30}}
    _, verdicts, _ = answers(cluster, args)
    assert [100.0, 85.0, 78.0] == verdicts.steps[f"{GPU} %"].tolist()
    assert ["exceed" in verdicts.reasons[code] for code in verdicts.codes.tolist()] == [True, True, False]
    assert f"node(s) {GPU} usage exceed threshold" == verdicts.reasons[int(verdicts.codes[0])]


def test_the_score_weighs_gpus() -> None:
    cluster = table(nodes(a="4", b="4"), (), load({"a": percent(50.0), "b": percent(10.0)}))
    args = {"resourceWeights": {GPU: 1}, "estimatedScalingFactors": {GPU: 80}}
    _, _, scores = answers(cluster, args)
    assert [30.0, 70.0] == scores.values.tolist()  # 2.0 + 0.8 and 0.4 + 0.8 of 4 GPUs are 70 % and 30 %


def test_an_annotation_of_a_node_limits_a_supported_resource() -> None:
    limits = {"scheduling.koordinator.sh/usage-thresholds": f'{{"usageThresholds": {{"{GPU}": 60}}}}'}
    guarded = node("a", {"cpu": "10", "memory": "100Gi", GPU: "4"}, annotations=limits)
    cluster = table([guarded, *nodes(b="4")], (), load({name: percent(65.0) for name in "ab"}))
    _, verdicts, _ = answers(cluster, {"supportedResources": [GPU]})
    assert [False, True] == verdicts.passed.tolist()


def test_a_node_without_gpus_is_not_checked_for_them() -> None:
    cluster = table(nodes(a="0", b="2"), (), load({"a": percent(0.0), "b": percent(90.0)}))
    _, verdicts, _ = answers(cluster, {"usageThresholds": {GPU: 80}})
    assert [True, False] == verdicts.passed.tolist()


def test_a_pod_that_is_not_measured_yet_adds_its_estimated_share_of_a_gpu() -> None:
    cluster = table(nodes(a="2"), (), load({"a": percent(10.0)}))
    plugin, _, _ = answers(cluster, {"estimatedScalingFactors": {GPU: 50}})
    plugin.assigned(0, info(containers=[POD], name="new"), NOW)
    verdicts = plugin.filter(info(containers=[POD]), cluster, rows(cluster, "a"), now=NOW)
    assert [1200.0] == verdicts.steps[f"{GPU} with the pod"].tolist()  # 0.2 measured, 0.5 of the new pod, 0.5 of this


def test_usages_by_koordlets_rules_contain_gpus_if_the_source_measures_them() -> None:
    with_gpu = snapshot_of({"a": {"CPU": [20.0, 40.0], "GPU": [50.0, 70.0]}})
    found = measure(with_gpu, policies=[CollectPolicy()])
    assert 60.0 == pytest.approx(float(found.usage["GPU"][0]))
    assert "GPU" not in measure(snapshot_of({"a": {"CPU": [20.0]}}), policies=[CollectPolicy()]).usage


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (
            {"usageThresholds": {"ephemeral-storage": 80}},
            "ephemeral-storage: the watcher does not measure it as a share",
        ),
        (
            {"nodeMetricSource": "windowsAndPods", "prodUsageThresholds": {GPU: 50}},
            f"{GPU}: the GPU usage of each pod is unknown to the watcher",
        ),
    ],
)
def test_a_resource_that_is_not_measured_is_refused(args: dict[str, Any], problem: str) -> None:
    with pytest.raises(ArgumentsError) as caught:
        create_plugin(LoadAwareScheduling, args, ClusterTable(windows=WINDOWS))
    assert problem in str(caught.value)


def test_the_clusters_own_node_metrics_keep_koordinators_units() -> None:
    """GPUs are whole numbers there."""
    cluster = table(nodes(a="2"))
    args = {"nodeMetricSource": "cluster", "estimatedScalingFactors": {GPU: 100}}
    plugin, _ = create_plugin(LoadAwareScheduling, args, cluster)
    verdicts = plugin.filter(info(containers=[POD]), cluster, rows(cluster, "a"), now=NOW)
    assert 1 == verdicts.inputs["podEstimate"][GPU]


def test_a_pod_without_a_gpu_adds_none_to_a_node() -> None:
    cluster = table(nodes(a="2"))
    plugin, _ = create_plugin(LoadAwareScheduling, {"usageThresholds": {GPU: 50}}, cluster)
    verdicts = plugin.filter(info(containers=[{"requests": {"cpu": "1"}}]), cluster, rows(cluster, "a"), now=NOW)
    assert 0 == verdicts.inputs["podEstimate"][GPU]
