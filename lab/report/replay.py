"""Simulates other placements of the recorded pods: each day is replayed under each policy.

The cluster is empty a day before each replayed day. The pods that exist at the begin of the replayed day arrive in
random order over the day before (WARM_UP_S), which does not count, so that they are placed at any time of day. Later
pods arrive when they were first seen. DaemonSet pods and static pods stay on their nodes. The load of a node that is
not of recorded pods remains on the node. Taints, node selectors and affinity are unknown.

The difference to the default scheduler is computed for each day, under the same order of arrivals, and its mean has a
95 % interval of Student's t distribution over the days.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lab.fleet.noise import key_of
from lab.report.collected import ClusterHistory, RecordedPods
from lab.report.comparison import PolicyDay, ReplayResult, outcomes
from lab.report.data.context import Progress
from lab.report.names import workload_of
from lab.simulate.engine import SimulationOptions, simulate
from lab.simulate.policies import DEFAULT, find_policy
from lab.simulate.trace_columns import DAEMON, TraceColumns, read_course
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
from watcher.core.forecast.maxima import SLOT_S

POLICIES = (DEFAULT, "TargetLoadPacking", "LoadVariationRiskBalancing", "LoadAwareScheduling")
DAY_S, WARM_UP_S = 86400, 86400
REFRESH_S = 300.0
MOST_DAYS = 5
KNOWN = 0.9
"""Share of the time of a replay in which pods must be known."""
MOST_PODS = 1500
ORDERS = 5
"""Random orders of one day that are simulated if there are fewer than three whole days."""
SEED = 1


@dataclass(frozen=True, slots=True)
class _ReplayTask:
    course: TraceColumns
    seed: int
    threshold: float


def replay(history: ClusterHistory, *, progress: Progress) -> ReplayResult | str:
    """Simulate the policies; a text states why this is impossible. Uses one process per CPU, at most one per day."""
    recorded = history.recorded
    if recorded is None:
        return "the recorded pods are unknown"
    threshold = history.loads.threshold
    cluster = _RecordedCluster(history, recorded)
    days = cluster.days()
    if not days:
        return "less than two days of recorded pods: the simulation needs a whole day, and the day before it"
    if not cluster.nodes:
        return "the sizes of the nodes are unknown"
    whole = len(days) >= 3
    seeds = [(day, SEED) for day in days] if whole else [(days[-1], SEED + i) for i in range(ORDERS)]
    tasks = [_ReplayTask(cluster.course(day, seed), seed, threshold) for day, seed in seeds]
    results = _run(tasks, progress)
    recorded_overload = float(np.mean([cluster.overload(day, threshold) for day, _ in seeds]))
    pods = max(len(task.course.pods) for task in tasks)
    hottest = len(set(recorded.sample.hottest) & set(cluster.nodes))
    over = "days" if whole else "random orders of the last day"
    return ReplayResult(
        threshold, len(cluster.nodes), hottest, pods, len(tasks), over, recorded_overload, outcomes(results)
    )


def _run(tasks: Sequence[_ReplayTask], progress: Progress) -> list[tuple[PolicyDay, ...]]:
    workers = min(len(tasks), os.cpu_count() or 1)
    results: dict[int, tuple[PolicyDay, ...]] = {}
    progress(66, "simulation")
    # The processes of a fork would share the threads' locks.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_end_on_interrupt) as pool:
        futures = {pool.submit(_simulate_day, task): i for i, task in enumerate(tasks)}
        try:
            for future in as_completed(futures):
                results[futures[future]] = future.result()
                progress(66 + round(32 * len(results) / len(tasks)), "simulation")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            raise
    return [results[i] for i in range(len(tasks))]


def _end_on_interrupt() -> None:
    """Let Ctrl-C end a process without a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _simulate_day(task: _ReplayTask) -> tuple[PolicyDay, ...]:
    found = []
    warm_up = WARM_UP_S // 60
    for name in POLICIES:
        policy, _ = find_policy(name, {}, cwd=Path.cwd())
        options = SimulationOptions(refresh=REFRESH_S, overload=task.threshold / 100.0, seed=task.seed)
        run = simulate(task.course, policy, options)
        over = (run.series.cpu > run.overload) | (run.series.memory > run.overload)
        found.append(
            PolicyDay(
                name,
                float(np.count_nonzero(over[warm_up:]) / 60.0),
                float(run.series.used[warm_up:].mean()),
                int(np.count_nonzero(run.counted & (run.first_node < 0))),
            )
        )
    return tuple(found)


