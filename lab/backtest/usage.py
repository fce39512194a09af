"""The usage of VMs or nodes in slots of 300 seconds.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from watcher.arrays import F64, I64
from watcher.core.forecast.maxima import SLOT_S

MOST_DAYS = 366
MOST_VALUES = 20_000_000
"""Values of a grid, 8 bytes each: 2,300 nodes over 30 days."""


class BacktestError(Exception):
    """The backtest cannot run; `hint` is advice for the user."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class UsageGrid:
    """The usage of n VMs or nodes: `usage` [slots, n], 0 where the trace has no value; `present` [n] is the
    share of slots with a value, `provisioned` [n] the size in the same unit. VMs with the same `group` [n] can share a
    machine. `are_machines` states that the trace has nodes instead of VMs."""

    names: tuple[str, ...]
    usage: F64
    present: F64
    provisioned: F64
    group: I64
    are_machines: bool = False

    @property
    def capacity(self) -> F64:
        """The provisioned size [n], and at least the highest use."""
        highest: F64 = np.maximum(self.provisioned, self.usage.max(axis=0))
        return highest


def check_size(slots: int, series: int, *, where: str, hint: str) -> None:
    """Raise BacktestError if a grid of this size needs too much memory."""
    if slots * SLOT_S > MOST_DAYS * 86400:
        raise BacktestError(f"{where}: {slots * SLOT_S / 86400:,.0f} days, at most {MOST_DAYS} are possible", hint)
    if slots * series > MOST_VALUES:
        raise BacktestError(
            f"{where}: {series:,} series of {slots:,} slots are {slots * series:,} values, "
            f"at most {MOST_VALUES:,} are possible",
            hint,
        )
