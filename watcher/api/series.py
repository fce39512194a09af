"""Stored windows as series on the wire: the points of a step, without a NaN and without an exponent.

The store keeps single precision. 12.3 becomes 12.300000190734863 when it is widened, so values are written with the
digits that single precision has. Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import msgspec
import numpy as np

from watcher.api.service import StoredSeries
from watcher.model import F64, I64, METRIC_BY_NAME, HistoryDocument, HistoryRow, HistorySeries, Metric
from watcher.publish import number_texts, to_wire


def thinned(series: StoredSeries, step: int) -> tuple[I64, F64]:
    """The last known value of each step and its true time. Steps are aligned to multiples of `step` seconds, so the
    same points come back whenever one asks. Times in unix seconds, ascending; values as the wire carries them."""
    known = np.flatnonzero(~np.isnan(series.value))
    time = series.time[known]
    value = to_wire(series.value[known].astype(np.str_).astype(np.float64))  # the shortest text, read back
    last = np.flatnonzero(np.append(np.diff(time // step) != 0, True)) if len(time) else np.empty(0, dtype=np.int64)
    last = last[~np.isnan(value[last])]
    return time[last], value[last]


def history_body(stored: Sequence[StoredSeries], *, host: str, start: int, end: int, step: int, as_rows: bool) -> bytes:
    """The body of GET /api/v1/history. Metrics that this version does not know are left out."""
    known = [series for series in stored if series.metric in METRIC_BY_NAME]
    document = HistoryDocument(start=start, end=end, step=step)
    if as_rows:
        document.rows = [row for series in known for row in _rows(series, host, step)]
    else:
        document.series = [_series(series, host, step) for series in known]
    return msgspec.json.encode(document)


def _series(series: StoredSeries, host: str, step: int) -> HistorySeries:
    metric = METRIC_BY_NAME[series.metric]
    time, value = thinned(series, step)
    pairs = zip(time.tolist(), number_texts(value), strict=True)
    points = b"[" + b",".join([b"[%d,%b]" % pair for pair in pairs]) + b"]"
    return HistorySeries(
        host=host,
        name=metric.name,
        type=metric.type,
        operator=series.operator,
        window=series.window,
        unit=metric.unit,
        points=cast(list[tuple[int, float]], msgspec.Raw(points)),  # an encoder would write tiny values with exponents
    )


def _rows(series: StoredSeries, host: str, step: int) -> Iterator[HistoryRow]:
    metric: Metric = METRIC_BY_NAME[series.metric]
    time, value = thinned(series, step)
    for at, text in zip(time.tolist(), number_texts(value), strict=True):
        yield HistoryRow(
            time=at,
            host=host,
            name=metric.name,
            type=metric.type,
            operator=series.operator,
            window=series.window,
            value=cast(float, msgspec.Raw(text)),
        )
