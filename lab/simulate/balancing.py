"""A balancer in the closed loop: what it observes, which marks the nodes have, and which evicted pods have no node.

An evicted pod leaves its node at once. After the start-up time, a replacement waits for a node, and the placement
policy decides. The demand of a service continues in the meantime and is lost; a pod of a Job begins its work again.

No I/O, no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from lab.balancers.view import RESOURCES, Balancer, ClusterView, ObservedPod
from lab.simulate.mark_scores import TAINT_WEIGHT, node_metadata, taint_toleration
from lab.simulate.results import BalancingResult, PodMove
from lab.simulate.trace_columns import STEP_S, TraceColumns
from scorers.cluster.koordinator_classes import PROD, priority_class
from scorers.cluster.pods import PodInfo
from scorers.cluster.table import ClusterTable
from watcher.arrays import F64, I64, Bool
from watcher.client.arrays import seconds_of
from watcher.core.forecast.document import snapshot_forecasts
from watcher.core.forecast.fleet import FleetForecast
from watcher.core.forecast.settings import ForecastSettings
from watcher.core.kubernetes.pod_resources import CPU, MEMORY, qos_class
from watcher.model import METRIC_BY_KEY

KEYS = ("CPU", "Memory")
USAGE_MINUTES = 5
MEMORY_MINUTES = 15
MOVES_S = 172_800.0
JOB = "Job"


class MinuteSample(NamedTuple):
    """One measured minute that ended at `time` (unix seconds): for all nodes the share in use and the share of the
    demand that was not served [2, nodes], NaN for nodes that did not exist; the usage of processes outside of pods in
    cores and bytes [2, nodes], and of pods [2, pods], NaN for pods that did not run."""

    time: float
    used: F64
    stalled: F64
    outside: F64
    pods: F64


def minute_sample(
    time: float,
    there: Bool,
    wanted: tuple[F64, F64],
    capacity: tuple[F64, F64],
    *,
    outside: tuple[F64, F64],
    running: tuple[I64, I64],
    pods: tuple[F64, F64],
    count: int,
) -> MinuteSample:
    """`wanted`, `capacity` and `outside` of CPU and memory are [nodes] in cores and bytes; `running` are the indices of
    the running pods and of their nodes [k], `pods` their demand [k], `count` the number of all pods."""
    shares = np.where(there, np.stack(wanted) / np.stack(capacity), np.nan)
    served = np.minimum(1.0, 1.0 / np.maximum(shares, 1e-9))
    usage = np.full((2, count), np.nan)
    usage[:, running[0]] = np.stack(pods) * served[:, running[1]]
    return MinuteSample(time, np.minimum(shares, 1.0), 1.0 - served, np.stack(outside) * served, usage)


@dataclass(frozen=True, slots=True)
class CurrentPods:
    """The pods at the time of a round: the node of each pod, -1 for pods that do not run, and the time of its start;
    [pods]."""

    node: I64
    started: F64


class PodUsage:
    """The usage at one time from the newest `samples`, computed when it is asked for."""

    def __init__(self, samples: Sequence[MinuteSample], current: CurrentPods, count: int) -> None:
        self.samples, self.current = samples, current
        self.count = count

    @cached_property
    def means(self) -> F64:
        """The mean usage of pods in cores and bytes [2, pods]; NaN for unmeasured ones."""
        found: F64 = np.full((2, self.count), np.nan)
        if self.samples:
            pods = np.array([each.pods for each in self.samples])
            known = ~np.isnan(pods)
            there = known.any(axis=0)
            found[there] = np.where(known, pods, 0.0).sum(axis=0)[there] / known.sum(axis=0)[there]
        return found

    def of_pod(self, pod: int) -> dict[str, int] | None:
        """The usage of a pod in millicores and bytes."""
        cores, size = self.means[:, pod].tolist()
        return None if np.isnan(cores) else {CPU: int(1000.0 * cores), MEMORY: int(size)}

    def of_nodes(self, nodes: int) -> F64:
        """The usage of all nodes in cores and bytes [2, nodes]: of their pods, and outside of them."""
        if not self.samples:
            return np.zeros((2, nodes))
        on = self.current.node >= 0
        of_pods = [
            np.bincount(self.current.node[on], weights=each[on], minlength=nodes) for each in np.nan_to_num(self.means)
        ]
        outside: F64 = np.nan_to_num(np.array([each.outside for each in self.samples])).mean(axis=0)
        return np.stack(of_pods) + outside


class BalancingLoop:
    """The balancer of one simulation. Arrays over nodes and pods have the order of the course."""

    def __init__(
        self, course: TraceColumns, balancer: Balancer, infos: Sequence[PodInfo], *, delay: float, startup: float
    ) -> None:
        self.course, self.balancer, self.delay, self.startup = course, balancer, delay, startup
        nodes, pods = len(course.names), len(course.pods)
        self.taints: I64 = np.zeros(nodes, dtype=np.int64)
        self.scores: I64 = np.full(nodes, -1, dtype=np.int64)
        self.index = {each.record.uid: i for i, each in enumerate(course.pods)}
        self.is_job: Bool = np.array(
            [each.record.owner.partition("/")[0] == JOB for each in course.pods], dtype=np.bool_
        )
        self.observed = [_observed(info, each.record.owner) for info, each in zip(infos, course.pods, strict=True)]
        self.names = [f"{each.namespace}/{each.name}" for each in self.observed]
        self.pending: deque[MinuteSample] = deque()  # not published yet
        self.samples: deque[MinuteSample] = deque(maxlen=MEMORY_MINUTES)
        self.away: F64 = np.full(pods, np.nan)  # time of the eviction of pods without a node
        self.demand: F64 = np.zeros(pods)  # cores at the time of the eviction
        self.work: F64 = np.zeros(pods)  # core-seconds of Jobs since their start
        self.starting: list[tuple[float, int]] = []
        self.touched: list[tuple[float, int]] = []  # nodes from which and to which pods were moved
        self.moves: list[PodMove] = []
        self.lost: F64 = np.zeros(course.minutes)
        self.marked: I64 = np.zeros(course.minutes, dtype=np.int64)
        self.patches = 0
        hours = int(seconds_of(balancer.horizon)) // 3600 if balancer.horizon else 0
        self.forecast = FleetForecast(ForecastSettings(horizons=(hours,), horizon=hours)) if hours else None

    # --- observing ---------------------------------------------------------------------------------------------------

    def add(self, minute: int, sample: MinuteSample) -> None:
        """Add the newest minute, and count what pods without a node do not do in it."""
        self.pending.append(sample)
        running = ~np.isnan(sample.pods[0])
        self.work[running] += sample.pods[0, running] * STEP_S
        absent = ~np.isnan(self.away) & ~self.is_job
        self.lost[minute] += self.demand[absent].sum() * STEP_S / 3600.0
        self.marked[minute] = np.count_nonzero(self.taints)

    def _publish(self, now: float) -> None:
        while self.pending and self.pending[0].time <= now - self.delay:
            sample = self.pending.popleft()
            self.samples.append(sample)
            if self.forecast is not None:
                there = np.flatnonzero(~np.isnan(sample.used[0]))
                for key, values in zip(KEYS, sample.used, strict=True):
                    at = np.full(len(there), sample.time)
                    metric = METRIC_BY_KEY[key].name
                    self.forecast.maxima.add(metric, self.course.names, there, at, 100.0 * values[there])

    def decide(self, now: float, present: I64, rows: I64, table: ClusterTable, running: CurrentPods) -> list[int]:
        """Call the balancer if it is due; set the marks, and return the pods to evict, in order. `present` are the
        existing nodes, `rows` their rows in the table."""
        self._publish(now)
        if (now - self.course.begins) % self.balancer.interval_s:
            return []
        view = self._view(now, present, rows, table, running)
        actions = self.balancer.decide(view)
        for mark, values in ((self.taints, actions.taints), (self.scores, actions.scores)):
            if values is not None:
                self.patches += int(np.count_nonzero(mark[present] != values))
                mark[present] = values
        return [self.index[uid] for uid in actions.evict]

    def _view(self, now: float, present: I64, rows: I64, table: ClusterTable, running: CurrentPods) -> ClusterView:
        used, stalled = (
            np.array([getattr(each, name)[:, present] for each in self.samples]).reshape(-1, 2, len(present))
            for name in ("used", "stalled")
        )
        self.touched = [each for each in self.touched if each[0] > now - MOVES_S]
        last, touched = np.full(len(self.course.names), -np.inf), tuple(self.touched)
        for time, node in touched:
            last[node] = max(last[node], time)

        def moves(seconds: float) -> I64:
            found = [node for time, node in touched if time > now - seconds]
            counts: I64 = np.bincount(np.array(found, dtype=np.int64), minlength=len(last))[present]
            return counts

        names = tuple(self.course.names[node] for node in present.tolist())
        columns = [table.allocatable.column(each)[rows] for each in RESOURCES]
        requested = [table.requested.column(CPU)[rows], table.requested.column(MEMORY)[rows], table.pods[rows]]

        usage = PodUsage(list(self.samples)[-USAGE_MINUTES:], running, len(self.course.pods))

        def pods(node: int) -> list[ObservedPod]:
            here = np.flatnonzero(running.node == present[node]).tolist()
            return [
                replace(self.observed[pod], created=float(running.started[pod]), usage=usage.of_pod(pod))
                for pod in sorted(here, key=self.names.__getitem__)
            ]

        return ClusterView(
            now,
            names,
            used,
            stalled,
            lambda: usage.of_nodes(len(last))[:, present],
            self._bounds(names, now),
            np.stack(columns, axis=1),
            np.stack(requested, axis=1),
            self.taints[present],
            last[present],
            moves,
            pods,
        )

    def _bounds(self, names: tuple[str, ...], now: float) -> F64:
        unknown = np.full((2, len(names)), np.nan)
        if self.forecast is None or not self.samples:
            return unknown
        for chunk in self.forecast.due_chunks(now):
            self.forecast.advance(chunk, now)
        found = snapshot_forecasts(self.forecast.table(now), names).bounds
        return np.stack([found[METRIC_BY_KEY[key].name, self.balancer.horizon] for key in KEYS])

    # --- moving ------------------------------------------------------------------------------------------------------

    def leave(self, pod: int, node: int, now: float) -> None:
        """An evicted pod left its node."""
        known = [each.pods[0, pod] for each in (*self.samples, *self.pending) if not np.isnan(each.pods[0, pod])]
        self.away[pod], self.demand[pod] = now, known[-1] if known else 0.0
        self.starting.append((now + self.startup, pod))
        self.touched.append((now, node))
        self.moves.append(PodMove(now, pod, node))
        if self.is_job[pod]:
            minute = min(int((now - self.course.begins) // STEP_S), len(self.lost) - 1)
            self.lost[minute] += self.work[pod] / 3600.0
            self.work[pod] = 0.0

    def ready(self, now: float) -> list[int]:
        """Return the evicted pods whose start-up is over, in the order of their evictions."""
        found = [pod for time, pod in self.starting if time <= now]
        self.starting = [each for each in self.starting if each[0] > now]
        return found

    def arrive(self, pod: int, node: int, now: float) -> float:
        """A pod has a node; return how long it was away in seconds, 0 if it was not evicted."""
        since = float(self.away[pod])
        if np.isnan(since):
            return 0.0
        self.away[pod] = np.nan
        self.touched.append((now, node))
        return now - since

    def forget(self, pod: int) -> None:
        """The pod ended before it had a node again."""
        self.away[pod] = np.nan

    def result(self) -> BalancingResult:
        """The evictions, lost work and marks of the whole simulation."""
        return BalancingResult(tuple(self.moves), self.lost, self.marked, self.patches)

    def mark_scores(self, nodes: I64) -> I64:
        """What kube-scheduler adds to the score of feasible nodes [n] for their marks."""
        scores = TAINT_WEIGHT * taint_toleration(self.taints[nodes])
        if self.balancer.score_weight:
            scores = scores + self.balancer.score_weight * node_metadata(self.scores[nodes])
        return scores


def _observed(info: PodInfo, owner: str) -> ObservedPod:
    metadata = info.pod.metadata
    return ObservedPod(
        metadata.uid,
        metadata.namespace,
        metadata.name,
        owner,
        info.pod.spec.priority or 0,
        qos_class(info.pod),
        requests={name: int(amount) for name, amount in info.requests.items()},
        prod=priority_class(info.pod) == PROD,
    )
