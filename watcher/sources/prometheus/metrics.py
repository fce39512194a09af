"""The metrics of the Prometheus provider: the query of each, when to search for it, and the nodes of its series."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from watcher.core.naming.candidates import INSTANCE
from watcher.core.naming.identity import Identities
from watcher.core.naming.labels import EXPORTED, Labels
from watcher.model import Combine, FindingKind, Metric, Remedy
from watcher.sources.config import InstantQuery, RangeQuery
from watcher.sources.fetching import FetchContext
from watcher.sources.prometheus.evidence_queries import whole_profile
from watcher.sources.prometheus.node_names import REMEDIES, NodeEvidenceReader
from watcher.sources.prometheus.plans import PrometheusQueryPlan, distinguishes
from watcher.sources.prometheus.queries import QueryCandidate
from watcher.sources.prometheus.responses import MatrixSamples, read_labels
from watcher.sources.prometheus.young import YoungSeries
from watcher.sources.prometheus_api import PrometheusClient, PrometheusResponse

T = TypeVar("T")

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

    def note_fetch(self, fetching: FetchContext, *, found: bool | None) -> None:
        """Record the end of a fetch; `found` is None if no time of the metric was in its range."""
        if not fetching.present:
            return
        if self.metric.name not in fetching.partial:
            self.complete = fetching.number
        if found is not None:
            self.silent = 0 if found else self.silent + 1

    def must_look_for_others(self, fetching: FetchContext) -> bool:
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


# --- queries of a fetch ----------------------------------------------------------------------------------------------


async def send_query(
    client: PrometheusClient,
    question: InstantQuery | RangeQuery,
    *,
    metric: Metric,
    fetching: FetchContext,
    read: Callable[[Iterable[msgspec.Raw]], T],
) -> PrometheusResponse[T]:
    """Send one query of a fetch; the server's remarks become findings of the metric. An instant query without a range
    returns a vector. Raises ProviderError."""
    expects = "vector" if isinstance(question, InstantQuery) and not question.query.endswith("]") else "matrix"
    reply = await client.ask(question, expects=expects, read=read, deadline=fetching.deadline)
    for remark in reply.remarks:
        fetching.find(FindingKind.QUERY_FAILED, metric, f"warning of the source: {remark}", Remedy.REPORTED)
    if reply.missing:
        fetching.partial[metric.name] = reply.missing
    fetching.note_clock(reply.clock_offset_s, round_trip_s=reply.round_trip_s)
    return reply


# --- nodes -----------------------------------------------------------------------------------------------------------


class NodeNamesReader:
    """The nodes of the series of the Prometheus provider's metrics."""

    def __init__(self, client: PrometheusClient, evidence: NodeEvidenceReader) -> None:
        self._client, self.evidence = client, evidence

    async def of_profile(
        self, rows: Sequence[Labels], asked: str, watch: PrometheusMetricState, fetching: FetchContext
    ) -> Identities:
        """The nodes of the series of a search for a query."""
        return await self._decide(rows, asked, watch, fetching, at_most_old=0)

    async def nodes_of(
        self,
        reading: MatrixSamples,
        plan: PrometheusQueryPlan,
        watch: PrometheusMetricState,
        fetching: FetchContext,
    ) -> Sequence[str | None]:
        """Node of each series, None if unknown. Adds the findings about them."""
        asked = plan.candidate.evidence
        if plan.scrape_interval is None:
            rows: Sequence[Labels] = reading.rows
            found = await self._decide(rows, asked, watch, fetching, at_most_old=SEARCH_EVERY_FETCHES)
            unnamed = {
                _text(row)
                for row, node, by in zip(rows, found.nodes, found.origins, strict=True)
                if node is None or (by != found.by and by in (INSTANCE, EXPORTED + INSTANCE))
            }
            if unnamed - watch.names.nameless:
                found = await self._decide(rows, asked, watch, fetching, at_most_old=0)
                watch.names.nameless |= unnamed
            watch.doubted |= bool(found.by) and plan.label.origin != found.by
            nodes = self._chosen(found)
        else:
            found = await self._profiled(reading.keys, plan, watch, fetching)
            by_key = _by_key(plan, watch.names.rows, self._chosen(found))
            nodes = tuple(by_key.get(key) if key else None for key in reading.keys)
        for reason in watch.names.failures:
            fetching.find(FindingKind.QUERY_FAILED, watch.metric, reason, Remedy.REPORTED)
        for problem in found.problems:
            reason = f"{problem.reason} ({found.evidence})"
            fetching.find(problem.kind, watch.metric, reason, REMEDIES[problem.kind], node=problem.node)
        return nodes

    def _chosen(self, found: Identities) -> Sequence[str | None]:
        return found.names if self.evidence.translates else found.nodes

    async def _profiled(
        self,
        keys: Sequence[str | None],
        plan: PrometheusQueryPlan,
        watch: PrometheusMetricState,
        fetching: FetchContext,
    ) -> Identities:
        """The nodes of the series behind an expression, which are read again if results have new keys, and every few
        fetches: the expression does not show new series of other machines."""
        names = watch.names
        known = {plan.label.key(row) for row in names.rows}
        new = {key for key in keys if key} - known - names.nameless
        old = fetching.number - names.profiled > SEARCH_EVERY_FETCHES and fetching.present
        if new or old or not names.rows:
            query = InstantQuery(whole_profile(plan.candidate.evidence), max(fetching.until, fetching.latest))
            reply = await send_query(self._client, query, metric=watch.metric, fetching=fetching, read=read_labels)
            rows: Sequence[Labels] = reply.content
            if reply.missing or not fetching.present:
                seen = {plan.label.key(row) for row in rows}
                rows = [*rows, *(row for row in names.rows if plan.label.key(row) not in seen)]
            names.profiled = fetching.number
            names.nameless = frozenset(new) if old else names.nameless | new
            found = await self._decide(rows, plan.candidate.evidence, watch, fetching, at_most_old=0)
            watch.doubted |= not distinguishes(plan.label, rows, found)
            return found
        return await self._decide(
            names.rows, plan.candidate.evidence, watch, fetching, at_most_old=SEARCH_EVERY_FETCHES
        )

    async def _decide(
        self,
        rows: Sequence[Labels],
        asked: str,
        watch: PrometheusMetricState,
        fetching: FetchContext,
        *,
        at_most_old: int,
    ) -> Identities:
        async def ask(query: str, read: Callable[[Iterable[msgspec.Raw]], T]) -> PrometheusResponse[T]:
            question = InstantQuery(query, max(fetching.until, fetching.latest))
            return await send_query(self._client, question, metric=watch.metric, fetching=fetching, read=read)

        decision = await self.evidence.decide(
            rows,
            asked,
            ask,
            number=fetching.number,
            at_most_old=at_most_old,
            configured=watch.node_label,
            chosen=watch.is_chosen,
        )
        if decision.missing:
            fetching.partial.setdefault(watch.metric.name, decision.missing)
        watch.names.rows, watch.names.found, watch.names.failures = rows, decision.found, decision.failures
        return decision.found


def _text(row: Labels) -> str:
    return ",".join(f"{label}={row[label]}" for label in sorted(row) if label != "__name__")


def _by_key(plan: PrometheusQueryPlan, rows: Sequence[Labels], nodes: Sequence[str | None]) -> Mapping[str, str | None]:
    """Node by key; None for a key that series of several nodes have."""
    found: dict[str, str | None] = {}
    for row, node in zip(rows, nodes, strict=True):
        if key := plan.label.key(row):
            found[key] = node if found.setdefault(key, node) == node else None
    return found
