"""Stored windows of one metric of one node, as the store returns them."""

from __future__ import annotations

from typing import Protocol

from watcher.arrays import F32, I64
from watcher.model import Operator


class HistoryUnavailable(Exception):
    """The store cannot be read: disabled, damaged, or too busy. `hint` describes what the operator can do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class StoredSeriesLike(Protocol):
    """One stored metric and operator of one node: `time` [k] in unix seconds, ascending; `value` [k] in the metric's
    unit, NaN if the window has no value."""

    @property
    def metric(self) -> str: ...
    @property
    def operator(self) -> Operator: ...
    @property
    def window(self) -> str: ...
    @property
    def time(self) -> I64: ...
    @property
    def value(self) -> F32: ...
