"""Never worse: without load, with load of few nodes, or with load that is too old, no profile ranks nodes worse than
kube-scheduler's own plug-ins (docs/concepts/scheduling.md, "Never worse").

The clusters are random, with any profile of the plug-ins of load-watcher; the expected result is computed node by node
from the same pods (`reference`), or by the same profile in a cluster that never had load."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.cluster.pods import PodInfo, pod_info
from scorers.cluster.table import ClusterTable
from scorers.extender.handlers import Extender
from scorers.profiles import default_scheduler
from scorers.profiles.profiles import PluginSettings, ProfileSettings
from scorers.profiles.ranking import ProfileRunner
from scorers.profiles.registry import PLUGINS, extension_points, factory_of
from tests.fakes.service import Live
from tests.scorers import reference
from tests.scorers.reference import NodeState
from tests.scorers.simulated_cluster import NOW, load, node, pod, rows, table
from watcher.core.kubernetes.objects import Pod

pytestmark = pytest.mark.slow

GIB = 1 << 30
Loads = Mapping[str, Mapping[tuple[str, str], float]]

SCORING = [name for name in PLUGINS if "score" in extension_points(factory_of(name))]
MODEL = {"k0": 471.7, "k1": -91.5, "k2": -0.0719}


def arguments(name: str, of: Cluster) -> dict[str, Any]:
    """The required arguments of the plug-in."""
    return {"NodePowerModel": dict.fromkeys(of.names, MODEL)} if name == "Peaks" else {}


def profile(
    cluster: ClusterTable, of: Cluster, *names: str, weights: tuple[int, ...] = (), **args: Any
) -> ProfileRunner:
    plugins = tuple(
        PluginSettings(name, weight, arguments(name, of) | args, ("filter", "score"))
        for name, weight in zip(names, weights or (1,) * len(names), strict=True)
    )
    return ProfileRunner(ProfileSettings("p", plugins), cluster)


@dataclass(frozen=True)
class Cluster:
    """Nodes with their capacity, their pods, and their load."""

    has: Mapping[str, Mapping[str, int]]
    pods: tuple[Pod, ...]
    loads: Loads

    @property
    def names(self) -> list[str]:
        return list(self.has)

    def table(self, loads: Loads | None) -> ClusterTable:
        nodes = [
            node(name, {each: f"{size}m" if each == "cpu" else size for each, size in has.items()})
            for name, has in self.has.items()
        ]
        return table(nodes, self.pods, load(loads) if loads else None)

    def states(self) -> list[NodeState]:
        infos = [(one.spec.node_name, pod_info(one)) for one in self.pods]
        return [
            NodeState(name, has, [info for where, info in infos if where == name], self.loads[name])
            for name, has in self.has.items()
        ]


AMOUNTS = st.fixed_dictionaries(
    {}, optional={"cpu": st.sampled_from(["0", "100m", "1", "3"]), "memory": st.sampled_from(["0", "1Gi", "5Gi"])}
)
CONTAINERS = st.lists(st.fixed_dictionaries({}, optional={"requests": AMOUNTS, "limits": AMOUNTS}), max_size=2)
PERCENT = st.integers(0, 100).map(float)
LOAD = st.fixed_dictionaries(
    {("CPU", "AVG"): PERCENT, ("Memory", "AVG"): PERCENT},
    optional={("CPU", "STD"): PERCENT, ("Memory", "STD"): PERCENT},
)


@st.composite
def clusters(draw: st.DrawFn, *, least: int = 2) -> Cluster:
    names = [f"n{i}" for i in range(draw(st.integers(least, 7)))]
    has = {
        name: {"cpu": draw(st.sampled_from([0, 2000, 8000])), "memory": draw(st.sampled_from([0, 4, 32])) * GIB}
        for name in names
    }
    count = draw(st.integers(0, 6))
    pods = [
        pod(f"p{i}", node=draw(st.sampled_from(names)), containers=draw(CONTAINERS), scheduled=NOW - 900)
        for i in range(count)
    ]
    return Cluster(has, tuple(pods), {name: draw(LOAD) for name in names})


ASKING = CONTAINERS.map(lambda containers: pod_info(pod("asking", containers=containers)))


def ranked(
    cluster: ClusterTable, of: Cluster, asking: PodInfo, *names: str, asked: list[str] | None = None, **how: Any
) -> Any:
    ranking = profile(cluster, of, *names, **how).rank(asking, rows(cluster, *(asked or of.names)), now=NOW)
    return ranking.values


# --- fallbacks -------------------------------------------------------------------------------------------------------


@given(clusters(), ASKING, st.sampled_from([20.0, 40.0, 75.0]))
def test_without_load_packing_is_node_resources_fit_with_the_curve_as_its_shape(
    of: Cluster, asking: PodInfo, target: float
) -> None:
    found = ranked(of.table(None), of, asking, "TargetLoadPacking", targetUtilization=target)
    assert [reference.packed_by_requests(each, asking, target) for each in of.states()] == found.tolist()


@given(clusters(), ASKING)
def test_without_load_risk_balancing_is_node_resources_fit(of: Cluster, asking: PodInfo) -> None:
    """Its scores equal those of LeastAllocated, so that the order is that of kube-scheduler with either or both."""
    found = ranked(of.table(None), of, asking, "LoadVariationRiskBalancing")
    assert [reference.least_allocated(each, asking) for each in of.states()] == found.tolist()


@given(clusters(), CONTAINERS, st.sampled_from(["1m", "2"]))
def test_without_load_over_commitment_scores_by_limits(of: Cluster, containers: Any, limit: str) -> None:
    """Limits come from the Kubernetes API, as requests do, so an outage of metrics does not affect them. (For a pod
    without requests all nodes score 0.)"""
    asking = pod_info(pod("asking", containers=[*containers, {"limits": {"cpu": limit}}]))
    found = ranked(of.table(None), of, asking, "LowRiskOverCommitment")
    risks = [max(reference.limit_risk(each, asking, r) / 2 for r in ("cpu", "memory")) for each in of.states()]
    assert [reference.half_away(100.0 * (1.0 - risk)) for risk in risks] == found.tolist()


@given(clusters(), ASKING, st.sampled_from(["Peaks", "LoadAwareScheduling"]))
def test_without_load_the_other_plug_ins_score_all_nodes_equally(of: Cluster, asking: PodInfo, name: str) -> None:
    found = ranked(of.table(None), of, asking, name)
    assert {0.0} == set(found.tolist())


# --- load of few nodes, and load that is too old ---------------------------------------------------------------------


PROFILES = st.lists(
    st.tuples(st.sampled_from(SCORING), st.integers(1, 9)), min_size=1, max_size=3, unique_by=lambda x: x[0]
)


@given(clusters(least=3), ASKING, PROFILES, st.data())
def test_load_of_few_nodes_counts_as_no_load(
    of: Cluster, asking: PodInfo, plugins: list[tuple[str, int]], data: st.DataObject
) -> None:
    """Otherwise those few would get all pods."""
    names, weights = zip(*plugins, strict=True)
    few = data.draw(st.lists(st.sampled_from(of.names), max_size=(len(of.names) - 1) // 2, unique=True))
    found = ranked(of.table({name: of.loads[name] for name in few}), of, asking, *names, weights=weights)
    blind = ranked(of.table(None), of, asking, *names, weights=weights)
    assert blind.tolist() == found.tolist()


@given(clusters(least=3), ASKING, PROFILES, st.data())
def test_load_of_few_requested_nodes_counts_as_no_load(
    of: Cluster, asking: PodInfo, plugins: list[tuple[str, int]], data: st.DataObject
) -> None:
    """However many other nodes have load: a pod may be bound to a zone whose exporter does not work."""
    names, weights = zip(*plugins, strict=True)
    asked = data.draw(st.lists(st.sampled_from(of.names), min_size=2, unique=True))
    few = set(data.draw(st.lists(st.sampled_from(asked), max_size=(len(asked) - 1) // 2, unique=True)))
    loads = {name: each for name, each in of.loads.items() if name in few or name not in asked}
    found = ranked(of.table(loads), of, asking, *names, weights=weights, asked=asked)
    blind = ranked(of.table(None), of, asking, *names, weights=weights, asked=asked)
    assert blind.tolist() == found.tolist()


@given(clusters(), ASKING, PROFILES, st.integers(0, 600))
def test_load_that_is_too_old_counts_as_no_load(
    of: Cluster, asking: PodInfo, plugins: list[tuple[str, int]], age: int
) -> None:
    """By the age of each node's own newest sample."""
    names, weights = zip(*plugins, strict=True)
    cluster = of.table(of.loads)
    made = profile(cluster, of, *names, weights=weights)
    fresh = made.rank(asking, rows(cluster), now=NOW).values
    cluster.expire_load(before=NOW - 300 + age)
    found = made.rank(asking, rows(cluster), now=NOW).values
    expected = fresh if age <= 300 else ranked(of.table(None), of, asking, *names, weights=weights)
    assert expected.tolist() == found.tolist()


