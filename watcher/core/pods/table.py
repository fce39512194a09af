"""Pod usage: each pod's newest reading, and one reading per minute over the longest window.

Schedulers that consider pods need each pod's share of its node's load, whether the node's value already includes the
pod (so every reading has the time that its source reports), and a workload's recent usage. Thousands of pods are
created and deleted, so the data is stored in columns. Adding a fetch creates a new table from the old one in a few
passes over arrays; a published table is immutable.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from watcher.arrays import F32, F64, I64, Bool
from watcher.core.publishing.documents import LARGEST
from watcher.core.review.findings import some_of
from watcher.core.review.known_nodes import refused_names
from watcher.model import Finding, FindingKind, Remedy, Window

Pod = tuple[str, str]
"""Namespace and name of a pod. A later pod may have the same."""

Floats = TypeVar("Floats", F32, F64)
PODS = "pods"
"""Used instead of a metric name in findings and counters about pods."""
SLOT_S = 60
LONGEST_CADENCE_S = 120.0
"""Readings with a longer cadence, in seconds, do not count for any window."""
SORTED_AT_ONCE = 5_000

PRESSURES = ("cpu", "memory", "io")
"""Resources of the rows of a pod's pressure: the percentage of the time in which at least one of its tasks waits."""

# --- readings of a source --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PodUsage:
    """One reading of each of n pods. `time` is the source's time in unix seconds; `cores` are averaged over
    PodOrigin.span_s, `memory` is in bytes; NaN if the source lacks the value. A pod that moved may occur twice. `nodes`
    is "" if the node is unknown. `pressure` [3, n] has the rows PRESSURES, averaged like `cores`; None if it is not
    read."""

    pods: tuple[Pod, ...]
    nodes: tuple[str, ...]
    time: F64
    cores: F64
    memory: F64
    pressure: F64 | None = None

    def where(self, keep: Bool) -> PodUsage:
        """Return the readings that `keep` marks."""
        rows = np.flatnonzero(keep).tolist()
        return PodUsage(
            tuple(self.pods[row] for row in rows),
            tuple(self.nodes[row] for row in rows),
            self.time[rows],
            self.cores[rows],
            self.memory[rows],
            None if self.pressure is None else self.pressure[:, rows],
        )


NO_USAGE = PodUsage((), (), np.empty(0), np.empty(0), np.empty(0))


@dataclass(frozen=True, slots=True)
class PodOrigin:
    """Origin of pod readings. `cores` and `memory` are the queries; `span_s` is the number of seconds over which the
    source averages cores; `memory_kind` is "rss" (anonymous memory, closest to koordlet's value) or "working_set"
    (includes the active page cache, so it is larger)."""

    source: str
    cores: str
    span_s: float
    memory: str
    memory_kind: str

    def compatible_with(self, other: PodOrigin) -> bool:
        """Return whether readings of both origins may share a window."""
        return (self.source, self.cores, self.memory) == (other.source, other.cores, other.memory)


def review_pods(usage: PodUsage, *, now: float, max_ahead_s: float) -> tuple[PodUsage, list[Finding]]:
    """Return the valid readings, each pod at most once, and the findings. Values are never lowered: a value is used
    unchanged or dropped. `now` is in unix seconds."""
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
    found(FindingKind.UNKNOWN_NODE, homeless, "their node is unknown")
    found(FindingKind.NON_FINITE, timeless, "their time is not a unix time")
    found(
        FindingKind.FUTURE_SAMPLE,
        early & ~timeless,
        f"their time is more than {max_ahead_s:g} s ahead of the clock of load-watcher",
    )
    values = []
    for what, column in (("cores", usage.cores), ("memory", usage.memory)):
        odd = np.isinf(column)
        beyond = (column < 0) | (column >= LARGEST)
        found(FindingKind.NON_FINITE, odd, f"{what}: the values are not finite numbers")
        found(FindingKind.OUT_OF_RANGE, beyond & ~odd, f"{what}: the values are negative or too large")
        values.append(np.where(odd | beyond, np.nan, column))
    cores, memory = values
    usable = ~(unnamed | homeless | timeless | early | (np.isnan(cores) & np.isnan(memory)))
    kept = replace(usage, cores=cores, memory=memory, pressure=_usable_pressure(usage.pressure))
    return _newest(kept if usable.all() else kept.where(usable)), findings


