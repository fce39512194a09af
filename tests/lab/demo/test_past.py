"""The windows from before the demo: the same numbers that a service would have computed from the simulated load."""

from __future__ import annotations

import numpy as np
import pytest

from lab.demo.past import past_maxima, past_windows
from lab.fleet.cluster import SimulatedCluster
from lab.fleet.load import node_load
from watcher.core.forecast.fleet import FleetForecast
from watcher.core.forecast.settings import ForecastSettings
from watcher.model import Operator, Window

BEGUN = 1_795_000_020.0
WINDOWS = (Window("5m", 300), Window("15m", 900))


def test_a_window_is_mean_and_deviation_of_its_minutes() -> None:
    cluster = SimulatedCluster(6, seed=1, speed=24.0, begun=BEGUN)
    newest = next(past_windows(cluster, windows=WINDOWS, kept=("CPU",)))
    record = next(each for each in newest if each.window.label == "5m" and each.time == newest[0].time)
    fleet = cluster.fleet
    minutes = [
        100.0 * node_load(fleet, cluster.running, np.full(6, record.time - 60.0 * back)).cores / fleet.cores
        for back in range(5)
    ]
    assert [operator for _, operator in record.columns] == [Operator.AVG, Operator.STD]
    rows = [record.nodes.index(name) for name in fleet.names]
    assert record.values[0, rows] == pytest.approx(np.mean(minutes, axis=0), rel=1e-5)
    assert record.values[1, rows] == pytest.approx(np.std(minutes, axis=0), rel=1e-4, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "minutes"), [(6, 1440), (501, 60 + 23 * 6)])
def test_the_day_is_complete_and_a_large_cluster_has_fewer_minutes(nodes: int, minutes: int) -> None:
    """The newest hour comes first, with every minute, so that its chart does not wait for the rest of the day."""
    cluster = SimulatedCluster(nodes, seed=1, speed=24.0, begun=BEGUN)
    hours = list(past_windows(cluster, windows=WINDOWS, kept=("CPU", "Memory")))
    times = [each.time for hour in hours for each in hour if each.window.label == "15m"]
    assert times == sorted(times, reverse=True)
    assert len(set(times)) == len(times) == minutes
    assert BEGUN - 60 < times[0] <= BEGUN
    assert times[0] - times[-1] >= 86_400 - 600
    assert len({each.time for each in hours[0]}) == 60


def test_windows_and_maxima_that_are_not_kept_are_not_computed() -> None:
    cluster = SimulatedCluster(6, seed=1, speed=24.0, begun=BEGUN)
    assert [] == list(past_windows(cluster, windows=WINDOWS, kept=("Storage",)))


@pytest.mark.slow
def test_the_first_forecasts_hold_about_as_often_as_stated() -> None:
    """From the history before the demo. docs/learn/demo.md has the coverage; over 24 hours it is lower."""
    cluster, config = SimulatedCluster(12, seed=1, speed=24.0, begun=BEGUN), ForecastSettings(horizons=(1, 6, 24))
    forecast, until = FleetForecast(config), BEGUN // 300 * 300
    for key in ("CPU", "Memory"):
        batch = past_maxima(cluster, key, until - config.history, until)
        forecast.maxima.add(batch.metric.name, batch.nodes, batch.series, batch.time, batch.value)
    for chunk in forecast.due_chunks(BEGUN):
        forecast.advance(chunk, BEGUN)
    for (metric, horizon), bounds in forecast.table(BEGUN).columns.items():
        assert (bounds.judged > 48).all()
        assert bounds.coverage.mean() > config.level - (0.2 if horizon == 24 else 0.02), (metric, horizon)
