"""The watcher's windows of this node as metrics: window_cpu_avg_5m, window_memory_std_15m, …

They are for rules on load over minutes. Gaps are not computed from them: they describe another place and time than the
local readings, and protection must not depend on the watcher. If the watcher is unreachable, slow or stale, only these
metrics are missing, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from agent.state.background_value import BackgroundValue
from agent.state.readings import MetricReadings
from agent.state.watcher_clock import WatcherClock
from watcher.client import NodeLoad, WatcherError
from watcher.model import METRIC_BY_NAME, Operator

WINDOWS = ("5m", "10m", "15m")
OPERATORS = (Operator.AVG, Operator.STD)
INTERVAL_S = 30.0
MAX_AGE_S = 180.0
"""Seconds; three of the watcher's default intervals of one minute."""
EXPECTED_METRICS = ("cpu", "memory")
"""Metrics that every source has; other metrics count as missing only after they were present once."""


def metric_name(key: str, operator: Operator, window: str) -> str:
    """The metric name, such as window_network_transmit_avg_5m for the watcher's NetworkTransmit."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", key).lower()
    return f"window_{words}_{operator.value.lower()}_{window}"


class NodeLoadClient(Protocol):
    """A client for the windows of one node; `watcher.client.NodeClient` implements it."""

    async def refresh(self) -> NodeLoad:
        """Request the current windows. Raises WatcherError."""
        ...

    async def close(self) -> None: ...


class WatcherWindows:
    """Requests the windows every `interval` seconds. `windows` and `operators` must be the client's. Values older than
    `max_age` seconds, by the node's newest sample, are missing."""

    def __init__(
        self,
        client: NodeLoadClient,
        *,
        windows: Sequence[str] = WINDOWS,
        operators: Sequence[Operator] = OPERATORS,
        interval: float = INTERVAL_S,
        max_age: float = MAX_AGE_S,
    ) -> None:
        self._client = client
        self._max_age = max_age
        self._clock = WatcherClock()
        self._load = BackgroundValue(
            "the watcher's windows", client.refresh, interval=interval, failures=(WatcherError,)
        )
        self._usual = [
            metric_name(key, operator, window)
            for key in EXPECTED_METRICS
            for operator in operators
            for window in windows
        ]

    async def start(self) -> None:
        """Start requesting the windows. Does not wait."""
        await self._load.start()

    async def close(self) -> None:
        """Stop requesting and close the client."""
        await self._load.close()
        await self._client.close()

    def read(self, *, now: float, monotonic: float) -> MetricReadings:
        """The last received windows, with their age."""
        readings, load = MetricReadings(), self._load.copy
        if load is None:
            readings.mark_missing(
                f"the watcher returned no windows: {self._load.failure or 'no response yet'}", *self._usual
            )
            return readings
        names = _names(load.values)
        if why := self._clock.problem(load):
            readings.mark_missing(why, *self._usual, *names.values())
            return readings
        age = load.age(monotonic)
        if age > self._max_age:
            why = self._load.failure or "its source has no newer sample"
            message = (
                f"the watcher's newest sample of {load.node} is {age:.0f} s old, more than {self._max_age:g} s: {why}"
            )
            readings.mark_missing(message, *self._usual, *names.values())
            return readings
        for key, name in names.items():
            value, rollup = load.values[key]
            if rollup == key[2]:
                readings.add(name, value, now - age)
            else:
                readings.mark_missing(f"the watcher has enough samples only for {rollup or 'no window'}", name)
        readings.mark_missing(
            "the watcher does not have this window of this node", *(n for n in self._usual if n not in readings.series)
        )
        return readings


def _names(keys: Iterable[tuple[str, Operator, str]]) -> Mapping[tuple[str, Operator, str], str]:
    """The metric names by the watcher's keys, without unknown metrics and without latest samples."""
    return {
        key: metric_name(METRIC_BY_NAME[key[0]].key, key[1], key[2])
        for key in keys
        if key[0] in METRIC_BY_NAME and key[1] is not Operator.LATEST
    }
