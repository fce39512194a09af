"""The load of nodes at any time of a recording (a trace or a stored history).

Load between two readings that are close together is interpolated linearly. A history has no values within a gap. In a
trace a reading is valid until the next record.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from lab.traces.records import (
    Begin,
    BindRecord,
    EndRecord,
    LoadRecord,
    NodeRecord,
    PodRecord,
    Record,
    RemoveRecord,
    UsageRecord,
)
from watcher.arrays import F32, F64, I64

RAMP_S = 600.0
"""Maximum distance in seconds of two trace records for interpolation; records further apart are steps."""
MINUTES_S = 150.0
"""Maximum distance in seconds of two minutes of a history; a larger distance is a gap."""
MAX_NOTE = 100  # maximum length of a trace's note
CPU, MEMORY = "CPU", "Memory"


class ReplayPattern(Protocol):
    """A recording. `nodes` [n] are sorted; `length_s` (seconds) is positive; `keys` are the keys of its metrics, whose
    values the source averaged over `smoothing_s` seconds; `what` is a short description."""

    @property
    def nodes(self) -> tuple[str, ...]: ...

    @property
    def length_s(self) -> float: ...

    @property
    def keys(self) -> tuple[str, ...]: ...

    @property
    def smoothing_s(self) -> float: ...

    @property
    def what(self) -> str: ...

    @property
    def sizes(self) -> Mapping[str, tuple[float, int]]:
        """(cores, bytes) of the nodes; unknown nodes are missing."""
        ...

    def at(self, key: str, positions: F64) -> F64:
        """The values [n, k] of a metric in its unit at `positions` [k], in seconds since the start; NaN where
        unknown."""
        ...


# --- a trace ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TracePattern:
    """The load steps of all nodes, concatenated: node i has steps first[i] <= j < first[i + 1]. `time` [j] is in
    seconds since the start; `percent` [j] is a percentage of the node's size, NaN if unknown from this time on. `place`
    [j] are the times shifted by node, so that one binary search finds the steps of all nodes."""

    nodes: tuple[str, ...]
    length_s: float
    what: str
    sizes: Mapping[str, tuple[float, int]]
    first: I64
    time: F64
    place: F64
    percent: Mapping[str, F64]
    smoothing_s: float = 0.0
    keys: tuple[str, ...] = (CPU, MEMORY)

    def at(self, key: str, positions: F64) -> F64:
        """See `ReplayPattern.at`: [n, k], NaN where unknown."""
        values = self.percent[key]
        asked = _placed(np.arange(len(self.nodes))[:, np.newaxis], positions, self.length_s)
        found = np.searchsorted(self.place, asked, side="right") - 1
        here = found >= self.first[:-1, np.newaxis]
        before = np.maximum(found, 0)
        after = np.minimum(found + 1, len(values) - 1)
        close = (found + 1 < self.first[1:, np.newaxis]) & (self.time[after] - self.time[before] <= RAMP_S)
        known = _between(self.time[before], values[before], self.time[after], values[after], positions, close=close)
        return np.where(here, known, np.nan)


def _placed(node: I64, time: F64, length_s: float) -> F64:
    return np.asarray(node * (length_s + 1.0) + time, dtype=np.float64)


def _between(
    time: F64, value: F64, next_time: F64, next_value: F64, positions: F64, *, close: npt.NDArray[np.bool_]
) -> F64:
    """The value of a step, interpolated to the next one if they are `close` and both values are known."""
    ramp = close & ~np.isnan(value) & ~np.isnan(next_value) & (next_time > time)
    span = np.where(ramp, next_time - time, 1.0)
    slope = np.where(ramp, (next_value - value) / span, 0.0)
    return np.asarray(value + slope * np.where(ramp, positions - time, 0.0), dtype=np.float64)


@dataclass(slots=True)
class _PodState:
    cores: float
    bytes: float
    lifetime: float | None
    node: str = ""
    until: float = np.inf


@dataclass(slots=True)
class _NodeState:
    index: int
    cores: float
    bytes: int
    load_cores: float | None = None
    load_bytes: float | None = None
    pods: dict[str, _PodState] = field(default_factory=dict)
    is_there: bool = True

    def used(self) -> tuple[float, float]:
        """Used CPU and memory in percent of the node's size; NaN before the first reading."""
        if not self.is_there:
            return np.nan, np.nan
        cores = self._sum(self.load_cores, [pod.cores for pod in self.pods.values()], self.cores)
        return cores, self._sum(self.load_bytes, [pod.bytes for pod in self.pods.values()], self.bytes)

    @staticmethod
    def _sum(load: float | None, pods: Sequence[float], most: float) -> float:
        if load is None and not pods:
            return np.nan
        return min(100.0, 100.0 * ((load or 0.0) + sum(pods)) / most)


