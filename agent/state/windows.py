"""The watcher's windows of this node as metrics: window_cpu_avg_5m, window_memory_std_15m, …

They are for rules that want load over minutes. No gap is computed from them: they are of another place and time than
what is read here, and protection must not hang on the watcher. A watcher that is gone, slow or stale takes nothing but
these metrics away, and they say so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from agent.state.background_value import Kept
from agent.state.readings import Readings
from watcher.client import NodeLoad, WatcherError
from watcher.model import METRIC_BY_NAME, Operator

WINDOWS = ("5m", "10m", "15m")
OPERATORS = (Operator.AVG, Operator.STD)
INTERVAL_S = 30.0
YOUNG_S = 180.0
"""Three of the watcher's intervals, at its default of a minute."""
USUAL = ("cpu", "memory")
"""What every source has; of others it is not known that they are missing until they were there."""


def metric_name(key: str, operator: Operator, window: str) -> str:
    """window_network_transmit_avg_5m for the watcher's NetworkTransmit."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", key).lower()
    return f"window_{words}_{operator.value.lower()}_{window}"


class NodeWindows(Protocol):
    """Who can be asked; `watcher.client.NodeClient` can."""

    async def refresh(self) -> NodeLoad:
        """Raises WatcherError."""
        ...

    async def close(self) -> None: ...


class WindowMetrics:
    """Asks the watcher every `interval` seconds. `windows` and `operators` are those that the client asks for; what is
    older than `max_age` seconds, by the node's own newest sample, is missing."""

    def __init__(
        self,
        client: NodeWindows,
        *,
        windows: Sequence[str] = WINDOWS,
        operators: Sequence[Operator] = OPERATORS,
        interval: float = INTERVAL_S,
        max_age: float = YOUNG_S,
    ) -> None:
        self._client = client
        self._max_age = max_age
        self._load = Kept("the watcher's windows", client.refresh, interval=interval, failures=(WatcherError,))
        self._usual = [
            metric_name(key, operator, window) for key in USUAL for operator in operators for window in windows
        ]

    async def start(self) -> None:
        """Begin to ask."""
        await self._load.start()

    async def close(self) -> None:
        """Stop asking."""
        await self._load.close()
        await self._client.close()

    def read(self, *, now: float, monotonic: float) -> Readings:
        """The windows as they were told last, with their own age."""
        readings, load = Readings(), self._load.copy
        if load is None:
            readings.miss(
                f"the watcher has told no windows: {self._load.failure or 'it has not answered yet'}", *self._usual
            )
            return readings
        names = _names(load.values)
        age = load.age(monotonic)
        if age > self._max_age:
            why = self._load.failure or "its source brings nothing newer"
            told = (
                f"the watcher's newest sample of {load.node} is {age:.0f} s old, more than {self._max_age:g} s: {why}"
            )
            readings.miss(told, *self._usual, *names.values())
            return readings
        for key, name in names.items():
            value, rollup = load.values[key]
            if rollup == key[2]:
                readings.add(name, value, now - age)
            else:
                readings.miss(f"the watcher has samples enough for {rollup or 'no window'} only", name)
        readings.miss(
            "the watcher has no such window of this node", *(n for n in self._usual if n not in readings.series)
        )
        return readings


def _names(keys: Iterable[tuple[str, Operator, str]]) -> Mapping[tuple[str, Operator, str], str]:
    """What each is called here; without what is none of the watcher's own metrics, or a newest sample."""
    return {
        key: metric_name(METRIC_BY_NAME[key[0]].key, key[1], key[2])
        for key in keys
        if key[0] in METRIC_BY_NAME and key[1] is not Operator.LATEST
    }
