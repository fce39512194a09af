"""The cluster as columns: capacity, requests, and load of every node.

Events of nodes and pods update the table, each in time independent of the cluster size; a new copy of the load is set
once a tick. A score request only reads columns. The table always equals a table built from scratch from the same nodes
and pods (property-tested).

A node keeps its row as long as the node or a pod on it exists; then the row is reused. The event loop is the only
writer. No I/O, no clock: `now` (unix seconds) is passed in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from scorers.cluster.columns import AmountColumns
from scorers.cluster.load import NodeLoadColumns
from scorers.cluster.node_metrics import NodeMetric
from scorers.cluster.pods import ENDED, PodInfo, identity, pod_info, scheduled_at
from scorers.cluster.unmeasured_pods import RecentPods
from watcher.arrays import F64, I64, Bool
from watcher.client import Columns, NodeSilence, PodColumns
from watcher.core.kubernetes.objects import Node, Pod
from watcher.core.kubernetes.pod_resources import amounts
from watcher.core.kubernetes.resize import resize_state
from watcher.model import MetricType, Window


class PodListener(Protocol):
    """Keeps its own sums over the pods of nodes (for example LoadAwareScheduling)."""

    def assigned(self, row: int, info: PodInfo, at: float) -> None: ...

    def unassigned(self, row: int, info: PodInfo) -> None: ...

    def node_changed(self, row: int, node: Node | None) -> None: ...


class LoadFollower(Protocol):
    """Derives data from the measured usage of nodes and pods (for example LoadAwareScheduling)."""

    def load_changed(self) -> None: ...

    def node_metric_changed(self, row: int, metric: NodeMetric | None) -> None: ...


@dataclass(frozen=True, slots=True)
class DataNeeds:
    """Data that a plug-in needs in addition to the mean load: usages by koordlet's rules, pod usage, its readings of
    each minute, the cluster's NodeMetrics, and the forecasts over these horizons ("6h"), sorted."""

    usages: bool = False
    pods: bool = False
    minutes: bool = False
    node_metrics: bool = False
    horizons: tuple[str, ...] = ()

    @property
    def horizon(self) -> str:
        """The horizon to request, "" without forecasts. The plug-ins of valid settings have only one."""
        return self.horizons[0] if self.horizons else ""


@dataclass(slots=True)
class _AssignedPod:
    info: PodInfo
    row: int
    at: float
    until: float = np.inf  # end of a reservation, unix seconds; inf for a bound pod

    def is_unchanged(self, pod: Pod, *, row: int | None, at: float) -> bool:
        """Return whether node, time, and resources of the pod are unchanged."""
        known = self.info.pod
        same = (self.row, self.at) == (row, at) and known.spec == pod.spec
        return same and resize_state(known) == resize_state(pod)

    def is_irrelevant_update(self, pod: Pod) -> bool:
        """Return whether the other fields that plug-ins read are unchanged: many pod events change only the phase."""
        return _looked_at(self.info.pod) == _looked_at(pod)


def _looked_at(pod: Pod) -> tuple[object, ...]:
    metadata, status = pod.metadata, pod.status
    of_metadata = (metadata.labels, metadata.annotations, metadata.owner_references)
    return *of_metadata, status.conditions, status.qos_class, status.start_time


