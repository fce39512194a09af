"""Koordinator's load-aware scheduling, against upstream's own cases and those derived from its source."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from scorers.cluster.koordinator_classes import priority_class, qos_of
from scorers.cluster.node_metrics import aggregated_usage
from scorers.cluster.pods import pod_info
from scorers.cluster.table import ClusterTable
from scorers.plugin_api.framework import create_plugin
from scorers.plugins.koordinator.arguments import LoadAwareSchedulingArgs
from scorers.plugins.koordinator.assigned_pods import DELTA, ESTIMATED, PROD_DELTA, PROD_USAGE
from scorers.plugins.koordinator.estimator import default_estimator, forced_until
from scorers.plugins.koordinator.load_aware_scheduling import LoadAwareScheduling
from scorers.plugins.koordinator.node_usage import combined, resource_scores
from scorers.profiles.profiles import PluginSettings, ProfileSettings
from scorers.profiles.ranking import ProfileRunner
from tests.scorers.plugins.koordinator.vectors import arguments_of, cases, metric_of, node_of, pod_of
from tests.scorers.simulated_cluster import NOW, node, rows
from watcher.core.koordinator.report import percentile
from watcher.core.kubernetes.objects import Pod


def cluster_of(case: dict[str, Any]) -> tuple[ClusterTable, ProfileRunner]:
    """The node of a case with its pods, and a profile with the plug-in."""
    cluster = ClusterTable()
    name = case["node"]["name"]
    cluster.set_node(name, node_of(case["node"]))
    plugin = PluginSettings("LoadAwareScheduling", 1, arguments_of(case["args"]), ("filter", "score"))
    runner = ProfileRunner(ProfileSettings("p", (plugin,)), cluster)
    cluster.set_node_metric(name, metric_of(case["node_metric"]))
    for each in case["assigned_pods"]:
        cluster.set_pod(None, pod_of(each, node=name), now=NOW + each.get("assign_time_s", 0))
    return cluster, runner


@cases("filter")
def test_golden_verdicts(case):
    cluster, runner = cluster_of(case)
    ((_, verdicts),) = runner.filter(pod_info(pod_of(case["pod"])), rows(cluster), now=NOW).parts
    assert verdicts.passed.tolist() == [case["expect"]["code"] == "Success"]
    assert verdicts.reasons[int(verdicts.codes[0])] == (case["expect"]["reason"] or "")
    for name, percent in case.get("derived", {}).get("usage_percent", {}).items():
        if verdicts.steps and "prod" not in case["id"]:
            assert verdicts.steps[f"{name} %"].tolist() == [percent]
            assert verdicts.steps[f"{name} with the pod"].tolist() == [case["derived"]["estimated"][name]]


@cases("score")
def test_golden_scores(case):
    cluster, runner = cluster_of(case)
    ((_, plugin),) = runner.plugins
    scores = plugin.score(pod_info(pod_of(case["pod"])), cluster, rows(cluster), now=NOW)
    assert scores.values.tolist() == [case["expect"]["score"]]
    assert scores.reason(0).endswith(f": {case['expect']['score']}")
    for name, score in (case.get("derived") or {}).get("resource_scores", {}).items():
        assert scores.steps[f"{name} score"].tolist() == [score]
        assert scores.steps[f"{name} with the pod"].tolist() == [case["derived"]["estimated"][name]]


@cases("estimate_pod")
def test_golden_estimates_of_pods(case):
    args = LoadAwareSchedulingArgs(**snaked(case["args"]))
    assert default_estimator(pod_info(pod_of(case["pod"])), args) == case["expect"]


@cases("estimate_node")
def test_golden_allocatable(case):
    cluster = ClusterTable()
    names = sorted(case["expect"])
    plugin, _ = create_plugin(
        LoadAwareScheduling, {"supportedResources": names, "nodeMetricSource": "cluster"}, cluster
    )
    cluster.set_node("n", node_of(case["node"]))
    scores = plugin.score(pod_info(pod_of({})), cluster, rows(cluster), now=NOW)
    assert {name: scores.steps[f"{name} allocatable"][0] for name in names} == case["expect"]


@cases("estimate_deadline")
def test_golden_deadlines(case):
    args = LoadAwareSchedulingArgs(**snaked(case["args"]))
    found = forced_until(pod_of(case["pod"]), args, scheduled=NOW + case["timestamp_s"])
    assert found == NOW + case["expect"]["deadline_s"]


@cases("aggregated_usage")
def test_golden_choice_of_windows(case):
    metric = metric_of(case["node_metric"])
    assert metric is not None
    found = aggregated_usage(metric, case["aggregation_type"], case["duration_s"])
    padded = None if found is None else {"cpu": 0, "memory": 0} | dict(found)
    assert padded == case["expect"]


@cases("validate_args", "validate-derived-prod-thresholds-unchecked")
def test_golden_validation(case):
    if case["expect"]["error"]:
        with pytest.raises(ValueError, match="arguments of LoadAwareScheduling: "):
            create_plugin(LoadAwareScheduling, arguments_of(case["args"]), ClusterTable())
    else:
        create_plugin(LoadAwareScheduling, arguments_of(case["args"]), ClusterTable())


@cases("scorer_formula")
def test_golden_formula(case):
    used, allocatable = (np.array([[each] for each in case[key]], dtype=np.int64) for key in ("used", "allocatable"))
    weights = np.array(case["weights"], dtype=np.int64)
    assert combined(resource_scores(used, allocatable), weights, case["dominant_weight"]).tolist() == [case["expect"]]


@cases("priority_class")
def test_golden_classes(case):
    given = pod_of(case["pod"])
    assert (priority_class(given), qos_of(given)) == (case["expect"]["priority_class"], case["expect"]["qos"])


@cases("percentile")
def test_golden_percentiles(case):
    """In any order of the samples."""
    samples = np.arange(case["samples_1_to_n"], 0, -1)
    assert percentile(samples[:, None], case["p"]) == [case["expect"]]


def test_no_samples_have_no_percentile():
    with pytest.raises(ValueError, match="without samples"):
        percentile(np.empty((0, 1)), 0.5)


SUMS = {"node_delta": DELTA, "prod_delta": PROD_DELTA, "node_estimated": ESTIMATED}


@cases("cache")
def test_golden_sums_after_events(case):
    """Without factors the original estimates nothing; the arguments here always have some."""
    cluster = ClusterTable()
    args = {**case["args"], "estimatedScalingFactors": case["args"].get("estimatedScalingFactors", {})}
    plugin, _ = create_plugin(LoadAwareScheduling, arguments_of(args), cluster)
    cluster.set_node("test-node", node("test-node", {"cpu": "96", "memory": "512Gi"}))
    pods: dict[str, Pod] = {}
    for step in case["steps"]:
        if step["op"] == "metric":
            cluster.set_node_metric("test-node", metric_of(step["node_metric"]))
        elif step["op"] == "assign":
            given = pod_of(step["pod"])
            cluster.set_pod(pods.get(given.metadata.uid), given, now=NOW)
            pods[given.metadata.uid] = given
        elif step["op"] == "unassign":
            cluster.set_pod(pods.pop(step["uid"]), None, now=NOW)
        else:
            assert sums_of(plugin, cluster, step["expect"]) == {
                key: value
                for key, value in step["expect"].items()
                if key != "node_estimated" or args["estimatedScalingFactors"]
            }


def sums_of(plugin: LoadAwareScheduling, cluster: ClusterTable, wanted: dict[str, Any]) -> dict[str, Any]:
    at, row = rows(cluster, "test-node"), cluster.row["test-node"]

    def shown(values: Any) -> dict[str, int]:
        return dict(zip(("cpu", "memory"), values[:, 0].tolist(), strict=True))

    pods, metrics = plugin.assigned_pods, plugin.metrics
    found: dict[str, Any] = {key: shown(pods.sums(which, at)) for key, which in SUMS.items()}
    found |= {f"{key}_pods": pods.adding(which, row) for key, which in SUMS.items()}
    system = metrics.system.take(at)[0] if plugin.args.prod_usage_include_sys else 0
    found["prod_usage"] = shown(pods.sums(PROD_USAGE, at) + system)
    found["node_usage"] = shown(metrics.usage.take(at)[0])
    found["pod_count"] = pods.count(row)
    found["aggregated"] = [
        {**each, "usage": shown(metrics.aggregated(each["type"], float(each["duration_s"])).take(at)[0])}
        for each in wanted.get("aggregated", ())
    ]
    with_factors = "node_estimated" not in wanted or bool(plugin.args.estimated_scaling_factors)
    return {key: found[key] for key in wanted if key != "node_estimated" or with_factors}


def snaked(args: dict[str, Any]) -> dict[str, Any]:
    """Arguments with Python names."""
    fields = dict(
        zip(LoadAwareSchedulingArgs.__struct_encode_fields__, LoadAwareSchedulingArgs.__struct_fields__, strict=True)
    )
    return {fields[name]: value for name, value in args.items()}
