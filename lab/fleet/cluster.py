"""Pods of a simulated cluster and their lifecycle: they arrive, wait for a node, run, and end.

The placement is decided outside: a scheduler reads the waiting pods and binds them. The only writer is the event loop;
`running` is replaced and never modified, so that other threads can read it.

No I/O, no clock: `now` (unix seconds) is passed in.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from lab.fleet import faults, objects
from lab.fleet.load import DayPattern, Fleet, RunningPods, fleet, pod_cores, pod_memory, running
from lab.fleet.machines import machines
from lab.fleet.noise import key_of
from lab.fleet.workloads import JOBS, MIB, Instance, first_placement, instance
from watcher.arrays import I64
from watcher.core.kubernetes.errors import KubeConflict, KubeNotFound
from watcher.core.kubernetes.objects import Node, Pod
from watcher.core.pods.table import PodUsage

REMEMBERED_S = 3_600.0  # how long ended pods are kept in `running`, for queries of past usage
KEPT_S = 60.0  # how long an ended pod is kept, as by ttlSecondsAfterFinished of a Job
UPTIME_S = 9 * 86_400.0  # maximum age of the initial pods
JOB_SHARE = 0.6  # share of jobs among arrivals; the other arrivals replace a pod of a service
SHORTEST_JOB_S, LONGEST_JOB_S = 120.0, 600.0
MOST_WAITING = 25  # no arrivals while this number of pods waits
FEWEST_A_MINUTE, MOST_A_MINUTE = 2.0, 60.0
NODES_AN_ARRIVAL = 5  # nodes per arrival and minute

OnPod = Callable[[str, Pod | None, Pod | None], None]


@dataclass(slots=True)
class _SimulatedPodState:
    """An existing pod; `row` is the index of its node, None while the pod waits."""

    of: Instance
    pod: Pod
    row: int | None = None


class SimulatedCluster:
    """A cluster of `nodes` nodes that begins at unix time `begun`, reproducible by its seed. `speed` is the speed of
    the simulated day as a multiple of real time.
    """

    def __init__(self, nodes: int, *, seed: int, speed: float, begun: float) -> None:
        self.seed = seed
        self.begun = begun
        self._machines = machines(nodes, seed=seed)
        names = [machine.name for machine in self._machines]
        self._row = {name: row for row, name in enumerate(names)}
        self.fleet: Fleet = fleet(
            self._machines,
            faults=faults.choose(names, seed=seed, begun=begun),
            pattern=DayPattern(begun, speed),
        )
        self.nodes: dict[str, Node] = {
            machine.name: objects.node_object(machine, created=begun - UPTIME_S) for machine in self._machines
        }
        self._there: dict[str, _SimulatedPodState] = {}
        self._waiting: dict[str, None] = {}  # pods without a node, in order of arrival
        self._services: list[str] = []  # pods that may be replaced; unordered
        self._endings: list[tuple[float, str]] = []  # a heap of the times at which jobs end or are removed
        self._on_pod: list[OnPod] = []
        self._arrivals = 0
        self._next_arrival = begun
        self._free = np.array(
            [[machine.allocatable_milli, machine.allocatable_bytes, objects.MOST_PODS] for machine in self._machines],
            dtype=np.int64,
        )
        self.running: RunningPods = self._settle()

    def _settle(self) -> RunningPods:
        """Place the initial pods, which have been running before `begun`."""
        placed = list(first_placement(self._machines, seed=self.seed))
        begins = [self.begun - 1_800.0 - (UPTIME_S - 1_800.0) * (each.key % 1000) / 1000.0 for each, _ in placed]
        for (each, row), begin in zip(placed, begins, strict=True):
            waiting = objects.pending_pod(each, created=begin)
            pod = objects.bound_pod(waiting, self.fleet.names[row], at=begin)
            self._there[each.full_name] = _SimulatedPodState(each, pod, row)
            self._take(each, row)
            if each.workload.owner == "ReplicaSet":
                self._services.append(each.full_name)
        return running(placed, begin=begins)

    # --- queries -----------------------------------------------------------------------------------------------------

    def pod(self, key: str) -> Pod | None:
        """Return the pod NAMESPACE/NAME, or None if it does not exist."""
        there = self._there.get(key)
        return None if there is None else there.pod

    def pods(self) -> tuple[str, ...]:
        """Return NAMESPACE/NAME of all pods."""
        return tuple(self._there)

    def waiting(self) -> tuple[Pod, ...]:
        """Return the pods that wait for a node, in order of arrival."""
        return tuple(self._there[key].pod for key in self._waiting)

    def fitting_nodes(self, pod: str) -> tuple[str, ...]:
        """Return the nodes with enough free resources for the pod's requests, as by kube-scheduler's
        NodeResourcesFit.
        """
        asked = _asked(self._there[pod].of)
        return tuple(self.fleet.names[row] for row in np.flatnonzero((self._free >= asked).all(axis=1)).tolist())

    def running_pods(self) -> list[tuple[Instance, Pod]]:
        """Return the pods in phase Running."""
        return [(each.of, each.pod) for each in self._there.values() if each.pod.status.phase == "Running"]

    def usage(self, present: Sequence[tuple[Instance, Pod]], now: float) -> PodUsage:
        """Return the usage of these pods at `now`. It reads no mutable state, so any thread may call it."""
        pods = running([(each, self._row[pod.spec.node_name]) for each, pod in present], begin=-np.inf)
        time = np.full(len(self.fleet.names), now)
        return PodUsage(
            tuple((each.workload.namespace, each.name) for each, _ in present),
            tuple(pod.spec.node_name for _, pod in present),
            np.full(len(present), now),
            pod_cores(self.fleet, pods, time),
            pod_memory(pods, time[pods.row], self.fleet.pattern),
        )

    def subscribe(self, on_pod: OnPod) -> None:
        """Call `on_pod` for each pod that is created, changed or deleted from now on, with its NAMESPACE/NAME, its old
        and its new state (None: does not exist).
        """
        self._on_pod.append(on_pod)

    # --- changes -----------------------------------------------------------------------------------------------------

    def bind(self, key: str, *, node: str, uid: str, now: float) -> None:
        """Bind a waiting pod to a node. Raises KubeNotFound for an unknown pod or node, KubeConflict if the pod has
        another uid or is bound already.
        """
        there = self._there.get(key)
        if there is None:
            raise KubeNotFound(f"pod {key} not found")
        if node not in self._row:
            raise KubeNotFound(f"node {node} not found")
        if uid != there.of.uid:
            raise KubeConflict(f"pod {key} now has another uid, {there.of.uid}")
        if there.row is not None:
            raise KubeConflict(f"pod {key} is already bound to node {there.pod.spec.node_name}")
        del self._waiting[key]
        there.row = self._row[node]
        self._take(there.of, there.row)
        end = math.inf
        if there.of.workload.owner == "Job":
            end = now + SHORTEST_JOB_S + (LONGEST_JOB_S - SHORTEST_JOB_S) * _chance(there.of.key, "lasts")
            heapq.heappush(self._endings, (end, key))
        else:
            self._services.append(key)
        self.running = self.running.with_more(running([(there.of, there.row)], begin=now, end=end))
        self._change(key, objects.bound_pod(there.pod, node, at=now))

    def advance(self, now: float) -> None:
        """Process all events up to `now`: jobs end, ended pods are deleted, new pods arrive."""
        while self._endings and self._endings[0][0] <= now:
            at, key = heapq.heappop(self._endings)
            there = self._there[key]
            if there.pod.status.phase == "Running":
                self._release(there)
                self._change(key, objects.ended_pod(there.pod))
                heapq.heappush(self._endings, (at + KEPT_S, key))
            else:
                self._drop(key)
        while self._next_arrival <= now:
            self._arrive(self._next_arrival, now)
        if (long_gone := self.running.end < now - REMEMBERED_S).any():
            self.running = self.running.where(~long_gone)

    def _arrive(self, at: float, now: float) -> None:
        """Process an arrival at time `at`, and schedule the next one."""
        number, self._arrivals = self._arrivals, self._arrivals + 1
        chance = key_of(self.seed, "arrival", number)
        a_minute = min(max(len(self.nodes) / NODES_AN_ARRIVAL, FEWEST_A_MINUTE), MOST_A_MINUTE)
        self._next_arrival = at - math.log1p(-_chance(chance, "gap")) * 60.0 / a_minute
        if len(self._waiting) >= MOST_WAITING:
            return
        if _chance(chance, "kind") < JOB_SHARE or not self._services:
            self._come(instance(JOBS[chance % len(JOBS)], number, seed=self.seed), at)
        else:
            self._roll(chance, number, now)

    def _roll(self, chance: int, number: int, now: float) -> None:
        """Replace a pod of a service. The old pod ends at `now`, so that its usage reported until now stays valid."""
        place = chance % len(self._services)
        key = self._services[place]
        self._services[place] = self._services[-1]
        self._services.pop()
        there = self._there[key]
        self.running = self.running.ended(there.of.key, now)
        self._release(there)
        self._drop(key)
        self._come(instance(there.of.workload, 1_000_000 + number, seed=self.seed), now)

    def _come(self, each: Instance, now: float) -> None:
        pod = objects.pending_pod(each, created=now)
        self._there[each.full_name] = _SimulatedPodState(each, pod)
        self._waiting[each.full_name] = None
        self._tell(each.full_name, None, pod)

    def _release(self, there: _SimulatedPodState) -> None:
        """Free the resources that an ended pod requested."""
        assert there.row is not None  # only bound pods can end
        self._free[there.row] += _asked(there.of)

    def _drop(self, key: str) -> None:
        gone = self._there.pop(key)
        self._tell(key, gone.pod, None)

    def _change(self, key: str, pod: Pod) -> None:
        there = self._there[key]
        old, there.pod = there.pod, pod
        self._tell(key, old, pod)

    def _tell(self, key: str, old: Pod | None, new: Pod | None) -> None:
        for on_pod in self._on_pod:
            on_pod(key, old, new)

    def _take(self, each: Instance, row: int) -> None:
        self._free[row] -= _asked(each)


def _asked(each: Instance) -> I64:
    """Return the pod's requests: thousandths of a core, bytes, and one pod; shape (3,)."""
    return np.array([each.workload.milli, each.workload.mib * MIB, 1], dtype=np.int64)


def _chance(key: int, what: str) -> float:
    return key_of(key, what) / 2.0**64
