"""The documents of the HTTP API as msgspec structs: field names and types are the wire format."""

from __future__ import annotations

from typing import Annotated

import msgspec

Finite = Annotated[float, msgspec.Meta(description="finite; at most 15 significant digits, no exponent")]
UnixSeconds = Annotated[int, msgspec.Meta(description="unix time in seconds")]


class MetricValue(msgspec.Struct):
    """One value of one node. `name` is upstream's recording rule name; `rollup` is the window that the value covers, ""
    for Latest."""

    name: str
    type: str
    operator: str
    rollup: str = ""
    value: Finite = 0.0


class NodeTagsMetadata(msgspec.Struct):
    """Always empty; part of the format that the Go client reads."""

    dataCenter: str = ""  # noqa: N815  (wire name)


class NodeMetricsEntry(msgspec.Struct, omit_defaults=False):
    """Metrics of one node. `sampled` is the unix time in seconds of its newest sample. `age_s` (seconds) is present
    only for a node that is silent, or whose last values are held during a partial outage."""

    metrics: list[MetricValue] = []
    tags: dict[str, str] = {}
    metadata: NodeTagsMetadata = msgspec.field(default_factory=NodeTagsMetadata)
    sampled: UnixSeconds = 0
    age_s: float | msgspec.UnsetType = msgspec.UNSET


class WindowInfo(msgspec.Struct):
    """The requested window: `end` is the time of the newest accepted sample, `start` = `end` - `duration`."""

    duration: str
    start: UnixSeconds
    end: UnixSeconds


class NodeMetricsData(msgspec.Struct):
    """The format that upstream's load-watcher writes and its Go client reads."""

    NodeMetricsMap: dict[str, NodeMetricsEntry] = {}


class WatcherDocument(msgspec.Struct):
    """Body of GET /watcher in the default shape."""

    timestamp: UnixSeconds
    window: WindowInfo
    source: str
    data: NodeMetricsData


class KepWatcherDocument(msgspec.Struct):
    """Body of GET /watcher?shape=kep: the nodes are directly under `data`, as in KEP-61."""

    timestamp: UnixSeconds
    window: WindowInfo
    source: str
    data: dict[str, NodeMetricsEntry]


class Column(msgspec.Struct):
    """One metric and operator for all nodes, null if absent. `window` is the window that the values cover ("" for
    Latest). A node that fell back to a shorter window is in that window's column, so each (node, metric, operator) is
    in one column only."""

    name: str
    type: str
    operator: str
    window: str
    unit: str
    values: list[float | None]


class AggregateColumn(msgspec.Struct):
    """One statistic (avg, p50, p90, p95 or p99) of CPU or Memory for all nodes, in percent of capacity, null if
    unknown. `duration_s` is the period that it covers in seconds; 0 is the averaging period of each node."""

    type: str
    statistic: str
    duration_s: int
    values: list[float | None]


class AggregatesDocument(msgspec.Struct):
    """Usage of the nodes by the rules of a component, with one value per node. `interval_s` is the report interval and
    `period_s` the averaging period of each node in seconds."""

    rules: str
    interval_s: list[float]
    period_s: list[int]
    columns: list[AggregateColumn]


class ForecastColumn(msgspec.Struct):
    """The record of the bounds in the column FORECAST of a metric, one value per node: `coverage` is the share (0 to 1)
    of the bounds of the last week that held, null if none was judged, and `states` are those of GET
    /api/v1/forecasts."""

    name: str
    coverage: list[float | None]
    states: list[str]


class ForecastRecord(msgspec.Struct):
    """How far to trust the columns FORECAST: the probability `level` (0 to 1) that a bound holds over `horizon`, and
    the record of each metric. Without columns if forecasts are disabled."""

    horizon: str
    level: float
    columns: list[ForecastColumn]


class ColumnsDocument(msgspec.Struct):
    """Body of GET /api/v1/columns. `sampled[name][i]` is the unix time of node i's newest sample of that metric;
    `age_s[i]` is the age in seconds of a silent or held node, null for all other nodes. `silent` maps each silent node
    that is not among `nodes` to the unix time of its last sample; `source_ok` as in SilentDocument. `aggregates` is
    present only with `?aggregate=`, `forecasts` only with `?operator=FORECAST`."""

    timestamp: UnixSeconds
    window_end: UnixSeconds
    source: str
    nodes: list[str]
    sampled: dict[str, list[float | None]]
    columns: list[Column]
    smoothing_s: dict[str, float] = {}
    age_s: list[float | None] = []
    silent: dict[str, float] = {}
    source_ok: bool = True
    aggregates: AggregatesDocument | msgspec.UnsetType = msgspec.UNSET
    forecasts: ForecastRecord | msgspec.UnsetType = msgspec.UNSET