@given(clusters(least=3), ASKING, PROFILES, st.data())
def test_load_of_few_nodes_decides_if_only_they_are_requested(
    of: Cluster, asking: PodInfo, plugins: list[tuple[str, int]], data: st.DataObject
) -> None:
    """A cluster may have many nodes that are not measured and that do not fit the pod."""
    names, weights = zip(*plugins, strict=True)
    asked = data.draw(st.lists(st.sampled_from(of.names), min_size=1, unique=True))
    loads = {name: of.loads[name] for name in asked}
    found = ranked(of.table(loads), of, asking, *names, weights=weights, asked=asked)
    measured = ranked(of.table(of.loads), of, asking, *names, weights=weights, asked=asked)
    assert measured.tolist() == found.tolist()


def test_over_http_load_of_few_nodes_changes_nothing() -> None:
    """kube-scheduler receives equal scores, and explain gives the reason."""
    nodes = [node(name, {"cpu": "4", "memory": "8Gi"}) for name in "abc"]
    pods = [pod("p", node="a", containers=[{"requests": {"cpu": "3", "memory": "2Gi"}}], scheduled=NOW - 900)]
    wanted = {"metadata": {"name": "web", "uid": "web"}, "spec": {"containers": [{"name": "c"}]}}
    body = json.dumps({"Pod": wanted, "NodeNames": ["a", "b", "c"]}).encode()
    for loads in (None, load({"a": {("CPU", "AVG"): 1.0, ("Memory", "AVG"): 1.0}})):
        cluster = table(nodes, pods, loads)
        plugins = (PluginSettings("LoadVariationRiskBalancing", 1, {}, ("score",)),)
        settings = ProfileSettings("p", plugins, precise_scores=True, reserve="off")
        extender = Extender(cluster, {"p": ProfileRunner(settings, cluster)}, now=lambda: NOW)
        with Live(routes=extender.routes()) as live:
            answer = live.ask("/scheduler/p/prioritize", method="POST", body=body).json()
            reported = live.ask("/scheduler/p/explain", method="POST", body=body).json()["nodes"][0]["plugins"][0]
        assert {"a": 47, "b": 97, "c": 97} == {each["Host"]: each["Score"] for each in answer}
        assert {"fallback": "allocation"} == reported["inputs"]
        assert "most nodes have no metrics: spread by requests, as NodeResourcesFit does: 97" == reported["reason"]


