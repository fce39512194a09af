"""From a snapshot to the bytes that are served.

Thousands of schedulers and dashboards may ask for the same document between two ticks, and the original encodes it anew
for each. Here it is written once per tick: one fragment per node, joined into one text per window, compressed once per
encoding. A request for one node is a slice of that text.

The text is written with templates, a column of numbers at a time, which is several times quicker than an encoder that
walks objects; `model.WatcherDocument` says what the shape is, and tests hold that both agree. All long work is done in
pieces of a thousand nodes, because it runs in a thread beside the event loop and a C call does not share the GIL.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from threading import Lock

import msgspec
import numpy as np
import zstandard

from watcher.arrays import F64, I64, Bool
from watcher.core.publishing.compression import (
    CHUNK_NODES,
    PLAIN_BYTES,
    Encoding,
    Ends,
    _frames,
    compressed,
    deflate,
    ends_of,
    gzip_of,
)
from watcher.core.publishing.selection import Selection, Shape
from watcher.core.publishing.wire import Column, ColumnsDocument
from watcher.core.windows.silent_nodes import SilentDocument
from watcher.model import DEFAULT_OPERATORS, Metric, MetricType, MetricWindows, Operator, Snapshot, Window

LATEST_ROLLUP = ""
REMEMBERED_BYTES = 64 << 20  # of documents other than the default ones, per snapshot
SIGNIFICANT_DIGITS = 15  # the Go client reads at most 18 digits right (trimaran.md 1.2)
MAX_DECIMALS = 10
LARGEST = 1e15
_ALWAYS_KNOWN_LOAD = (MetricType.CPU, MetricType.MEMORY)


@dataclass(frozen=True, slots=True)
class Part:
    """One metric and operator over the nodes that a window covers: `values` [n], NaN for all others. `rollup` is that
    window's label, "" for Latest. Among the parts of a selection each (node, metric, operator) is known at most once.
    """

    metric: Metric
    operator: Operator
    rollup: str
    values: F64


def select(snapshot: Snapshot, selection: Selection) -> list[Part]:
    """The numbers that answer a selection, in the order of the wire (contract 5, GET /watcher).

    A node that has not enough samples for the asked window stands with the next shorter one. Where AVG is wanted and
    no window counts, Latest stands in for it. A selection with neither AVG nor Latest gets AVG for CPU and Memory: the
    Go plug-ins take any other operator alone for a known load of 0 (trimaran.md 2.6).
    """
    asked = selection.operators or DEFAULT_OPERATORS
    parts: list[Part] = []
    for windows in snapshot.metrics:
        metric = windows.metric
        if selection.types is not None and metric.type not in selection.types:
            continue
        operators = set(asked)
        if not operators & {Operator.AVG, Operator.LATEST} and metric.type in _ALWAYS_KNOWN_LOAD:
            operators.add(Operator.AVG)
        for operator in Operator:
            if operator in operators:
                parts.extend(_parts(snapshot, selection.window, windows, operator))
                if operator is Operator.AVG and Operator.LATEST not in operators:
                    parts.extend(_latest_where_no_window(snapshot, selection.window, windows))
    return parts


def _parts(snapshot: Snapshot, window: Window, windows: MetricWindows, operator: Operator) -> Iterator[Part]:
    metric = windows.metric
    if operator is Operator.LATEST:
        yield Part(metric, operator, LATEST_ROLLUP, windows.latest)
        return
    values = _values(snapshot, windows, operator)
    for index, open_nodes in _fallback(snapshot, window, windows):
        part = np.where(open_nodes, values[index], np.nan)
        if not np.isnan(part).all():
            yield Part(metric, operator, snapshot.windows[index].label, part)


def _values(snapshot: Snapshot, windows: MetricWindows, operator: Operator) -> F64:
    if operator is Operator.AVG:
        return windows.average
    if operator is Operator.STD:
        return windows.deviation
    if snapshot.on_demand is None:
        return np.full_like(windows.average, np.nan)
    return snapshot.on_demand(windows.metric.name, operator)


def _fallback(snapshot: Snapshot, window: Window, windows: MetricWindows) -> Iterator[tuple[int, Bool]]:
    """From the asked window down to the shortest: its index, and the nodes that are served from it."""
    waiting = np.ones(len(snapshot.nodes), dtype=bool)
    for index in reversed(range(len(snapshot.windows))):
        if snapshot.windows[index].seconds > window.seconds:
            continue
        covered = ~np.isnan(windows.average[index])
        yield index, waiting & covered
        waiting = waiting & ~covered
        if not waiting.any():
            return


def _latest_where_no_window(snapshot: Snapshot, window: Window, windows: MetricWindows) -> Iterator[Part]:
    shorter = [index for index, known in enumerate(snapshot.windows) if known.seconds <= window.seconds]
    none = np.isnan(windows.average[shorter]).all(axis=0)
    latest = np.where(none, windows.latest, np.nan)
    if not np.isnan(latest).all():
        yield Part(windows.metric, Operator.LATEST, LATEST_ROLLUP, latest)


# --- numbers to text -------------------------------------------------------------------------------------------------


def to_wire(values: F64) -> F64:
    """Values as the wire carries them: at most 15 significant digits and 10 decimals, NaN where it cannot."""
    with np.errstate(divide="ignore", invalid="ignore"):
        magnitude = np.floor(np.log10(np.abs(values)))
        decimals = np.clip(SIGNIFICANT_DIGITS - 1 - np.nan_to_num(magnitude, neginf=0.0), 0, MAX_DECIMALS)
        scale = np.power(10.0, decimals)
        rounded = np.rint(values * scale) / scale
    rounded = rounded + 0.0  # -0.0 becomes 0.0
    return np.where(np.isfinite(rounded) & (np.abs(rounded) < LARGEST), rounded, np.nan)


def number_texts(values: F64) -> list[bytes]:
    """JSON numbers of finite values as `to_wire` gives them, without exponents; same order."""
    if not len(values):
        return []
    texts = msgspec.json.encode(values.tolist())[1:-1].split(b",")
    tiny = np.flatnonzero((values != 0) & (np.abs(values) < 1e-3))
    for position in tiny.tolist():  # an encoder writes these with an exponent
        texts[position] = f"{values[position]:.{MAX_DECIMALS}f}".rstrip("0").encode()
    return texts


# --- the document ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Document:
    """One selection of one snapshot as text. `text` is the whole body in the watcher shape; node i of `rows` [m] (rows
    of the snapshot, ascending) stands in it from `offsets[i]` to `offsets[i + 1]`, a comma included.

    A packed document has no `text`, only compressed bodies: a tenth of the memory, and some more work for who asks for
    the plain body, or for single nodes, which are written anew from `parts`.
    """

    snapshot: Snapshot
    parts: Sequence[Part]
    text: bytes
    offsets: I64
    rows: I64
    heads: dict[Shape, bytes]
    tails: dict[Shape, bytes]
    _compressed: dict[tuple[Shape, Encoding], bytes] = field(default_factory=dict)

    def body(self, shape: Shape, encoding: Encoding = Encoding.IDENTITY) -> bytes:
        """The whole document. Compressed bodies are made when first asked for and kept."""
        if encoding is Encoding.IDENTITY:
            # the other shape is rarely asked for plain: joining it costs less than keeping it
            return self._plain() if shape is Shape.WATCHER else b"".join(self._parts(shape))
        if (shape, encoding) not in self._compressed:
            if encoding is Encoding.GZIP:
                self._make_gzip()
            else:
                self._make_zstd(shape)
        return self._compressed[shape, encoding]

    def at_hand(self, shape: Shape, encoding: Encoding) -> bool:
        """Whether `body` has nothing to do but to hand it over, or little more."""
        return bool(self.text) if encoding is Encoding.IDENTITY else (shape, encoding) in self._compressed

    def compress(self) -> None:
        """Make the compressed bodies, but for zstd of the KEP shape: it shares no work with the others, and would be a
        fifth of it all."""
        self._make_gzip()
        self._make_zstd(Shape.WATCHER)

    def pack(self) -> None:
        """Let go of the text, after `compress`."""
        self.text = b""

    def of_nodes(self, rows: Sequence[int], shape: Shape) -> bytes:
        """The document with these nodes only, in the order of the snapshot; rows not in it are passed over."""
        texts = [text for row in sorted(set(rows)) if (text := self._node(row))]
        return b"".join((self.heads[shape], b",".join(texts), self.tails[shape]))

    def has(self, row: int) -> bool:
        """Whether that node of the snapshot stands in this document."""
        return self._position(row) is not None

    @property
    def empty(self) -> bool:
        """Whether no node has any number in it."""
        return not len(self.rows)

    @property
    def size(self) -> int:
        """Bytes held."""
        return len(self.text) + sum(len(body) for body in self._compressed.values())

    def _node(self, row: int) -> bytes:
        at = self._position(row)
        if at is None:
            return b""
        if self.text:
            return self.text[self.offsets[at] : self.offsets[at + 1] - 1]
        return _node_texts(self.parts, ends_of(self.snapshot, row, row + 1), row, row + 1)[0]

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
        deflated = deflate(nodes)  # once for all shapes
        for shape in Shape:
            self._compressed[shape, Encoding.GZIP] = gzip_of(self.heads[shape], deflated, self.tails[shape])

    def _make_zstd(self, shape: Shape) -> None:
        text = self.body(shape)
        self._compressed[shape, Encoding.ZSTD] = zstandard.ZstdCompressor(level=1).compress(text)


def encode(snapshot: Snapshot, selection: Selection, ends: Ends | None = None) -> Document:
    """Write the document of a selection. Nodes that have nothing in it are left out: to the Go client an empty node
    and an absent one are the same. `ends` are those of this snapshot, if they are known already."""
    parts = [
        Part(part.metric, part.operator, part.rollup, to_wire(part.values)) for part in select(snapshot, selection)
    ]
    heads, tails = _frames(snapshot, selection.window)
    # A buffer that grows: to join all nodes at the end would hold the global lock for long, and every byte twice.
    text = BytesIO()
    text.write(heads[Shape.WATCHER])
    lengths: list[I64] = []
    ends = ends or ends_of(snapshot)
    for start in range(0, len(snapshot.nodes), CHUNK_NODES):
        stop = min(start + CHUNK_NODES, len(snapshot.nodes))
        here = Ends(ends.openings[start:stop], ends.closings[start:stop])
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
    return Document(snapshot, parts, text.getvalue(), offsets, rows, heads, tails)


def _node_texts(parts: Sequence[Part], ends: Ends, start: int, stop: int) -> list[bytes]:
    """`"name":{...}` of the nodes start..stop, whose ends these are; b"" for one without a number in any part."""
    join = b"".join
    if parts and not any(np.isnan(part.values[start:stop]).any() for part in parts):
        # nearly always: every node has every metric, and one join writes a node
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


def _key(part: Part) -> bytes:
    """What stands before a number: the end of the metric before, which the first one cuts off, all but the value."""
    return b'},{"name":%s,"type":"%s","operator":"%s","rollup":"%s","value":' % (
        msgspec.json.encode(part.metric.name),
        part.metric.type.encode(),
        part.operator.encode(),
        part.rollup.encode(),
    )


def _pieces(part: Part, start: int, stop: int) -> list[bytes]:
    """`},{"name":...,"value":1.5` for each node, b"" where NaN."""
    values, key = part.values[start:stop], _key(part)
    known = np.flatnonzero(~np.isnan(values))
    column = [b""] * len(values)
    for position, text in zip(known.tolist(), number_texts(values[known]), strict=True):
        column[position] = key + text
    return column


# --- columns ---------------------------------------------------------------------------------------------------------


def columns(snapshot: Snapshot, selection: Selection) -> ColumnsDocument:
    """The same selection as columns (contract 5, /api/v1/columns): what the scorers' client turns into arrays."""
    parts = select(snapshot, selection)
    names = dict.fromkeys(part.metric.name for part in parts)
    return ColumnsDocument(
        timestamp=int(snapshot.timestamp),
        window_end=int(snapshot.end),
        source=snapshot.source,
        nodes=list(snapshot.nodes),
        sampled={w.metric.name: _nullable(np.round(w.sampled, 3)) for w in snapshot.metrics if w.metric.name in names},
        columns=[
            Column(
                name=part.metric.name,
                type=part.metric.type,
                operator=part.operator,
                window=part.rollup,
                unit=part.metric.unit,
                values=_nullable(to_wire(part.values)),
            )
            for part in parts
        ],
        smoothing_s={w.metric.name: w.provenance.smoothing_s for w in snapshot.metrics if w.metric.name in names},
        age_s=_nullable(np.round(snapshot.age_s, 3)),
    )


