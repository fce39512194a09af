"""What the two risk plug-ins share: mean and deviation of a node's load as shares of what it has.

Upstream's resourcestats (reference/trimaran.md, 5.1): percentages are taken of allocatable, which is what a scheduler
may fill. Arrays are over n nodes; NaN is "not known".

Pure: no I/O, no clock.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from scorers.resources import CPU, MEMORY
from watcher.model import MetricType

F64 = npt.NDArray[np.float64]

LOADS = {CPU: MetricType.CPU, MEMORY: MetricType.MEMORY}


def mu_sigma(average: F64, deviation: F64, requested: F64 | float, capacity: F64) -> tuple[F64, F64]:
    """Mean and deviation as shares 0 to 1 of the capacity, all four in the same unit.

        mu = clamp((average + requested) / capacity)      sigma = clamp(deviation / capacity)

    Both are 0 where the capacity is 0 or less. A mean that is not known stays NaN; a deviation that is not is 0.
    """
    there = capacity > 0
    with np.errstate(divide="ignore", invalid="ignore"):
        mu = np.where(there, np.clip((average + requested) / capacity, 0.0, 1.0), average * 0.0)
        sigma = np.where(there, np.clip(deviation / capacity, 0.0, 1.0), 0.0)
    return mu, np.fmax(sigma, 0.0)