# --- load of most nodes ----------------------------------------------------------------------------------------------

BY_LOAD = [name for name in SCORING if name != "NodeResourceLimits"]


@given(clusters(), ASKING, st.sampled_from(BY_LOAD), st.data())
def test_a_node_without_load_is_not_above_a_node_with_load(
    of: Cluster, asking: PodInfo, name: str, data: st.DataObject
) -> None:
    """While most nodes have load."""
    silent = set(data.draw(st.lists(st.sampled_from(of.names), max_size=len(of.names) // 2, unique=True)))
    loads = {each: values for each, values in of.loads.items() if each not in silent}
    found = ranked(of.table(loads), of, asking, name)
    assert all(found[i] == 0.0 for i, each in enumerate(of.names) if each in silent)


@given(clusters(), ASKING, st.sampled_from(["LoadVariationRiskBalancing", "LowRiskOverCommitment"]), st.data())
def test_an_unknown_memory_load_is_not_an_advantage(
    of: Cluster, asking: PodInfo, name: str, data: st.DataObject
) -> None:
    """A node without memory load is not above an equal node with memory load; the original uses its CPU load alone."""
    silent = data.draw(st.sampled_from(of.names))
    other = data.draw(st.sampled_from([each for each in of.names if each != silent]))
    alike = {key: value for key, value in of.loads[other].items() if key[0] == "CPU"}
    of = replace(
        of,
        has={**of.has, silent: of.has[other]},
        pods=tuple(one for one in of.pods if one.spec.node_name not in (silent, other)),
        loads={**of.loads, silent: alike},
    )
    found = dict(zip(of.names, ranked(of.table(of.loads), of, asking, name).tolist(), strict=True))
    assert found[silent] <= found[other]


# --- filters ---------------------------------------------------------------------------------------------------------


@given(clusters(), ASKING, st.booleans())
def test_without_load_no_filter_rejects_a_node(of: Cluster, asking: PodInfo, expired: bool) -> None:
    """Unless `failOpen` is off; otherwise the pod would have no node."""
    cluster = of.table(of.loads if expired else None)
    made = profile(cluster, of, "HighLoadFilter", "LoadAwareScheduling")
    cluster.expire_load(before=NOW + 1)
    assert {} == made.filter(asking, rows(cluster), now=NOW).failures(of.names)


# --- formulas of kube-scheduler --------------------------------------------------------------------------------------


@given(clusters(), ASKING)
def test_the_scores_of_the_default_scheduler_equal_its_formulas(of: Cluster, asking: PodInfo) -> None:
    cluster, states = of.table(None), of.states()
    at = rows(cluster)
    for arrays, plainly, counted in (
        (default_scheduler.least_allocated, reference.least_allocated, True),
        (default_scheduler.most_allocated, reference.most_allocated, True),
        (default_scheduler.balanced_allocation, reference.balanced_allocation, False),
    ):
        wanted = default_scheduler.requested_and_allocatable(asking, cluster, at, counted=counted)
        assert [plainly(each, asking) for each in states] == arrays(*wanted).tolist()


@pytest.mark.parametrize(
    ("containers", "more", "expected"),
    [
        ([], {}, (0, 0)),
        ([{}], {}, (100, 200 << 20)),
        ([{}, {"requests": {"cpu": "1"}}], {}, (1100, 400 << 20)),
        ([{"requests": {"cpu": "0", "memory": "0"}}], {}, (0, 0)),
        ([{"requests": {"cpu": "50m"}}], {"initContainers": [{"requests": {"cpu": "2"}}]}, (2000, 200 << 20)),
        ([{"limits": {"cpu": "3"}}], {"overhead": {"cpu": "10m"}}, (110, 200 << 20)),
        ([{}], {"resources": {"requests": {"cpu": "3"}}}, (3000, 200 << 20)),
    ],
)
def test_a_container_without_requests_counts_with_defaults(
    containers: list[Any], more: dict[str, Any], expected: tuple[int, int]
) -> None:
    """100m and 200Mi; a request of zero counts as zero."""
    found = pod_info(pod(containers=containers, **more)).counted_requests
    assert expected == (found["cpu"], found["memory"])
