"""The load of the fleet over time, from grids of stored minutes."""

import math
from dataclasses import dataclass

import numpy as np
import pytest

from watcher.arrays import F32, I64
from watcher.core.koordinator.report import Capacity
from watcher.core.windows.fleet_trend import HOUR_S, CapacityWeights, FleetTrend, TrendDocument
from watcher.model import METRIC_BY_KEY, Operator

CPU, MEMORY = (METRIC_BY_KEY[key].name for key in ("CPU", "Memory"))
START = 1_700_000_000 // HOUR_S * HOUR_S
EQUAL = CapacityWeights({})
NAN = math.nan


@dataclass
class Grid:
    times: I64
    columns: tuple[tuple[str, Operator], ...]
    names: tuple[str, ...]
    values: F32


def grid(*rows: tuple[int, list[float], list[float]], names: tuple[str, ...] = ("a", "b")) -> Grid:
    """Minutes as (seconds after START, CPU by node, memory by node)."""
    return Grid(
        np.array([START + after for after, _, _ in rows]),
        ((CPU, Operator.STD), (MEMORY, Operator.AVG), (CPU, Operator.AVG)),
        names,
        np.array([[[77.0] * len(names), memory, cpu] for _, cpu, memory in rows], dtype=np.float32),
    )


def document(trend: FleetTrend, *, end: int = HOUR_S) -> TrendDocument:
    return trend.document(start=START, end=START + end, weighted=False, reason="none yet")


def test_nodes_count_by_their_capacity_for_each_resource():
    sizes = CapacityWeights({"a": Capacity(1000, 3), "b": Capacity(3000, 1)})
    trend = FleetTrend("5m", seconds=300)
    trend.add([grid((60, [10.0, 50.0], [20.0, 60.0]))], sizes)
    found = document(trend)
    assert (found.time, found.nodes, found.cpu, found.memory) == ([START + 60], [2], [40.0], [30.0])
    assert (found.reason, document(FleetTrend("5m", seconds=300)).reason) == ("", "none yet")


def test_a_node_without_a_value_does_not_count():
    trend = FleetTrend("5m", seconds=300)
    trend.add([grid((60, [10.0, NAN], [NAN, NAN]), (360, [NAN, NAN], [NAN, NAN]))], EQUAL)
    found = document(trend)
    assert (found.time, found.nodes, found.cpu, found.memory) == ([START + 60], [1], [10.0], [None])


def test_grids_of_equal_times_are_parts_of_one_fleet():
    trend = FleetTrend("5m", seconds=300)
    parts = [grid((60, [10.0, 20.0], [1.0, 2.0])), grid((60, [60.0], [6.0]), names=("c",))]
    trend.add([*parts, grid((360, [50.0, 70.0], [5.0, 7.0]))], EQUAL)
    found = document(trend)
    assert (found.nodes, found.cpu, found.memory) == ([3, 2], [30.0, 60.0], [3.0, 6.0])


def test_the_last_mean_of_a_step_counts():
    trend = FleetTrend("5m", seconds=300)
    trend.add([grid((240, [10.0, 10.0], [1.0, 1.0]))], EQUAL)
    version = trend.version
    trend.add([grid((60, [99.0, 99.0], [9.0, 9.0]))], EQUAL)
    assert (version, [10.0]) == (trend.version, document(trend).cpu)
    trend.add([grid((299, [20.0, 20.0], [2.0, 2.0]))], EQUAL)
    assert trend.version > version
    assert ([START + 299], [20.0]) == (document(trend).time, document(trend).cpu)


def test_a_copy_changes_independently():
    trend = FleetTrend("5m", seconds=300)
    copy = trend.copy()
    copy.add([grid((60, [10.0, 10.0], [1.0, 1.0]))], EQUAL)
    assert ([], [10.0]) == (document(trend).cpu, document(copy).cpu)


@pytest.mark.parametrize(("seconds", "step"), [(60, 300), (300, 300), (900, 900)])
def test_a_step_has_at_least_five_minutes(seconds: int, step: int):
    assert step == document(FleetTrend("w", seconds=seconds)).step


def test_hours_without_all_means_are_lacking_until_they_were_added():
    trend = FleetTrend("15m", seconds=900)
    hours = [START, START + HOUR_S]
    end = START + 2 * HOUR_S

    def lacking(start: int = START) -> list[int]:
        return trend.lacking_hours("w", hours, start=start, end=end)

    assert hours == lacking()
    trend.add([grid(*((900 * step, [1.0, 1.0], [1.0, 1.0]) for step in (1, 2, 3)))], EQUAL)
    assert hours == lacking()  # without the first step
    assert hours[1:] == lacking(START + 900)
    trend.add_hour("w", START + HOUR_S, (), EQUAL)
    assert ([START], hours) == (lacking(), trend.lacking_hours("other", hours, start=START, end=end))
    trend.forget(before=end)
    assert hours == lacking()


def test_lacking_minutes_are_the_last_of_each_step_without_a_mean():
    trend = FleetTrend("5m", seconds=300)
    times = [START + after for after in (60, 240, 120, 300)]
    assert [START + 240, START + 300] == trend.lacking_minutes(times, again=False)
    trend.add([grid((240, [1.0, 1.0], [1.0, 1.0]), (300, [1.0, 1.0], [1.0, 1.0]))], EQUAL)
    assert [] == trend.lacking_minutes(times, again=True)
    later = [*times, START + 299]
    assert ([], [START + 299]) == (trend.lacking_minutes(later, again=False), trend.lacking_minutes(later, again=True))


def test_steps_that_end_before_a_time_are_removed():
    trend = FleetTrend("5m", seconds=300)
    trend.add([grid((60, [1.0, 1.0], [1.0, 1.0]), (360, [2.0, 2.0], [1.0, 1.0]))], EQUAL)
    trend.forget(before=START + 299)
    assert [1.0, 2.0] == document(trend).cpu
    trend.forget(before=START + 300)
    assert [2.0] == document(trend).cpu
    assert [] == document(trend, end=359).cpu
