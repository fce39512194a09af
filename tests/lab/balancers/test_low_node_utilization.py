"""Descheduler's LowNodeUtilization on a metric, and the score of OpenShift."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from lab.balancers.low_node_utilization import EvictionLimits, UtilizationThresholds, pods_to_evict
from lab.balancers.openshift import distances, soft_taints
from lab.balancers.view import ObservedPod

FIXED = UtilizationThresholds(20.0, 50.0)


def pod(name: str, *, owner: str = "ReplicaSet/r", priority: int = 0, qos: str = "Burstable") -> ObservedPod:
    return ObservedPod(name, "shop", name, owner, priority, qos)


PODS = (
    pod("agent", owner="DaemonSet/d", qos="BestEffort"),
    pod("bare", owner="", qos="BestEffort"),
    pod("critical", priority=2_000_000_000, qos="BestEffort"),
    pod("guaranteed", qos="Guaranteed"),
    pod("burstable"),
    pod("effort", qos="BestEffort"),
    pod("low", priority=-1, qos="Guaranteed"),
)


def evicted(
    values: Sequence[float],
    thresholds: UtilizationThresholds = FIXED,
    *,
    limits: EvictionLimits | None = None,
    taints: Sequence[int] = (),
) -> list[str]:
    """NODE/POD of each eviction."""
    return pods_to_evict(
        np.array(values),
        thresholds,
        lambda node: [ObservedPod(f"{node}/{each.name}", *_rest(each)) for each in PODS],
        limits=limits or EvictionLimits(),
        taints=np.array(taints or [0] * len(values), dtype=np.int64),
    )


def _rest(each: ObservedPod) -> tuple[str, str, str, int, str]:
    return each.namespace, each.name, each.owner, each.priority, each.qos


def test_one_pod_of_each_overutilized_node_is_evicted_the_highest_first():
    assert ["2/low", "1/low"] == evicted([0.2, 0.6, 0.7, 0.4])


def test_limits_allow_more_pods_of_a_node_by_priority_and_qos():
    assert ["1/low", "1/effort", "1/burstable"] == evicted([0.2, 0.6], limits=EvictionLimits(node=3))
    found = evicted([0.2, 0.6, 0.7], limits=EvictionLimits(node=9, total=6))
    assert ["2/low", "2/effort", "2/burstable", "2/guaranteed", "1/low", "1/effort"] == found


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([0.219, 0.6], "no node is underutilized"),
        ([0.2, 0.509], "no node is overutilized: the fraction of a percent does not count"),
        ([0.1, 0.2], "all are underutilized"),
        ([0.2, np.nan, 0.9], "one has no value"),
        ([], "there is no node"),
    ],
)
def test_without_both_kinds_of_nodes_nothing_is_evicted(values: list[float], why: str):
    assert [] == evicted(values), why


def test_thresholds_can_be_deviations_from_the_mean():
    """Of 40: 30 and 50."""
    deviation = UtilizationThresholds(10.0, 10.0, deviation=True)
    assert ["2/low"] == evicted([0.3, 0.39, 0.51], deviation)
    assert [] == evicted([0.31, 0.39, 0.5], deviation)


def test_pods_without_tolerations_are_not_evicted_for_tainted_nodes():
    assert [] == evicted([0.2, 0.6], taints=[1, 0])
    assert ["2/low"] == evicted([0.2, 0.2, 0.6], taints=[1, 0, 0])


def test_openshifts_score_is_the_distance_above_the_mean_times_three():
    """CPU 0.1 and memory 0.05 above: 3 * sqrt(0.1² + 0.05²)."""
    used = np.stack([np.array([[0.5, 0.3], [0.4, 0.3]])] * 5)
    assert [pytest.approx(0.33541), 0.0] == distances(used, np.zeros_like(used)).tolist()


def test_openshifts_score_leaves_out_a_short_peak_of_one_dimension():
    """The 0.66 quantile of five minutes is between the third and the fourth."""
    used = np.full((5, 2, 2), 0.3)
    used[2, 0, 0] = 1.0
    assert [0.0, 0.0] == distances(used, np.zeros_like(used)).tolist()


def test_pressure_of_cpu_counts_only_on_busy_nodes():
    used = np.stack([np.array([[0.6, 0.6], [0.3, 0.3]])] * 5)
    stalled = np.zeros_like(used)
    stalled[:, 0, 0] = 0.4
    assert [0.0, 0.0] == distances(used, stalled).tolist()
    assert [pytest.approx(0.6), 0.0] == distances(used + np.array([[0.2], [0.0]]), stalled).tolist()


def test_a_node_without_samples_has_no_score():
    used = np.full((5, 2, 2), 0.3)
    used[:, :, 1] = np.nan
    assert [0.0, pytest.approx(np.nan, nan_ok=True)] == distances(used, np.zeros_like(used)).tolist()


def test_the_soft_tainter_marks_nodes_above_the_mean_once_and_overutilized_ones_twice():
    assert [0, 0, 1, 2] == soft_taints(np.array([0.0, 0.1, 0.25, 0.5])).tolist()
    assert [0, 0] == soft_taints(np.array([0.2, 0.2])).tolist()
