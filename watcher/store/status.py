"""What the store reports about itself, and its log of failures."""

from __future__ import annotations

import logging
from dataclasses import dataclass

logger = logging.getLogger(__name__)


SILENCE_SECONDS = 30.0
"""So long a piece of work that is not done is trouble: a disk that hangs, or a server that stands still."""


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """How the store is doing. `since`: when it stopped doing well (unix seconds); `last_saved`: `end` of the newest
    stored tick; `queued`: ticks that wait; `dropped`: window records given up for good; `lost_decisions`: those; and
    `size_bytes`: of a file and its log, or of this watcher's samples, windows and decisions on a server."""

    ok: bool
    error: str
    since: float | None
    last_saved: float | None
    queued: int
    dropped: int
    lost_decisions: int
    size_bytes: int


class _Trouble:
    """Work that fails now and then: its beginning and its end are logged once each, however often it is tried."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.error = ""
        self.since: float | None = None

    def begin(self, error: str, *, now: float) -> None:
        """It failed."""
        self.error = error  # before `since`: whoever sees that there is trouble, in another thread, sees which
        if self.since is None:
            self.since = now
            logger.error("%s fails: %s", self._what, error)

    def end(self, *, now: float) -> None:
        """It worked."""
        if self.since is not None:
            logger.info("%s works again after %.0f s", self._what, now - self.since)
        self.since = None
        self.error = ""
