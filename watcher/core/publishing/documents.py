"""Encoding of a snapshot to the response bodies that are served.

Thousands of schedulers and dashboards may request the same document between two ticks; upstream encodes it for every
request. Here it is encoded once per tick: one fragment per node, joined to one text per window, compressed once per
content coding. The response for one node is a slice of that text.

The text is written with templates, one column of numbers at a time, which is several times faster than an encoder that
walks objects; `wire.WatcherDocument` defines the format, and tests check that both agree. Long operations run in
chunks of a thousand nodes, because they run in a thread next to the event loop and a C call does not release the GIL.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from threading import Lock

import msgspec
import numpy as np
import zstandard

from watcher.arrays import F64, I64, Bool
from watcher.core.forecast.states import STATES
from watcher.core.publishing.compression import (
    CHUNK_NODES,
    PLAIN_BYTES,
    Encoding,
    NodeFrames,
    _frames,
    compressed,
    deflate,
    gzip_of,
    node_frames,
    zstd_frame,
)
from watcher.core.publishing.selection import Selection, Shape
from watcher.core.publishing.wire import Column, ColumnsDocument, ForecastColumn, ForecastRecord
from watcher.core.windows.hot_loads import HotLoads
from watcher.core.windows.silent_nodes import SilentDocument
from watcher.model import DEFAULT_OPERATORS, Metric, MetricType, MetricWindows, Operator, Snapshot, Window

LATEST_ROLLUP = ""
CACHE_BYTES = 64 << 20  # size in bytes of the cached documents with other selections, per snapshot
SIGNIFICANT_DIGITS = 15  # the Trimaran Go client parses at most 18 digits correctly
MAX_DECIMALS = 10
SAMPLED_DECIMALS = 3  # of times and ages in seconds
COVERAGE_DECIMALS = 4  # of a share, 0 to 1
LARGEST = 1e15
_ALWAYS_KNOWN_LOAD = (MetricType.CPU, MetricType.MEMORY)


@dataclass(frozen=True, slots=True)
class MetricColumn:
    """One metric and operator of the nodes that a window covers: `values` [n], NaN for all other nodes. `rollup` is the
    window's label, "" for Latest, the horizon for FORECAST. In all columns of a selection, each (node, metric,
    operator) has at most one value.
    """

    metric: Metric
    operator: Operator
    rollup: str
    values: F64


def select(snapshot: Snapshot, selection: Selection) -> list[MetricColumn]:
    """Return the columns of a selection, in wire order.

    A node with too few samples for the requested window gets the next shorter window. If AVG is requested and no window
    has enough samples, Latest replaces it. A selection with neither AVG nor Latest also gets AVG for CPU and Memory:
    without AVG or Latest, the Trimaran Go plug-ins assume a load of 0.
    """
    asked = selection.operators or DEFAULT_OPERATORS
    parts: list[MetricColumn] = []
    for windows in snapshot.metrics:
        metric = windows.metric
        if selection.types is not None and metric.type not in selection.types:
            continue
        operators = set(asked)
        if not operators & {Operator.AVG, Operator.LATEST} and metric.type in _ALWAYS_KNOWN_LOAD:
            operators.add(Operator.AVG)
        for operator in Operator:
            if operator is Operator.FORECAST and operator in operators:
                parts.extend(_forecast(snapshot, metric, selection.horizon))
            elif operator in operators:
                parts.extend(_parts(snapshot, selection.window, windows, operator))
                if operator is Operator.AVG and Operator.LATEST not in operators:
                    parts.extend(_latest_where_no_window(snapshot, selection.window, windows))
    return parts


def _forecast(snapshot: Snapshot, metric: Metric, horizon: str) -> Iterator[MetricColumn]:
    forecasts = snapshot.forecasts
    if forecasts is None:
        return
    horizon = horizon or forecasts.horizon
    bounds = forecasts.bounds.get((metric.name, horizon))
    if bounds is not None and not np.isnan(bounds).all():
        yield MetricColumn(metric, Operator.FORECAST, horizon, bounds)


def _parts(snapshot: Snapshot, window: Window, windows: MetricWindows, operator: Operator) -> Iterator[MetricColumn]:
    metric = windows.metric
    if operator is Operator.LATEST:
        yield MetricColumn(metric, operator, LATEST_ROLLUP, windows.latest)
        return
    values = _values(snapshot, windows, operator)
    for index, open_nodes in _fallback(snapshot, window, windows):
        part = np.where(open_nodes, values[index], np.nan)
        if not np.isnan(part).all():
            yield MetricColumn(metric, operator, snapshot.windows[index].label, part)


def _values(snapshot: Snapshot, windows: MetricWindows, operator: Operator) -> F64:
    if operator is Operator.AVG:
        return windows.average
    if operator is Operator.STD:
        return windows.deviation
    if snapshot.on_demand is None:
        return np.full_like(windows.average, np.nan)
    return snapshot.on_demand(windows.metric.name, operator)


def _fallback(snapshot: Snapshot, window: Window, windows: MetricWindows) -> Iterator[tuple[int, Bool]]:
    """Yield, from the requested window down to the shortest, its index and the nodes [n] that are served from it."""
    waiting = np.ones(len(snapshot.nodes), dtype=bool)
    for index in reversed(range(len(snapshot.windows))):
        if snapshot.windows[index].seconds > window.seconds:
            continue
        covered = ~np.isnan(windows.average[index])
        yield index, waiting & covered
        waiting = waiting & ~covered
        if not waiting.any():
            return


def _latest_where_no_window(snapshot: Snapshot, window: Window, windows: MetricWindows) -> Iterator[MetricColumn]:
    shorter = [index for index, known in enumerate(snapshot.windows) if known.seconds <= window.seconds]
    none = np.isnan(windows.average[shorter]).all(axis=0)
    latest = np.where(none, windows.latest, np.nan)
    if not np.isnan(latest).all():
        yield MetricColumn(windows.metric, Operator.LATEST, LATEST_ROLLUP, latest)


# --- numbers to text -------------------------------------------------------------------------------------------------


def to_wire(values: F64) -> F64:
    """Round values for the wire: at most 15 significant digits and 10 decimals; NaN for values that are not finite or
    too large."""
    with np.errstate(divide="ignore", invalid="ignore"):
        magnitude = np.floor(np.log10(np.abs(values)))
        decimals = np.clip(SIGNIFICANT_DIGITS - 1 - np.nan_to_num(magnitude, neginf=0.0), 0, MAX_DECIMALS)
        scale = np.power(10.0, decimals)
        rounded = np.rint(values * scale) / scale
    rounded = rounded + 0.0  # -0.0 becomes 0.0
    return np.where(np.isfinite(rounded) & (np.abs(rounded) < LARGEST), rounded, np.nan)


def number_texts(values: F64) -> list[bytes]:
    """Return finite values, as returned by `to_wire`, as JSON numbers without exponents, in the same order."""
    if not len(values):
        return []
    texts = msgspec.json.encode(values.tolist())[1:-1].split(b",")
    tiny = np.flatnonzero((values != 0) & (np.abs(values) < 1e-3))
    for position in tiny.tolist():  # the encoder writes small numbers with an exponent
        texts[position] = f"{values[position]:.{MAX_DECIMALS}f}".rstrip("0").encode()
    return texts


# --- the document ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class EncodedDocument:
    """One selection of one snapshot as JSON text. `text` is the whole body in the watcher shape; node i of `rows` [m]
    (rows of the snapshot, ascending) is at `offsets[i]` to `offsets[i + 1]` in it, including a comma.

    A packed document has no `text`, only compressed bodies: it takes a tenth of the memory, but an uncompressed body
    must be decompressed, and single nodes are encoded again from `parts`.
    """

    snapshot: Snapshot
    parts: Sequence[MetricColumn]
    text: bytes
    offsets: I64
    rows: I64
    heads: dict[Shape, bytes]
    tails: dict[Shape, bytes]
    _compressed: dict[tuple[Shape, Encoding], bytes] = field(default_factory=dict)

    def body(self, shape: Shape, encoding: Encoding = Encoding.IDENTITY) -> bytes:
        """Return the whole document. Compressed bodies are created on the first call and cached."""
        if encoding is Encoding.IDENTITY:
            # the KEP shape is rarely requested uncompressed: joining it costs less than caching it
            return self._plain() if shape is Shape.WATCHER else b"".join(self._parts(shape))
        if (shape, encoding) not in self._compressed:
            if encoding is Encoding.GZIP:
                self._make_gzip()
            else:
                self._make_zstd(shape)
        return self._compressed[shape, encoding]

    def is_ready(self, shape: Shape, encoding: Encoding) -> bool:
        """Return whether `body` can return this body without compressing or decompressing."""
        return bool(self.text) if encoding is Encoding.IDENTITY else (shape, encoding) in self._compressed

    def compress(self) -> None:
        """Create the compressed bodies, except zstd of the KEP shape: it shares no work with the others, and would take
        a fifth of the total time."""
        self._make_gzip()
        self._make_zstd(Shape.WATCHER)

    def pack(self) -> None:
        """Discard the uncompressed text. Call `compress` first."""
        self.text = b""

    def subset(self, rows: Sequence[int], shape: Shape) -> bytes:
        """Return the document with only these rows of the snapshot, in its order; rows without values are skipped."""
        texts = [text for row in sorted(set(rows)) if (text := self._node(row))]
        return b"".join((self.heads[shape], b",".join(texts), self.tails[shape]))

    def has(self, row: int) -> bool:
        """Return whether this row of the snapshot is in this document."""
        return self._position(row) is not None

    @property
    def empty(self) -> bool:
        """Whether the document contains no node."""
        return not len(self.rows)

    @property
    def size(self) -> int:
        """Size of the text and the compressed bodies in bytes."""
        return len(self.text) + sum(len(body) for body in self._compressed.values())

    def _node(self, row: int) -> bytes:
        at = self._position(row)
        if at is None:
            return b""
        if self.text:
            return self.text[self.offsets[at] : self.offsets[at + 1] - 1]
        return _node_texts(self.parts, node_frames(self.snapshot, row, row + 1), row, row + 1)[0]

    def _position(self, row: int) -> int | None:
        at = int(np.searchsorted(self.rows, row))
        return at if at < len(self.rows) and int(self.rows[at]) == row else None

    def _plain(self) -> bytes:
        if self.text:
            return self.text
        return zstandard.ZstdDecompressor().decompress(self._compressed[Shape.WATCHER, Encoding.ZSTD])

    def _parts(self, shape: Shape) -> tuple[bytes, memoryview, bytes]:
        nodes = memoryview(self._plain())[len(self.heads[Shape.WATCHER]) : -len(self.tails[Shape.WATCHER])]
        return self.heads[shape], nodes, self.tails[shape]

    def _make_gzip(self) -> None:
        _, nodes, _ = self._parts(Shape.WATCHER)
        deflated = deflate(nodes)  # shared by all shapes
        for shape in Shape:
            self._compressed[shape, Encoding.GZIP] = gzip_of(self.heads[shape], deflated, self.tails[shape])

    def _make_zstd(self, shape: Shape) -> None:
        text = self.body(shape)
        self._compressed[shape, Encoding.ZSTD] = zstd_frame(text)


def encode(snapshot: Snapshot, selection: Selection, ends: NodeFrames | None = None) -> EncodedDocument:
    """Encode the document of a selection. Nodes without a value are left out: the Go client treats an empty node and an
    absent node in the same way. `ends` is the result of `node_frames` for this snapshot, if already computed."""
    parts = [
        MetricColumn(part.metric, part.operator, part.rollup, to_wire(part.values))
        for part in select(snapshot, selection)
    ]
    heads, tails = _frames(snapshot, selection.window)
    # A growing buffer: joining all nodes at the end would hold the GIL for long and need the memory twice.
    text = BytesIO()
    text.write(heads[Shape.WATCHER])
    lengths: list[I64] = []
    ends = ends or node_frames(snapshot)
    for start in range(0, len(snapshot.nodes), CHUNK_NODES):
        stop = min(start + CHUNK_NODES, len(snapshot.nodes))
        here = NodeFrames(ends.openings[start:stop], ends.closings[start:stop])
        nodes = _node_texts(parts, here, start, stop)
        length = np.fromiter(map(len, nodes), dtype=np.int64, count=len(nodes))
        known = nodes if length.all() else list(filter(None, nodes))
        if known:
            if text.tell() > len(heads[Shape.WATCHER]):
                text.write(b",")
            text.write(b",".join(known))
        lengths.append(length)
    text.write(tails[Shape.WATCHER])
    length = np.concatenate(lengths) if lengths else np.empty(0, dtype=np.int64)
    rows = np.flatnonzero(length)
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(length[rows] + 1, out=offsets[1:])
    offsets += len(heads[Shape.WATCHER])
    return EncodedDocument(snapshot, parts, text.getvalue(), offsets, rows, heads, tails)


def _node_texts(parts: Sequence[MetricColumn], ends: NodeFrames, start: int, stop: int) -> list[bytes]:
    """Return `"name":{...}` of the nodes start..stop with their `ends`; b"" for a node without a value."""
    join = b"".join
    if parts and not any(np.isnan(part.values[start:stop]).any() for part in parts):
        # the usual case: every node has every metric, and one join writes a node
        columns: list[Iterable[bytes]] = [ends.openings]
        for number, part in enumerate(parts):
            key = _key(part)
            columns += (itertools.repeat(key if number else key[2:]), number_texts(part.values[start:stop]))
        return list(map(join, zip(*columns, ends.closings, strict=False)))
    pieces = [_pieces(part, start, stop) for part in parts]
    metrics = map(join, zip(*pieces, strict=True)) if pieces else [b""] * (stop - start)
    return [
        join((opening, metric[2:], closing)) if metric else b""
        for opening, metric, closing in zip(ends.openings, metrics, ends.closings, strict=True)
    ]


def _key(part: MetricColumn) -> bytes:
    """Return the text before a value: the end of the previous metric, which is cut off for the first metric, and this
    metric up to its value."""
    return b'},{"name":%s,"type":"%s","operator":"%s","rollup":"%s","value":' % (
        msgspec.json.encode(part.metric.name),
        part.metric.type.encode(),
        part.operator.encode(),
        part.rollup.encode(),
    )


def _pieces(part: MetricColumn, start: int, stop: int) -> list[bytes]:
    """Return `},{"name":...,"value":1.5` for each node, b"" if the value is NaN."""
    values, key = part.values[start:stop], _key(part)
    known = np.flatnonzero(~np.isnan(values))
    column = [b""] * len(values)
    for position, text in zip(known.tolist(), number_texts(values[known]), strict=True):
        column[position] = key + text
    return column


# --- columns ---------------------------------------------------------------------------------------------------------


def columns(snapshot: Snapshot, selection: Selection) -> ColumnsDocument:
    """Return a selection as columns (GET /api/v1/columns), which the scorers' client converts to arrays."""
    parts = select(snapshot, selection)
    names = {part.metric.name for part in parts}
    chosen = [windows for windows in snapshot.metrics if windows.metric.name in names]
    return ColumnsDocument(
        timestamp=int(snapshot.timestamp),
        window_end=int(snapshot.end),
        source=snapshot.source,
        nodes=list(snapshot.nodes),
        sampled={
            w.metric.name: nullable(np.round(w.sampled, SAMPLED_DECIMALS))
            for w in snapshot.metrics
            if w.metric.name in names
        },
        columns=[
            Column(
                name=part.metric.name,
                type=part.metric.type,
                operator=part.operator,
                window=part.rollup,
                unit=part.metric.unit,
                values=nullable(to_wire(part.values)),
            )
            for part in parts
        ],
        smoothing_s={w.metric.name: w.provenance.smoothing_s for w in chosen},
        age_s=nullable(np.round(snapshot.age_s, SAMPLED_DECIMALS)),
        forecasts=forecast_record(snapshot, selection, names),
    )


