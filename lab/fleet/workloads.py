"""Pods of a simulated cluster: owners, requests and behaviour.

Names and sizes are typical: a shop with its databases, a data platform, machine learning, builds. Requests differ from
usage as in real clusters: databases request what they use, services three times their usage, builds a fraction of it.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from lab.fleet.machines import SimulatedMachine
from lab.fleet.noise import key_of

MIB = 2**20
REQUESTED = 0.70  # share of the allocatable cores that the initial pods request
LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # characters of the random name suffixes of Kubernetes

Owner = Literal["ReplicaSet", "StatefulSet", "DaemonSet", "Job"]


@dataclass(frozen=True, slots=True)
class Behaviour:
    """Usage of a pod relative to its requests. `low` and `high` are shares of the requested cores at the quietest and
    the busiest hour; `peak` is the busiest hour of the day. In a share `bursts` of the hours, usage rises by the share
    `burst` of the request for a while. `noise` is the relative amplitude of noise. `memory` is a share of the requested
    memory; `network` (bytes/s) and `disk` (percent of a disk's time) are per used core.
    """

    low: float
    high: float
    peak: float = 14.0
    noise: float = 0.12
    burst: float = 0.0
    bursts: float = 0.0
    memory: float = 0.75
    network: float = 2e6
    disk: float = 0.2


WEB = Behaviour(0.12, 0.75, burst=0.5, bursts=0.25, network=12e6)
EVENING = Behaviour(0.10, 0.85, peak=20.5, burst=0.6, bursts=0.3, network=25e6)
BACKEND = Behaviour(0.25, 0.60, burst=0.3, bursts=0.2, network=6e6)
DATABASE = Behaviour(0.40, 0.70, noise=0.06, memory=0.92, network=8e6, disk=3.0)
NIGHTLY = Behaviour(0.05, 0.95, peak=2.5, noise=0.08, memory=0.85, network=15e6, disk=2.0)
BURSTY = Behaviour(0.08, 0.20, noise=0.25, burst=1.4, bursts=0.5, network=10e6, disk=1.0)
AGENT = Behaviour(0.30, 0.45, noise=0.20, network=1e6, disk=0.5)
BUILD = Behaviour(2.2, 3.0, noise=0.30, memory=1.6, network=5e6, disk=4.0)
TRAINING = Behaviour(0.85, 0.95, noise=0.05, memory=0.9, network=4e6, disk=1.0)


@dataclass(frozen=True, slots=True)
class SimulatedWorkload:
    """A template of pods. `milli` (thousandths of a core) and `mib` are the requests; a limit of 0 means none. `share`
    is its share of all requested cores. `usual` (thousandths of a core, MiB) is the base of the behaviour if there are
    no requests.
    """

    namespace: str
    name: str
    owner: Owner
    milli: int
    mib: int
    behaviour: Behaviour
    share: float = 0.0
    limit_milli: int = 0
    limit_mib: int = 0
    priority: str = ""
    usual: tuple[int, int] = (0, 0)

    @property
    def cores(self) -> float:
        """Cores to which the behaviour is relative."""
        return (self.milli or self.usual[0]) / 1000.0

    @property
    def memory(self) -> float:
        """Memory in bytes to which the behaviour is relative."""
        return float((self.mib or self.usual[1]) * MIB)


SERVICES = (
    SimulatedWorkload("shop", "frontend", "ReplicaSet", 500, 512, WEB, 0.09, 1500, 1024, "koord-prod"),
    SimulatedWorkload("shop", "checkout", "ReplicaSet", 500, 768, WEB, 0.07, 500, 768, "koord-prod"),
    SimulatedWorkload("shop", "cart", "ReplicaSet", 250, 512, WEB, 0.05, 1000, 1024, "koord-prod"),
    SimulatedWorkload("shop", "search", "ReplicaSet", 2000, 4096, WEB, 0.10, 4000, 6144, "koord-prod"),
    SimulatedWorkload("payments", "api", "ReplicaSet", 1000, 1024, BACKEND, 0.06, 1000, 1024, "koord-prod"),
    SimulatedWorkload("payments", "ledger", "StatefulSet", 2000, 8192, DATABASE, 0.06, 2000, 8192, "koord-prod"),
    SimulatedWorkload("identity", "auth", "ReplicaSet", 500, 512, BACKEND, 0.05, 1000, 1024, "koord-prod"),
    SimulatedWorkload("media", "stream", "ReplicaSet", 1000, 1024, EVENING, 0.08, 3000, 2048, "koord-prod"),
    SimulatedWorkload("media", "thumbnailer", "ReplicaSet", 500, 1024, BURSTY, 0.04, 2000, 2048),
    SimulatedWorkload("data", "postgres", "StatefulSet", 3000, 12288, DATABASE, 0.08, 3000, 12288, "koord-prod"),
    SimulatedWorkload("data", "kafka", "StatefulSet", 1500, 6144, DATABASE, 0.06, 0, 8192, "koord-prod"),
    SimulatedWorkload("data", "redis", "StatefulSet", 250, 4096, DATABASE, 0.03, 0, 4096, "koord-prod"),
    SimulatedWorkload("analytics", "spark-worker", "ReplicaSet", 2000, 6144, NIGHTLY, 0.10, 4000, 8192, "koord-batch"),
    SimulatedWorkload("analytics", "reports", "ReplicaSet", 500, 1024, NIGHTLY, 0.03, 2000, 2048, "koord-batch"),
    SimulatedWorkload("ml", "inference", "ReplicaSet", 1500, 3072, EVENING, 0.07, 3000, 4096),
    SimulatedWorkload("ingress", "nginx", "ReplicaSet", 500, 256, WEB, 0.03, 0, 512, "system-cluster-critical"),
)
ON_EVERY_NODE = (
    SimulatedWorkload("kube-system", "cilium", "DaemonSet", 100, 256, AGENT, priority="system-node-critical"),
    SimulatedWorkload("monitoring", "node-exporter", "DaemonSet", 50, 64, AGENT, 0.0, 250, 128, "system-node-critical"),
)
JOBS = (
    SimulatedWorkload("ci", "build", "Job", 500, 1024, BUILD, limit_milli=3000, limit_mib=4096),
    SimulatedWorkload("ci", "lint", "Job", 0, 0, BUILD, usual=(300, 384)),
    SimulatedWorkload("ml", "training", "Job", 1000, 2048, TRAINING, 0.0, 1000, 2048, "koord-batch"),
)
PRIORITIES = {
    "system-node-critical": 2000001000,
    "system-cluster-critical": 2000000000,
    "koord-prod": 9500,
    "koord-batch": 5500,
    "": 0,
}


@dataclass(frozen=True, slots=True)
class Instance:
    """A pod of a workload. `key` seeds its random numbers; `thrift` is a factor on the usual CPU usage."""

    workload: SimulatedWorkload
    name: str
    owner_name: str
    uid: str
    key: int
    thrift: float

    @property
    def full_name(self) -> str:
        return f"{self.workload.namespace}/{self.name}"


def instance(workload: SimulatedWorkload, number: int, *, seed: int) -> Instance:
    """Return the pod with this number; different numbers give different names."""
    key = key_of(seed, workload.namespace, workload.name, number)
    owner, name = _names(workload, number, seed=seed)
    digits = f"{key:016x}{key_of(key, 'uid'):016x}"
    uid = "-".join((digits[:8], digits[8:12], "4" + digits[13:16], "8" + digits[17:20], digits[20:32]))
    thrift = 0.5 + 1.4 * (key_of(key, "thrift") / 2.0**64)
    return Instance(workload, name, owner, uid, key, thrift)


def _names(workload: SimulatedWorkload, number: int, *, seed: int) -> tuple[str, str]:
    end = _letters(number * 4_000_037 + key_of(seed, workload.name), 5)  # a bijection, so suffixes are unique
    if workload.owner == "StatefulSet":
        return workload.name, f"{workload.name}-{number}"
    if workload.owner == "DaemonSet":
        return workload.name, f"{workload.name}-{end}"
    if workload.owner == "Job":
        return f"{workload.name}-{number}", f"{workload.name}-{number}-{end}"
    replica_set = f"{workload.name}-{_letters(key_of(seed, workload.namespace, workload.name), 9)}"
    return replica_set, f"{replica_set}-{end}"


def _letters(number: int, count: int) -> str:
    """Return the last `count` digits of a number in the base and alphabet of LETTERS."""
    digits = []
    for _ in range(count):
        number, digit = divmod(number, len(LETTERS))
        digits.append(LETTERS[digit])
    return "".join(digits)


# --- initial placement -----------------------------------------------------------------------------------------------


def replicas(machines: Sequence[SimulatedMachine], *, seed: int) -> list[Instance]:
    """Return the pods of all services, largest first; together they request the share REQUESTED of these machines."""
    budget = REQUESTED * sum(machine.allocatable_milli for machine in machines)
    total = sum(service.share for service in SERVICES)
    found = [
        instance(service, number, seed=seed)
        for service in SERVICES
        for number in range(round(budget * service.share / total / service.milli))
    ]
    return sorted(found, key=lambda each: (-each.workload.milli, each.key))


def first_placement(machines: Sequence[SimulatedMachine], *, seed: int) -> Iterator[tuple[Instance, int]]:
    """Yield the initial pods with the row of their node, placed like LeastAllocated: on the node with the smallest
    share of requested CPU. Pods that fit nowhere are omitted.
    """
    room = [[machine.allocatable_milli, machine.allocatable_bytes] for machine in machines]
    for row in range(len(machines)):
        for agent in ON_EVERY_NODE:
            yield _take(instance(agent, row, seed=seed), row, room)
    free = [(-_free(machines[row], room[row]), machines[row].key, row) for row in range(len(machines))]
    heapq.heapify(free)
    for each in replicas(machines, seed=seed):
        passed_over = []
        while free:
            entry = heapq.heappop(free)
            row = entry[2]
            if _fits(each.workload, room[row]):
                yield _take(each, row, room)
                passed_over.append((-_free(machines[row], room[row]), entry[1], row))
                break
            passed_over.append(entry)
        for entry in passed_over:
            heapq.heappush(free, entry)


def _free(machine: SimulatedMachine, room: Sequence[int]) -> float:
    return room[0] / machine.allocatable_milli


def _fits(workload: SimulatedWorkload, room: Sequence[int]) -> bool:
    return workload.milli <= room[0] and workload.mib * MIB <= room[1]


def _take(each: Instance, row: int, room: list[list[int]]) -> tuple[Instance, int]:
    room[row][0] -= each.workload.milli
    room[row][1] -= each.workload.mib * MIB
    return each, row
