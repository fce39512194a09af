"""Nodes with a CPU or memory load near their capacity: since when, and which pods make the load.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from watcher.arrays import I64
from watcher.core.koordinator.report import Capacity
from watcher.core.pods.table import PodTable, by_node
from watcher.core.problems.document import duration_text
from watcher.core.windows.hot_loads import LoadStart, NodeMetric, current_load, hot_rows
from watcher.model import MetricWindows, Snapshot

CRITICAL_PERCENT = 95.0
RESOURCES: Mapping[str, str] = {"CPU": "CPU", "Memory": "memory"}
NAMED_SHARE = 0.25  # of the node's usage: a pod that uses less is not named
OUTSIDE_SHARE = 0.5  # of the node's usage: if the pods use less, other processes make the load
MOST_NAMED = 2
GIB = 2.0**30
NO_PODS: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class HotResource:
    """CPU or memory of a hot node: `percent` is the mean over the shortest window, whose label is `window`, or the
    newest sample if that window is not `complete`. `start` is None if it is unknown."""

    name: str
    percent: float
    window: str
    complete: bool
    start: LoadStart | None

    def text(self, now: float) -> str:
        """The load and its duration at `now` (unix seconds): "CPU at 95 % (mean of 5m) for 12 min"."""
        said = f"{self.name} at {self.percent:.0f} %"
        if not self.complete:
            return f"{said} (newest sample; the {self.window} window is not complete yet)"
        said += f" (mean of {self.window})"
        if self.start is None:
            return said
        return f"{said} for {duration_text(now - self.start.since)}{' or longer' if self.start.longer else ''}"


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

    @property
    def complete(self) -> bool:
        """Whether a window, and not only a newest sample, shows the load."""
        return any(each.complete for each in self.resources)

    @property
    def critical(self) -> bool:
        """Whether a window, and not only a newest sample, is at CRITICAL_PERCENT or more."""
        return any(each.complete and each.percent >= CRITICAL_PERCENT for each in self.resources)


def hot_nodes(
    snapshot: Snapshot,
    starts: Mapping[NodeMetric, LoadStart],
    pods: PodTable | None,
    capacities: Mapping[str, Capacity],
) -> list[HotNode]:
    """Return the hot nodes of a snapshot, the hottest first. `pods` is None if pod usage is unknown."""
    found: dict[int, list[HotResource]] = {}
    for windows in snapshot.metrics:
        if windows.metric.key in RESOURCES:
            for row, resource in _hot(snapshot, starts, windows):
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


def _hot(
    snapshot: Snapshot, starts: Mapping[NodeMetric, LoadStart], windows: MetricWindows
) -> Iterator[tuple[int, HotResource]]:
    load, complete = current_load(windows), ~np.isnan(windows.average[0])
    name, label = RESOURCES[windows.metric.key], snapshot.windows[0].label
    for row in hot_rows(windows):
        start = starts.get((snapshot.nodes[row], windows.metric.name))
        yield row, HotResource(name, float(load[row]), label, bool(complete[row]), start)


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
