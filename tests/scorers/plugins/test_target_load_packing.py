"""TargetLoadPacking: golden cases through the whole plug-in, properties of every curve, and missing metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.cluster.table import ClusterTable
from scorers.plugin_api.arguments import ArgumentsError
from scorers.plugin_api.framework import create_plugin
from scorers.plugins.target_load_packing import (
    TargetLoadPacking,
    TargetLoadPackingArgs,
    packing_scores,
    predicted_demand,
)
from tests.fakes.kube import FakeKube
from tests.scorers import reference
from tests.scorers.extender.test_never_worse import CONTAINERS, Cluster, clusters
from tests.scorers.plugins.served import a_pod, serving, stated
from tests.scorers.simulated_cluster import NOW, info, load, milli, node, pod, rows, table
from tests.scorers.vectors import cases

REQUEST = {"requests": {"cpu": "100m"}}


def resources(container: dict[str, Any]) -> dict[str, Any]:
    """A container of a golden case."""
    found: dict[str, Any] = {}
    for kind in ("requests", "limits"):
        if (milli := container.get(f"{kind}_cpu_milli")) is not None:
            found[kind] = {"cpu": f"{milli}m"}
    return found


def pod_of(case: dict[str, Any]) -> dict[str, Any]:
    overhead = case.get("overhead_cpu_milli", 0)
    return {"containers": [resources(each) for each in case["containers"]], "overhead": {"cpu": f"{overhead}m"}}


def arguments(case: dict[str, Any]) -> dict[str, Any]:
    return {
        "targetUtilization": case["target_utilization"],
        "defaultRequests": {"cpu": f"{case['default_requests_milli']}m"},
        "defaultRequestsMultiplier": str(case["default_requests_multiplier"]),
    }


@cases("TargetLoadPacking", "score")
def test_golden_scores_of_the_plug_in(case):
    """Cases of the original's tests and worked examples of the proposal and the KEP; another node has metrics, too."""
    given_ = case["inputs"]
    end = float(given_["window_end"] or NOW)
    values = {(each["type"], each["operator"]): each["value"] for each in given_["metrics"] or []}
    recent = [
        pod(f"recent-{i}", node="n", scheduled=end - given_["window_end"] + each["timestamp"], **pod_of(each))
        for i, each in enumerate(given_["recent_pods"])
    ]
    nodes = [node("n", {"cpu": f"{given_['node']['capacity_cpu_milli']}m"}), node("other", {"cpu": "1"})]
    loads = {**({"n": values} if values else {}), "other": {("CPU", "AVG"): 1.0}}
    cluster = ClusterTable()
    plugin, _ = create_plugin(TargetLoadPacking, arguments(given_["args"]), cluster)
    for each in nodes:
        cluster.set_node(each.metadata.name, each)
    for one in recent:
        cluster.set_pod(None, one, now=end)
    cluster.set_load(load(loads, sampled=end), now=end)
    scores = plugin.score(info(**pod_of(given_["pod"])), cluster, rows(cluster, "n"), now=end)
    assert scores.values.tolist() == [case["expected"]["score"]]
    predicted = case["expected"]["predicted_percent"]
    assert scores.steps["cpu predicted %"][0] == pytest.approx(np.nan if predicted is None else predicted, nan_ok=True)


@cases("TargetLoadPacking", "predict_container_cpu_milli")
def test_golden_prediction(case):
    """Limit, else request times the multiplier, else the default."""
    given_ = case["inputs"]
    args = TargetLoadPackingArgs(
        default_requests={"cpu": f"{given_['default_requests_milli']}m"},
        default_requests_multiplier=str(given_["default_requests_multiplier"]),
    )
    assert predicted_demand(pod(containers=[resources(given_["container"])]), "cpu", args) == case["expected"]["milli"]


@given(st.floats(1, 99), st.lists(st.one_of(st.just(float("nan")), st.floats(0, 200)), min_size=1, max_size=20))
def test_scores_stay_in_range_and_peak_at_the_target(target, predicted):
    """Integers 0 to 100; 100 at the target, rising before it and falling after; 0 above 100 percent and for NaN."""
    array = np.sort(predicted)
    scores = packing_scores(array, target=target)
    assert ((scores >= 0) & (scores <= 100) & (scores == np.round(scores))).all()
    assert packing_scores(np.array([target]), target=target) == [100]
    assert (scores[np.isnan(array) | (array > 100)] == 0).all()
    assert (np.diff(scores[array <= target]) >= 0).all()
    assert (np.diff(scores[array > target]) <= 0).all()


# --- beyond upstream -------------------------------------------------------------------------------------------------


