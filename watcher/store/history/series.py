"""Builds the stored series of one node from hours, minutes and the rows of several watchers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from watcher.core.windows.stored_series import StoredSeries
from watcher.model import Operator
from watcher.store.codec import Grid, HourBuilder


def series_of(
    window: str,
    *,
    hours: list[Grid],
    minutes: list[Grid],
    start: int,
    end: int,
    wanted: Callable[[tuple[str, Operator]], bool],
) -> list[StoredSeries]:
    """Grids of one node as series with start <= time <= end (unix seconds); a minute overrides the same time in an
    hour."""
    if not hours and not minutes:
        return []
    builder = HourBuilder(
        times=[int(time_) for grid in (*hours, *minutes) for time_ in grid.times],
        columns=[grid.columns for grid in (*hours, *minutes)],
        names=[grid.names for grid in (*hours, *minutes)],
    )
    for grid in hours:
        builder.add(grid)
    for grid in minutes:
        builder.replace(grid)
    if not builder.names:
        return []
    inside = (builder.times >= start) & (builder.times <= end)
    series = [
        StoredSeries(*column, window, builder.times[inside], builder.values[inside, row, 0])
        for row, column in enumerate(builder.columns)
        if wanted(column)
    ]
    return [one for one in series if not np.isnan(one.value).all()]


def series_over(beneath: list[StoredSeries], above: list[StoredSeries]) -> list[StoredSeries]:
    """Merge the series of two watchers; known values of `above` take precedence."""
    lower = {(series.metric, series.operator): series for series in beneath}
    merged = [_filled(series, lower.pop((series.metric, series.operator), None)) for series in above]
    return [*merged, *lower.values()]


def _filled(above: StoredSeries, beneath: StoredSeries | None) -> StoredSeries:
    if beneath is None:
        return above
    time = np.union1d(beneath.time, above.time)
    value = np.full(len(time), np.nan, dtype=np.float32)
    value[np.searchsorted(time, beneath.time)] = beneath.value
    known = ~np.isnan(above.value)
    value[np.searchsorted(time, above.time[known])] = above.value[known]
    return replace(above, time=time, value=value)
