"""The cluster as columns: what every node has, what its pods ask for, and how loaded it is.

Kept up by the events of nodes and pods, each in time that does not depend on the size of the cluster, and by a renewed
copy of the load once a tick; a request for scores reads columns and changes nothing. What is here equals what a table
made anew from the same nodes and pods would have (property-tested).

Rows: a node keeps its row for as long as it, or a pod on it, is there; then the row is given to the next node.
One writer, the event loop. No I/O, no clock: `now` (unix seconds) is passed in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from scorers.cluster.columns import AmountColumns
from scorers.cluster.load import I64, Load
from scorers.cluster.node_metrics import NodeMetric
from scorers.cluster.pods import ENDED, PodInfo, identity, pod_info, scheduled_at
from scorers.cluster.recent_pods import RecentPods
from scorers.cluster.resources import amounts
from watcher.client import Columns, Pods
from watcher.core.kubernetes.objects import Node, Pod
from watcher.model import MetricType, Window

Bool = npt.NDArray[np.bool_]


class Listener(Protocol):
    """Who keeps sums of its own over the pods of nodes (LoadAwareScheduling does)."""

    def assigned(self, row: int, info: PodInfo, at: float) -> None: ...

    def unassigned(self, row: int, info: PodInfo) -> None: ...

    def node_changed(self, row: int, node: Node | None) -> None: ...


class Follower(Protocol):
    """Who derives something from what nodes and pods were measured to use, and keeps it (LoadAwareScheduling does)."""

    def load_changed(self) -> None: ...

    def node_metric_changed(self, row: int, metric: NodeMetric | None) -> None: ...


@dataclass(frozen=True, slots=True)
class Needs:
    """What a plug-in is to be told of beside the mean load: usages by koordlet's rules, what pods use, the cluster's
    NodeMetrics."""

    usages: bool = False
    pods: bool = False
    node_metrics: bool = False


@dataclass(slots=True)
class _Assigned:
    info: PodInfo
    row: int
    at: float
    until: float = np.inf  # a reservation ends then; a pod that is bound does not

    def is_there(self, pod: Pod, *, row: int | None, at: float) -> bool:
        """Whether the pod is where it was and asks for what it asked for."""
        return (self.row, self.at) == (row, at) and self.info.pod.spec == pod.spec

    def tells_nothing(self, pod: Pod) -> bool:
        """Whether nothing has changed of what else plug-ins look at: many events of a pod are about its phase alone."""
        return _looked_at(self.info.pod) == _looked_at(pod)


def _looked_at(pod: Pod) -> tuple[object, ...]:
    metadata, status = pod.metadata, pod.status
    of_metadata = (metadata.labels, metadata.annotations, metadata.owner_references)
    return *of_metadata, status.conditions, status.qos_class, status.start_time


class Table:
    """`windows` are those of the watcher, where they are known. Nodes and pods as columns of `capacity`, `allocatable`,
    `requested`, `counted` (requests as kube-scheduler scores by them) and `limited` (limits raised to requests); `pods`
    [rows] counts them, `known` [rows] says for which rows there is a node."""

    def __init__(self, *, windows: Sequence[Window] = ()) -> None:
        self.windows = tuple(windows)
        self.row: dict[str, int] = {}
        self.names: list[str] = []
        self.capacity = AmountColumns()
        self.allocatable = AmountColumns()
        self.requested = AmountColumns()
        self.counted = AmountColumns()
        self.limited = AmountColumns()
        self.recent = RecentPods()
        self.load = Load()
        self.pod_usage: Pods | None = None
        self.node_metrics: dict[str, NodeMetric] = {}  # those of the cluster, by node
        self._nodes: dict[str, Node] = {}
        self._pods: dict[str, _Assigned] = {}
        self._reserved: set[str] = set()
        self._count: I64 = np.zeros(0, dtype=np.int64)
        self._known: Bool = np.zeros(0, dtype=np.bool_)
        self._where: I64 = np.zeros(0, dtype=np.int64)
        self._free: list[int] = []
        self._listeners: list[Listener] = []
        self._followers: list[tuple[Follower, Needs]] = []
        self._measures: dict[MetricType, bool] = {}

    def __len__(self) -> int:
        """How many rows there are, free ones included."""
        return len(self.names)

    @property
    def pods(self) -> I64:
        """How many pods are on each node."""
        return self._count[: len(self)]

    @property
    def known(self) -> Bool:
        """Which rows have a node that the cluster knows."""
        return self._known[: len(self)]

    def node(self, name: str) -> Node | None:
        """The node's object."""
        return self._nodes.get(name)

    def assigned(self, row: int) -> list[PodInfo]:
        """The pods on a node, by key."""
        return [each.info for _, each in sorted(self._pods.items()) if each.row == row]

    def all_assigned(self) -> list[PodInfo]:
        """The pods on all nodes."""
        return [each.info for each in list(self._pods.values())]

    def placed(self) -> list[tuple[PodInfo, str, float]]:
        """The pods that are bound, each with its node and since when (unix seconds), by key."""
        bound = [each for key, each in sorted(self._pods.items()) if key not in self._reserved]
        return [(each.info, self.names[each.row], each.at) for each in bound]

    def listen(self, listener: Listener) -> None:
        """Tell this one of all that is here, and then of each change."""
        self._listeners.append(listener)
        for name, node in self._nodes.items():
            listener.node_changed(self.row[name], node)
        for each in self._pods.values():
            listener.assigned(each.row, each.info, each.at)

    def follow(self, follower: Follower, needs: Needs) -> None:
        """Tell this one of each new measurement; `needs` is what whoever keeps this table up has to bring."""
        self._followers.append((follower, needs))

    @property
    def listeners(self) -> tuple[Listener, ...]:
        """Who is told of each change."""
        return tuple(self._listeners)

    def forget(self, who: object) -> None:
        """Tell this one, a listener or follower or both, of nothing any more."""
        self._listeners = [each for each in self._listeners if each is not who]
        self._followers = [each for each in self._followers if each[0] is not who]

    @property
    def needs(self) -> Needs:
        """What all followers together need."""
        needs = [each for _, each in self._followers]
        return Needs(
            any(each.usages for each in needs),
            any(each.pods for each in needs),
            any(each.node_metrics for each in needs),
        )

    # --- nodes -------------------------------------------------------------------------------------------------------

    def set_node(self, name: str, node: Node | None) -> None:
        """A node came, changed, or went. Raises ValueError for a quantity that is none; then nothing is changed."""
        if node is None:
            self._remove_node(name)
            return
        capacity, allocatable = amounts(node.status.capacity), amounts(node.status.allocatable)
        row = self._row_of(name)
        if not self._known[row]:
            self._measures.clear()
        self._nodes[name] = node
        self._known[row] = True
        self.capacity.set(row, capacity)
        self.allocatable.set(row, allocatable)
        for listener in self._listeners:
            listener.node_changed(row, node)

    def _remove_node(self, name: str) -> None:
        row = self.row.get(name)
        if row is None or self._nodes.pop(name, None) is None:
            return
        self._known[row] = False
        self._measures.clear()
        self.capacity.set(row, {})
        self.allocatable.set(row, {})
        for listener in self._listeners:
            listener.node_changed(row, None)
        self._free_if_empty(row)

    # --- pods --------------------------------------------------------------------------------------------------------

    def set_pod(self, old: Pod | None, new: Pod | None, *, now: float) -> None:
        """A pod came, changed, or went. One that has ended, or has no node, is on none. Raises ValueError for a
        quantity that is none; the pod then counts nowhere."""
        if old is not None and (new is None or identity(old) != identity(new)):
            self._unassign(identity(old))
        if new is None:
            return
        key = identity(new)
        if not new.spec.node_name or new.status.phase in ENDED:
            if key not in self._reserved:  # its reservation stays until it is bound or runs out
                self._unassign(key)
            return
        before = self._pods.get(key)
        at = scheduled_at(new)
        if (
            before is not None
            and at is None
            and key not in self._reserved
            and self.names[before.row] == new.spec.node_name
        ):
            at = before.at
        self._assign(new, new.spec.node_name, at=now if at is None else at)

    def reserve(self, pod: Pod, node: str, *, now: float, until: float) -> None:
        """Count a pod on a node before it is bound, until then at the latest; a new reservation takes the place of the
        one before. Nothing happens where the pod is bound already."""
        key = identity(pod)
        if key in self._pods and key not in self._reserved:
            return
        self._assign(pod, node, at=now)
        self._pods[key].until = until
        self._reserved.add(key)

    def release(self, key: str) -> None:
        """Drop a reservation, if it is one."""
        if key in self._reserved:
            self._unassign(key)

    def expire(self, now: float) -> tuple[str, ...]:
        """Drop the reservations whose time is over; returns their keys."""
        over = tuple(sorted(key for key in self._reserved if self._pods[key].until <= now))
        for key in over:
            self._unassign(key)
        return over

    @contextmanager
    def without(self, key: str) -> Iterator[None]:
        """As if this pod had no reservation, if it has one, within the block; nothing else may run meanwhile."""
        with self.absent(key) if key in self._reserved else nullcontext():
            yield

    @contextmanager
    def absent(self, key: str) -> Iterator[None]:
        """As if this pod were on no node, bound or reserved, within the block; nothing else may run meanwhile."""
        held, is_reserved = self._pods.get(key), key in self._reserved
        if held is None:
            yield
            return
        node = self.names[held.row]
        self._unassign(key)
        try:
            yield
        finally:
            if is_reserved:
                self.reserve(held.info.pod, node, now=held.at, until=held.until)
            else:
                self._assign(held.info.pod, node, at=held.at)

    @property
    def reserved(self) -> Mapping[str, str]:
        """Reservations: key of the pod -> node."""
        return {key: self.names[self._pods[key].row] for key in sorted(self._reserved)}

    def _assign(self, pod: Pod, node: str, *, at: float) -> None:
        key = identity(pod)
        before = self._pods.get(key)
        if before is not None and key not in self._reserved and before.is_there(pod, row=self.row.get(node), at=at):
            if not before.tells_nothing(pod):
                self._tell_again(before, pod)
            return
        try:
            info = pod_info(pod)
        except ValueError:
            self._unassign(key)
            raise
        if before is not None:
            self._unassign(key)
        row = self._row_of(node)
        self._pods[key] = _Assigned(info, row, at)
        self._count[row] += 1
        self.requested.add(row, info.requests)
        self.counted.add(row, info.counted_requests)
        self.limited.add(row, info.raised_limits)
        self.recent.add(info, row=row, at=at)
        for listener in self._listeners:
            listener.assigned(row, info, at)

    def _tell_again(self, assigned: _Assigned, pod: Pod) -> None:
        """The sums are as they were; whoever keeps others may look at more of a pod."""
        old, row, at = assigned.info, assigned.row, assigned.at
        assigned.info = new = replace(old, pod=pod)
        self.recent.add(new, row=row, at=at)
        for listener in self._listeners:
            listener.unassigned(row, old)
            listener.assigned(row, new, at)

    def _unassign(self, key: str) -> None:
        self._reserved.discard(key)
        gone = self._pods.pop(key, None)
        if gone is None:
            return
        self._count[gone.row] -= 1
        self.requested.add(gone.row, gone.info.requests, times=-1)
        self.counted.add(gone.row, gone.info.counted_requests, times=-1)
        self.limited.add(gone.row, gone.info.raised_limits, times=-1)
        self.recent.remove(key)
        for listener in self._listeners:
            listener.unassigned(gone.row, gone.info)
        self._free_if_empty(gone.row)

    # --- load --------------------------------------------------------------------------------------------------------

    def measures(self, kind: MetricType) -> bool:
        """Whether at least half of the nodes have a load of this kind; computed once per copy of the load."""
        if kind not in self._measures:
            silent = np.isnan(self.load.average(kind)[self.known])
            self._measures[kind] = bool(len(silent)) and 2 * int(np.count_nonzero(silent)) <= len(silent)
        return self._measures[kind]

    def set_load(self, columns: Columns | None, *, now: float) -> None:
        """Take a new copy of the watcher's columns (None: there is none); once a tick."""
        self._where[:] = -1
        if columns is not None:
            for name, row in self.row.items():
                self._where[row] = columns.row.get(name, -1)
        self.load = Load(columns, self._where[: len(self)])
        self._measures.clear()
        sampled = self.load.sampled()[self.known]
        oldest = float(np.nanmin(sampled)) if np.isfinite(sampled).any() else np.inf
        self.recent.prune(now=now, measured=oldest)
        for follower, _ in self._followers:
            follower.load_changed()

    def expire_load(self, *, before: float) -> None:
        """Nodes whose newest sample is from before that (unix seconds) have no load any more; asked now and then, since
        the watcher makes no new copy while its source is away."""
        old = self.load.sampled() < before
        if not old.any():
            return
        self._where[: len(self)][old] = -1
        self.load = Load(self.load.columns, self._where[: len(self)])
        self._measures.clear()
        for follower, _ in self._followers:
            follower.load_changed()

    def set_pod_usage(self, pods: Pods | None) -> None:
        """Take a new copy of what pods use (None: there is none); as often as it is renewed."""
        self.pod_usage = pods
        for follower, _ in self._followers:
            follower.load_changed()

    def set_node_metric(self, name: str, metric: NodeMetric | None) -> None:
        """A NodeMetric of the cluster came, changed, or went. One without a time has that of the one before."""
        before = self.node_metrics.pop(name, None)
        if metric is not None:
            if metric.updated is None and before is not None:
                metric = replace(metric, updated=before.updated)
            self.node_metrics[name] = metric
        if (row := self.row.get(name)) is not None:
            for follower, _ in self._followers:
                follower.node_metric_changed(row, metric)

    # --- rows --------------------------------------------------------------------------------------------------------

    def _row_of(self, name: str) -> int:
        row = self.row.get(name)
        if row is None:
            row = self._free.pop() if self._free else self._new_row()
            self.row[name], self.names[row] = row, name
            self._place_load(row, name)
        return row

    def _new_row(self) -> int:
        row = len(self.names)
        self.names.append("")
        for columns in (self.capacity, self.allocatable, self.requested, self.counted, self.limited):
            columns.reserve(row + 1)
        if row >= len(self._count):
            more = max(16, row // 4 + 1)
            self._count = np.concatenate([self._count, np.zeros(more, dtype=np.int64)])
            self._known = np.concatenate([self._known, np.zeros(more, dtype=np.bool_)])
            self._where = np.concatenate([self._where, np.full(more, -1, dtype=np.int64)])
        return row

    def _place_load(self, row: int, name: str) -> None:
        """A node that the load already knows has it from its first moment on."""
        columns = self.load.columns
        found = -1 if columns is None else columns.row.get(name, -1)
        self._where[row] = found
        self.load = Load(columns, self._where[: len(self)])
        self._measures.clear()

    def _free_if_empty(self, row: int) -> None:
        if self._known[row] or self._count[row]:
            return
        name = self.names[row]
        del self.row[name]
        self.names[row] = ""
        self._place_load(row, "")
        self._free.append(row)
