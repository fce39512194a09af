"""Search for the query of a metric: the first candidate with series, and the label that names their nodes."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from watcher.core.messages import shorten_names
from watcher.core.naming.identity import Identities
from watcher.core.naming.labels import Labels, host_of
from watcher.core.queries.matchers import narrowed
from watcher.core.queries.promql import is_plain
from watcher.sources.config import InstantQuery
from watcher.sources.errors import ProviderRefused
from watcher.sources.fetching import FetchContext
from watcher.sources.prometheus.evidence_queries import PROFILE_LABELS, whole_profile
from watcher.sources.prometheus.metrics import NodeNamesReader, PrometheusMetricState, send_query
from watcher.sources.prometheus.plans import NodeLabel, PrometheusQueryPlan, among, labels_of, make_plan
from watcher.sources.prometheus.queries import QueryCandidate
from watcher.sources.prometheus.responses import read_labels, read_numbers, scrape_interval
from watcher.sources.prometheus_api import PrometheusClient

log = logging.getLogger(__name__)

SAMPLED_INSTANCES = 3
SAMPLED_RANGE = "10m"


class QuerySearch:
    """Searches the series of one server. All methods raise ProviderError."""

    def __init__(self, client: PrometheusClient, names: NodeNamesReader) -> None:
        self._client, self._names = client, names

    async def find_plan(self, watch: PrometheusMetricState, fetching: FetchContext) -> PrometheusQueryPlan | None:
        """Plan of the first candidate that has series; None if none has."""
        rejected: list[str] = []
        for candidate in watch.candidates:
            rows = await self.profile(candidate, watch, fetching)
            if rows:
                return await self._settle(candidate, rows, watch, fetching, rejected)
            rejected.append(candidate.evidence)
        return None

    async def find_others(
        self, watch: PrometheusMetricState, fetching: FetchContext
    ) -> tuple[PrometheusMetricState, ...]:
        """States with the queries of further candidates, each for the nodes that all queries before it lack: a rule may
        cover the nodes of one operating system only, and exporters of two generations may run side by side."""
        assert watch.plan is not None
        evidence = watch.plan.candidate.evidence
        place = [each.evidence for each in watch.candidates].index(evidence)
        # Those before it have no series if the plan was found in this fetch.
        better = () if watch.looked_at == fetching.number else watch.candidates[:place]
        further = (*better, *watch.candidates[place + 1 :])
        if not further:
            return ()
        if watch.names.profiled != fetching.number:
            rows = await self.profile(watch.plan.candidate, watch, fetching)
            await self._names.of_profile(rows, evidence, watch, fetching)
            watch.names.profiled = fetching.number
        before = [watch]
        watch.seen = _nodes_of(watch)
        known = {each.candidates: each for each in watch.others}
        for candidate in further:
            rows = await self.profile(candidate, watch, fetching)
            if not rows:
                continue
            state = known.get((candidate,)) or PrometheusMetricState(watch.metric, (candidate,), watch.node_label)
            found = await self._names.of_profile(rows, candidate.evidence, state, fetching)
            state.before, state.only = tuple(before), frozenset(_lacking(rows, found, before))
            if not state.only:
                continue
            if state.plan is None or state.doubted:
                try:
                    state.plan = await self._settle(candidate, rows, state, fetching, ())
                except ProviderRefused as error:
                    log.debug("%s is not used for more nodes: %s", candidate.evidence, error)
                    continue
                state.doubted = False
            state.seen = _nodes_of(state)
            before.append(state)
        return tuple(before[1:])

    async def profile(
        self, candidate: QueryCandidate, watch: PrometheusMetricState, fetching: FetchContext
    ) -> list[dict[str, str]]:
        """Labels of all series of a candidate; empty if the candidate has no series."""
        question = InstantQuery(whole_profile(candidate.evidence), fetching.until)
        return (
            await send_query(self._client, question, metric=watch.metric, fetching=fetching, read=read_labels)
        ).content

    async def _settle(
        self,
        candidate: QueryCandidate,
        rows: Sequence[Labels],
        watch: PrometheusMetricState,
        fetching: FetchContext,
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
        fetching: FetchContext,
    ) -> QueryCandidate:
        """The candidate with its cheaper expression, if the condition for it holds."""
        question = InstantQuery(candidate.condition.replace("<label>", label.text), fetching.until)
        reply = await send_query(
            self._client, question, metric=watch.metric, fetching=fetching, read=lambda rows: read_numbers(rows, label)
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
        fetching: FetchContext,
    ) -> NodeLabel:
        wanted = watch.node_label
        found = await self._names.of_profile(rows, candidate.evidence, watch, fetching)
        watch.names.profiled = fetching.number
        label = labels_of(rows, found)
        if label is None and found.problems:
            label = NodeLabel(next((name for name in PROFILE_LABELS if any(row.get(name) for row in rows)), "instance"))
        if label is not None:
            return label
        question = InstantQuery(f"topk(1, {candidate.evidence})", fetching.until)
        examples = await send_query(self._client, question, metric=watch.metric, fetching=fetching, read=read_labels)
        example = next(iter(examples.content), {})  # a server may answer with more than one
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
        fetching: FetchContext,
    ) -> float | None:
        """Scrape interval in seconds, measured on a few of the raw series; None if there are too few samples."""
        for label in ("instance", *PROFILE_LABELS):
            values = sorted({row[label] for row in rows if row.get(label)})[:SAMPLED_INSTANCES]
            if values:
                selector = narrowed(candidate.raw, among(label, values))
                question = InstantQuery(f"{selector}[{SAMPLED_RANGE}]", fetching.until)
                return (
                    await send_query(
                        self._client, question, metric=watch.metric, fetching=fetching, read=scrape_interval
                    )
                ).content
        return None


# --- pure functions --------------------------------------------------------------------------------------------------


def _nodes_of(state: PrometheusMetricState) -> set[str]:
    return {node for node in state.names.found.nodes if node} if state.names.found else set()


def _lacking(rows: Sequence[Labels], found: Identities, before: Sequence[PrometheusMetricState]) -> set[str]:
    """The nodes of these series that the queries `before` lack. Without known nodes, the names of two queries may come
    from different labels, so the hosts of the exporters distinguish machines."""
    nodes = {node for node in found.nodes if node is not None}.difference(*map(_nodes_of, before))
    if any(each.mapped for each in found.counts):
        return nodes
    others = [each.names for each in before if each.names.found is not None]
    hosts = {host_of(row) for each in others for row in each.rows} - {""}
    comparable = hosts or all(each.found is not None and each.found.by == found.by for each in others)
    there = {node for row, node in zip(rows, found.nodes, strict=True) if host_of(row) in hosts}
    return nodes - there if comparable else set()
