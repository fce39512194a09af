"""Stored windows of one metric of one node."""

from __future__ import annotations

from dataclasses import dataclass

from watcher.arrays import F32, I64
from watcher.model import Operator


@dataclass(frozen=True, slots=True)
class StoredSeries:
    """One metric and operator of one node: `time` [k] in unix seconds, ascending, and `value` [k] in the metric's unit,
    NaN where unknown. Values older than the current hour have a relative error of up to 1e-6."""

    metric: str
    operator: Operator
    window: str
    time: I64
    value: F32
