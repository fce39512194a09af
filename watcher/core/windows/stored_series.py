"""Stored windows of one metric of one node, as the store returns them."""

from __future__ import annotations

from typing import Protocol

from watcher.arrays import F32, I64
from watcher.model import Operator


class HistoryUnavailable(Exception):
    """The store cannot answer: switched off, damaged, or too busy. `hint` says what the operator can do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class StoredSeries(Protocol):
    """One metric and operator of one node as the store kept it: `time` [k] unix seconds, ascending; `value` [k] in the
    metric's unit, NaN where the window was not known."""

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
