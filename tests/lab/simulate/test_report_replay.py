"""Simulated placements of recorded pods, compared with the default scheduler."""

import math
from dataclasses import replace

import pytest

from lab.report.collected import NodeSample
from lab.report.comparison import Interval, PolicyDay, interval, outcomes
from lab.report.data.pods import choose_nodes
from lab.report.replay import replay
from tests.lab.report.histories import daily, history, node_loads


def quiet(_done: int, _part: str) -> None:
    """Without progress output."""


@pytest.mark.parametrize(
    ("differences", "expected"),
    [
        ([1.0, 1.0, 1.0], (1.0, 1.0, 1.0)),
        ([0.0, 2.0], (1.0, 1.0 - 12.706, 1.0 + 12.706)),
        ([3.0], (3.0, math.nan, math.nan)),
    ],
)
def test_the_interval_of_paired_differences(differences, expected):
    found = interval(differences)
    assert (found.mean, found.low, found.high) == pytest.approx(expected, nan_ok=True)


def test_policies_are_compared_day_by_day():
    days = [
        [PolicyDay("a", 4.0, 2.0, 0), PolicyDay("b", 1.0, 2.0, 0)],
        [PolicyDay("a", 8.0, 2.0, 1), PolicyDay("b", 5.0, 3.0, 0)],
    ]
    first, second = outcomes(days)
    assert (first.overload, first.unschedulable, first.overload_difference) == (6.0, 0.5, None)
    assert second.overload_difference == Interval(-3.0, -3.0, -3.0)
    assert second.nodes_difference is not None
    assert second.nodes_difference.mean == 0.5


def test_the_hottest_nodes_and_a_sample_of_the_others_are_simulated():
    cpu = daily(1, nodes=12)
    loads = replace(node_loads(cpu), nodes=tuple(f"n{i:02d}" for i in range(12)))
    sample = choose_nodes(loads, loads.nodes, most=6)
    assert (len(sample.nodes), sample.hottest, sample.total) == (6, ("n00",), 12)
    assert sample.weight == 11 / 5
    assert choose_nodes(loads, loads.nodes, most=12) == NodeSample(loads.nodes, (), 12)
    assert sample == choose_nodes(loads, loads.nodes[::-1], most=6)


def test_one_day_of_pods_is_not_enough():
    found = replay(history(1), progress=quiet)
    assert isinstance(found, str)
    assert "less than two days" in found


@pytest.mark.slow
def test_the_recorded_pods_are_replayed():
    """The load of node-0 does not come from its pods, so it stays there with each policy: 2 hours a day."""
    found = replay(history(4), progress=quiet)
    assert not isinstance(found, str)
    assert (found.replays, found.over, found.nodes, found.pods) == (3, "days", 2, 2)
    assert found.recorded_overload == pytest.approx(2.0, abs=0.3)
    names = [each.policy for each in found.policies]
    assert names == ["DefaultScheduler", "TargetLoadPacking", "LoadVariationRiskBalancing", "LoadAwareScheduling"]
    assert found.policies[0].overload == pytest.approx(2.0, abs=0.5)
    assert found.policies[0].nodes_used == 2.0