def forecast_record(
    snapshot: Snapshot, selection: Selection, names: Collection[str]
) -> ForecastRecord | msgspec.UnsetType:
    """Return the record of the selected forecasts of these metrics, UNSET if none are selected."""
    if Operator.FORECAST not in (selection.operators or ()):
        return msgspec.UNSET
    if (forecasts := snapshot.forecasts) is None:
        return ForecastRecord(selection.horizon, 0.0, [])
    horizon = selection.horizon or forecasts.horizon
    columns = [
        ForecastColumn(
            name,
            nullable(np.round(coverage, COVERAGE_DECIMALS)),
            [STATES[code] for code in forecasts.states[name, label].tolist()],
        )
        for (name, label), coverage in forecasts.coverage.items()
        if label == horizon and name in names
    ]
    return ForecastRecord(horizon, forecasts.level, columns)


def published_columns(published: Published, selection: Selection) -> ColumnsDocument:
    """Return a selection of the published snapshot as columns, with the silent nodes and the state of the source."""
    document = columns(published.snapshot, selection)
    silence = published.silent.document
    document.silent = {node.name: node.sampled for node in silence.nodes if node.sampled is not None}
    document.source_ok = silence.source_ok
    return document


def nullable(values: F64) -> list[float | None]:
    """Return the values as a list for JSON, None for NaN."""
    return [None if value != value else value for value in values.tolist()]


