"""What the service tells about itself on /metrics: whether ticks run, what they found, who asks, and how old the
answers are.

Most of it is known elsewhere already (the refresher counts its ticks, the store knows its size), so it is read when a
scrape comes, not copied whenever it changes. What other processes have too is in `instruments`.
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
    """What the refresher counts. `failed` are those in which the source gave nothing, `skipped` those that were due
    while the one before still ran; `query_failures` counts by (kind of error, metric or "" for the whole source)."""

    @property
    def ticks(self) -> int: ...
    @property
    def failed(self) -> int: ...
    @property
    def skipped(self) -> int: ...
    @property
    def query_failures(self) -> Mapping[tuple[str, str], int]: ...


class StoreState(Protocol):
    """What the store tells of itself."""

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
    """What is told of writing NodeMetrics: how often it came out in which way, whether it is this replica's turn, and
    which nodes somebody else reports."""

    @property
    def outcomes(self) -> Counter[str]: ...
    @property
    def holds_lease(self) -> bool: ...
    @property
    def left(self) -> Collection[str]: ...


class Vitals(Protocol):
    """The running service, as far as /metrics tells of it. All of it is read from a worker thread."""

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
        """How many findings of each kind there have been; these only grow."""
        ...

    def store_status(self) -> StoreState | None:
        """None where nothing is stored."""
        ...

    def publish_stats(self) -> PublishState | None:
        """None where no NodeMetrics are written to the cluster."""
        ...


class Telemetry(Instruments):
    """Our own metrics, and the node windows beside them. `view` says which windows of the nodes are shown."""

    def __init__(self, *, version: str, view: View | None = None, cluster: str = "") -> None:
        super().__init__(version=version, cluster=cluster)
        self.view = view or View()
        self._vitals: Vitals | None = None
        text = "How long the stages of a refresh took."
        self._stages = Timings("refresh_duration_seconds", text, ("stage",), STAGE_S)
        self._nodes: _Nodes | None = None
        self._lock = Lock()
        self.registry.register(self._stages)

    def watch(self, vitals: Vitals) -> None:
        """Tell of this service from now on. Called once."""
        self._vitals = vitals
        self.registry.register(_VitalSigns(vitals))

    def observe_refresh(self, stage: str, seconds: float) -> None:
        """A stage of a refresh has ended: "tick" for all of it, or a part of it such as "fetch"."""
        self._stages.observe(seconds, stage)

    def exposition(self, *, encoding: Encoding = Encoding.IDENTITY) -> bytes:
        """The whole page, plain or as gzip. Takes milliseconds, and more once per snapshot: call it in a thread."""
        own = super().exposition()
        nodes = self._node_windows()
        if encoding is Encoding.GZIP:
            return gzip_of(own, nodes.deflated, b"")
        return own + nodes.text

    def _node_windows(self) -> _Nodes:
        """The nodes of what is published, unless it is stale: a line that stays flat for ever looks like a value."""
        vitals = self._vitals
        published = vitals.published if vitals is not None else None
        if vitals is None or published is None or published.age(vitals.monotonic()) > vitals.max_staleness:
            return _NOTHING
        with self._lock:  # a second scrape waits for the first one's work
            if self._nodes is None or self._nodes.tag != published.tag:
                text = node_windows(published.snapshot, self.view)
                self._nodes = _Nodes(published.tag, text, deflate(text))
            return self._nodes


@dataclass(frozen=True, slots=True)
class _Nodes:
    """The exposition of one snapshot's nodes."""

    tag: str
    text: bytes
    deflated: Deflated


_NOTHING = _Nodes("", b"", deflate(b""))


