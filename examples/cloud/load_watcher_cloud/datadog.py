"""Provider of samples from Datadog through POST /api/v2/query/timeseries.

Requests and responses follow Datadog's API reference ("Query timeseries data across multiple products", v2). The
metrics of the Datadog Agent are tried first, then `cpu.utilization` and `memory.utilization`, which the Go load-watcher
queries. Datadog computes only the mean of a bucket. Formulas are not used, because a formula returns nothing if one of
its parts is missing, and some hosts have no iowait.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from load_watcher_cloud.connection import CloudConnection, token_of
from load_watcher_cloud.provider import HOST, CloudProvider, CloudQueryPlan, CloudResponse, HostSeries
from watcher.arrays import F64
from watcher.core.messages import printable
from watcher.core.windows.settings import RefreshSettings
from watcher.decoding.json_text import JsonDecoder
from watcher.model import Metric
from watcher.sources.errors import ProviderMalformed, ProviderRefused, malformed_response
from watcher.sources.http import HttpResponse, read_secret
from watcher.sources.settings import ProviderSettings

if TYPE_CHECKING:
    from watcher.core.config.settings import Settings

PATH = "/api/v2/query/timeseries"
API = "the Datadog API"
KEYS_HINT = (
    "provider.token must be an API key and provider.app_key an application key with the scope timeseries_query,"
    " both of the site that provider.address names."
)
BUCKET_S = 15.0
"""Interval of the Agent's checks in seconds. Most buckets would be empty at a finer resolution."""
DEVICE = "device"
NO_VALUE = "N/A"
"""Tag value of groups whose series lack the tag."""


# --- queries ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _DefaultQuery:
    """A default query for a metric: `start` + the sum of the parts, each multiplied by its weight. `by` are further
    tags that distinguish series of a host."""

    key: str
    parts: Sequence[tuple[str, float]]
    unit: str
    shown: str
    reason: str
    start: float = 0.0
    by: Sequence[str] = ()


_AGENT = "metric of the Datadog Agent"
_GO = "metric that the Go load-watcher queries"
_EACH = f"{_AGENT}; the sum over devices"
USUAL = (
    _DefaultQuery(
        "CPU",
        (("system.cpu.idle", -1.0), ("system.cpu.iowait", -1.0), ("system.cpu.stolen", -1.0)),
        "percent",
        "100 - system.cpu.idle - system.cpu.iowait - system.cpu.stolen",
        f"{_AGENT}; idle, iowait and steal do not count as use, as in kube-prometheus",
        start=100.0,
    ),
    _DefaultQuery("CPU", (("cpu.utilization", 1.0),), "percent", "cpu.utilization", _GO),
    _DefaultQuery(
        "Memory", (("system.mem.pct_usable", -1.0),), "ratio", "1 - system.mem.pct_usable", _AGENT, start=1.0
    ),
    _DefaultQuery("Memory", (("memory.utilization", 1.0),), "percent", "memory.utilization", _GO),
    _DefaultQuery(
        "Storage",
        (("system.io.util", 1.0),),
        "percent",
        "system.io.util",
        f"{_AGENT}; the busiest device",
        by=(DEVICE,),
    ),
    _DefaultQuery(
        "NetworkTransmit", (("system.net.bytes_sent", 1.0),), "bytes/s", "system.net.bytes_sent", _EACH, by=(DEVICE,)
    ),
    _DefaultQuery(
        "NetworkReceive", (("system.net.bytes_rcvd", 1.0),), "bytes/s", "system.net.bytes_rcvd", _EACH, by=(DEVICE,)
    ),
    _DefaultQuery(
        "NetworkTransmitDrop",
        (("system.net.packets_out.drop", 1.0),),
        "packets/s",
        "system.net.packets_out.drop",
        _EACH,
        by=(DEVICE,),
    ),
    _DefaultQuery(
        "NetworkReceiveDrop",
        (("system.net.packets_in.drop", 1.0),),
        "packets/s",
        "system.net.packets_in.drop",
        _EACH,
        by=(DEVICE,),
    ),
)


