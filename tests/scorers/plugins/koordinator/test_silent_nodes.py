"""LoadAwareScheduling and silent nodes: which it rejects, for how long, and when the monitoring failed instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from scorers.cluster.node_metrics import NodeMetric
from scorers.cluster.table import ClusterTable
from scorers.decisions.records import filter_record
from scorers.plugin_api.framework import Verdicts, create_plugin
from scorers.plugins.koordinator.load_aware_scheduling import LoadAwareScheduling
from scorers.profiles.profiles import PluginSettings, ProfileSettings
from scorers.profiles.ranking import ProfileRunner
from tests.scorers.plugins.koordinator.test_load_aware_scheduling import SHAPE, aged, ask
from tests.scorers.simulated_cluster import NOW, info, node, rows, table
from watcher.client import Columns, NodeSilence

EXPIRED = "node(s) nodeMetric expired"
FRESH = {"b": 0.0, "c": 30.0}


def verdicts_of(
    loads: Columns | None, args: Mapping[str, Any] | None = None, *, nodes: str = "abcx"
) -> tuple[ClusterTable, dict[str, str]]:
    """A cluster with these nodes and load, and the reason for which each rejected node is rejected."""
    cluster = table([node(name, SHAPE) for name in nodes], loads=loads)
    _, verdicts, _ = ask(cluster, args)
    return cluster, reasons(verdicts, nodes)


def reasons(verdicts: Verdicts, nodes: str) -> dict[str, str]:
    return {
        name: verdicts.reasons[int(code)] for name, code in zip(sorted(nodes), verdicts.codes, strict=True) if code != 0
    }


@pytest.mark.parametrize("age", [204.0, 248.0, 301.0, 3600.0, 30 * 86400.0])
def test_a_silent_node_stays_rejected(age: float) -> None:
    """Whether the watcher still serves its last windows or not. Node a never had samples and passes."""
    served = aged(FRESH | {"x": age}) if age <= 300 else aged(FRESH, silent={"x": age})
    assert verdicts_of(served)[1] == {"x": EXPIRED}


@pytest.mark.parametrize("name", ["enableScheduleWhenNodeMetricsExpired", "filterExpiredNodeMetrics"])
def test_the_arguments_for_expired_nodes_apply_to_silent_nodes(name: str) -> None:
    loads = aged(FRESH, silent={"x": 900.0})
    assert verdicts_of(loads, {name: name.startswith("enable")})[1] == {}
    assert verdicts_of(loads, {name: not name.startswith("enable")})[1] == {"x": EXPIRED}


def test_an_expiration_longer_than_the_watcher_serves_samples_applies_to_silent_nodes() -> None:
    args = {"nodeMetricExpirationSeconds": 600}
    assert verdicts_of(aged(FRESH, silent={"x": 599.0}), args)[1] == {}
    assert verdicts_of(aged(FRESH, silent={"x": 600.0}), args)[1] == {"x": EXPIRED}


@pytest.mark.parametrize(
    ("ages", "silent", "rejected"),
    [
        ({"b": 0.0}, ["x"], True),  # half of the nodes are not more than half
        ({"b": 0.0, "c": 200.0}, ["x"], False),
        ({"b": 0.0}, ["x", "gone"], True),  # "gone" is not a node of the cluster
        ({"b": 0.0}, ["x", "a"], False),
        ({}, ["x"], False),  # the source answers for no other node
    ],
)
def test_if_more_than_half_of_the_nodes_are_silent_none_is_rejected(
    ages: Mapping[str, float], silent: list[str], rejected: bool
) -> None:
    cluster, found = verdicts_of(aged(ages, silent=dict.fromkeys(silent, 900.0)))
    assert ("x" in found) is rejected
    _, verdicts, _ = ask(cluster)
    assert ("expiredNodesPass" in verdicts.inputs) is not rejected


def test_the_whole_cluster_counts_and_not_the_nodes_of_the_request() -> None:
    """kube-scheduler may ask for a single node, for example for a nominated one."""
    cluster, _ = verdicts_of(aged(FRESH, silent={"x": 900.0}))
    plugin, _ = create_plugin(LoadAwareScheduling, {}, cluster)
    verdicts = plugin.filter(info(), cluster, rows(cluster, "x"), now=NOW)
    assert not verdicts.passed[0]


def test_while_the_source_is_down_no_node_is_rejected_for_its_age() -> None:
    """Neither a node that the watcher still serves nor one that it does not."""
    loads = aged(FRESH | {"a": 200.0}, silent={"x": 900.0})
    assert verdicts_of(loads)[1] == {"a": EXPIRED, "x": EXPIRED}
    assert verdicts_of(aged(FRESH | {"a": 200.0}, silent={"x": 900.0}, source_ok=False))[1] == {}
    assert verdicts_of(None)[1] == {}


@pytest.mark.parametrize("later", [5.0, 60.0, 290.0])
def test_while_the_watcher_does_not_answer_no_other_node_is_rejected_for_its_age(later: float) -> None:
    """A node with older samples than the others ages out first. Silent nodes stay rejected."""
    cluster, before = verdicts_of(aged(FRESH | {"a": 175.0}, silent={"x": 900.0}))
    assert before == {"x": EXPIRED}
    cluster.unanswered_since = NOW + 1.0
    cluster.expire_load(before=NOW + later - 300.0)
    plugin, _ = create_plugin(LoadAwareScheduling, {}, cluster)
    assert reasons(plugin.filter(info(), cluster, rows(cluster), now=NOW + later), "abcx") == {"x": EXPIRED}
    cluster.unanswered_since = np.inf
    found = reasons(plugin.filter(info(), cluster, rows(cluster), now=NOW + 5.0), "abcx")
    assert found == {"a": EXPIRED, "x": EXPIRED}


def test_without_load_silent_nodes_can_be_known() -> None:
    """During a partial outage, the watcher says how many nodes have samples. The scores are those without load."""
    cluster, before = verdicts_of(None)
    assert before == {}
    for served, expected in ((1, {"x": EXPIRED}), (0, {})):
        cluster.set_load(None, now=NOW, silence=NodeSilence({"x": NOW - 400.0}, served))
        _, verdicts, scores = ask(cluster)
        assert reasons(verdicts, "abcx") == expected
        assert not scores.values.any()


def test_between_two_ticks_a_node_does_not_pass() -> None:
    """The table discards old load by its own clock, before the watcher lists the node as silent."""
    cluster, before = verdicts_of(aged(FRESH | {"x": 299.0}))
    assert before == {"x": EXPIRED}
    cluster.expire_load(before=NOW + 5.0 - 300.0)
    assert np.isnan(cluster.load.sampled()[cluster.row["x"]])
    _, verdicts, scores = ask(cluster)
    assert reasons(verdicts, "abcx") == {"x": EXPIRED}
    assert scores.reason(3) == "no metrics of this node, silent since 2023-11-14T22:08:21Z: 0"
    assert verdicts.details(3) == "silent since 2023-11-14T22:08:21Z"
    assert verdicts.details(1) == "cpu 19 %, at most 65 %; memory 21 %, at most 95 %"


def test_the_stored_decision_says_since_when_a_node_is_silent() -> None:
    """For load-watcher why; the reason for kube-scheduler is Koordinator's."""
    cluster, _ = verdicts_of(aged(FRESH, silent={"x": 900.0}))
    profile = ProfileRunner(
        ProfileSettings("default", (PluginSettings("LoadAwareScheduling", points=("filter",)),)), cluster
    )
    filtered = profile.filter(info(), rows(cluster), now=NOW)
    names = list(cluster.row)
    assert filtered.failures(names) == {"x": EXPIRED}
    (plugin,) = filter_record(filtered, names, asked=4).plugins
    assert [(each.reason, each.nodes, each.details) for each in plugin.rejected] == [
        (EXPIRED, ("x",), {"x": "silent since 2023-11-14T21:58:20Z"})
    ]


