"""The rules of the plug-ins, node by node: whatever the cluster, the arrays give what the plainest reading of the
documents gives (`reference`). And the golden cases that are about what several plug-ins share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.cluster.pods import PodInfo
from scorers.cluster.table import ClusterTable
from scorers.cluster.unmeasured_pods import RecentPods
from scorers.plugin_api.arguments import ArgumentsError
from scorers.plugin_api.framework import create_plugin
from scorers.plugins import beta
from scorers.plugins.high_load_filter import HighLoadFilter
from scorers.plugins.load_variation_risk_balancing import LoadVariationRiskBalancing
from scorers.plugins.low_risk_over_commitment import DEFAULT_WEIGHT, LowRiskOverCommitment, LowRiskOverCommitmentArgs
from scorers.plugins.node_resource_limits import NodeResourceLimits
from scorers.plugins.peaks import Peaks
from scorers.plugins.target_load_packing import TargetLoadPacking
from tests.scorers import reference
from tests.scorers.extender.test_never_worse import ASKING, CONTAINERS, Cluster, clusters
from tests.scorers.reference import NodeState
from tests.scorers.simulated_cluster import NOW, info, load, node, pod, rows, table
from tests.scorers.vectors import cases, tolerance
from watcher.core.kubernetes.pod_resources import limits_of, requests_of

pytestmark = pytest.mark.slow

GIB = 1 << 30


def states_and_table(of: Cluster) -> tuple[list[NodeState], ClusterTable]:
    return of.states(), of.table(of.loads)


# --- TargetLoadPacking -----------------------------------------------------------------------------------------------


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


def milli(quantity: str | None) -> int | None:
    return None if quantity is None else int(quantity[:-1]) if quantity.endswith("m") else 1000 * int(quantity)


@given(
    clusters(least=1),
    CONTAINERS,
    st.integers(0, 500),
    st.integers(1, 99),
    st.sampled_from([0, 1, 333, 1000]),
    st.sampled_from(["0", "0.0025", "1.1115", "1.5", "3"]),
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 90), CONTAINERS), max_size=4),
)
def test_packing(
    of: Cluster,
    containers: list[dict[str, Any]],
    overhead: int,
    target: int,
    default: int,
    multiplier: str,
    recent: list[tuple[int, int, list[dict[str, Any]]]],
) -> None:
    """Init containers do not count; pods that were scheduled up to a minute before the node's sample do, on top."""
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


@pytest.mark.parametrize(("request_milli", "expected"), [(1, 2), (3, 5), (5, 8), (7, 11), (200, 300)])
def test_a_multiplied_request_is_rounded_half_away_from_zero(request_milli: int, expected: int) -> None:
    """As Go's math.Round: Python's would go to the even one."""
    asking = info(containers=[{"requests": {"cpu": f"{request_milli}m"}}])
    cluster = table([node("n", {"cpu": "1"})], loads=load({"n": {("CPU", "AVG"): 1.0}}))
    plugin, _ = create_plugin(TargetLoadPacking, {}, cluster)
    assert {"cpu": expected} == plugin.score(asking, cluster, rows(cluster), now=NOW).inputs["podDemand"]


# --- LoadVariationRiskBalancing --------------------------------------------------------------------------------------


@given(
    clusters(least=1),
    ASKING,
    st.sampled_from([0.0, 0.5, 1.0, 2.0, 10.0]),
    st.sampled_from([0.0, 0.5, 1.0, 2.0]),
)
def test_risk(of: Cluster, asking: PodInfo, margin: float, sensitivity: float) -> None:
    """A deviation may be larger than the mean, the request larger than the node."""
    args = {"safeVarianceMargin": margin, "safeVarianceSensitivity": sensitivity}
    states, cluster = states_and_table(of)
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


@given(
    clusters(least=1),
    st.integers(0, 9000),
    st.sampled_from([0.0, 1.0, 2.5]),
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 90), st.integers(1, 3000)), max_size=4),
)
def test_risk_of_the_document(of: Cluster, request: int, margin: float, recent: list[tuple[int, int, int]]) -> None:
    """With the requests of pods that no measurement contains yet."""
    cluster = of.table(of.loads)
    plugin, _ = create_plugin(LoadVariationRiskBalancing, {"formula": "kep", "safeVarianceMargin": margin}, cluster)
    missing = dict.fromkeys(of.names, 0)
    for i, (where, age, of_recent) in enumerate(recent):
        name = of.names[where % len(of.names)]
        cluster.set_pod(None, pod(f"r{i}", node=name, containers=[cpu(of_recent, 0)], scheduled=NOW - age), now=NOW)
        missing[name] += of_recent if age < 60 else 0
    found = plugin.score(info(containers=[cpu(request, 0)]), cluster, rows(cluster, *of.names), now=NOW)
    for i, each in enumerate(of.states()):
        of_cpu = reference.document_score(each, request, missing[each.name], "cpu", margin=margin)
        of_memory = reference.document_score(each, 0, 0, "memory", margin=margin)
        exact = min(score for score in (of_cpu, of_memory) if score is not None)
        assert abs(found.values[i] - exact) <= 0.5 + 1e-9


