"""Results of a simulation in numbers.

Fractions are of a node's capacity. Demand may exceed the capacity; usage cannot. A node-minute is one node in one
minute; nodes that do not exist at the time are not counted. A node is in use while it has at least one pod that is not
of a DaemonSet.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from watcher.arrays import F32, F64, I64, Bool

WantedAndCapacity = tuple[F64, F64]
"""Demand and capacity of each node, [nodes] each."""


class MinuteSeries:
    """Values by minute: `cpu` and `memory` [minutes, nodes] are the demand as a fraction of capacity, NaN for nodes
    that do not exist; `used` [minutes] counts nodes in use, `waiting` [minutes] pods without a node, `unmet` [minutes]
    cores of demand beyond capacity."""

    def __init__(self, minutes: int, nodes: int) -> None:
        self.cpu: F32 = np.full((minutes, nodes), np.nan, dtype=np.float32)
        self.memory: F32 = np.full((minutes, nodes), np.nan, dtype=np.float32)
        self.used: I64 = np.zeros(minutes, dtype=np.int64)
        self.waiting: I64 = np.zeros(minutes, dtype=np.int64)
        self.unmet: F64 = np.zeros(minutes)

    def add(
        self, minute: int, there: Bool, used: Bool, cpu: WantedAndCapacity, memory: WantedAndCapacity, *, waiting: int
    ) -> None:
        """Add one minute of all nodes."""
        for shares, (wanted, size) in ((self.cpu, cpu), (self.memory, memory)):
            shares[minute, there] = (wanted / size)[there]
        self.used[minute] = np.count_nonzero(used & there)
        self.waiting[minute] = waiting
        self.unmet[minute] = np.maximum(cpu[0] - cpu[1], 0.0)[there].sum()


@dataclass(frozen=True, slots=True)
class MinuteStatistics:
    """Values by minute for the chart [minutes]: the number of overloaded nodes and of nodes in use, the mean CPU usage
    (percent), and its 95th percentile over the nodes; NaN without nodes."""

    overloaded: I64
    used: I64
    mean: F64
    p95: F64


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One line of the report. Percentages are of used CPU (or memory, by name) over all node-minutes; `spread` is the
    mean over time of the standard deviation between nodes, in percentage points. `wait` is the mean wait of pods beyond
    their first opportunity, in minutes. `throttled_hours` is the sum of the times by which throttling moved the ends of
    pods. `evictions` is None if no evictor was given."""

    policy: str
    overload_node_minutes: int
    cpu_overload_node_minutes: int
    memory_overload_node_minutes: int
    unmet_core_hours: float
    nodes_used_mean: float
    nodes_used_most: int
    cpu_mean: float
    cpu_p95: float
    cpu_p99: float
    cpu_spread: float
    memory_mean: float
    memory_p95: float
    memory_p99: float
    memory_spread: float
    pods: int
    unschedulable: int
    waited: int
    wait_mean: float
    displaced: int
    evictions: int | None
    throttled_hours: float


@dataclass(frozen=True, slots=True)
class PodMove:
    """An eviction by a balancer: the time (unix seconds), and the indices of the pod and of its node."""

    time: float
    pod: int
    node: int


@dataclass(frozen=True, slots=True)
class BalancingResult:
    """What a balancer did: its evictions in order of time; by minute the core-hours that evicted pods did not do or
    have to repeat (`lost`), and the number of tainted nodes (`marked`); and the number of changes of a node's taints or
    annotation (`patches`)."""

    moves: tuple[PodMove, ...]
    lost: F64
    marked: I64
    patches: int


@dataclass(frozen=True, slots=True)
class SimulationRun:
    """The result of one policy. Over all pods of the course: `first_node` (-1: never placed), `placed` and `arrived`
    (unix seconds), `counted` (pods that arrived and needed placement), and `evicted` (pods to evict, if an evictor was
    given: `evictions_counted`), and `late` (seconds by which throttling moved the pod's end). Without a balancer,
    `balancing` is None."""

    policy: str
    series: MinuteSeries
    first_node: I64
    placed: F64
    arrived: F64
    counted: Bool
    displaced: int
    evicted: Bool
    late: F64
    overload: float
    begins: float
    evictions_counted: bool = True
    balancing: BalancingResult | None = None

    def summary(self) -> RunSummary:
        """The numbers for one line of the report."""
        cpu, memory = (_used(shares) for shares in (self.series.cpu, self.series.memory))
        over_cpu, over_memory = (shares > self.overload for shares in (self.series.cpu, self.series.memory))
        placed = self.counted & (self.first_node >= 0)
        late = np.maximum(self.placed[placed] - self.arrived[placed] - 60.0, 0.0) / 60.0
        return RunSummary(
            policy=self.policy,
            overload_node_minutes=int(np.count_nonzero(over_cpu | over_memory)),
            cpu_overload_node_minutes=int(np.count_nonzero(over_cpu)),
            memory_overload_node_minutes=int(np.count_nonzero(over_memory)),
            unmet_core_hours=float(self.series.unmet.sum() / 60.0),
            nodes_used_mean=float(self.series.used.mean()),
            nodes_used_most=int(self.series.used.max()),
            cpu_mean=_of_all(cpu, np.mean),
            cpu_p95=_of_all(cpu, _p95),
            cpu_p99=_of_all(cpu, _p99),
            cpu_spread=_of_all(_each_minute(cpu, np.std), np.mean),
            memory_mean=_of_all(memory, np.mean),
            memory_p95=_of_all(memory, _p95),
            memory_p99=_of_all(memory, _p99),
            memory_spread=_of_all(_each_minute(memory, np.std), np.mean),
            pods=int(np.count_nonzero(self.counted)),
            unschedulable=int(np.count_nonzero(self.counted & (self.first_node < 0))),
            waited=int(np.count_nonzero(late > 0.0)),
            wait_mean=float(late.mean()) if len(late) else 0.0,
            displaced=self.displaced,
            evictions=int(np.count_nonzero(self.evicted)) if self.evictions_counted else None,
            throttled_hours=float(self.late.sum() / 3600.0),
        )

    def minutes(self) -> MinuteStatistics:
        """The values by minute for the chart."""
        cpu = _used(self.series.cpu)
        over = (self.series.cpu > self.overload) | (self.series.memory > self.overload)
        return MinuteStatistics(
            np.count_nonzero(over, axis=1), self.series.used, _each_minute(cpu, np.mean), _each_minute(cpu, _p95)
        )


def _used(shares: F32) -> F64:
    """Usage in percent, at most 100; NaN remains NaN."""
    return 100.0 * np.minimum(shares.astype(np.float64), 1.0)


def _p95(values: F64, axis: int | None = None) -> F64:
    return np.asarray(np.percentile(values, 95.0, axis=axis))


def _p99(values: F64) -> F64:
    return np.asarray(np.percentile(values, 99.0))


def _of_all(values: F64, of: Callable[..., F64]) -> float:
    """A statistic of the known values; 0 if there are none."""
    known = values[~np.isnan(values)]
    return float(of(known)) if len(known) else 0.0


def _each_minute(values: F64, of: Callable[..., F64]) -> F64:
    """A statistic over the existing nodes by minute [minutes]; NaN without nodes."""
    if values.size and not np.isnan(values).any():
        return np.asarray(of(values, axis=1))
    found = [of(row[known]) if (known := ~np.isnan(row)).any() else np.nan for row in values]
    return np.array(found, dtype=np.float64)
