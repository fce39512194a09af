"""Statistics of a window and the cadence of a series, vectorised over nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from watcher.arrays import F64, I64, Bool

MAX_CADENCE_S = 120.0
SAME_DISTANCE_S = 0.005  # scrape times are aligned to within 2 ms by Prometheus; below this two distances are equal
MIN_SAMPLES = 2
COVERAGE = 0.5


@dataclass(frozen=True, slots=True)
class Statistics:
    """Of the first L rows for each window length L: sample `count` (carried ones left out), mean and population
    deviation, each [W, n]; NaN where a window is empty."""

    count: I64
    mean: F64
    deviation: F64


def window_statistics(values: F64, sampled: Bool, *, lengths: Sequence[int]) -> Statistics:
    """Mean and population deviation over the first L rows, for each L of `lengths` (ascending).

        mean = sum(x) / n        deviation = sqrt(sum((x - mean)^2) / n)

    unweighted over samples, like `avg_over_time` and `stddev_over_time` (contract 5.1 "Coverage"). The rows between two
    window ends are summed once, in two passes, and merged by Chan's rule, which loses no digits when the parts differ:

        M2 = M2a + M2b + (mean_b - mean_a)^2 * na * nb / (na + nb)

    `values` [rows, n], newest first, NaN where empty; `sampled` [rows, n] is what counts as coverage.
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
    """Number, mean and sum of squared distances from the mean of each column; 0 where a column is empty."""
    empty = np.isnan(values)
    number = (values.shape[0] - np.count_nonzero(empty, axis=0)).astype(np.float64)
    filled = np.where(empty, 0.0, values)
    mean = np.where(number > 0, filled.sum(axis=0) / number, 0.0)
    filled -= mean
    filled[empty] = 0.0
    return number, mean, np.einsum("ij,ij->j", filled, filled)


def covers(count: I64, *, cadence: F64, seconds: F64) -> Bool:
    """Whether a window counts: at least half of window / cadence samples, and never fewer than two (contract 5.1).
    `count` [W, n], `cadence` [n], `seconds` [W, 1]."""
    enough = np.asarray(count >= COVERAGE * seconds / cadence, dtype=np.bool_)
    return enough & np.asarray(count >= MIN_SAMPLES, dtype=np.bool_)


def cadences(time: F64, *, resolution: int) -> F64:
    """The median distance of each column's source times, between `resolution` and 120 s (contract 5.1 "Coverage").

    `time` [rows, n], newest first, NaN where there is no sample. A column with fewer than two samples gets
    `resolution`. Nearly all columns are regular, so a column whose smallest distance makes up more than half of all
    its distances is answered at once; only the others are sorted.
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
    """Seconds from each sample to the next newer one of its column; +inf where either is missing."""
    distance = np.full_like(time, np.inf)
    newer = time[0].copy() if len(time) else np.empty(time.shape[1])
    for row in range(1, len(time)):
        here = time[row]
        np.subtract(newer, here, out=distance[row])
        newer = np.where(np.isnan(here), newer, here)
    distance[np.isnan(distance)] = np.inf
    return distance


def quantile(values: F64, q: float) -> F64:
    """The q-quantile of each column, linear interpolation between the two nearest ranks; NaN where a column is empty.

    `values` [rows, n] with NaN where empty. Sorting puts NaN last, so the first count entries are the samples.
    """
    ordered = np.sort(values, axis=0)
    number = np.count_nonzero(~np.isnan(ordered), axis=0)
    rank = q * np.maximum(number - 1, 0)
    low = np.floor(rank).astype(np.int64)
    high = np.minimum(low + 1, np.maximum(number - 1, 0))
    columns = np.arange(values.shape[1])
    below, above = ordered[low, columns], ordered[high, columns]
    return np.where(number > 0, below + (above - below) * (rank - low), np.nan)
