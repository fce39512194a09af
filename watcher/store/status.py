"""Status of the store, and the log of its failures."""

from __future__ import annotations

import logging
from dataclasses import dataclass

logger = logging.getLogger(__name__)


STALLED_SECONDS = 30.0
"""A write that takes longer than this is reported as a failure: the disk hangs or the server does not respond."""


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """State of the store. `since`: begin of the current failure (unix seconds); `last_saved`: `end` of the newest
    stored tick (unix seconds); `queued`: ticks to be written; `dropped`: window records and `lost_decisions`: decisions
    that were dropped; `size_bytes`: of a file and its log, or of this watcher's rows on a server."""

    ok: bool
    error: str
    since: float | None
    last_saved: float | None
    queued: int
    dropped: int
    lost_decisions: int
    size_bytes: int


class FailureLog:
    """A repeated operation that may fail: logs the first failure and the recovery once each."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.error = ""
        self.since: float | None = None

    def begin(self, error: str, *, now: float) -> None:
        """Record a failure; `now` in unix seconds."""
        self.error = error  # before `since`: another thread that reads `since` must also see the error
        if self.since is None:
            self.since = now
            logger.error("%s fails: %s", self._what, error)

    def end(self, *, now: float) -> None:
        """Record a success; `now` in unix seconds."""
        if self.since is not None:
            logger.info("%s works again after %.0f s", self._what, now - self.since)
        self.since = None
        self.error = ""