def _nullable(values: F64) -> list[float | None]:
    return [None if value != value else value for value in values.tolist()]


# --- what is published -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SilentBody:
    """The nodes that are in no list, in every coding; `tag` is the same as long as nothing of it changes."""

    names: frozenset[str]
    tag: str
    bodies: Mapping[Encoding, bytes]

    @classmethod
    def of(cls, document: SilentDocument) -> SilentBody:
        """The document, written and compressed."""
        text = msgspec.json.encode(document)
        tag = hashlib.blake2s(text, digest_size=8).hexdigest()
        names = frozenset(node.name for node in document.nodes)
        return cls(names, tag, {encoding: compressed(text, encoding) for encoding in Encoding})


class Published:
    """A snapshot with its bodies, replaced whole by the next tick. Reading needs no lock; documents other than the
    default ones are encoded when first asked for and kept while they are few. `silent` alone may be replaced, when
    something is found out about nodes that are not in the snapshot.

    `tag` makes its ETags unlike those of any other snapshot; `age_s` is the age of its newest sample when it was
    published at `monotonic` seconds, so that its age later needs no wall clock.
    """

    def __init__(self, snapshot: Snapshot, *, tag: str, monotonic: float, age_s: float) -> None:
        self.snapshot = snapshot
        self.tag = tag
        self.monotonic = monotonic
        self.age_s = age_s
        self.silent = SilentBody.of(SilentDocument(listed=False, nodes=[]))
        self.row = {name: row for row, name in enumerate(snapshot.nodes)}
        self._default: dict[Window, Document] = {}
        self._others: OrderedDict[Selection, Document] = OrderedDict()
        self._lock = Lock()

    def encode_default(self, *, plain_bytes: int = PLAIN_BYTES) -> None:
        """Write and compress every window. Called once, in a worker thread, before publishing. Windows of more than
        `plain_bytes` are packed, but for the longest, which is what everybody asks for."""
        ends = ends_of(self.snapshot)
        for window in self.snapshot.windows:
            document = encode(self.snapshot, Selection(window), ends)
            document.compress()
            if window != self.snapshot.windows[-1] and document.size > plain_bytes:
                document.pack()
            self._default[window] = document

    def age(self, monotonic: float) -> float:
        """Seconds since the newest sample, at that moment of the monotonic clock."""
        return max(0.0, self.age_s + monotonic - self.monotonic)

    def ready_document(self, selection: Selection) -> Document | None:
        """The document if it is written already; cheap."""
        if selection.types is None and selection.operators is None:
            return self._default.get(selection.window)
        with self._lock:
            document = self._others.get(selection)
            if document is not None:
                self._others.move_to_end(selection)
            return document

    def document(self, selection: Selection) -> Document:
        """The document, written now if it must be (then up to some tens of milliseconds: call it in a thread)."""
        document = self.ready_document(selection)
        if document is not None:
            return document
        document = encode(self.snapshot, selection)
        with self._lock:
            self._others[selection] = document
            while len(self._others) > 1 and sum(kept.size for kept in self._others.values()) > REMEMBERED_BYTES:
                self._others.popitem(last=False)
        return document
