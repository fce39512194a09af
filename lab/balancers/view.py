"""What a balancer observes, and what it can do.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from watcher.arrays import F64, I64
from watcher.core.kubernetes.pod_resources import CPU, MEMORY

PODS = "pods"
RESOURCES = (CPU, MEMORY, PODS)
"""Order of the columns of `ClusterView.allocatable` and `requested`: millicores, bytes, and the number of pods."""
SYSTEM_CRITICAL = 2_000_000_000
"""Lowest priority of system-cluster-critical and system-node-critical."""
NEVER_EVICTED = ("", "DaemonSet", "Node")
"""Kinds of owners of pods without a controller, of DaemonSets, and of mirror pods."""


@dataclass(frozen=True, slots=True)
class ObservedPod:
    """A running pod. `owner` is KIND/NAME. `requests` and `usage` are by resource in millicores, bytes and other
    integers; usage is a mean of five minutes, None until it is measured. `created` in unix seconds. `prod`: whether
    Koordinator counts it as koord-prod; `unfit`: names of the nodes that its selectors exclude."""

    uid: str
    namespace: str
    name: str
    owner: str = ""
    priority: int = 0
    qos: str = "Burstable"
    created: float = 0.0
    requests: Mapping[str, int] = field(default_factory=dict)
    usage: Mapping[str, int] | None = None
    prod: bool = True
    unfit: frozenset[str] = frozenset()


def is_evictable(pod: ObservedPod) -> bool:
    """Whether the default evictors of descheduler and Koordinator accept the pod: not one of a DaemonSet, no mirror
    pod, no pod without an owner, none with system-critical priority. A trace has no volumes and no
    PodDisruptionBudgets."""
    return pod.owner.partition("/")[0] not in NEVER_EVICTED and pod.priority < SYSTEM_CRITICAL


PodsOfNode = Callable[[int], Sequence[ObservedPod]]
"""The pods of the node with this index, by namespace and name."""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The existing nodes (n, sorted by name) and their pods at `now` (unix seconds).

    `used` and `stalled` [minutes, 2, n] are the newest published minutes of CPU and memory, oldest first, NaN where
    there is no sample: the share of the capacity in use, and the share of the demand that the node could not serve.
    `current()` [2, n] is the usage in cores and bytes: the sum of the pods that are now on the node and the processes
    outside of pods, each as a mean of five minutes. `bounds` [2, n] are forecast bounds in percent, NaN without one.
    `allocatable` and `requested` [n, 3] are in the order of RESOURCES. `taints` [n] counts the PreferNoSchedule taints.
    `last_move` [n] is the time of the last eviction from the node, or of the placement of an evicted pod on it (unix
    seconds, -inf: never), `moves(seconds)` [n] the number of both in the last seconds, at most 48 hours.
    """

    now: float
    names: tuple[str, ...]
    used: F64
    stalled: F64
    current: Callable[[], F64]
    bounds: F64
    allocatable: I64
    requested: I64
    taints: I64
    last_move: F64
    moves: Callable[[float], I64]
    pods: PodsOfNode

    def mean_use(self, minutes: int) -> F64:
        """The mean share in use over the newest minutes [2, n]; NaN for nodes without the newest sample."""
        recent = self.used[-minutes:]
        if not len(recent):
            return np.full((2, len(self.names)), np.nan)
        known = ~np.isnan(recent)
        sums = np.where(known, recent, 0.0).sum(axis=0)
        return np.where(known[-1], sums / np.maximum(known.sum(axis=0), 1), np.nan)


@dataclass(frozen=True, slots=True)
class BalancerActions:
    """`evict`: uids in order. `taints` and `scores` [n] are the number of PreferNoSchedule taints and the annotation
    (-1: none) of each node of the view; None: unchanged."""

    evict: Sequence[str] = ()
    taints: I64 | None = None
    scores: I64 | None = None


class Balancer(Protocol):
    """A balancer with its own state, for one simulation. `interval_s`: whole minutes between two calls. `horizon` of
    the forecasts that it needs, such as "6h"; "" for none. `score_weight`: weight of the plug-in NodeMetadata in
    kube-scheduler."""

    @property
    def interval_s(self) -> float: ...

    @property
    def horizon(self) -> str: ...

    @property
    def score_weight(self) -> int: ...

    def decide(self, view: ClusterView) -> BalancerActions: ...
