"""What kube-scheduler's own plug-ins score, over n nodes at once: what ours go by where there is no load, and what a
ranking by load is compared with.

The formulas of k8s.io/kubernetes 1.26 to 1.34, pkg/scheduler/framework/plugins/noderesources: `least_allocated.go`,
`most_allocated.go`, `balanced_allocation.go`. `requested` and `allocatable` are [resources, n], whole numbers of the
same unit; what is requested includes the pod that is placed. For the first two kube-scheduler counts a container that
says nothing of CPU or memory with 100m and 200Mi (`resources.counted_requests_of`), for the balance with nothing. A
resource that a node does not have is left out for that node. Scores are whole numbers 0 to 100, rounded down.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from scorers.cluster.pods import PodInfo
from scorers.cluster.resources import CPU, MEMORY
from scorers.cluster.table import Table

I64 = npt.NDArray[np.int64]

MOST = 100
RESOURCES = (CPU, MEMORY)


def requested_and_allocatable(pod: PodInfo, table: Table, rows: I64, *, counted: bool) -> tuple[I64, I64]:
    """CPU and memory [2, n] of the nodes in these rows: requests with the pod, and allocatable. `counted` says whether
    a container that asks for nothing counts."""
    of_pods, of_pod = (table.counted, pod.counted_requests) if counted else (table.requested, pod.requests)
    requested = np.stack([of_pods.column(each)[rows] + of_pod.get(each, 0) for each in RESOURCES])
    return requested, np.stack([table.allocatable.column(each)[rows] for each in RESOURCES])


def as_it_comes(pod: PodInfo, table: Table, rows: I64) -> I64:
    """What those of its plug-ins that look at resources score together, with the weights that they have [n]."""
    scores = least_allocated(*requested_and_allocatable(pod, table, rows, counted=True))
    if any(pod.requests.get(each, 0) for each in RESOURCES):
        scores = scores + balanced_allocation(*requested_and_allocatable(pod, table, rows, counted=False))
    return scores


def least_allocated(requested: I64, allocatable: I64, weights: Sequence[int] | None = None) -> I64:
    """NodeResourcesFit as it comes [n]: the mean by weights of (allocatable - requested) * 100 / allocatable, 0 where
    more is requested than there is."""
    left = np.maximum(allocatable - requested, 0)
    return _mean(left * MOST // np.maximum(allocatable, 1), allocatable, weights)


def most_allocated(requested: I64, allocatable: I64, weights: Sequence[int] | None = None) -> I64:
    """NodeResourcesFit with the strategy MostAllocated [n]: the mean by weights of requested * 100 / allocatable, 100
    where more is requested than there is."""
    return _mean(np.minimum(requested, allocatable) * MOST // np.maximum(allocatable, 1), allocatable, weights)


def balanced_allocation(requested: I64, allocatable: I64) -> I64:
    """NodeResourcesBalancedAllocation [n]: (1 - deviation of the shares requested / allocatable, 1 at most) * 100. A
    node with one resource is as balanced as can be. (Pods that request nothing are not scored by it.)"""
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
