"""A trace as columns: the nodes over time, their usage without the simulated pods, and the arrival, lifetime and usage
of pods.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

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
from watcher.arrays import F64, I64

STEP_S = 60.0
DAEMON = "DaemonSet"


@dataclass(frozen=True, slots=True)
class TracePod:
    """A pod that arrives at `arrives` (unix seconds) and runs for `lifetime` seconds (infinity: until the end).
    `pinned` is the only node that it can run on (for a DaemonSet pod), `there` the node on which it ran when the trace
    began ("" if it ran on none)."""

    record: PodRecord
    arrives: float
    lifetime: float
    pinned: str = ""
    there: str = ""


@dataclass(frozen=True, slots=True)
class Steps:
    """Step functions of several series, one after the other: the values of series i are from `first[i]` until before
    `first[i + 1]`, ascending by `time`. Each value (cores, bytes) applies until the next."""

    first: I64
    time: F64
    cores: F64
    bytes: F64


@dataclass(frozen=True, slots=True)
class NodeChange:
    """From `time` (unix seconds) on, the node is as in `record`; None: it is removed."""

    time: float
    node: int
    record: NodeRecord | None


@dataclass(frozen=True, slots=True)
class TraceColumns:
    """A trace as columns. `names`: the nodes of the whole trace, sorted; `changes`: additions, updates and removals of
    nodes in time order. `load` has one series per node, in unix seconds; `usage` one per pod, by its age in seconds.
    `pods` are in order of arrival."""

    begins: float
    ends: float
    note: str
    names: tuple[str, ...]
    changes: tuple[NodeChange, ...]
    load: Steps
    pods: tuple[TracePod, ...]
    usage: Steps

    @property
    def minutes(self) -> int:
        """The number of one-minute steps, at least one."""
        return max(1, math.ceil((self.ends - self.begins) / STEP_S))


@dataclass(slots=True)
class _SeriesBuilder:
    """Collects the points of one series; an unknown value repeats the previous one."""

    cores: float
    bytes: float
    points: array[float] = field(default_factory=lambda: array("d"))  # time, cores and bytes of each

    def add(self, time: float, cores: float | None, size: int | None) -> None:
        self.cores = self.cores if cores is None else cores
        self.bytes = self.bytes if size is None else float(size)
        self.points.extend((time, self.cores, self.bytes))


@dataclass(slots=True)
class _PodEvents:
    record: PodRecord
    usage: _SeriesBuilder
    bound: float | None = None
    node: str = ""
    removed: float | None = None


def read_course(records: Iterable[Record]) -> TraceColumns:
    """Read a whole trace, which must have at least one node."""
    note = ""
    begins: float | None = None
    ends = 0.0
    changes: list[tuple[float, str, NodeRecord | None]] = []
    load: dict[str, _SeriesBuilder] = {}
    pods: dict[str, _PodEvents] = {}
    for record in records:
        begins = record.time if begins is None else begins
        ends = record.time
        match record:
            case LoadRecord():
                load[record.node].add(record.time, record.cores, record.bytes)
            case UsageRecord():
                pod = pods[record.uid]
                pod.usage.add(round(record.time - pod.record.time, 3), record.cores, record.bytes)
            case PodRecord():
                pods[record.uid] = _PodEvents(record, _SeriesBuilder(record.cores, float(record.bytes)))
            case BindRecord():
                pods[record.uid].bound, pods[record.uid].node = record.time, record.node
            case RemoveRecord() if record.uid:
                pods[record.uid].removed = record.time
            case RemoveRecord():
                changes.append((record.time, record.node, None))
            case NodeRecord():
                changes.append((record.time, record.node, record))
                load.setdefault(record.node, _SeriesBuilder(0.0, 0.0))
            case Begin():
                note = record.note
            case EndRecord():
                pass
    names = tuple(sorted(load))
    index = {name: i for i, name in enumerate(names)}
    begun = 0.0 if begins is None else begins
    return TraceColumns(
        begun,
        ends,
        note,
        names,
        tuple(NodeChange(time, index[name], node) for time, name, node in changes),
        _steps([load[name] for name in names]),
        tuple(_course(pod, begun) for pod in pods.values()),
        _steps([pod.usage for pod in pods.values()]),
    )


def _course(pod: _PodEvents, begins: float) -> TracePod:
    record = pod.record
    there = pod.node if pod.bound is not None and pod.bound <= begins else ""
    pinned = pod.node if record.owner.partition("/")[0] == DAEMON else ""
    lifetime = math.inf
    if record.lifetime is not None:
        lifetime = record.lifetime
    elif pod.removed is not None:
        lifetime = pod.removed - (record.time if pod.bound is None else pod.bound)
    return TracePod(record, record.time, lifetime, pinned, there)


def _steps(series: list[_SeriesBuilder]) -> Steps:
    sizes = [len(each.points) // 3 for each in series]
    points = np.concatenate([np.zeros(0), *(np.frombuffer(each.points) for each in series)]).reshape(-1, 3)
    first = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(np.array(sizes, dtype=np.int64))])
    return Steps(first, points[:, 0].copy(), points[:, 1].copy(), points[:, 2].copy())
