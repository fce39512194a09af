"""What the parts of the tick share: settings, collaborators as protocols, the worker thread, and reports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import ParamSpec, Protocol, TypeVar

from watcher.core.forecast.settings import ForecastSettings
from watcher.core.naming.name_resolver import NodeIndex
from watcher.core.pods.table import SLOT_S
from watcher.core.review.findings import FindingLog
from watcher.core.review.settings import ReviewSettings
from watcher.core.windows.backfill import LATE_INTERVALS
from watcher.core.windows.records import StoredMaxima, TickRecord
from watcher.core.windows.settings import RefreshSettings
from watcher.core.windows.slot_widths import POINT_RESOLUTION_S
from watcher.model import Finding, FindingKind, Remedy
from watcher.platform.clock import Clock
from watcher.sources.base import Provider

P = ParamSpec("P")
T = TypeVar("T")

TICK_SHARE = 0.8  # hard deadline of a tick, retries included, as a fraction of the interval
NAMES_SHARE = 0.3  # of the interval, until which a tick waits for names: the fetch needs the rest of its time
NAMES_S = 2.0  # seconds after the start until which the first tick waits for the names of the cluster's nodes
PODS_PER_NODE = 15  # the usage of 150,000 pods takes about 100 MB
NAMES_WHEN_SERVING_S = 10.0  # the same, while stored samples are already served


class TickStore(Protocol):
    """The store as the tick uses it: `save` queues a record and returns immediately."""

    def save(self, record: TickRecord) -> None: ...

    async def maxima(self, hours: range | None = None) -> list[StoredMaxima]:
        """The stored maxima, of consecutive `hours` since the Unix epoch or all. Raises StoreError."""
        ...


class NodeSource(Protocol):
    """The source of the cluster's node names, as the tick uses it (cluster_nodes.ClusterNodes)."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def wait_known(self, patience: float) -> None:
        """Wait until the nodes are known or cannot be read; at most until `patience` seconds after the start."""

    async def index(self) -> NodeIndex | None:
        """Return the nodes, None while they are unknown."""

    def error_text(self) -> str:
        """Return why the nodes are unknown or may be out of date, "" if they are up to date."""


@dataclass(frozen=True, kw_only=True)
class RefreshConfig(RefreshSettings):
    """Settings of the tick; times in seconds."""

    resolution: int = POINT_RESOLUTION_S  # 0: the resolution follows the cadence of a source with history
    history_bytes: int = 256 << 20  # limit for the samples of the history, if the resolution adapts
    most_nodes: int = 100_000  # nodes of which samples are kept
    recorded_types: tuple[str, ...] = ("CPU", "Memory")  # metric types whose windows are recorded each minute
    cluster: str = ""  # the name of the cluster, "" for none
    limits: ReviewSettings = field(default_factory=ReviewSettings)
    forecast: ForecastSettings | None = None  # None: no maxima are kept
    maxima_pace: float = 1.0  # seconds between two requests for samples of the last days

    @property
    def most_pods(self) -> int:
        """Number of pods of which usage is kept."""
        return PODS_PER_NODE * self.most_nodes

    @property
    def reach(self) -> float:
        """Age limit of fetched samples, in seconds. A window ends with the newest sample, which may be old, so the
        longest window begins earlier than its length ago."""
        return self.windows[-1].seconds + LATE_INTERVALS * self.interval

    @property
    def pod_cadence_s(self) -> float:
        """Seconds between two queries for pods: at least one minute."""
        return max(float(SLOT_S), self.interval)

    @property
    def pod_slots(self) -> int:
        """Number of minutes of pod usage to store."""
        return max(1, self.windows[-1].seconds // SLOT_S)


# --- worker thread ---------------------------------------------------------------------------------------------------


class TickWorker:
    """One thread, which runs the computations of ticks one at a time, in the order of the calls."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pipeline")

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function in the thread and return its result. A cancelled caller does not stop the function."""
        loop = asyncio.get_running_loop()
        # shielded: the next tick must not use the history while a cancelled tick still writes it
        return await asyncio.shield(loop.run_in_executor(self._executor, partial(function, *args, **kwargs)))

    def close(self) -> None:
        """Stop the thread after the function that runs now."""
        self._executor.shutdown(wait=False, cancel_futures=True)


# --- reports ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class TickStats:
    """Counters of ticks and failed queries for /metrics; none of them decreases."""

    ticks: int = 0
    failed: int = 0
    skipped: int = 0
    query_failures: dict[tuple[str, str], int] = field(default_factory=dict)  # (kind, metric) -> count


class TickReports:
    """Findings and counters of the refresh; `observe` receives a stage of the tick and its duration in seconds."""

    def __init__(self, observe: Callable[[str, float], None] = lambda stage, seconds: None) -> None:
        self.findings = FindingLog()
        self.stats = TickStats()
        self.observe = observe

    def continue_from(self, other: TickReports) -> None:
        """Continue the findings and counters of a refresher with other settings."""
        self.findings, self.stats = other.findings, other.stats

    def query_failed(
        self,
        error_kind: str,
        reason: str,
        *,
        now: float,
        metric: str = "",
        kind: FindingKind = FindingKind.QUERY_FAILED,
        remedy: Remedy = Remedy.REPORTED,
    ) -> None:
        """Count a failed query by the kind of its error, and add its finding. `now` is in unix seconds."""
        key = (error_kind, metric)
        self.stats.query_failures[key] = self.stats.query_failures.get(key, 0) + 1
        self.findings.add([Finding(kind, "", metric, now, reason, remedy)])


@dataclass(frozen=True, slots=True)
class TickContext:
    """What all parts of the tick use. `tag` is the prefix of the tags of published documents."""

    provider: Provider
    config: RefreshConfig
    clock: Clock
    tag: str
    worker: TickWorker
    reports: TickReports
