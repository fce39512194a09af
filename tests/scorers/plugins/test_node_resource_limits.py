"""NodeResourceLimits: golden cases, the use case of its proposal, and known faults of the original."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.cluster.table import ClusterTable
from scorers.plugin_api.framework import create_plugin
from scorers.plugins import node_resource_limits as limits
from scorers.plugins.node_resource_limits import NodeResourceLimits
from scorers.profiles.default_scheduler import least_allocated, requested_and_allocatable
from tests.fakes.kube import FakeKube
from tests.scorers.extender.test_never_worse import CONTAINERS, Cluster, clusters
from tests.scorers.plugins.served import a_pod, serving
from tests.scorers.simulated_cluster import NOW, info, milli, node, pod, rows, table
from tests.scorers.vectors import cases


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
    """Through the whole plug-in: one pod on each node has the resources of the case, the new pod has none."""
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
    """Allocatable times the ratio; resources without a ratio do not change."""
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


def test_the_use_case_of_the_proposal():
    """The default scheduler would select node1."""
    cluster = seed_cluster()
    plugin, _ = create_plugin(NodeResourceLimits, {}, cluster)
    wanted = info(containers=[{"requests": {"cpu": "1"}, "limits": {"cpu": "4"}}])
    scores = plugin.score(wanted, cluster, rows(cluster, "node1", "node2"), now=NOW)
    assert scores.steps["raw"].tolist() == [-75, -12]
    assert scores.values.tolist() == [0, 100]
    assert scores.reason(0) == "cpu limits with the pod: 175 % of capacity; relative to these nodes: 0"


def test_a_pod_counts_the_same_before_and_after_it_is_placed():
    """With init containers, sidecars, overhead, and the default of a container without limit."""
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


def test_the_current_limits_count_during_a_resize():
    """The current limit counts until the new, lower one is applied."""
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


def test_without_limit_a_pod_can_count_as_the_whole_node():
    """The other default of the proposal's text."""
    cluster = table(
        [node("a", {"cpu": "10", "memory": "1Gi"}), node("b", {"cpu": "4", "memory": "1Gi"})],
        [pod("p", node="a", containers=[{}])],
    )
    plugin, _ = create_plugin(NodeResourceLimits, {"defaultLimits": {"cpu": "allocatable"}}, cluster)
    scores = plugin.score(info(containers=[{}]), cluster, rows(cluster, "a", "b"), now=NOW)
    assert scores.steps["cpu limits, with the pod"].tolist() == [20000, 4000]
    assert scores.inputs["podLimits"] == {"cpu": "allocatable", "memory": 0}


def test_the_filter_limits_the_sum_of_limits_to_the_capacity():
    """Only if the arguments enable it; limits of zero always fit."""
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


def test_the_smallest_limit_does_not_fit_on_a_full_node():
    cluster = table([node("a", {"cpu": "4"})], [pod("p", node="a", containers=[{"limits": {"cpu": "3999m"}}])])
    plugin, _ = create_plugin(NodeResourceLimits, {"filter": True, "resources": [{"name": "cpu"}]}, cluster)

    def passes(cpu: str) -> bool:
        asked = info(containers=[{"limits": {"cpu": cpu}}])
        return bool(plugin.filter(asked, cluster, rows(cluster), now=NOW).passed.all())

    assert [True, False] == [passes("1m"), passes("2m")]
    cluster.set_pod(None, pod("q", node="a", containers=[{"limits": {"cpu": "1m"}}]), now=NOW)
    assert [True, False] == [passes("0"), passes("1m")]


def test_an_invalid_annotation_is_ignored(caplog):
    """One log line names the node."""
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
def test_invalid_arguments_are_named(args, said):
    with pytest.raises(ValueError, match="arguments of NodeResourceLimits") as caught:
        create_plugin(NodeResourceLimits, args, ClusterTable())
    assert said in str(caught.value)


