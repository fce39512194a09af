"""What each pod uses: its newest reading, and one reading a minute over the longest window.

Schedulers that reason about pods need to know how much of a node's load each of them is, whether the node's own number
already contains it (so every reading has the time that its source gave it), and what a workload used lately. Pods come
and go by the thousand, so everything stands in columns, and taking in a fetch makes a new table out of the old one in a
few passes over arrays: what was published before never changes under its readers.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from watcher.arrays import F64, I64, Bool
from watcher.core.publishing.documents import LARGEST, to_wire
from watcher.core.publishing.wire import PodAverages, PodsDocument
from watcher.core.review.findings import some_of
from watcher.model import Finding, FindingKind, Remedy, Window

Pod = tuple[str, str]
"""Namespace and name: what a pod is called while it lives. The next one may have the same."""

PODS = "pods"
"""In the place of a metric's name, in findings and counters."""
SLOT_S = 60
LONGEST_CADENCE_S = 120.0
"""Rarer readings count for no window (contract 5.1, "Coverage")."""
SORTED_AT_ONCE = 5_000

# --- what a source gives ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PodUsage:
    """One reading each of n pods. `time` is the source's own, unix seconds; `cores` are averaged over the source's
    span, `memory` is in bytes; NaN where the source does not say. A pod may stand here twice, if it moved. `nodes` has
    "" where the node cannot be told."""

    pods: tuple[Pod, ...]
    nodes: tuple[str, ...]
    time: F64
    cores: F64
    memory: F64

    def where(self, keep: Bool) -> PodUsage:
        """The readings where `keep` is true."""
        rows = np.flatnonzero(keep).tolist()
        return PodUsage(
            tuple(self.pods[row] for row in rows),
            tuple(self.nodes[row] for row in rows),
            self.time[rows],
            self.cores[rows],
            self.memory[rows],
        )


NO_USAGE = PodUsage((), (), np.empty(0), np.empty(0), np.empty(0))


@dataclass(frozen=True, slots=True)
class PodOrigin:
    """Where the numbers come from. `cores` and `memory` say what was asked; `span_s` over how many seconds the source
    averages cores; `memory_kind` is "rss" (anonymous memory, nearest to what koordlet reports) or "working_set" (with
    the page cache in use, so more)."""

    source: str
    cores: str
    span_s: float
    memory: str
    memory_kind: str

    def goes_with(self, other: PodOrigin) -> bool:
        """Whether readings of both may share a window."""
        return (self.source, self.cores, self.memory) == (other.source, other.cores, other.memory)


def review(usage: PodUsage, *, now: float, max_ahead_s: float) -> tuple[PodUsage, list[Finding]]:
    """What of a source's readings can be true, each pod at most once, and what was found. Nothing is lowered: a number
    is taken as it is or not at all (contract 5.1, "Review never lowers")."""
    findings: list[Finding] = []

    def found(kind: FindingKind, which: Bool, what: str) -> None:
        rows = np.flatnonzero(which).tolist()
        if rows:
            names = some_of("/".join(usage.pods[row]) for row in rows)
            text = f"{len(rows)} pod{'s' if len(rows) > 1 else ''} ({names}): {what}"
            findings.append(Finding(kind, "", PODS, now, text, Remedy.DROPPED))

    unnamed = np.array([not (pod[0] and pod[1]) for pod in usage.pods], dtype=bool)
    homeless = np.array([not node for node in usage.nodes], dtype=bool) & ~unnamed
    timeless = ~(np.isfinite(usage.time) & (usage.time >= 0))
    early = usage.time > now + max_ahead_s
    found(FindingKind.UNKNOWN_NODE, unnamed, "a name or namespace is missing")
    found(FindingKind.UNKNOWN_NODE, homeless, "their node cannot be told")
    found(FindingKind.NON_FINITE, timeless, "their time is none")
    found(FindingKind.FUTURE_SAMPLE, early & ~timeless, f"their time is more than {max_ahead_s:g} s ahead of ours")
    values = []
    for what, column in (("cores", usage.cores), ("memory", usage.memory)):
        odd = np.isinf(column)
        beyond = (column < 0) | (column >= LARGEST)
        found(FindingKind.NON_FINITE, odd, f"their {what} are no number")
        found(FindingKind.OUT_OF_RANGE, beyond & ~odd, f"their {what} are negative, or more than can be")
        values.append(np.where(odd | beyond, np.nan, column))
    cores, memory = values
    usable = ~(unnamed | homeless | timeless | early | (np.isnan(cores) & np.isnan(memory)))
    kept = replace(usage, cores=cores, memory=memory)
    return _newest(kept if usable.all() else kept.where(usable)), findings


