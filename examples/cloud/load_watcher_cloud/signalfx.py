"""Provider of samples from SignalFx (Splunk Observability Cloud) through GET /v1/timeserieswindow and
/v2/metrictimeseries.

The first endpoint returns points by time series ID, the second the dimensions (including the host) of an ID. The
dimensions of an ID do not change, so they are requested only for new IDs. Requests and responses follow Splunk's API
reference ("Retrieve metric time series", "Metrics metadata") and the tests of the Go load-watcher.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from load_watcher_cloud.config import HOST, CloudConfig
from load_watcher_cloud.connection import CloudConnection, token_of
from load_watcher_cloud.provider import CloudProvider, CloudQueryPlan, CloudResponse, HostSeries
from watcher.arrays import F64
from watcher.core.messages import printable
from watcher.decoding.json_text import JsonDecoder
from watcher.model import Metric
from watcher.sources.connection import connection, queries_of
from watcher.sources.errors import ProviderMalformed, ProviderRefused, malformed_response
from watcher.sources.http import HttpResponse
from watcher.sources.queries import QueryConfig

if TYPE_CHECKING:
    from watcher.platform.settings.tables import Settings

__all__ = ["QueryConfig", "SignalFxConfig", "from_settings", "provider"]

SignalFxConfig = CloudConfig

POINTS, NAMES = "/v1/timeserieswindow", "/v2/metrictimeseries"
API = "the SignalFx API"
TOKEN_HINT = (
    "provider.token must be an access token with the API scope, or a user's session token, of the realm that"
    " provider.address names (https://api.REALM.signalfx.com)."
)
BUCKET_S = 60.0
"""Finest resolution of the service (1 s, 1 min, 5 min, 1 h) whose buckets are not mostly empty. A gauge's point is
the mean of its bucket."""
PAGE = 1000
MOST_SERIES = 10_000
"""Maximum number of time series that the service returns for one query."""
USUAL: Mapping[str, str] = {"CPU": "cpu.utilization", "Memory": "memory.utilization"}
"""Metric key -> metric of the agents (percent). The agents' network metrics are counters without direction, their
disk metrics are disk space; neither is usable."""


# --- queries ---------------------------------------------------------------------------------------------------------


def plans_of(config: CloudConfig, metric: Metric) -> Sequence[CloudQueryPlan]:
    """The configured search; default: the default search for the metric, if there is one."""
    if own := config.queries.get(metric.key):
        text = " ".join(own.expression.split())
        label = own.node_label or config.node_label
        smoothing = max(own.smoothing_s, BUCKET_S)
        return (CloudQueryPlan(metric, ((text, 1.0),), own.unit, text, "configured", 0.0, label, smoothing, own=True),)
    if metric.key not in USUAL:
        return ()
    query = search(config, USUAL[metric.key])
    reason = "metric of the agents and of the Go load-watcher"
    return (CloudQueryPlan(metric, ((query, 1.0),), "percent", query, reason, 0.0, config.node_label, BUCKET_S),)


def search(config: CloudConfig, name: str) -> str:
    """Search for a metric's time series of the configured hosts, as in the Go load-watcher."""
    conditions = [f"{config.node_label}:*{config.host_name_suffix}"]
    conditions += [f'cluster:"{config.cluster_name}"'] if config.cluster_name else []
    return " AND ".join((*conditions, f'sf_metric:"{name}"'))


# --- responses -------------------------------------------------------------------------------------------------------


class _Points(msgspec.Struct, frozen=True):
    data: dict[str, msgspec.Raw] | None = None
    errors: list[Any] | None = None


class _MetricTimeSeries(msgspec.Struct, frozen=True):
    id: str = ""
    dimensions: dict[str, Any] | None = None


class _Page(msgspec.Struct, frozen=True, rename={"partial_count": "partialCount"}):
    results: list[_MetricTimeSeries] | None = None
    count: int = 0
    partial_count: bool = False


_POINTS = JsonDecoder(_Points)
_ROWS = JsonDecoder(list[tuple[float, float | None]])
_PAGE = JsonDecoder(_Page)


def read_points(answer: HttpResponse) -> tuple[Mapping[str, tuple[F64, F64]], int, tuple[str, ...]]:
    """Times (unix seconds, ascending) and values by time series ID, the number of unreadable series, and warnings.
    Pure. Raises ProviderMalformed, ProviderRefused."""
    document: _Points = _decoded(_POINTS, answer)
    warnings = tuple(each if isinstance(each, str) else str(each) for each in document.errors or ())
    if not document.data and warnings:
        raise ProviderRefused(
            f"the query was rejected: {printable('; '.join(warnings))}",
            hint="Check provider.queries, provider.cluster_name and provider.host_name_suffix.",
        )
    if document.data is None:
        raise _no_answer(answer)
    found: dict[str, tuple[F64, F64]] = {}
    for number, raw in document.data.items():
        try:
            rows = _ROWS.decode(raw)
        except msgspec.DecodeError:
            continue
        pairs = [(time, np.nan if value is None else value) for time, value in rows]
        table = np.array(pairs, dtype=np.float64).reshape(len(pairs), 2)
        table = table[np.argsort(table[:, 0], kind="stable")]
        found[number] = table[:, 0] / 1000.0, table[:, 1]
    return found, len(document.data) - len(found), warnings


