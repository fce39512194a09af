"""LoadVariationRiskBalancing, LowRiskOverCommitment and the beta distribution: golden cases, and what always holds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.cluster.columns import mu_sigma
from scorers.cluster.table import ClusterTable
from scorers.plugin_api.framework import create_plugin, round_half_away
from scorers.plugins import beta
from scorers.plugins.load_variation_risk_balancing import LoadVariationRiskBalancing, kep_scores, risk_scores
from scorers.plugins.low_risk_over_commitment import DEFAULT_WEIGHT, LowRiskOverCommitment, limit_risk, load_risk
from tests.scorers.simulated_cluster import NOW, info, load, node, pod, rows, table
from tests.scorers.vectors import cases, tolerance

GIGABYTE = 1_000_000_000


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


# --- LoadVariationRiskBalancing --------------------------------------------------------------------------------------


@cases("resourcestats", "mu_sigma")
def test_mean_and_deviation(case):
    """Shares of the capacity, clamped."""
    of = case["inputs"]
    mu, sigma = mu_sigma(one(of["used_avg"]), one(of["used_stdev"]), one(of["req"]), one(of["capacity"]))
    assert mu[0] == tolerance(case, case["expected"]["mu"])
    assert sigma[0] == tolerance(case, case["expected"]["sigma"])


@cases("LoadVariationRiskBalancing", "compute_score")
def test_golden_formula(case):
    """Upstream's, for one resource."""
    of = case["inputs"]
    capacity = max(of["capacity"], 0)
    average, deviation = (min(max(of[key], 0), capacity) for key in ("used_avg", "used_stdev"))
    mu, sigma = mu_sigma(one(average), one(deviation), one(max(of["req"], 0)), one(of["capacity"]))
    scores = risk_scores(mu, sigma, margin=max(of["margin"], 0), sensitivity=of["sensitivity"])
    scores = np.where(of["capacity"] > 0, scores, 0.0)
    assert scores[0] == tolerance(case, case["expected"]["score_unrounded"])
    assert round_half_away(scores)[0] == case["expected"]["score"]


@cases("LoadVariationRiskBalancing", "score")
def test_golden_scores(case):
    """Through the whole plug-in."""
    of = case["inputs"]
    nodes = [node("n", allocatable(of["node"])), node("other", {"cpu": "1"})]
    cluster = table(nodes, loads=load({"n": loads_of(of), "other": {("CPU", "AVG"): 1.0}}))
    args = {"safeVarianceMargin": of["args"]["margin"], "safeVarianceSensitivity": of["args"]["sensitivity"]}
    plugin, _ = create_plugin(LoadVariationRiskBalancing, args, cluster)
    scores = plugin.score(
        info(containers=[{"requests": quantities(of["pod_request"])}]), cluster, rows(cluster, "n"), now=NOW
    )
    assert scores.values.tolist() == [case["expected"]["score"]]
    for resource in ("cpu", "memory"):
        expected = case["expected"][f"{resource}_score"]
        assert scores.steps[f"{resource} score"][0] == pytest.approx(
            np.nan if expected is None else expected, nan_ok=True
        )


@cases("LoadVariationRiskBalancing", "kep_score")
def test_golden_scores_of_the_document(case):
    """The worked example of the KEP, which the code does not give."""
    of = case["inputs"]
    found = []
    for resource, stats in of["resources"].items():
        mu, sigma = mu_sigma(*(one(stats[key]) for key in ("used_avg", "used_stdev", "req", "capacity")))
        found.append(float(kep_scores(mu, sigma, margin=of["margin"])[0]))
        assert found[-1] == pytest.approx(case["expected"][f"{resource}_score"], abs=0.51)
    assert min(found) == tolerance(case, case["expected"]["score_unrounded"])