def _newest(usage: PodUsage) -> PodUsage:
    """Of a pod that stands there twice, the newest reading; at equal times that of the first node by name."""
    if len({pod: None for pod in usage.pods}) == len(usage.pods):  # noqa: C420  # one call would hold the global lock
        return usage
    best: dict[Pod, tuple[float, str, int]] = {}
    for row, (pod, node, time) in enumerate(zip(usage.pods, usage.nodes, usage.time.tolist(), strict=True)):
        candidate = (-time, node, row)
        if pod not in best or candidate < best[pod]:
            best[pod] = candidate
    keep = np.zeros(len(usage.pods), dtype=bool)
    keep[[row for _, _, row in best.values()]] = True
    return usage.where(keep)


# --- what is known ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PodTable:
    """What is known of n pods, immutable, in the order of namespace and name.

    `sampled` (unix seconds), `cores` and `memory` (bytes) [n] are the newest reading of each. `recent_cores` and
    `recent_memory` [k, n] have one reading a minute, oldest first; the last row is minute `head` (unix time // 60). NaN
    where there is none.
    """

    pods: tuple[Pod, ...]
    nodes: tuple[str, ...]
    sampled: F64
    cores: F64
    memory: F64
    head: int
    recent_cores: F64
    recent_memory: F64

    @property
    def end(self) -> float:
        """Unix seconds of the newest reading, -inf without any."""
        return float(self.sampled.max()) if len(self.sampled) else float("-inf")


def empty_table(slots: int) -> PodTable:
    """A table of no pods that will remember so many minutes."""
    none, ring = np.empty(0), np.empty((slots, 0))
    return PodTable((), (), none, none, none, 0, ring, ring)


def take_in(table: PodTable, usage: PodUsage, *, now: float, silent_s: float, stale_s: float) -> PodTable:
    """The table with these readings (reviewed: each pod once), and without the pods that are gone.

    Of the readings of a minute the last counts; one that is not newer than what is known is that one again. A pod that
    turns up on another node is another one with the same name: what was is forgotten. A pod is gone when it is
    `silent_s` behind the newest pod of its node, or older than `stale_s`: a node that falls silent as a whole keeps its
    pods for that long, and their age shows.
    """
    merged, row = _widen(table, usage.pods)
    at = np.fromiter((row[pod] for pod in usage.pods), dtype=np.int64, count=len(usage.pods))
    fresh = ~(usage.time <= merged.sampled[at])
    return _without_gone(_write(merged, usage.where(fresh), at[fresh]), oldest=now - stale_s, silent_s=silent_s)


def _widen(table: PodTable, pods: Sequence[Pod]) -> tuple[PodTable, Mapping[Pod, int]]:
    """The table with room for these pods too, still in order, and the row of each pod."""
    row = {pod: number for number, pod in enumerate(table.pods)}
    new = sorted_in_pieces([pod for pod in pods if pod not in row])
    if not new:
        return table, row
    order = sorted(range(len(table.pods) + len(new)), key=[*table.pods, *new].__getitem__)
    wide = _rows(
        PodTable(
            (*table.pods, *new),
            (*table.nodes, *[""] * len(new)),
            _padded(table.sampled, len(new)),
            _padded(table.cores, len(new)),
            _padded(table.memory, len(new)),
            table.head,
            _padded(table.recent_cores, len(new)),
            _padded(table.recent_memory, len(new)),
        ),
        np.array(order, dtype=np.int64),
    )
    return wide, {pod: number for number, pod in enumerate(wide.pods)}


