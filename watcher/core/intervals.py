"""Quantiles of confidence intervals.

Pure: no I/O, no clock.
"""

from __future__ import annotations

NORMAL_975 = 1.959963984540054
"""Quantile 0.975 of the normal distribution."""
_STUDENT_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


def student_975(degrees: int) -> float:
    """Return the quantile 0.975 of Student's t distribution with at least one degree of freedom; above 30 of them,
    within 0.0005 of it (Abramowitz and Stegun, 26.7.5)."""
    if degrees <= len(_STUDENT_975):
        return _STUDENT_975[degrees - 1]
    z = NORMAL_975
    return z + (z**3 + z) / (4.0 * degrees) + (5.0 * z**5 + 16.0 * z**3 + 3.0 * z) / (96.0 * degrees**2)