class ClusterTable:
    """Nodes and pods as columns. `windows` are the watcher's windows, empty when unknown. `capacity`, `allocatable`,
    `requested`, `counted` (requests that kube-scheduler's scoring counts), and `limited` (limits raised to requests)
    are columns by resource; `pods` [rows] is the number of pods; `known` [rows] is True for rows with a node."""

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
        self.load = NodeLoadColumns()
        self.silence: NodeSilence | None = None
        """The silent nodes, None if unknown."""
        self.unanswered_since = np.inf
        """Unix time in seconds since which the watcher does not answer, infinity if it answers. Samples that become old
        later say nothing about their nodes."""
        self.pod_usage: PodColumns | None = None
        self.node_metrics: dict[str, NodeMetric] = {}  # the cluster's NodeMetric objects by node
        self._nodes: dict[str, Node] = {}
        self._pods: dict[str, _AssignedPod] = {}
        self._reserved: set[str] = set()
        self._count: I64 = np.zeros(0, dtype=np.int64)
        self._known: Bool = np.zeros(0, dtype=np.bool_)
        self._where: I64 = np.zeros(0, dtype=np.int64)
        self._silent: F64 = np.zeros(0)  # as NodeLoadColumns.silent
        self._free: list[int] = []
        self._listeners: list[PodListener] = []
        self._followers: list[LoadFollower] = []
        self._needs: list[tuple[object, DataNeeds]] = []
        self._measures: dict[MetricType, bool] = {}

    def __len__(self) -> int:
        """Return the number of rows, including free ones."""
        return len(self.names)

    @property
    def pods(self) -> I64:
        """Number of pods on each node [rows]."""
        return self._count[: len(self)]

    @property
    def known(self) -> Bool:
        """Rows with a node that exists in the cluster [rows]."""
        return self._known[: len(self)]

    def node(self, name: str) -> Node | None:
        return self._nodes.get(name)

    def assigned(self, row: int) -> list[PodInfo]:
        """Return the pods on a node, ordered by key."""
        return [each.info for _, each in sorted(self._pods.items()) if each.row == row]

    def all_assigned(self) -> list[PodInfo]:
        return [each.info for each in list(self._pods.values())]

    def placed(self) -> list[tuple[PodInfo, str, float]]:
        """Return the bound pods with their node and the time of assignment (unix seconds), ordered by key."""
        bound = [each for key, each in sorted(self._pods.items()) if key not in self._reserved]
        return [(each.info, self.names[each.row], each.at) for each in bound]

    def listen(self, listener: PodListener) -> None:
        """Report all existing nodes and pods to the listener, then every change."""
        self._listeners.append(listener)
        for name, node in self._nodes.items():
            listener.node_changed(self.row[name], node)
        for each in self._pods.values():
            listener.assigned(each.row, each.info, each.at)

    def follow(self, follower: LoadFollower, needs: DataNeeds) -> None:
        """Report each new measurement to the follower; `needs` is the data that the table's owner must supply."""
        self._followers.append(follower)
        self.require(follower, needs)

    def require(self, who: object, needs: DataNeeds) -> None:
        """Have the table's owner supply these data until `who` is unsubscribed."""
        self._needs.append((who, needs))

    @property
    def listeners(self) -> tuple[PodListener, ...]:
        return tuple(self._listeners)

    def unsubscribe(self, who: object) -> None:
        """Unsubscribe a listener or follower, and remove its needs."""
        self._listeners = [each for each in self._listeners if each is not who]
        self._followers = [each for each in self._followers if each is not who]
        self._needs = [each for each in self._needs if each[0] is not who]

    @property
    def needs(self) -> DataNeeds:
        """Combined needs of all plug-ins."""
        needs = [each for _, each in self._needs]
        return DataNeeds(
            any(each.usages for each in needs),
            any(each.pods for each in needs),
            any(each.minutes for each in needs),
            any(each.node_metrics for each in needs),
            tuple(sorted({horizon for each in needs for horizon in each.horizons})),
        )

    # --- nodes -------------------------------------------------------------------------------------------------------

    def set_node(self, name: str, node: Node | None) -> None:
        """Add, update, or (None) remove a node. Raises ValueError for an invalid quantity and changes nothing then."""
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
        """Process a pod event. A pod that has ended or has no node is removed. Raises ValueError for an invalid
        quantity; the pod then counts on no node."""
        if old is not None and (new is None or identity(old) != identity(new)):
            self._unassign(identity(old))
        if new is None:
            return
        key = identity(new)
        if not new.spec.node_name or new.status.phase in ENDED:
            if key not in self._reserved:  # keep its reservation until it is bound or expires
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

    def reserve(self, pod: Pod, node: str, *, now: float, until: float) -> bool:
        """Count a pod on a node before it is bound, at most until `until` (unix seconds). Replaces an earlier
        reservation; does nothing if the pod is bound. Return whether the pod is reserved."""
        key = identity(pod)
        if key in self._pods and key not in self._reserved:
            return False
        self._assign(pod, node, at=now)
        self._pods[key].until = until
        self._reserved.add(key)
        return True

    def release(self, key: str) -> None:
        """Remove the pod's reservation, if any."""
        if key in self._reserved:
            self._unassign(key)

    def expire(self, now: float) -> tuple[str, ...]:
        """Remove expired reservations and return their keys."""
        over = tuple(sorted(key for key in self._reserved if self._pods[key].until <= now))
        for key in over:
            self._unassign(key)
        return over

    @contextmanager
    def without_reservation(self, key: str) -> Iterator[None]:
        """Within the block, remove this pod's reservation, if any. The block must not await."""
        with self.without_pod(key) if key in self._reserved else nullcontext():
            yield

    @contextmanager
    def without_pod(self, key: str) -> Iterator[None]:
        """Within the block, remove this pod, bound or reserved, from its node. The block must not await."""
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
        """Reservations: pod key -> node name."""
        return {key: self.names[self._pods[key].row] for key in sorted(self._reserved)}

    def _assign(self, pod: Pod, node: str, *, at: float) -> None:
        key = identity(pod)
        before = self._pods.get(key)
        if before is not None and key not in self._reserved and before.is_unchanged(pod, row=self.row.get(node), at=at):
            if not before.is_irrelevant_update(pod):
                self._reassign(before, pod)
            return
        try:
            info = pod_info(pod)
        except ValueError:
            self._unassign(key)
            raise
        if before is not None:
            self._unassign(key)
        row = self._row_of(node)
        self._pods[key] = _AssignedPod(info, row, at)
        self._count[row] += 1
        self.requested.add(row, info.requests)
        self.counted.add(row, info.counted_requests)
        self.limited.add(row, info.raised_limits)
        self.recent.add(info, row=row, at=at)
        for listener in self._listeners:
            listener.assigned(row, info, at)

    def _reassign(self, assigned: _AssignedPod, pod: Pod) -> None:
        """Update a pod whose sums are unchanged; listeners may depend on its other fields."""
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

    def load_of_unknown(self, names: Sequence[str]) -> tuple[list[str], NodeLoadColumns]:
        """Return those of these nodes that have load although the cluster has no such Node object, and their load."""
        columns = self.load.columns
        found = [] if columns is None else [name for name in names if name in columns.row and not self._is_known(name)]
        where = [] if columns is None else [columns.row[name] for name in found]
        return found, NodeLoadColumns(columns, np.array(where, dtype=np.int64), np.full(len(found), np.nan))

    def _is_known(self, name: str) -> bool:
        row = self.row.get(name)
        return row is not None and bool(self._known[row])

    def has_load(self, kind: MetricType) -> bool:
        """Return whether at least half of the nodes have load of this type; cached per copy of the load."""
        if kind not in self._measures:
            silent = np.isnan(self.load.average(kind)[self.known])
            self._measures[kind] = bool(len(silent)) and 2 * int(np.count_nonzero(silent)) <= len(silent)
        return self._measures[kind]

    def set_load(self, columns: Columns | None, *, now: float, silence: NodeSilence | None = None) -> None:
        """Set a new copy of the watcher's columns (None: no load); called once a tick. Without columns, `silence`
        contains the silent nodes if they are known."""
        self.silence = silence if columns is None else columns.silence
        self._where[:] = -1
        self._silent[:] = np.nan
        if columns is not None:
            rows = np.fromiter(self.row.values(), dtype=np.int64, count=len(self.row))
            self._where[rows] = [columns.row.get(name, -1) for name in self.row]
        for name, last in {} if self.silence is None else self.silence.sampled.items():
            if (row := self.row.get(name)) is not None and self._where[row] < 0:
                self._silent[row] = last
        self._renew_load(columns)
        sampled = self.load.sampled()[self.known]
        oldest = float(np.nanmin(sampled)) if np.isfinite(sampled).any() else np.inf
        self.recent.prune(now=now, measured=oldest)
        for follower in self._followers:
            follower.load_changed()

    def expire_load(self, *, before: float) -> None:
        """Discard the load of nodes whose newest sample is before `before` (unix seconds): these nodes are silent.
        Called periodically, because the watcher makes no new copy while its source is unavailable."""
        sampled = self.load.sampled()
        old = sampled < before
        if not old.any():
            return
        self._where[: len(self)][old] = -1
        self._silent[: len(self)][old] = sampled[old]
        self._renew_load(self.load.columns)
        for follower in self._followers:
            follower.load_changed()

    def _found(self, columns: Columns | None, name: str) -> tuple[int, float]:
        """Return the column of a node, -1 if it has none, and the time of its last sample if it is silent, otherwise
        NaN."""
        found = -1 if columns is None else columns.row.get(name, -1)
        if found >= 0 or self.silence is None:
            return found, np.nan
        return found, self.silence.sampled.get(name, np.nan)

    def _renew_load(self, columns: Columns | None) -> None:
        self.load = NodeLoadColumns(columns, self._where[: len(self)], self._silent[: len(self)])
        self._measures.clear()

    def set_pod_usage(self, pods: PodColumns | None) -> None:
        """Set a new copy of the pod usage (None: unavailable)."""
        self.pod_usage = pods
        for follower in self._followers:
            follower.load_changed()

    def set_node_metric(self, name: str, metric: NodeMetric | None) -> None:
        """Add, update, or (None) remove a NodeMetric of the cluster. A NodeMetric without an update time gets that of
        its predecessor."""
        before = self.node_metrics.pop(name, None)
        if metric is not None:
            if metric.updated is None and before is not None:
                metric = replace(metric, updated=before.updated)
            self.node_metrics[name] = metric
        if (row := self.row.get(name)) is not None:
            for follower in self._followers:
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
            self._silent = np.concatenate([self._silent, np.full(more, np.nan)])
        return row

    def _place_load(self, row: int, name: str) -> None:
        """Connect a new row to the node's load if the current copy has it."""
        columns = self.load.columns
        self._where[row], self._silent[row] = self._found(columns, name)
        self._renew_load(columns)

    def _free_if_empty(self, row: int) -> None:
        if self._known[row] or self._count[row]:
            return
        name = self.names[row]
        del self.row[name]
        self.names[row] = ""
        self._place_load(row, "")
        self._free.append(row)