def score(cluster: ClusterTable, asking: Any, *names: str, **args: Any) -> Any:
    plugin, _ = create_plugin(TargetLoadPacking, args, cluster)
    return plugin.score(asking, cluster, rows(cluster, *names), now=NOW)


def test_without_any_metrics_packing_uses_allocation():
    """The explanation says so. The original would score every node 0."""
    nodes = [node("a", {"cpu": "4"}), node("b", {"cpu": "4"})]
    pods = [pod("x", node="b", containers=[{"requests": {"cpu": "1"}}], scheduled=NOW - 1000)]
    asking = info(containers=[{"requests": {"cpu": "500m"}}])
    scores = score(table(nodes, pods), asking, "a", "b")
    assert scores.steps["cpu allocated %"].tolist() == [12.5, 37.5]
    assert scores.values.tolist() == packing_scores(np.array([12.5, 37.5]), target=40.0).tolist()
    assert "most nodes have no metrics" in scores.reason(1)
    assert "37.5 %" in scores.reason(1)


def test_a_node_without_metrics_scores_0_while_others_have_some():
    """As in the original; a node without capacity in the table is at 0 percent."""
    nodes = [node("a", {"cpu": "4"}), node("silent", {"cpu": "4"}), node("no-capacity", {})]
    loads = load({"a": {("CPU", "AVG"): 20.0}, "no-capacity": {("CPU", "AVG"): 20.0}})
    scores = score(table(nodes, loads=loads), info(), "a", "silent", "no-capacity")
    assert scores.values.tolist() == [70.0, 0.0, 40.0]
    assert scores.reason(1) == "no metrics of this node: 0"


def test_latest_replaces_a_missing_average():
    """A node with one sample is not idle."""
    loads = load({"a": {("CPU", "Latest"): 40.0}, "b": {("CPU", "AVG"): 40.0, ("CPU", "Latest"): 90.0}})
    cluster = table([node("a", {"cpu": "4"}), node("b", {"cpu": "4"})], loads=loads)
    assert score(cluster, info(overhead={}), "a", "b").values.tolist() == [100.0, 100.0]


def test_pods_count_until_they_are_measured():
    """Assigned after the node's own newest sample, or less than a minute before it; a pod of exactly 60 s is
    measured."""
    pods = [
        pod(f"{age}", node="a", containers=[{"limits": {"cpu": "1"}}], scheduled=NOW - age)
        for age in (-5, 0, 59, 60, 200)
    ]
    cluster = table([node("a", {"cpu": "10"})], loads=load({"a": {("CPU", "AVG"): 0.0}}))
    plugin, _ = create_plugin(TargetLoadPacking, {}, cluster)
    for each in pods:
        cluster.set_pod(None, each, now=NOW)
    scores = plugin.score(info(), cluster, rows(cluster, "a"), now=NOW)
    assert scores.steps["cpu of recent pods"].tolist() == [3000.0]
    cluster.set_pod(pods[0], None, now=NOW)
    assert plugin.score(info(), cluster, rows(cluster, "a"), now=NOW).steps["cpu of recent pods"].tolist() == [2000.0]


def test_memory_can_count_too():
    """The lower of the two scores; a node without memory load scores as the lowest of the others."""
    nodes = [node(name, {"cpu": "4", "memory": "10Gi"}) for name in "abc"]
    loads = load(
        {
            "a": {("CPU", "AVG"): 40.0, ("Memory", "AVG"): 70.0},
            "b": {("CPU", "AVG"): 70.0, ("Memory", "AVG"): 40.0},
            "c": {("CPU", "AVG"): 40.0},
        }
    )
    scores = score(table(nodes, loads=loads), info(), resources=["cpu", "memory"])
    assert scores.values.tolist() == [20.0, 20.0, 20.0]
    assert scores.steps["cpu score"].tolist() == [100.0, 20.0, 100.0]
    assert "memory load unknown" in scores.reason(2)


def test_the_order_of_resources_does_not_matter_and_cpu_is_required():
    """If CPU counts, a node with memory load only has no metrics."""
    nodes = [node(name, {"cpu": "4", "memory": "10Gi"}) for name in "ab"]
    loads = load({"a": {("CPU", "AVG"): 40.0}, "b": {("Memory", "AVG"): 40.0}})
    for resources in (["cpu", "memory"], ["memory", "cpu"]):
        scores = score(table(nodes, loads=loads), info(containers=[{}]), defaultRequests={}, resources=resources)
        assert scores.values.tolist() == [100.0, 0.0]
        assert scores.reason(1) == "no metrics of this node: 0"
    alone = score(table(nodes, loads=loads), info(), resources=["memory"])
    assert alone.values.tolist() == [0.0, 100.0]


