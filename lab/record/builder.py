"""Converts observations of a cluster to the records of a trace.

Unobserved values are not written: a minute without a response, a node without a new sample and a pod without
measurements have no record, and never a record of zero. A node or pod that appeared between two polls is recorded at
its own time if known, a removed one at the time of the poll.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lab.traces.records import (
    MOST_PODS,
    Begin,
    BindRecord,
    LoadRecord,
    NodeRecord,
    PodRecord,
    Record,
    RemoveRecord,
    UsageRecord,
)
from watcher.client import Columns, PodColumns
from watcher.core.pods.observed import ClusterSnapshot, SnapshotNode, SnapshotPod
from watcher.model import MetricType, Operator

Use = tuple[float, float]
"""Usage as cores and bytes."""


@dataclass(slots=True)
class _TracedPod:
    """A pod in the trace: its uid in the trace (a new one if the pod reappears after its removal), and its usage
    according to the trace (its requests until the first measurement)."""

    pod: SnapshotPod
    uid: str
    use: Use


class TraceBuilder:
    """State of a trace that is being written. `source` is a description of the recorded service."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.time: float | None = None
        """Time of the last records (unix seconds), None before the first."""
        self.bindings = 0
        self._nodes: dict[str, SnapshotNode] = {}
        self._pods: dict[str, _TracedPod] = {}
        self._uids: dict[str, int] = {}
        self._sampled: dict[str, float] = {}
        self._measured: dict[str, float] = {}

    @property
    def nodes(self) -> int:
        """Number of nodes in the cluster."""
        return len(self._nodes)

    @property
    def pods(self) -> int:
        """Number of pods on these nodes."""
        return len(self._pods)

    def add(self, cluster: ClusterSnapshot, columns: Columns | None, usage: PodColumns | None) -> list[Record]:
        """Records of one poll in the order of time. `columns` and `usage` are None if unavailable."""
        first = self.time is None
        time = cluster.time if self.time is None else max(cluster.time, self.time)
        begun = time if self.time is None else self.time
        events = sorted(self._events(cluster, begun, time, first=first), key=lambda event: event[:2])
        records = [record for _, _, record in events]
        if first:
            samples = "" if columns is None else f", samples from {columns.source}"
            records.insert(0, Begin(time, f"{self.source}{samples}"))
        if usage is not None:
            records.extend(self._usages(usage, time))
        if columns is not None:
            records.extend(self._loads(columns, time))
        self.time = time
        return records

    # --- changes of nodes and pods -----------------------------------------------------------------------------------

    def _events(
        self, cluster: ClusterSnapshot, begun: float, time: float, *, first: bool
    ) -> Iterator[tuple[float, int, Record]]:
        """Records with time and rank. At the same time, nodes are added first and removed last, and a pod is created
        before it is bound."""
        nodes = {node.name: node for node in cluster.nodes}
        pods = {pod.uid: pod for pod in cluster.pods if pod.node in nodes}
        bound: dict[str, float] = {}
        for pod in pods.values():
            bound[pod.node] = min(bound.get(pod.node, time), _within(pod.bound, begun, time))
        for name, node in nodes.items():
            known = self._nodes.get(name)
            if known != node:
                at = bound.get(name, time) if known is None else time
                yield at, 0, _node(node, at)
        for uid in [uid for uid in self._pods if uid not in pods]:
            yield time, 3, RemoveRecord(time, uid=self._pods.pop(uid).uid)
            self._measured.pop(uid, None)
        for pod in pods.values():
            yield from self._pod(pod, begun, time, first=first)
        for name in [name for name in self._nodes if name not in nodes]:
            self._sampled.pop(name, None)
            yield time, 4, RemoveRecord(time, node=name)
        self._nodes = nodes

    def _pod(self, pod: SnapshotPod, begun: float, time: float, *, first: bool) -> Iterator[tuple[float, int, Record]]:
        known = self._pods.get(pod.uid)
        at = time if first else _within(pod.bound, begun, time)
        if known is None:
            uid = self._new_uid(pod.uid)
            came = at if first or pod.created is None else _within(pod.created, begun, at)
            self._pods[pod.uid] = _TracedPod(pod, uid, (pod.cores, float(pod.bytes)))
            yield came, 1, _arrival(pod, uid, came)
            self.bindings += not first
            yield at, 2, BindRecord(at, uid, pod.node)
        elif known.pod.node != pod.node:
            known.pod = pod
            self.bindings += 1
            yield at, 2, BindRecord(at, known.uid, pod.node)

    def _new_uid(self, uid: str) -> str:
        """Uid of a pod in the trace. A removed pod cannot reappear in a trace, so it gets a new uid."""
        times = self._uids[uid] = self._uids.get(uid, 0) + 1
        return uid if times == 1 else f"{uid}#{times}"

    # --- usage -------------------------------------------------------------------------------------------------------

    def _usages(self, usage: PodColumns, time: float) -> Iterator[Record]:
        for known in self._pods.values():
            pod = known.pod
            row = usage.row.get((pod.namespace, pod.name))
            if row is None or usage.nodes[row] not in ("", pod.node):
                continue
            at, cores, size = float(usage.sampled[row]), float(usage.cores[row]), float(usage.memory[row])
            if at <= self._measured.get(pod.uid, pod.bound) or (math.isnan(cores) and math.isnan(size)):
                continue  # already recorded, or measured for an earlier pod with this name
            self._measured[pod.uid] = at
            known.use = (_or(cores, known.use[0]), _or(size, known.use[1]))
            yield UsageRecord(
                time,
                known.uid,
                None if math.isnan(cores) else cores,
                None if math.isnan(size) else round(size),
            )

    def _loads(self, columns: Columns, time: float) -> Iterator[Record]:
        """Load of each node with a new sample, minus the usage of its pods, at least 0."""
        beside = self._of_pods()
        cpu, memory = (columns.of_type(kind, Operator.LATEST) for kind in (MetricType.CPU, MetricType.MEMORY))
        for name, node in self._nodes.items():
            row = columns.row.get(name)
            if row is None:
                continue
            times = [float(each[row]) for each in columns.sampled.values()]
            sampled = max((each for each in times if not math.isnan(each)), default=-math.inf)
            if sampled <= self._sampled.get(name, -math.inf):
                continue
            cores, size = float(cpu[row]) / 100 * node.cores, float(memory[row]) / 100 * node.bytes
            if math.isnan(cores) and math.isnan(size):
                continue
            self._sampled[name] = sampled
            of_pods = beside.get(name, (0.0, 0.0))
            yield LoadRecord(
                time,
                name,
                None if math.isnan(cores) else max(0.0, cores - of_pods[0]),
                None if math.isnan(size) else max(0, round(size - of_pods[1])),
            )

    def _of_pods(self) -> Mapping[str, Use]:
        """Usage of the pods by node, according to the trace."""
        sums: dict[str, Use] = {}
        for known in self._pods.values():
            cores, size = sums.get(known.pod.node, (0.0, 0.0))
            sums[known.pod.node] = cores + known.use[0], size + known.use[1]
        return sums


def _within(time: float, low: float, high: float) -> float:
    return min(max(time, low), high)


def _or(value: float, otherwise: float) -> float:
    return otherwise if math.isnan(value) else value


def _node(node: SnapshotNode, time: float) -> NodeRecord:
    return NodeRecord(
        time,
        node.name,
        node.cores,
        node.bytes,
        None if node.allocatable_cores == node.cores else node.allocatable_cores,
        None if node.allocatable_bytes == node.bytes else node.allocatable_bytes,
        MOST_PODS if node.pods is None else node.pods,
    )


def _arrival(pod: SnapshotPod, uid: str, time: float) -> PodRecord:
    return PodRecord(
        time,
        uid,
        f"{pod.namespace}/{pod.name}",
        pod.cores,
        pod.bytes,
        pod.cores_limit,
        pod.bytes_limit,
        priority=pod.priority,
        owner=pod.owner,
    )