def read_page(answer: HttpResponse) -> _Page:
    """One page of the dimensions of time series. Pure. Raises ProviderMalformed."""
    page: _Page = _decoded(_PAGE, answer)
    if page.results is None:
        raise _no_answer(answer)
    return page


def _decoded(decoder: JsonDecoder[Any], answer: HttpResponse) -> Any:
    try:
        return decoder.decode(answer.body)
    except msgspec.DecodeError as error:
        raise malformed_response(
            answer.body, expected=f"the JSON of {API}", api=API, content_type=answer.content_type, problem=str(error)
        ) from error


def _no_answer(answer: HttpResponse) -> ProviderMalformed:
    return ProviderMalformed(
        f"the JSON is not a response of SignalFx: {printable(answer.body[:1024].decode(errors='replace'))}",
        hint=f"Check that provider.address points to {API}, not to a proxy.",
    )


# --- service ---------------------------------------------------------------------------------------------------------


class _SeriesDimensions:
    """Cached dimensions of the time series of one search, by ID. `unknown` are IDs that the service did not return,
    `cut` marks a truncated list."""

    def __init__(self) -> None:
        self.dimensions: Mapping[str, Mapping[str, Any]] = {}
        self.unknown: frozenset[str] = frozenset()
        self.cut = False
        self.lock = asyncio.Lock()


class SignalFx:
    """Implementation of cloud.Service for SignalFx."""

    source = "SignalFx"

    def __init__(self, config: CloudConfig) -> None:
        self._config = config
        self.connection = CloudConnection(config, credentials=self._credentials, hint=TOKEN_HINT, api=API)
        self._names: dict[str, _SeriesDimensions] = {}

    def plans(self, metric: Metric) -> Sequence[CloudQueryPlan]:
        """The configured search; default: the default search for the metric."""
        return plans_of(self._config, metric)

    async def ask(self, plan: CloudQueryPlan, since: float, until: float, *, deadline: float) -> CloudResponse:
        """Request the points, and for new IDs their dimensions page by page. Times are in unix seconds, `deadline`
        in event loop time. Raises ProviderError."""
        ((text, _),) = plan.asks
        query = {
            "query": text,
            "startMs": str(round(1000 * BUCKET_S * math.floor(since / BUCKET_S))),
            "endMs": str(math.ceil(1000 * until)),
            "resolution": str(round(1000 * BUCKET_S)),
        }
        received = await self.connection.get(POINTS, query, read=read_points, deadline=deadline)
        points, odd, warnings = received.content
        names = self._names.setdefault(text, _SeriesDimensions())
        async with names.lock:
            if points.keys() - names.dimensions.keys() - names.unknown:
                await self._learn(names, text, points.keys(), deadline=deadline)
        if names.cut:
            warnings += (
                f"the service returns at most {MOST_SERIES} time series, and there are more: set a narrower search",
            )
        reply = _named(points, names.dimensions, label=plan.label)
        return replace(reply, odd=odd, warnings=warnings, clock_offset_s=received.clock_offset_s)

    async def _learn(self, names: _SeriesDimensions, text: str, wanted: Any, *, deadline: float) -> None:
        """Reload the dimensions of all time series of a search."""
        learnt: dict[str, Mapping[str, Any]] = {}
        offset, more = 0, True
        while more and offset < MOST_SERIES:
            query = {"query": text, "limit": str(PAGE), "offset": str(offset)}
            page = (await self.connection.get(NAMES, query, read=read_page, deadline=deadline)).content
            results = page.results or []
            learnt.update((each.id, each.dimensions or {}) for each in results)
            offset += len(results)
            more = bool(results) and (page.partial_count or offset < page.count)
        names.dimensions, names.cut = learnt, more
        names.unknown = frozenset(wanted - learnt.keys())

    def _credentials(self) -> Mapping[str, str]:
        return {"X-SF-Token": token_of(self._config)}


def _named(
    points: Mapping[str, tuple[F64, F64]], dimensions: Mapping[str, Mapping[str, Any]], *, label: str
) -> CloudResponse:
    """Assign the points to hosts by their dimensions."""
    series, labels = [], set[str]()
    for number, (time, value) in points.items():
        known = dimensions.get(number, {})
        host = known.get(label)
        if not host or not isinstance(host, str):
            labels.update(name for name, content in known.items() if content is not None)
            host = ""
        series.append(HostSeries(host, time, value))
    return CloudResponse(series, frozenset(labels))


def provider(config: CloudConfig) -> CloudProvider:
    """Build the provider for a SignalFx configuration."""
    return CloudProvider(config, SignalFx(config))


def from_settings(settings: Settings) -> CloudProvider:
    """Build the provider from the settings. Provides CPU and Memory unless provider.metrics is set. Raises
    ValueError like CloudConfig."""
    given = settings.provider
    chosen = settings.origins.get("provider.metrics", "default") != "default"
    return provider(
        CloudConfig(
            **connection(settings),
            node_label=given.node_label or HOST,
            host_name_suffix=given.host_name_suffix or "",
            cluster_name=given.cluster_name or "",
            metrics=tuple(metric.key for metric in given.wanted) if chosen else tuple(USUAL),
            queries=queries_of(settings),
        )
    )
