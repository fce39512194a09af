"""What the pods of a simulated cluster use at a time, and what that makes of its nodes.

A node's load is that of its pods and of its own system; where they want more cores than there are, each pod gets the
same part of what it wants. All of it is a function of the fleet, of who runs where, and of the time asked about.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from watcher.fleet.faults import WILD_SHARE, Faults
from watcher.fleet.machines import Machine
from watcher.fleet.noise import F64, U64, mixed, uniform, wandering
from watcher.fleet.workloads import MIB, Instance

I64 = npt.NDArray[np.int64]

DAY_S = 86_400.0
BEGIN_HOUR = 9.0
BURSTS_EVERY_S = 3_600.0  # of the pattern: so often it is decided whether there is one
SYSTEM_SHARE = 0.03  # of a node's cores, for kernel and kubelet
SYSTEM_BYTES = 1.2 * 2**30
MOST_CORES = 0.99  # of a node
MOST_MEMORY = 0.98
MOST_OVER_LIMIT = 0.97  # of its limit a pod's memory comes to; beyond it would be killed
CROWDED = 0.7  # part of the cores in use from which on tasks wait for one another


@dataclass(frozen=True, slots=True)
class Pattern:
    """The course of the simulated day: at unix time `begun` it is nine in the morning, and it passes `speed` times as
    fast as ours. Only the day and its bursts do so; noise, faults, and the lives of pods keep their pace."""

    begun: float
    speed: float

    def time(self, time: F64) -> F64:
        """Seconds of simulated time, from midnight of the first day."""
        passed: F64 = BEGIN_HOUR * 3600.0 + (time - self.begun) * self.speed
        return passed


@dataclass(frozen=True, slots=True)
class Running:
    """Who runs where, and how it behaves: n pods in columns, immutable. `row` is the node; from `begin` until before
    `end` (unix seconds) a pod is there. Cores, bytes, bytes/s and percent of a disk per core."""

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

    def where(self, keep: npt.NDArray[np.bool_]) -> Running:
        """The pods where `keep` is true."""
        return Running(*(getattr(self, each.name)[keep] for each in fields(self)))

    def with_more(self, more: Running) -> Running:
        """These and more."""
        return Running(*(np.concatenate([getattr(self, each.name), getattr(more, each.name)]) for each in fields(self)))

    def ended(self, key: int, at: float) -> Running:
        """The same, but that pod is gone from `at` on."""
        ends = np.where((self.key == np.uint64(key)) & (self.end > at), at, self.end)
        return Running(*(ends if each.name == "end" else getattr(self, each.name) for each in fields(self)))


def running(pods: Sequence[tuple[Instance, int]], *, begin: float | Sequence[float], end: float = np.inf) -> Running:
    """These pods on the nodes of these rows, from then on until then."""
    number = len(pods)
    of = np.array([_numbers(each) for each, _ in pods], dtype=np.float64).reshape(number, 11).T
    return Running(
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
    """The nodes in columns, what their monitoring does wrong, and the course of the day."""

    names: tuple[str, ...]
    key: U64
    cores: F64
    memory: F64
    system_cores: F64
    idle_watts: F64
    busy_watts: F64
    faults: Faults
    pattern: Pattern


def fleet(machines: Sequence[Machine], *, faults: Faults, pattern: Pattern) -> Fleet:
    """The nodes of these machines, of which the hot one has a process of its own that runs wild."""
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


def wanted_cores(pods: Running, time: F64, pattern: Pattern) -> F64:
    """Cores that each pod [n] would use at its time [n], had its node enough of them; 0 where it does not run."""
    simulated = pattern.time(time)
    steady = pods.low + (pods.high - pods.low) * _busy(pods, simulated)
    wavering = 0.6 * wandering(pods.key, time, 45.0) + 0.4 * wandering(mixed(pods.key, 1), time, 300.0)
    wanted = (steady + pods.burst * _bursting(pods, simulated)) * (1.0 + pods.noise * wavering)
    return np.where(_runs(pods, time), np.clip(wanted, 0.0, pods.most_cores), 0.0)


def pod_memory(pods: Running, time: F64, pattern: Pattern) -> F64:
    """Bytes that each pod [n] uses at its time [n]; 0 where it does not run."""
    shape = 0.92 + 0.08 * _busy(pods, pattern.time(time)) + 0.03 * wandering(mixed(pods.key, 2), time, 600.0)
    return np.where(_runs(pods, time), np.minimum(pods.memory * shape, MOST_OVER_LIMIT * pods.most_memory), 0.0)


def _runs(pods: Running, time: F64) -> npt.NDArray[np.bool_]:
    there: npt.NDArray[np.bool_] = (pods.begin <= time) & (time < pods.end)
    return there


def _busy(pods: Running, simulated: F64) -> F64:
    """How busy the hour is for each pod: 1 at its peak, 0 half a day away from it."""
    swing: F64 = (0.5 + 0.5 * np.cos(2.0 * np.pi * (simulated / DAY_S - pods.peak / 24.0))) ** 1.3
    return swing


def _bursting(pods: Running, simulated: F64) -> F64:
    """1 in the middle of a burst, 0 outside of one. A pod's hours begin at a time of its own."""
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
class NodeLoad:
    """What the nodes [n] use: cores and bytes, percent of the disk's time, bytes/s, watts, and the percentage of time
    in which some task waits for a core."""

    cores: F64
    memory: F64
    disk: F64
    transmitted: F64
    received: F64
    watts: F64
    pressure: F64


