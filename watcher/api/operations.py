"""The OpenAPI descriptions of the watcher's routes, and the body types of the health endpoints.

`model` declares the other body types.
"""

from __future__ import annotations

from typing import Any

import msgspec

from watcher.core.forecast.document import ForecastsDocument
from watcher.core.koordinator.aggregates import KOORDLET
from watcher.core.koordinator.report import KoordinatorNodeMetric, KoordinatorNodeMetricList
from watcher.core.problems.document import ProblemsDocument
from watcher.core.publishing.labels import LabelsDocument
from watcher.core.publishing.selection import Shape
from watcher.core.publishing.wire import (
    ColumnsDocument,
    ErrorDetail,
    FindingsDocument,
    ForecastsOffer,
    HistoryDocument,
    KepWatcherDocument,
    PodsDocument,
    PodsOffer,
    WatcherDocument,
)
from watcher.core.windows.fleet_trend import TrendDocument
from watcher.core.windows.silent_nodes import SilentDocument
from watcher.platform.http.openapi import MISSING, OPERATOR, TYPE, Operation, Parameter, ResponseSpec, failure
from watcher.platform.http.parameters import MAX_POINTS, MOST_MINUTES


class AliveDocument(msgspec.Struct):
    """Body of /healthz. `status` is alive."""

    status: str


class HealthDocument(msgspec.Struct):
    """Body of /watcher/health. `status` is ok, or partial if the source reported incomplete data (`reason` is its
    message); `since` is the time at which this state began, in unix seconds."""

    status: str
    since: float
    reason: str | msgspec.UnsetType = msgspec.UNSET


class ProviderState(msgspec.Struct):
    """State of the provider at the last tick. `ok` is null before the first query; `since` is in unix seconds."""

    ok: bool | None
    reason: str
    since: float


class SnapshotState(msgspec.Struct):
    """The published snapshot. `timestamp` and `window_end` are unix seconds, `age_s` is the age of the newest sample;
    `nodes`, `lost` (missing since a partial outage) and `quarantined` count nodes."""

    source: str
    timestamp: int
    window_end: int
    age_s: float
    nodes: int
    lost: int
    quarantined: int


class ReadyDocument(msgspec.Struct):
    """Body of /readyz. `detail` contains the state of the store, coverage, and more diagnostic data."""

    status: str
    provider: ProviderState
    windows: list[str]
    interval_s: float
    max_staleness_s: float
    snapshot: SnapshotState | None
    detail: dict[str, Any]


class NotReadyDocument(ReadyDocument, kw_only=True):
    """Body of /readyz if the service is not ready: ReadyDocument and the error."""

    error: ErrorDetail


class LostNode(msgspec.Struct):
    """A node that is missing in a partial outage. `sampled` is the time of its last sample in unix seconds."""

    name: str
    sampled: float


class OverviewDocument(msgspec.Struct):
    """Body of /api/v1/overview. `status` is ready, or the code of the `error` that /readyz returns; `quarantined` lists
    nodes whose metrics are omitted because they are implausible; `scheduler`: the service serves scheduling plug-ins;
    `agents`: the service proxies pages of agents. `time` is in unix seconds. `aggregates` are the values of
    `?aggregate=` of /api/v1/columns. `pods` describes /api/v1/pods, `forecasts` /api/v1/forecasts."""

    version: str
    time: float
    status: str
    error: ErrorDetail | None
    provider: ProviderState
    windows: list[str]
    default_window: str
    interval_s: float
    max_staleness_s: float
    snapshot: SnapshotState | None
    quarantined: list[str]
    lost: list[LostNode]
    scheduler: bool
    agents: bool
    aggregates: list[str]
    pods: PodsOffer
    forecasts: ForecastsOffer


WINDOW = Parameter(
    "window", "one of refresh.windows; default: 15m. Nodes without data for it fall back to shorter windows"
)
SHAPE = Parameter(
    "shape",
    "location of the nodes: under data.NodeMetricsMap (watcher), or directly under data (kep)",
    {"type": "string", "enum": [shape.value for shape in Shape], "default": Shape.WATCHER.value},
)
AGGREGATE = Parameter(
    "aggregate",
    "adds usages of CPU and Memory by the rules of koordlet: the mean over the averaging period of each node, and mean "
    "and percentiles over each of refresh.windows. Computed once per refresh, at the first request",
    {"type": "string", "enum": [KOORDLET]},
)
HORIZON = Parameter("horizon", "one of forecast.horizons, for operator=FORECAST; default: forecast.horizon")
HOST_IN_PATH = Parameter("host", "the name of the node", place="path")