def test_a_node_that_returns_or_leaves_is_not_silent_any_more() -> None:
    cluster, _ = verdicts_of(aged(FRESH, silent={"x": 900.0}))
    cluster.set_load(aged(FRESH | {"x": 1.0}), now=NOW)
    assert reasons(ask(cluster)[1], "abcx") == {}
    cluster.set_load(aged(FRESH, silent={"x": 900.0}), now=NOW)
    cluster.set_node("x", None)  # its row is free, and the next node takes it
    cluster.set_node("y", node("y", SHAPE))
    assert reasons(ask(cluster)[1], "abcy") == {}
    cluster.set_node("x", node("x", SHAPE))
    assert reasons(ask(cluster)[1], "abcxy") == {"x": EXPIRED}


def test_a_silent_node_stays_silent_when_the_clock_is_set_back() -> None:
    """Its last sample is then in the future."""
    assert verdicts_of(aged(FRESH, silent={"x": -3600.0}))[1] == {"x": EXPIRED}


def test_node_metrics_of_the_cluster_follow_the_same_rule() -> None:
    args = {"nodeMetricSource": "cluster"}
    ages = {"a": 0.0, "b": 0.0, "x": 9000.0}
    cluster = table([node(name, SHAPE) for name in "abcx"])

    def put(**ages: float) -> None:
        for name, age in ages.items():
            cluster.set_node_metric(name, NodeMetric(updated=NOW - age, usage={"cpu": 1000}))

    put(**ages)
    assert reasons(ask(cluster, args)[1], "abcx") == {"x": EXPIRED}
    put(a=180.0)
    assert reasons(ask(cluster, args)[1], "abcx") == {}