def test_without_metrics_each_of_the_resources_is_packed_by_requests():
    """Memory alone if only memory counts; the fullest resource decides if several count."""
    nodes = [node(name, {"cpu": "4", "memory": "10Gi"}) for name in "ab"]
    pods = [pod("p", node="a", containers=[{"requests": {"memory": "4Gi"}}])]
    scores = score(table(nodes, pods), info(), resources=["memory"])
    assert scores.values.tolist() == [100.0, 40.0]
    assert scores.reason(0) == "most nodes have no metrics: packed by requests, 40.0 % of allocatable memory: 100"
    assert score(table(nodes, pods), info(), resources=["memory", "cpu"]).values.tolist() == [40.0, 40.0]
    only_cpu = load({"a": {("CPU", "AVG"): 10.0}})
    assert score(table(nodes, pods, only_cpu), info(), resources=["memory"]).inputs["fallback"] == "allocation"


def test_the_demand_can_be_the_effective_requests_or_limits():
    """KEP-61, step 2, and its variant; they include init containers and sidecars."""
    cluster = table([node("a", {"cpu": "10"})], loads=load({"a": {("CPU", "AVG"): 0.0}}))
    asking = info(
        containers=[{"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}],
        initContainers=[{"restartPolicy": "Always", "requests": {"cpu": "500m"}, "limits": {"cpu": "500m"}}],
        overhead={"cpu": "100m"},
    )
    for demand, expected in (("upstream", 2100), ("effective", 2600), ("requests", 1600), ("limits", 2600)):
        scores = score(cluster, asking, podDemand=demand)
        assert scores.inputs["podDemand"] == {"cpu": expected}
        assert scores.steps["cpu predicted %"] == pytest.approx([expected / 100])


@pytest.mark.parametrize(
    ("spec", "milli"),
    [
        # a sidecar by the rule of containers: limit, otherwise request x 1.5, otherwise the default of a core
        ({"containers": [REQUEST], "initContainers": [{"restartPolicy": "Always", "requests": {"cpu": "2"}}]}, 3150),
        ({"containers": [REQUEST], "initContainers": [{"restartPolicy": "Always"}]}, 1150),
        # an init container runs beside the sidecars before it, and then ends
        ({"containers": [REQUEST], "initContainers": [{"requests": {"cpu": "2"}}]}, 3000),
        ({"containers": [REQUEST], "initContainers": [{}]}, 150),
        # of the pod as a whole
        ({"containers": [REQUEST] * 5, "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "6"}}}, 6000),
        ({"containers": [{}] * 5, "resources": {"requests": {"cpu": "1"}}, "overhead": {"cpu": "1m"}}, 1501),
        ({"containers": [REQUEST], "resources": {"requests": {"memory": "1Gi"}}}, 150),
    ],
)
def test_the_effective_demand_is_combined_as_kube_scheduler_combines_requests(spec: dict[str, Any], milli: int):
    cluster = table([node("a", {"cpu": "10"})], loads=load({"a": {("CPU", "AVG"): 0.0}}))
    assert score(cluster, info(**spec), podDemand="effective").inputs["podDemand"] == {"cpu": milli}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"targetUtilization": 0}, "targetUtilization: must be"),
        ({"targetUtilization": 101}, "targetUtilization: must be"),
        ({"targetUtilization": "40"}, "targetUtilization: must be"),
        ({"targetUtilisation": 40}, "did you mean targetUtilization?"),
        ({"defaultRequestsMultiplier": "much"}, "defaultRequestsMultiplier: must be a number"),
        ({"defaultRequestsMultiplier": "nan"}, "defaultRequestsMultiplier: must be a number"),
        ({"defaultRequests": {"cpu": "1x"}}, "defaultRequests.cpu: '1x' is not a Kubernetes quantity"),
        ({"defaultRequests": {"cpu": "-1"}}, "must not be negative"),
        ({"podDemand": "usage"}, "podDemand: must be upstream, effective, requests or limits"),
        ({"resources": []}, "resources: must be"),
    ],
)
def test_invalid_arguments_are_named(args, said):
    """The original would use the default without a message."""
    with pytest.raises(ValueError, match=r"arguments of TargetLoadPacking: ") as caught:
        create_plugin(TargetLoadPacking, args, ClusterTable())
    assert said in str(caught.value)


