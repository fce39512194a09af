"""Search for the query of a metric: the first candidate with series, and the label that names their nodes."""

from __future__ import annotations

from collections.abc import Sequence

from watcher.core.messages import shorten_names
from watcher.core.queries.matchers import narrowed
from watcher.core.queries.promql import is_plain
from watcher.platform.sources.config import InstantQuery
from watcher.platform.sources.errors import ProviderRefused
from watcher.providers.prometheus.metric_client import MetricClient
from watcher.providers.prometheus.node_names import NodeNamesReader
from watcher.providers.prometheus.queries import (
    PROFILE_LABELS,
    Labels,
    NodeLabel,
    NodeNames,
    PrometheusQueryPlan,
    QueryCandidate,
    among,
    configured_label,
    direct_label,
    fallback_label,
    make_plan,
    profile,
)
from watcher.providers.prometheus.responses import read_labels, read_numbers, scrape_interval
from watcher.providers.prometheus.state import PrometheusFetchContext, PrometheusMetricState

SAMPLED_INSTANCES = 3
SAMPLED_RANGE = "10m"
NO_NAMES = NodeNames("nodename", {})


class QuerySearch:
    """Searches the series of one server. All methods raise ProviderError."""

    def __init__(self, client: MetricClient, names: NodeNamesReader) -> None:
        self._client, self._names = client, names

    async def find_plan(
        self, watch: PrometheusMetricState, fetching: PrometheusFetchContext
    ) -> PrometheusQueryPlan | None:
        """Plan of the first candidate that has series; None if none has."""
        rejected: list[str] = []
        for candidate in watch.candidates:
            rows = await self._profile(candidate, watch, fetching)
            if rows:
                return await self._settle(candidate, rows, watch, fetching, rejected)
            rejected.append(candidate.evidence)
        return None

    async def _profile(
        self, candidate: QueryCandidate, watch: PrometheusMetricState, fetching: PrometheusFetchContext
    ) -> list[dict[str, str]]:
        """Labels that may identify nodes, for all series of a candidate; empty if the candidate has no series."""
        labels = (*PROFILE_LABELS, watch.node_label) if watch.node_label else PROFILE_LABELS
        question = InstantQuery(profile(candidate.evidence, labels=labels), fetching.until)
        return (await self._client.ask(question, metric=watch.metric, fetching=fetching, read=read_labels)).content

    async def _settle(
        self,
        candidate: QueryCandidate,
        rows: Sequence[Labels],
        watch: PrometheusMetricState,
        fetching: PrometheusFetchContext,
        rejected: Sequence[str],
    ) -> PrometheusQueryPlan:
        label = await self._choose_label(candidate, rows, watch, fetching)
        interval = None
        if candidate.raw and not is_plain(candidate.expression):
            interval = await self._scrape_interval(candidate, rows, watch, fetching)
        if candidate.cheaper:
            candidate = await self._cheaper(candidate, label, watch, fetching)
        return make_plan(watch.metric, candidate, label=label, scrape_interval=interval, rejected=rejected)

    async def _cheaper(
        self,
        candidate: QueryCandidate,
        label: NodeLabel,
        watch: PrometheusMetricState,
        fetching: PrometheusFetchContext,
    ) -> QueryCandidate:
        """The candidate with its cheaper expression, if the condition for it holds."""
        question = InstantQuery(candidate.condition.replace("<label>", label.label), fetching.until)
        reply = await self._client.ask(
            question, metric=watch.metric, fetching=fetching, read=lambda rows: read_numbers(rows, label)
        )
        numbers = set(reply.content.values())
        if len(numbers) != 1 or 0 in numbers or reply.missing:
            return candidate
        return candidate.made_cheaper(numbers.pop())

    async def _choose_label(
        self,
        candidate: QueryCandidate,
        rows: Sequence[Labels],
        watch: PrometheusMetricState,
        fetching: PrometheusFetchContext,
    ) -> NodeLabel:
        wanted = watch.node_label
        if wanted is None:
            label = direct_label(rows) or fallback_label(rows, await self._names.read(watch, fetching, at_most_old=0))
        else:
            joined = wanted == "nodename" and not any(row.get(wanted) for row in rows)
            names = await self._names.read(watch, fetching, at_most_old=0) if joined else NO_NAMES
            label = configured_label(wanted, rows, names)
        if label is not None:
            return label
        question = InstantQuery(f"topk(1, {candidate.evidence})", fetching.until)
        examples = await self._client.ask(question, metric=watch.metric, fetching=fetching, read=read_labels)
        (example,) = examples.content or [{}]
        there = shorten_names(sorted(example.keys() - {"__name__"})) or "none"
        raise ProviderRefused(
            f"no label of {candidate.evidence} names the nodes (tried {wanted or ', '.join(PROFILE_LABELS)});"
            f" its labels: {there}",
            hint=f"Set provider.node_label, or provider.queries.{watch.metric.key}.node_label.",
        )

    async def _scrape_interval(
        self,
        candidate: QueryCandidate,
        rows: Sequence[Labels],
        watch: PrometheusMetricState,
        fetching: PrometheusFetchContext,
    ) -> float | None:
        """Scrape interval in seconds, measured on a few of the raw series; None if there are too few samples."""
        for label in ("instance", *PROFILE_LABELS):
            values = sorted({row[label] for row in rows if row.get(label)})[:SAMPLED_INSTANCES]
            if values:
                selector = narrowed(candidate.raw, among(label, values))
                question = InstantQuery(f"{selector}[{SAMPLED_RANGE}]", fetching.until)
                return (
                    await self._client.ask(question, metric=watch.metric, fetching=fetching, read=scrape_interval)
                ).content
        return None
