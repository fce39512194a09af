"""Maxima of five minutes, one byte each, and the highest value of each span of consecutive slots.

A code of 0 is a slot without a sample. A code c from 1 to 255 is a utilisation of (c - 1) / 2.54 percent: 0 to 100
percent in steps of 0.39. Encoding rounds up, so that a stored maximum is never below the measured value.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import numpy as np

from watcher.arrays import F64, U8

SLOT_S = 300
HOUR_SLOTS = 3600 // SLOT_S
DAY_SLOTS = 86400 // SLOT_S
_STEPS_PER_PERCENT = 2.54
_ROUNDING = 1e-9
"""Of a step: a value that is a whole number of steps, but for the last bit of its float, is not rounded up."""


def encode(percent: F64) -> U8:
    """Return the codes of utilisations in percent; NaN becomes 0, and values beyond 0 to 100 are clamped."""
    steps = np.ceil(np.clip(percent, 0.0, 100.0) * _STEPS_PER_PERCENT - _ROUNDING) + 1.0
    return np.nan_to_num(steps, nan=0.0).astype(np.uint8)


def decode(codes: U8) -> F64:
    """Return the utilisations of codes in percent; NaN for 0."""
    return np.where(codes > 0, (codes.astype(np.float64) - 1.0) / _STEPS_PER_PERCENT, np.nan)


def span_maxima(maxima: U8, length: int) -> U8:
    """Return the highest code of each `length` consecutive slots, 0 where fewer than half of them have a value.

    `maxima` [slots, n], oldest first; the result [slots - length + 1, n] has no rows if there are fewer slots. The
    maximum of twice as many slots is that of two neighbouring spans, so the cost grows with the logarithm of `length`.
    """
    spans = len(maxima) - length + 1
    if spans < 1:
        return maxima[:0].copy()
    best, width = maxima, 1
    while 2 * width <= length:
        best = np.maximum(best[:-width], best[width:])
        width *= 2
    best = np.maximum(best[:spans], best[length - width : length - width + spans])
    present = maxima > 0
    if not present.all():
        total = np.zeros((len(maxima) + 1, maxima.shape[1]), dtype=np.int32)
        np.cumsum(present, axis=0, out=total[1:])
        best[2 * (total[length:] - total[:-length]) < length] = 0
    return best
