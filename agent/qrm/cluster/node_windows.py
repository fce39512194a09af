"""The load windows of this node from load-watcher, for the adjuster.

Import this module only if a load-watcher is configured: the client and its dependencies need 12 MB of memory.
"""

from __future__ import annotations

from agent.qrm.plugins.adjuster import WindowReading
from agent.state.watcher_load import WatcherLoad
from watcher.client import NodeClient
from watcher.model import METRIC_BY_KEY, Operator

WINDOWS = ("5m", "10m", "15m")
ASK_EVERY_S = 30.0
CPU_NAME = METRIC_BY_KEY["CPU"].name


class WatcherLoadWindows(WatcherLoad):
    """Average CPU usage of this node over WINDOWS, requested from load-watcher every `interval` seconds."""

    def __init__(self, client: NodeClient, *, interval: float = ASK_EVERY_S) -> None:
        super().__init__(client, interval=interval)

    def read(self, *, monotonic: float, max_age: float) -> WindowReading:
        """The last response. A window that covers less time than its name states counts as missing."""
        load, why = self.last(monotonic=monotonic, max_age=max_age)
        if load is None or why:
            return WindowReading(missing=dict.fromkeys(WINDOWS, why))
        found = {
            window: value
            for (name, _, window), (value, covers) in load.values.items()
            if name == CPU_NAME and covers == window
        }
        why = "load-watcher does not have this window for this node yet"
        age = load.age(monotonic) if found else None
        return WindowReading(found, age, {window: why for window in WINDOWS if window not in found})


def node_windows(address: str, node: str, *, token: str | None) -> WatcherLoadWindows:
    """The windows of a node from the load-watcher at `address`."""
    return WatcherLoadWindows(NodeClient(address, node, windows=WINDOWS, operators=(Operator.AVG,), token=token))
