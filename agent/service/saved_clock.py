"""The clocks at the time when state was saved, so that a process that starts later detects a step of the wall clock.

Until the machine restarts, all processes have the same monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from agent.decision.analysis import AnalyzerState
from agent.decision.ledger import Ledger

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


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


def latest(memory: AnalyzerState, ledger: Ledger, saved_at: float | None) -> float:
    """The latest time in the saved state, in unix seconds; 0 without one. Pure."""
    times: Iterable[float | None] = (
        saved_at,
        *(time for rule in memory.rules.values() for time in (rule.since, rule.last_triggered)),
        *(each.since for each in ledger),
    )
    return max((time for time in times if time is not None), default=0.0)
