"""Nodes with a CPU or memory load near their capacity: since when, and which pods make the load.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from watcher.arrays import F64, I64
from watcher.core.koordinator.report import Capacity
from watcher.core.pods.table import PodTable, by_node
from watcher.core.problems.document import duration_text
from watcher.model import MetricWindows, Snapshot

HOT_PERCENT = 85.0
CRITICAL_PERCENT = 95.0
DIP_PERCENT = 10.0
"""A sample this many points below HOT_PERCENT ends the time for which a node is hot; smaller dips do not."""
RESOURCES: Mapping[str, str] = {"CPU": "CPU", "Memory": "memory"}
NAMED_SHARE = 0.25  # of the node's usage: a pod that uses less is not named
OUTSIDE_SHARE = 0.5  # of the node's usage: if the pods use less, other processes make the load
MOST_NAMED = 2
GIB = 2.0**30
NEWEST = "newest sample"
NO_PODS: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class HotResource:
    """CPU or memory of a hot node: `percent` is the mean over the shortest window, or the newest sample without one;
    `over` says which: "mean of 5m". `since` is in unix seconds, None if unknown; `longer`: the load began before the
    stored samples."""

    name: str
    percent: float
    over: str
    since: float | None
    longer: bool

    def text(self, now: float) -> str:
        """The load and its duration at `now` (unix seconds): "CPU at 95 % (mean of 5m) for 12 min"."""
        said = f"{self.name} at {self.percent:.0f} % ({self.over})"
        if self.since is None:
            return said
        return f"{said} for {duration_text(now - self.since)}{' or longer' if self.longer else ''}"


@dataclass(frozen=True, slots=True)
class HotNode:
    """A hot node with its hot resources, CPU first. `load` says which pods make the load, "" if unknown; `pods` are the
    (namespace, name) of the pods that it names. `outside`: processes outside of pods make the load."""

    name: str
    resources: tuple[HotResource, ...]
    load: str = ""
    pods: tuple[tuple[str, str], ...] = ()
    outside: bool = False

    @property
    def percent(self) -> float:
        return max(each.percent for each in self.resources)


def hot_nodes(snapshot: Snapshot, pods: PodTable | None, capacities: Mapping[str, Capacity]) -> list[HotNode]:
    """Return the hot nodes of a snapshot, the hottest first. `pods` is None if pod usage is unknown."""
    found: dict[int, list[HotResource]] = {}
    for windows in snapshot.metrics:
        if windows.metric.key in RESOURCES:
            for row, resource in _hot(snapshot, windows):
                found.setdefault(row, []).append(resource)
    rows_of = by_node(pods.nodes) if pods is not None and found else {}
    nodes = []
    for row, resources in found.items():
        name = snapshot.nodes[row]
        hottest = max(resources, key=lambda each: each.percent)
        ordered = tuple(sorted(resources, key=lambda each: each.name != RESOURCES["CPU"]))
        if pods is not None and name in rows_of and name in capacities:
            load, named, outside = _load(hottest, pods, rows_of[name], capacities[name])
            nodes.append(HotNode(name, ordered, load, named, outside))
        else:
            nodes.append(HotNode(name, ordered))
    return sorted(nodes, key=lambda node: (-node.percent, node.name))


def _hot(snapshot: Snapshot, windows: MetricWindows) -> Iterator[tuple[int, HotResource]]:
    shortest = windows.average[0]
    load = np.where(np.isnan(shortest), windows.latest, shortest)
    rows = np.flatnonzero(load >= HOT_PERCENT)
    if not len(rows):
        return
    values, times = (None, None) if snapshot.samples is None else snapshot.samples(windows.metric.name)
    for row in rows.tolist():
        since, longer = (None, False) if values is None or times is None else _since(values[:, row], times[:, row])
        over = NEWEST if np.isnan(shortest[row]) else f"mean of {snapshot.windows[0].label}"
        yield row, HotResource(RESOURCES[windows.metric.key], float(load[row]), over, since, longer)


def _since(values: F64, times: F64) -> tuple[float | None, bool]:
    """Return since when (unix seconds) a load is high, and whether it began before the first sample. Samples [slots],
    newest first."""
    below = values < HOT_PERCENT - DIP_PERCENT
    end = int(np.argmax(below)) if below.any() else len(values)
    known = times[:end][(values[:end] >= HOT_PERCENT) & ~np.isnan(times[:end])]
    return (float(known.min()), not below.any()) if len(known) else (None, False)


def _load(
    resource: HotResource, pods: PodTable, rows: I64, capacity: Capacity
) -> tuple[str, tuple[tuple[str, str], ...], bool]:
    """Return the sentence about the pods that make the load of a node, the pods that it names, and whether processes
    outside of pods make the load."""
    if resource.name == RESOURCES["CPU"]:
        usage, unit, total = pods.cores[rows], "cores", capacity.milli_cores / 1000
    else:
        usage, unit, total = pods.memory[rows] / GIB, "GiB", capacity.memory / GIB
    usage = np.nan_to_num(usage)
    used = total * resource.percent / 100
    amount = f"of {_number(total)} {unit}"
    order = np.lexsort((rows, -usage)).tolist()
    named = [at for at in order[:MOST_NAMED] if usage[at] >= NAMED_SHARE * used]
    if named:
        names = tuple(pods.pods[rows[at]] for at in named)
        parts = [f"{'/'.join(name)} uses {_number(usage[at])}" for name, at in zip(names, named, strict=True)]
        return f"{' and '.join(parts)} {amount}", names, False
    together = float(usage.sum())
    many = f"its {len(rows)} pods use" if len(rows) > 1 else "its pod uses"
    if together < OUTSIDE_SHARE * used:
        text = f"{many} only {_number(together)} {amount}, so processes outside of pods make the load"
        return text, NO_PODS, True
    return f"{many} {_number(together)} {amount} together", NO_PODS, False


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
