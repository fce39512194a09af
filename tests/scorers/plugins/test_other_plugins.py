"""Peaks, HighLoadFilter and NodeResourceLimits: golden cases, and what upstream has wrong."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scorers.cluster.table import ClusterTable
from scorers.plugin_api.framework import create_plugin
from scorers.plugins import node_resource_limits as limits
from scorers.plugins import peaks
from scorers.plugins.high_load_filter import HighLoadFilter
from scorers.plugins.node_resource_limits import NodeResourceLimits
from scorers.plugins.peaks import Peaks
from tests.scorers.simulated_cluster import NOW, info, load, node, pod, rows, table
from tests.scorers.vectors import cases, tolerance

# --- Peaks -----------------------------------------------------------------------------------------------------------

MODEL = {"k0": 471.7412504314313, "k1": -91.50493019588365, "k2": -0.07186049052516228}


@cases("Peaks", "raw_score")
def test_golden_rise(case):
    """Upstream has it in units of 1e-15 watts."""
    of = case["inputs"]
    rise = peaks.rises(
        np.array([[of["k1"], of["k2"]]]), *(np.array([float(of[f"{key}_percent"])]) for key in ("current", "predicted"))
    )
    assert rise[0] * 1e15 == tolerance(case, float(case["expected"]["raw"]))


@cases("Peaks", "normalize")
def test_golden_normalisation(case):
    """But where all is zero: there upstream cannot tell "costs nothing" from "not possible"."""
    raw = np.array(case["inputs"]["raw"], dtype=np.float64)
    if raw.any():
        assert peaks.normalised(raw).tolist() == case["expected"]["scores"]
    else:
        assert peaks.normalised(np.full(len(raw), np.nan)).tolist() == pytest.approx([np.nan] * len(raw), nan_ok=True)


@given(st.lists(st.floats(-1e9, 1e9, allow_subnormal=False), min_size=1, max_size=8))
@example([3.8, 9.4])
def test_the_highest_rise_scores_zero_and_the_lowest_a_hundred(rises):
    """Upstream multiplies before it divides, so that its highest rise sometimes scores 1."""
    rise = np.array(rises)
    scores = peaks.normalised(rise)
    if rise.min() < rise.max():
        assert set(scores[rise == rise.max()]) == {0.0}
    assert set(scores[rise == rise.min()]) == {100.0}
    assert (np.diff(scores[np.argsort(rise)]) <= 0).all()


def test_what_cannot_be_told_is_no_favourite():
    """No metrics, no model, no room, no capacity: 0. Upstream prefers these four."""
    nodes = [node(name, {"cpu": "4"}) for name in ("low", "high", "silent", "no-model", "full")] + [node("empty", {})]
    loads = load(
        {
            name: {("CPU", "AVG"): cpu}
            for name, cpu in {"low": 10.0, "high": 60.0, "no-model": 10.0, "full": 90.0, "empty": 10.0}.items()
        }
    )
    models = dict.fromkeys(("low", "high", "silent", "full", "empty"), MODEL)
    cluster = table(nodes, loads=loads)
    plugin, _ = create_plugin(Peaks, {"NodePowerModel": models, "WatcherAddress": "http://x"}, cluster)
    names = ("low", "high", "silent", "no-model", "full", "empty")
    scores = plugin.score(info(containers=[{"requests": {"cpu": "1"}}]), cluster, rows(cluster, *names), now=NOW)
    assert scores.values.tolist() == [
        0.0,
        100.0,
        0.0,
        0.0,
        0.0,
        0.0,
    ]  # this model is concave: the loaded node rises less
    assert scores.reason(1).startswith("cpu from 60.0 to 85.0 % adds")
    assert [scores.reason(i).split(":")[0] for i in (2, 3, 4)] == [
        "no metrics of this node",
        "this node has no power model or no CPU capacity",
        "cpu would be at 115.0 %, above capacity",
    ]
    cluster.set_load(None, now=NOW)
    assert plugin.score(info(), cluster, rows(cluster), now=NOW).values.tolist() == [0.0] * 6


def test_the_models_may_stand_in_a_file(tmp_path, monkeypatch):
    """Named by the environment, as upstream has it."""
    with pytest.raises(ValueError, match="file named by NODE_POWER_MODEL"):
        create_plugin(Peaks, {}, ClusterTable())
    file = tmp_path / "models.json"
    monkeypatch.setenv("NODE_POWER_MODEL", str(file))
    with pytest.raises(ValueError, match="No such file"):
        create_plugin(Peaks, {}, ClusterTable())
    file.write_text(json.dumps({"a": {**MODEL, "k3": 1}}))
    with pytest.raises(ValueError, match="k3"):
        create_plugin(Peaks, {}, ClusterTable())
    file.write_text(json.dumps({"a": MODEL}))
    create_plugin(Peaks, {}, ClusterTable())
    with pytest.raises(ValueError, match="k2 90 is too large"):
        create_plugin(Peaks, {"NodePowerModel": {"a": {**MODEL, "k2": 90}}}, ClusterTable())


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"k1": math.nan}, "NodePowerModel.a.k1: must be a number (given: nan)"),
        ({"k0": math.inf}, "NodePowerModel.a.k0: must be a number (given: inf)"),
        ({"k2": math.nan}, "NodePowerModel.a.k2: must be a number (given: nan)"),
        ({"k1": 1e300, "k2": 6.9}, "NodePowerModel.a: k1 1e+300 is too large"),
        ({"k2": -90.0}, "NodePowerModel.a: k2 -90 is too large"),
    ],
)
def test_a_model_that_is_no_number_is_named(model, said):
    """TOML and YAML have NaN and infinity; a node with such a model would be nowhere in the order."""
    with pytest.raises(ValueError, match="arguments of Peaks") as caught:
        create_plugin(Peaks, {"NodePowerModel": {"a": {**MODEL, **model}}}, ClusterTable())
    assert said in str(caught.value)


def test_a_load_beyond_all_of_the_cpu_takes_no_power_and_warns_of_nothing():
    """Measured load may go above 100 percent, where a steep model is no number any more."""
    cluster = table([node("a", {"cpu": "1"})], loads=load({"a": {("CPU", "AVG"): 150.0}}))
    plugin, _ = create_plugin(Peaks, {"NodePowerModel": {"a": {**MODEL, "k2": 6.9}}}, cluster)
    scores = plugin.score(info(), cluster, rows(cluster), now=NOW)
    assert scores.values.tolist() == [0.0]
    assert "above capacity" in scores.reason(0)


# --- HighLoadFilter --------------------------------------------------------------------------------------------------

REASON = {None: 0, "cpu": 1, "memory": 2, "metrics-unavailable": 3, "metrics-stale": 4}


@cases("HighLoadFilter", "filter")
def test_golden_verdicts(case):
    of = case["inputs"]
    values = {(kind, "AVG"): of[f"{kind.lower()}_percent"] for kind in ("CPU", "Memory")}
    known = {key: value for key, value in values.items() if value is not None}
    there = of["snapshot"] and of["node_present"]
    loads = load(
        {**({"n": known} if there and known else {}), "x": {("CPU", "AVG"): 1.0}},
        sampled=NOW - of["snapshot_age_seconds"],
    )
    shape = {"cpu": f"{of['allocatable_cpu_milli']}m", "memory": str(of["allocatable_memory_bytes"])}
    cluster = table([node("n", shape)], loads=loads if of["snapshot"] else None)
    args = {
        "usageThresholds": {"cpu": of["threshold_cpu"], "memory": of["threshold_memory"]},
        "failOpen": of["fail_open"],
        "nodeMetricExpirationSeconds": of["expiration_seconds"],
    }
    plugin, _ = create_plugin(HighLoadFilter, args, cluster)
    requests = {"cpu": f"{of['pod_cpu_milli']}m", "memory": str(of["pod_memory_bytes"])}
    verdicts = plugin.filter(info(containers=[{"requests": requests}]), cluster, rows(cluster, "n"), now=NOW)
    assert verdicts.passed.tolist() == [case["expected"]["allowed"]]
    assert verdicts.codes.tolist() == [REASON[case["expected"]["reason"]]]


def test_a_node_without_capacity_takes_no_request():
    """Infinitely much, not NaN."""
    cluster = table([node("n", {})], loads=load({"n": {("CPU", "AVG"): 1.0, ("Memory", "AVG"): 1.0}}))
    plugin, _ = create_plugin(HighLoadFilter, {}, cluster)
    assert plugin.filter(info(), cluster, rows(cluster), now=NOW).passed.tolist() == [True]
    asking = info(containers=[{"requests": {"memory": "1"}}])
    verdicts = plugin.filter(asking, cluster, rows(cluster), now=NOW)
    assert verdicts.reasons[verdicts.codes[0]] == "node(s) had memory load above the threshold with the pod"


# --- NodeResourceLimits ----------------------------------------------------------------------------------------------


def sized(amounts: dict[str, int]) -> dict[str, str]:
    return {name: f"{size}m" if name == "cpu" else str(size) for name, size in amounts.items()}


@cases("LimitAware", "raw_score_exact")
def test_golden_raw_scores(case):
    nodes = case["inputs"]["nodes"].values()
    raw = limits.raw_scores(
        np.array([each["limit_with_pod"] for each in nodes]), np.array([each["allocatable"] for each in nodes])
    )
    expected = [math.trunc(case["expected"][name]) for name in case["inputs"]["nodes"]]
    assert raw.tolist() == expected
    assert limits.normalised(raw).tolist() == list(case["expected"]["normalized"].values())


@cases("LimitAware", "normalize")
def test_golden_normalisation_of_limits(case):
    assert limits.normalised(np.array(case["inputs"]["raw"])).tolist() == case["expected"]["scores"]


@cases("LimitAware", "raw_score_int_and_normalize")
def test_golden_weighted_scores(case):
    """Through the whole plug-in: one pod on each node has what the case says, the asking one nothing."""
    shapes = case["inputs"]["nodes"]
    nodes = [
        node(f"n{i}", {"cpu": f"{each['cpu']['allocatable']}m", "memory": str(each["memory"]["allocatable"])})
        for i, each in enumerate(shapes)
    ]
    pods = [
        pod(
            f"p{i}",
            node=f"n{i}",
            containers=[
                {
                    "limits": {
                        "cpu": f"{each['cpu']['limit_with_pod']}m",
                        "memory": str(each["memory"]["limit_with_pod"]),
                    }
                }
            ],
        )
        for i, each in enumerate(shapes)
    ]
    cluster = table(nodes, pods)
    weights = [{"name": name, "weight": weight} for name, weight in case["inputs"]["weights"].items()]
    plugin, _ = create_plugin(NodeResourceLimits, {"resources": weights}, cluster)
    scores = plugin.score(info(), cluster, rows(cluster), now=NOW)
    assert scores.steps["raw"].tolist() == case["expected"]["raw"]
    assert scores.values.tolist() == case["expected"]["normalized"]


@cases("LimitAware", "node_limit_capacity")
def test_golden_capacities(case):
    """Allocatable times the ratio; what is not named stays."""
    names = list(case["inputs"]["allocatable"])
    allocatable = {
        name: (f"{size}m" if name == "cpu" else str(size)) for name, size in case["inputs"]["allocatable"].items()
    }
    ratio = json.dumps(case["inputs"]["ratio_percent"])
    annotated = node("n", allocatable, annotations={limits.RATIO_ANNOTATION: ratio})
    for nodes, args in (
        ([annotated], {}),
        ([node("n", allocatable)], {"limitToAllocatableRatio": case["inputs"]["ratio_percent"]}),
    ):
        cluster = table(nodes)
        plugin, _ = create_plugin(
            NodeResourceLimits, {"resources": [{"name": name} for name in names], **args}, cluster
        )
        scores = plugin.score(info(), cluster, rows(cluster), now=NOW)
        assert {name: int(scores.steps[f"{name} capacity"][0]) for name in names} == case["expected"]


def seed_cluster() -> ClusterTable:
    """The proposal of NodeResourceLimits, "Use Cases"."""

    def cpu(name, where, request, limit):
        return pod(name, node=where, containers=[{"requests": {"cpu": str(request)}, "limits": {"cpu": str(limit)}}])

    pods = [
        cpu("pod1", "node1", 2, 6),
        cpu("pod2", "node1", 2, 4),
        cpu("pod3", "node2", 3, 3),
        cpu("pod4", "node2", 2, 2),
    ]
    return table([node("node1", {"cpu": "8"}), node("node2", {"cpu": "8"})], pods)


def test_the_use_case_of_the_seed():
    """The default scheduler would take node1."""
    cluster = seed_cluster()
    plugin, _ = create_plugin(NodeResourceLimits, {}, cluster)
    wanted = info(containers=[{"requests": {"cpu": "1"}, "limits": {"cpu": "4"}}])
    scores = plugin.score(wanted, cluster, rows(cluster, "node1", "node2"), now=NOW)
    assert scores.steps["raw"].tolist() == [-75, -12]
    assert scores.values.tolist() == [0, 100]
    assert scores.reason(0) == "cpu limits with the pod: 175 % of capacity; relative to these nodes: 0"


def test_a_pod_counts_the_same_before_and_after_it_is_placed():
    """Init containers, sidecars, overhead and the default of a container without limit included."""
    spec: dict[str, Any] = {
        "containers": [{"limits": {"cpu": "1"}}, {"requests": {"cpu": "300m"}}, {}],
        "initContainers": [{"restartPolicy": "Always", "limits": {"cpu": "500m"}}, {"limits": {"cpu": "3"}}],
        "overhead": {"cpu": "250m"},
    }
    cluster = table([node("a", {"cpu": "10"})])
    plugin, _ = create_plugin(NodeResourceLimits, {}, cluster)
    before = plugin.score(info(**spec), cluster, rows(cluster), now=NOW).steps["cpu limits, with the pod"][0]
    assert before == 3750  # a sidecar of 500 beside an init container of 3000, and the overhead
    cluster.set_pod(None, pod("p", node="a", **spec), now=NOW)
    nothing = info(containers=[{"limits": {"cpu": "0", "memory": "0"}}])
    assert plugin.score(nothing, cluster, rows(cluster), now=NOW).steps["cpu limits, with the pod"][0] == before


def test_limits_count_as_they_are_during_a_resize():
    """The limit that is set counts until the new, lower one is."""
    cluster = table([node("a", {"cpu": "10"})])
    plugin, _ = create_plugin(NodeResourceLimits, {}, cluster)
    reported = [{"name": "c0", "resources": {"limits": {"cpu": "4"}}}]
    nothing = info(containers=[{"limits": {"cpu": "0", "memory": "0"}}])
    old = None
    for status, expected in (({"containerStatuses": reported}, 4000), ({}, 1000)):
        new = pod("p", node="a", containers=[{"limits": {"cpu": "1"}}], status=status)
        cluster.set_pod(old, new, now=NOW)
        scores = plugin.score(nothing, cluster, rows(cluster), now=NOW)
        assert scores.steps["cpu limits, with the pod"].tolist() == [expected]
        old = new


def test_without_limit_a_pod_may_count_as_the_whole_node():
    """The other default of the proposal's text."""
    cluster = table(
        [node("a", {"cpu": "10", "memory": "1Gi"}), node("b", {"cpu": "4", "memory": "1Gi"})],
        [pod("p", node="a", containers=[{}])],
    )
    plugin, _ = create_plugin(NodeResourceLimits, {"defaultLimits": {"cpu": "allocatable"}}, cluster)
    scores = plugin.score(info(containers=[{}]), cluster, rows(cluster, "a", "b"), now=NOW)
    assert scores.steps["cpu limits, with the pod"].tolist() == [20000, 4000]
    assert scores.inputs["podLimits"] == {"cpu": "allocatable", "memory": 0}


