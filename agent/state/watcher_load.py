"""The load of this node from load-watcher, which a background task requests.

The age of the windows is that by the clock of the watcher, so a wrong clock of this node changes nothing. Samples that
are ahead of the clock of the watcher are not used: they would look fresh until that clock has caught up.
"""

from __future__ import annotations

import logging

from agent.state.background_value import BackgroundValue
from watcher.client import NodeClient, NodeLoad, WatcherError
from watcher.core.review.clocks import AHEAD_S, NAMED_S

log = logging.getLogger(__name__)


class WatcherLoad:
    """Requests the windows of this node every `interval` seconds. Closes the client."""

    def __init__(self, client: NodeClient, *, interval: float) -> None:
        self._client = client
        self._load = BackgroundValue(
            "the watcher's windows", client.refresh, interval=interval, failures=(WatcherError,)
        )
        self._known: NodeLoad | None = None
        self._ahead = ""
        self._differs = False

    async def start(self) -> None:
        """Start requesting the windows. Does not wait."""
        await self._load.start()

    async def close(self) -> None:
        """Stop requesting and close the client."""
        await self._load.close()
        await self._client.close()

    def last(self, *, monotonic: float, max_age: float) -> tuple[NodeLoad | None, str]:
        """The last response, None before the first, and why it is not used, "" if it is. Its newest sample may be at
        most `max_age` seconds old."""
        load = self._load.copy
        if load is None:
            return None, f"the watcher returned no windows: {self._load.failure or 'no response yet'}"
        if load is not self._known:
            self._known = load
            self._compare_clocks(load)
        if self._ahead:
            return load, self._ahead
        age = load.age(monotonic)
        if age > max_age:
            why = self._load.failure or "its source has no newer sample"
            newest = f"the watcher's newest sample of {load.node} is {age:.0f} s old"
            return load, f"{newest}, more than {max_age:g} s: {why}"
        return load, ""

    def _compare_clocks(self, load: NodeLoad) -> None:
        """Compare the clocks of the watcher, of its source and of this node; log each difference once."""
        before, self._ahead = self._ahead, ""
        if load.ahead_s > AHEAD_S:
            self._ahead = (
                f"the newest sample of {load.node} is more than {AHEAD_S:g} s ahead of the clock of the watcher: check "
                "the clocks of the watcher and of its source"
            )
        if self._ahead and not before:
            log.warning("ignoring the watcher's windows: %s (%.0f s)", self._ahead, load.ahead_s)
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
