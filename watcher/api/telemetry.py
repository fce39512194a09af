"""Metrics of the service on /metrics: ticks, findings, requests, the age of the served data, store and source.

Most values exist elsewhere (the refresher counts its ticks, the store knows its size), so they are read at each scrape
instead of being copied at each change. `instruments` has the metrics that all processes share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Protocol

import numpy as np
from prometheus_client.metrics_core import Metric as Family

from watcher.core.pods.table import PublishedPods
from watcher.core.publishing.compression import Deflated, Encoding, deflate, gzip_of
from watcher.core.publishing.documents import Published
from watcher.core.publishing.exposition import View, node_windows
from watcher.model import ProviderHealth, Snapshot
from watcher.platform.telemetry.instruments import Instruments, Timings, counter, gauge
from watcher.providers.base import QueryPlan

STAGE_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Ticks(Protocol):
    """Counters of the refresher. `failed`: ticks in which the source returned nothing; `skipped`: ticks that were due
    while the previous tick still ran; `query_failures` counts by (kind of error, metric or "" for the whole source)."""

    @property
    def ticks(self) -> int: ...
    @property
    def failed(self) -> int: ...
    @property
    def skipped(self) -> int: ...
    @property
    def query_failures(self) -> Mapping[tuple[str, str], int]: ...


class StoreState(Protocol):
    """State of the store: health, size in bytes, queued ticks, and counters of lost records and decisions."""

    @property
    def ok(self) -> bool: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def queued(self) -> int: ...
    @property
    def dropped(self) -> int: ...
    @property
    def lost_decisions(self) -> int: ...


class PublishState(Protocol):
    """State of publishing NodeMetrics: the number of writes by outcome, whether this replica holds the Lease, and the
    nodes that another program reports."""

    @property
    def outcomes(self) -> Counter[str]: ...
    @property
    def holds_lease(self) -> bool: ...
    @property
    def reported_elsewhere(self) -> Collection[str]: ...


class ServiceState(Protocol):
    """The state of the running service that /metrics shows. All of it is read from a worker thread."""

    @property
    def published(self) -> Published | None: ...
    @property
    def pods(self) -> PublishedPods | None: ...
    @property
    def provider_health(self) -> ProviderHealth: ...
    @property
    def max_staleness(self) -> float: ...
    @property
    def stats(self) -> Ticks: ...
    @property
    def plans(self) -> Mapping[str, QueryPlan]: ...

    def monotonic(self) -> float: ...

    def finding_counts(self) -> Mapping[str, int]:
        """Return the number of findings of each kind; the numbers never decrease."""
        ...

    def store_status(self) -> StoreState | None:
        """Return the state of the store, None without a store."""
        ...

    def publish_stats(self) -> PublishState | None:
        """Return the state of publishing NodeMetrics, None if they are not published."""
        ...


class Telemetry(Instruments):
    """The metrics of the service, followed by the node windows. `view` selects the windows that are shown."""

    def __init__(self, *, version: str, view: View | None = None, cluster: str = "") -> None:
        super().__init__(version=version, cluster=cluster)
        self.view = view or View()
        self._vitals: ServiceState | None = None
        text = "Duration of the stages of a refresh in seconds."
        self._stages = Timings("refresh_duration_seconds", text, ("stage",), STAGE_S)
        self._nodes: _Nodes | None = None
        self._lock = Lock()
        self.registry.register(self._stages)

    def watch(self, vitals: ServiceState) -> None:
        """Export the metrics of this service. Called once."""
        self._vitals = vitals
        self.registry.register(_ServiceCollector(vitals))

    def observe_refresh(self, stage: str, seconds: float) -> None:
        """Record the duration of a stage of a refresh: "tick" for the whole, or a part such as "fetch"."""
        self._stages.observe(seconds, stage)

    def exposition(self, *, encoding: Encoding = Encoding.IDENTITY) -> bytes:
        """Return the whole page, uncompressed or as gzip. Takes milliseconds, and longer once per snapshot: call it in
        a thread."""
        own = super().exposition()
        nodes = self._node_windows()
        if encoding is Encoding.GZIP:
            return gzip_of(own, nodes.deflated, b"")
        return own + nodes.text

    def _node_windows(self) -> _Nodes:
        """Return the node windows of the published snapshot, nothing if it is stale: a metric that never changes looks
        like a valid value."""
        vitals = self._vitals
        published = vitals.published if vitals is not None else None
        if vitals is None or published is None or published.age(vitals.monotonic()) > vitals.max_staleness:
            return _NOTHING
        with self._lock:  # a concurrent scrape waits for the first scrape's result
            if self._nodes is None or self._nodes.tag != published.tag:
                text = node_windows(published.snapshot, self.view)
                self._nodes = _Nodes(published.tag, text, deflate(text))
            return self._nodes


@dataclass(frozen=True, slots=True)
class _Nodes:
    """The exposition text of one snapshot's nodes."""

    tag: str
    text: bytes
    deflated: Deflated


_NOTHING = _Nodes("", b"", deflate(b""))