# --- published snapshot ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SilentBody:
    """Body of /api/v1/silent in every content coding; `tag` changes only with the content."""

    names: frozenset[str]
    tag: str
    bodies: Mapping[Encoding, bytes]
    document: SilentDocument

    @classmethod
    def of(cls, document: SilentDocument) -> SilentBody:
        """Encode the document as JSON, and compress it with every content coding."""
        text = msgspec.json.encode(document)
        tag = hashlib.blake2s(text, digest_size=8).hexdigest()
        names = frozenset(node.name for node in document.nodes)
        return cls(names, tag, {encoding: compressed(text, encoding) for encoding in Encoding}, document)


class Published:
    """A snapshot with its bodies, replaced as a whole by the next tick. Reading needs no lock. Documents other than the
    default documents are encoded on the first request and cached up to a size limit. Only `silent` may be replaced,
    when last-seen times of nodes outside the snapshot are found, and when the state of the source changes; and `hot`,
    when the store has earlier starts of high loads.

    `tag` makes its ETags unique among all snapshots. `age_s` is the age of its newest sample in seconds when it was
    published at `monotonic` seconds, so that computing its age later needs no wall clock.
    """

    def __init__(self, snapshot: Snapshot, *, tag: str, monotonic: float, age_s: float) -> None:
        self.snapshot = snapshot
        self.tag = tag
        self.monotonic = monotonic
        self.age_s = age_s
        self.silent = SilentBody.of(SilentDocument(listed=False, nodes=[]))
        self.hot = HotLoads()
        self.row = {name: row for row, name in enumerate(snapshot.nodes)}
        self._default: dict[Window, EncodedDocument] = {}
        self._others: OrderedDict[Selection, EncodedDocument] = OrderedDict()
        self._lock = Lock()

    def encode_default(self, *, plain_bytes: int = PLAIN_BYTES) -> None:
        """Encode and compress every window. Called once, in a worker thread, before publishing. Windows of more than
        `plain_bytes` bytes are packed, except the longest window, which most clients request."""
        ends = node_frames(self.snapshot)
        for window in self.snapshot.windows:
            document = encode(self.snapshot, Selection(window), ends)
            document.compress()
            if window != self.snapshot.windows[-1] and document.size > plain_bytes:
                document.pack()
            self._default[window] = document

    def age(self, monotonic: float) -> float:
        """Return the age of the newest sample in seconds at `monotonic` (seconds of the monotonic clock)."""
        return max(0.0, self.age_s + monotonic - self.monotonic)

    def ready_document(self, selection: Selection) -> EncodedDocument | None:
        """Return the document if it is already encoded, otherwise None; fast."""
        if selection.types is None and selection.operators is None:
            return self._default.get(selection.window)
        with self._lock:
            document = self._others.get(selection)
            if document is not None:
                self._others.move_to_end(selection)
            return document

    def document(self, selection: Selection) -> EncodedDocument:
        """Return the document; encode it if necessary, which takes tens of milliseconds: call it in a thread."""
        document = self.ready_document(selection)
        if document is not None:
            return document
        document = encode(self.snapshot, selection)
        with self._lock:
            self._others[selection] = document
            while len(self._others) > 1 and sum(kept.size for kept in self._others.values()) > CACHE_BYTES:
                self._others.popitem(last=False)
        return document
