"""Arithmetic that plug-ins share: mean and deviation of a node's load as shares of what it has, and choices that are
seldom made.

Upstream's resourcestats (reference/trimaran.md, 5.1): percentages are taken of allocatable, which is what a scheduler
may fill. Arrays are over n nodes; NaN is "not known".

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
    """Mean and deviation as shares 0 to 1 of the capacity, all four in the same unit.

        mu = clamp((average + requested) / capacity)      sigma = clamp(deviation / capacity)

    Both are 0 where the capacity is 0 or less. A mean that is not known stays NaN; a deviation that is not is 0.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        mu, sigma = (average + requested) / capacity, deviation / capacity
    none = capacity <= 0
    mu, sigma = wherever(none, mu, average * 0.0), wherever(none, sigma, 0.0)
    return np.clip(mu, 0.0, 1.0), np.minimum(np.fmax(sigma, 0.0), 1.0)


def wherever(chosen: Bool, values: F64, others: F64 | float) -> F64:
    """`others` where chosen, else `values`; [n]. For what is so of few nodes or none: np.where takes longer than what
    it chooses from took to compute."""
    return np.where(chosen, others, values) if chosen.any() else values
