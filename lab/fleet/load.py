"""Usage of the pods and nodes of a simulated cluster.

A node's load is the sum of its pods and of its system. If the pods demand more cores than the node has, each gets the
same share of its demand. The load is a function of the fleet, the running pods and the time.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from lab.fleet.faults import WILD_SHARE, Faults
from lab.fleet.machines import SimulatedMachine
from lab.fleet.noise import U64, mixed, uniform, wandering
from lab.fleet.workloads import MIB, Instance
from watcher.arrays import F64, I64

DAY_S = 86_400.0
BEGIN_HOUR = 9.0
BURSTS_EVERY_S = 3_600.0  # in simulated time; each period may have one burst
SYSTEM_SHARE = 0.03  # share of a node's cores used by kernel and kubelet
SYSTEM_BYTES = 1.2 * 2**30
MOST_CORES = 0.99  # maximum share of a node's cores in use
MOST_MEMORY = 0.98
MOST_OVER_LIMIT = 0.97  # maximum memory usage of a pod as a share of its limit, at which it would be killed
CROWDED = 0.7  # share of a node's cores in use above which tasks wait for CPU
DISK_WAIT = 0.4  # share of the time of a busy disk in which a task waits for it


@dataclass(frozen=True, slots=True)
class DayPattern:
    """The simulated day: it is 9:00 at unix time `begun`, and passes `speed` times as fast as real time. The speed
    applies to the daily cycle and bursts, but not to noise, faults and the lifetimes of pods.
    """

    begun: float
    speed: float

    def time(self, time: F64) -> F64:
        """Convert unix seconds to seconds of simulated time since midnight of the first day."""
        passed: F64 = BEGIN_HOUR * 3600.0 + (time - self.begun) * self.speed
        return passed


@dataclass(frozen=True, slots=True)
class RunningPods:
    """Nodes and behaviour of n pods, as immutable columns [n]. `row` is the index of the node; a pod runs in
    begin <= time < end (unix seconds). `low`, `high`, `burst` and `most_cores` are cores; `memory` and `most_memory`
    bytes; `peak` is an hour of the day; `network` is bytes/s and `disk` percent of a disk's time, both per used core.
    """

    key: U64
    row: I64
    begin: F64
    end: F64
    low: F64
    high: F64
    peak: F64
    noise: F64
    burst: F64
    bursts: F64
    most_cores: F64
    memory: F64
    most_memory: F64
    network: F64
    disk: F64

    def __len__(self) -> int:
        return len(self.key)

    def where(self, keep: npt.NDArray[np.bool_]) -> RunningPods:
        """Return the pods selected by the mask `keep` [n]."""
        return RunningPods(*(getattr(self, each.name)[keep] for each in fields(self)))

    def with_more(self, more: RunningPods) -> RunningPods:
        """Return these pods followed by `more`."""
        return RunningPods(
            *(np.concatenate([getattr(self, each.name), getattr(more, each.name)]) for each in fields(self))
        )

    def ended(self, key: int, at: float) -> RunningPods:
        """Return a copy in which the pod with this key ends at `at` (unix seconds)."""
        ends = np.where((self.key == np.uint64(key)) & (self.end > at), at, self.end)
        return RunningPods(*(ends if each.name == "end" else getattr(self, each.name) for each in fields(self)))


def running(
    pods: Sequence[tuple[Instance, int]], *, begin: float | Sequence[float], end: float = np.inf
) -> RunningPods:
    """Return the columns of pods given with the row of their node, running from `begin` until `end` (unix seconds)."""
    number = len(pods)
    of = np.array([_numbers(each) for each, _ in pods], dtype=np.float64).reshape(number, 11).T
    return RunningPods(
        np.array([each.key for each, _ in pods], dtype=np.uint64),
        np.array([row for _, row in pods], dtype=np.int64),
        np.broadcast_to(np.asarray(begin, dtype=np.float64), number).copy(),
        np.full(number, end),
        *(column.copy() for column in of),
    )


def _numbers(each: Instance) -> tuple[float, ...]:
    workload, behaviour = each.workload, each.workload.behaviour
    cores = workload.cores
    return (
        cores * behaviour.low * each.thrift,
        cores * behaviour.high * each.thrift,
        behaviour.peak,
        behaviour.noise,
        cores * behaviour.burst * each.thrift,
        behaviour.bursts,
        workload.limit_milli / 1000.0 or np.inf,
        workload.memory * behaviour.memory,
        workload.limit_mib * float(MIB) or np.inf,
        behaviour.network,
        behaviour.disk,
    )


@dataclass(frozen=True, slots=True)
class Fleet:
    """The n nodes as columns [n] (cores, bytes, watts), the faults of their monitoring, and the simulated day."""

    names: tuple[str, ...]
    key: U64
    cores: F64
    memory: F64
    system_cores: F64
    idle_watts: F64
    busy_watts: F64
    faults: Faults
    pattern: DayPattern


def fleet(machines: Sequence[SimulatedMachine], *, faults: Faults, pattern: DayPattern) -> Fleet:
    """Return the nodes of these machines; the runaway process of the hot node is part of its system load."""
    cores = np.array([machine.pool.cores for machine in machines], dtype=np.float64)
    wild = np.array([WILD_SHARE if machine.name == faults.hot else 0.0 for machine in machines])
    return Fleet(
        tuple(machine.name for machine in machines),
        np.array([machine.key for machine in machines], dtype=np.uint64),
        cores,
        np.array([machine.memory for machine in machines]),
        cores * (SYSTEM_SHARE + wild),
        np.array([machine.pool.idle_watts for machine in machines]),
        np.array([machine.pool.busy_watts for machine in machines]),
        faults,
        pattern,
    )


# --- pods ------------------------------------------------------------------------------------------------------------


def wanted_cores(pods: RunningPods, time: F64, pattern: DayPattern) -> F64:
    """Return the cores [n] that the pods demand at the times [n] (unix seconds); 0 for pods that do not run."""
    simulated = pattern.time(time)
    steady = pods.low + (pods.high - pods.low) * _busy(pods, simulated)
    wavering = 0.6 * wandering(pods.key, time, 45.0) + 0.4 * wandering(mixed(pods.key, 1), time, 300.0)
    wanted = (steady + pods.burst * _bursting(pods, simulated)) * (1.0 + pods.noise * wavering)
    return np.where(_runs(pods, time), np.clip(wanted, 0.0, pods.most_cores), 0.0)


def pod_memory(pods: RunningPods, time: F64, pattern: DayPattern) -> F64:
    """Return the memory [n] of the pods at the times [n] (unix seconds), in bytes; 0 for pods that do not run."""
    shape = 0.92 + 0.08 * _busy(pods, pattern.time(time)) + 0.03 * wandering(mixed(pods.key, 2), time, 600.0)
    return np.where(_runs(pods, time), np.minimum(pods.memory * shape, MOST_OVER_LIMIT * pods.most_memory), 0.0)


def _runs(pods: RunningPods, time: F64) -> npt.NDArray[np.bool_]:
    there: npt.NDArray[np.bool_] = (pods.begin <= time) & (time < pods.end)
    return there


def _busy(pods: RunningPods, simulated: F64) -> F64:
    """Return the daily activity of each pod: 1 at its peak hour, 0 twelve hours away from it."""
    swing: F64 = (0.5 + 0.5 * np.cos(2.0 * np.pi * (simulated / DAY_S - pods.peak / 24.0))) ** 1.3
    return swing


def _bursting(pods: RunningPods, simulated: F64) -> F64:
    """Return the burst intensity of each pod, from 0 (no burst) to 1. The burst periods of pods are offset randomly."""
    at = simulated / BURSTS_EVERY_S + uniform(mixed(pods.key, 3))
    hour = np.floor(at)
    chance = mixed(mixed(pods.key, 4), hour.astype(np.int64).astype(np.uint64))
    begin = 0.5 * uniform(mixed(chance, 1))
    end = begin + 0.15 + 0.3 * uniform(mixed(chance, 2))
    inside = np.clip(np.minimum(at - hour - begin, end - (at - hour)) / 0.03, 0.0, 1.0)
    shape: F64 = np.where(uniform(chance) < pods.bursts, inside, 0.0)
    return shape


# --- nodes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SimulatedNodeLoad:
    """Usage of the nodes [n]: cores, bytes, percent of the disk's time, bytes/s, watts, and the percentage of time in
    which some task waits for CPU (`pressure`) or the disk (`disk_pressure`), and in which all tasks wait for the disk
    (`disk_pressure_full`).
    """

    cores: F64
    memory: F64
    disk: F64
    transmitted: F64
    received: F64
    watts: F64
    pressure: F64
    disk_pressure: F64
    disk_pressure_full: F64


def system_cores(cluster: Fleet, time: F64) -> F64:
    """Return the cores [n] that the nodes' systems use at the times [n] (unix seconds)."""
    return cluster.system_cores * (1.0 + 0.1 * wandering(cluster.key, time, 60.0))


