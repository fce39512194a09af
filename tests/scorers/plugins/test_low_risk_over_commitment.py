"""LowRiskOverCommitment: golden cases, and properties of all scores."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.cluster.table import ClusterTable
from scorers.plugin_api.arguments import ArgumentsError
from scorers.plugin_api.framework import create_plugin
from scorers.plugins.low_risk_over_commitment import (
    DEFAULT_WEIGHT,
    LowRiskOverCommitment,
    LowRiskOverCommitmentArgs,
    limit_risk,
    load_risk,
)
from tests.scorers.simulated_cluster import NOW, cpu_container, info, load, node, pod, rows, table
from tests.scorers.vectors import cases, tolerance
from watcher.core.kubernetes.pod_resources import limits_of, requests_of


def one(value: float) -> Any:
    return np.array([float(value)])


def quantities(of: dict[str, Any]) -> dict[str, str]:
    return {"cpu": f"{of['cpu_milli']}m", "memory": str(of["memory_bytes"])}


def asking(of: dict[str, Any]) -> dict[str, Any]:
    return {"requests": quantities(of["requests"]), "limits": quantities(of["limits"])}


def loads_of(case: dict[str, Any]) -> dict[tuple[str, str], float]:
    return {(each["type"], each["operator"]): each["value"] for each in case["metrics"] if each["operator"]}


def allocatable(case: dict[str, Any]) -> dict[str, str]:
    return {"cpu": f"{case['allocatable_cpu_milli']}m", "memory": str(case["allocatable_memory_bytes"])}


def sized(of: Mapping[str, int]) -> dict[str, str]:
    return {"cpu": f"{of['cpu_milli']}m", "memory": str(of["memory_bytes"])}


@cases("LowRiskOverCommitment", "compute_risk")
def test_golden_risks(case):
    """For one resource. Requests are at most the capacity, as in the caller."""
    of, expected = case["inputs"], case["expected"]
    capacity = one(of["capacity"])
    requests = [np.minimum(one(of[key]), capacity) for key in ("request", "request_minus_pod")]
    of_limits = limit_risk(requests[0], one(of["limit"]), capacity)[0]
    sigma = one(of["std_percent"] / 100 * math.sqrt(of["smoothing_window"]))
    of_load = load_risk(one(of["avg_percent"] / 100), sigma, requests[1], one(of["limit_minus_pod"]), capacity)[0]
    weight = of["risk_limit_weight"]
    assert of_limits == tolerance(case, expected["risk_limit"])
    assert of_load == tolerance(case, expected["risk_load"])
    assert weight * of_limits + (1 - weight) * of_load == tolerance(case, expected["total_risk"])


@cases("LowRiskOverCommitment", "score")
def test_golden_scores_of_over_commitment(case):
    """Through the whole plug-in, with a source that smooths."""
    of = case["inputs"]
    pods = [
        pod(f"p{i}", node="n", containers=[asking(each)], scheduled=0.0) for i, each in enumerate(of["pods_on_node"])
    ]
    loads = load({"n": loads_of(of), "other": {("CPU", "AVG"): 1.0}})
    loads.smoothing_s.update(dict.fromkeys(loads.smoothing_s, 300.0))  # type: ignore[attr-defined]
    cluster = table([node("n", allocatable(of["node"])), node("other", {"cpu": "1"})], pods, loads)
    args = {
        "smoothingWindowSize": of["args"]["smoothing_window"],
        "riskLimitWeights": of["args"]["risk_limit_weights"],
    }
    plugin, _ = create_plugin(LowRiskOverCommitment, args, cluster)
    scores = plugin.score(info(containers=[asking(of["pod"])]), cluster, rows(cluster, "n"), now=NOW)
    assert scores.values.tolist() == [case["expected"]["score"]]


@cases("resourcestats", "effective_resource")
def test_golden_effective_resources(case):
    of = case["inputs"]
    of_pod = pod(
        containers=[{of["which"]: sized(each)} for each in of["containers"]],
        initContainers=[{of["which"]: sized(each)} for each in of["init_containers"]],
        overhead=sized(of["overhead"]),
    )
    found = {"requests": requests_of, "limits": limits_of}[of["which"]](of_pod)
    assert case["expected"] == {"cpu_milli": found["cpu"], "memory_bytes": found["memory"]}


@cases("resourcestats", "node_requests_and_limits")
def test_golden_requests_and_limits_of_nodes(case):
    """Requests are at most the capacity; limits are not limited."""
    of, expected = case["inputs"], case["expected"]
    asked = {part: sized(of["pod"][part]) for part in ("requests", "limits")}
    pods = [
        pod(f"p{i}", node="n", containers=[{part: sized(each[part]) for part in ("requests", "limits")}])
        for i, each in enumerate(of["pods_on_node"])
    ]
    cluster = table([node("n", sized(of["allocatable"]))], pods, load({"n": {("CPU", "AVG"): 1.0}}))
    plugin, _ = create_plugin(LowRiskOverCommitment, {}, cluster)
    steps = plugin.score(info(containers=[asked]), cluster, rows(cluster), now=NOW).steps
    for resource, key in (("cpu", "cpu_milli"), ("memory", "memory_bytes")):
        assert expected["request"][key] == steps[f"{resource} requests, with the pod"][0]
        assert expected["limit"][key] == steps[f"{resource} limits, with the pod"][0]
        assert expected["request_minus_pod"][key] == cluster.requested.column(resource)[0]
        assert expected["limit_minus_pod"][key] == cluster.limited.column(resource)[0]


@cases("LowRiskOverCommitmentArgs", "defaults")
def test_golden_defaults(case):
    """The original replaces values that are out of range by defaults; here they are errors."""
    of, expected = case["inputs"], case["expected"]
    if "riskLimitWeights" in of:
        with pytest.raises(ArgumentsError, match="riskLimitWeights"):
            create_plugin(LowRiskOverCommitment, of, ClusterTable())
        return
    args = LowRiskOverCommitmentArgs()
    assert expected["smoothingWindowSize"] == args.smoothing_window_size
    weights = {name: args.risk_limit_weights.get(name, DEFAULT_WEIGHT) for name in expected["riskLimitWeights"]}
    assert expected["riskLimitWeights"] == weights


def test_only_smoothed_deviations_are_scaled():
    """The original scales deviations of single samples, too."""
    pods = [pod("p", node="n", containers=[{"requests": {"cpu": "2"}, "limits": {"cpu": "4"}}], scheduled=0.0)]
    risks = {}
    for smoothing in (0.0, 300.0):
        loads = load({"n": {("CPU", "AVG"): 40.0, ("CPU", "STD"): 10.0}})
        loads.smoothing_s.update(dict.fromkeys(loads.smoothing_s, smoothing))  # type: ignore[attr-defined]
        cluster = table([node("n", {"cpu": "4", "memory": "1Gi"})], pods, loads)
        plugin, _ = create_plugin(LowRiskOverCommitment, {}, cluster)
        scores = plugin.score(info(containers=[{"requests": {"cpu": "1"}}]), cluster, rows(cluster), now=NOW)
        risks[smoothing] = float(scores.steps["cpu load risk"][0])
        assert scores.inputs["smoothed"] == {"cpu": smoothing > 0, "memory": False}
    assert risks[0.0] < risks[300.0]


def test_unknown_load_and_pods_without_requests_score_by_limits_or_0():
    """Best-effort pods score 0, silent nodes too; without any metrics only limits decide."""
    nodes = [node("a", {"cpu": "4", "memory": "4Gi"}), node("b", {"cpu": "4", "memory": "4Gi"})]
    pods = [pod("p", node="b", containers=[{"requests": {"cpu": "1"}, "limits": {"cpu": "8"}}], scheduled=0.0)]
    cluster = table(nodes, pods)
    plugin, _ = create_plugin(LowRiskOverCommitment, {}, cluster)
    wanted = info(containers=[{"requests": {"cpu": "1"}}])
    blind = plugin.score(wanted, cluster, rows(cluster, "a", "b"), now=NOW)
    assert blind.values.tolist() == [100.0, 64.0]
    assert "only limits count" in blind.reason(1)
    assert plugin.score(info(), cluster, rows(cluster, "a", "b"), now=NOW).values.tolist() == [0.0, 0.0]
    cluster.set_load(load({"a": {("CPU", "AVG"): 10.0}}), now=NOW)
    seeing = plugin.score(wanted, cluster, rows(cluster, "a", "b"), now=NOW)
    assert seeing.values[1] == 0.0
    assert seeing.reason(1) == "no metrics of this node: 0"


def test_a_node_that_is_resized_has_the_risk_of_its_new_size():
    """Before the next windows arrive."""
    loads = load({"n": {("CPU", "AVG"): 40.0, ("CPU", "STD"): 15.0}})
    running = pod("p", node="n", containers=[{"requests": {"cpu": "1"}, "limits": {"cpu": "3"}}])
    cluster = table([node("n", {"cpu": "4", "memory": "4Gi"})], [running], loads)
    plugin, _ = create_plugin(LowRiskOverCommitment, {}, cluster)
    wanted = info(containers=[{"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}])
    small = plugin.score(wanted, cluster, rows(cluster, "n"), now=NOW).values.tolist()
    cluster.set_node("n", node("n", {"cpu": "2", "memory": "4Gi"}))
    resized = plugin.score(wanted, cluster, rows(cluster, "n"), now=NOW).values.tolist()
    fresh, _ = create_plugin(LowRiskOverCommitment, {}, cluster)
    assert resized == fresh.score(wanted, cluster, rows(cluster, "n"), now=NOW).values.tolist() != small


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.floats(0, 100), st.floats(0, 50)), max_size=12))
def test_the_cached_load_risk_equals_a_new_computation(events):
    """After any events."""
    nodes = [node(f"n{i}", {"cpu": "4", "memory": "4Gi"}) for i in range(4)]
    cluster = table(nodes, loads=load({f"n{i}": {("CPU", "AVG"): 10.0} for i in range(4)}))
    plugin, _ = create_plugin(LowRiskOverCommitment, {}, cluster)
    wanted = info(containers=[{"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}])
    for i, (of, kind, average, deviation) in enumerate(events):
        if kind == 0:
            cluster.set_node(f"n{of}", node(f"n{of}", {"cpu": f"{1000 + round(100 * average)}m", "memory": "4Gi"}))
        elif kind == 1:
            cluster.set_pod(None, pod(f"p{i}", node=f"n{of}", containers=[{"requests": {"cpu": "1"}}]), now=NOW)
        else:
            cluster.set_load(load({f"n{of}": {("CPU", "AVG"): average, ("CPU", "STD"): deviation}}), now=NOW)
        fresh, _ = create_plugin(LowRiskOverCommitment, {}, cluster)
        asked = rows(cluster)
        kept = plugin.score(wanted, cluster, asked, now=NOW).values
        assert kept.tolist() == fresh.score(wanted, cluster, asked, now=NOW).values.tolist()


def test_prepared_distributions_equal_those_computed_on_request():
    """In steps, so that the event loop can run in between; only changed nodes are computed again."""
    names = [f"n{i}" for i in range(700)]
    cluster = table(
        [node(name, {"cpu": "8", "memory": "16Gi"}) for name in names],
        loads=load({name: {("CPU", "AVG"): i % 100, ("CPU", "STD"): i % 7} for i, name in enumerate(names)}),
    )
    asking = info(containers=[{"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}])
    prepared, late = (create_plugin(LowRiskOverCommitment, {}, cluster)[0] for _ in range(2))
    assert len(list(prepared.prepare(cluster))) == 4
    assert list(prepared.prepare(cluster)) == []
    at = rows(cluster)
    expected = late.score(asking, cluster, at, now=NOW).values.tolist()
    assert prepared.score(asking, cluster, at, now=NOW).values.tolist() == expected
    cluster.set_pod(None, pod("p", node="n5", containers=[{"requests": {"cpu": "7"}}]), now=NOW)
    assert len(list(prepared.prepare(cluster))) == 1  # it requests no memory


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"smoothingWindowSize": 0}, "smoothingWindowSize: must be"),
        ({"riskLimitWeights": {"cpu": 2}}, "riskLimitWeights.cpu: must be"),
        ({"riskLimitWeights": {"gpu": 1}}, "riskLimitWeights.gpu: only cpu and memory"),
    ],
)
def test_invalid_arguments_are_named(args, said):
    with pytest.raises(ValueError, match="arguments of LowRiskOverCommitment") as caught:
        create_plugin(LowRiskOverCommitment, args, ClusterTable())
    assert said in str(caught.value)


def test_the_defaults_are_those_of_the_original():
    assert LowRiskOverCommitment.arguments().smoothing_window_size == 5
    assert DEFAULT_WEIGHT == 0.5


# --- against the reference, node by node ------------------------------------------------------------------------------


def binomial_cdf(x: float, a: int, b: int) -> float:
    """I_x(a, b) of whole numbers: P(at least a of a + b - 1 successes), DLMF 8.17.5."""
    n = a + b - 1
    return math.fsum(math.comb(n, k) * x**k * (1 - x) ** (n - k) for k in range(a, n + 1))


@pytest.mark.slow
@given(
    st.integers(1, 20),
    st.integers(1, 20),
    st.integers(0, 9000),
    st.integers(0, 9000),
    st.integers(0, 5000),
    st.integers(0, 5000),
    st.sampled_from([0.0, 0.3, 1.0]),
)
def test_scores_equal_the_reference(
    a: int, b: int, request: int, limit: int, more: int, at_most: int, weight: float
) -> None:
    """A load whose distribution has integer parameters, with pods on nodes of 8 cores: limits below, at and above the
    capacity, below requests, and none."""
    mean = a / (a + b)
    deviation = math.sqrt(mean * (1 - mean) / (a + b + 1))
    loads = load({"n": {("CPU", "AVG"): 100 * mean, ("CPU", "STD"): 100 * deviation}})
    there = pod("p", node="n", containers=[cpu_container(request, limit)], scheduled=NOW - 900)
    cluster = table([node("n", {"cpu": "8"})], [there], loads)
    plugin, _ = create_plugin(LowRiskOverCommitment, {"riskLimitWeights": {"cpu": weight}}, cluster)
    found = plugin.score(info(containers=[cpu_container(more, at_most)]), cluster, rows(cluster), now=NOW)
    limit, at_most = max(limit, request), max(at_most, more)
    below = binomial_cdf(min(request, 8000) / 8000, a, b)
    if limit < 8000:
        most = binomial_cdf(limit / 8000, a, b)
        below = 1.0 if limit == 0 else min(below / most, 1.0) if most > 0 else below
    requests, limits = min(request + more, 8000), limit + at_most
    of_limits = (limits - 8000) / (limits - requests) if limits > 8000 else 0.0
    risk = weight * of_limits + (1 - weight) * (1 - below)
    exact = 100 * (1 - risk) if more or at_most else 0.0
    assert abs(found.values[0] - exact) <= 0.5 + 1e-6