class _ServiceCollector:
    """Collector of the service's state at the time of the scrape."""

    def __init__(self, vitals: ServiceState) -> None:
        self._vitals = vitals
        self._refreshed = 0

    def collect(self) -> Iterator[Family]:
        """Yield all metric families; called by the registry."""
        yield from self._ticks()
        yield from self._snapshot()
        yield from self._pods()
        yield from self._provider()
        yield from self._store()
        yield from self._node_metrics()
        rows = [({"kind": kind}, count) for kind, count in sorted(self._vitals.finding_counts().items())]
        yield counter("findings", "Findings of the sample review and about the source, by kind.", rows)

    def _ticks(self) -> Iterator[Family]:
        stats = self._vitals.stats
        # a failure is counted before its tick, and the counter must not decrease in between
        self._refreshed = max(self._refreshed, stats.ticks - stats.failed)
        rows = [({"outcome": "ok"}, self._refreshed), ({"outcome": "failed"}, stats.failed)]
        yield counter("refresh", "Ticks by outcome; failed: the source returned nothing.", rows)
        yield counter("ticks_skipped", "Ticks skipped because the previous tick still ran.", [({}, stats.skipped)])

    def _snapshot(self) -> Iterator[Family]:
        published = self._vitals.published
        if published is None:
            return
        snapshot = published.snapshot
        if snapshot.nodes:
            age = published.age(self._vitals.monotonic())
            yield gauge("snapshot_age_seconds", "Age of the newest served sample in seconds.", [({}, age)])
        held = int(np.count_nonzero(~np.isnan(snapshot.age_s)))
        yield gauge("nodes", "Number of served nodes.", [({}, len(snapshot.nodes))])
        yield gauge("nodes_held", "Served nodes that are silent, or held during a partial outage.", [({}, held)])
        yield gauge("nodes_lost", "Nodes lost in a partial outage.", [({}, len(snapshot.lost))])
        yield gauge("nodes_quarantined", "Nodes in quarantine; not served.", [({}, len(snapshot.quarantined))])
        rows = [({"window": window}, ratio) for window, ratio in coverage(snapshot).items()]
        yield gauge("window_coverage_ratio", "Actual over expected samples, mean of all nodes and metrics.", rows)

    def _pods(self) -> Iterator[Family]:
        pods = self._vitals.pods
        if pods is None:
            return
        yield gauge("pods", "Pods with known usage.", [({}, len(pods.table.pods))])
        if pods.table.pods:
            age = pods.age(self._vitals.monotonic())
            yield gauge("pods_age_seconds", "Age of the newest pod reading in seconds.", [({}, age)])

    def _provider(self) -> Iterator[Family]:
        health = self._vitals.provider_health
        if health.ok is not None:
            yield gauge("provider_up", "Whether the source responded at the last tick.", [({}, int(health.ok))])
            text = "Whether the source reported its responses as incomplete."
            yield gauge("provider_partial", text, [({}, int(health.partial))])
        failures = list(self._vitals.stats.query_failures.items())
        rows = [({"kind": kind, "metric": metric}, count) for (kind, metric), count in sorted(failures)]
        yield counter("provider_failures", "Failed queries; metric is empty for the whole source.", rows)
        plans = [
            ({"metric": plan.metric, "expression": plan.expression, "node_label": plan.node_label}, 1)
            for plan in list(self._vitals.plans.values())
        ]
        yield gauge("provider_query_info", "The query of the source for a metric; always 1.", plans)

    def _store(self) -> Iterator[Family]:
        status = self._vitals.store_status()
        if status is None:
            return
        yield gauge("store_ok", "Whether the database accepts writes.", [({}, int(status.ok))])
        yield gauge("store_size_bytes", "Size of the database with its write-ahead log.", [({}, status.size_bytes)])
        yield gauge("store_queued_ticks", "Ticks waiting to be stored.", [({}, status.queued)])
        yield counter("store_dropped_records", "Window records that were dropped.", [({}, status.dropped)])
        text = "Decisions of the scheduling plug-ins that were not stored."
        yield counter("store_lost_decisions", text, [({}, status.lost_decisions)])

    def _node_metrics(self) -> Iterator[Family]:
        stats = self._vitals.publish_stats()
        if stats is None:
            return
        rows = [({"outcome": outcome}, count) for outcome, count in sorted(stats.outcomes.copy().items())]
        yield counter("node_metrics", "NodeMetrics that were due, by outcome.", rows)
        text = "Whether this replica publishes NodeMetrics."
        yield gauge("node_metrics_lease_held", text, [({}, int(stats.holds_lease))])
        text = "Nodes whose NodeMetric is reported by another program."
        yield gauge("node_metrics_left", text, [({}, len(stats.reported_elsewhere))])


def coverage(snapshot: Snapshot) -> dict[str, float]:
    """Return per window label the ratio of actual to expected samples, 0 to 1, as the mean of all known metrics of all
    nodes."""
    known = [(windows.coverage, ~np.isnan(windows.latest)) for windows in snapshot.metrics]
    cells = sum(int(np.count_nonzero(here)) for _, here in known)
    if not cells:
        return {}
    return {
        window.label: round(float(sum(part[row][here].sum() for part, here in known)) / cells, 6)
        for row, window in enumerate(snapshot.windows)
    }