def sorted_in_pieces(pods: Collection[Pod]) -> list[Pod]:
    """Sorted. Comparing 50,000 pairs of texts in one call would keep every other thread waiting for 60 ms; pieces that
    are in order themselves are merged in a few."""
    given = list(pods)
    pieces = [sorted(given[start : start + SORTED_AT_ONCE]) for start in range(0, len(given), SORTED_AT_ONCE)]
    while len(pieces) > 1:
        pairs = zip(pieces[::2], [*pieces[1::2], []] if len(pieces) % 2 else pieces[1::2], strict=True)
        pieces = [sorted([*left, *right]) for left, right in pairs]
    return pieces[0] if pieces else []


def _padded(values: F64, more: int) -> F64:
    """An array with so many NaN columns behind it."""
    return np.concatenate([values, np.full((*values.shape[:-1], more), np.nan)], axis=-1)


def _rows(table: PodTable, rows: I64) -> PodTable:
    """These rows of the table, in this order."""
    chosen = rows.tolist()
    return PodTable(
        tuple(table.pods[row] for row in chosen),
        tuple(table.nodes[row] for row in chosen),
        table.sampled[rows],
        table.cores[rows],
        table.memory[rows],
        table.head,
        table.recent_cores[:, rows],
        table.recent_memory[:, rows],
    )


