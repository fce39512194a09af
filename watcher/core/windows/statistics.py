"""Statistics of a window and the cadence of a series, vectorised over nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from watcher.arrays import F64, I64, Bool

MAX_CADENCE_S = 120.0
SAME_DISTANCE_S = 0.005  # Prometheus aligns scrape times to within 2 ms; smaller differences count as equal
MIN_SAMPLES = 2
COVERAGE = 0.5


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of the first L rows for each window length L: sample `count` (without carried values), mean and
    population deviation, each [W, n]; NaN if a window is empty."""

    count: I64
    mean: F64
    deviation: F64


def window_statistics(values: F64, sampled: Bool, *, lengths: Sequence[int]) -> Statistics:
    """Compute mean and population deviation over the first L rows, for each L of `lengths` (in ascending order).

        mean = sum(x) / n        deviation = sqrt(sum((x - mean)^2) / n)

    unweighted over samples, like `avg_over_time` and `stddev_over_time` of PromQL. The rows between two window ends are
    summed once, in two passes, and merged by Chan's formula, which is numerically stable:

        M2 = M2a + M2b + (mean_b - mean_a)^2 * na * nb / (na + nb)

    `values` [rows, n], newest first, NaN if empty; `sampled` [rows, n] marks the values that count as coverage.
    """
    n = values.shape[1]
    shape = (len(lengths), n)
    count, mean, deviation = np.zeros(shape, dtype=np.int64), np.empty(shape), np.empty(shape)
    total, centre, squares = np.zeros(n), np.zeros(n), np.zeros(n)
    coverage = np.zeros(n, dtype=np.int64)
    start = 0
    with np.errstate(invalid="ignore", divide="ignore"):
        for window, stop in enumerate(lengths):
            part_n, part_mean, part_m2 = _moments(values[start:stop])
            both = total + part_n
            delta = part_mean - centre
            share = np.where(both > 0, part_n / both, 0.0)
            squares = squares + part_m2 + delta * delta * total * share
            centre = centre + delta * share
            total = both
            coverage = coverage + np.count_nonzero(sampled[start:stop], axis=0)
            count[window] = coverage
            mean[window] = np.where(total > 0, centre, np.nan)
            deviation[window] = np.where(total > 0, np.sqrt(squares / total), np.nan)
            start = stop
    return Statistics(count, mean, deviation)


def _moments(values: F64) -> tuple[F64, F64, F64]:
    """Return number, mean and sum of squared distances from the mean of each column; 0 for an empty column."""
    empty = np.isnan(values)
    number = (values.shape[0] - np.count_nonzero(empty, axis=0)).astype(np.float64)
    filled = np.where(empty, 0.0, values)
    mean = np.where(number > 0, filled.sum(axis=0) / number, 0.0)
    filled -= mean
    filled[empty] = 0.0
    return number, mean, np.einsum("ij,ij->j", filled, filled)


def covers(count: I64, *, cadence: F64, seconds: F64) -> Bool:
    """Return whether a window has enough samples: at least half of window / cadence, and at least two; [W, n].
    `count` [W, n], `cadence` in seconds [n], `seconds` [W, 1]."""
    enough = np.asarray(count >= COVERAGE * seconds / cadence, dtype=np.bool_)
    return enough & np.asarray(count >= MIN_SAMPLES, dtype=np.bool_)


def cadences(time: F64, *, resolution: int) -> F64:
    """Return the median distance in seconds of each column's sample times, limited to `resolution` to 120 s; [n].

    `time` [rows, n] in unix seconds, newest first, NaN without a sample. A column with fewer than two samples gets
    `resolution`. Nearly all columns are regular: if the smallest distance makes up more than half of a column's
    distances, it is the median; only the other columns are sorted.
    """
    distance = _distances(time)
    present = np.isfinite(distance)
    number = np.count_nonzero(present, axis=0)
    smallest = distance.min(axis=0, initial=np.inf)
    regular = np.count_nonzero(distance <= smallest + SAME_DISTANCE_S, axis=0) * 2 > number
    cadence = np.where(number > 0, smallest, float(resolution))
    odd = np.flatnonzero(~regular & (number > 0))
    if len(odd):
        ordered = np.sort(distance[:, odd], axis=0)
        columns = np.arange(len(odd))
        low, high = ordered[(number[odd] - 1) // 2, columns], ordered[number[odd] // 2, columns]
        cadence[odd] = (low + high) / 2.0
    return np.clip(cadence, float(resolution), MAX_CADENCE_S)


def _distances(time: F64) -> F64:
    """Return the seconds from each sample to the next newer sample of its column; +inf if either is missing."""
    distance = np.full_like(time, np.inf)
    newer = time[0].copy() if len(time) else np.empty(time.shape[1])
    for row in range(1, len(time)):
        here = time[row]
        np.subtract(newer, here, out=distance[row])
        newer = np.where(np.isnan(here), newer, here)
    distance[np.isnan(distance)] = np.inf
    return distance


def quantile(values: F64, q: float) -> F64:
    """Return the q-quantile of each column, with linear interpolation between the two nearest ranks; NaN if a column is
    empty.

    `values` [rows, n], NaN if empty. Sorting puts NaN last, so the samples come first.
    """
    ordered = np.sort(values, axis=0)
    number = np.count_nonzero(~np.isnan(ordered), axis=0)
    rank = q * np.maximum(number - 1, 0)
    low = np.floor(rank).astype(np.int64)
    high = np.minimum(low + 1, np.maximum(number - 1, 0))
    columns = np.arange(values.shape[1])
    below, above = ordered[low, columns], ordered[high, columns]
    return np.where(number > 0, below + (above - below) * (rank - low), np.nan)