class _TraceAccumulator:
    """Replays the records of a trace and collects the load steps of its nodes."""

    def __init__(self) -> None:
        self.begin: float | None = None
        self.now = self.end = 0.0
        self.note = ""
        self.nodes: dict[str, _NodeState] = {}
        self.pods: dict[str, _PodState] = {}
        self.ends: list[tuple[float, str]] = []
        self.changed: dict[str, None] = {}
        self.node, self.time, self.cpu, self.memory = array("q"), array("d"), array("d"), array("d")

    def take(self, record: Record) -> None:
        if self.begin is None:
            self.begin = self.now = record.time
        self.advance(record.time)
        match record:
            case LoadRecord():
                node = self.nodes[record.node]
                node.load_cores = node.load_cores if record.cores is None else record.cores
                node.load_bytes = node.load_bytes if record.bytes is None else float(record.bytes)
                self.changed[record.node] = None
            case UsageRecord():
                pod = self.pods[record.uid]
                pod.cores = pod.cores if record.cores is None else record.cores
                pod.bytes = pod.bytes if record.bytes is None else float(record.bytes)
                self.changed[pod.node] = None
            case PodRecord():
                self.pods[record.uid] = _PodState(record.cores, float(record.bytes), record.lifetime)
            case BindRecord():
                self.bind(record.uid, record.node, record.time)
            case RemoveRecord():
                self.remove(record)
            case NodeRecord():
                self.add(record)
            case Begin():
                self.note = record.note
            case EndRecord():
                pass
        self.end = record.time

    def add(self, record: NodeRecord) -> None:
        known = self.nodes.get(record.node)
        if known is None:
            known = self.nodes[record.node] = _NodeState(len(self.nodes), record.cores, record.bytes)
        elif not known.is_there:
            known.load_cores = known.load_bytes = None
        known.cores, known.bytes, known.is_there = record.cores, record.bytes, True
        self.changed[record.node] = None

    def bind(self, uid: str, node: str, time: float) -> None:
        pod = self.pods[uid]
        self.unbind(uid, pod)
        pod.node, pod.until = node, np.inf if pod.lifetime is None else time + pod.lifetime
        if pod.lifetime is not None:
            heapq.heappush(self.ends, (pod.until, uid))
        self.nodes[node].pods[uid] = pod
        self.changed[node] = None

    def unbind(self, uid: str, pod: _PodState) -> None:
        if pod.node:
            self.nodes[pod.node].pods.pop(uid, None)
            self.changed[pod.node] = None
            pod.node = ""

    def remove(self, record: RemoveRecord) -> None:
        if record.uid:
            self.unbind(record.uid, self.pods[record.uid])
        else:
            node = self.nodes[record.node]
            for uid, pod in list(node.pods.items()):
                self.unbind(uid, pod)
            node.is_there = False
            self.changed[record.node] = None

    def advance(self, time: float) -> None:
        """Advance to a time: remove pods that end before it, and store the steps of changed nodes."""
        while self.ends and self.ends[0][0] <= time:
            until, uid = heapq.heappop(self.ends)
            pod = self.pods[uid]
            if pod.node and pod.until == until:
                self.emit_changes(max(until, self.now))
                self.unbind(uid, pod)
        self.emit_changes(time)

    def emit_changes(self, time: float) -> None:
        """Store a step for each node that changed before this time."""
        if time <= self.now:
            return
        assert self.begin is not None
        for name in self.changed:
            if name:
                node = self.nodes[name]
                cpu, memory = node.used()
                self.node.append(node.index)
                self.time.append(self.now - self.begin)
                self.cpu.append(cpu)
                self.memory.append(memory)
        self.changed.clear()
        self.now = time


def pattern_of(records: Iterable[Record]) -> TracePattern:
    """The load of the nodes of a trace. Raises ValueError for a trace without duration; errors of `records` pass
    through."""
    reading = _TraceAccumulator()
    for record in records:
        reading.take(record)
    if reading.begin is None or reading.end <= reading.begin:
        raise ValueError("all records have the same time, so there is nothing to replay")
    reading.advance(np.nextafter(reading.end, np.inf))
    names = sorted(reading.nodes)
    rank = np.empty(len(names), dtype=np.int64)
    rank[[reading.nodes[name].index for name in names]] = np.arange(len(names))
    node = rank[np.array(reading.node, dtype=np.int64)]
    order = np.argsort(node, kind="stable")  # stable: steps of a node stay in order of time
    time, cpu, memory = (
        np.array(each, dtype=np.float64)[order] for each in (reading.time, reading.cpu, reading.memory)
    )
    first = np.concatenate([[0], np.cumsum(np.bincount(node, minlength=len(names)))]).astype(np.int64)
    sizes = {name: (each.cores, each.bytes) for name, each in sorted(reading.nodes.items())}
    length = reading.end - reading.begin
    place = _placed(node[order], time, length)
    what = f"a trace of {reading.note[:MAX_NOTE]}" if reading.note else "a trace"
    return TracePattern(tuple(names), length, what, sizes, first, time, place, {CPU: cpu, MEMORY: memory})


# --- the history of a store ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HistoryPattern:
    """A stored history: `time` [t] of minutes in seconds since the first one, and `values` [t, n] of each metric."""

    nodes: tuple[str, ...]
    what: str
    time: F64
    values: Mapping[str, F32]
    smoothing_s: float

    @property
    def length_s(self) -> float:
        """Seconds from the first minute to the end of the last."""
        return float(self.time[-1]) + 60.0

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.values)

    @property
    def sizes(self) -> Mapping[str, tuple[float, int]]:
        """Empty: a history contains no sizes."""
        return {}

    def at(self, key: str, positions: F64) -> F64:
        """See `ReplayPattern.at`: [n, k], NaN where unknown."""
        values, last = self.values[key], len(self.time) - 1
        before = np.searchsorted(self.time, positions, side="right") - 1
        after = np.minimum(before + 1, last)
        close = (after > before) & (self.time[after] - self.time[before] <= MINUTES_S)
        held = positions - self.time[before] <= MINUTES_S
        one, other = values[before].T.astype(np.float64), values[after].T.astype(np.float64)
        known = _between(self.time[before], one, self.time[after], other, positions, close=close)
        return np.where(held, known, np.nan)