# --- the recorded cluster --------------------------------------------------------------------------------------------


class _RecordedCluster:
    """The recorded nodes of known size, at most as many as have MOST_PODS pods, and their pods as traces."""

    def __init__(self, history: ClusterHistory, recorded: RecordedPods) -> None:
        self.history, self.recorded = history, recorded
        self.column = {node: i for i, node in enumerate(history.loads.nodes)}
        self.nodes = self._chosen()
        self.pods = [i for i, pod in enumerate(recorded.pods) if pod[2] in set(self.nodes)]

    def _chosen(self) -> tuple[str, ...]:
        sizes, recorded = self.history.sizes, self.recorded
        counts: dict[str, int] = dict.fromkeys(recorded.sample.nodes, 0)
        alive = np.count_nonzero(recorded.exists, axis=0) > 0
        for i, (_, _, node) in enumerate(recorded.pods):
            counts[node] = counts.get(node, 0) + int(alive[i])
        chosen: list[str] = []
        total = 0
        for node in sorted(recorded.sample.nodes, key=lambda node: (key_of(SEED, "replay", node), node)):
            column = self.column[node]
            known = all(map(math.isfinite, (sizes.allocatable_cores[column], sizes.allocatable_bytes[column])))
            if known and (not chosen or total + counts[node] <= MOST_PODS):
                chosen.append(node)
                total += counts[node]
        return tuple(sorted(chosen))

    def days(self) -> list[int]:
        """The begins of whole days with the warm-up before them, oldest first; those in which pods are known."""
        ends, first = self.history.ends, self.recorded.begins
        begins = [ends - k * DAY_S for k in range(MOST_DAYS, 0, -1)]
        return [each for each in begins if each - WARM_UP_S >= first and self._is_known(each)]

    def _is_known(self, day: int) -> bool:
        """Whether pods are known in most of a day and its warm-up."""
        rows = self._rows(day - WARM_UP_S, day + DAY_S)
        known = np.count_nonzero(self.recorded.exists[rows].any(axis=1))
        return bool(known >= KNOWN * (WARM_UP_S + DAY_S) / self.recorded.step)

    def overload(self, day: int, threshold: float) -> float:
        """Node-hours above the threshold (percent) on a day with the recorded placement."""
        rows = self._rows(day, day + DAY_S)
        columns = [self.column[node] for node in self.nodes]
        shares = [self._loads(kind, rows)[:, columns] for kind in ("cpu", "memory")]
        hot = (shares[0] > threshold) | (shares[1] > threshold)
        return float(np.count_nonzero(hot) * self.recorded.step / 3600.0)

    def course(self, day: int, seed: int) -> TraceColumns:
        """The trace of one day with its warm-up."""
        events = [*self._node_records(day), *self._pod_records(day, seed)]
        events.sort(key=lambda event: event[:3])
        begins = day - WARM_UP_S
        note = "recorded pods"
        return read_course([Begin(float(begins), note), *(event[3] for event in events), EndRecord(float(day + DAY_S))])

    def _rows(self, since: int, until: int) -> I64:
        """The rows of the recorded grids whose time is in [since, until)."""
        times = self._times()
        return np.flatnonzero((times >= since) & (times < until))

    def _times(self) -> I64:
        return self.recorded.begins + self.recorded.step * np.arange(len(self.recorded.exists), dtype=np.int64)

    def _loads(self, kind: str, rows: I64) -> F64:
        """Mean utilization of all nodes over the slots before each of these rows, in percent."""
        loads = self.history.loads
        values = (loads.cpu if kind == "cpu" else loads.memory).mean
        width = self.recorded.step // SLOT_S
        slots = (self._times()[rows] - loads.begins) // SLOT_S
        found = [values[max(0, slot - width) : max(slot, 1)] for slot in slots.tolist()]
        known = [np.isfinite(each) for each in found]
        sums = [np.where(here, each, 0.0).sum(axis=0) for here, each in zip(known, found, strict=True)]
        counts = [np.where((n := here.sum(axis=0)) > 0, n, np.nan) for here in known]
        return np.array([a / b for a, b in zip(sums, counts, strict=True)]).reshape(len(rows), len(loads.nodes))

    def _node_records(self, day: int) -> Iterator[_Event]:
        sizes, recorded, begins = self.history.sizes, self.recorded, day - WARM_UP_S
        rows = self._rows(begins, day + DAY_S)
        loads = {kind: self._loads(kind, rows) for kind in ("cpu", "memory")}
        for node in self.nodes:
            column = self.column[node]
            allocatable = float(sizes.allocatable_cores[column]), int(sizes.allocatable_bytes[column])
            cores, size = (
                known if math.isfinite(known) else other
                for known, other in zip((sizes.cores[column], sizes.bytes[column]), allocatable, strict=True)
            )
            yield begins, 0, node, NodeRecord(float(begins), node, float(cores), int(size), *allocatable)
            own = [i for i in self.pods if recorded.pods[i][2] == node]
            pods = [np.nan_to_num(grid[rows][:, own]).sum(axis=1) for grid in (recorded.cores, recorded.bytes)]
            rest = [
                np.maximum(np.nan_to_num(loads[kind][:, column]) * total / 100.0 - used, 0.0)
                for kind, total, used in zip(("cpu", "memory"), (cores, size), pods, strict=True)
            ]
            for time, a, b in zip(self._times()[rows].tolist(), rest[0].tolist(), rest[1].tolist(), strict=True):
                yield time, 1, node, LoadRecord(float(time), node, a, int(b))

    def _pod_records(self, day: int, seed: int) -> Iterator[_Event]:
        rows = self._rows(day - WARM_UP_S, day + DAY_S)
        exists = self.recorded.exists[rows]
        times = self._times()[rows]
        for pod in self.pods:
            seen = np.flatnonzero(exists[:, pod])
            if len(seen) and times[seen[-1]] >= day:
                yield from self._one_pod(pod, rows, times, seen, day, seed)

    def _one_pod(self, pod: int, rows: I64, times: I64, seen: I64, day: int, seed: int) -> Iterator[_Event]:
        recorded = self.recorded
        namespace, name, node = recorded.pods[pod]
        uid = f"{namespace}/{name}@{node}"
        share = (key_of(seed, "arrival", uid) % 100_000) / 100_000.0
        first = int(times[seen[0]])
        arrival = day - WARM_UP_S + share * (WARM_UP_S - 60.0) if first <= day else first - share * recorded.step
        arrival = round(float(arrival), 3)
        kind = recorded.owners[pod].partition("/")[0]
        pinned = kind in (DAEMON, "Node")
        if pinned:
            arrival = float(day - WARM_UP_S if first <= day else first)
        owner = f"{DAEMON}/{workload_of(name, '')}" if pinned else recorded.owners[pod]
        cores, size = float(recorded.requested_cores[pod]), int(recorded.requested_bytes[pod])
        yield arrival, 2, uid, PodRecord(arrival, uid, f"{namespace}/{name}", cores, size, owner=owner)
        if pinned:
            yield arrival, 3, uid, BindRecord(arrival, uid, node)
        yield from self._usage(pod, uid, arrival, rows, times)
        if seen[-1] < len(rows) - 1:
            ended = float(times[seen[-1]] + recorded.step // 2)
            if ended > arrival:
                yield ended, 5, uid, RemoveRecord(ended, uid)

    def _usage(self, pod: int, uid: str, arrival: float, rows: I64, times: I64) -> Iterable[_Event]:
        """Usage from the arrival on; the newest value before it is the first."""
        cores, size = self.recorded.cores[rows, pod], self.recorded.bytes[rows, pod]
        known = np.flatnonzero(np.isfinite(cores) | np.isfinite(size))
        before = known[times[known] <= arrival]
        wanted = known[times[known] > arrival]
        if len(before):
            wanted = np.concatenate([before[-1:], wanted])
        for i in wanted.tolist():
            time = max(float(times[i]), arrival)
            used = float(cores[i]) if np.isfinite(cores[i]) else None
            held = int(size[i]) if np.isfinite(size[i]) else None
            yield time, 4, uid, UsageRecord(time, uid, used, held)


_Event = tuple[float, int, str, Record]
"""Time, rank among the events of this time, name, and the record."""