class PodPressure(msgspec.Struct):
    """Percentage of the time in which at least one task of each pod waits for the resource, averaged over
    `cores_span_s`; null if unknown."""

    cpu: list[float | None]
    memory: list[float | None]
    io: list[float | None]


class PodAverages(msgspec.Struct):
    """Mean usage and pressure of each pod over one window, null if too few minutes are known. `pressure` is present
    only if the source has it."""

    window: str
    cores: list[float | None]
    bytes: list[int | None]
    pressure: PodPressure | msgspec.UnsetType = msgspec.UNSET


class PodMinutes(msgspec.Struct):
    """Readings of the pods by minute, oldest minute first: each inner list has one value per pod, null without a
    reading. `newest` is the unix time in seconds at which the newest minute begins."""

    newest: UnixSeconds
    cores: list[list[float | None]]
    bytes: list[list[int | None]]


class PodsDocument(msgspec.Struct):
    """Body of GET /api/v1/pods: each list has one value per pod, ordered by namespace and name. `time` is the source's
    time of the newest reading in unix seconds; `cores` and `bytes` are null if the reading lacks them. The source
    averages cores over `cores_span_s` seconds; `bytes_kind` is rss or working_set. The source is queried every
    `every_s` seconds. `pressure` is present only if the source has it and a metric of the type Pressure is fetched,
    `minutes` only with `?minutes=`, `reason` only if there are no pods.

    Pod usage is known of a node for `valid_s` seconds after its time in `measured` (unix seconds), which also has nodes
    without pods; `unknown` has the cause for each node whose pod usage is unknown."""

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
    measured: dict[str, float] = {}
    unknown: dict[str, str] = {}
    valid_s: float = 300.0
    pressure: PodPressure | msgspec.UnsetType = msgspec.UNSET
    minutes: PodMinutes | msgspec.UnsetType = msgspec.UNSET
    reason: str | msgspec.UnsetType = msgspec.UNSET


class PodsOffer(msgspec.Struct):
    """Whether GET /api/v1/pods can be answered: `reason` says why not, "" if it can or may be after the next refresh.
    `minutes`: the parameter of this name is known; `known`: there is pod usage now."""

    reason: str
    minutes: bool = False
    known: bool = False


class ForecastsOffer(msgspec.Struct):
    """The forecasts that can be requested: their `level` (0 to 1), and `horizons`, empty if forecasts are disabled."""

    level: float = 0.0
    horizons: tuple[str, ...] = ()


class HistorySeries(msgspec.Struct):
    """One metric and operator of one node over time; `points` are [unix seconds, value], in ascending order."""

    host: str
    name: str
    type: str
    operator: str
    window: str
    unit: str
    points: list[tuple[UnixSeconds, Finite]]


class HistoryRow(msgspec.Struct):
    """The same data with one row per value (`?shape=rows`), for table readers such as Grafana's Infinity plug-in."""

    time: UnixSeconds
    host: str
    name: str
    type: str
    operator: str
    window: str
    value: Finite


class HistoryDocument(msgspec.Struct):
    """Body of GET /api/v1/history. `step` is the requested distance of the points in seconds."""

    start: UnixSeconds
    end: UnixSeconds
    step: int
    series: list[HistorySeries] = []
    rows: list[HistoryRow] = []


class FindingEntry(msgspec.Struct):
    """A finding with its number of occurrences. Findings with equal kind, node and metric are one entry."""

    kind: str
    node: str
    metric: str
    reason: str
    remedy: str
    first_seen: UnixSeconds
    last_seen: UnixSeconds
    count: int


class QuerySource(msgspec.Struct):
    """The provider's query for a metric, and the reason for its choice. `naming` states for each candidate for the
    name of a node how many series it maps to how many known nodes; it is empty for a source with one candidate."""

    metric: str
    type: str
    expression: str
    unit: str
    node_label: str
    smoothing_s: float
    reason: str
    naming: str = ""


class FindingsDocument(msgspec.Struct):
    """Body of GET /api/v1/findings, newest first."""

    timestamp: UnixSeconds
    review_mode: str
    findings: list[FindingEntry]
    sources: list[QuerySource]


class ErrorDetail(msgspec.Struct):
    """An error: its code for programs, its message, and a hint for the user."""

    code: str
    message: str
    hint: str = ""


class ErrorDocument(msgspec.Struct):
    """Body of every error response of the API."""

    error: ErrorDetail
