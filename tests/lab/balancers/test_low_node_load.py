"""Koordinator's LowNodeLoad with the cases of its own tests, tests/vectors/koordinator.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab.balancers.anomaly import AnomalyCondition, AnomalyDetectors
from lab.balancers.low_node_load import (
    LowNodeLoadArgs,
    MeasuredNodes,
    eviction_order,
    eviction_reason,
    pods_to_evict,
    usage_score,
)
from lab.balancers.view import SYSTEM_CRITICAL, ObservedPod, is_evictable
from watcher.arrays import I64

GROUPS = json.loads((Path(__file__).parents[2] / "vectors" / "koordinator.json").read_text())["groups"]
OWNERS = {"daemonset": "DaemonSet/d", "mirror": "Node/n1"}


def cases(group: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", GROUPS[group]["cases"], ids=lambda case: case["id"])


def pods_of(case: dict[str, Any]) -> list[tuple[str, ObservedPod]]:
    """The pods, each with the name of its node."""
    found = []
    for each in case["pods"]:
        why = each.get("not_evictable_because", "")
        found.append(
            (
                each["node"],
                ObservedPod(
                    each["name"],
                    each["namespace"],
                    each["name"],
                    owner=OWNERS.get(why, "ReplicaSet/r"),
                    priority=SYSTEM_CRITICAL if why == "system-critical" else 0,
                    requests=each["requests"],
                    usage=each["usage"],
                    prod=each["prod"],
                    unfit=frozenset(each.get("not_fit_nodes", ())),
                ),
            )
        )
        assert each["evictable"] == is_evictable(found[-1][1])
    return found


def columns(values: Sequence[Mapping[str, int]], resources: Sequence[str]) -> I64:
    return np.array([[each.get(name, 0) for name in resources] for each in values], dtype=np.int64)


def sums(case: dict[str, Any], field: str, *, prod: bool = False) -> list[dict[str, int]]:
    """The sum over the pods of each node, with the number of pods."""
    pods = [each for each in case["pods"] if each["prod"] or not prod]
    found = []
    for node in case["nodes"]:
        here = [each[field] for each in pods if each["node"] == node["name"]]
        names = {name for each in here for name in each}
        found.append({"pods": len(here), **{name: sum(each.get(name, 0) for each in here) for name in names}})
    return found


@cases("low_node_load")
def test_the_number_of_evictions_is_koordinators(case: dict[str, Any]):
    resources = sorted({name for node in case["nodes"] for name in node["allocatable"]})
    nodes = MeasuredNodes(
        tuple(node["name"] for node in case["nodes"]),
        tuple(resources),
        columns([node["allocatable"] for node in case["nodes"]], resources),
        columns(sums(case, "requests"), resources),
        columns(sums(case, "usage"), resources),
        columns(sums(case, "usage", prod=True), resources),
        np.array([not node.get("unschedulable", False) for node in case["nodes"]]),
    )
    args = LowNodeLoadArgs(
        case["low"],
        case["high"],
        case["prod_low"] or {},
        case["prod_high"] or {},
        deviation=case["use_deviation"],
        number_of_nodes=case["number_of_nodes"],
        anomaly=AnomalyCondition(case["consecutive_abnormalities"]),
        excluded_namespaces=frozenset(),
        max_migrating_per_node=None,
    )
    pods = pods_of(case)
    found = pods_to_evict(
        nodes,
        args,
        lambda node: [pod for name, pod in pods if name == nodes.names[node]],
        AnomalyDetectors(args.anomaly),
        0.0,
    )
    assert case["expect"]["evicted"] == len(found) == len(set(found))
    assert {pod.uid for _, pod in pods if is_evictable(pod)} >= set(found)


@cases("anomaly")
def test_a_node_is_abnormal_after_more_marks_than_the_condition(case: dict[str, Any]):
    detectors = AnomalyDetectors(AnomalyCondition(case["consecutive_abnormalities"], case["consecutive_normalities"]))
    for _ in range(case["premark_times"]):
        detectors.abnormal_nodes(case["premark_nodes"], 0.0)
    for _ in range(case["detect_times"]):
        detectors.abnormal_nodes(case["source_nodes"], 0.0)
    assert case["expect"] == detectors.abnormal_nodes(case["source_nodes"], 0.0)


def test_an_anomaly_ends_by_time_or_by_normal_marks():
    """The next one needs as many marks as the first."""
    detectors = AnomalyDetectors(AnomalyCondition(abnormal=2, normal=1, timeout_s=60.0))
    assert [[], [], ["n"], ["n"]] == [detectors.abnormal_nodes(["n"], now) for now in (0.0, 60.0, 120.0, 180.0)]
    assert [] == detectors.abnormal_nodes(["n"], 181.0)
    assert [[], ["n"]] == [detectors.abnormal_nodes(["n"], now) for now in (182.0, 183.0)]
    detectors.mark_normal(["n"], 184.0)
    assert ["n"] == detectors.abnormal_nodes(["n"], 185.0)
    detectors.mark_normal(["n"], 186.0)
    detectors.mark_normal(["n"], 187.0)
    assert [] == detectors.abnormal_nodes(["n"], 188.0)


@cases("eviction_reason")
def test_the_reason_names_usage_and_threshold(case: dict[str, Any]):
    usage, high = (case["prod_usage"], case["prod_high"]) if case["prod"] else (case["usage"], case["high"])
    assert case["expect"] == eviction_reason(usage, case["allocatable"], high, prod=case["prod"])


@cases("usage_percent")
def test_usage_is_a_percentage_of_allocatable(case: dict[str, Any]):
    """The percentages in the reason, without their fraction."""
    reason = eviction_reason(case["usage"], case["allocatable"], dict.fromkeys(case["usage"], 0.0))
    for name, percent in case["expect_floor"].items():
        assert f"node {name} usage({percent}." in reason


@pytest.mark.parametrize("order", ["expect_descending", "expect_ascending"])
def test_nodes_are_in_the_order_of_usage(order: str):
    case = next(each for each in GROUPS["sort_nodes"]["cases"] if "usage" in each)
    resources = list(case["allocatable"])
    usage = columns(list(case["usage"].values()), resources)
    scores = usage_score(
        usage, columns([case["allocatable"]] * len(usage), resources), np.ones(len(resources), np.int64)
    )
    sign = -1 if order == "expect_descending" else 1
    found = sorted(case["usage"], key=lambda name: sign * scores[list(case["usage"]).index(name)])
    assert case[order] == found


def test_pods_are_in_the_order_of_their_share_of_the_excess():
    case = next(each for each in GROUPS["sort_nodes"]["cases"] if "pod_usage" in each)
    excess = {
        name: case["node_usage"][name] - limit
        for name, limit in case["high_threshold"].items()
        if case["node_usage"][name] > limit
    }
    pods = [ObservedPod(name, "default", name, usage=usage) for name, usage in case["pod_usage"].items()]
    assert case["expect_order"] == [pod.name for pod in eviction_order(pods, excess)]


def test_the_smallest_pod_that_alone_removes_the_excess_goes_first():
    pods = [ObservedPod(f"p{cpu}", "default", f"p{cpu}", usage={"cpu": cpu}) for cpu in (500, 900, 1200, 3000)]
    assert ["p1200", "p3000", "p900", "p500"] == [pod.name for pod in eviction_order(pods, {"cpu": 1000})]
