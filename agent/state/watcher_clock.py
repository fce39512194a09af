"""The clocks of the watcher and of this node, compared with each response of the watcher.

The age of the windows is that by the clock of the watcher, so a wrong clock of this node changes nothing. Samples that
are ahead of the clock of the watcher are not used: they would look fresh until that clock has caught up.
"""

from __future__ import annotations

import logging

from watcher.client import NodeLoad
from watcher.core.review.clocks import AHEAD_S, NAMED_S

log = logging.getLogger(__name__)


class WatcherClock:
    """Compares the clocks with each response, and logs each difference once."""

    def __init__(self) -> None:
        self._known: NodeLoad | None = None
        self._problem = ""
        self._differs = False

    def problem(self, load: NodeLoad) -> str:
        """Why the windows are not used; "" if they are."""
        if load is self._known:
            return self._problem
        self._known, before = load, self._problem
        self._problem = ""
        if load.ahead_s > AHEAD_S:
            self._problem = (
                f"the newest sample of {load.node} is more than {AHEAD_S:g} s ahead of the clock of the watcher: check "
                "the clocks of the watcher and of its source"
            )
        if self._problem and not before:
            log.warning("ignoring the watcher's windows: %s (%.0f s)", self._problem, load.ahead_s)
        # The difference ends at half of its bound, so that it is logged once.
        differs = abs(load.clock_offset_s) > (NAMED_S / 2 if self._differs else NAMED_S)
        if differs and not self._differs:
            side = "behind" if load.clock_offset_s > 0 else "ahead of"
            log.warning(
                "the clock of this node is %.0f s %s the clock of the watcher: check time synchronization on both",
                abs(load.clock_offset_s),
                side,
            )
        self._differs = differs
        return self._problem
