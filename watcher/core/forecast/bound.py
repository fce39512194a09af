"""The upper bound of a node's utilisation over the next hours, and how often it was too low.

The bound at level q is the empirical quantile q of the maxima over all spans of the horizon's length in the history
(7 days). Loads drift, so the share of hours above that quantile is not exactly 1 - q. An adaptive conformal step
corrects the quantile of each node: alpha, the share of spans that may exceed the bound, starts at 1 - q, and once the
outcome of a bound is known,

    alpha := clip(alpha + RATE * ((1 - q) - exceeded), LOWEST, 1)   (Gibbs and Candes, NeurIPS 2021, equation 2)

so the bound rises after it was exceeded, and falls slowly otherwise. The outcome of a bound is known one horizon later.
A negative alpha means that even the highest maximum of the history was exceeded too often: the bound is then above it,
by one step of a code for each 0.01 of alpha. Without this, the coverage of a growing load stays below the level.
A bound is issued every hour. Hours are numbered from the Unix epoch; hour h begins at h * 3600 s.

Bounds from less than three days of history are exceeded more often than they state. They are issued, but not judged:
otherwise, the coverage and the correction after a restart, which goes through the history from its begin, would differ
from those of a process that ran on.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from watcher.arrays import F64, I64, U8
from watcher.core.forecast.maxima import DAY_SLOTS, HOUR_SLOTS, decode

RATE = 0.04
LOWEST = -0.2
_STEPS_BEYOND = 100.0
"""Steps of a code above the highest maximum for an alpha of -1: at most 20 steps, 7.9 % of a node."""
WEEK_HOURS = 168
MATURE_SLOTS = 3 * DAY_SLOTS
"""History from which bounds are judged; half of the kept history, if that is shorter."""
_CODES = 256


def least_history(horizon: int) -> int:
    """Return the slots of history without which there is no bound over `horizon` hours."""
    return max(DAY_SLOTS, 3 * horizon * HOUR_SLOTS)


class Calibration:
    """The correction of each of n nodes for one metric, horizon (in hours) and level (0 to 1), and the bounds issued.
    `history` are the slots that are kept.

    `alpha` [n] is the share of spans that may exceed the next bound. `issued` [hours, n] has the codes of the bounds
    whose outcome was unknown in the last week, row (hour mod hours), 0 if none was issued; `hour` is the newest one.
    Bounds up to the hour `young` [n] are not judged, because their history was too short.
    """

    def __init__(self, nodes: int, *, horizon: int, level: float, history: int = 7 * DAY_SLOTS) -> None:
        self.horizon = horizon
        self.level = level
        self.hour: int | None = None
        self.alpha: F64 = np.full(nodes, 1.0 - level)
        self.issued: U8 = np.zeros((WEEK_HOURS + horizon, nodes), dtype=np.uint8)
        self.young: I64 = np.full(nodes, -1, dtype=np.int64)
        self._least = least_history(horizon) - horizon * HOUR_SLOTS + 1  # spans
        self._mature = max(self._least, min(MATURE_SLOTS, history // 2) - horizon * HOUR_SLOTS + 1)

    def forget(self, column: int) -> None:
        """Reset a node: its column gets another one."""
        self.alpha[column] = 1.0 - self.level
        self.issued[:, column] = 0
        self.young[column] = -1

    def bound(self) -> U8:
        """Return the codes of the newest bounds [n], 0 for nodes without one."""
        newest: U8 = self.issued[0 if self.hour is None else self.hour % len(self.issued)]
        return newest

    def advance(self, spans: U8, hour: int) -> None:
        """Issue the bounds of each hour after the newest one, up to `hour`, and judge those that fall due.

        `spans` [rows, n] has the maxima of all spans of the horizon's length that end before `hour`, oldest first, one
        per slot (`span_maxima`). Hours without spans before them are skipped. A new calibration therefore goes through
        the whole history, as if the bounds had been issued then.
        """
        first = hour - (len(spans) - 1) // HOUR_SLOTS
        if self.hour is not None:
            self._forget_skipped(hour)
            first = max(first, self.hour + 1)
        counts = _counts(spans[: _rows_before(spans, hour, first)])
        for each in range(first, hour + 1):
            end = _rows_before(spans, hour, each)
            if each > first:
                _count(counts, spans[end - HOUR_SLOTS : end])
            self._judge(spans[end - 1], each)
            self.issued[each % len(self.issued)] = self._codes(counts)
            self.young = np.where(counts[:, 1:].sum(axis=1) < self._mature, each, self.young)
            self.hour = each

    def _codes(self, counts: I64) -> U8:
        """Return the bounds for the number of spans per code [n, 256]."""
        codes = quantile_codes(counts, np.minimum(1.0 - self.alpha, 1.0), least=self._least)
        beyond = np.ceil(np.maximum(-self.alpha, 0.0) * _STEPS_BEYOND - 1e-9)
        return np.where(codes > 0, np.minimum(codes + beyond, _CODES - 1), 0).astype(np.uint8)

    def _judge(self, outcome: U8, hour: int) -> None:
        """Correct `alpha` by the bounds whose horizon ends at `hour`."""
        due = self.issued[(hour - self.horizon) % len(self.issued)]
        known = (due > 0) & (outcome > 0) & (hour - self.horizon > self.young)
        step = RATE * ((1.0 - self.level) - (outcome > due))
        self.alpha = np.where(known, np.clip(self.alpha + step, LOWEST, 1.0), self.alpha)

    def _forget_skipped(self, hour: int) -> None:
        """Empty the rows of the hours since the newest bound: they hold bounds of an earlier week."""
        assert self.hour is not None
        skipped = np.arange(self.hour + 1, min(hour, self.hour + len(self.issued)) + 1)
        self.issued[skipped % len(self.issued)] = 0

    def record(self, spans: U8) -> TrackRecord:
        """Compare the bounds issued in the last week with the outcomes; `spans` as in `advance`, up to the newest
        hour."""
        assert self.hour is not None
        hours = np.arange(self.hour - self.horizon - WEEK_HOURS + 1, self.hour - self.horizon + 1)
        rows = len(spans) - 1 - (self.hour - self.horizon - hours) * HOUR_SLOTS
        hours, rows = hours[rows >= 0], rows[rows >= 0]
        judged = np.where(hours[:, None] > self.young, self.issued[hours % len(self.issued)], 0).astype(np.uint8)
        return track_record(judged, spans[rows])


@dataclass(frozen=True, slots=True)
class TrackRecord:
    """How the bounds of n nodes compare with the outcomes: the number of bounds with a known outcome; the share of them
    that the outcome did not exceed; the mean of max(0, outcome - bound) / outcome. Each [n]; NaN without bounds."""

    count: I64
    coverage: F64
    severity: F64


def track_record(bounds: U8, outcomes: U8) -> TrackRecord:
    """Compare codes of bounds with those of outcomes, both [k, n]; a pair with a code of 0 does not count."""
    known = (bounds > 0) & (outcomes > 0)
    count = np.count_nonzero(known, axis=0)
    held = np.count_nonzero(known & (outcomes <= bounds), axis=0)
    exceeded = known & (outcomes > bounds)
    outcome = np.where(exceeded, decode(outcomes), 1.0)
    excess = np.where(exceeded, (outcome - decode(bounds)) / outcome, 0.0).sum(axis=0)
    total = np.where(count > 0, count, np.nan)
    return TrackRecord(count, held / total, excess / total)


def quantile_codes(counts: I64, level: F64, *, least: int) -> U8:
    """Return the smallest code that at least a share `level` [n] of each node's spans does not exceed, from the number
    of spans per code [n, 256]; 0 for nodes with fewer than `least` spans. Spans of code 0 do not count."""
    total = counts[:, 1:].sum(axis=1)
    rank = np.clip(np.ceil(level * total - 1e-9), 1, None)
    below = np.count_nonzero(np.cumsum(counts[:, 1:], axis=1) < rank[:, None], axis=1)
    return np.where(total >= least, below + 1, 0).astype(np.uint8)


def _rows_before(spans: U8, hour: int, earlier: int) -> int:
    """Return the number of spans that end before hour `earlier`, where the last one ends before `hour`."""
    return len(spans) - (hour - earlier) * HOUR_SLOTS


def _counts(spans: U8) -> I64:
    counts = np.zeros((spans.shape[1], _CODES), dtype=np.int64)
    for first in range(0, len(spans), DAY_SLOTS):  # the whole history as int64 would take 8 MB
        _count(counts, spans[first : first + DAY_SLOTS])
    return counts


def _count(counts: I64, spans: U8) -> None:
    """Add the number of spans of each code to `counts` [n, 256]."""
    nodes = spans.shape[1]
    place = spans.astype(np.int64) + np.arange(nodes) * _CODES
    counts += np.bincount(place.ravel(), minlength=nodes * _CODES).reshape(nodes, _CODES)
