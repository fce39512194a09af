"""LoadVariationRiskBalancing: golden cases, worked examples of KEP-61, and properties of all scores."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.cluster.columns import mu_sigma
from scorers.cluster.pods import PodInfo
from scorers.cluster.table import ClusterTable
from scorers.plugin_api.framework import create_plugin, round_half_away, round_half_away_one
from scorers.plugins.load_variation_risk_balancing import LoadVariationRiskBalancing, kep_scores, risk_scores
from tests.fakes.kube import FakeKube
from tests.scorers import reference
from tests.scorers.extender.test_never_worse import ASKING, Cluster, clusters
from tests.scorers.plugins.served import a_pod, serving, stated
from tests.scorers.simulated_cluster import NOW, cpu_container, info, load, node, pod, rows, table
from tests.scorers.vectors import cases, tolerance

GIGABYTE = 1_000_000_000


def one(value: float) -> Any:
    return np.array([float(value)])


def quantities(of: dict[str, Any]) -> dict[str, str]:
    return {"cpu": f"{of['cpu_milli']}m", "memory": str(of["memory_bytes"])}


def loads_of(case: dict[str, Any]) -> dict[tuple[str, str], float]:
    return {(each["type"], each["operator"]): each["value"] for each in case["metrics"] if each["operator"]}


def allocatable(case: dict[str, Any]) -> dict[str, str]:
    return {"cpu": f"{case['allocatable_cpu_milli']}m", "memory": str(case["allocatable_memory_bytes"])}


def sized(of: Mapping[str, int]) -> dict[str, str]:
    return {"cpu": f"{of['cpu_milli']}m", "memory": str(of["memory_bytes"])}


@cases("resourcestats", "mu_sigma")
def test_mean_and_deviation(case):
    """Shares of the capacity, limited to 0 to 1."""
    of = case["inputs"]
    mu, sigma = mu_sigma(one(of["used_avg"]), one(of["used_stdev"]), one(of["req"]), one(of["capacity"]))
    assert mu[0] == tolerance(case, case["expected"]["mu"])
    assert sigma[0] == tolerance(case, case["expected"]["sigma"])


@cases("LoadVariationRiskBalancing", "compute_score")
def test_golden_formula(case):
    """The formula of the original, for one resource."""
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


@cases("resourcestats", "create_resource_stats")
def test_golden_stats(case):
    """As shares of the capacity. Memory is in MiB there; samples with an unknown operator are ignored here."""
    of, expected = case["inputs"], case["expected"]
    has = {"cpu": f"{of['node']['allocatable_cpu_milli']}m", "memory": str(of["node"]["allocatable_memory_bytes"])}
    values = {(each["type"], each["operator"]): each["value"] for each in of["metrics"] if each["operator"]}
    cluster = table([node("n", has)], loads=load({"n": values}))
    plugin, _ = create_plugin(LoadVariationRiskBalancing, {}, cluster)
    asking = info(containers=[{"requests": sized(of["pod_request"])}])
    steps = plugin.score(asking, cluster, rows(cluster), now=NOW).steps
    mean = (expected["used_avg"] + expected["req"]) / expected["capacity"]
    assert steps[f"{of['resource']} mean"][0] == pytest.approx(mean)
    assert steps[f"{of['resource']} deviation"][0] == pytest.approx(expected["used_stdev"] / expected["capacity"])


@cases("LoadVariationRiskBalancing", "kep_score")
def test_golden_scores_of_the_document(case):
    """The worked example of the KEP; the code of the original returns other scores."""
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


def test_the_formula_kep_counts_pods_that_are_not_measured():
    """The original keeps their list and never reads it."""
    recent = pod("r", node="a", containers=[{"requests": {"cpu": "1"}}], scheduled=NOW - 10)
    for formula, expected in (("upstream", 95.0), ("kep", 80.0)):
        cluster = table([node("a", {"cpu": "10"})], [recent], load({"a": {("CPU", "AVG"): 10.0}}))
        plugin, _ = create_plugin(LoadVariationRiskBalancing, {"formula": formula}, cluster)
        assert plugin.score(info(), cluster, rows(cluster), now=NOW).values.tolist() == [expected]


def test_without_any_metrics_risk_balancing_spreads_by_requests():
    """A node without metrics scores 0 while other nodes have some."""
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
    """Scores are 0 to 100, and fall with both."""
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


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"safeVarianceMargin": -1}, "safeVarianceMargin: must be"),
        ({"safeVarianceSensitivity": "1"}, "safeVarianceSensitivity: must be"),
        ({"formula": "keps"}, "formula: must be"),
    ],
)
def test_invalid_arguments_are_named(args, said):
    with pytest.raises(ValueError, match="arguments of LoadVariationRiskBalancing") as caught:
        create_plugin(LoadVariationRiskBalancing, args, ClusterTable())
    assert said in str(caught.value)


def test_the_defaults_are_those_of_the_original():
    assert LoadVariationRiskBalancing.arguments().safe_variance_margin == 1.0


# --- against the reference, node by node ------------------------------------------------------------------------------


@pytest.mark.slow
@given(
    clusters(least=1),
    ASKING,
    st.sampled_from([0.0, 0.5, 1.0, 2.0, 10.0]),
    st.sampled_from([0.0, 0.5, 1.0, 2.0]),
)
def test_scores_equal_the_reference(of: Cluster, asking: PodInfo, margin: float, sensitivity: float) -> None:
    """The deviation may exceed the mean, and the request the capacity."""
    args = {"safeVarianceMargin": margin, "safeVarianceSensitivity": sensitivity}
    states, cluster = of.states(), of.table(of.loads)
    plugin, _ = create_plugin(LoadVariationRiskBalancing, args, cluster)
    found = plugin.score(asking, cluster, rows(cluster, *of.names), now=NOW)
    for i, each in enumerate(states):
        of_resources = [
            reference.risk_score(each, asking, resource, margin=margin, sensitivity=sensitivity)
            for resource in ("cpu", "memory")
        ]
        exact = min(score for score in of_resources if score is not None)
        assert abs(found.values[i] - exact) <= 0.5 + 1e-9
        assert found.values[i] == int(found.values[i])


@pytest.mark.slow
@given(
    clusters(least=1),
    st.integers(0, 9000),
    st.sampled_from([0.0, 1.0, 2.5]),
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 90), st.integers(1, 3000)), max_size=4),
)
def test_scores_of_the_formula_kep_equal_the_reference(
    of: Cluster, request: int, margin: float, recent: list[tuple[int, int, int]]
) -> None:
    """With the requests of pods that no measurement contains yet."""
    cluster = of.table(of.loads)
    plugin, _ = create_plugin(LoadVariationRiskBalancing, {"formula": "kep", "safeVarianceMargin": margin}, cluster)
    missing = dict.fromkeys(of.names, 0)
    for i, (where, age, of_recent) in enumerate(recent):
        name = of.names[where % len(of.names)]
        cluster.set_pod(
            None, pod(f"r{i}", node=name, containers=[cpu_container(of_recent, 0)], scheduled=NOW - age), now=NOW
        )
        missing[name] += of_recent if age < 60 else 0
    found = plugin.score(info(containers=[cpu_container(request, 0)]), cluster, rows(cluster, *of.names), now=NOW)
    for i, each in enumerate(of.states()):
        of_cpu = reference.document_score(each, request, missing[each.name], "cpu", margin=margin)
        of_memory = reference.document_score(each, 0, 0, "memory", margin=margin)
        exact = min(score for score in (of_cpu, of_memory) if score is not None)
        assert abs(found.values[i] - exact) <= 0.5 + 1e-9


# --- over HTTP --------------------------------------------------------------------------------------------------------

USED = {"n1": (0.8, 3.2, 1.6, 4.8), "n2": (2, 0.04, 6.4, 0.004), "n3": (1.2, 0.4, 3.2, 0.4)}
"""Mean and deviation of CPU (cores of 4) and of memory (GB of 8), from the pictures of KEP-61."""


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        # as printed: the document rounds halves up, 7.5, 36.5, 47.5 and 42.5 among these
        ("kep", {"n1": (0, 8, 0), "n2": (37, 7, 7), "n3": (48, 43, 43)}),
        # the shipped code takes half of mean and deviation (trimaran.md, 5.2)
        ("upstream", {"n1": (44, 54, 44), "n2": (68, 54, 54), "n3": (74, 71, 71)}),
    ],
)
def test_the_third_node_wins_by_mean_and_deviation(
    kube: FakeKube, tmp_path: Path, formula: str, expected: dict[str, tuple[int, int, int]]
) -> None:
    """LoadVariationRiskBalancing: a pod of half a core and 1 GB; the scores of CPU, of memory, and of the node."""
    for name in USED:
        kube.node(name, cpu="4", memory="8G")
    load = stated(
        {
            name: {"CPU": (100 * mean / 4, 100 * deviation / 4), "Memory": (100 * of / 8, 100 * around / 8)}
            for name, (mean, deviation, of, around) in USED.items()
        }
    )
    pod = a_pod(requests={"cpu": "500m", "memory": "1G"})
    with serving(kube, tmp_path, "LoadVariationRiskBalancing", load=load, names=list(USED), formula=formula) as asked:
        assert {name: each[2] for name, each in expected.items()} == asked.scores(pod)
        steps = asked.steps(pod)
    found = {
        name: tuple(round_half_away_one(each[key]) for key in ("cpu score", "memory score", "score"))
        for name, each in steps.items()
    }
    assert expected == found
    assert "n3" == max(steps, key=lambda name: steps[name]["score"])
