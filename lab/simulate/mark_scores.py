"""Scores of kube-scheduler's plug-ins that read marks on nodes, for n feasible nodes.

TaintToleration is in k8s.io/kubernetes 1.36 (pkg/scheduler/framework/plugins/tainttoleration and helper), NodeMetadata
in sigs.k8s.io/scheduler-plugins (pkg/nodemetadata).

Pure: no I/O, no clock.
"""

from __future__ import annotations

import numpy as np

from watcher.arrays import I64

TAINT_WEIGHT = 3
"""Default weight of TaintToleration."""
LEAST, MOST = 1, 100


def taint_toleration(taints: I64) -> I64:
    """Scores [n] for the number of PreferNoSchedule taints that the pod does not tolerate [n]: 100 minus the share of
    the highest number."""
    most = int(taints.max(initial=0))
    if most == 0:
        return np.full(len(taints), MOST, dtype=np.int64)
    scores: I64 = MOST - MOST * taints // most
    return scores


def node_metadata(values: I64) -> I64:
    """Scores [n] for the numbers in the annotation [n], -1 for nodes without one: the range of the values as 1 to 100.
    A node without the annotation counts as 0."""
    found = np.maximum(values, 0)
    if not len(found) or found.min() == found.max():
        return np.full(len(found), LEAST, dtype=np.int64)
    scores: I64 = (found - found.min()) * (MOST - LEAST) // (found.max() - found.min()) + LEAST
    return scores