def within_bound(table: PodTable, usage: PodUsage, *, most: int, now: float) -> tuple[PodUsage, list[Finding]]:
    """Return the readings without new pods beyond `most` pods, in the order of their names, and the finding if there
    are any."""
    refused = refused_names(usage.pods, known=table.pods, most=most)
    if not refused:
        return usage, []
    new = len(set(usage.pods) - set(table.pods))
    reason = (
        f"{new:,} new pods in a fetch, such as {some_of('/'.join(pod) for pod in refused)}: {len(refused):,} are "
        f"left out, because {most:,} pods are kept within the memory limit. Check the labels of the pods' series, or "
        "raise the memory limit of the container"
    )
    kept = usage.where(np.array([pod not in refused for pod in usage.pods], dtype=np.bool_))
    return kept, [Finding(FindingKind.MEMORY, "", PODS, now, reason, Remedy.LEFT_OUT)]


def _usable_pressure(pressure: F64 | None) -> F64 | None:
    """Percentages; a rate may exceed the time a little. A value that is not a share of the time is unknown."""
    if pressure is None:
        return None
    return np.where((pressure >= 0.0) & (pressure <= 105.0), np.minimum(pressure, 100.0), np.nan)


def _newest(usage: PodUsage) -> PodUsage:
    """Keep the newest reading of a pod that occurs twice; at equal times that of the first node by name."""
    if len({pod: None for pod in usage.pods}) == len(usage.pods):  # noqa: C420  # a single call would hold the GIL
        return usage
    best: dict[Pod, tuple[float, str, int]] = {}
    for row, (pod, node, time) in enumerate(zip(usage.pods, usage.nodes, usage.time.tolist(), strict=True)):
        candidate = (-time, node, row)
        if pod not in best or candidate < best[pod]:
            best[pod] = candidate
    keep = np.zeros(len(usage.pods), dtype=bool)
    keep[[row for _, _, row in best.values()]] = True
    return usage.where(keep)


# --- table of pods ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PodTable:
    """Readings of n pods, immutable, ordered by namespace and name.

    `sampled` (unix seconds), `cores`, `memory` (bytes) [n] and `pressure` (percent, the rows PRESSURES) [3, n] are the
    newest reading of each pod. `recent_cores` and `recent_memory` [k, n] and `recent_pressure` [3, k, n] have one
    reading per minute, oldest first; the last row is minute `head` (unix time // 60). NaN without a reading;
    `recent_pressure` is None until the source has pressure.
    """

    pods: tuple[Pod, ...]
    nodes: tuple[str, ...]
    sampled: F64
    cores: F64
    memory: F64
    head: int
    recent_cores: F64
    recent_memory: F64
    pressure: F64
    recent_pressure: F32 | None = None

    @property
    def end(self) -> float:
        """Unix seconds of the newest reading, -inf without readings."""
        return float(self.sampled.max()) if len(self.sampled) else float("-inf")

    def measured(self) -> dict[str, float]:
        """Return the time (unix seconds) of the newest reading by node."""
        newest: dict[str, float] = {}
        for node, time in zip(self.nodes, self.sampled.tolist(), strict=True):
            newest[node] = max(time, newest.get(node, time))
        return newest


def _no_pressure(pods: int) -> F64:
    return np.full((len(PRESSURES), pods), np.nan)


def empty_table(slots: int) -> PodTable:
    """Return a table without pods that stores `slots` minutes."""
    none, ring = np.empty(0), np.empty((slots, 0))
    return PodTable((), (), none, none, none, 0, ring, ring, _no_pressure(0))


def merge_readings(table: PodTable, usage: PodUsage, *, now: float, silent_s: float, stale_s: float) -> PodTable:
    """Return the table with these readings added (reviewed, each pod once) and with removed pods left out.

    The last reading of a minute is used; a reading that is not newer than the known reading is ignored. A pod that
    appears on another node is another pod with the same name: the earlier readings are discarded. A pod is removed when
    it is `silent_s` seconds behind the newest pod of its node, or older than `stale_s` seconds: a node that falls
    silent as a whole keeps its pods for that long, and their age is visible.
    """
    merged, row = _widen(table, usage.pods)
    at = np.fromiter((row[pod] for pod in usage.pods), dtype=np.int64, count=len(usage.pods))
    fresh = ~(usage.time <= merged.sampled[at])
    return _without_gone(_write(merged, usage.where(fresh), at[fresh]), oldest=now - stale_s, silent_s=silent_s)


def _widen(table: PodTable, pods: Sequence[Pod]) -> tuple[PodTable, Mapping[Pod, int]]:
    """Return the table extended by rows for new pods, in order, and the row of each pod."""
    row = {pod: number for number, pod in enumerate(table.pods)}
    new = sorted_in_pieces([pod for pod in pods if pod not in row])
    if not new:
        return table, row
    order = sorted(range(len(table.pods) + len(new)), key=[*table.pods, *new].__getitem__)
    wide = rows_of(
        PodTable(
            (*table.pods, *new),
            (*table.nodes, *[""] * len(new)),
            _padded(table.sampled, len(new)),
            _padded(table.cores, len(new)),
            _padded(table.memory, len(new)),
            table.head,
            _padded(table.recent_cores, len(new)),
            _padded(table.recent_memory, len(new)),
            _padded(table.pressure, len(new)),
            None if table.recent_pressure is None else _padded(table.recent_pressure, len(new)),
        ),
        np.array(order, dtype=np.int64),
    )
    return wide, {pod: number for number, pod in enumerate(wide.pods)}


