"""The watcher's windows of this node, for the adjuster.

To be imported where a watcher is named, and nowhere else: what the client stands on is 12 MB of memory on every node.
"""

from __future__ import annotations

from agent.qrm.plugins.adjuster import Seen
from agent.state.background_value import Kept
from watcher.client import NodeClient, WatcherError
from watcher.model import METRIC_BY_KEY, Operator

WINDOWS = ("5m", "10m", "15m")
ASK_EVERY_S = 30.0
CPU_NAME = METRIC_BY_KEY["CPU"].name


class NodeWindows:
    """The watcher's means of this node's CPU over WINDOWS, asked for every `interval` seconds."""

    def __init__(self, client: NodeClient, *, interval: float = ASK_EVERY_S) -> None:
        self._client = client
        self._load = Kept("the watcher's windows", client.refresh, interval=interval, failures=(WatcherError,))

    async def start(self) -> None:
        """Begin to ask; does not wait for the answer."""
        await self._load.start()

    async def close(self) -> None:
        """Stop asking."""
        await self._load.close()
        await self._client.close()

    def read(self, *, monotonic: float, max_age: float) -> Seen:
        """What was told last. A window that covers less than its name says is missing."""
        load = self._load.copy
        if load is None:
            why = f"the watcher has told no windows: {self._load.failure or 'it has not answered yet'}"
            return Seen(missing=dict.fromkeys(WINDOWS, why))
        age = load.age(monotonic)
        if age > max_age:
            why = self._load.failure or "its source brings nothing newer"
            return Seen(missing=dict.fromkeys(WINDOWS, f"the newest sample is {age:.0f} s old: {why}"))
        found = {
            window: value
            for (name, _, window), (value, covers) in load.values.items()
            if name == CPU_NAME and covers == window
        }
        why = "the watcher has no such window of this node yet"
        return Seen(found, age if found else None, {window: why for window in WINDOWS if window not in found})


def node_windows(address: str, node: str, *, token: str | None) -> NodeWindows:
    """Those of the watcher at this address."""
    return NodeWindows(NodeClient(address, node, windows=WINDOWS, operators=(Operator.AVG,), token=token))