def test_the_example_of_the_document_through_the_plug_in():
    """KEP-61: the third node wins, by 43 points."""
    shape = {"cpu": "4", "memory": str(8 * GIGABYTE)}
    points = {"N1": (0.8, 3.2, 1.6, 4.8), "N2": (2, 0.04, 6.4, 0.004), "N3": (1.2, 0.4, 3.2, 0.4)}
    loads = {
        name: {
            ("CPU", "AVG"): 100 * cpu / 4,
            ("CPU", "STD"): 100 * cpu_std / 4,
            ("Memory", "AVG"): 100 * memory / 8,
            ("Memory", "STD"): 100 * memory_std / 8,
        }
        for name, (cpu, cpu_std, memory, memory_std) in points.items()
    }
    cluster = table([node(name, shape) for name in points], loads=load(loads))
    plugin, _ = create_plugin(LoadVariationRiskBalancing, {"formula": "kep"}, cluster)
    wanted = info(containers=[{"requests": {"cpu": "500m", "memory": str(GIGABYTE)}}])
    scores = plugin.score(wanted, cluster, rows(cluster, *points), now=NOW)
    assert scores.values == pytest.approx([0, 7, 43], abs=1)
    assert scores.values.argmax() == 2
    assert scores.reason(0) == "cpu scores lowest: load with the pod 32.5 %, deviation 80.0 %: 0"


def test_under_kep_pods_that_are_not_measured_count():
    """Upstream keeps their list and never reads it."""
    recent = pod("r", node="a", containers=[{"requests": {"cpu": "1"}}], scheduled=NOW - 10)
    for formula, expected in (("upstream", 95.0), ("kep", 80.0)):
        cluster = table([node("a", {"cpu": "10"})], [recent], load({"a": {("CPU", "AVG"): 10.0}}))
        plugin, _ = create_plugin(LoadVariationRiskBalancing, {"formula": formula}, cluster)
        assert plugin.score(info(), cluster, rows(cluster), now=NOW).values.tolist() == [expected]


def test_without_any_metrics_it_spreads_by_requests():
    """And one node without scores 0 while others have some."""
    nodes = [node("a", {"cpu": "4", "memory": "4Gi"}), node("b", {"cpu": "4", "memory": "4Gi"})]
    pods = [pod("p", node="b", containers=[{"requests": {"cpu": "2"}}], scheduled=NOW - 900)]
    cluster = table(nodes, pods)
    plugin, _ = create_plugin(LoadVariationRiskBalancing, {}, cluster)
    blind = plugin.score(info(), cluster, rows(cluster, "a", "b"), now=NOW)
    assert blind.values.tolist() == [100.0, 72.0]  # b has 50 % of CPU left, and of memory all but 200 MiB
    assert blind.inputs["fallback"] == "allocation"
    assert "most nodes have no metrics" in blind.reason(1)
    cluster.set_load(load({"b": {("CPU", "AVG"): 50.0}}), now=NOW)
    seeing = plugin.score(info(), cluster, rows(cluster, "a", "b"), now=NOW)
    assert seeing.values.tolist() == [0.0, 75.0]
    assert seeing.reason(0) == "no metrics of this node: 0"


@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(0, 60)), min_size=2, max_size=8),
    st.sampled_from(["upstream", "kep"]),
    st.floats(0, 3),
    st.floats(0, 3),
)
def test_more_load_and_more_deviation_never_score_higher(points, formula, margin, sensitivity):
    """Scores stay in 0..100, and fall with both."""
    names = [f"n{i}" for i in range(len(points))]
    worse = [(min(100.0, average + 7), deviation + 3) for average, deviation in points]
    found = []
    for of in (points, worse):
        loads = {
            name: {("CPU", "AVG"): average, ("CPU", "STD"): dev} for name, (average, dev) in zip(names, of, strict=True)
        }
        cluster = table([node(name, {"cpu": "4"}) for name in names], loads=load(loads))
        args = {"formula": formula, "safeVarianceMargin": margin, "safeVarianceSensitivity": sensitivity}
        plugin, _ = create_plugin(LoadVariationRiskBalancing, args, cluster)
        found.append(plugin.score(info(), cluster, rows(cluster, *names), now=NOW).values)
    assert ((found[0] >= 0) & (found[0] <= 100)).all()
    assert (found[1] <= found[0]).all()


# --- the beta distribution -------------------------------------------------------------------------------------------


@cases("LowRiskOverCommitment", "beta_cdf")
def test_golden_distribution_function(case):
    of = case["inputs"]
    assert beta.cdf(one(of["x"]), one(of["alpha"]), one(of["beta"]))[0] == tolerance(case, case["expected"]["value"])


@cases("LowRiskOverCommitment", "beta_max_variance")
def test_golden_largest_variance(case):
    assert beta.max_variance(one(case["inputs"]["m1"]))[0] == tolerance(case, case["expected"]["value"])


