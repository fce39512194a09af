"""LoadAwareScheduling if the usage of pods is known on some nodes only."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scorers.cluster.table import ClusterTable
from scorers.plugin_api.framework import create_plugin
from scorers.plugins.koordinator.load_aware_scheduling import LoadAwareScheduling
from tests.scorers.plugins.koordinator.test_load_aware_scheduling import GI, ONE_CORE, SHAPE, ask, busy, usage
from tests.scorers.simulated_cluster import NOW, info, load, node, pod, rows, table
from watcher.client import PodColumns
from watcher.client.arrays import to_pods
from watcher.core.pods.coverage import PodCoverage
from watcher.core.publishing.wire import PodsDocument

NAMES = ("a", "b", "c")
WITH_PODS = {"nodeMetricSource": "windowsAndPods"}
PROD = {**WITH_PODS, "usageThresholds": {"cpu": 95}, "prodUsageThresholds": {"cpu": 55}}


def cluster_of(pods: PodColumns | None, *, loads: dict[str, float] | None = None, age: float = 1e6) -> ClusterTable:
    """Nodes of ten cores, each with four prod pods of one core that have run for `age` seconds."""
    running = [
        pod(f"{name}-{i}", node=name, containers=[ONE_CORE], scheduled=NOW - age) for name in NAMES for i in range(4)
    ]
    usages = load({name: busy(cpu) for name, cpu in (loads or dict.fromkeys(NAMES, 80.0)).items()})
    cluster = table([node(name, SHAPE) for name in NAMES], running, usages)
    cluster.set_pod_usage(pods)
    return cluster


def pods_on(*names: str, cores: float = 1.9) -> PodColumns:
    return usage({("default", f"{name}-{i}"): (name, cores, GI) for name in names for i in range(4)})


def test_prod_pods_of_an_unmeasured_node_do_not_count_by_estimates() -> None:
    """a has 76 % of prod pods. The pods of b and c are not measured: the thresholds of all pods apply to all usage,
    which already contains pods that have run for weeks."""
    _, verdicts, scores = ask(cluster_of(pods_on("a")), PROD)
    assert verdicts.passed.tolist() == [False, True, True]
    assert verdicts.steps["cpu measured"].tolist() == [7600, 8000, 8000]
    assert verdicts.steps["cpu of pods not measured yet"].tolist() == [0, 0, 0]
    assert verdicts.steps["cpu threshold %"].tolist() == [55.0, 95.0, 95.0]
    assert verdicts.details is not None
    assert verdicts.details(1) == "cpu 89 %, at most 95 %; its pod usage is unknown"
    assert "unknown on 2 of 3 nodes" in verdicts.inputs["podUsage"]
    assert "its pod usage is unknown" in scores.reason(1)
    assert "unknown" not in scores.reason(0)


@pytest.mark.parametrize("lost", ["cores", "memory"])
def test_pods_without_readings_of_a_resource_are_not_idle(lost: str) -> None:
    """The query of one resource failed, or its series are dropped when scraping: the usage is unknown and not zero."""
    pods = pods_on(*NAMES)
    unknown = np.where(np.isin(pods.nodes, ("b", "c")), np.nan, getattr(pods, lost))
    changed: dict[str, Any] = {lost: unknown, "average": {}}
    _, verdicts, _ = ask(cluster_of(replace(pods, **changed)), PROD)
    assert verdicts.passed.tolist() == [False, True, True]
    assert verdicts.steps["cpu measured"].tolist() == [7600, 8000, 8000]
    assert verdicts.steps["cpu threshold %"].tolist() == [55.0, 95.0, 95.0]


@pytest.mark.parametrize(("lost", "added"), [("cores", 850), ("memory", 0)])
def test_a_pod_without_a_reading_of_one_resource_counts_as_its_estimate_there(lost: str, added: int) -> None:
    """The other pods of its node are measured, and its other resource."""
    pods = pods_on("a", cores=1.0)
    unknown = np.where(np.arange(len(pods.pods)) == 2, np.nan, getattr(pods, lost))
    changed: dict[str, Any] = {lost: unknown, "average": {}}
    _, verdicts, _ = ask(cluster_of(replace(pods, **changed)), PROD)
    assert verdicts.steps["cpu measured"].tolist()[0] == 4000 - (1000 if added else 0)
    assert verdicts.steps["cpu of pods not measured yet"].tolist() == [added, 0, 0]
    assert verdicts.steps["cpu threshold %"].tolist() == [55.0, 95.0, 95.0]


def test_a_new_pod_of_an_unmeasured_node_is_added() -> None:
    """As if no pods are measured: the node's usage does not contain it yet."""
    _, verdicts, _ = ask(cluster_of(pods_on("a"), age=30.0), PROD)
    assert verdicts.steps["cpu of pods not measured yet"].tolist() == [0, 3400, 3400]


