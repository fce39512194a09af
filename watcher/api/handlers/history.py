"""Stored windows of a node, findings, and silent nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import cast

import msgspec
import numpy as np
from aiohttp import hdrs, web
from multidict import CIMultiDict

from watcher.api import operations
from watcher.api.data_errors import no_metrics_error, unknown_host_error
from watcher.api.handlers.base import Handlers
from watcher.arrays import F64, I64
from watcher.core.publishing.compression import Encoding
from watcher.core.publishing.documents import number_texts, to_wire
from watcher.core.publishing.wire import HistoryDocument, HistoryRow, HistorySeries
from watcher.core.windows.stored_series import StoredSeries
from watcher.model import METRIC_BY_NAME, METRICS, Metric
from watcher.platform.http.parameters import (
    check_range,
    operators_of,
    query_values,
    single_value,
    step_of,
    time_of,
    types_of,
    unknown_value,
    window_of,
)
from watcher.platform.http.responses import (
    SMALL_BODY,
    body_response,
    encoding_for,
    etag_matches,
    not_modified,
    plain_encoding_for,
    with_content_coding,
)
from watcher.platform.http.routing import JSON, ApiError
from watcher.store.errors import StoreError

DEFAULT_STEP_S = 60
HOUR_S = 3600
_HISTORY = operations.HISTORY.query_names


class HistoryHandlers(Handlers):
    """Handlers for stored windows, findings and silent nodes."""

    async def history(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """Stored windows of one node as series or rows."""
        service = self._service
        values = query_values(request.rel_url.raw_query_string, known=_HISTORY)
        shape = single_value(values, "shape") or "series"
        if shape not in ("series", "rows"):
            raise unknown_value("shape", shape, ["series", "rows"])
        host = single_value(values, "host")
        if not host:
            raise ApiError(400, "bad_request", "parameter 'host' is missing", "specify one node: ?host=NAME")
        types = types_of(values)
        now = service.now()
        end = time_of(values, "to", now=now, default=now)
        start = time_of(values, "from", now=now, default=end - HOUR_S)
        step = step_of(values, default=DEFAULT_STEP_S)
        check_range(start, end, step)
        try:
            stored = await service.store.history(
                host=host,
                metrics=None if types is None else [metric.name for metric in METRICS if metric.type in types],
                operators=operators_of(values),
                window=window_of(values, service.windows).label,
                start=start,
                end=end,
            )
        except StoreError as error:
            raise ApiError(503, "history_unavailable", str(error), error.hint) from error
        if not stored and not self._knows(host):
            raise unknown_host_error(host)
        write = partial(history_body, stored, host=host, start=start, end=end, step=step, as_rows=shape == "rows")
        return await self._body_builder.build_response(request, write)

    async def findings(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """Findings of the sample review, and the plan of provider queries."""
        query_values(request.rel_url.raw_query_string, known=())
        found = self._service.refresher.findings_document()
        return await self._body_builder.build_response(request, partial(msgspec.json.encode, found))

    async def silent(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """The silent nodes. Served even if /watcher returns an error."""
        query_values(request.rel_url.raw_query_string, known=())
        published = self._service.published
        if published is None:
            raise no_metrics_error(self._service)
        silent = published.silent
        small = len(silent.bodies[Encoding.IDENTITY]) <= SMALL_BODY
        encoding = plain_encoding_for(request) if small else encoding_for(request)
        etag = f'"{silent.tag}-{encoding}"'
        plain = {
            hdrs.CONTENT_TYPE: JSON,
            hdrs.VARY: hdrs.ACCEPT_ENCODING,
            hdrs.CACHE_CONTROL: f"{self._current.scope}no-cache",
            hdrs.ETAG: etag,
        }
        headers = with_content_coding(CIMultiDict(plain), encoding)
        if etag_matches(request, etag):
            return not_modified(headers)
        return body_response(silent.bodies[encoding], headers)

    def _knows(self, host: str) -> bool:
        published = self._service.published
        return published is not None and (
            host in published.row or host in published.snapshot.lost or host in published.silent.names
        )


def downsample(series: StoredSeries, step: int) -> tuple[I64, F64]:
    """The last known value of each step and the time of that value. Steps are aligned to multiples of `step` seconds,
    so repeated requests return the same points. Times [k] in unix seconds, ascending; values [k] as rounded for
    JSON."""
    known = np.flatnonzero(~np.isnan(series.value))
    time = series.time[known]
    value = to_wire(series.value[known].astype(np.str_).astype(np.float64))  # the shortest text, read back
    last = np.flatnonzero(np.append(np.diff(time // step) != 0, True)) if len(time) else np.empty(0, dtype=np.int64)
    last = last[~np.isnan(value[last])]
    return time[last], value[last]


def history_body(stored: Sequence[StoredSeries], *, host: str, start: int, end: int, step: int, as_rows: bool) -> bytes:
    """The body of GET /api/v1/history. `start` and `end` in unix seconds, `step` in seconds. Metrics that this version
    does not know are omitted."""
    known = [series for series in stored if series.metric in METRIC_BY_NAME]
    document = HistoryDocument(start=start, end=end, step=step)
    if as_rows:
        document.rows = [row for series in known for row in _rows(series, host, step)]
    else:
        document.series = [_series(series, host, step) for series in known]
    return msgspec.json.encode(document)


def _series(series: StoredSeries, host: str, step: int) -> HistorySeries:
    metric = METRIC_BY_NAME[series.metric]
    time, value = downsample(series, step)
    pairs = zip(time.tolist(), number_texts(value), strict=True)
    points = b"[" + b",".join([b"[%d,%b]" % pair for pair in pairs]) + b"]"
    return HistorySeries(
        host=host,
        name=metric.name,
        type=metric.type,
        operator=series.operator,
        window=series.window,
        unit=metric.unit,
        points=cast(list[tuple[int, float]], msgspec.Raw(points)),  # encoders write tiny values with exponents
    )


def _rows(series: StoredSeries, host: str, step: int) -> Iterator[HistoryRow]:
    metric: Metric = METRIC_BY_NAME[series.metric]
    time, value = downsample(series, step)
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