# --- LowRiskOverCommitment -------------------------------------------------------------------------------------------


def binomial_cdf(x: float, a: int, b: int) -> float:
    """I_x(a, b) of whole numbers: P(at least a of a + b - 1 successes), DLMF 8.17.5."""
    n = a + b - 1
    return math.fsum(math.comb(n, k) * x**k * (1 - x) ** (n - k) for k in range(a, n + 1))


@given(
    st.integers(1, 20),
    st.integers(1, 20),
    st.integers(0, 9000),
    st.integers(0, 9000),
    st.integers(0, 5000),
    st.integers(0, 5000),
    st.sampled_from([0.0, 0.3, 1.0]),
)
def test_over_commitment(a: int, b: int, request: int, limit: int, more: int, at_most: int, weight: float) -> None:
    """A load whose distribution has whole parameters, over pods of 8 cores: limits below, at and beyond what there is,
    below requests, and none."""
    mean = a / (a + b)
    deviation = math.sqrt(mean * (1 - mean) / (a + b + 1))
    loads = load({"n": {("CPU", "AVG"): 100 * mean, ("CPU", "STD"): 100 * deviation}})
    there = pod("p", node="n", containers=[cpu(request, limit)], scheduled=NOW - 900)
    cluster = table([node("n", {"cpu": "8"})], [there], loads)
    plugin, _ = create_plugin(LowRiskOverCommitment, {"riskLimitWeights": {"cpu": weight}}, cluster)
    found = plugin.score(info(containers=[cpu(more, at_most)]), cluster, rows(cluster), now=NOW)
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


def cpu(request: int, limit: int) -> dict[str, Any]:
    return {"requests": {"cpu": f"{request}m"}, "limits": {"cpu": f"{limit}m"}}


# --- Peaks -----------------------------------------------------------------------------------------------------------

MODELS = st.sampled_from([None, (-91.5, -0.07), (-91.5, -0.02), (12.25, 0.03), (12.25, 0.0), (0.0, 0.03)])


@given(
    clusters(least=3),
    st.sampled_from([0, 1, 200, 1500]),
    st.sampled_from([0, 250]),
    st.lists(MODELS, min_size=7, max_size=7),
)
def test_power(of: Cluster, request: int, overhead: int, models: list[tuple[float, float] | None]) -> None:
    """The lowest rise scores 100, the highest 0; who cannot have the pod, or has no model, 0. Limits do not count, and
    the overhead only on top of a request."""
    asking = info(containers=[cpu(request, 9000)], overhead={"cpu": f"{overhead}m"})
    by_name = dict(zip(of.names, models, strict=False))
    given_ = {name: {"k0": 1.0, "k1": each[0], "k2": each[1]} for name, each in by_name.items() if each is not None}
    states, cluster = states_and_table(of)
    plugin, _ = create_plugin(
        Peaks, {"NodePowerModel": {"somewhere": {"k0": 1.0, "k1": 1.0, "k2": 0.0}, **given_}}, cluster
    )
    found = plugin.score(asking, cluster, rows(cluster, *of.names), now=NOW).values
    watts = [reference.rise_in_watts(each, request + overhead if request else 0, by_name[each.name]) for each in states]
    known = [each for each in watts if each is not None]
    for value, rise in zip(found.tolist(), watts, strict=True):
        if rise is None:
            assert 0.0 == value
        elif max(known) == min(known):
            assert 100.0 == value
        else:
            exact = 100.0 - 100.0 * (rise - min(known)) / (max(known) - min(known))
            assert -1e-6 <= value - exact < 1.0 + 1e-6  # what is taken from 100 is rounded down


# --- HighLoadFilter --------------------------------------------------------------------------------------------------


