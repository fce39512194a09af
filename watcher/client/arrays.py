"""The data returned by clients: documents of the API as arrays, one row per node or pod."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import numpy as np

from watcher.arrays import F64, I64
from watcher.client.document_values import operator_of
from watcher.client.errors import WatcherError
from watcher.core.koordinator.aggregates import usages_of
from watcher.core.koordinator.report import NodeUsages
from watcher.core.pods.coverage import PodCoverage
from watcher.core.pods.table import Pod, by_node
from watcher.core.publishing.documents import SAMPLED_DECIMALS, forecast_record, select, to_wire
from watcher.core.publishing.selection import Selection
from watcher.core.publishing.wire import (
    AggregateColumn,
    AggregatesDocument,
    Column,
    ColumnsDocument,
    ForecastRecord,
    PodMinutes,
    PodsDocument,
)
from watcher.core.windows.silent_nodes import SilentDocument
from watcher.decoding.json_text import decode_json
from watcher.model import METRIC_BY_NAME, Operator, Snapshot


@dataclass(frozen=True, slots=True)
class NodeSilence:
    """Nodes without recent samples: `sampled` maps each of them to the unix time of its last sample, also if it is lost
    in a partial outage, and `served` is the number of nodes with recent samples. `source_ok` is false while the source
    does not respond completely, so that nodes may lack samples because of the source."""

    sampled: Mapping[str, float] = field(default_factory=dict)
    served: int = 0
    source_ok: bool = True


@dataclass(frozen=True, slots=True)
class NodeForecasts:
    """Upper bounds of the load of n nodes over `horizon` ("6h") by metric type, each [n]: `bounds` in percent, NaN
    without one, `coverage`, the share (0 to 1) of the bounds of the last week that held, NaN if unknown, and `states`,
    which say why there is no bound. A bound holds with probability `level` (0 to 1); 0 if forecasts are disabled."""

    horizon: str
    level: float
    bounds: Mapping[str, F64]
    coverage: Mapping[str, F64]
    states: Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class Columns:
    """One snapshot as arrays over n nodes; immutable, including the arrays. Times are unix seconds.

    `values[(name, operator)]` [n] is NaN where absent; `rollup` [n] is the length of the window that each value covers
    in seconds (0 for Latest). `sampled[name]` [n] is the time of each node's newest sample of that metric. `received`
    is the monotonic time of receipt and `age_at_receipt` the age of the newest sample at that time, both in seconds.
    `usages` are computed from the same snapshot by koordlet's rules, and `forecasts` are those of the requested
    horizon; None if the client does not request them."""

    timestamp: int
    window_end: int
    source: str
    nodes: tuple[str, ...]
    row: Mapping[str, int]
    values: Mapping[tuple[str, Operator], F64]
    rollup: Mapping[tuple[str, Operator], F64]
    types: Mapping[str, str]
    units: Mapping[str, str]
    sampled: Mapping[str, F64]
    smoothing_s: Mapping[str, float]
    age_s: F64
    received: float
    age_at_receipt: float
    usages: NodeUsages | None = None
    silence: NodeSilence = field(default_factory=NodeSilence)
    forecasts: NodeForecasts | None = None

    def of_type(self, metric_type: str, operator: Operator) -> F64:
        """The values [n] of the first metric of a type (CPU and Memory have one metric each), NaN where absent."""
        for (name, known), values in self.values.items():
            if known is operator and self.types[name] == metric_type:
                return values
        return np.full(len(self.nodes), np.nan)

    def age(self, monotonic: float) -> float:
        """Seconds between the newest sample of all nodes and `monotonic` (seconds of the monotonic clock)."""
        return self.age_at_receipt + monotonic - self.received


def to_columns(document: ColumnsDocument, *, received: float, age_at_receipt: float) -> Columns:
    """Convert the document of GET /api/v1/columns to arrays. `received` (monotonic) and `age_at_receipt` are in
    seconds. Raises WatcherError for an inconsistent document."""
    size = len(document.nodes)
    values, rollup = _by_metric(
        [(each.name, operator_of(each.operator), each.window, _array(each.values, size)) for each in document.columns],
        size,
    )
    return Columns(
        timestamp=document.timestamp,
        window_end=document.window_end,
        source=document.source,
        nodes=tuple(document.nodes),
        row={name: row for row, name in enumerate(document.nodes)},
        values=values,
        rollup=rollup,
        types={column.name: column.type for column in document.columns},
        units={column.name: column.unit for column in document.columns},
        sampled={name: _array(times, size) for name, times in document.sampled.items()},
        smoothing_s=document.smoothing_s,
        age_s=_array(document.age_s, size),
        received=received,
        age_at_receipt=age_at_receipt,
        silence=NodeSilence(document.silent, size, document.source_ok),
        usages=_usages(document.aggregates, size) if document.aggregates else None,
        forecasts=_forecasts(document.forecasts, values, size) if document.forecasts else None,
    )


def _forecasts(record: ForecastRecord, values: Mapping[tuple[str, Operator], F64], size: int) -> NodeForecasts:
    coverage, states, bounds = {}, {}, {}
    for column in record.columns:
        kind = METRIC_BY_NAME[column.name].type if column.name in METRIC_BY_NAME else column.name
        if len(column.states) != size:
            raise WatcherError("malformed", f"forecasts of {len(column.states)} nodes for {size} nodes")
        coverage[kind], states[kind] = _array(column.coverage, size), tuple(column.states)
        bounds[kind] = values.get((column.name, Operator.FORECAST), _frozen(np.full(size, np.nan)))
    return NodeForecasts(record.horizon, record.level, bounds, coverage, states)


def columns_of_snapshot(snapshot: Snapshot, selection: Selection, *, received: float, age_at_receipt: float) -> Columns:
    """Return what `to_columns` returns for the document of this selection, without making the document, and without
    usages and silent nodes."""
    size = len(snapshot.nodes)
    parts = select(snapshot, selection)
    values, rollup = _by_metric(
        [(each.metric.name, each.operator, each.rollup, to_wire(each.values)) for each in parts], size
    )
    metrics = {part.metric.name: part.metric for part in parts}
    chosen = [windows for windows in snapshot.metrics if windows.metric.name in metrics]
    return Columns(
        timestamp=int(snapshot.timestamp),
        window_end=int(snapshot.end),
        source=snapshot.source,
        nodes=snapshot.nodes,
        row={name: row for row, name in enumerate(snapshot.nodes)},
        values=values,
        rollup=rollup,
        types={name: metric.type for name, metric in metrics.items()},
        units={name: metric.unit for name, metric in metrics.items()},
        sampled={windows.metric.name: _frozen(np.round(windows.sampled, SAMPLED_DECIMALS)) for windows in chosen},
        smoothing_s={windows.metric.name: windows.provenance.smoothing_s for windows in chosen},
        age_s=_frozen(np.round(snapshot.age_s, SAMPLED_DECIMALS)),
        received=received,
        age_at_receipt=age_at_receipt,
        silence=NodeSilence(served=size),
        forecasts=_forecasts(record, values, size)
        if (record := forecast_record(snapshot, selection, metrics))
        else None,
    )


def _by_metric(
    parts: Sequence[tuple[str, Operator, str, F64]], size: int
) -> tuple[dict[tuple[str, Operator], F64], dict[tuple[str, Operator], F64]]:
    """Merge columns (metric, operator, label of the window, values [n]): a metric with values of several windows
    becomes one array. Returns the values, and the seconds of the window of each value."""
    values: dict[tuple[str, Operator], F64] = {}
    rollup: dict[tuple[str, Operator], F64] = {}
    for name, operator, window, part in parts:
        known = ~np.isnan(part)
        whole = values.setdefault((name, operator), np.full(size, np.nan))
        covered = rollup.setdefault((name, operator), np.full(size, np.nan))
        whole[known] = part[known]
        covered[known] = seconds_of(window)
    for array in (*values.values(), *rollup.values()):
        array.flags.writeable = False
    return values, rollup


def to_silence(document: SilentDocument) -> NodeSilence:
    """Convert the document of GET /api/v1/silent."""
    known = {node.name: node.sampled for node in document.nodes if node.sampled is not None}
    return NodeSilence(known | document.lost, document.served, document.source_ok)


def _usages(document: AggregatesDocument, size: int) -> NodeUsages:
    try:
        usages = usages_of(document)
    except ValueError as error:
        raise WatcherError("malformed", f"aggregates: {error}") from None
    if len(usages.interval) != size:
        raise WatcherError("malformed", f"aggregates of {len(usages.interval)} nodes for {size} nodes")
    return usages


@dataclass(frozen=True, slots=True)
class PodColumns:
    """The usage of n pods as arrays, ordered by namespace and name; immutable, including the arrays.

    `sampled` [n] is the time of each pod's newest reading in unix seconds, as reported by its source. `cores` [n] and
    `memory` [n] (bytes) are NaN where unknown; the source averages cores over `cores_span_s` seconds, and `memory_kind`
    is "rss" or "working_set". `average[window label]` is the mean (cores, memory) over that window. `on_node` maps a
    node to its rows. A new reading arrives every `every_s` seconds. `recent` contains one reading (cores, memory) per
    minute over the longest window, each [minutes, n], NaN where missing; None if the client does not request it.
    `coverage` says of which nodes the usage of pods is known, None if the watcher does not say it: see `covered`.
    """

    timestamp: int
    source: str
    every_s: float
    cores_span_s: float
    memory_kind: str
    pods: tuple[Pod, ...]
    nodes: tuple[str, ...]
    row: Mapping[Pod, int]
    on_node: Mapping[str, I64]
    sampled: F64
    cores: F64
    memory: F64
    average: Mapping[str, tuple[F64, F64]]
    received: float
    age_at_receipt: float
    recent: tuple[F64, F64] | None = None
    coverage: PodCoverage | None = None

    def age(self, monotonic: float) -> float:
        """Seconds between the newest reading of all pods and `monotonic` (seconds of the monotonic clock)."""
        return self.age_at_receipt + monotonic - self.received

    def covered(self) -> PodCoverage:
        """The coverage; without one, that of the readings."""
        if self.coverage is not None:
            return self.coverage
        return PodCoverage({node: float(self.sampled[rows].max()) for node, rows in self.on_node.items()})


def to_pods(document: PodsDocument, *, received: float, age_at_receipt: float) -> PodColumns:
    """Convert the document of GET /api/v1/pods to arrays. `received` (monotonic) and `age_at_receipt` are in seconds.
    Raises WatcherError for an inconsistent document."""
    size = len(document.pod)
    if not size == len(document.namespace) == len(document.node):
        raise WatcherError("malformed", f"{size} pods, but a different number of namespaces or nodes")
    shared: dict[str, str] = {}  # deduplicates strings: the decoder creates separate ones for each pod
    namespaces = (shared.setdefault(name, name) for name in document.namespace)
    pods = tuple(zip(namespaces, document.pod, strict=True))
    nodes = tuple(shared.setdefault(name, name) for name in document.node)
    sampled, on_node = _array(document.time, size), by_node(nodes)
    return PodColumns(
        timestamp=document.timestamp,
        source=document.source,
        every_s=document.every_s,
        cores_span_s=document.cores_span_s,
        memory_kind=document.bytes_kind,
        pods=pods,
        nodes=nodes,
        row={pod: row for row, pod in enumerate(pods)},
        on_node=on_node,
        sampled=sampled,
        cores=_array(document.cores, size),
        memory=_array(document.bytes, size),
        average={each.window: (_array(each.cores, size), _array(each.bytes, size)) for each in document.averages},
        received=received,
        age_at_receipt=age_at_receipt,
        recent=_minutes(document.minutes, size) if document.minutes else None,
        coverage=PodCoverage(document.measured, document.unknown, document.valid_s) if document.measured else None,
    )


def _minutes(document: PodMinutes, size: int) -> tuple[F64, F64]:
    if len(document.cores) != len(document.bytes):
        raise WatcherError("malformed", f"{len(document.cores)} minutes of cores, {len(document.bytes)} of bytes")
    both = []
    for rows in (document.cores, document.bytes):
        array = np.array([_array(row, size) for row in rows]).reshape(len(rows), size)
        array.flags.writeable = False
        both.append(array)
    return both[0], both[1]


def is_same_document(one: Columns | PodColumns | None, other: Columns | PodColumns | None) -> bool:
    """Whether both are copies of one document: a client over HTTP returns a new object for each unchanged response."""
    return one is not None and other is not None and one.row is other.row


# --- decoding --------------------------------------------------------------------------------------------------------

Document = TypeVar("Document", bound=msgspec.Struct)


def decode_columns(body: bytes) -> ColumnsDocument:
    """Decode a document of columns in parts. Raises msgspec.DecodeError."""
    raw = decode_json(body, type=dict[str, msgspec.Raw])
    columns = _decoded_list(raw.pop("columns", None), Column)
    aggregates = raw.pop("aggregates", None)
    document = _decoded(raw, ColumnsDocument, columns=columns)
    if aggregates is not None:
        parts = decode_json(aggregates, type=dict[str, msgspec.Raw])
        each = _decoded_list(parts.pop("columns", None), AggregateColumn)
        document.aggregates = _decoded(parts, AggregatesDocument, columns=each)
    return document


def decode_pods(body: bytes) -> PodsDocument:
    """Decode a document of pods in parts. Raises msgspec.DecodeError."""
    raw = decode_json(body, type=dict[str, msgspec.Raw])
    minutes = raw.pop("minutes", None)
    document = _decoded(raw, PodsDocument)
    if minutes is not None:
        parts = decode_json(minutes, type=dict[str, msgspec.Raw])
        cores = _decoded_list(parts.pop("cores", None), list[float | None])
        amounts = _decoded_list(parts.pop("bytes", None), list[int | None])
        document.minutes = _decoded(parts, PodMinutes, cores=cores, bytes=amounts)
    return document


def _decoded(raw: Mapping[str, msgspec.Raw], kind: type[Document], **decoded: Any) -> Document:
    """Decode the members of an object one at a time, so that other threads can run between two members. `decoded` are
    members that the caller has decoded."""
    for each in msgspec.structs.fields(kind):
        if each.name in raw:
            decoded[each.name] = decode_json(raw[each.name], type=each.type)
        elif each.required and each.name not in decoded:
            raise msgspec.ValidationError(f"missing field: {each.name}")
    return kind(**decoded)


def _decoded_list(raw: msgspec.Raw | None, kind: Any) -> list[Any]:
    if raw is None:
        raise msgspec.ValidationError("a list of columns is missing")
    return [decode_json(each, type=kind) for each in decode_json(raw, type=list[msgspec.Raw])]


def _array(values: Sequence[float | None], size: int) -> F64:
    if len(values) != size:
        raise WatcherError("malformed", f"a column has {len(values)} values for {size} rows")
    try:
        return _frozen(np.array(values, dtype=np.float64) if size else np.empty(0))  # None becomes NaN
    except OverflowError:
        raise WatcherError("malformed", "a column has an integer that is too large") from None


def _frozen(array: F64) -> F64:
    array.flags.writeable = False
    return array


def seconds_of(label: str) -> float:
    """Seconds of a window's label ("15m", "90s", "1h"); 0 for "", the label of Latest."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    if not label:
        return 0.0
    try:
        return float(label[:-1]) * units[label[-1]]
    except (KeyError, ValueError):
        raise WatcherError("malformed", f"invalid window label {label[:40]!r}") from None
