"""Provider of samples from Prometheus, Thanos, Mimir or VictoriaMetrics.

The queries depend on the cluster, because clusters name the same load and the same nodes differently. The provider
therefore searches for them at the first fetch, and again when a query stops returning samples (candidates:
queries.py). To keep the load on the server low, a fetch sends one query per metric, for the time since the previous
fetch only. It does not query statistics over whole windows, so the number and length of the windows do not matter to
the server.

A failed query affects its metric, not the fetch. search.py finds the queries, raw_series.py restricts them to nodes
with current samples, and responses.py parses the samples.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

import msgspec

from watcher.core.config.settings import Settings
from watcher.core.forecast.maxima import SLOT_S
from watcher.core.messages import shorten_names
from watcher.core.naming.name_resolver import NodeIndex
from watcher.core.pods.coverage import PodGaps
from watcher.core.windows.settings import RefreshSettings
from watcher.model import FindingKind, Remedy, SeriesBatch
from watcher.sources.base import Fetch, PodFetch, QueryFailure, QueryPlan
from watcher.sources.config import InstantQuery
from watcher.sources.errors import ProviderError, ProviderPartial, ProviderRefused
from watcher.sources.fetching import (
    FetchContext,
    FetchTracker,
    Outcome,
    fetch_of,
    gather_outcomes,
    out_of_range_findings,
)
from watcher.sources.prometheus.metrics import (
    FAILURES_BEFORE_SEARCH,
    NodeNamesReader,
    PrometheusMetricState,
    send_query,
)
from watcher.sources.prometheus.node_names import NodeEvidenceReader
from watcher.sources.prometheus.plans import PrometheusQueryPlan
from watcher.sources.prometheus.pods import PrometheusPodReader
from watcher.sources.prometheus.queries import candidates
from watcher.sources.prometheus.raw_series import (
    DuplicateReader,
    Guard,
    GuardedFetch,
    GuardReader,
    Times,
    collector_of,
    exporter_of,
)
from watcher.sources.prometheus.responses import MatrixSamples, batch_of, joined, read_samples
from watcher.sources.prometheus.search import QuerySearch
from watcher.sources.prometheus.young import YoungSeries, mature_maxima, young_slots
from watcher.sources.prometheus_api import PrometheusClient, PrometheusResponse
from watcher.sources.settings import ProviderSettings

log = logging.getLogger(__name__)

T = TypeVar("T")

VICTORIA_METRICS_BEYOND_S = 75.0
"""In the response to a range query, VictoriaMetrics replaces the values of the last 30 seconds by an older value
(-search.latencyOffset), and not every version has a parameter that disables this. It does not do so for a range that
ends more than one step after its current time. Queries are therefore extended by this number of seconds, which
covers a step, clock differences and queueing. Samples after the requested range are dropped (responses.batch_of)."""


class PrometheusProvider:
    """Provider (sources/base.py) for the query API of Prometheus. Raises ValueError for an address that is not one."""

    def __init__(self, settings: ProviderSettings, refresh: RefreshSettings) -> None:
        self._refresh = refresh
        self._client = PrometheusClient(settings)
        self._names = NodeNamesReader(self._client, NodeEvidenceReader(settings.matchers))
        self._search = QuerySearch(self._client, self._names)
        self._pods = PrometheusPodReader(
            settings, self._client, source=self.source, fetch_deadline=refresh.fetch_deadline
        )
        self._watches = {
            metric.name: PrometheusMetricState(
                metric,
                candidates(metric, settings.queries.get(metric.key), matchers=settings.matchers),
                (query.node_label if (query := settings.queries.get(metric.key)) else None) or settings.node_label,
            )
            for metric in settings.wanted
        }
        self._fetches = FetchTracker(refresh)
        self._guards = GuardReader()
        self._duplicates = DuplicateReader(self._client)
        self._absent: list[str] = []

    @property
    def source(self) -> str:
        """Source name as published in GET /watcher; the same as in the Go load-watcher."""
        return "Prometheus"

    @property
    def remembers(self) -> bool:
        """True: Prometheus stores past samples."""
        return True

    @property
    def maxima_pace(self) -> float:
        """One second: a request for maxima reads up to an hour of samples of all nodes."""
        return 1.0

    def know_nodes(self, index: NodeIndex | None) -> None:
        """Decide the nodes of series with the nodes of the cluster from now on (base.NodeAwareProvider)."""
        self._names.evidence.cluster = index
        self._pods.evidence.cluster = index

    async def start(self) -> None:
        """Log if TLS verification is disabled. Sends no request."""
        self._client.start()

    async def close(self) -> None:
        """Abort all queries and close the connections."""
        await self._client.close()

    async def fetch(self, since: float, until: float, *, only: Collection[str] | None = None) -> Fetch:
        """Samples with since <= time <= until (unix seconds), of all wanted metrics or the metrics in `only`.

        Raises ProviderError if every metric failed: unreachable before refused before partial before malformed.
        """
        fetching = self._fetches.begin(since, until)
        watches = [watch for name, watch in self._watches.items() if only is None or name in only]
        try:
            outcomes = await gather_outcomes(self._fetch_metric(watch, fetching) for watch in watches)
        except ProviderError:
            self._doubt_everything()
            raise
        if fetching.present:
            failed = {outcome.metric for outcome in outcomes if isinstance(outcome, QueryFailure)}
            for watch in watches:
                if watch.metric.name not in failed:
                    await self._report_duplicates(watch, fetching)
        plans = {name: _shown(watch) for name, watch in self._watches.items() if watch.plan is not None}
        self._announce_absent()
        self._fetches.announce(plans, address=self._client.address)
        return replace(
            fetch_of(outcomes, fetching, plans=plans),
            naming={name: each.names.found.evidence for name, each in self._watches.items() if each.names.found},
            known=self._names.evidence.known,
        )

    async def fetch_maxima(self, since: float, until: float, *, metric: str) -> Fetch:
        """The maxima of a metric (base.MaximaProvider), none before its query is found. Raises ProviderError."""
        watch = self._watches.get(metric)
        if watch is None or watch.plan is None:
            return Fetch(batches=())
        fetching = self._fetches.begin_past(since, until)
        batches = [await self._maxima(each, fetching) for each in (watch, *watch.others)]
        batch = joined(*batches)
        return Fetch(batches=() if batch is None else (batch,), plans={metric: _shown(watch)})

    async def _maxima(self, watch: PrometheusMetricState, fetching: FetchContext) -> SeriesBatch | None:
        plan, since, until = watch.plan, fetching.since, fetching.until
        if plan is None:
            return None
        full_s = plan.candidate.young_s
        begin = since - SLOT_S * young_slots(full_s, SLOT_S) if full_s else since
        reply = await send_query(
            self._client,
            plan.maxima_question(begin, until),
            metric=plan.metric,
            fetching=fetching,
            read=lambda rows: read_samples(
                rows, label=plan.label, metric=plan.metric, stale_markers=self._client.victoria_metrics
            ),
        )
        if reply.missing:
            raise self._partial(reply.missing, "a maximum may be too low")
        reading = reply.content
        if full_s:
            reading = reading.where(mature_maxima(reading, begin, until, full_s=full_s, step=SLOT_S))
        reading = replace(reading, time=reading.time - SLOT_S / 2)  # the middle of the five minutes
        nodes = watch.restricted(await self._names.nodes_of(reading, plan, watch, fetching))
        return batch_of(plan, reading, nodes, since=since, until=until)

    async def fetch_pods(self, now: float) -> PodFetch:
        """Pod usage at `now` (unix seconds) from cAdvisor's series."""
        return await self._pods.fetch(now)

    async def pod_gaps(self, now: float) -> PodGaps:
        """Why nodes have no pod usage at `now` (unix seconds): which cAdvisors Prometheus scrapes."""
        return await self._pods.gaps(now)

    def _doubt_everything(self) -> None:
        """Search for all queries again: after an outage the source may have different series."""
        for watch in self._watches.values():
            watch.doubted = True

    def _announce_absent(self) -> None:
        """Log the metrics without series if they changed since the last fetch."""
        absent = [watch.metric.key for watch in self._watches.values() if watch.plan is None and watch.looked_at]
        if absent != self._absent:
            self._absent = absent
            names = ", ".join(absent) or "none"
            log.info("metrics without series at %s, left out: %s", self._client.address, names)

    # --- one metric --------------------------------------------------------------------------------------------------

    async def _fetch_metric(self, watch: PrometheusMetricState, fetching: FetchContext) -> Sequence[Outcome]:
        """Outcome of one metric: samples, failure, or None without samples in the range. A metric without series is not
        queried at each fetch, and has no outcome then: it does not show that the source is available."""
        try:
            await self._look(watch, fetching)
            batch = await self._ask_for_samples(watch, fetching)
        except ProviderError as error:
            watch.silent += fetching.present
            return [QueryFailure(watch.metric.name, error)]
        batch = joined(batch, *[await self._of_other_nodes(other, fetching) for other in watch.others])
        if fetching.present:
            self._report_absence(watch, fetching)
        return [batch] if watch.plan is not None or watch.looked_at == fetching.number else []

    async def _of_other_nodes(self, other: PrometheusMetricState, fetching: FetchContext) -> SeriesBatch | None:
        """Samples of the nodes that have another query. If it fails, the response is partial."""
        try:
            return await self._ask_for_samples(other, fetching)
        except ProviderError as error:
            expression = other.candidates[0].evidence
            fetching.partial.setdefault(other.metric.name, f"{expression}: {error}")
            return None

    def _report_absence(self, watch: PrometheusMetricState, fetching: FetchContext) -> None:
        if watch.plan is None:
            looked_for = ", ".join(candidate.evidence for candidate in watch.candidates)
            reason = f"no series of any of: {looked_for}" if len(watch.candidates) > 1 else f"no series of {looked_for}"
            fetching.find(FindingKind.NO_SERIES, watch.metric, reason, Remedy.LEFT_OUT)
        elif watch.silent >= FAILURES_BEFORE_SEARCH:
            reason = f"{watch.plan.expression} returned no samples in the last {watch.silent} fetches"
            fetching.find(FindingKind.NO_SERIES, watch.metric, reason, Remedy.LEFT_OUT)

    async def _report_duplicates(self, watch: PrometheusMetricState, fetching: FetchContext) -> None:
        """Report duplicates behind an expression, once for the metrics of one collector. Series of several machines,
        which are left out, are not duplicates."""
        problems = watch.names.found.problems if watch.names.found is not None else ()
        if any(problem.kind is FindingKind.AMBIGUOUS_NODE for problem in problems):
            return
        plans = [plan for plan in self._plans() if self._is_computed(plan) and plan.candidate.origin != "configured"]
        for each in (watch, *watch.others):
            plan = each.plan
            if plan in plans and plan is next(other for other in plans if collector_of(other) == collector_of(plan)):
                await self._duplicates.find(plan, fetching)

    def _plans(self) -> Sequence[PrometheusQueryPlan]:
        states = (state for watch in self._watches.values() for state in (watch, *watch.others))
        return [state.plan for state in states if state.plan is not None]

    @staticmethod
    def _is_computed(plan: PrometheusQueryPlan) -> bool:
        return plan.scrape_interval is not None and bool(plan.candidate.raw)

    async def _ask_for_samples(self, watch: PrometheusMetricState, fetching: FetchContext) -> SeriesBatch | None:
        plan = watch.plan
        if plan is None:
            return None
        transport = self._client
        guard = await self._read_guard(plan, watch, fetching)
        since = fetching.since if guard is None else guard.since
        beyond = VICTORIA_METRICS_BEYOND_S if transport.victoria_metrics and fetching.present else 0.0
        young = watch.young if fetching.present else YoungSeries()
        full_s = plan.candidate.young_s
        begin = young.begin(since, full_s=full_s) if full_s else since
        question = plan.question(
            begin, fetching.until, resolution=self._refresh.finest_resolution, beyond=beyond, guarded=guard is None
        )
        if question is None:
            watch.note_fetch(fetching, found=None)
            return None
        reply = await send_query(
            self._client,
            question,
            metric=plan.metric,
            fetching=fetching,
            # Prometheus does not return staleness markers, VictoriaMetrics returns them as NaN.
            read=lambda rows: read_samples(
                rows, label=plan.label, metric=plan.metric, stale_markers=transport.victoria_metrics
            ),
        )
        reading = reply.content if guard is None else reply.content.where(guard.accepts(reply.content))
        dropped = False
        if full_s:
            mature = await asyncio.to_thread(young.mature, reading, begin, fetching.until, full_s=full_s)
            dropped = self._report_young(reading.where(~mature & (reading.time >= since)), plan, fetching)
            reading = reading.where(mature & (reading.time >= since))
        nodes = await self._names.nodes_of(reading, plan, watch, fetching)
        if reply.missing and not watch.is_true_in_part():
            raise self._computed_from_part(reply.missing, plan)
        if not reply.missing and len(nodes):
            named = [node for node in nodes if node is not None]
            watch.single = len(set(named)) == len(named)
        if len(nodes) and not any(nodes) and not (watch.names.found and watch.names.found.problems):
            raise ProviderRefused(
                f"no series of {plan.expression} names its node by {plan.label.shown};"
                f" their labels: {shorten_names(sorted(reading.labels)) or 'none'}",
                hint="Set provider.node_label to the label that names the Kubernetes node.",
            )
        problems = watch.names.found is not None and bool(watch.names.found.problems)
        self._report_unknown(reading, nodes, plan, fetching, problems)
        nodes = watch.restricted(nodes)
        fetching.findings += out_of_range_findings(
            plan.metric, reading.time, since=fetching.since, until=fetching.until, beyond=beyond
        )
        batch = batch_of(plan, reading, nodes, since=since, until=fetching.until)
        watch.note_fetch(fetching, found=batch is not None or problems or dropped)
        return batch

    @staticmethod
    def _report_young(young: MatrixSamples, plan: PrometheusQueryPlan, fetching: FetchContext) -> bool:
        """Report the samples that are too high because the counters of their nodes are new; return whether there are
        such."""
        names = sorted({young.keys[i] or "" for i in set(young.series.tolist())})
        reason = (
            f"{plan.expression} is too high for {plan.candidate.smoothing_s:.0f} s after the counters of a node began,"
            f" and the samples are dropped: {shorten_names(names)}"
        )
        if names:
            fetching.find(FindingKind.COUNTER_RESET, plan.metric, reason, Remedy.DROPPED)
        return bool(names)

    async def _read_guard(
        self, plan: PrometheusQueryPlan, watch: PrometheusMetricState, fetching: FetchContext
    ) -> Guard | None:
        """The guard of an expression, None if the expression must contain it or has none. Raises ProviderError."""
        if plan.scrape_interval is None or not plan.candidate.raw:
            return None
        # The newest values of VictoriaMetrics change.
        if self._client.victoria_metrics or not fetching.present:
            return None

        async def ask(
            question: InstantQuery, read: Callable[[Iterable[msgspec.Raw]], Times]
        ) -> PrometheusResponse[Times]:
            return await send_query(self._client, question, metric=plan.metric, fetching=fetching, read=read)

        plans = [each for each in self._plans() if each.scrape_interval]
        leading = next(each for each in plans if exporter_of(each) == exporter_of(plan))
        own = next(each for each in plans if collector_of(each) == collector_of(plan))
        complete = watch.complete == fetching.number - 1
        fetch = GuardedFetch(fetching.number, fetching.since, fetching.until, complete)
        guard = await self._guards.read(own, leading, fetch, ask)
        if guard is not None and guard.missing:
            raise self._computed_from_part(guard.missing, plan)
        return guard

    def _partial(self, missing: str, why: str, *, hint: str = "") -> ProviderPartial:
        return ProviderPartial(f"{self._client.address}: the response is partial, and {why}: {missing}", hint=hint)

    def _computed_from_part(self, missing: str, plan: PrometheusQueryPlan) -> ProviderPartial:
        return self._partial(
            missing,
            f"{plan.metric.key} is computed from several series of a node, and some of them may be missing",
            hint="A recording rule with one series for each node can be used even if the response is partial.",
        )

    def _report_unknown(
        self,
        reading: MatrixSamples,
        nodes: Sequence[str | None],
        plan: PrometheusQueryPlan,
        fetching: FetchContext,
        problems: bool,
    ) -> None:
        """Add one finding about all series of a metric without a node, unless there are findings with the reasons."""
        unknown = nodes.count(None)
        if not unknown or problems:
            return
        if reading.labels:
            seen = f"label {plan.label.text} is not among {shorten_names(sorted(reading.labels))}"
        else:
            nameless = sorted({key for key, node in zip(reading.keys, nodes, strict=True) if key and node is None})
            seen = f"node_uname_info does not name {shorten_names(nameless)}"
        reason = f"{unknown} of {len(nodes)} series do not name a node by {plan.label.shown}: {seen}"
        fetching.find(FindingKind.UNKNOWN_NODE, plan.metric, reason, Remedy.DROPPED)

    # --- search for queries ------------------------------------------------------------------------------------------

    async def _look(self, watch: PrometheusMetricState, fetching: FetchContext) -> None:
        """Search for the metric's query if it is due.

        The current plan stays if the search finds nothing, so that returning series are used at once. It also stays if
        the response is partial: the missing part may contain the better candidate or the label, and a changed plan
        starts with an empty history.
        """
        async with watch.lock:
            if watch.must_look(fetching.number):
                await self._look_for_plan(watch, fetching)
            if watch.must_look_for_others(fetching):
                await self._look_for_others(watch, fetching)

    async def _look_for_plan(self, watch: PrometheusMetricState, fetching: FetchContext) -> None:
        found = await self._search.find_plan(watch, fetching)
        missing = fetching.partial.get(watch.metric.name, "")
        if found not in (None, watch.plan) and (watch.plan is None or not missing):
            watch.plan, watch.single, watch.others, watch.others_at = found, None, (), None
        watch.looked_at, watch.doubted = fetching.number, bool(missing)
        if watch.plan is None and missing:
            watch.looked_at = None
            why = f"it is unknown whether there are series for {watch.metric.key}"
            raise self._partial(missing, why)

    async def _look_for_others(self, watch: PrometheusMetricState, fetching: FetchContext) -> None:
        """Search for queries of the nodes that the plan lacks. A failed or partial search changes nothing."""
        watch.others_at = fetching.number
        try:
            others = await self._search.find_others(watch, fetching)
        except ProviderError as error:
            log.debug("queries of other nodes for %s are unknown: %s", watch.metric.key, error)
            return
        if watch.metric.name not in fetching.partial:
            watch.others = others


def from_settings(settings: Settings) -> PrometheusProvider:
    """Build the provider from the settings. Raises ValueError for an address that is not one."""
    return PrometheusProvider(settings[ProviderSettings], settings[RefreshSettings])


# --- pure functions --------------------------------------------------------------------------------------------------


def _shown(watch: PrometheusMetricState) -> QueryPlan:
    plan = watch.plan
    assert plan is not None
    given = plan.candidate
    others = [
        f"; other nodes ({len(other.only)}): {' '.join(other.plan.expression.split())} by {other.plan.label.shown}"
        for other in watch.others
        if other.plan is not None
    ]
    reason = plan.reason + "".join(others)
    return QueryPlan(plan.metric.name, plan.expression, given.unit, plan.label.shown, given.smoothing_s, reason)
