"""Counts the evictions of the last minutes independently of changes of the wall clock.

The audit file records evictions with wall time. A running process tracks the age of each one with the monotonic clock.
For evictions before its start, it computes the age from the wall clock once; an eviction in the future counts as
current. So if the clock was set back while no agent ran, evictions are blocked for at most one `window`; if it was set
forward, earlier evictions may count as older than they are.

All methods block.
"""

from __future__ import annotations

from collections.abc import Callable

from agent.audit.log import Audit
from agent.decision.eviction_limits import EvictionRecord


class RecentEvictions:
    """The evictions of the last `window` seconds. Calls must not overlap."""

    def __init__(
        self, audit: Audit, *, window: float, clock: Callable[[], float], monotonic: Callable[[], float]
    ) -> None:
        self._audit = audit
        self._window = window
        self._clock = clock
        self._monotonic = monotonic
        self._at: dict[int, float] | None = None
        """Monotonic time in seconds of each eviction after `_over`, by id of its audit entry."""
        self._over = 0
        """Id of an audit entry; all evictions up to it are older than the window."""

    def note(self, number: int) -> None:
        """Record that the eviction with this audit entry id is being carried out now."""
        if self._at is not None:
            self._at[number] = self._monotonic()

    def past(self) -> tuple[EvictionRecord, ...]:
        """The evictions within the window, oldest first. Raises AuditError."""
        now, wall, known = self._monotonic(), self._clock(), self._at
        found = self._audit.evictions(after=self._over)
        at = {
            number: now - max(0.0, wall - each.time) if known is None else known.get(number, now)
            for number, each in found.items()
        }
        late = [number for number in at if now - at[number] <= self._window]
        self._over = min(late) - 1 if late else max(at, default=self._over)
        self._at = {number: time for number, time in at.items() if number > self._over}
        return tuple(found[number] for number in late)