class _VitalSigns:
    """The state of the service at the moment of the scrape."""

    def __init__(self, vitals: Vitals) -> None:
        self._vitals = vitals
        self._refreshed = 0

    def collect(self) -> Iterator[Family]:
        """Called by the registry."""
        yield from self._ticks()
        yield from self._snapshot()
        yield from self._pods()
        yield from self._provider()
        yield from self._store()
        yield from self._node_metrics()
        rows = [({"kind": kind}, count) for kind, count in sorted(self._vitals.finding_counts().items())]
        yield counter("findings", "Findings of the review of samples, and about the source.", rows)

    def _ticks(self) -> Iterator[Family]:
        stats = self._vitals.stats
        # a failure is counted before its tick is, and a counter must not go back for that moment
        self._refreshed = max(self._refreshed, stats.ticks - stats.failed)
        rows = [({"outcome": "ok"}, self._refreshed), ({"outcome": "failed"}, stats.failed)]
        yield counter("refresh", "Ticks, by whether the source gave anything.", rows)
        yield counter("ticks_skipped", "Ticks that were due while the one before still ran.", [({}, stats.skipped)])

    def _snapshot(self) -> Iterator[Family]:
        published = self._vitals.published
        if published is None:
            return
        snapshot = published.snapshot
        if snapshot.nodes:
            age = published.age(self._vitals.monotonic())
            yield gauge("snapshot_age_seconds", "Age of the newest sample that is served.", [({}, age)])
        held = int(np.count_nonzero(~np.isnan(snapshot.age_s)))
        yield gauge("nodes", "Nodes that are served.", [({}, len(snapshot.nodes))])
        yield gauge("nodes_held", "Served nodes that are silent, or held through a partial outage.", [({}, held)])
        yield gauge("nodes_lost", "Nodes that went missing in a partial outage.", [({}, len(snapshot.lost))])
        yield gauge("nodes_quarantined", "Nodes that are left out.", [({}, len(snapshot.quarantined))])
        rows = [({"window": window}, ratio) for window, ratio in coverage(snapshot).items()]
        yield gauge("window_coverage_ratio", "Samples held over samples expected, mean of nodes and metrics.", rows)

    def _pods(self) -> Iterator[Family]:
        pods = self._vitals.pods
        if pods is None:
            return
        yield gauge("pods", "Pods whose use is known.", [({}, len(pods.table.pods))])
        if pods.table.pods:
            age = pods.age(self._vitals.monotonic())
            yield gauge("pods_age_seconds", "Age of the newest reading of a pod.", [({}, age)])

    def _provider(self) -> Iterator[Family]:
        health = self._vitals.provider_health
        if health.ok is not None:
            yield gauge("provider_up", "Whether the source answered at the last tick.", [({}, int(health.ok))])
            text = "Whether it said that its answers lack a part."
            yield gauge("provider_partial", text, [({}, int(health.partial))])
        failures = list(self._vitals.stats.query_failures.items())
        rows = [({"kind": kind, "metric": metric}, count) for (kind, metric), count in sorted(failures)]
        yield counter("provider_failures", "Queries that failed; metric is empty for the whole source.", rows)
        plans = [
            ({"metric": plan.metric, "expression": plan.expression, "node_label": plan.node_label}, 1)
            for plan in list(self._vitals.plans.values())
        ]
        yield gauge("provider_query_info", "What is asked of the source for a metric; always 1.", plans)

    def _store(self) -> Iterator[Family]:
        status = self._vitals.store_status()
        if status is None:
            return
        yield gauge("store_ok", "Whether the database takes what it is given.", [({}, int(status.ok))])
        yield gauge("store_size_bytes", "Size of the database with its log.", [({}, status.size_bytes)])
        yield gauge("store_queued_ticks", "Ticks that wait to be stored.", [({}, status.queued)])
        yield counter("store_dropped_records", "Window records given up for good.", [({}, status.dropped)])
        text = "Decisions of the scheduling plug-ins that were not kept."
        yield counter("store_lost_decisions", text, [({}, status.lost_decisions)])

    def _node_metrics(self) -> Iterator[Family]:
        stats = self._vitals.publish_stats()
        if stats is None:
            return
        rows = [({"outcome": outcome}, count) for outcome, count in sorted(stats.outcomes.copy().items())]
        yield counter("node_metrics", "NodeMetrics that were due, by what became of them.", rows)
        text = "Whether it is this replica that writes NodeMetrics."
        yield gauge("node_metrics_lease_held", text, [({}, int(stats.holds_lease))])
        text = "Nodes whose NodeMetric somebody else reports."
        yield gauge("node_metrics_left", text, [({}, len(stats.left))])


def coverage(snapshot: Snapshot) -> dict[str, float]:
    """Per window, the mean over all known metrics of all nodes of samples held over samples expected, 0 to 1."""
    known = [(windows.coverage, ~np.isnan(windows.latest)) for windows in snapshot.metrics]
    cells = sum(int(np.count_nonzero(here)) for _, here in known)
    if not cells:
        return {}
    return {
        window.label: round(float(sum(part[row][here].sum() for part, here in known)) / cells, 6)
        for row, window in enumerate(snapshot.windows)
    }
