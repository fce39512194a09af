"""What came out of a simulation, in numbers.

Shares are of what a node has. What is *wanted* may be more than there is; what is *used* is not. A node-minute is one
node in one minute; those of nodes that are not there do not count. A node is in use while a pod is on it that could be
elsewhere (a DaemonSet's could not).

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

CAPACITY = tuple[F64, F64]
"""What is wanted and what there is, of each node."""


class Series:
    """Minute by minute: `cpu` and `memory` [minutes, nodes], what is wanted as shares, NaN of nodes that are not there;
    `used` [minutes] nodes in use, `waiting` [minutes] pods without a node, `unmet` [minutes] cores that were wanted and
    not there."""

    def __init__(self, minutes: int, nodes: int) -> None:
        self.cpu: F32 = np.full((minutes, nodes), np.nan, dtype=np.float32)
        self.memory: F32 = np.full((minutes, nodes), np.nan, dtype=np.float32)
        self.used: I64 = np.zeros(minutes, dtype=np.int64)
        self.waiting: I64 = np.zeros(minutes, dtype=np.int64)
        self.unmet: F64 = np.zeros(minutes)

    def add(self, minute: int, there: Bool, used: Bool, cpu: CAPACITY, memory: CAPACITY, *, waiting: int) -> None:
        """One minute of all nodes."""
        for shares, (wanted, size) in ((self.cpu, cpu), (self.memory, memory)):
            shares[minute, there] = (wanted / size)[there]
        self.used[minute] = np.count_nonzero(used & there)
        self.waiting[minute] = waiting
        self.unmet[minute] = np.maximum(cpu[0] - cpu[1], 0.0)[there].sum()


@dataclass(frozen=True, slots=True)
class Minute:
    """What a picture shows of each minute [minutes]: how many nodes are overloaded, in use, the mean CPU in use
    (percent), and its 95th percentile over the nodes; NaN while there is no node."""

    overloaded: I64
    used: I64
    mean: F64
    p95: F64


@dataclass(frozen=True, slots=True)
class Summary:
    """One line of the report. Percentages are of used CPU (memory where it says so) over all node-minutes; `spread` is
    the mean over time of the deviation between nodes, in points. `wait` is the mean of the minutes that pods waited
    beyond their first chance. `evictions` is None where nobody was asked."""

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


@dataclass(frozen=True, slots=True)
class Run:
    """One policy's. Over all pods of the course: `first_node` (-1: never placed), `placed` and `arrived` (unix
    seconds), `counted`, those that came and were to be placed, and `evicted`, those that would have had to go, where
    somebody was `asked`."""

    policy: str
    series: Series
    first_node: I64
    placed: F64
    arrived: F64
    counted: Bool
    displaced: int
    evicted: Bool
    overload: float
    begins: float
    asked: bool = True

    def summary(self) -> Summary:
        """The numbers."""
        cpu, memory = (_used(shares) for shares in (self.series.cpu, self.series.memory))
        over_cpu, over_memory = (shares > self.overload for shares in (self.series.cpu, self.series.memory))
        placed = self.counted & (self.first_node >= 0)
        late = np.maximum(self.placed[placed] - self.arrived[placed] - 60.0, 0.0) / 60.0
        return Summary(
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
            evictions=int(np.count_nonzero(self.evicted)) if self.asked else None,
        )

    def minutes(self) -> Minute:
        """The course of it."""
        cpu = _used(self.series.cpu)
        over = (self.series.cpu > self.overload) | (self.series.memory > self.overload)
        return Minute(
            np.count_nonzero(over, axis=1), self.series.used, _each_minute(cpu, np.mean), _each_minute(cpu, _p95)
        )


def _used(shares: F32) -> F64:
    """Percent, at most 100; NaN stays."""
    return 100.0 * np.minimum(shares.astype(np.float64), 1.0)


def _p95(values: F64) -> np.floating:
    return np.percentile(values, 95.0)


def _p99(values: F64) -> np.floating:
    return np.percentile(values, 99.0)


def _of_all(values: F64, of: Callable[[F64], np.floating]) -> float:
    """Of those that are known; 0 where none is."""
    known = values[~np.isnan(values)]
    return float(of(known)) if len(known) else 0.0


def _each_minute(values: F64, of: Callable[[F64], np.floating]) -> F64:
    """Over the nodes that were there [minutes]; NaN without any."""
    found = [of(row[known]) if (known := ~np.isnan(row)).any() else np.nan for row in values]
    return np.array(found, dtype=np.float64)
