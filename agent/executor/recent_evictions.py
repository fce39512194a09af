"""Evictions of the last minutes, so counted that nobody who sets the machine's clock makes them more or fewer.

The audit has them by wall time. A process notes for each how old it is by a clock that only goes forward; what that
was before the process began is taken from the wall clock once, and one that seems to be of the future is taken for one
of just now. So a clock that was set back while no agent ran blocks evictions for one `window`, and one that was set
ahead forgets at most what was evicted before it.

Blocks.
"""

from __future__ import annotations

from collections.abc import Callable

from agent.audit.log import Audit
from agent.decision.eviction_limits import Eviction


class RecentEvictions:
    """Those of the last `window` seconds. Calls must not overlap."""

    def __init__(
        self, audit: Audit, *, window: float, clock: Callable[[], float], monotonic: Callable[[], float]
    ) -> None:
        self._audit = audit
        self._window = window
        self._clock = clock
        self._monotonic = monotonic
        self._at: dict[int, float] | None = None
        """When each was done, by the number of its deed, of all after `_over`."""
        self._over = 0
        """The number of a deed up to which all are older than the window."""

    def note(self, number: int) -> None:
        """The eviction of this deed is being done now."""
        if self._at is not None:
            self._at[number] = self._monotonic()

    def past(self) -> tuple[Eviction, ...]:
        """Oldest first. Raises AuditError."""
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
