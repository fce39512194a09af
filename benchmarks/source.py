"""A source of samples that costs nothing to ask: load made up as it is asked for, the same for the same time.

The load of a real cluster is in tests/real/fleet.py; but what is kept to answer from it would be counted as memory of
the service's. Here a sample is a function of its node and its slot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

import numpy as np

from watcher.arrays import F64
from watcher.model import METRIC_BY_KEY, Metric, SeriesBatch, Unit
from watcher.providers.base import Fetch, QueryPlan

METRICS = ("CPU", "Memory", "Storage", "NetworkTransmit", "NetworkReceive", "NetworkTransmitDrop")
"""The six metrics of the benchmarks, by key."""
STEP_S = 15.0


def names(count: int) -> list[str]:
    """Node names as long as a cloud's."""
    return [f"ip-10-{n >> 16 & 255}-{n >> 8 & 255}-{n & 255}.eu-central-1.compute.internal" for n in range(count)]


class MadeUp:
    """A Provider of `nodes` nodes with the six metrics of the benchmarks, each scraped every 15 s at a moment of its
    own. `prepared`, once set, is the next answer: for whoever measures the tick and not this."""

    source = "Prometheus"
    remembers = True

    def __init__(self, nodes: int, *, metrics: Sequence[str] = METRICS) -> None:
        self.metrics = [METRIC_BY_KEY[key] for key in metrics]
        self.nodes = tuple(names(nodes))
        self.prepared: Fetch | None = None
        random = np.random.default_rng(7)
        self._moment = np.round(random.uniform(0.0, STEP_S, nodes), 3)
        self._level = random.uniform(10.0, 60.0, nodes)
        self._phase = random.uniform(0.0, 2.0 * np.pi, nodes)
        self._plans = {m.name: QueryPlan(m.name, m.name, "percent", "node", 300.0, "made up") for m in self.metrics}

    async def start(self) -> None:
        """Nothing to take up."""

    async def close(self) -> None:
        """Nothing to release."""

    async def fetch(self, since: float, until: float, *, only: Collection[str] | None = None) -> Fetch:
        """What was prepared, else the samples between the two, made in a thread."""
        if self.prepared is not None:
            answer, self.prepared = self.prepared, None
            return answer
        return await asyncio.to_thread(self.answer, since, until)

    def answer(self, since: float, until: float) -> Fetch:
        """The samples with since <= time <= until."""
        return Fetch(batches=tuple(self._batch(metric, since, until) for metric in self.metrics), plans=self._plans)

    def _batch(self, metric: Metric, since: float, until: float) -> SeriesBatch:
        first, last = int(since // STEP_S), int(until // STEP_S)
        values = np.stack([self._values(metric, slot) for slot in range(first, last + 1)], axis=1)
        time = STEP_S * np.arange(first, last + 1) + self._moment[:, None]
        asked = (time >= since) & (time <= until)
        series = np.nonzero(asked)[0].astype(np.int64)
        return SeriesBatch(metric, self.nodes, series, time[asked], values[asked])

    def _values(self, metric: Metric, slot: int) -> F64:
        """The load of all nodes in one slot: a slow wave around a level of its own, and noise."""
        noise = np.random.default_rng([slot, self.metrics.index(metric)]).normal(0.0, 2.0, len(self._level))
        percent = np.clip(self._level + 8.0 * np.sin(slot / 40.0 + self._phase) + noise, 0.0, 100.0)
        return percent if metric.unit is Unit.PERCENT else percent * 1e5


class Virtual:
    """Both clocks, moved by the benchmark: a tick every minute of theirs, as soon as the one before is over."""

    def __init__(self, wall: float) -> None:
        self.wall = wall
        self.steady = 1000.0

    def now(self) -> float:
        return self.wall

    def monotonic(self) -> float:
        return self.steady

    def pass_time(self, seconds: float) -> None:
        """Time goes by."""
        self.wall += seconds
        self.steady += seconds
