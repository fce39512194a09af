"""The values that a report is computed from, as the queries returned them.

Grids have one row per step, oldest first. Row i of a grid that begins at `begins` covers the `step` seconds from
`begins + i * step` on. NaN is an absent value.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from watcher.arrays import F64, Bool


@dataclass(frozen=True, slots=True)
class MissingData:
    """Data that the report lacks: what is missing, what the report would show with it, and how to get it."""

    what: str
    shows: str
    cure: str


@dataclass(frozen=True, slots=True)
class QueryUse:
    """What one question cost: its expression, the step in seconds, the number of requests, and of values in the
    responses."""

    purpose: str
    expression: str
    step: int
    requests: int
    values: int


@dataclass(frozen=True, slots=True)
class NodeLoads:
    """Utilization of nodes in percent of capacity [slots, n], at 300 s per slot; the highest value of a slot."""

    nodes: tuple[str, ...]
    begins: int
    cpu: F64
    memory: F64
    sampled_every: int = 300
    """Seconds between values of `cpu`; if longer than a slot, values are repeated."""
    memory_sampled_every: int = 300


@dataclass(frozen=True, slots=True)
class NodeSizes:
    """Capacity and allocatable resources of nodes in the order of NodeLoads [n]; NaN if unknown."""

    cores: F64
    bytes: F64
    allocatable_cores: F64
    allocatable_bytes: F64


@dataclass(frozen=True, slots=True)
class NodeRequests:
    """Sums of the requests of the pods that run at the end of the report, by node [n], in the order of NodeLoads."""

    cores: F64
    bytes: F64


PodKey = tuple[str, str, str]
"""Namespace, name and node of a pod."""


@dataclass(frozen=True, slots=True)
class NodeSample:
    """The nodes, sorted, whose pods were read, of `total` nodes: `hottest` were chosen by their load, the others by a
    hash of their names."""

    nodes: tuple[str, ...]
    hottest: tuple[str, ...]
    total: int

    @property
    def is_complete(self) -> bool:
        return len(self.nodes) == self.total

    @property
    def weight(self) -> float:
        """The number of nodes that each node stands for that was chosen by its hash."""
        chosen = len(self.nodes) - len(self.hottest)
        return (self.total - len(self.hottest)) / chosen if chosen else 1.0


@dataclass(frozen=True, slots=True)
class PodLoads:
    """Cores used by each pod of the sampled nodes [steps, pods]."""

    pods: tuple[PodKey, ...]
    begins: int
    step: int
    cores: F64
    sample: NodeSample


@dataclass(frozen=True, slots=True)
class RecordedPods:
    """The pods of some nodes over the last days: whether each pod existed, cores and bytes that it used
    [steps, pods], and its requests [pods]."""

    sample: NodeSample
    pods: tuple[PodKey, ...]
    owners: tuple[str, ...]
    begins: int
    step: int
    exists: Bool
    cores: F64
    bytes: F64
    requested_cores: F64
    requested_bytes: F64


@dataclass(frozen=True, slots=True)
class ClusterHistory:
    """Everything that was collected. `owners` maps (namespace, pod) to "KIND/NAME"."""

    address: str
    begins: int
    ends: int
    loads: NodeLoads
    sizes: NodeSizes
    requests: NodeRequests | None = None
    pods: PodLoads | None = None
    owners: Mapping[tuple[str, str], str] = field(default_factory=dict)
    recorded: RecordedPods | None = None
    missing: tuple[MissingData, ...] = ()
    remarks: tuple[str, ...] = ()
    queries: tuple[QueryUse, ...] = ()