def test_all_problems_are_named_at_once_and_unused_arguments_are_notices():
    """Most configurations have watcherAddress and metricProvider."""
    with pytest.raises(ArgumentsError, match="target") as caught:
        create_plugin(TargetLoadPacking, {"targetUtilization": -1, "podDemand": 7, "x": 1}, ClusterTable())
    assert len(caught.value.problems) == 3
    _, notices = create_plugin(
        TargetLoadPacking, {"watcherAddress": "http://x", "metricProvider": {"type": "Prometheus"}}, ClusterTable()
    )
    assert [notice.split(" is ignored")[0] for notice in notices] == [
        "TargetLoadPacking: watcherAddress",
        "TargetLoadPacking: metricProvider",
    ]


@pytest.mark.parametrize(("request_milli", "expected"), [(1, 2), (3, 5), (5, 8), (7, 11), (200, 300)])
def test_a_multiplied_request_is_rounded_half_away_from_zero(request_milli: int, expected: int) -> None:
    """As Go's math.Round; Python rounds to the even number."""
    asking = info(containers=[{"requests": {"cpu": f"{request_milli}m"}}])
    cluster = table([node("n", {"cpu": "1"})], loads=load({"n": {("CPU", "AVG"): 1.0}}))
    plugin, _ = create_plugin(TargetLoadPacking, {}, cluster)
    assert {"cpu": expected} == plugin.score(asking, cluster, rows(cluster), now=NOW).inputs["podDemand"]


# --- against the reference, node by node ------------------------------------------------------------------------------


def predicted(containers: list[dict[str, Any]], overhead: int, default: int, multiplier: float) -> int:
    """Millicores: the limit even if it is 0, else the request times the multiplier, else the default."""
    total = overhead
    for each in containers:
        limit, request = (milli(each.get(part, {}).get("cpu")) for part in ("limits", "requests"))
        if limit is not None:
            total += limit
        elif request is not None:
            total += reference.half_away(request * multiplier)
        else:
            total += default
    return total


@pytest.mark.slow
@given(
    clusters(least=1),
    CONTAINERS,
    st.integers(0, 500),
    st.integers(1, 99),
    st.sampled_from([0, 1, 333, 1000]),
    st.sampled_from(["0", "0.0025", "1.1115", "1.5", "3"]),
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 90), CONTAINERS), max_size=4),
)
def test_scores_equal_the_reference(
    of: Cluster,
    containers: list[dict[str, Any]],
    overhead: int,
    target: int,
    default: int,
    multiplier: str,
    recent: list[tuple[int, int, list[dict[str, Any]]]],
) -> None:
    """Init containers do not count; pods that were scheduled up to a minute before the node's sample are added."""
    cluster = of.table(of.loads)
    args = {
        "targetUtilization": target,
        "defaultRequests": {"cpu": f"{default}m"},
        "defaultRequestsMultiplier": multiplier,
    }
    plugin, _ = create_plugin(TargetLoadPacking, args, cluster)
    missing = dict.fromkeys(of.names, 0)
    for i, (where, age, of_recent) in enumerate(recent):
        name = of.names[where % len(of.names)]
        cluster.set_pod(None, pod(f"r{i}", node=name, containers=of_recent, scheduled=NOW - age), now=NOW)
        missing[name] += predicted(of_recent, 0, default, float(multiplier)) if age < 60 else 0
    wanted = predicted(containers, overhead, default, float(multiplier))
    asking = info(containers=containers, overhead={"cpu": f"{overhead}m"}, initContainers=[{"requests": {"cpu": "9"}}])
    found = plugin.score(asking, cluster, rows(cluster, *of.names), now=NOW)
    expected = [reference.packed_by_load(each, wanted, missing[each.name], float(target)) for each in of.states()]
    assert expected == found.values.tolist()
    assert {"cpu": wanted} == found.inputs["podDemand"]


# --- over HTTP --------------------------------------------------------------------------------------------------------


def test_three_nodes_of_four_cores_at_25_50_and_75_percent(kube: FakeKube, tmp_path: Path) -> None:
    """TargetLoadPacking with X = 50 and a pod without CPU requests: 75, 100 and 25."""
    names = ["X", "Y", "Z"]
    for name in names:
        kube.node(name.lower(), cpu="4")
    load = stated({name.lower(): {"CPU": (used * 25.0, 0.0)} for name, used in zip(names, (1, 2, 3), strict=True)})
    names = [name.lower() for name in names]
    how: dict[str, Any] = {"targetUtilization": 50, "defaultRequests": {}}
    with serving(kube, tmp_path, "TargetLoadPacking", load=load, names=names, **how) as asked:
        assert {"x": 75, "y": 100, "z": 25} == asked.scores(a_pod())
        steps = asked.steps(a_pod())
        assert {"x": 25.0, "y": 50.0, "z": 75.0} == {name: each["cpu predicted %"] for name, each in steps.items()}
        assert "cpu would be at 75.0 %, above the target of 50 %: 25" == steps["z"]["reason"]