def _write(table: PodTable, usage: PodUsage, at: I64) -> PodTable:
    """The table with newer readings in the rows `at`."""
    if not len(at):
        return table
    nodes = list(table.nodes)
    moved = []
    for row, node in zip(at.tolist(), usage.nodes, strict=True):
        if nodes[row] and nodes[row] != node:
            moved.append(row)
        nodes[row] = node
    slot = (usage.time // SLOT_S).astype(np.int64)
    head = max(table.head, int(slot.max()))

    def latest(known: F64, new: F64) -> F64:
        column = known.copy()
        column[at] = new
        return column

    def recent(known: F64, new: F64) -> F64:
        ring = _advanced(known, head - table.head)
        ring[:, moved] = np.nan
        line = slot - head + len(ring) - 1
        inside = line >= 0
        ring[line[inside], at[inside]] = new[inside]
        return ring

    return PodTable(
        table.pods,
        tuple(nodes),
        latest(table.sampled, usage.time),
        latest(table.cores, usage.cores),
        latest(table.memory, usage.memory),
        head,
        recent(table.recent_cores, usage.cores),
        recent(table.recent_memory, usage.memory),
    )


def _advanced(ring: F64, minutes: int) -> F64:
    """A copy of the ring that ends so many minutes later."""
    moved = np.full_like(ring, np.nan)
    kept = len(ring) - minutes
    if kept > 0:
        moved[:kept] = ring[minutes:]
    return moved


def _without_gone(table: PodTable, *, oldest: float, silent_s: float) -> PodTable:
    index: dict[str, int] = {}
    node = np.fromiter((index.setdefault(name, len(index)) for name in table.nodes), dtype=np.int64)
    newest = np.full(len(index), -np.inf)
    np.maximum.at(newest, node, table.sampled)
    keep = (table.sampled >= oldest) & (table.sampled >= newest[node] - silent_s)
    return table if keep.all() else _rows(table, np.flatnonzero(keep))


def averages(table: PodTable, window: Window, *, cadence_s: float) -> tuple[F64, F64]:
    """Mean cores and bytes [n] over the minutes of a window that ends with the newest; NaN where fewer than half of the
    readings that one every `cadence_s` gives are there, or fewer than two (contract 5.1, "Coverage")."""
    expected = window.seconds / max(cadence_s, SLOT_S) if cadence_s <= LONGEST_CADENCE_S else np.inf
    means = []
    for ring in (table.recent_cores, table.recent_memory):
        part = ring[-max(1, window.seconds // SLOT_S) :]
        known = ~np.isnan(part)
        count = known.sum(axis=0)
        total = np.where(known, part, 0.0).sum(axis=0)
        enough = (count >= 2) & (2 * count >= expected)
        means.append(np.divide(total, count, out=np.full(len(count), np.nan), where=enough))
    return means[0], means[1]


# --- what is published -----------------------------------------------------------------------------------------------


class PublishedPods:
    """A table as it is served, replaced whole by the next. `tag` makes its ETags unlike those of any other; `age_s` is
    the age of the newest reading when it was published at `monotonic` seconds. `cadence_s` is how often it is renewed.
    """

    def __init__(
        self,
        table: PodTable,
        *,
        origin: PodOrigin,
        windows: Sequence[Window],
        cadence_s: float,
        timestamp: float,
        tag: str,
        monotonic: float,
        age_s: float,
    ) -> None:
        self.table = table
        self.origin = origin
        self.windows = tuple(windows)
        self.cadence_s = cadence_s
        self.timestamp = timestamp
        self.tag = tag
        self.monotonic = monotonic
        self.age_s = age_s
        self.nodes = frozenset(table.nodes)
        self.namespaces = frozenset(namespace for namespace, _ in table.pods)

    def age(self, monotonic: float) -> float:
        """Seconds since the newest reading, at that moment of the monotonic clock."""
        return max(0.0, self.age_s + monotonic - self.monotonic)

    def rows(self, nodes: Collection[str] | None = None, namespaces: Collection[str] | None = None) -> I64:
        """The rows of the pods on these nodes and in these namespaces; None means all of them."""
        table = self.table
        wanted = (
            (nodes is None or node in nodes) and (namespaces is None or namespace in namespaces)
            for node, (namespace, _) in zip(table.nodes, table.pods, strict=True)
        )
        return np.flatnonzero(np.fromiter(wanted, dtype=bool, count=len(table.pods)))

    def document(self, rows: I64 | None = None) -> PodsDocument:
        """The document with all pods, or with those of `rows`."""
        table = self.table if rows is None else _rows(self.table, rows)
        return PodsDocument(
            timestamp=int(self.timestamp),
            source=self.origin.source,
            every_s=self.cadence_s,
            cores_from=self.origin.cores,
            cores_span_s=self.origin.span_s,
            bytes_from=self.origin.memory,
            bytes_kind=self.origin.memory_kind,
            namespace=[namespace for namespace, _ in table.pods],
            pod=[name for _, name in table.pods],
            node=list(table.nodes),
            time=np.round(table.sampled, 3).tolist(),
            cores=_cores(table.cores),
            bytes=_bytes(table.memory),
            averages=[self._averages(table, window) for window in self.windows],
        )

    def _averages(self, table: PodTable, window: Window) -> PodAverages:
        cores, memory = averages(table, window, cadence_s=self.cadence_s)
        return PodAverages(window=window.label, cores=_cores(cores), bytes=_bytes(memory))

    def body(self, rows: I64 | None = None) -> bytes:
        """The same as JSON, encoded a column at a time: an encoder does not let others run until it is done."""
        document = self.document(rows)
        for part in (*document.averages, document):
            for name in part.__struct_fields__:
                value = getattr(part, name)
                if isinstance(value, list) and name != "averages":
                    setattr(part, name, msgspec.Raw(msgspec.json.encode(value)))
        return msgspec.json.encode(document)


def _cores(values: F64) -> list[float | None]:
    """Cores as the wire has them, to the billionth, which is as fine as Kubernetes counts."""
    return [None if value != value else value for value in to_wire(np.round(values, 9)).tolist()]


def _bytes(values: F64) -> list[int | None]:
    return [None if value != value else int(value) for value in np.rint(values).tolist()]


def by_node(nodes: Sequence[str]) -> Mapping[str, I64]:
    """The rows of each node, ascending, by its name."""
    rows: dict[str, list[int]] = {}
    for row, node in enumerate(nodes):
        rows.setdefault(node, []).append(row)
    return {node: np.array(found, dtype=np.int64) for node, found in rows.items()}
