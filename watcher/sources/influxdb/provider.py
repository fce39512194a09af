"""Provider of samples that Telegraf writes to InfluxDB 1.x, 2.x or 3.x.

InfluxDB has two query languages, and no version supports both well. Each query therefore exists in both languages
(queries.py), both responses are parsed to the same points (responses.py), and loads are computed from the points in one
place (cpu_load.py). Four queries return the seven default metrics, because Telegraf stores related values in one
measurement.

A failed query affects its metrics, not the fetch.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from watcher.core.config.settings import Settings
from watcher.core.windows.settings import RefreshSettings
from watcher.model import FindingKind, Metric, Remedy
from watcher.sources.base import Fetch, QueryFailure, QueryPlan
from watcher.sources.errors import ProviderError
from watcher.sources.fetching import FetchContext, FetchTracker, MetricGap, Outcome, fetch_of, gather_outcomes
from watcher.sources.influxdb.cpu_load import load_of
from watcher.sources.influxdb.queries import LOOK_BACK_S, InfluxQueryPlan, plan_of
from watcher.sources.influxdb.transport import InfluxResponse, InfluxTransport
from watcher.sources.settings import ProviderSettings


@dataclass(slots=True)
class _InfluxMetricState:
    """State of one wanted metric; `plan` is None without a query for it."""

    metric: Metric
    plan: InfluxQueryPlan | None
    silence: MetricGap = field(default_factory=MetricGap)


class InfluxProvider:
    """Provider (sources/base.py) for the query APIs of InfluxDB. Raises ValueError for an address that is not one."""

    def __init__(self, settings: ProviderSettings, refresh: RefreshSettings) -> None:
        self._transport = InfluxTransport(settings)
        self._watches = {
            metric.name: _InfluxMetricState(metric, plan_of(metric, settings)) for metric in settings.wanted
        }
        self._fetches = FetchTracker(refresh)

    @property
    def source(self) -> str:
        """Source name as published in GET /watcher."""
        return "InfluxDB"

    @property
    def remembers(self) -> bool:
        """True: InfluxDB stores past samples."""
        return True

    async def start(self) -> None:
        """Prepare the transport. Sends no request."""
        self._transport.start()

    async def close(self) -> None:
        """Close all connections to the server."""
        await self._transport.close()

    async def fetch(self, since: float, until: float, *, only: Collection[str] | None = None) -> Fetch:
        """Samples with since <= time <= until (unix seconds), of all wanted metrics or the metrics in `only`.

        Raises ProviderError if every query failed: unreachable before refused before malformed.
        """
        fetching = self._fetches.begin(since, until)
        watches = [watch for name, watch in self._watches.items() if only is None or name in only]
        questions: dict[int, list[tuple[_InfluxMetricState, InfluxQueryPlan]]] = {}
        for watch in watches:
            if watch.plan is not None:
                # metrics with the same source object share one query; configured queries are never shared
                questions.setdefault(id(watch.plan.source), []).append((watch, watch.plan))
            elif fetching.present:
                reason = f"not in Telegraf's schema: set provider.queries.{watch.metric.key}"
                fetching.find(FindingKind.NO_SERIES, watch.metric, reason, Remedy.LEFT_OUT)
        try:
            outcomes = await gather_outcomes(self._fetch_together(asked, fetching) for asked in questions.values())
        except ProviderError:
            self._transport.doubt()
            raise
        plans = {
            name: _shown(watch.plan)
            for name, watch in self._watches.items()
            if watch.plan and watch.silence.had_samples
        }
        self._fetches.announce(plans, address=self._transport.address)
        return fetch_of(outcomes, fetching, plans=plans)

    # --- one query ---------------------------------------------------------------------------------------------------

    async def _fetch_together(
        self, asked: Sequence[tuple[_InfluxMetricState, InfluxQueryPlan]], fetching: FetchContext
    ) -> list[Outcome]:
        """Fetch the metrics that share one query."""
        plans = [plan for _, plan in asked]
        back = LOOK_BACK_S if any(plan.counter for plan in plans) else 0.0
        since, until = math.floor(1000 * (fetching.since - back)), math.ceil(1000 * fetching.until)
        try:
            reply = await self._transport.ask(plans[0].source, since, until, deadline=fetching.deadline)
        except ProviderError as error:
            for watch, _ in asked:
                watch.silence.note(False, present=fetching.present)
            return [QueryFailure(watch.metric.name, error) for watch, _ in asked]
        fetching.note_clock(reply.clock_offset_s)
        return [await self._digest(watch, plan, reply, fetching) for watch, plan in asked]

    async def _digest(
        self, watch: _InfluxMetricState, plan: InfluxQueryPlan, reply: InfluxResponse, fetching: FetchContext
    ) -> Outcome:
        """Outcome of one metric: samples, failure, or None without samples in the range."""
        try:
            load = await self._transport.worker.run(
                load_of, plan, reply.series, since=fetching.since, until=fetching.until
            )
        except ProviderError as error:
            watch.silence.note(False, present=fetching.present)
            return QueryFailure(watch.metric.name, error)
        fetching.findings += load.findings
        watch.silence.note(load.batch is not None, present=fetching.present)
        if fetching.present and watch.silence.is_reportable:
            self._report_absence(watch, plan, reply, fetching)
        return load.batch

    def _report_absence(
        self, watch: _InfluxMetricState, plan: InfluxQueryPlan, reply: InfluxResponse, fetching: FetchContext
    ) -> None:
        reason = f"no points for {plan.shown} in the last {fetching.until - fetching.since:.0f} s"
        if reply.series and plan.counter:
            reason += ", or no two points within two minutes of each other"
        fetching.find(FindingKind.NO_SERIES, watch.metric, reason, Remedy.LEFT_OUT)


def from_settings(settings: Settings) -> InfluxProvider:
    """Build the provider from the settings. Raises ValueError for an address that is not one."""
    return InfluxProvider(settings[ProviderSettings], settings[RefreshSettings])


# --- pure functions --------------------------------------------------------------------------------------------------


def _shown(plan: InfluxQueryPlan) -> QueryPlan:
    return QueryPlan(plan.metric.name, plan.shown, plan.unit, plan.node_tag, plan.smoothing_s, plan.reason)
