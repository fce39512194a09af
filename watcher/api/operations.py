"""What each path of the watcher takes and gives, in the words of its OpenAPI document.

Beside the bodies that `model` names, these are the small ones of the health endpoints.
"""

from __future__ import annotations

from typing import Any

import msgspec

from watcher.core.koordinator.report import KoordinatorNodeMetric, KoordinatorNodeMetricList
from watcher.core.publishing.selection import Shape
from watcher.core.publishing.wire import (
    ColumnsDocument,
    ErrorDetail,
    FindingsDocument,
    HistoryDocument,
    KepWatcherDocument,
    PodsDocument,
    WatcherDocument,
)
from watcher.core.windows.silent_nodes import SilentDocument
from watcher.platform.http.openapi import OPERATOR, TYPE, Answer, Operation, Parameter, failure
from watcher.platform.http.parameters import MOST_POINTS


class AliveDocument(msgspec.Struct):
    """Body of /healthz."""

    status: str


class HealthDocument(msgspec.Struct):
    """Body of /watcher/health: `status` is ok, or partial where the source said that its answers lack a part, in its
    words in `reason`; `since` is the unix time at which this state began."""

    status: str
    since: float
    reason: str | msgspec.UnsetType = msgspec.UNSET


class ProviderState(msgspec.Struct):
    """The provider at the last tick; `ok` is null until it was first asked."""

    ok: bool | None
    reason: str
    since: float


class SnapshotState(msgspec.Struct):
    """What is published. `lost` counts the nodes that vanished in a partial outage, `age_s` is the age of the newest
    sample."""

    source: str
    timestamp: int
    window_end: int
    age_s: float
    nodes: int
    lost: int
    quarantined: int


class ReadyDocument(msgspec.Struct):
    """Body of /readyz. `detail` has the store, coverage, and what else is worth a look."""

    status: str
    provider: ProviderState
    windows: list[str]
    interval_s: float
    max_staleness_s: float
    snapshot: SnapshotState | None
    detail: dict[str, Any]


class NotReadyDocument(ReadyDocument, kw_only=True):
    """Body of /readyz when there is nothing to serve: the same, with the error."""

    error: ErrorDetail


class LostNode(msgspec.Struct):
    """A node that vanished with many others in a partial outage, and the unix time of its last sample."""

    name: str
    sampled: float


class OverviewDocument(msgspec.Struct):
    """Body of /api/v1/overview. `status` is ready, or the code of the `error` that /readyz answers; `quarantined` are
    nodes whose metrics are left out because they cannot be right; `scheduler` says whether there are scheduling
    plug-ins, `agents` whether there are agents to be looked at."""

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


MSGPACK = "application/msgpack"
WINDOW = Parameter(
    "window", "the window, one of refresh.windows; 15m by default. Nodes without it fall back to shorter ones"
)
SHAPE = Parameter(
    "shape",
    "where the nodes stand: under data.NodeMetricsMap (watcher), or directly under data (kep)",
    {"type": "string", "enum": [shape.value for shape in Shape], "default": Shape.WATCHER.value},
)
HOST_IN_PATH = Parameter("host", "the name of the node", place="path")

_NOT_MODIFIED = Answer("the document is the one that If-None-Match names", media_type="")
_BAD = failure("bad_request: an unknown parameter or value; the hint names the nearest known one")
_NONE = failure("no_metrics: nothing is known yet, or nothing of what was selected; unknown_host: a node of that name")
_STALE = failure("stale: older than max_staleness; partial_outage: much of the fleet is missing, the rest is a remnant")
_DOCUMENTS = (WatcherDocument, KepWatcherDocument)

