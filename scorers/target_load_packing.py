"""TargetLoadPacking: fill nodes up to a target utilisation, and spread beyond it (seed 004; reference/trimaran.md, 4).

Here is the curve alone; the plug-in around it comes with the extender.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

DEFAULT_TARGET = 40.0  # percent, upstream's default


def packing_scores(predicted: npt.NDArray[np.float64], *, target: float) -> npt.NDArray[np.float64]:
    """Scores 0 to 100 [n] of nodes whose CPU utilisation would be `predicted` [n] percent with the pod on them.

        U <= T:        (100 - T) * U / T + T
        T < U <= 100:  T * (100 - U) / (100 - T)
        U > 100:       0

    rounded half away from zero, as Go does. NaN, a node without metrics, scores 0. `target` is in percent, above 0 and
    below 100.
    """
    rising = (100.0 - target) * predicted / target + target
    falling = target * (100.0 - predicted) / (100.0 - target)
    scores = np.where(predicted > target, falling, rising)
    scores = np.where(np.isnan(predicted) | (predicted > 100.0), 0.0, scores)
    rounded: npt.NDArray[np.float64] = np.floor(scores + 0.5)  # no score is negative
    return rounded