def pod_cores(cluster: Fleet, pods: RunningPods, time: F64) -> F64:
    """Return the cores [p] that the pods use at the nodes' times [n] (unix seconds): their demand, or an equal share of
    it if the node has too few cores.
    """
    return _granted(cluster, pods, time)[0]


def _granted(cluster: Fleet, pods: RunningPods, time: F64) -> tuple[F64, F64]:
    """Return the used cores of each pod [p], and for each node [n] the share of its pods' demand that is met."""
    wanted = wanted_cores(pods, time[pods.row], cluster.pattern)
    demand = _per_node(cluster, pods, wanted)
    room = MOST_CORES * cluster.cores - system_cores(cluster, time)
    part = np.minimum(1.0, np.divide(room, demand, out=np.ones_like(demand), where=demand > 0.0))
    return wanted * part[pods.row], part


def node_load(cluster: Fleet, pods: RunningPods, time: F64) -> SimulatedNodeLoad:
    """Return the usage of the nodes at the times [n] (unix seconds)."""
    used, part = _granted(cluster, pods, time)
    cores = system_cores(cluster, time) + _per_node(cluster, pods, used)
    memory = SYSTEM_BYTES + _per_node(cluster, pods, pod_memory(pods, time[pods.row], cluster.pattern))
    disk = np.clip(
        1.0 + 0.5 * wandering(mixed(cluster.key, 5), time, 60.0) + _per_node(cluster, pods, used * pods.disk),
        0.0,
        100.0,
    )
    waits = DISK_WAIT * disk
    network = 2e5 + _per_node(cluster, pods, used * pods.network)
    sent = 0.5 + 0.1 * wandering(mixed(cluster.key, 6), time, 60.0)
    share = cores / cluster.cores
    crowd = np.clip((share - CROWDED) / (1.0 - CROWDED), 0.0, 1.0)
    return SimulatedNodeLoad(
        cores,
        np.minimum(memory, MOST_MEMORY * cluster.memory),
        disk,
        network * sent,
        network * (1.0 - sent),
        cluster.idle_watts + (cluster.busy_watts - cluster.idle_watts) * share,
        np.clip(20.0 * crowd**2 + 100.0 * (1.0 - part), 0.0, 100.0),
        waits,
        waits * (1.0 - share),
    )


def _per_node(cluster: Fleet, pods: RunningPods, values: F64) -> F64:
    sums: F64 = np.bincount(pods.row, weights=values, minlength=len(cluster.names)).astype(np.float64, copy=False)
    return sums
