"""The windows that decisions use equal those of the watcher."""

import numpy as np
import pytest

from lab.simulate.windows import SimulatedWindows
from watcher.client import Columns
from watcher.model import MetricType, Operator

BEGUN = 1_700_000_040.0
BOTH = np.array([0, 1])


def after(minutes: int, *, measures: bool = False) -> tuple[Columns, float]:
    """Node a with 1, 2, 3, … percent, node b with 50, minute by minute."""
    windows = SimulatedWindows(("a", "b"), measures=measures)
    for minute in range(1, minutes + 1):
        windows.sample(BEGUN + 60.0 * minute, BOTH, np.array([minute, 50.0]), np.array([10.0, 20.0]))
    now = BEGUN + 60.0 * minutes
    found = windows.columns(now)
    assert found is not None
    return found, now


def value(columns: Columns, operator: Operator, node: int = 0) -> float:
    return round(float(columns.of_type(MetricType.CPU, operator)[node]), 9)


def test_the_mean_and_the_deviation_over_15_minutes():
    columns, now = after(20)
    last = np.arange(6.0, 21.0)
    assert (13.0, round(float(last.std()), 9), 20.0) == tuple(
        value(columns, each) for each in (Operator.AVG, Operator.STD, Operator.LATEST)
    )
    assert {900.0} == {float(each) for each in columns.rollup["instance:node_cpu:ratio", Operator.AVG]}
    assert now == columns.sampled["instance:node_cpu:ratio"][0]


def test_at_the_beginning_shorter_windows_are_used():
    """Half of the samples is sufficient."""
    rollups = []
    for minutes in (1, 3, 5, 8):
        columns, _ = after(minutes)
        rollup = columns.rollup.get(("instance:node_cpu:ratio", Operator.AVG))
        rollups.append(None if rollup is None else float(rollup[0]))
    assert [None, 300.0, 600.0, 900.0] == rollups
    assert 1.0 == value(after(1)[0], Operator.LATEST)


def test_a_node_without_samples_for_five_minutes_has_no_load():
    windows = SimulatedWindows(("a", "b"), measures=False)
    windows.sample(BEGUN, BOTH, np.array([1.0, 2.0]), np.array([1.0, 2.0]))
    for minute in range(1, 7):
        windows.sample(BEGUN + 60.0 * minute, np.array([1]), np.array([2.0]), np.array([2.0]))
    columns = windows.columns(BEGUN + 360.0)
    assert columns is not None
    assert ("b",) == columns.nodes


@pytest.mark.slow
def test_the_bound_of_a_forecast_after_a_day_is_the_highest_load():
    """Half a percent is the resolution of a stored maximum."""
    windows = SimulatedWindows(("a", "b"), measures=False, horizon="1h")
    bounds = []
    for minute in range(27 * 60 + 1):
        cpu = np.array([70.0 if minute % 60 == 30 else 20.0, 50.0])
        windows.sample(BEGUN + 60.0 * minute, BOTH, cpu, np.array([10.0, 10.0]))
        if minute % 180 == 0:
            columns = windows.columns(BEGUN + 60.0 * minute)
            assert columns is not None
            assert columns.forecasts is not None
            bounds.append(columns.forecasts.bounds["CPU"].tolist())
    assert all(np.isnan(each).all() for each in bounds[:8])
    np.testing.assert_allclose(bounds[-1], [70.0, 50.0], atol=0.5)


def test_before_the_first_sample_there_is_no_load():
    assert SimulatedWindows(("a",), measures=False).columns(BEGUN) is None


def test_usages_by_koordlets_rules_are_computed_on_request():
    columns, _ = after(20, measures=True)
    assert columns.usages is not None
    assert 18.0 == columns.usages.usage["CPU"][0]  # the mean of the last five
    assert after(20)[0].usages is None
