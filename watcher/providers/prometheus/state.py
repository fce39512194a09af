"""State of the Prometheus provider: for each metric its query and when to search for it again, and for each fetch."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from watcher.model import Combine, Finding, FindingKind, Metric, Remedy
from watcher.providers.prometheus.queries import PrometheusQueryPlan, QueryCandidate

SEARCH_EVERY_FETCHES = 5
"""Minimum number of fetches between two searches for a metric's query, and between two reads of the node names: an
address may be reassigned to another node."""
FAILURES_BEFORE_SEARCH = 3


@dataclass(slots=True)
class PrometheusMetricState:
    """State of one metric. `looked_at` is the number of the fetch that last completed a search for the query,
    `silent` the number of consecutive fetches that failed or returned no samples. `doubted` is set by an outage.
    `single` states whether each node had exactly one series in the last complete response, None before that.
    `complete` is the number of the last fetch of the newest samples that had all of them."""

    metric: Metric
    candidates: tuple[QueryCandidate, ...]
    node_label: str | None
    plan: PrometheusQueryPlan | None = None
    looked_at: int | None = None
    silent: int = 0
    doubted: bool = False
    single: bool | None = None
    complete: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def must_look(self, fetch: int) -> bool:
        """Whether to search for the query (again) in this fetch."""
        if self.looked_at is None:
            return True
        lost = self.plan is None or self.doubted or self.silent >= FAILURES_BEFORE_SEARCH
        return lost and fetch - self.looked_at >= SEARCH_EVERY_FETCHES

    def note_fetch(self, fetching: PrometheusFetchContext, *, found: bool | None) -> None:
        """Record the end of a fetch; `found` is None if no time of the metric was in its range."""
        if not fetching.present:
            return
        if self.metric.name not in fetching.partial:
            self.complete = fetching.number
        if found is not None:
            self.silent = 0 if found else self.silent + 1

    def is_true_in_part(self) -> bool:
        """Whether the samples of a node in a partial response are correct: stored series, one for each node. A value
        computed from several series is too low if one of them is missing."""
        if self.plan is None or self.plan.scrape_interval is not None:
            return False
        return self.metric.combine is Combine.NEWEST_MAX if self.single is None else self.single


@dataclass(slots=True)
class PrometheusFetchContext:
    """State of one running fetch. `since`, `until` and the end `latest` of the newest fetch are unix seconds,
    `deadline` is in event loop time. `present` is false for backfill, in which an empty result is not a gap. `clock`
    are pairs of round trip time and clock offset in seconds. `partial` maps a metric name to the source's message that
    its response is incomplete."""

    number: int
    since: float
    until: float
    deadline: float
    present: bool
    latest: float
    findings: list[Finding] = field(default_factory=list)
    clock: list[tuple[float, float]] = field(default_factory=list)
    partial: dict[str, str] = field(default_factory=dict)

    def find(self, kind: FindingKind, metric: Metric, reason: str, remedy: Remedy) -> None:
        """Add a finding about a metric, at the end of the fetched range."""
        self.findings.append(Finding(kind, "", metric.name, self.until, reason, remedy))