WATCHER = Operation(
    "The load of all nodes",
    {200: Answer("the document", _DOCUMENTS), 304: _NOT_MODIFIED, 400: _BAD, 404: _NONE, 503: _STALE},
    (
        WINDOW,
        Parameter("host", "only nodes of these names; an empty one means all", repeatable=True),
        TYPE,
        OPERATOR,
        SHAPE,
    ),
    "Parameters combine by AND, several values of one by OR.",
)
WATCHER_HOST = Operation(
    "The load of one node",
    {200: Answer("the document with one node", _DOCUMENTS), 304: _NOT_MODIFIED, 400: _BAD, 404: _NONE, 503: _STALE},
    (HOST_IN_PATH, WINDOW, TYPE, OPERATOR, SHAPE),
    "A node that is called health is found by /watcher?host=health.",
)
COLUMNS = Operation(
    "The load of all nodes as columns",
    {200: Answer("the columns", ColumnsDocument), 304: _NOT_MODIFIED, 400: _BAD, 404: _NONE, 503: _STALE},
    (WINDOW, TYPE, OPERATOR),
)
PODS = Operation(
    "What each pod uses, as columns",
    {
        200: Answer("the pods", PodsDocument),
        304: _NOT_MODIFIED,
        400: _BAD,
        404: failure(
            "no_pods: nothing is known of pods (yet), or of those that were selected, and why; unknown_host: there is "
            "neither a node of that name nor a pod on it"
        ),
        503: failure("stale: older than max_staleness"),
    },
    (
        Parameter("host", "only pods on nodes of these names", repeatable=True),
        Parameter("namespace", "only pods in these namespaces", repeatable=True),
    ),
    'Under refresh.pods = "auto" the source is asked for pods from the first request on, so the first answer is 404.',
)
NODE_METRICS = Operation(
    "The windows as Koordinator NodeMetrics",
    {
        200: Answer("those of all nodes that have one", KoordinatorNodeMetricList),
        304: _NOT_MODIFIED,
        400: _BAD,
        404: failure("no_metrics: nothing is known yet; no_node_metric: no node has one, and why"),
        503: _STALE,
    },
    description="Made once in each koordinator.report_interval. Nodes whose capacity is not known are left out.",
)
NODE_METRIC = Operation(
    "The windows of one node as a Koordinator NodeMetric",
    {
        200: Answer("the NodeMetric", KoordinatorNodeMetric),
        304: _NOT_MODIFIED,
        400: _BAD,
        404: failure("no_metrics; unknown_host: a node of that name; no_node_metric: it has none, and why"),
        503: _STALE,
    },
    (HOST_IN_PATH,),
)
HISTORY = Operation(
    "Stored windows of one node over time",
    {
        200: Answer("the series, or with shape=rows the rows", HistoryDocument),
        400: _BAD,
        404: failure("unknown_host: nothing is stored of a node of that name, and none is known"),
        503: failure("history_unavailable: the store cannot answer"),
    },
    (
        Parameter("host", "the name of the node; needed"),
        TYPE,
        OPERATOR,
        WINDOW,
        Parameter("from", "unix seconds, an RFC 3339 date, or how long ago (-6h); one hour before `to` by default"),
        Parameter("to", "the same; now by default"),
        Parameter(
            "step",
            "distance of the points: seconds, or a duration (5m); 60 by default. Each step gives its last value at "
            f"its true time. A series has at most {MOST_POINTS} points",
        ),
        Parameter("shape", "series, or one row a value", {"type": "string", "enum": ["series", "rows"]}),
    ),
)
FINDINGS = Operation(
    "What the review of samples found, and what is asked of the source",
    {200: Answer("the findings, newest first", FindingsDocument), 400: _BAD},
)
PROVIDER_HEALTH = Operation(
    "Whether the provider answered at the last tick",
    {
        200: Answer("it did", HealthDocument),
        503: failure("provider_down: it did not; provider_not_asked: there was no tick yet"),
    },
    description="Makes no call of its own.",
)
HEALTHZ = Operation(
    "Alive",
    {
        200: Answer("ticks begin when they should", AliveDocument),
        503: failure("not_alive: no tick began for 1.5 intervals"),
    },
)
SAMPLES = Operation(
    "The samples of the longest window, for a replica that starts",
    {
        200: Answer("in a form of our own (watcher/replicas/transfer.py), which may change", media_type=MSGPACK),
        404: _NONE,
        503: failure("what /readyz says: only a service that is ready is a source for others"),
    },
)
READYZ = Operation(
    "Ready",
    {
        200: Answer("there is a window young enough to serve", ReadyDocument),
        503: Answer("no_metrics, stale or warming_up, beside the same detail", NotReadyDocument),
    },
)
METRICS = Operation(
    "Node windows and the service's own health for Prometheus",
    {200: Answer("Prometheus' text format", media_type="text/plain")},
)
OVERVIEW = Operation(
    "The state of the service, and the nodes that are left out",
    {200: Answer("whatever it is", OverviewDocument)},
    description="What the dashboard asks first. Probes ask /readyz, whose status says the same.",
)
SILENT = Operation(
    "The nodes that are in no list, since nothing is heard of them",
    {
        200: Answer("by name, possibly none", SilentDocument),
        304: _NOT_MODIFIED,
        404: failure("no_metrics: no tick yet"),
    },
    description="Those in quarantine or lost in a partial outage are in /api/v1/overview. Answered whatever /watcher "
    "says, for who looks for such a node; schedulers have no use for it.",
)
PAGE = Operation("The dashboard", {200: Answer("HTML", media_type="text/html"), 304: _NOT_MODIFIED})
PAGE_FILE = Operation(
    "A file of the dashboard",
    {200: Answer("JavaScript or CSS", media_type="*/*"), 304: _NOT_MODIFIED},
    (Parameter("file", "its name", place="path"),),
)
OPENAPI = Operation("This document", {200: Answer("an OpenAPI 3.1 document", dict[str, Any]), 304: _NOT_MODIFIED})
