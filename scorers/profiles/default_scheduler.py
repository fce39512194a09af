"""Scores of kube-scheduler's own resource plug-ins for n nodes at once.

The load-aware plug-ins use them as fallback when most nodes have no load data, and reports compare rankings with them.

The formulas are those of k8s.io/kubernetes 1.26 to 1.34, pkg/scheduler/framework/plugins/noderesources:
`least_allocated.go`, `most_allocated.go`, `balanced_allocation.go`. `requested` and `allocatable` are [resources, n],
integers of the same unit; `requested` includes the pod to place. For the first two, kube-scheduler counts a container
without a CPU or memory request as 100m and 200Mi (`resources.counted_requests_of`), for the balance as zero. A resource
that a node does not have is skipped for that node. Scores are integers 0 to 100, rounded down.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scorers.cluster.pods import PodInfo
from scorers.cluster.table import ClusterTable
from watcher.arrays import I64
from watcher.core.kubernetes.pod_resources import CPU, MEMORY

MOST = 100
RESOURCES = (CPU, MEMORY)


def requested_and_allocatable(pod: PodInfo, table: ClusterTable, rows: I64, *, counted: bool) -> tuple[I64, I64]:
    """Return requests including the pod, and allocatable, of CPU (millicores) and memory (bytes) [2, n] for the nodes
    in these rows. `counted`: use kube-scheduler's default requests for containers without any."""
    of_pods, of_pod = (table.counted, pod.counted_requests) if counted else (table.requested, pod.requests)
    requested = np.stack([of_pods.column(each)[rows] + of_pod.get(each, 0) for each in RESOURCES])
    return requested, np.stack([table.allocatable.column(each)[rows] for each in RESOURCES])


def default_resource_scores(pod: PodInfo, table: ClusterTable, rows: I64) -> I64:
    """Return the sum of kube-scheduler's resource scores with default plug-ins and weights [n], 0 to 200."""
    scores = least_allocated(*requested_and_allocatable(pod, table, rows, counted=True))
    if any(pod.requests.get(each, 0) for each in RESOURCES):
        scores = scores + balanced_allocation(*requested_and_allocatable(pod, table, rows, counted=False))
    return scores


def least_allocated(requested: I64, allocatable: I64, weights: Sequence[int] | None = None) -> I64:
    """NodeResourcesFit with its default strategy LeastAllocated [n]: weighted mean of (allocatable - requested) * 100 /
    allocatable, 0 if requested exceeds allocatable."""
    left = np.maximum(allocatable - requested, 0)
    return _mean(left * MOST // np.maximum(allocatable, 1), allocatable, weights)


def most_allocated(requested: I64, allocatable: I64, weights: Sequence[int] | None = None) -> I64:
    """NodeResourcesFit with strategy MostAllocated [n]: weighted mean of requested * 100 / allocatable, 100 if
    requested exceeds allocatable."""
    return _mean(np.minimum(requested, allocatable) * MOST // np.maximum(allocatable, 1), allocatable, weights)


def balanced_allocation(requested: I64, allocatable: I64) -> I64:
    """NodeResourcesBalancedAllocation [n]: (1 - standard deviation of the shares requested / allocatable, each at most
    1) * 100. A node with one resource scores 100. (kube-scheduler does not apply it to pods without requests.)"""
    there = allocatable > 0
    count = np.maximum(there.sum(axis=0), 1)
    shares = np.where(there, np.minimum(requested / np.maximum(allocatable, 1), 1.0), 0.0)
    mean = shares.sum(axis=0) / count
    variance = np.where(there, (shares - mean) ** 2, 0.0).sum(axis=0) / count
    scores: I64 = np.trunc((1.0 - np.sqrt(variance)) * MOST).astype(np.int64)
    return scores


def _mean(scores: I64, allocatable: I64, weights: Sequence[int] | None) -> I64:
    given = np.array([1] * len(scores) if weights is None else weights, dtype=np.int64)
    counted = np.where(allocatable > 0, given[:, None], 0)
    mean: I64 = (counted * scores).sum(axis=0) // np.maximum(counted.sum(axis=0), 1)
    return mean
