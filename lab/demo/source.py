"""Provider of `load-watcher demo`: the load of a simulated cluster. `source` ("Demo") marks the data as simulated.

Any time range can be queried, so all windows are full from the start. Each node has one sample per slot, at a
node-specific offset and with its true timestamp. The simulation runs in a worker thread.

The provider cannot be selected in the settings, because it needs the cluster that the demo creates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from lab.demo.past import past_maxima
from lab.fleet.cluster import SimulatedCluster
from lab.fleet.faults import has_samples, reported_cpu, reported_time
from lab.fleet.load import RunningPods, node_load
from lab.fleet.noise import mixed, uniform
from watcher.arrays import F64, Bool
from watcher.core.koordinator.report import Capacity
from watcher.core.kubernetes.node_facts import capacities_of
from watcher.core.kubernetes.objects import ObjectMetadata
from watcher.core.pods.table import PodOrigin
from watcher.model import METRIC_BY_KEY, METRIC_BY_NAME, SeriesBatch
from watcher.sources.base import Fetch, PodFetch, QueryPlan

SOURCE = "Demo"
METRICS: Mapping[str, str] = {
    "CPU": "percent",
    "Memory": "percent",
    "Storage": "percent",
    "NetworkTransmit": "bytes/s",
    "NetworkReceive": "bytes/s",
    "EnergyPackage": "watts",
    "PressureCPU": "percent",
    "PressureIO": "percent",
    "PressureIOFull": "percent",
}
"""Simulated metrics: metric key -> unit."""


@dataclass(frozen=True, slots=True)
class _Sampled:
    """Values of n nodes at k times. `time` (unix seconds) and each array of `values` (by metric key) have shape (k,
    n); `present` is a mask of the same shape with the existing samples."""

    time: F64
    present: Bool
    values: Mapping[str, F64]


class DemoProvider:
    """Samples of a simulated cluster, one per node and slot of `resolution` seconds."""

    source = SOURCE
    remembers = True
    maxima_pace = 0.0

    def __init__(self, cluster: SimulatedCluster, *, resolution: int) -> None:
        self._cluster = cluster
        self._resolution = resolution
        self._offsets = resolution * 0.9 * uniform(mixed(cluster.fleet.key, 7))

    async def start(self) -> None:
        """Nothing to start: the simulation runs on demand."""

    async def close(self) -> None:
        """Nothing to release: the simulation has no resources."""

    async def capacities(self) -> Mapping[str, Capacity]:
        """CPU and memory capacity by node name."""
        return await asyncio.to_thread(capacities_of, self._cluster.nodes)

    def node_metadata(self, node: str) -> ObjectMetadata | None:
        """Object metadata of a simulated node; None for an unknown node."""
        known = self._cluster.nodes.get(node)
        return None if known is None else known.metadata

    def node_names(self) -> Collection[str]:
        """Names of the nodes of the simulated cluster."""
        return self._cluster.nodes.keys()

    async def fetch(self, since: float, until: float, *, only: Collection[str] | None = None) -> Fetch:
        """Samples of the simulated nodes with since <= time <= until (unix seconds)."""
        keys = [key for key in METRICS if only is None or METRIC_BY_KEY[key].name in only]
        batches = await asyncio.to_thread(self._batches, keys, since, until, self._cluster.running)
        plans = {METRIC_BY_KEY[key].name: self._plan(key) for key in keys}
        return Fetch(batches, plans=plans, clock_offset_s=0.0)

    async def fetch_maxima(self, since: float, until: float, *, metric: str) -> Fetch:
        """The maxima of the simulated load (base.MaximaProvider), without the faults of its monitoring."""
        key = METRIC_BY_NAME[metric].key
        return Fetch((await asyncio.to_thread(past_maxima, self._cluster, key, since, until),))

    async def fetch_pods(self, now: float) -> PodFetch:
        """Simulated usage of all pods at `now` (unix seconds)."""
        usage = await asyncio.to_thread(self._cluster.usage, self._cluster.running_pods(), now)
        origin = PodOrigin(SOURCE, self._expression("cores"), 0.0, self._expression("bytes"), "rss")
        return PodFetch(usage, origin, nodes=frozenset(self._cluster.fleet.names))

    def _plan(self, key: str) -> QueryPlan:
        reason = "simulated by load-watcher demo"
        return QueryPlan(METRIC_BY_KEY[key].name, self._expression(key), METRICS[key], "node", 0.0, reason)

    def _expression(self, what: str) -> str:
        """Expression for the provenance. It contains seed and start time, so that samples of two simulations do not
        share a window."""
        cluster = self._cluster
        return f"simulated {what} (seed {cluster.seed}, begun at {cluster.begun:.0f})"

    # --- worker thread -----------------------------------------------------------------------------------------------

    def _batches(self, keys: Collection[str], since: float, until: float, pods: RunningPods) -> tuple[SeriesBatch, ...]:
        sampled = self._sample(since, until, pods)
        inside = sampled.present.T
        series, _ = np.nonzero(inside)
        names, time = self._cluster.fleet.names, sampled.time.T[inside]
        return tuple(
            SeriesBatch(METRIC_BY_KEY[key], names, series, time, sampled.values[key].T[inside]) for key in keys
        )

    def _sample(self, since: float, until: float, pods: RunningPods) -> _Sampled:
        times = list(self._times(since, until))
        looks = [self._look(time, pods) for time in times]
        nodes = len(self._offsets)
        time = np.array(times).reshape(len(times), nodes)
        there = np.array([there for there, _ in looks], dtype=bool).reshape(len(times), nodes)
        inside = there & (time >= since) & (time <= until)
        values = {key: np.array([values[key] for _, values in looks]).reshape(len(times), nodes) for key in METRICS}
        return _Sampled(time, inside, values)

    def _times(self, since: float, until: float) -> Iterator[F64]:
        """Sample times (unix seconds, shape (n,)) of each slot that overlaps the range."""
        for slot in range(int(since // self._resolution), int(until // self._resolution) + 1):
            yield slot * float(self._resolution) + self._offsets

    def _look(self, time: F64, pods: RunningPods) -> tuple[Bool, Mapping[str, F64]]:
        """Mask of the nodes with a sample at their times (shape (n,)), and the values by metric key."""
        fleet = self._cluster.fleet
        there = has_samples(fleet.names, time, fleet.faults)
        load = node_load(fleet, pods, reported_time(fleet.names, time, fleet.faults))
        percent = 100.0 * load.cores / fleet.cores
        return there, {
            "CPU": reported_cpu(fleet.names, time, percent, fleet.faults),
            "Memory": 100.0 * load.memory / fleet.memory,
            "Storage": load.disk,
            "NetworkTransmit": load.transmitted,
            "NetworkReceive": load.received,
            "EnergyPackage": load.watts,
            "PressureCPU": load.pressure,
            "PressureIO": load.disk_pressure,
            "PressureIOFull": load.disk_pressure_full,
        }