def plans_of(settings: ProviderSettings, metric: Metric, *, bucket: float) -> Sequence[CloudQueryPlan]:
    """The configured query; default: the default queries for the metric, in order of preference."""
    if own := settings.queries.get(metric.key):
        text = " ".join(own.expression.split())
        label = own.node_label or settings.node_label or HOST
        return (
            CloudQueryPlan(metric, ((text, 1.0),), own.unit, text, "configured", 0.0, label, own.smoothing, own=True),
        )
    return [_plan(settings, metric, usual, bucket=bucket) for usual in USUAL if usual.key == metric.key]


def _plan(settings: ProviderSettings, metric: Metric, usual: _DefaultQuery, *, bucket: float) -> CloudQueryPlan:
    scope, label = _scope(settings), settings.node_label or HOST
    tags = ",".join((label, *usual.by))
    width = round(bucket)
    asks = tuple((f"avg:{name}{{{scope}}} by {{{tags}}}.rollup(avg, {width})", weight) for name, weight in usual.parts)
    message = f"{usual.shown} of {{{scope}}}"
    return CloudQueryPlan(metric, asks, usual.unit, message, usual.reason, usual.start, label)


def _scope(settings: ProviderSettings) -> str:
    """Datadog scope of the configured hosts. A comma means AND."""
    conditions = [f"{settings.node_label or HOST}:*{settings.host_name_suffix}"] if settings.host_name_suffix else []
    conditions += [f"cluster_name:{settings.cluster_name}"] if settings.cluster_name else []
    return ",".join(conditions) or "*"


def question(plan: CloudQueryPlan, since: float, until: float, *, bucket: float) -> bytes:
    """Request body for the points between the two times (unix seconds). The start is rounded down to a multiple of
    `bucket` (seconds)."""
    queries = [
        {"data_source": "metrics", "name": f"q{number}", "query": query} for number, (query, _) in enumerate(plan.asks)
    ]
    attributes = {
        "from": round(1000 * bucket * math.floor(since / bucket)),
        "to": math.ceil(1000 * until),
        "interval": round(1000 * bucket),
        "queries": queries,
    }
    return msgspec.json.encode({"data": {"type": "timeseries_request", "attributes": attributes}})


# --- responses -------------------------------------------------------------------------------------------------------


class _SeriesHead(msgspec.Struct, frozen=True):
    group_tags: list[str] | None = None
    query_index: int | None = 0


class _Attributes(msgspec.Struct, frozen=True):
    series: list[_SeriesHead] | None = None
    times: list[float] | None = None
    values: list[msgspec.Raw] | None = None


class _DatadogData(msgspec.Struct, frozen=True):
    attributes: _Attributes | None = None


class _DatadogDocument(msgspec.Struct, frozen=True):
    data: _DatadogData | None = None
    errors: str | list[str] | None = None


_DOCUMENT = JsonDecoder(_DatadogDocument)
_ROW = JsonDecoder(list[float | None])


def read_answer(answer: HttpResponse, *, plan: CloudQueryPlan) -> CloudResponse:
    """Parse a response with status 200. Pure. Raises ProviderMalformed, ProviderRefused."""
    try:
        document = _DOCUMENT.decode(answer.body)
    except msgspec.DecodeError as error:
        raise malformed_response(
            answer.body, expected=f"the JSON of {API}", api=API, content_type=answer.content_type, problem=str(error)
        ) from error
    errors = tuple(document.errors) if isinstance(document.errors, list) else (document.errors or "",)
    warnings = tuple(error for error in errors if error)
    if document.data is None or document.data.attributes is None:
        if warnings:
            raise ProviderRefused(
                f"the query was rejected: {printable('; '.join(warnings))}", hint="Check the query in provider.queries."
            )
        raise ProviderMalformed(
            f"the JSON is not a response of Datadog: {printable(answer.body[:1024].decode(errors='replace'))}",
            hint=f"Check that provider.address points to {API}, not to a proxy.",
        )
    return _reply(document.data.attributes, plan, warnings=warnings)


