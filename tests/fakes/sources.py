"""A source in memory whose responses the test sets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

import numpy as np

from watcher.core.pods.table import PodOrigin, PodUsage
from watcher.model import METRIC_BY_KEY, METRIC_BY_NAME, Finding, FindingKind, Metric, Remedy, SeriesBatch
from watcher.sources.base import Fetch, PodFetch, QueryFailure, QueryPlan
from watcher.sources.errors import ProviderError

CPU = METRIC_BY_KEY["CPU"]
MEMORY = METRIC_BY_KEY["Memory"]

Samples = dict[str, dict[str, dict[float, float]]]  # metric name -> node -> time -> value


@dataclass
class MemorySource:
    """Responds from `samples`; `down` makes it fail completely, `failing` single metrics, `hang` never respond.
    `partial` has the missing parts by metric, and the nodes of `missing` are not in those; `absent` has the reasons for
    missing series of a metric."""

    remembers: bool = True
    source: str = "Memory"
    samples: Samples = field(default_factory=dict)
    down: ProviderError | None = None
    failing: dict[str, ProviderError] = field(default_factory=dict)
    partial: dict[str, str] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)
    absent: dict[str, str] = field(default_factory=dict)
    hang: bool = False
    clock_offset_s: float | None = None
    label: str = "node"
    expressions: dict[str, str] = field(default_factory=dict)
    asked: list[tuple[float, float, frozenset[str] | None]] = field(default_factory=list)

    def put(
        self, node: str, times: Iterable[float], value: float | Callable[[float], float], *, metric: Metric = CPU
    ) -> None:
        """Samples of one node; `value` may be a function of the time."""
        points = self.samples.setdefault(metric.name, {}).setdefault(node, {})
        for time in times:
            points[float(time)] = float(value(time) if callable(value) else value)

    async def start(self) -> None:
        """Does nothing."""

    async def close(self) -> None:
        """Does nothing."""

    async def fetch(self, since: float, until: float, *, only: Collection[str] | None = None) -> Fetch:
        """The `samples` between the two times."""
        self.asked.append((since, until, None if only is None else frozenset(only)))
        await asyncio.sleep(0)
        if self.hang:
            await asyncio.Event().wait()
        if self.down is not None:
            raise self.down
        wanted = [name for name in self.samples if only is None or name in only]
        return Fetch(
            batches=tuple(self._batch(name, since, until) for name in wanted if name not in self.failing),
            failures=tuple(QueryFailure(name, self.failing[name]) for name in wanted if name in self.failing),
            plans={name: self._plan(name) for name in self.samples},
            findings=tuple(
                Finding(FindingKind.NO_SERIES, "", name, until, reason, Remedy.LEFT_OUT)
                for name, reason in self.absent.items()
            ),
            clock_offset_s=self.clock_offset_s,
            partial={name: self.partial[name] for name in wanted if name in self.partial},
        )

    def _plan(self, name: str) -> QueryPlan:
        return QueryPlan(name, self.expressions.get(name, name), "percent", self.label, 0.0, "set by the test")

    def _batch(self, name: str, since: float, until: float) -> SeriesBatch:
        gone = self.missing if name in self.partial else set()
        nodes = tuple(node for node in self.samples[name] if node not in gone)
        found = [
            (row, time, value)
            for row, node in enumerate(nodes)
            for time, value in sorted(self.samples[name][node].items())
            if since <= time <= until
        ]
        series, time, value = (np.array(column) for column in zip(*found, strict=True)) if found else ([], [], [])
        return SeriesBatch(
            METRIC_BY_NAME[name],
            nodes,
            np.array(series, dtype=np.int64),
            np.array(time, dtype=np.float64),
            np.array(value, dtype=np.float64),
        )


@dataclass
class PodSource(MemorySource):
    """The same with pods: `pods` are their readings now, as (node, time, cores, bytes) by NAMESPACE/NAME; `no_pods` is
    the exception of a fetch, with `pods_hang` it never ends."""

    pods: dict[str, tuple[str, float, float, float]] = field(default_factory=dict)
    no_pods: Exception | None = None
    pods_hang: bool = False
    pods_from: str = "cores"
    asked_for_pods: list[float] = field(default_factory=list)

    async def fetch_pods(self, now: float) -> PodFetch:
        """The readings in `pods`."""
        self.asked_for_pods.append(now)
        await asyncio.sleep(0)
        if self.pods_hang:
            await asyncio.Event().wait()
        if self.no_pods is not None:
            raise self.no_pods
        names = tuple((name.partition("/")[0], name.partition("/")[2]) for name in self.pods)
        nodes = tuple(node for node, *_ in self.pods.values())
        columns = (np.array([row[at] for row in self.pods.values()], dtype=np.float64) for at in (1, 2, 3))
        return PodFetch(PodUsage(names, nodes, *columns), PodOrigin(self.source, self.pods_from, 60.0, "bytes", "rss"))


@dataclass
class FakeClock:
    """Both clocks, set by the test. `step` changes only the wall clock, as an administrator or NTP does."""

    wall: float
    steady: float = 1000.0

    def now(self) -> float:
        return self.wall

    def monotonic(self) -> float:
        return self.steady

    def pass_time(self, seconds: float) -> None:
        """Advance both clocks."""
        self.wall += seconds
        self.steady += seconds

    def step(self, seconds: float) -> None:
        """Set the wall clock."""
        self.wall += seconds
