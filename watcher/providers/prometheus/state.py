"""State of the Prometheus provider: for each metric its query and when to search for it again, and for each fetch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from watcher.core.naming.identity import Identities
from watcher.core.naming.labels import Labels
from watcher.model import Combine, Finding, FindingKind, Metric, Remedy
from watcher.providers.prometheus.queries import PrometheusQueryPlan, QueryCandidate
from watcher.providers.prometheus.young import YoungSeries

SEARCH_EVERY_FETCHES = 5
"""Minimum number of fetches between two searches for a metric's query, and between two reads of the node names: an
address may be reassigned to another node."""
FAILURES_BEFORE_SEARCH = 3
OTHERS_EVERY_FETCHES = 20
"""Number of fetches between two searches for queries of the nodes that the query of a metric lacks."""


@dataclass(slots=True)
class MetricNames:
    """The nodes of one metric's series with the labels `rows`, as last decided. For an expression, `profiled` is the
    number of the fetch in which its series were last read. `nameless` are the keys that stay without a node, `failures`
    state which evidence could not be read."""

    rows: Sequence[Labels] = ()
    found: Identities | None = None
    profiled: int = 0
    nameless: frozenset[str] = frozenset()
    failures: Sequence[str] = ()


@dataclass(slots=True)
class PrometheusMetricState:
    """State of one metric. `looked_at` is the number of the fetch that last completed a search for the query,
    `silent` the number of consecutive fetches that failed or returned no samples. `doubted` is set by an outage.
    `single` states whether each node had exactly one series in the last complete response, None before that.
    `complete` is the number of the last fetch of the newest samples that had all of them. `others` are the states of
    further candidates, for nodes that the query lacks, as found by the search in fetch `others_at`. Such a state has
    the nodes in `only`, without those of the states `before` it."""

    metric: Metric
    candidates: tuple[QueryCandidate, ...]
    node_label: str | None
    plan: PrometheusQueryPlan | None = None
    looked_at: int | None = None
    silent: int = 0
    doubted: bool = False
    single: bool | None = None
    complete: int = 0
    names: MetricNames = field(default_factory=MetricNames)
    others: tuple[PrometheusMetricState, ...] = ()
    others_at: int | None = None
    before: tuple[PrometheusMetricState, ...] = ()
    only: frozenset[str] = frozenset()
    seen: set[str] = field(default_factory=set)
    young: YoungSeries = field(default_factory=YoungSeries)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def is_chosen(self) -> bool:
        """Whether the settings have the query, which may select one of several clusters."""
        return any(each.origin == "configured" for each in self.candidates)

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

    def must_look_for_others(self, fetching: PrometheusFetchContext) -> bool:
        """Whether to search for the queries of other nodes (again) in this fetch."""
        if self.plan is None or not fetching.present:
            return False
        return self.others_at is None or fetching.number - self.others_at >= OTHERS_EVERY_FETCHES

    def restricted(self, nodes: Sequence[str | None]) -> Sequence[str | None]:
        """These nodes of series, None for those that an earlier query has. Records which nodes this query has."""
        found = self.names.found
        if found is None:
            return nodes
        self.seen.update(node for node in found.nodes if node is not None)
        if not self.before:
            return nodes
        wanted = self.only.difference(*(each.seen for each in self.before))
        chosen = {
            text
            for pair in zip(found.names, found.nodes, strict=True)
            for text in pair
            if pair[1] in wanted and text is not None
        }
        return [node if node in chosen else None for node in nodes]

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

    def find(self, kind: FindingKind, metric: Metric, reason: str, remedy: Remedy, *, node: str = "") -> None:
        """Add a finding about a metric, at the end of the fetched range."""
        self.findings.append(Finding(kind, node, metric.name, self.until, reason, remedy))