_NOT_MODIFIED = ResponseSpec("the document matches the ETag in If-None-Match", media_type="")
_BAD = failure("bad_request: an unknown parameter or value; the hint contains the nearest known one")
_NONE = failure("no_metrics: no metrics yet, or none match the selection; unknown_host: no metrics of a node so named")
_STALE = failure("stale: older than max_staleness; partial_outage: many nodes went missing at once")
_DOCUMENTS = (WatcherDocument, KepWatcherDocument)

WATCHER = Operation(
    "The load of all nodes",
    {200: ResponseSpec("the document", _DOCUMENTS), 304: _NOT_MODIFIED, 400: _BAD, 404: _NONE, 503: _STALE},
    (
        WINDOW,
        Parameter("host", "only the nodes with these names; an empty value means all nodes", repeatable=True),
        TYPE,
        OPERATOR,
        HORIZON,
        SHAPE,
    ),
    "Different parameters combine by AND, several values of one parameter by OR.",
)
WATCHER_HOST = Operation(
    "The load of one node",
    {
        200: ResponseSpec("the document with one node", _DOCUMENTS),
        304: _NOT_MODIFIED,
        400: _BAD,
        404: _NONE,
        503: _STALE,
    },
    (HOST_IN_PATH, WINDOW, TYPE, OPERATOR, HORIZON, SHAPE),
    "For a node named health use /watcher?host=health.",
)
MINUTES = Parameter(
    "minutes",
    f"adds the readings of the last minutes, 1 to {MOST_MINUTES}; at most the longest of refresh.windows is known",
    {"type": "integer", "minimum": 1, "maximum": MOST_MINUTES},
)
COLUMNS = Operation(
    "The load of all nodes as columns",
    {200: ResponseSpec("the columns", ColumnsDocument), 304: _NOT_MODIFIED, 400: _BAD, 404: _NONE, 503: _STALE},
    (WINDOW, TYPE, OPERATOR, HORIZON, AGGREGATE),
)
PODS = Operation(
    "The resource usage of pods as columns",
    {
        200: ResponseSpec("the pods", PodsDocument),
        304: _NOT_MODIFIED,
        400: _BAD,
        404: failure(
            "no_pods: no pod usage (yet), or none for the selected pods; the hint contains the reason; unknown_host: "
            "neither the node nor a pod on it is known"
        ),
        503: failure("stale: older than max_staleness"),
    },
    (
        Parameter("host", "only pods on the nodes with these names", repeatable=True),
        Parameter("namespace", "only pods in these namespaces", repeatable=True),
        MINUTES,
        MISSING,
    ),
    'With refresh.pods = "auto", pod usage is collected only after the first request, which returns 404.',
)
NODE_METRICS = Operation(
    "The windows as Koordinator NodeMetrics",
    {
        200: ResponseSpec("the NodeMetrics of all nodes that have one", KoordinatorNodeMetricList),
        304: _NOT_MODIFIED,
        400: _BAD,
        404: failure("no_metrics: no metrics yet; no_node_metric: no node has a NodeMetric, with the reasons"),
        503: _STALE,
    },
    description="Rebuilt once per koordinator.report_interval. Nodes with unknown capacity are omitted.",
)
NODE_METRIC = Operation(
    "The windows of one node as a Koordinator NodeMetric",
    {
        200: ResponseSpec("the NodeMetric", KoordinatorNodeMetric),
        304: _NOT_MODIFIED,
        400: _BAD,
        404: failure("no_metrics; unknown_host: unknown node; no_node_metric: the node has none, with the reason"),
        503: _STALE,
    },
    (HOST_IN_PATH,),
)
HISTORY = Operation(
    "Stored windows of one node over time",
    {
        200: ResponseSpec("the series, or the rows with shape=rows", HistoryDocument),
        400: _BAD,
        404: failure("unknown_host: the node is unknown and has no stored windows"),
        503: failure("history_unavailable: the store cannot be read"),
    },
    (
        Parameter("host", "the name of the node", {"type": "string", "minLength": 1}, required=True),
        TYPE,
        OPERATOR,
        WINDOW,
        Parameter("from", "unix seconds, an RFC 3339 date, or a duration before now (-6h); default: 1h before `to`"),
        Parameter("to", "same formats as `from`; default: now"),
        Parameter(
            "step",
            "interval between points in seconds, or as a duration (5m); default: 60. Each step yields its last value "
            f"with the time of that value. A series has at most {MAX_POINTS} points",
        ),
        Parameter("shape", "series, or one row per value", {"type": "string", "enum": ["series", "rows"]}),
    ),
)
TREND = Operation(
    "Mean load of all nodes over the last day",
    {
        200: ResponseSpec("the means, or the reason why there are none", TrendDocument),
        304: _NOT_MODIFIED,
        503: failure("history_unavailable: the store cannot be read"),
    },
    description="Of the shortest window, one mean per 5 minutes, weighted by the capacity of the nodes, from the "
    "windows in the store.",
)
FORECASTS = Operation(
    "Upper bounds of the load of the next hours",
    {
        200: ResponseSpec("the forecasts by node, type and horizon", ForecastsDocument),
        304: _NOT_MODIFIED,
        400: _BAD,
        404: failure("unknown_host: the node has neither metrics nor maxima; no_metrics: no tick yet"),
    },
    (
        Parameter("host", "only the nodes with these names", repeatable=True),
        TYPE,
        Parameter("horizon", "these of forecast.horizons, or all; default: forecast.horizon", repeatable=True),
    ),
    "A node without a bound has a state that says why. Silent nodes are included. Changes at most once per refresh.",
)
FINDINGS = Operation(
    "Findings of the sample review, and the queries to the source",
    {200: ResponseSpec("the findings, newest first", FindingsDocument), 400: _BAD},
)
PROVIDER_HEALTH = Operation(
    "Whether the provider responded at the last tick",
    {
        200: ResponseSpec("the provider responded, possibly with incomplete data", HealthDocument),
        503: failure("provider_down: the provider did not respond; provider_not_asked: no query yet"),
    },
    description="Does not query the provider.",
)
HEALTHZ = Operation(
    "Liveness",
    {
        200: ResponseSpec("ticks begin on schedule", AliveDocument),
        503: failure("not_alive: no tick began for 1.5 intervals"),
    },
)
READYZ = Operation(
    "Readiness",
    {
        200: ResponseSpec("the service has windows to serve", ReadyDocument),
        503: ResponseSpec("no_metrics, stale or warming_up, with the same detail", NotReadyDocument),
    },
)
METRICS = Operation(
    "Node windows and the service's own metrics for Prometheus",
    {200: ResponseSpec("Prometheus' text format", media_type="text/plain")},
)
OVERVIEW = Operation(
    "The state of the service, and the omitted nodes",
    {200: ResponseSpec("the state, ready or not", OverviewDocument), 400: _BAD},
    (
        Parameter(
            "want",
            "pods: the source is queried for pod usage from the next refresh on, as after GET /api/v1/pods",
            {"type": "string", "enum": ["pods"]},
        ),
    ),
    description="Used by the dashboard. Probes should use /readyz, whose HTTP status indicates readiness.",
)
SILENT = Operation(
    "Nodes without recent samples (silent nodes)",
    {
        200: ResponseSpec("the silent nodes by name, possibly none", SilentDocument),
        304: _NOT_MODIFIED,
        404: failure("no_metrics: no tick yet"),
    },
    description="Available even if /watcher returns an error. Nodes in quarantine and nodes lost in a partial outage "
    "are listed by /api/v1/overview. For troubleshooting; schedulers do not need it.",
)
PROBLEMS = Operation(
    "Problems of nodes, source and service, the most severe first",
    {200: ResponseSpec("the problems, possibly none", ProblemsDocument), 304: _NOT_MODIFIED},
    description="One sentence per problem, with its cure and the next command. A node that is hot, silent, stale, "
    "lost, quarantined or unheard is in exactly one problem of these kinds; other findings are grouped by node and "
    "cause. Available in every state of the service.",
)
LABELS = Operation(
    "Labels of the nodes, to group them",
    {200: ResponseSpec("the labels, or the reason why none are known", LabelsDocument), 304: _NOT_MODIFIED},
    description="From the Node objects of the Kubernetes API. The ETag changes only with the content.",
)
PAGE = Operation("The dashboard", {200: ResponseSpec("HTML", media_type="text/html"), 304: _NOT_MODIFIED})
PAGE_FILE = Operation(
    "A file of the dashboard",
    {200: ResponseSpec("JavaScript or CSS", media_type="*/*"), 304: _NOT_MODIFIED},
    (Parameter("file", "the file name", place="path"),),
)
OPENAPI = Operation("This document", {200: ResponseSpec("an OpenAPI 3.1 document", dict[str, Any]), 304: _NOT_MODIFIED})