@cases("LowRiskOverCommitment", "beta_match_moments")
def test_golden_matching(case):
    of = case["inputs"]
    alpha, other = beta.matching(one(of["m1"]), one(of["m2"] - of["m1"] ** 2))
    expected = case["expected"]["alpha_beta"]
    assert (not np.isnan(alpha[0])) is case["expected"]["matched"]
    if expected is not None:
        assert [alpha[0], other[0]] == [tolerance(case, value) for value in expected]


@given(st.floats(0.001, 0.999), st.floats(0.01, 5000), st.floats(0.01, 5000))
def test_the_distribution_function_is_one(x, a, b):
    """Rising from 0 to 1, and symmetric."""
    values = beta.cdf(np.array([0.0, x / 2, x, 1.0]), np.full(4, a), np.full(4, b))
    assert values[0] == 0.0
    assert values[3] == 1.0
    assert (np.diff(values) >= -1e-9).all()
    assert 1.0 - beta.cdf(one(1.0 - x), one(b), one(a))[0] == pytest.approx(values[2], abs=1e-9)


@given(st.integers(1, 60), st.integers(1, 60), st.floats(0.01, 0.99))
def test_for_whole_parameters_it_is_a_sum_of_binomials(a, b, x):
    """I_x(a, b) = P(at least a of a + b - 1 successes), DLMF 8.17.5."""
    n = a + b - 1
    exact = math.fsum(math.comb(n, k) * x**k * (1 - x) ** (n - k) for k in range(a, n + 1))
    assert beta.cdf(one(x), one(a), one(b))[0] == pytest.approx(exact, abs=1e-12)


@given(st.floats(1e-6, 1e7))
def test_the_gamma_function_is_that_of_the_library(x):
    assert beta.log_gamma(one(x))[0] == pytest.approx(math.lgamma(x), rel=1e-13, abs=1e-13)


def test_beyond_a_million_it_goes_on_smoothly():
    """Where the normal distribution takes over."""
    x, near = 0.3 + 1e-4, 0.3
    below = beta.cdf(one(x), one(near * 1e6), one((1 - near) * 1e6))[0]
    above = beta.cdf(one(x), one(near * 1.5e6), one((1 - near) * 1.5e6))[0]
    assert below == pytest.approx(0.586, abs=0.002)
    assert above == pytest.approx(0.606, abs=0.002)


# --- LowRiskOverCommitment -------------------------------------------------------------------------------------------


@cases("LowRiskOverCommitment", "compute_risk")
def test_golden_risks(case):
    """For one resource. Requests are cut at the capacity, as their caller does."""
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
    """Through the whole plug-in, from a source that smooths."""
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


def test_only_what_was_smoothed_is_made_rougher():
    """Upstream multiplies a deviation that was measured sample by sample, too."""
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


def test_nothing_known_and_nothing_asked():
    """Best effort pods score 0, silent nodes too; without any metrics limits alone decide."""
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
def test_what_is_remembered_equals_what_is_computed_anew(events):
    """The load risk is kept by node; whatever happens it is that of now."""
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


@pytest.mark.parametrize(
    ("factory", "args", "said"),
    [
        (LoadVariationRiskBalancing, {"safeVarianceMargin": -1}, "safeVarianceMargin: must be"),
        (LoadVariationRiskBalancing, {"safeVarianceSensitivity": "1"}, "safeVarianceSensitivity: must be"),
        (LoadVariationRiskBalancing, {"formula": "keps"}, "formula: must be "),
        (LowRiskOverCommitment, {"smoothingWindowSize": 0}, "smoothingWindowSize: must be"),
        (LowRiskOverCommitment, {"riskLimitWeights": {"cpu": 2}}, "riskLimitWeights.cpu: must be"),
        (LowRiskOverCommitment, {"riskLimitWeights": {"gpu": 1}}, "riskLimitWeights.gpu: only cpu and memory"),
    ],
)
def test_bad_arguments_are_named(factory, args, said):
    with pytest.raises(ValueError, match=f"arguments of {factory.name}") as caught:
        create_plugin(factory, args, ClusterTable())
    assert said in str(caught.value)


def test_upstream_s_defaults_stand():
    assert LoadVariationRiskBalancing.arguments().safe_variance_margin == 1.0
    assert LowRiskOverCommitment.arguments().smoothing_window_size == 5
    assert DEFAULT_WEIGHT == 0.5


def test_what_is_computed_before_a_pod_asks_is_what_would_be_computed_then():
    """In steps, so that the event loop is free between them; once more only where something changed."""
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
    assert len(list(prepared.prepare(cluster))) == 1  # it asks for no memory
