"""The clocks of the agent, and what is saved of them, so that a process that starts later detects a step of the wall
clock.

Until the machine restarts, all processes have the same monotonic clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Clocks:
    """Wall clock (unix seconds) for recorded times, and monotonic clock (seconds) for intervals and timeouts. `boot`
    identifies the start of the machine; "" if unknown."""

    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    boot: str = ""

    def state(self) -> SavedClock:
        """The clocks as they are saved."""
        return SavedClock(self.boot, float(round(self.wall() - self.monotonic())))


@dataclass(frozen=True, slots=True)
class SavedClock:
    """`offset` is the wall clock minus the monotonic clock in whole seconds, `boot` identifies the start of the
    machine; "" if unknown."""

    boot: str
    offset: float

    def jump(self, now: SavedClock) -> float | None:
        """Seconds by which the wall clock was set ahead since (negative: back); None if the machine has restarted."""
        return now.offset - self.offset if self.boot and self.boot == now.boot else None


def boot_id() -> str:
    """Identifier of the start of this machine; "" if it cannot be read."""
    try:
        return BOOT_ID.read_text("ascii").strip()
    except (OSError, ValueError):
        return ""