@given(
    clusters(least=1),
    ASKING,
    st.dictionaries(st.sampled_from(["cpu", "memory"]), st.integers(0, 100).map(float)),
    st.booleans(),
    st.integers(0, 400),
    st.sets(st.tuples(st.integers(0, 6), st.sampled_from(["CPU", "Memory"]))),
)
def test_high_load(
    of: Cluster,
    asking: PodInfo,
    thresholds: Mapping[str, float],
    fail_open: bool,
    age: int,
    unknown: set[tuple[int, str]],
) -> None:
    """What is known is enforced first; 180 s are not yet stale."""
    gone = {(of.names[i % len(of.names)], kind) for i, kind in unknown}
    loads = {
        name: {key: value for key, value in each.items() if (name, key[0]) not in gone}
        for name, each in of.loads.items()
    }
    of = Cluster(of.has, of.pods, loads)
    cluster = of.table(loads)
    args = {"usageThresholds": thresholds, "failOpen": fail_open}
    plugin, _ = create_plugin(HighLoadFilter, args, cluster)
    found = plugin.filter(asking, cluster, rows(cluster, *of.names), now=NOW + age).passed.tolist()
    assert found == [
        reference.is_let_through(each, asking, thresholds, stale=age > 180, fail_open=fail_open) for each in of.states()
    ]


# --- NodeResourceLimits ----------------------------------------------------------------------------------------------


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


@given(
    clusters(least=1),
    CONTAINERS,
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(0, 6), CONTAINERS), max_size=5),
    st.sampled_from([50, 100, 130]),
)
def test_limits(
    of: Cluster,
    containers: list[dict[str, Any]],
    weight: int,
    pods: list[tuple[int, list[dict[str, Any]]]],
    ratio: int,
) -> None:
    """Whole numbers, toward zero at each division; a resource that a node lacks is left out with its weight."""
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


# --- golden cases of what they share ---------------------------------------------------------------------------------


def sized(of: Mapping[str, int]) -> dict[str, str]:
    return {"cpu": f"{of['cpu_milli']}m", "memory": str(of["memory_bytes"])}


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


@cases("resourcestats", "create_resource_stats")
def test_golden_stats(case):
    """As shares of what the node has. Memory is in MiB there; an operator that says nothing is passed over here."""
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


@cases("resourcestats", "node_requests_and_limits")
def test_golden_requests_and_limits_of_nodes(case):
    """Requests are cut at what there is, limits are not."""
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


@cases("LowRiskOverCommitment", "beta_new")
def test_golden_distributions(case):
    """What is no distribution has no share below anything; the moments of the others lead back to them."""
    of, expected = case["inputs"], case["expected"]
    alpha, other = np.array([float(of["alpha"])]), np.array([float(of["beta"])])
    if not expected["valid"]:
        assert 0.0 == beta.cdf(np.array([0.5]), alpha, other)[0]
        return
    first, second, third = expected["moments"]
    found = beta.matching(np.array([first]), np.array([second - first**2]))
    assert [each[0] for each in found] == [tolerance(case, float(of[key])) for key in ("alpha", "beta")]
    a, b = (float(each[0]) for each in found)
    assert second * (a + 2) / (a + b + 2) == tolerance(case, third)


@cases("LowRiskOverCommitmentArgs", "defaults")
def test_golden_defaults(case):
    """Upstream puts defaults in the place of what is out of range; here that is an error."""
    of, expected = case["inputs"], case["expected"]
    if "riskLimitWeights" in of:
        with pytest.raises(ArgumentsError, match="riskLimitWeights"):
            create_plugin(LowRiskOverCommitment, of, ClusterTable())
        return
    args = LowRiskOverCommitmentArgs()
    assert expected["smoothingWindowSize"] == args.smoothing_window_size
    weights = {name: args.risk_limit_weights.get(name, DEFAULT_WEIGHT) for name in expected["riskLimitWeights"]}
    assert expected["riskLimitWeights"] == weights


@cases("PodAssignEventHandler", "cleanup")
def test_golden_recent_pods(case):
    """Those that count on top of a measurement of now. They are kept for longer, since measurements lag behind; where
    all are old, none stays."""
    of = case["inputs"]
    recent = RecentPods()
    recent.register("pods", lambda _: 1.0)
    for at in of["timestamps"]:
        recent.add(info(str(at)), row=0, at=float(at))
    counted = recent.unmeasured("pods", measured=np.array([float(of["now"])]))
    assert len(case["expected"]["kept"]) == counted[0]
    recent.prune(now=float(of["now"]), measured=float(of["now"]))
    assert [at for at in of["timestamps"] if at > of["now"] - 300] == [at for _, _, at in recent.of(0)]