@given(st.integers(-(1 << 53), 1 << 53), st.integers(1, limits.LARGEST_RATIO))
def test_a_ratio_is_exact_if_its_product_exceeds_64_bits(allocatable, ratio):
    """Up to 2^56, which is the maximum."""
    found = limits.scaled(np.array([allocatable]), np.array([ratio]))
    assert found.tolist() == [min(allocatable * ratio // 100, 1 << 56)]


def test_the_largest_node_at_the_largest_ratio_scores_highest():
    """Its capacity overflowed before, and it counted as a node without capacity."""
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


def test_negative_limits_cause_no_overflow():
    """Clients may send any values to an extender."""
    raw = limits.raw_scores(np.array([-(1 << 60), 0, 1 << 60]), np.array([1, 1, 1]))
    assert limits.normalised(raw).tolist() == [100, 50, 0]


@given(st.lists(st.tuples(st.integers(0, 1 << 62), st.integers(0, 1 << 50)), min_size=1, max_size=10))
def test_invalid_amounts_cause_no_overflow(shapes):
    """Scores stay 0 to 100, and more limits never score higher on the same capacity."""
    raw = limits.raw_scores(np.array([each[0] for each in shapes]), np.array([each[1] for each in shapes]))
    scores = limits.normalised(raw)
    assert ((scores >= 0) & (scores <= 100)).all()
    same = limits.raw_scores(np.array(sorted(each[0] for each in shapes)), np.full(len(shapes), 1000))
    assert (np.diff(same) <= 0).all()


# --- against the reference, node by node ------------------------------------------------------------------------------

GIB = 1 << 30


def toward_zero(value: int, by: int) -> int:
    return abs(value) // by * (1 if value >= 0 else -1)


def counted_limit(containers: list[dict[str, Any]], resource: str) -> int:
    """A container without limit counts with 100m and 200Mi, and at least with its request."""
    total = 0
    default = 100 if resource == "cpu" else 200 << 20
    for each in containers:
        request, limit = (size(each.get(part, {}).get(resource), resource) for part in ("requests", "limits"))
        total += max(default if limit is None else limit, request or 0)
    return total


def size(quantity: str | None, resource: str) -> int | None:
    if resource == "cpu" or quantity is None:
        return milli(quantity)
    return int(quantity.removesuffix("Gi")) * (GIB if quantity.endswith("Gi") else 1)


@pytest.mark.slow
@given(
    clusters(least=1),
    CONTAINERS,
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(0, 6), CONTAINERS), max_size=5),
    st.sampled_from([50, 100, 130]),
)
def test_scores_equal_the_reference(
    of: Cluster,
    containers: list[dict[str, Any]],
    weight: int,
    pods: list[tuple[int, list[dict[str, Any]]]],
    ratio: int,
) -> None:
    """Integers, rounded toward zero at each division; a resource that a node lacks is left out with its weight."""
    cluster = Cluster(of.has, (), of.loads).table(None)
    args = {
        "resources": [{"name": "cpu", "weight": weight}, {"name": "memory"}],
        "limitToAllocatableRatio": {"cpu": ratio},
    }
    plugin, _ = create_plugin(NodeResourceLimits, args, cluster)
    on: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in of.names}
    for i, (where, of_pod) in enumerate(pods):
        name = of.names[where % len(of.names)]
        on[name].append(of_pod)
        cluster.set_pod(None, pod(f"p{i}", node=name, containers=of_pod), now=NOW)
    raws: dict[str, int] = {}
    for name, has in of.has.items():
        total = weights = 0
        for resource, of_resource in (("cpu", weight), ("memory", 1)):
            capacity = has[resource] * (ratio if resource == "cpu" else 100) // 100
            if capacity == 0:
                continue
            limits = sum(counted_limit(each, resource) for each in (*on[name], containers))
            total += toward_zero((capacity - limits) * 100, capacity) * of_resource
            weights += of_resource
        if weights:
            raws[name] = toward_zero(total, weights)
    low, high = min(raws.values(), default=0), max(raws.values(), default=0)
    expected = [
        float((raws[name] - low) * 100 // (high - low)) if name in raws and high > low else 0.0 for name in of.names
    ]
    found = plugin.score(info(containers=containers), cluster, rows(cluster, *of.names), now=NOW)
    assert expected == found.values.tolist()


# --- over HTTP --------------------------------------------------------------------------------------------------------


def test_a_node_with_lower_limits_wins_over_one_with_lower_requests(kube: FakeKube, tmp_path: Path) -> None:
    """The use case of the text: the limits with the pod are 14/8 and 9/8, the raw scores -75 and -12.5, so node2 wins.
    LeastAllocated would select node1, 4/8 against 5/8. In Go's integers, -12.5 is -12."""
    for name in ("node1", "node2"):
        kube.node(name, cpu="8", memory="16Gi")
    pods = {"pod1": ("node1", 2, 6), "pod2": ("node1", 2, 4), "pod3": ("node2", 3, 3), "pod4": ("node2", 2, 2)}
    for name, (where, request, limit) in pods.items():
        container = {"name": "c", "resources": {"requests": {"cpu": f"{request}"}, "limits": {"cpu": f"{limit}"}}}
        kube.pod(name, node=where, spec={"containers": [container]})
    pod = a_pod(requests={"cpu": "1"}, limits={"cpu": "4"})
    kube.pod("pod5", phase="Pending", **pod)  # only pods that the API has are reserved
    how: dict[str, Any] = {"resources": [{"name": "cpu"}]}
    with serving(kube, tmp_path, "NodeResourceLimits", load=None, names=["node1", "node2"], **how) as asked:
        before = {name: asked.of_node(name) for name in ("node1", "node2")}
        assert {"node1": 4000, "node2": 5000} == {name: each["requested"]["cpu"] for name, each in before.items()}
        assert {"node1": 10000, "node2": 5000} == {name: each["limits"]["cpu"] for name, each in before.items()}
        steps = asked.steps(pod)
        assert {"node1": 14000, "node2": 9000} == {
            name: each["cpu limits, with the pod"] for name, each in steps.items()
        }
        assert {"node1": -75, "node2": -12} == {name: each["raw"] for name, each in steps.items()}
        asking = info(containers=[pod["spec"]["containers"][0]["resources"]])
        at = rows(asked.table, "node1", "node2")
        requested, allocatable = requested_and_allocatable(asking, asked.table, at, counted=True)
        assert 0 == least_allocated(requested[:1], allocatable[:1]).argmax()
        assert {"node1": 0, "node2": 100} == asked.scores(pod)
        after = asked.of_node("node2")  # where it counts already
        assert (6000, 9000) == (after["requested"]["cpu"], after["limits"]["cpu"])