def system_cores(cluster: Fleet, time: F64) -> F64:
    """Cores [n] that the nodes use themselves, at their times [n]."""
    return cluster.system_cores * (1.0 + 0.1 * wandering(cluster.key, time, 60.0))


def pod_cores(cluster: Fleet, pods: Running, time: F64) -> F64:
    """Cores that each pod [p] uses when it is `time` [n] on the nodes: what it wants, or the part of it that its node
    can give to all alike."""
    return _granted(cluster, pods, time)[0]


def _granted(cluster: Fleet, pods: Running, time: F64) -> tuple[F64, F64]:
    """Of each pod what it uses, and of each node which part of what they want its pods get."""
    wanted = wanted_cores(pods, time[pods.row], cluster.pattern)
    demand = _per_node(cluster, pods, wanted)
    room = MOST_CORES * cluster.cores - system_cores(cluster, time)
    part = np.minimum(1.0, np.divide(room, demand, out=np.ones_like(demand), where=demand > 0.0))
    return wanted * part[pods.row], part


def node_load(cluster: Fleet, pods: Running, time: F64) -> NodeLoad:
    """What every node uses at its time [n]."""
    used, part = _granted(cluster, pods, time)
    cores = system_cores(cluster, time) + _per_node(cluster, pods, used)
    memory = SYSTEM_BYTES + _per_node(cluster, pods, pod_memory(pods, time[pods.row], cluster.pattern))
    disk = 1.0 + 0.5 * wandering(mixed(cluster.key, 5), time, 60.0) + _per_node(cluster, pods, used * pods.disk)
    network = 2e5 + _per_node(cluster, pods, used * pods.network)
    sent = 0.5 + 0.1 * wandering(mixed(cluster.key, 6), time, 60.0)
    share = cores / cluster.cores
    crowd = np.clip((share - CROWDED) / (1.0 - CROWDED), 0.0, 1.0)
    return NodeLoad(
        cores,
        np.minimum(memory, MOST_MEMORY * cluster.memory),
        np.clip(disk, 0.0, 100.0),
        network * sent,
        network * (1.0 - sent),
        cluster.idle_watts + (cluster.busy_watts - cluster.idle_watts) * share,
        np.clip(20.0 * crowd**2 + 100.0 * (1.0 - part), 0.0, 100.0),
    )


def _per_node(cluster: Fleet, pods: Running, values: F64) -> F64:
    sums: F64 = np.bincount(pods.row, weights=values, minlength=len(cluster.names)).astype(np.float64, copy=False)
    return sums
