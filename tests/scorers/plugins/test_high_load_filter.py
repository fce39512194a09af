"""HighLoadFilter: golden cases."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.cluster.pods import PodInfo
from scorers.plugin_api.framework import create_plugin
from scorers.plugins.high_load_filter import HighLoadFilter
from tests.scorers import reference
from tests.scorers.extender.test_never_worse import ASKING, Cluster, clusters
from tests.scorers.simulated_cluster import NOW, info, load, node, rows, table
from tests.scorers.vectors import cases

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


def test_a_node_without_capacity_is_rejected_for_a_pod_with_requests():
    """The percentage is infinite, not NaN."""
    cluster = table([node("n", {})], loads=load({"n": {("CPU", "AVG"): 1.0, ("Memory", "AVG"): 1.0}}))
    plugin, _ = create_plugin(HighLoadFilter, {}, cluster)
    assert plugin.filter(info(), cluster, rows(cluster), now=NOW).passed.tolist() == [True]
    asking = info(containers=[{"requests": {"memory": "1"}}])
    verdicts = plugin.filter(asking, cluster, rows(cluster), now=NOW)
    assert verdicts.reasons[verdicts.codes[0]] == "node(s) had memory load above the threshold with the pod"
    assert verdicts.details(0) == "no memory is allocatable"


# --- against the reference, node by node ------------------------------------------------------------------------------


@pytest.mark.slow
@given(
    clusters(least=1),
    ASKING,
    st.dictionaries(st.sampled_from(["cpu", "memory"]), st.integers(0, 100).map(float)),
    st.booleans(),
    st.integers(0, 400),
    st.sets(st.tuples(st.integers(0, 6), st.sampled_from(["CPU", "Memory"]))),
)
def test_verdicts_equal_the_reference(
    of: Cluster,
    asking: PodInfo,
    thresholds: Mapping[str, float],
    fail_open: bool,
    age: int,
    unknown: set[tuple[int, str]],
) -> None:
    """Known resources are checked first; a load of 180 s is not stale yet."""
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
