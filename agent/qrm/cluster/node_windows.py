"""The load windows of this node from load-watcher, for the adjuster.

Import this module only if a load-watcher is configured: the client and its dependencies need 12 MB of memory.
"""

from __future__ import annotations

from agent.qrm.plugins.adjuster import WindowReading
from agent.state.background_value import BackgroundValue
from agent.state.watcher_clock import WatcherClock
from watcher.client import NodeClient, WatcherError
from watcher.model import METRIC_BY_KEY, Operator

WINDOWS = ("5m", "10m", "15m")
ASK_EVERY_S = 30.0
CPU_NAME = METRIC_BY_KEY["CPU"].name


class WatcherLoadWindows:
    """Average CPU usage of this node over WINDOWS, requested from load-watcher every `interval` seconds."""

    def __init__(self, client: NodeClient, *, interval: float = ASK_EVERY_S) -> None:
        self._client = client
        self._clock = WatcherClock()
        self._load = BackgroundValue(
            "load-watcher's windows", client.refresh, interval=interval, failures=(WatcherError,)
        )

    async def start(self) -> None:
        """Start the requests; does not wait for the first response."""
        await self._load.start()

    async def close(self) -> None:
        """Stop the requests and close the client."""
        await self._load.close()
        await self._client.close()

    def read(self, *, monotonic: float, max_age: float) -> WindowReading:
        """The last response. A window that covers less time than its name states counts as missing."""
        load = self._load.copy
        if load is None:
            why = f"no windows from load-watcher: {self._load.failure or 'no response yet'}"
            return WindowReading(missing=dict.fromkeys(WINDOWS, why))
        if why := self._clock.problem(load):
            return WindowReading(missing=dict.fromkeys(WINDOWS, why))
        age = load.age(monotonic)
        if age > max_age:
            why = self._load.failure or "its metrics source has no newer samples"
            return WindowReading(missing=dict.fromkeys(WINDOWS, f"the newest sample is {age:.0f} s old: {why}"))
        found = {
            window: value
            for (name, _, window), (value, covers) in load.values.items()
            if name == CPU_NAME and covers == window
        }
        why = "load-watcher does not have this window for this node yet"
        return WindowReading(found, age if found else None, {window: why for window in WINDOWS if window not in found})


def node_windows(address: str, node: str, *, token: str | None) -> WatcherLoadWindows:
    """The windows of a node from the load-watcher at `address`."""
    return WatcherLoadWindows(NodeClient(address, node, windows=WINDOWS, operators=(Operator.AVG,), token=token))
