"""Nodes of a simulated cluster: pools of a few instance types, spread over zones.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from lab.fleet.noise import key_of

GIB = 2.0**30
ZONES = ("a", "b", "c")
REGION = "eu-west-1"
RESERVED_MEMORY = 0.06  # share of the machine's memory that is not allocatable (kubelet and system)


@dataclass(frozen=True, slots=True)
class Pool:
    """Machines of one instance type; `share` is their share of all nodes, from 0 to 1."""

    name: str
    instance: str
    cores: int
    memory_gib: int
    share: float
    idle_watts: float
    busy_watts: float


POOLS = (
    Pool("general", "m6i.2xlarge", 8, 32, 0.45, 42.0, 118.0),
    Pool("compute", "c6i.4xlarge", 16, 32, 0.25, 70.0, 235.0),
    Pool("memory", "r6i.2xlarge", 8, 64, 0.20, 48.0, 124.0),
    Pool("small", "t3.xlarge", 4, 16, 0.10, 18.0, 55.0),
)


@dataclass(frozen=True, slots=True)
class SimulatedMachine:
    """A simulated node. `memory` is in bytes; `allocatable_milli` (thousandths of a core) and `allocatable_bytes` are
    available to pods; `key` seeds its random numbers.
    """

    name: str
    pool: Pool
    zone: str
    address: str
    key: int

    @property
    def memory(self) -> float:
        return self.pool.memory_gib * GIB

    @property
    def allocatable_milli(self) -> int:
        return self.pool.cores * 1000 - 80 - 10 * self.pool.cores

    @property
    def allocatable_bytes(self) -> int:
        return int(self.memory * (1.0 - RESERVED_MEMORY))


def machines(count: int, *, seed: int) -> tuple[SimulatedMachine, ...]:
    """Return `count` nodes, sorted by name."""
    found: list[SimulatedMachine] = []
    for pool, size in zip(POOLS, _sizes(count), strict=True):
        width = max(2, len(str(-(-size // len(ZONES)))))
        for i in range(size):
            zone = ZONES[i % len(ZONES)]
            name = f"{pool.name}-{zone}-{i // len(ZONES) + 1:0{width}d}"
            number = len(found) + 1
            address = f"10.{32 + number // 65536}.{number // 256 % 256}.{number % 256}"
            found.append(SimulatedMachine(name, pool, zone, address, key_of(seed, "node", name)))
    return tuple(sorted(found, key=lambda machine: machine.name))


def _sizes(count: int) -> list[int]:
    """Return the number of nodes of each pool by its share; the first pool gets the remainder."""
    sizes = [int(count * pool.share) for pool in POOLS]
    sizes[0] += count - sum(sizes)
    return sizes
