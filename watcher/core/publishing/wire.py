"""The documents of the HTTP API as msgspec structs: field names and types are the wire format."""

from __future__ import annotations

from typing import Annotated

import msgspec

Finite = Annotated[float, msgspec.Meta(description="finite; at most 15 significant digits, no exponent")]
UnixSeconds = Annotated[int, msgspec.Meta(description="unix time in seconds")]


class MetricValue(msgspec.Struct):
    """One number of one node. `name` is upstream's rule name; `rollup` the window it really covers, "" for Latest."""

    name: str
    type: str
    operator: str
    rollup: str = ""
    value: Finite = 0.0


class Metadata(msgspec.Struct):
    """Kept for the Go client; always empty here."""

    dataCenter: str = ""  # noqa: N815  (wire name)


class NodeMetrics(msgspec.Struct, omit_defaults=False):
    """What is known of one node. `sampled` is the unix second of its newest sample; `age_s` stands only on a node that
    has gone silent, or whose last values are kept through a partial outage."""

    metrics: list[MetricValue] = []
    tags: dict[str, str] = {}
    metadata: Metadata = msgspec.field(default_factory=Metadata)
    sampled: UnixSeconds = 0
    age_s: float | msgspec.UnsetType = msgspec.UNSET


class WindowInfo(msgspec.Struct):
    """The window asked for: `end` is the newest accepted sample, `start` = `end` - `duration`."""

    duration: str
    start: UnixSeconds
    end: UnixSeconds


class NodeMetricsData(msgspec.Struct):
    """The shape that load-watcher's code writes and its Go client reads."""

    NodeMetricsMap: dict[str, NodeMetrics] = {}


class WatcherDocument(msgspec.Struct):
    """Body of GET /watcher."""

    timestamp: UnixSeconds
    window: WindowInfo
    source: str
    data: NodeMetricsData


class KepWatcherDocument(msgspec.Struct):
    """Body of GET /watcher?shape=kep: the nodes directly under `data`, as KEP-61 and the seed print it."""

    timestamp: UnixSeconds
    window: WindowInfo
    source: str
    data: dict[str, NodeMetrics]


class Column(msgspec.Struct):
    """One metric and operator over all nodes, null where absent. `window` is the window these values cover ("" for
    Latest): a node that fell back to a shorter window stands in that window's column, so each (node, metric,
    operator) stands in one column only."""

    name: str
    type: str
    operator: str
    window: str
    unit: str
    values: list[float | None]


class ColumnsDocument(msgspec.Struct):
    """Body of GET /api/v1/columns. `sampled[name][i]` is the unix time of node i's newest sample of that metric;
    `age_s[i]` the age of a silent or held node, null for the others."""

    timestamp: UnixSeconds
    window_end: UnixSeconds
    source: str
    nodes: list[str]
    sampled: dict[str, list[float | None]]
    columns: list[Column]
    smoothing_s: dict[str, float] = {}
    age_s: list[float | None] = []


class PodAverages(msgspec.Struct):
    """Mean use of each pod over one window, null where too few minutes of it are known."""

    window: str
    cores: list[float | None]
    bytes: list[int | None]


class PodsDocument(msgspec.Struct):
    """Body of GET /api/v1/pods: one value a pod in each list, in the order of namespace and name. `time` is that of the
    newest reading, as its source gave it; `cores` and `bytes` are null where that did not say. The source averages
    cores over `cores_span_s` seconds; `bytes_kind` is rss or working_set. Asked for every `every_s` seconds."""

    timestamp: UnixSeconds
    source: str
    every_s: float
    cores_from: str
    cores_span_s: float
    bytes_from: str
    bytes_kind: str
    namespace: list[str]
    pod: list[str]
    node: list[str]
    time: list[float]
    cores: list[float | None]
    bytes: list[int | None]
    averages: list[PodAverages]


class HistorySeries(msgspec.Struct):
    """One metric and operator of one node over time; `points` are [unix seconds, value], ascending."""

    host: str
    name: str
    type: str
    operator: str
    window: str
    unit: str
    points: list[tuple[UnixSeconds, Finite]]


class HistoryRow(msgspec.Struct):
    """The same, one row a value (`?shape=rows`), as table-minded readers such as Grafana's Infinity like it."""

    time: UnixSeconds
    host: str
    name: str
    type: str
    operator: str
    window: str
    value: Finite


class HistoryDocument(msgspec.Struct):
    """Body of GET /api/v1/history. `step` in seconds: the distance of the points that were asked for."""

    start: UnixSeconds
    end: UnixSeconds
    step: int
    series: list[HistorySeries] = []
    rows: list[HistoryRow] = []


class FindingEntry(msgspec.Struct):
    """A finding with how often and since when. Equal kind, node and metric are one entry."""

    kind: str
    node: str
    metric: str
    reason: str
    remedy: str
    first_seen: UnixSeconds
    last_seen: UnixSeconds
    count: int


class QuerySource(msgspec.Struct):
    """What the provider uses for a metric, and why."""

    metric: str
    type: str
    expression: str
    unit: str
    node_label: str
    smoothing_s: float
    reason: str


class FindingsDocument(msgspec.Struct):
    """Body of GET /api/v1/findings, newest first."""

    timestamp: UnixSeconds
    review_mode: str
    findings: list[FindingEntry]
    sources: list[QuerySource]


class ErrorDetail(msgspec.Struct):
    """What went wrong, and what to do about it."""

    code: str
    message: str
    hint: str = ""


class ErrorDocument(msgspec.Struct):
    """Every error of the API has this shape."""

    error: ErrorDetail