def test_the_filter_keeps_limits_within_what_there_is():
    """Only where it is asked for; limits of zero always fit."""
    cluster = seed_cluster()
    wanted = {"containers": [{"limits": {"cpu": "4", "memory": "0"}}]}
    off, _ = create_plugin(NodeResourceLimits, {}, cluster)
    assert off.filter(info(**wanted), cluster, rows(cluster), now=NOW).passed.all()
    args = {"filter": True, "resources": [{"name": "cpu"}], "limitToAllocatableRatio": {"cpu": "120%"}}
    plugin, _ = create_plugin(NodeResourceLimits, args, cluster)
    verdicts = plugin.filter(info(**wanted), cluster, rows(cluster, "node1", "node2"), now=NOW)
    assert verdicts.passed.tolist() == [False, True]
    assert verdicts.reasons[verdicts.codes[0]] == "Insufficient cpu limit"
    assert plugin.filter(info(containers=[{"limits": {"cpu": "0"}}]), cluster, rows(cluster), now=NOW).passed.all()


def test_a_broken_annotation_is_passed_over(caplog):
    """With one line that names the node."""
    cluster = table([node("a", {"cpu": "10"}, annotations={limits.RATIO_ANNOTATION: '{"cpu": -5}'})])
    plugin, _ = create_plugin(NodeResourceLimits, {}, cluster)
    assert plugin.score(info(), cluster, rows(cluster), now=NOW).steps["cpu capacity"].tolist() == [10000]
    assert "node a: invalid annotation" in caplog.text


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"resources": [{"name": "cpu", "weight": 0}]}, "resources[0].weight: must be"),
        ({"resources": [{"name": "cpu"}, {"name": "cpu"}]}, "cpu is listed twice"),
        ({"resources": []}, "resources: must be"),
        (
            {"defaultLimits": {"cpu": "all"}},
            "defaultLimits.cpu: 'all' is not a Kubernetes quantity, and not \"allocatable\"",
        ),
        ({"limitToAllocatableRatio": {"cpu": "x%"}}, "limitToAllocatableRatio.cpu: must be a percentage"),
        ({"limitToAllocatableRatio": {"cpu": 0}}, "limitToAllocatableRatio.cpu: must be a percentage"),
    ],
)
def test_bad_arguments_are_named(args, said):
    with pytest.raises(ValueError, match="arguments of NodeResourceLimits") as caught:
        create_plugin(NodeResourceLimits, args, ClusterTable())
    assert said in str(caught.value)


