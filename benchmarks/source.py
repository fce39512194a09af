"""A source of synthetic samples with negligible cost and deterministic values.

tests/real/fleet.py generates more realistic load, but its stored data would count as memory of the service. Here a
sample is a function of its node and its slot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

import numpy as np

from watcher.arrays import F64
from watcher.model import METRIC_BY_KEY, Metric, SeriesBatch, Unit
from watcher.sources.base import Fetch, QueryPlan

METRICS = ("CPU", "Memory", "Storage", "NetworkTransmit", "NetworkReceive", "NetworkTransmitDrop")
"""Keys of the six metrics of the benchmarks."""
STEP_S = 15.0


def names(count: int) -> list[str]:
    """Return node names as long as those of a cloud provider."""
    return [f"ip-10-{n >> 16 & 255}-{n >> 8 & 255}-{n & 255}.eu-central-1.compute.internal" for n in range(count)]


class MadeUp:
    """A provider of `nodes` nodes with the six metrics of the benchmarks, each node scraped every `step` seconds at its
    own offset. If `prepared` is set, the next fetch returns it, to measure a tick without the generation of samples."""

    source = "Prometheus"
    remembers = True

    def __init__(self, nodes: int, *, metrics: Sequence[str] = METRICS, step: float = STEP_S) -> None:
        self._step = step
        self.metrics = [METRIC_BY_KEY[key] for key in metrics]
        self.nodes = tuple(names(nodes))
        self.prepared: Fetch | None = None
        random = np.random.default_rng(7)
        self._moment = np.round(random.uniform(0.0, step, nodes), 3)
        self._level = random.uniform(10.0, 60.0, nodes)
        self._phase = random.uniform(0.0, 2.0 * np.pi, nodes)
        self._plans = {m.name: QueryPlan(m.name, m.name, "percent", "node", 300.0, "made up") for m in self.metrics}

    async def start(self) -> None:
        """Do nothing: there is no connection."""

    async def close(self) -> None:
        """Do nothing: there is no connection."""

    async def fetch(self, since: float, until: float, *, only: Collection[str] | None = None) -> Fetch:
        """Return the prepared batch, or the samples between the two times (unix seconds), generated in a thread."""
        if self.prepared is not None:
            answer, self.prepared = self.prepared, None
            return answer
        return await asyncio.to_thread(self.answer, since, until)

    def answer(self, since: float, until: float) -> Fetch:
        """Return the samples with since <= time <= until (unix seconds)."""
        return Fetch(batches=tuple(self._batch(metric, since, until) for metric in self.metrics), plans=self._plans)

    def _batch(self, metric: Metric, since: float, until: float) -> SeriesBatch:
        first, last = int(since // self._step), int(until // self._step)
        values = np.stack([self._values(metric, slot) for slot in range(first, last + 1)], axis=1)
        time = self._step * np.arange(first, last + 1) + self._moment[:, None]
        asked = (time >= since) & (time <= until)
        series = np.nonzero(asked)[0].astype(np.int64)
        return SeriesBatch(metric, self.nodes, series, time[asked], values[asked])

    def _values(self, metric: Metric, slot: int) -> F64:
        """Return the load of all nodes in one slot: a slow wave around each node's level, plus noise."""
        noise = np.random.default_rng([slot, self.metrics.index(metric)]).normal(0.0, 2.0, len(self._level))
        percent = np.clip(self._level + 8.0 * np.sin(slot / 40.0 + self._phase) + noise, 0.0, 100.0)
        return percent if metric.unit is Unit.PERCENT else percent * 1e5


class Virtual:
    """Simulated wall and monotonic clocks: the benchmark advances them by a minute as soon as a tick has ended."""

    def __init__(self, wall: float) -> None:
        self.wall = wall
        self.steady = 1000.0

    def now(self) -> float:
        return self.wall

    def monotonic(self) -> float:
        return self.steady

    def pass_time(self, seconds: float) -> None:
        """Advance both clocks by `seconds`."""
        self.wall += seconds
        self.steady += seconds
