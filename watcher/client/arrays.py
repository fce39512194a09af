"""What clients answer with: documents of the API as arrays, one row a node or a pod."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from watcher.arrays import F64, I64
from watcher.client.errors import WatcherError
from watcher.core.koordinator.report import NodeUsages
from watcher.core.pods.table import Pod, by_node
from watcher.core.publishing.wire import ColumnsDocument, PodsDocument
from watcher.model import Operator


@dataclass(frozen=True, slots=True)
class Columns:
    """One snapshot as arrays over n nodes, immutable, the arrays too. Times are unix seconds.

    `values[(name, operator)]` [n] is NaN where absent; `rollup` the seconds of the window that each value covers (0 for
    Latest). `sampled[name]` [n] is the time of each node's newest sample of that metric. `received` is the monotonic
    time of receipt and `age_at_receipt` how old the newest sample was then, both seconds. `usages` are those of the
    same snapshot by koordlet's rules; only the client beside the service has them, where it was told to."""

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

    def of_type(self, metric_type: str, operator: Operator) -> F64:
        """The first metric of a type (CPU and Memory have one), NaN where absent; [n]."""
        for (name, known), values in self.values.items():
            if known is operator and self.types[name] == metric_type:
                return values
        return np.full(len(self.nodes), np.nan)

    def age(self, monotonic: float) -> float:
        """Seconds since the newest sample of all, at that moment of the monotonic clock."""
        return self.age_at_receipt + monotonic - self.received


def to_columns(document: ColumnsDocument, *, received: float, age_at_receipt: float) -> Columns:
    """Arrays from the document of GET /api/v1/columns. A metric that some nodes have from a shorter window becomes one
    array, with the window of each value in `rollup`. Raises WatcherError for a document that contradicts itself."""
    size = len(document.nodes)
    values: dict[tuple[str, Operator], F64] = {}
    rollup: dict[tuple[str, Operator], F64] = {}
    for column in document.columns:
        key = (column.name, operator_of(column.operator))
        part = _array(column.values, size)
        known = ~np.isnan(part)
        whole = values.setdefault(key, np.full(size, np.nan))
        covered = rollup.setdefault(key, np.full(size, np.nan))
        whole[known] = part[known]
        covered[known] = _seconds(column.window)
    for array in (*values.values(), *rollup.values()):
        array.flags.writeable = False
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
    )


@dataclass(frozen=True, slots=True)
class Pods:
    """What each of n pods uses, as arrays in the order of namespace and name; immutable, the arrays too.

    `sampled` [n] is the time of each pod's newest reading, unix seconds, as its source gave it: what lies after it is
    not in the numbers. `cores` and `memory` (bytes) [n] are NaN where the source does not say; it averages cores over
    `cores_span_s` seconds, and `memory_kind` is "rss" or "working_set". `average[window's label]` is the mean (cores,
    memory) over that window. `on_node` has the rows of each node. A new reading comes every `every_s` seconds.
    `recent` is one reading (cores, memory) a minute over the longest window, each [minutes, n], NaN where there is
    none; None from a client over HTTP, since the document does not have them.
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

    def age(self, monotonic: float) -> float:
        """Seconds since the newest reading of all, at that moment of the monotonic clock."""
        return self.age_at_receipt + monotonic - self.received


def to_pods(document: PodsDocument, *, received: float, age_at_receipt: float) -> Pods:
    """Arrays from the document of GET /api/v1/pods. Raises WatcherError for a document that contradicts itself."""
    size = len(document.pod)
    if not size == len(document.namespace) == len(document.node):
        raise WatcherError("malformed", f"there are {size} pods, but not as many namespaces or nodes")
    shared: dict[str, str] = {}  # the decoder makes a text of its own for each pod
    namespaces = (shared.setdefault(name, name) for name in document.namespace)
    pods = tuple(zip(namespaces, document.pod, strict=True))
    nodes = tuple(shared.setdefault(name, name) for name in document.node)
    return Pods(
        timestamp=document.timestamp,
        source=document.source,
        every_s=document.every_s,
        cores_span_s=document.cores_span_s,
        memory_kind=document.bytes_kind,
        pods=pods,
        nodes=nodes,
        row={pod: row for row, pod in enumerate(pods)},
        on_node=by_node(nodes),
        sampled=_array(document.time, size),
        cores=_array(document.cores, size),
        memory=_array(document.bytes, size),
        average={each.window: (_array(each.cores, size), _array(each.bytes, size)) for each in document.averages},
        received=received,
        age_at_receipt=age_at_receipt,
    )


_POD_COLUMNS = {each.name: each.type for each in msgspec.structs.fields(PodsDocument)}


def decoded_pods(body: bytes) -> PodsDocument:
    """The document, decoded a column at a time: a decoder does not let others run until it is done. Raises
    msgspec.DecodeError."""
    raw = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    missing = sorted(_POD_COLUMNS.keys() - raw.keys())
    if missing:
        raise msgspec.ValidationError(f"it lacks {', '.join(missing)}")
    return PodsDocument(**{name: msgspec.json.decode(raw[name], type=kind) for name, kind in _POD_COLUMNS.items()})


def _array(values: Sequence[float | None], size: int) -> F64:
    if len(values) != size:
        raise WatcherError("malformed", f"a column has {len(values)} values for {size} rows")
    array = np.array(values, dtype=np.float64) if size else np.empty(0)  # None becomes NaN
    array.flags.writeable = False
    return array


def operator_of(name: str) -> Operator:
    """The operator of that name. Raises WatcherError for one that we do not know."""
    try:
        return Operator(name)
    except ValueError:
        raise WatcherError("malformed", f"not an operator: {name[:40]!r}", hint="is the watcher a newer one?") from None


def _seconds(label: str) -> float:
    """Seconds of a window's label ("15m", "90s", "1h"); 0 for "", the label of Latest."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    if not label:
        return 0.0
    try:
        return float(label[:-1]) * units[label[-1]]
    except (KeyError, ValueError):
        raise WatcherError("malformed", f"not the label of a window: {label[:40]!r}") from None
