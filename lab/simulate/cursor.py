"""Current values of step series as time advances: of nodes, and of pods by their age.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import numpy as np

from lab.simulate.trace_columns import Steps
from watcher.arrays import F64, I64


class Cursor:
    """The current values of `steps`; `cores` and `bytes` [series] are the values of `base` (cores, bytes) before the
    first step of a series. A series does not advance until `start` sets its time zero."""

    def __init__(self, steps: Steps, base: tuple[F64, F64]) -> None:
        self._steps = steps
        count = len(steps.first) - 1
        self.cores, self.bytes = (values.astype(np.float64).copy() for values in base)
        self._zero: F64 = np.zeros(count)
        self._next: I64 = steps.first[:-1].copy()
        self._due: F64 = np.full(count, np.inf)

    def start(self, series: int, *, zero: float) -> None:
        """Start a series: its times are seconds after `zero` (unix seconds)."""
        self._zero[series] = zero
        self._look(np.array([series]))

    def start_all(self, *, zero: float) -> None:
        """Start all series with the same time zero."""
        self._zero[:] = zero
        self._look(np.arange(len(self._zero)))

    def rewind(self, series: int) -> None:
        """Begin a series again at its next start; its values remain until its first step."""
        self._next[series] = self._steps.first[series]

    def stop(self, series: int) -> None:
        """Stop a series; its values remain."""
        self._due[series] = np.inf

    def delay(self, series: I64, seconds: F64) -> None:
        """Shift the remaining steps of these series [n] by `seconds` [n]."""
        self._zero[series] += seconds
        self._due[series] += seconds

    def advance(self, now: float) -> None:
        """Apply all steps up to and including `now` (unix seconds)."""
        while len(due := np.flatnonzero(self._due <= now)):
            at = self._next[due]
            self.cores[due], self.bytes[due] = self._steps.cores[at], self._steps.bytes[at]
            self._next[due] = at + 1
            self._look(due)

    def _look(self, series: I64) -> None:
        """Compute when the next value of these series is due."""
        at = self._next[series]
        there = at < self._steps.first[series + 1]
        due = np.full(len(series), np.inf)
        due[there] = self._zero[series[there]] + self._steps.time[at[there]]
        self._due[series] = due
