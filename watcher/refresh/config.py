"""Settings and collaborators of the refresh, as values and protocols."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from watcher.core.naming.node_index import NodeIndex
from watcher.core.review import limits as review_limits
from watcher.core.windows.backfill import LATE_INTERVALS
from watcher.model import TickRecord, Window

TICK_SHARE = 0.8  # of an interval: the hard deadline of a tick, retries included
NAMES_S = 2.0  # how long after the start the first answer waits for the names of the cluster's nodes
NAMES_AT_LEISURE_S = 10.0  # the same, while what was stored is being served


class Keeper(Protocol):
    """What the tick needs of a store: it takes a record and returns at once."""

    def save(self, record: TickRecord) -> None: ...


class Directory(Protocol):
    """What the tick needs of the cluster: who its nodes are (directory.ClusterNodes)."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def settle(self, patience: float) -> None:
        """Wait until the nodes are known, or cannot be; at most until `patience` seconds after the start."""

    async def index(self) -> NodeIndex | None:
        """The nodes; None as long as they are not known."""

    def trouble(self) -> str:
        """Why they are not known, or may be out of date; empty while all is well."""


@dataclass(frozen=True, slots=True)
class RefreshConfig:
    """The settings that the tick needs; times in seconds."""

    interval: float = 60.0
    resolution: int = 15
    windows: tuple[Window, ...] = (Window("5m", 300), Window("10m", 600), Window("15m", 900))
    max_staleness: float = 300.0
    keep: tuple[str, ...] = ("CPU", "Memory")  # metric types whose windows are recorded each minute
    cluster: str = ""  # the name of the cluster, "" for none
    limits: review_limits.Limits = field(default_factory=review_limits.Limits)
    pods: str = "auto"  # auto, on or off

    @property
    def reach(self) -> float:
        """How many seconds back samples are fetched. A window ends with the newest sample, which may be some time old,
        so the longest one begins earlier than its length ago."""
        return self.windows[-1].seconds + LATE_INTERVALS * self.interval


@dataclass(slots=True)
class TickStats:
    """How the ticks went so far, for our own metrics; all of it only grows."""

    ticks: int = 0
    failed: int = 0
    skipped: int = 0
    query_failures: dict[tuple[str, str], int] = field(default_factory=dict)  # (kind, metric) -> count
