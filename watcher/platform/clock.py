"""The wall clock and the monotonic clock that a tick uses; tests pass their own."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall clock (unix seconds) and monotonic clock (seconds)."""

    def now(self) -> float: ...

    def monotonic(self) -> float: ...


class SystemClock:
    """The wall clock and the monotonic clock of the machine."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()
