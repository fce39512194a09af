"""Metrics of the service on /metrics: ticks, findings, requests, the age of the served data, store and source.

Most values exist elsewhere (the refresher counts its ticks, the store knows its size), so they are read at each scrape
instead of being copied at each change. `instruments` has the metrics that all processes share.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from threading import Lock

import numpy as np
from prometheus_client.metrics_core import Metric as Family

from watcher.api.service import ServiceView
from watcher.core.publishing.compression import Deflated, Encoding, deflate, gzip_of
from watcher.core.publishing.exposition import View, node_windows
from watcher.model import Snapshot
from watcher.platform.telemetry.instruments import Instruments, Timings, counter, gauge

STAGE_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Telemetry(Instruments):
    """The metrics of the service, followed by the node windows. `view` selects the windows that are shown."""

    def __init__(self, *, version: str, view: View | None = None, cluster: str = "") -> None:
        super().__init__(version=version, cluster=cluster)
        self.view = view or View()
        self._service: ServiceView | None = None
        text = "Duration of the stages of a refresh in seconds."
        self._stages = Timings("refresh_duration_seconds", text, ("stage",), STAGE_S)
        self._nodes: _Nodes | None = None
        self._lock = Lock()
        self.registry.register(self._stages)

    def watch(self, service: ServiceView) -> None:
        """Export the metrics of this service. Called once."""
        self._service = service
        self.registry.register(_ServiceCollector(service))

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
        service = self._service
        published = service.published if service is not None else None
        if service is None or published is None or published.age(service.monotonic()) > service.max_staleness:
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

    def __init__(self, service: ServiceView) -> None:
        self._service = service
        self._refreshed = 0

    def collect(self) -> Iterator[Family]:
        """Yield all metric families; called by the registry."""
        yield from self._ticks()
        yield from self._snapshot()
        yield from self._pods()
        yield from self._provider()
        yield from self._store()
        yield from self._node_metrics()
        yield from self._thresholds()
        rows = [({"kind": kind}, count) for kind, count in sorted(self._service.refresher.findings.counts().items())]
        yield counter("findings", "Findings of the sample review and about the source, by kind.", rows)

    def _ticks(self) -> Iterator[Family]:
        stats = self._service.refresher.stats
        # a failure is counted before its tick, and the counter must not decrease in between
        self._refreshed = max(self._refreshed, stats.ticks - stats.failed)
        rows = [({"outcome": "ok"}, self._refreshed), ({"outcome": "failed"}, stats.failed)]
        yield counter("refresh", "Ticks by outcome; failed: the source returned nothing.", rows)
        yield counter("ticks_skipped", "Ticks skipped because the previous tick still ran.", [({}, stats.skipped)])

    def _snapshot(self) -> Iterator[Family]:
        published = self._service.published
        if published is None:
            return
        snapshot = published.snapshot
        if snapshot.nodes:
            age = published.age(self._service.monotonic())
            yield gauge("snapshot_age_seconds", "Age of the newest served sample in seconds.", [({}, age)])
        held = int(np.count_nonzero(~np.isnan(snapshot.age_s)))
        yield gauge("nodes", "Number of served nodes.", [({}, len(snapshot.nodes))])
        yield gauge("nodes_held", "Served nodes that are silent, or held during a partial outage.", [({}, held)])
        yield gauge("nodes_lost", "Nodes lost in a partial outage.", [({}, len(snapshot.lost))])
        yield gauge("nodes_quarantined", "Nodes in quarantine; not served.", [({}, len(snapshot.quarantined))])
        rows = [({"window": window}, ratio) for window, ratio in coverage(snapshot).items()]
        yield gauge("window_coverage_ratio", "Actual over expected samples, mean of all nodes and metrics.", rows)

    def _pods(self) -> Iterator[Family]:
        pods = self._service.pods
        if pods is None:
            return
        yield gauge("pods", "Pods with known usage.", [({}, len(pods.table.pods))])
        if pods.table.pods:
            age = pods.age(self._service.monotonic())
            yield gauge("pods_age_seconds", "Age of the newest pod reading in seconds.", [({}, age)])

    def _provider(self) -> Iterator[Family]:
        health = self._service.refresher.provider_health
        if health.ok is not None:
            yield gauge("provider_up", "Whether the source responded at the last tick.", [({}, int(health.ok))])
            text = "Whether the source reported its responses as incomplete."
            yield gauge("provider_partial", text, [({}, int(health.partial))])
        failures = list(self._service.refresher.stats.query_failures.items())
        rows = [({"kind": kind, "metric": metric}, count) for (kind, metric), count in sorted(failures)]
        yield counter("provider_failures", "Failed queries; metric is empty for the whole source.", rows)
        plans = [
            ({"metric": plan.metric, "expression": plan.expression, "node_label": plan.node_label}, 1)
            for plan in list(self._service.refresher.plans.values())
        ]
        yield gauge("provider_query_info", "The query of the source for a metric; always 1.", plans)

    def _store(self) -> Iterator[Family]:
        status = self._service.store.status
        yield gauge("store_ok", "Whether the database accepts writes.", [({}, int(status.ok))])
        yield gauge("store_size_bytes", "Size of the database with its write-ahead log.", [({}, status.size_bytes)])
        yield gauge("store_queued_ticks", "Ticks waiting to be stored.", [({}, status.queued)])
        yield counter("store_dropped_records", "Window records that were dropped.", [({}, status.dropped)])
        text = "Decisions of the scheduling plug-ins that were not stored."
        yield counter("store_lost_decisions", text, [({}, status.lost_decisions)])

    def _node_metrics(self) -> Iterator[Family]:
        if self._service.publisher is None:
            return
        stats = self._service.publisher.stats
        rows = [({"outcome": outcome}, count) for outcome, count in sorted(stats.outcomes.copy().items())]
        yield counter("node_metrics", "NodeMetrics that were due, by outcome.", rows)
        text = "Whether this replica publishes NodeMetrics."
        yield gauge("node_metrics_lease_held", text, [({}, int(self._service.publisher.holds_lease))])
        text = "Nodes whose NodeMetric is reported by another program."
        yield gauge("node_metrics_left", text, [({}, len(stats.reported_elsewhere))])

    def _thresholds(self) -> Iterator[Family]:
        publisher = self._service.threshold_publisher
        if publisher is None:
            return
        rows = [({"outcome": outcome}, count) for outcome, count in sorted(publisher.stats.outcomes.copy().items())]
        yield counter("usage_thresholds", "Annotations with usage thresholds that were due, by outcome.", rows)
        text = "Whether this replica writes the usage thresholds of nodes."
        yield gauge("usage_thresholds_lease_held", text, [({}, int(publisher.holds_lease))])
        text = "Nodes whose usage thresholds were set by another writer."
        yield gauge("usage_thresholds_left", text, [({}, len(publisher.stats.left))])


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
