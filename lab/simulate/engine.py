"""The closed loop in steps of one minute: pods end and arrive, waiting pods are placed, all pods create load, and the
measured load is the input of later decisions.

Each step runs in this order: pods whose lifetime is over end; nodes are added and removed; pods that arrived since the
previous step join the waiting pods; at every `refresh`, new windows are published, which are `delay` old; the waiting
pods are placed one by one, the highest priority first; finally the minute's load is the demand of the pods then
running. With `throttle`, the work that a node could not do in the minute moves the end and the further usage of its
pods.

A pod fits by the rules of kube-scheduler's NodeResourcesFit: CPU, memory and the number of pods, by requests.

No I/O, no clock; deterministic for the same course, policy and options.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from lab.balancers.view import Balancer
from lab.fleet.noise import key_of
from lab.simulate.balancing import BalancingLoop, CurrentPods, minute_sample
from lab.simulate.cursor import Cursor
from lab.simulate.objects import PODS, bound_pod, node_object, waiting_pod
from lab.simulate.policies import PlacementDecider, PlacementPolicy
from lab.simulate.results import MinuteSeries, SimulationRun
from lab.simulate.trace_columns import STEP_S, NodeChange, TraceColumns, TracePod
from lab.simulate.windows import WINDOWS, SimulatedWindows
from lab.traces.records import PodRecord
from scorers.cluster.pods import PodInfo
from scorers.cluster.table import ClusterTable
from watcher.arrays import F64, I64, Bool
from watcher.core.kubernetes.pod_resources import CPU, MEMORY, qos_class

SUSTAINED = 3
"""Consecutive overloaded minutes after which the evictor is called for a node."""
RETRY_AFTER_S = 900.0  # seconds until the next call after the evictor found no pod


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """`refresh` and `delay` in seconds, whole minutes: the interval at which windows are published, and the age of
    their newest sample at that time. A node is overloaded above the fraction `overload` of its CPU or memory. `seed`
    decides between equal nodes. `place_existing`: pods that existed when the trace began are also placed, in its first
    minute. `throttle`: pods whose node lacks CPU for their demand run longer. `startup`: seconds from the eviction by a
    balancer until the replacement waits for a node."""

    refresh: float = 60.0
    delay: float = 60.0
    overload: float = 0.9
    seed: int = 1
    place_existing: bool = False
    throttle: bool = False
    startup: float = 120.0


@dataclass(frozen=True, slots=True)
class PodUsageView:
    """A pod as the evictor sees it: `cores` and `bytes` are its usage, `started` is in unix seconds."""

    uid: str
    namespace: str
    name: str
    qos: str
    priority: int
    owner: str
    started: float
    cores: float
    bytes: int


@dataclass(frozen=True, slots=True)
class OverloadedNode:
    """An overloaded node: its capacity, its usage, and its pods by name; `time` in unix seconds."""

    time: float
    cores: float
    bytes: int
    used_cores: float
    used_bytes: float
    pods: Sequence[PodUsageView]


EvictionPlanner = Callable[[OverloadedNode], Sequence[str]]
"""Returns the uids of the pods to evict from an overloaded node."""


class StepCallback(Protocol):
    """Called after each simulated minute."""

    def __call__(self) -> None: ...


def simulate(
    course: TraceColumns,
    policy: PlacementPolicy,
    options: SimulationOptions,
    *,
    evictor: EvictionPlanner | None = None,
    balancer: Balancer | None = None,
    progress: StepCallback = lambda: None,
) -> SimulationRun:
    """Simulate a whole trace under one policy; `evictor` selects the pods that would be evicted, `balancer` evicts and
    marks nodes. Raises PolicyError."""
    cluster = _Cluster(course, policy, options, evictor, balancer)
    for minute in range(course.minutes):
        cluster.step(minute)
        progress()
    return cluster.run()


class _Cluster:
    """The simulated cluster: the node of each pod and its start time. Arrays cover all nodes, and all pods, of the
    course."""

    def __init__(
        self,
        course: TraceColumns,
        policy: PlacementPolicy,
        options: SimulationOptions,
        evictor: EvictionPlanner | None,
        balancer: Balancer | None,
    ) -> None:
        self.course, self.options, self.evictor = course, options, evictor
        self.policy = policy.name
        self.table = ClusterTable(windows=WINDOWS)
        self.decider: PlacementDecider = policy.bind(self.table, seed=options.seed)
        self.windows = SimulatedWindows(
            course.names, measures=self.table.needs.usages, horizon=self.table.needs.horizon
        )
        self.infos = [waiting_pod(each) for each in course.pods]
        self.changes = list(reversed(course.changes))
        nodes, pods = len(course.names), len(course.pods)
        self.there: Bool = np.zeros(nodes, dtype=np.bool_)
        self.cores, self.bytes = np.ones(nodes), np.ones(nodes)
        self.rows: I64 = np.full(nodes, -1, dtype=np.int64)  # row in the table, -1: none
        self.background = Cursor(course.load, (np.zeros(nodes), np.zeros(nodes)))
        self.background.start_all(zero=0.0)
        asked = [(each.record.cores, float(each.record.bytes)) for each in course.pods]
        base = np.array(asked, dtype=np.float64).reshape(pods, 2)
        self.usage = Cursor(course.usage, (base[:, 0], base[:, 1]))
        self.limits: F64 = np.array([_limits(each) for each in course.pods], dtype=np.float64).reshape(pods, 2)
        self.node: I64 = np.full(pods, -1, dtype=np.int64)  # of each pod, -1: not running
        self.left: F64 = np.array([each.lifetime for each in course.pods], dtype=np.float64)  # remaining seconds
        self.age: F64 = np.zeros(pods)  # seconds of running time before it lost its node
        self.started: F64 = np.zeros(pods)
        self.end: F64 = np.full(pods, np.inf)
        self.placed: F64 = np.full(pods, np.nan)
        self.first_node: I64 = np.full(pods, -1, dtype=np.int64)
        self.pinned: Bool = np.array([bool(each.pinned) for each in course.pods], dtype=np.bool_)
        self.index = {name: i for i, name in enumerate(course.names)}
        self.next = 0  # index of the next pod to arrive
        self.waiting: list[int] = []
        self.displaced = 0
        self.series = MinuteSeries(course.minutes, nodes)
        self.gone: Bool = np.zeros(pods, dtype=np.bool_)  # pods counted as evicted
        self.over: I64 = np.zeros(nodes, dtype=np.int64)  # consecutive overloaded minutes
        self.ask: F64 = np.full(nodes, -np.inf)
        self.samples: list[tuple[float, I64, F64, F64]] = []  # not published yet
        self.unread: float | None = None  # when the windows were published that no decision has used
        self.late: F64 = np.zeros(pods)  # seconds by which throttling has moved the end
        self.was_late: F64 = np.zeros(pods)  # at the pod's last start
        self.balancing: BalancingLoop | None = None
        if balancer is not None:
            times = {"delay": options.delay, "startup": options.startup}
            self.balancing = BalancingLoop(course, balancer, self.infos, **times)

    # --- one step ----------------------------------------------------------------------------------------------------

    def step(self, minute: int) -> None:
        """Process the events at the beginning of a minute, and the minute itself."""
        now = self.course.begins + minute * STEP_S
        self._end_pods(now)
        self._change_nodes(now)
        self._arrive(now)
        if self.balancing is not None:
            self._balance(self.balancing, now)
        if (minute * STEP_S) % self.options.refresh == 0:
            self._publish(now)
        self._place(now)
        self._pass(minute, now)

    def _change_nodes(self, now: float) -> None:
        changed = False
        while self.changes and self.changes[-1].time <= now:
            self._change_node(self.changes.pop(), now)
            changed = True
        if changed:
            self.rows = np.array([self.table.row.get(name, -1) for name in self.course.names], dtype=np.int64)

    def _change_node(self, change: NodeChange, now: float) -> None:
        name = self.course.names[change.node]
        if change.record is not None:
            self.there[change.node] = True
            self.cores[change.node], self.bytes[change.node] = change.record.cores, change.record.bytes
            self.table.set_node(name, node_object(change.record))
            return
        self.there[change.node] = False
        for pod in np.flatnonzero(self.node == change.node).tolist():
            self._leave(pod, now)
            if not self.pinned[pod]:
                self.waiting.append(pod)  # its owner creates a replacement
                self.displaced += 1
        self.table.set_node(name, None)

    def _end_pods(self, now: float) -> None:
        for pod in np.flatnonzero((self.node >= 0) & (self.end <= now)).tolist():
            self._stop(pod)

    def _leave(self, pod: int, now: float) -> None:
        """Stop a pod that continues elsewhere."""
        self.left[pod] = self.end[pod] - now
        self.age[pod] += now - self.started[pod] - (self.late[pod] - self.was_late[pod])
        self._stop(pod)

    def _stop(self, pod: int) -> None:
        info = self.infos[pod]
        self.table.set_pod(info.pod, None, now=0.0)
        self.node[pod] = -1
        self.usage.stop(pod)

    def _arrive(self, now: float) -> None:
        pods = self.course.pods
        while self.next < len(pods) and pods[self.next].arrives <= now:
            pod, self.next = self.next, self.next + 1
            bound = pods[pod].pinned or ("" if self.options.place_existing else pods[pod].there)
            if bound and self.there[self.index[bound]]:
                self._start(pod, self.index[bound], now)
            elif not pods[pod].pinned:
                self.waiting.append(pod)

    def _publish(self, now: float) -> None:
        """Publish windows from the samples that are at least `delay` old, for the decisions from now on."""
        ready = [each for each in self.samples if each[0] <= now - self.options.delay]
        self.samples = self.samples[len(ready) :]
        for each in ready:
            self.windows.sample(*each)
        self.unread = now

    def _read_windows(self) -> None:
        """Give the newest windows to the policy. Most minutes have no pod to place, and need none."""
        if self.unread is None:
            return
        self.table.set_load(self.windows.columns(self.unread), now=self.unread)
        self.decider.prepare()
        self.unread = None

    # --- balancing ---------------------------------------------------------------------------------------------------

    def _balance(self, loop: BalancingLoop, now: float) -> None:
        """Let evicted pods wait for a node after their start-up, and evict further ones."""
        self.waiting += loop.ready(now)
        ended = [pod for pod in self.waiting if loop.away[pod] + self.left[pod] <= now and not loop.is_job[pod]]
        for pod in ended:
            self.waiting.remove(pod)
            loop.forget(pod)
        present = np.flatnonzero(self.there)
        running = CurrentPods(self.node, self.started)
        for pod in loop.decide(now, present, self.rows[present], self.table, running):
            node = int(self.node[pod])
            if node < 0 or self.pinned[pod]:
                raise ValueError(
                    f"the balancer evicts {self.infos[pod].key}, which does not run or is bound to its node"
                )
            self._leave(pod, now)
            loop.leave(pod, node, now)
            if loop.is_job[pod]:
                self.left[pod], self.age[pod] = self.course.pods[pod].lifetime, 0.0
                self.usage.rewind(pod)

    # --- placing -----------------------------------------------------------------------------------------------------

    def _place(self, now: float) -> None:
        """Try to place each waiting pod once. A pod with the same requests as a pod that fits nowhere is skipped, and
        one that is equal for filters to a pod that no node accepted: within a minute, nodes only fill."""
        if not self.waiting:
            return
        self._read_windows()
        pods = self.course.pods
        self.waiting.sort(key=lambda pod: (-pods[pod].record.priority, pods[pod].arrives, pod))
        present = np.flatnonzero(self.there)
        rows = self.rows[present]
        failed: set[tuple[int, int]] = set()
        refused: set[tuple[object, ...]] = set()
        still = []
        for pod in self.waiting:
            info = self.infos[pod]
            asked = info.requests.get(CPU, 0), info.requests.get(MEMORY, 0)
            alike = _alike(pods[pod].record, by_owner=self.decider.by_owner)
            if asked in failed or alike in refused:
                still.append(pod)
                continue
            fits = self._fits(asked, rows)
            if not fits.any():
                failed.add(asked)
            chosen = self._choose(info, rows[fits], present[fits], now)
            if chosen is None:
                refused.add(alike)
                still.append(pod)
            else:
                self._start(pod, chosen, now)
        self.waiting = still

    def _fits(self, asked: tuple[int, int], rows: I64) -> Bool:
        table = self.table
        fits = table.pods[rows] < table.allocatable.column(PODS)[rows]
        for resource, size in zip((CPU, MEMORY), asked, strict=True):
            if size:
                fits &= table.allocatable.column(resource)[rows] - table.requested.column(resource)[rows] >= size
        return fits

    def _choose(self, info: PodInfo, rows: I64, nodes: I64, now: float) -> int | None:
        """Choose one of `nodes` [n], ordered by name, which are in `rows` of the table; None if none passes."""
        if not len(rows):
            return None
        passes = self.decider.passes(info, rows, now=now)
        rows, nodes = rows[passes], nodes[passes]
        if not len(rows):
            return None
        scores = self.decider.scores(info, rows, now=now)
        if self.balancing is not None:
            scores = scores + self.balancing.mark_scores(nodes)
        best = np.flatnonzero(scores == scores.max())
        if len(best) > 1:
            preferred = self.decider.preferred(info, rows[best])
            best = best[preferred == preferred.max()]
        return int(nodes[best[pick_tied_node(len(best), seed=self.options.seed, uid=info.key)]])

    def _start(self, pod: int, node: int, now: float) -> None:
        info = self.infos[pod]
        bound = bound_pod(info.pod, self.course.names[node])
        self.table.set_pod(None, bound, now=now)
        self.node[pod] = node
        if self.balancing is not None:
            away = self.balancing.arrive(pod, node, now)
            if not self.balancing.is_job[pod]:  # the demand of a service continued
                self.left[pod], self.age[pod] = self.left[pod] - away, self.age[pod] + away
        self.started[pod], self.end[pod] = now, now + self.left[pod]
        self.was_late[pod] = self.late[pod]
        if self.first_node[pod] < 0:
            self.first_node[pod], self.placed[pod] = node, now
        self.usage.start(pod, zero=now - self.age[pod])

    # --- the minute --------------------------------------------------------------------------------------------------

    def _pass(self, minute: int, now: float) -> None:
        self.background.advance(now)
        self.usage.advance(now)
        running = np.flatnonzero(self.node >= 0)
        on = self.node[running]
        cores = np.minimum(self.usage.cores[running], self.limits[running, 0])
        size = np.minimum(self.usage.bytes[running], self.limits[running, 1])
        count = len(self.there)
        cpu = np.where(self.there, self.background.cores, 0.0) + _per_node(on, cores, count)
        memory = np.where(self.there, self.background.bytes, 0.0) + _per_node(on, size, count)
        used = np.bincount(on[~self.pinned[running]], minlength=count) > 0
        self.series.add(minute, self.there, used, (cpu, self.cores), (memory, self.bytes), waiting=len(self.waiting))
        present = np.flatnonzero(self.there)
        percent = [100.0 * np.minimum(a / b, 1.0)[present] for a, b in ((cpu, self.cores), (memory, self.bytes))]
        self.samples.append((now + STEP_S, present, percent[0], percent[1]))
        if self.balancing is not None:
            outside = [np.where(self.there, each, 0.0) for each in (self.background.cores, self.background.bytes)]
            sample = minute_sample(
                now + STEP_S,
                self.there,
                (cpu, memory),
                (self.cores, self.bytes),
                outside=(outside[0], outside[1]),
                running=(running, on),
                pods=(cores, size),
                count=len(self.infos),
            )
            self.balancing.add(minute, sample)
        if self.options.throttle:
            self._throttle(running, cores, np.where(self.there, self.background.cores, 0.0))
        if self.evictor is not None:
            self._evict(self.evictor, now, running, (cpu, memory), (cores, size))

    def _throttle(self, running: I64, cores: F64, outside: F64) -> None:
        """Delay the pods of nodes with too little CPU: each gets the same share of its demand `cores`, after the load
        `outside` of the trace's pods [nodes], and the rest of the minute's work moves into the future."""
        on = self.node[running]
        demand = _per_node(on, cores, len(outside))
        room = np.maximum(self.cores - outside, 0.0)
        share = np.divide(np.minimum(room, demand), demand, out=np.ones_like(demand), where=demand > 0.0)
        held = np.flatnonzero((share[on] < 1.0) & (cores > 0.0))
        pods, seconds = running[held], STEP_S * (1.0 - share[on[held]])
        self.end[pods] += seconds
        self.late[pods] += seconds
        self.usage.delay(pods, seconds)

    def _evict(
        self, evictor: EvictionPlanner, now: float, running: I64, wanted: tuple[F64, F64], of_pods: tuple[F64, F64]
    ) -> None:
        """Count the pods to evict, as if evicted pods did not come back."""
        on, gone = self.node[running], self.gone[running]
        cpu, memory = (
            total - _per_node(on[gone], values[gone], len(total)) for total, values in zip(wanted, of_pods, strict=True)
        )
        limit = self.options.overload
        over = self.there & ((cpu > limit * self.cores) | (memory > limit * self.bytes))
        self.over = np.where(over, self.over + 1, 0)
        for node in np.flatnonzero((self.over >= SUSTAINED) & (self.ask <= now)).tolist():
            here = np.flatnonzero((on == node) & ~gone).tolist()
            looks = [self._look(int(running[i]), float(of_pods[0][i]), int(of_pods[1][i])) for i in here]
            looks.sort(key=lambda look: (look.namespace, look.name, look.uid))
            look = OverloadedNode(
                now, float(self.cores[node]), int(self.bytes[node]), float(cpu[node]), float(memory[node]), looks
            )
            uids = set(evictor(look))
            for i in here:
                self.gone[running[i]] |= self.course.pods[running[i]].record.uid in uids
            if not uids:
                self.ask[node] = now + RETRY_AFTER_S

    def _look(self, pod: int, cores: float, size: int) -> PodUsageView:
        info, record = self.infos[pod], self.course.pods[pod].record
        metadata = info.pod.metadata
        return PodUsageView(
            record.uid,
            metadata.namespace,
            metadata.name,
            qos_class(info.pod),
            record.priority,
            record.owner,
            float(self.started[pod]),
            cores,
            size,
        )

    def run(self) -> SimulationRun:
        """The results of the simulation."""
        come = np.arange(len(self.infos)) < self.next
        return SimulationRun(
            self.policy,
            self.series,
            first_node=self.first_node,
            placed=self.placed,
            arrived=np.array([each.arrives for each in self.course.pods], dtype=np.float64),
            counted=come & ~self.pinned,
            displaced=self.displaced,
            evicted=self.gone,
            overload=self.options.overload,
            begins=self.course.begins,
            evictions_counted=self.evictor is not None,
            late=self.late,
            balancing=self.balancing.result() if self.balancing is not None else None,
        )


def _per_node(node: I64, values: F64, count: int) -> F64:
    sums: F64 = np.bincount(node, weights=values, minlength=count).astype(np.float64, copy=False)
    return sums


def pick_tied_node(count: int, *, seed: int, uid: str) -> int:
    """Index of the node, among `count` equal nodes ordered by name, for a pod: arbitrary, as in kube-scheduler, but
    deterministic."""
    return key_of(seed, "tie", uid) % count


def _alike(record: PodRecord, *, by_owner: bool) -> tuple[object, ...]:
    """What a filter can know of a pod, apart from its name; with `by_owner` also the name of its owner."""
    owner = record.owner or record.uid if by_owner else record.owner.partition("/")[0]
    size = record.cores, record.bytes, record.cores_limit, record.bytes_limit
    return (record.pod.partition("/")[0], owner, record.priority, *size)


def _limits(course: TracePod) -> tuple[float, float]:
    cores, size = course.record.cores_limit, course.record.bytes_limit
    return np.inf if cores is None else cores, np.inf if size is None else float(size)