def _reply(given: _Attributes, plan: CloudQueryPlan, *, warnings: tuple[str, ...]) -> CloudResponse:
    heads, times, rows = given.series or [], given.times or [], given.values or []
    if len(heads) != len(rows):
        raise ProviderMalformed(
            f"the response has {len(heads)} series, but values of {len(rows)}", hint=f"{API} may have changed."
        )
    time = np.array(times, dtype=np.float64) / 1000.0
    order = np.argsort(time, kind="stable")
    groups: dict[tuple[str, ...], list[dict[int, F64]]] = {}
    odd = 0
    for head, row in zip(heads, rows, strict=True):
        value = _row(row, length=len(time))
        part = head.query_index or 0
        if value is None or not 0 <= part < len(plan.asks):
            odd += 1
        else:
            _join(groups.setdefault(tuple(head.group_tags or ()), []), part, value)
    series: list[HostSeries] = []
    labels: set[str] = set()
    for tags, members in groups.items():
        named = dict(tag.partition(":")[::2] for tag in tags)
        host = named.get(plan.label, "")
        if host in ("", NO_VALUE):
            host = ""
            labels.update(named)
        series += [HostSeries(host, time[order], _value(plan, parts)[order]) for parts in members if 0 in parts]
    return CloudResponse(series, frozenset(labels), odd, warnings)


def _join(members: list[dict[int, F64]], part: int, value: F64) -> None:
    """Add a part to the first series that lacks it. A group that occurs twice becomes two series, so no data is
    lost."""
    for parts in members:
        if part not in parts:
            parts[part] = value
            return
    members.append({part: value})


def _row(raw: msgspec.Raw, *, length: int) -> F64 | None:
    """Values of one series, NaN for a missing one; None if they are unreadable or their number differs from
    `length`."""
    try:
        values = _ROW.decode(raw)
    except msgspec.DecodeError:
        return None
    if len(values) != length:
        return None
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def _value(plan: CloudQueryPlan, parts: Mapping[int, F64]) -> F64:
    """Weighted sum of the parts. Missing values count as 0, except in the first part."""
    weighed: Iterable[F64] = (
        weight * (parts[number] if number == 0 else np.nan_to_num(parts[number], nan=0.0))
        for number, (_, weight) in enumerate(plan.asks)
        if number in parts
    )
    total: F64 = plan.start + sum(weighed, np.zeros(len(parts[0])))
    return total


# --- service ---------------------------------------------------------------------------------------------------------


class Datadog:
    """Implementation of cloud.Service for Datadog."""

    source = "Datadog"

    def __init__(self, settings: ProviderSettings, refresh: RefreshSettings) -> None:
        self._settings, self._bucket = settings, max(BUCKET_S, float(refresh.point_resolution))
        self.connection = CloudConnection(settings, credentials=self._credentials, hint=KEYS_HINT, api=API)

    def plans(self, metric: Metric) -> Sequence[CloudQueryPlan]:
        """The configured query; default: the default queries for the metric."""
        return plans_of(self._settings, metric, bucket=self._bucket)

    async def ask(self, plan: CloudQueryPlan, since: float, until: float, *, deadline: float) -> CloudResponse:
        """Query the points with one request, for any number of hosts. Times are in unix seconds, `deadline` in event
        loop time. Raises ProviderError."""
        body = question(plan, since, until, bucket=self._bucket)
        received = await self.connection.post(
            PATH, body, read=lambda answer: read_answer(answer, plan=plan), deadline=deadline
        )
        return replace(received.content, clock_offset_s=received.clock_offset_s)

    def _credentials(self) -> Mapping[str, str]:
        app_key = read_secret("provider.app_key_file", self._settings.app_key_file, self._settings.app_key)
        if not app_key:
            raise ProviderRefused("no application key is set", hint="Set provider.app_key or provider.app_key_file.")
        return {"DD-API-KEY": token_of(self._settings), "DD-APPLICATION-KEY": app_key}


def provider(settings: ProviderSettings, refresh: RefreshSettings) -> CloudProvider:
    """Build the provider for Datadog. Raises ValueError for an address that is not one."""
    return CloudProvider(settings, refresh, Datadog(settings, refresh))


def from_settings(settings: Settings) -> CloudProvider:
    """Build the provider from the settings. Raises ValueError for an address that is not one."""
    return provider(settings[ProviderSettings], settings[RefreshSettings])
