"""The stored history over all watchers of a cluster: the series of a node, and the load of the fleet over time."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

from watcher.core.windows.fleet_trend import CapacityWeights, FleetTrend
from watcher.core.windows.stored_series import StoredSeries
from watcher.model import Operator
from watcher.store import schema
from watcher.store.history.rows import (
    averages_of_hour,
    grids_of_minutes,
    hours_of_node,
    hours_of_window,
    minutes_of_node,
    minutes_of_window,
)
from watcher.store.history.series import series_of, series_over
from watcher.store.tables import Rows


def node_series(
    mine: Rows, *, host: str, window: str, start: int, end: int, wanted: Callable[[tuple[str, Operator]], bool]
) -> list[StoredSeries]:
    """The series of a node with start <= time <= end (unix seconds) whose column (metric name, operator) is `wanted`.
    Values that this watcher lacks are those of other watchers of the cluster."""
    found = (
        series_of(
            window,
            hours=hours_of_node(rows, host=host, window=window, start=start, end=end),
            minutes=minutes_of_node(rows, host=host, window=window, start=start, end=end),
            start=start,
            end=end,
            wanted=wanted,
        )
        for rows in schema.of_cluster(mine)
    )
    return reduce(series_over, found)


def extend_trend(mine: Rows, *, trend: FleetTrend, weights: CapacityWeights, start: int, end: int) -> FleetTrend:
    """A copy of the trend with the stored windows with start <= time <= end (unix seconds) that it lacks; from other
    watchers of the cluster only where this one has none."""
    window, grown = trend.window, trend.copy()  # a read that timed out still runs
    for rows in reversed(schema.of_cluster(mine)):
        times = minutes_of_window(rows, window=window, start=start, end=end)
        lacking = grown.lacking_minutes(times, again=rows.watcher == mine.watcher)
        grown.add(grids_of_minutes(rows, window=window, times=lacking), weights)
        hours = hours_of_window(rows, window=window, start=start, end=end)
        for hour in grown.lacking_hours(rows.watcher, hours, start=start, end=end):
            grown.add_hour(rows.watcher, hour, averages_of_hour(rows, window=window, hour=hour), weights)
    return grown