def test_scores_by_prod_usage_use_all_usage_if_it_is_unknown() -> None:
    args = {**PROD, "scoreAccordingProdUsage": True}
    _, _, mixed = ask(cluster_of(pods_on("a", cores=0.5)), args)
    _, _, none = ask(cluster_of(None), args)
    assert mixed.steps["cpu measured"].tolist() == [2000, 8000, 8000]
    assert mixed.values.tolist()[1:] == none.values.tolist()[1:]
    assert mixed.values[0] > mixed.values[1]


def test_a_measured_node_without_pods_has_a_prod_usage_of_zero() -> None:
    """The watcher says that the source measures it. Its pod, which has run for weeks, has no reading, so it counts as
    its estimate."""
    pods = pods_on("a")
    covered = PodCoverage({"a": NOW, "b": NOW}, {"c": "not scraped"})
    _, verdicts, _ = ask(cluster_of(_with(pods, covered)), PROD)
    assert verdicts.steps["cpu measured"].tolist() == [7600, 0, 8000]
    assert verdicts.steps["cpu of pods not measured yet"].tolist() == [0, 3400, 0]


@pytest.mark.parametrize(("behind", "known"), [(300.0, True), (301.0, False)])
def test_pod_usage_that_is_older_than_the_load_of_its_node_is_unknown(behind: float, known: bool) -> None:
    """Although other nodes have new readings. The newest sample of each node is at NOW."""
    pods = pods_on("a", "b")
    cluster = cluster_of(_with(pods, PodCoverage({"a": NOW, "b": _sampled() - behind}, {}, 300.0)))
    _, verdicts, _ = ask(cluster, PROD)
    assert verdicts.steps["cpu threshold %"].tolist() == [55.0, 55.0 if known else 95.0, 95.0]


def test_a_watcher_that_sends_no_coverage_has_that_of_its_readings() -> None:
    """An older watcher, asked over HTTP by a newer extender."""
    document = PodsDocument(
        timestamp=int(NOW),
        source="Test",
        every_s=60.0,
        cores_from="",
        cores_span_s=60.0,
        bytes_from="",
        bytes_kind="rss",
        namespace=["default"],
        pod=["a-0"],
        node=["a"],
        time=[NOW],
        cores=[1.0],
        bytes=[GI],
        averages=[],
    )
    pods = to_pods(document, received=0.0, age_at_receipt=0.0)
    _, verdicts, _ = ask(cluster_of(pods), PROD)
    assert verdicts.steps["cpu threshold %"].tolist() == [55.0, 95.0, 95.0]


def answers(pods: PodColumns | None, args: dict[str, Any], loads: dict[str, float], age: float, name: str) -> Any:
    """Verdict and score of one node for a prod pod."""
    cluster = cluster_of(pods, loads=loads, age=age)
    plugin, _ = create_plugin(LoadAwareScheduling, args, cluster)
    asked, at = info(containers=[ONE_CORE]), rows(cluster, *NAMES)
    verdicts, scores = plugin.filter(asked, cluster, at, now=NOW), plugin.score(asked, cluster, at, now=NOW)
    i = NAMES.index(name)
    steps = [[column[i] for _, column in sorted(each.steps.items())] for each in (verdicts, scores)]
    return verdicts.reasons[int(verdicts.codes[i])], scores.values[i], steps


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.fixed_dictionaries({name: st.floats(0.0, 100.0) for name in NAMES}),
    st.dictionaries(st.sampled_from(["b", "c"]), st.floats(0.0, 3.0)),
    st.floats(0.0, 3.0),
    st.sampled_from([10.0, 59.0, 1e6]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_pod_usage_of_one_node_changes_no_other(
    loads: dict[str, float],
    others: dict[str, float],
    cores: float,
    age: float,
    by_prod: bool,
    with_system: bool,
    aggregated: bool,
) -> None:
    """Filter and score of b and c are the same with and without the pods of a."""
    given_ = {("default", f"{name}-{i}"): (name, used, GI) for name, used in others.items() for i in range(4)}
    more = {("default", f"a-{i}"): ("a", cores, GI) for i in range(4)}
    args = {**PROD, "scoreAccordingProdUsage": by_prod, "prodUsageIncludeSys": with_system}
    if aggregated:
        args["aggregated"] = {"usageThresholds": {"cpu": 70}, "usageAggregationType": "p95"}
    without, with_a = usage(given_) if given_ else None, usage({**given_, **more})
    for name in ("b", "c"):
        found = [answers(pods, args, loads, age, name) for pods in (without, with_a)]
        np.testing.assert_equal(found[0], found[1])


def _with(pods: PodColumns, covered: PodCoverage) -> PodColumns:
    return replace(pods, coverage=covered)


def _sampled() -> float:
    """The time of the newest sample of the nodes of `load`."""
    columns = load({"a": busy(1.0)})
    return max(float(each[0]) for each in columns.sampled.values())
