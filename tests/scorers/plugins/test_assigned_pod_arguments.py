"""assignedPodSeconds and assignedPodDecay of TargetLoadPacking and LoadVariationRiskBalancing: a node of ten cores with
5 % load, and a pod of two cores that was assigned 120 s before the newest sample."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from scorers.cluster.table import ClusterTable
from scorers.plugin_api.arguments import ArgumentsError
from scorers.plugin_api.framework import create_plugin
from scorers.plugins.load_variation_risk_balancing import LoadVariationRiskBalancing
from scorers.plugins.target_load_packing import TargetLoadPacking
from tests.scorers.simulated_cluster import NOW, info, load, node, pod, rows, table

TWO_CORES = {"requests": {"cpu": "2"}, "limits": {"cpu": "2"}}
KEP = {"formula": "kep"}


def steps(plugin: Any, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """The steps of the score of a pod without requests."""
    cluster = table(
        [node("a", {"cpu": "10", "memory": "10Gi"})],
        [pod("new", node="a", containers=[TWO_CORES], scheduled=NOW - 120.0)],
        load({"a": {("CPU", "AVG"): 5.0, ("Memory", "AVG"): 5.0}}),
    )
    made, _ = create_plugin(plugin, args, cluster)
    return made.score(info(containers=[{"limits": {"cpu": "0"}}]), cluster, rows(cluster, "a"), now=NOW).steps


@pytest.mark.parametrize(
    ("args", "cores"),
    [
        ({}, 0.0),
        ({"assignedPodSeconds": 120}, 0.0),
        ({"assignedPodSeconds": 121}, 2.0),
        ({"assignedPodSeconds": 300, "assignedPodDecay": True}, 1.2),
    ],
)
def test_a_newly_assigned_pod_is_added_to_the_measured_load(args: dict[str, Any], cores: float) -> None:
    packing = steps(TargetLoadPacking, args)
    assert [1000 * cores] == packing["cpu of recent pods"].tolist()
    assert [5.0 + 10 * cores] == packing["cpu predicted %"].tolist()
    risk = steps(LoadVariationRiskBalancing, args | KEP)
    assert [pytest.approx(0.05 + cores / 10)] == risk["cpu mean"].tolist()


@pytest.mark.parametrize(
    ("plugin", "args", "problem"),
    [
        (TargetLoadPacking, {"assignedPodSeconds": 3601}, "assignedPodSeconds"),
        (TargetLoadPacking, {"assignedPodDecay": True, "assignedPodSeconds": 0}, "assignedPodDecay: needs assigned"),
        (LoadVariationRiskBalancing, {"assignedPodSeconds": 300}, "the formula upstream does not add newly assigned"),
        (LoadVariationRiskBalancing, {"assignedPodDecay": True}, 'set formula to "kep", or remove'),
        (LoadVariationRiskBalancing, KEP | {"assignedPodDecay": True, "assignedPodSeconds": 0}, "assignedPodDecay"),
    ],
)
def test_values_without_effect_are_refused(plugin: Any, args: dict[str, Any], problem: str) -> None:
    with pytest.raises(ArgumentsError) as caught:
        create_plugin(plugin, args, ClusterTable())
    assert problem in str(caught.value)
