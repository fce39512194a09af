"""Arithmetic shared by plug-ins: mean and deviation of a node's load as shares of its capacity.

As in upstream's resourcestats, percentages refer to allocatable. Arrays are over n nodes; NaN means unknown.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from scorers.cluster.resources import CPU, MEMORY
from watcher.model import MetricType

F64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

LOADS = {CPU: MetricType.CPU, MEMORY: MetricType.MEMORY}


def mu_sigma(average: F64, deviation: F64, requested: F64 | float, capacity: F64) -> tuple[F64, F64]:
    """Return mean and deviation as shares 0 to 1 of the capacity; all four arguments have the same unit.

        mu = clamp((average + requested) / capacity)      sigma = clamp(deviation / capacity)

    Both are 0 if the capacity is 0 or less. An unknown mean stays NaN; an unknown deviation is 0.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        mu, sigma = (average + requested) / capacity, deviation / capacity
    none = capacity <= 0
    mu, sigma = where_rare(none, mu, average * 0.0), where_rare(none, sigma, 0.0)
    return np.clip(mu, 0.0, 1.0), np.minimum(np.fmax(sigma, 0.0), 1.0)


def where_rare(chosen: Bool, values: F64, others: F64 | float) -> F64:
    """Return `others` where `chosen`, otherwise `values` [n]. Faster than np.where if `chosen` is usually all False."""
    return np.where(chosen, others, values) if chosen.any() else values