def sorted_in_pieces(pods: Collection[Pod]) -> list[Pod]:
    """Sort pods in several calls. Sorting 50,000 pairs of texts in one call would block all other threads for 60 ms;
    merging sorted pieces takes a few milliseconds."""
    given = list(pods)
    pieces = [sorted(given[start : start + SORTED_AT_ONCE]) for start in range(0, len(given), SORTED_AT_ONCE)]
    while len(pieces) > 1:
        pairs = zip(pieces[::2], [*pieces[1::2], []] if len(pieces) % 2 else pieces[1::2], strict=True)
        pieces = [sorted([*left, *right]) for left, right in pairs]
    return pieces[0] if pieces else []


def _padded(values: Floats, more: int) -> Floats:
    """Return the array with `more` NaN columns appended."""
    return np.concatenate([values, np.full((*values.shape[:-1], more), np.nan, dtype=values.dtype)], axis=-1)


def rows_of(table: PodTable, rows: I64) -> PodTable:
    """Return a table with only these rows, in this order."""
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
        table.pressure[:, rows],
        None if table.recent_pressure is None else table.recent_pressure[:, :, rows],
    )


def _write(table: PodTable, usage: PodUsage, at: I64) -> PodTable:
    """Return the table with newer readings written to the rows `at`."""
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
        column[..., at] = new
        return column

    def recent(known: Floats, new: F64) -> Floats:
        ring = _advanced(known, head - table.head)
        ring[:, moved] = np.nan
        line = slot - head + len(ring) - 1
        inside = line >= 0
        ring[line[inside], at[inside]] = new[inside]
        return ring

    pressure = _no_pressure(len(at)) if usage.pressure is None else usage.pressure
    rings = table.recent_pressure
    if rings is None and usage.pressure is not None:
        rings = np.full((len(PRESSURES), *table.recent_cores.shape), np.nan, dtype=np.float32)
    return PodTable(
        table.pods,
        tuple(nodes),
        latest(table.sampled, usage.time),
        latest(table.cores, usage.cores),
        latest(table.memory, usage.memory),
        head,
        recent(table.recent_cores, usage.cores),
        recent(table.recent_memory, usage.memory),
        latest(table.pressure, pressure),
        None if rings is None else np.stack([recent(ring, new) for ring, new in zip(rings, pressure, strict=True)]),
    )


def _advanced(ring: Floats, minutes: int) -> Floats:
    """Return a copy of the ring that ends `minutes` later."""
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
    return table if keep.all() else rows_of(table, np.flatnonzero(keep))


def averages(table: PodTable, window: Window, *, cadence_s: float) -> tuple[F64, F64]:
    """Return mean cores and bytes, each [n], over the minutes of a window that ends with the newest minute; NaN for
    pods with fewer than two readings, or fewer than half of the readings expected at `cadence_s` (seconds)."""
    cores, memory = _means((table.recent_cores, table.recent_memory), window, cadence_s=cadence_s)
    return cores, memory


def pressure_averages(table: PodTable, window: Window, *, cadence_s: float) -> F64 | None:
    """Return the mean pressure [3, n] in percent, as `averages`; None if the source has none."""
    if table.recent_pressure is None:
        return None
    return np.stack(_means(table.recent_pressure, window, cadence_s=cadence_s))


def _means(rings: Iterable[F64 | F32], window: Window, *, cadence_s: float) -> list[F64]:
    expected = window.seconds / max(cadence_s, SLOT_S) if cadence_s <= LONGEST_CADENCE_S else np.inf
    means = []
    for ring in rings:
        part = ring[-max(1, window.seconds // SLOT_S) :]
        known = ~np.isnan(part)
        count = known.sum(axis=0)
        total = np.where(known, part, 0.0).sum(axis=0, dtype=np.float64)
        enough = (count >= 2) & (2 * count >= expected)
        means.append(np.divide(total, count, out=np.full(len(count), np.nan), where=enough))
    return means


def by_node(nodes: Sequence[str]) -> Mapping[str, I64]:
    """Return the rows of each node by its name, in ascending order."""
    rows: dict[str, list[int]] = {}
    for row, node in enumerate(nodes):
        rows.setdefault(node, []).append(row)
    return {node: np.array(found, dtype=np.int64) for node, found in rows.items()}
