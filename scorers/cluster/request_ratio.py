"""The ratio of the requests of pods to the measured usage of their nodes."""

from __future__ import annotations

import numpy as np

from scorers.cluster.columns import LOADS
from scorers.cluster.table import ClusterTable


def requests_to_usage(table: ClusterTable) -> dict[str, float]:
    """Return requests divided by usage, by resource, of all nodes with known load together. The usage includes
    processes that belong to no pod. A resource without measured usage is left out."""
    found: dict[str, float] = {}
    for resource, kind in LOADS.items():
        usage = table.load.share(kind) * table.capacity.column(resource)
        measured = table.known & ~np.isnan(usage)
        if (used := float(usage[measured].sum())) > 0:
            found[resource] = float(table.requested.column(resource)[measured].sum()) / used
    return found