@given(st.integers(-(1 << 53), 1 << 53), st.integers(1, limits.LARGEST_RATIO))
def test_a_ratio_is_exact_where_its_product_does_not_fit_64_bits(allocatable, ratio):
    """Up to 2^56, and cut there."""
    found = limits.scaled(np.array([allocatable]), np.array([ratio]))
    assert found.tolist() == [min(allocatable * ratio // 100, 1 << 56)]


def test_the_largest_node_at_the_largest_ratio_is_the_emptiest():
    """Its capacity overflowed, and it counted as a node without any."""
    ratio = {"memory": "100000%"}
    nodes = [node("large", {"memory": "8Pi"}), node("small", {"memory": "1Gi"})]
    cluster = table(nodes, [pod("p", node="large", containers=[{"limits": {"memory": "1Gi"}}])])
    args = {"resources": [{"name": "memory"}], "limitToAllocatableRatio": ratio, "filter": True}
    plugin, _ = create_plugin(NodeResourceLimits, args, cluster)
    wanted = info(containers=[{"limits": {"memory": "300Gi"}}])
    at = rows(cluster, "large", "small")
    scores = plugin.score(wanted, cluster, at, now=NOW)
    assert scores.steps["memory capacity"].tolist() == [1 << 56, 1000 << 30]
    assert scores.steps["memory raw"].tolist() == [99, 70]
    assert scores.values.tolist() == [100, 0]
    assert plugin.filter(wanted, cluster, at, now=NOW).passed.all()


def test_limits_below_zero_overflow_nothing():
    """An extender may be sent anything."""
    raw = limits.raw_scores(np.array([-(1 << 60), 0, 1 << 60]), np.array([1, 1, 1]))
    assert limits.normalised(raw).tolist() == [100, 50, 0]


@given(st.lists(st.tuples(st.integers(0, 1 << 62), st.integers(0, 1 << 50)), min_size=1, max_size=10))
def test_nonsense_overflows_nothing(shapes):
    """Scores stay 0 to 100, and more limits never score higher on the same capacity."""
    raw = limits.raw_scores(np.array([each[0] for each in shapes]), np.array([each[1] for each in shapes]))
    scores = limits.normalised(raw)
    assert ((scores >= 0) & (scores <= 100)).all()
    same = limits.raw_scores(np.array(sorted(each[0] for each in shapes)), np.full(len(shapes), 1000))
    assert (np.diff(same) <= 0).all()
