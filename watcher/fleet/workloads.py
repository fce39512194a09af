"""Which pods a simulated cluster has: what they belong to, what they ask for, and how they behave.

The names and sizes are those that one meets: a shop with its databases, a data platform, machine learning, builds. As
everywhere, what is asked for and what is used are two things: databases ask for what they use, services for three times
that, builds for a fraction.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from watcher.fleet.machines import Machine
from watcher.fleet.noise import key_of

MIB = 2**20
REQUESTED = 0.70  # of the cores that pods may ask for, at the start
LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # of which Kubernetes makes the ends of names

Owner = Literal["ReplicaSet", "StatefulSet", "DaemonSet", "Job"]


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What a pod uses of what it asked for: `low` and `high` are its cores at the quietest and the busiest hour, as
    parts of its request, `peak` that busiest hour. In a part `bursts` of the hours it uses `burst` more for a while.
    `noise` is by how much it wavers, relative. `memory` is a part of the request; `network` bytes/s and `disk` percent
    of a disk's time are per core in use."""

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
class Workload:
    """What makes pods. `milli` and `mib` are asked for; limits are 0 where there are none. `share` is that of all cores
    that pods ask for. `usual` (thousandths of a core, MiB) is what behaviour is a part of, where nothing is asked for.
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
        """What its behaviour is a part of."""
        return (self.milli or self.usual[0]) / 1000.0

    @property
    def memory(self) -> float:
        """The same, in bytes."""
        return float((self.mib or self.usual[1]) * MIB)


SERVICES = (
    Workload("shop", "frontend", "ReplicaSet", 500, 512, WEB, 0.09, 1500, 1024, "koord-prod"),
    Workload("shop", "checkout", "ReplicaSet", 500, 768, WEB, 0.07, 500, 768, "koord-prod"),
    Workload("shop", "cart", "ReplicaSet", 250, 512, WEB, 0.05, 1000, 1024, "koord-prod"),
    Workload("shop", "search", "ReplicaSet", 2000, 4096, WEB, 0.10, 4000, 6144, "koord-prod"),
    Workload("payments", "api", "ReplicaSet", 1000, 1024, BACKEND, 0.06, 1000, 1024, "koord-prod"),
    Workload("payments", "ledger", "StatefulSet", 2000, 8192, DATABASE, 0.06, 2000, 8192, "koord-prod"),
    Workload("identity", "auth", "ReplicaSet", 500, 512, BACKEND, 0.05, 1000, 1024, "koord-prod"),
    Workload("media", "stream", "ReplicaSet", 1000, 1024, EVENING, 0.08, 3000, 2048, "koord-prod"),
    Workload("media", "thumbnailer", "ReplicaSet", 500, 1024, BURSTY, 0.04, 2000, 2048),
    Workload("data", "postgres", "StatefulSet", 3000, 12288, DATABASE, 0.08, 3000, 12288, "koord-prod"),
    Workload("data", "kafka", "StatefulSet", 1500, 6144, DATABASE, 0.06, 0, 8192, "koord-prod"),
    Workload("data", "redis", "StatefulSet", 250, 4096, DATABASE, 0.03, 0, 4096, "koord-prod"),
    Workload("analytics", "spark-worker", "ReplicaSet", 2000, 6144, NIGHTLY, 0.10, 4000, 8192, "koord-batch"),
    Workload("analytics", "reports", "ReplicaSet", 500, 1024, NIGHTLY, 0.03, 2000, 2048, "koord-batch"),
    Workload("ml", "inference", "ReplicaSet", 1500, 3072, EVENING, 0.07, 3000, 4096),
    Workload("ingress", "nginx", "ReplicaSet", 500, 256, WEB, 0.03, 0, 512, "system-cluster-critical"),
)
ON_EVERY_NODE = (
    Workload("kube-system", "cilium", "DaemonSet", 100, 256, AGENT, priority="system-node-critical"),
    Workload("monitoring", "node-exporter", "DaemonSet", 50, 64, AGENT, 0.0, 250, 128, "system-node-critical"),
)
JOBS = (
    Workload("ci", "build", "Job", 500, 1024, BUILD, limit_milli=3000, limit_mib=4096),
    Workload("ci", "lint", "Job", 0, 0, BUILD, usual=(300, 384)),
    Workload("ml", "training", "Job", 1000, 2048, TRAINING, 0.0, 1000, 2048, "koord-batch"),
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
    """One pod of a workload. `key` decides about its chances, `thrift` is how much of the workload's usual use it
    makes."""

    workload: Workload
    name: str
    owner_name: str
    uid: str
    key: int
    thrift: float

    @property
    def full_name(self) -> str:
        """NAMESPACE/NAME."""
        return f"{self.workload.namespace}/{self.name}"


def instance(workload: Workload, number: int, *, seed: int) -> Instance:
    """The pod of this number: another number, another name."""
    key = key_of(seed, workload.namespace, workload.name, number)
    owner, name = _names(workload, number, seed=seed)
    digits = f"{key:016x}{key_of(key, 'uid'):016x}"
    uid = "-".join((digits[:8], digits[8:12], "4" + digits[13:16], "8" + digits[17:20], digits[20:32]))
    thrift = 0.5 + 1.4 * (key_of(key, "thrift") / 2.0**64)
    return Instance(workload, name, owner, uid, key, thrift)


def _names(workload: Workload, number: int, *, seed: int) -> tuple[str, str]:
    end = _letters(number * 4_000_037 + key_of(seed, workload.name), 5)  # one to one: no two pods have the same
    if workload.owner == "StatefulSet":
        return workload.name, f"{workload.name}-{number}"
    if workload.owner == "DaemonSet":
        return workload.name, f"{workload.name}-{end}"
    if workload.owner == "Job":
        return f"{workload.name}-{number}", f"{workload.name}-{number}-{end}"
    replica_set = f"{workload.name}-{_letters(key_of(seed, workload.namespace, workload.name), 9)}"
    return replica_set, f"{replica_set}-{end}"


def _letters(number: int, count: int) -> str:
    """The last digits of a number, in an odd base."""
    digits = []
    for _ in range(count):
        number, digit = divmod(number, len(LETTERS))
        digits.append(LETTERS[digit])
    return "".join(digits)


# --- who is where at the start ---------------------------------------------------------------------------------------


def replicas(machines: Sequence[Machine], *, seed: int) -> list[Instance]:
    """The pods of all services, the largest first; as many as ask for the usual part of these machines."""
    budget = REQUESTED * sum(machine.allocatable_milli for machine in machines)
    total = sum(service.share for service in SERVICES)
    found = [
        instance(service, number, seed=seed)
        for service in SERVICES
        for number in range(round(budget * service.share / total / service.milli))
    ]
    return sorted(found, key=lambda each: (-each.workload.milli, each.key))


def first_placement(machines: Sequence[Machine], *, seed: int) -> Iterator[tuple[Instance, int]]:
    """Pods with the row of their node, as a scheduler places them that looks at requests alone: on the node of which
    the smallest part is asked for. What has room nowhere is not there."""
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


def _free(machine: Machine, room: Sequence[int]) -> float:
    return room[0] / machine.allocatable_milli


def _fits(workload: Workload, room: Sequence[int]) -> bool:
    return workload.milli <= room[0] and workload.mib * MIB <= room[1]


def _take(each: Instance, row: int, room: list[list[int]]) -> tuple[Instance, int]:
    room[row][0] -= each.workload.milli
    room[row][1] -= each.workload.mib * MIB
    return each, row
