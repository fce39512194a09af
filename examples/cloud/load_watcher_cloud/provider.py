"""The provider of samples for a cloud monitoring service.

The service is queried for one metric at a time, returns points in time buckets, limits the request rate and
identifies hosts rather than nodes: a host name may include a domain that the node name lacks. Requests and responses
are defined in datadog.py, the connection in connection.py.

A failed query affects its metric, not the fetch.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from load_watcher_cloud.connection import CloudConnection
from watcher.arrays import F64
from watcher.core.messages import printable, shorten_names
from watcher.core.windows.settings import RefreshSettings
from watcher.model import SOURCE_UNITS, FindingKind, Metric, Remedy, SeriesBatch
from watcher.sources.base import Fetch, QueryFailure, QueryPlan
from watcher.sources.errors import ProviderError, ProviderRefused
from watcher.sources.fetching import (
    SILENT_FETCHES,
    FetchContext,
    FetchTracker,
    MetricGap,
    Outcome,
    fetch_of,
    gather_outcomes,
    in_unit,
    out_of_range_findings,
)
from watcher.sources.settings import ProviderSettings

SHOWN_LABELS = 5
HOST = "host"
"""Name of the tag that contains the host name."""


# --- queries and responses -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CloudQueryPlan:
    """One query for a metric. `asks` are the service's expressions and their weights; the value is `start` + the
    weighted sum of the expressions. A missing first expression means no value, other missing expressions count as 0.
    `unit` is a key of model.SOURCE_UNITS, `smoothing_s` the averaging time in seconds. `own` marks a configured
    query. `shown` and `reason` are for display."""

    metric: Metric
    asks: tuple[tuple[str, float], ...]
    unit: str
    shown: str
    reason: str
    start: float = 0.0
    label: str = HOST
    smoothing_s: float = 0.0
    own: bool = False


@dataclass(frozen=True, slots=True)
class HostSeries:
    """Points of one series in ascending times (unix seconds), NaN for a missing value. `host` is "" if the series
    has no host."""

    host: str
    time: F64
    value: F64


@dataclass(frozen=True, slots=True)
class CloudResponse:
    """Parsed response of a service. `labels` are the tags of series without a host, `odd` is the
    number of unreadable series, `clock_offset_s` the remote clock minus the local clock in seconds."""

    series: Sequence[HostSeries]
    labels: frozenset[str] = frozenset()
    odd: int = 0
    warnings: tuple[str, ...] = ()
    clock_offset_s: float | None = None


class CloudService(Protocol):
    """Protocol of a cloud monitoring service."""

    source: str
    """Source name as published in GET /watcher."""
    connection: CloudConnection

    def plans(self, metric: Metric) -> Sequence[CloudQueryPlan]:
        """Candidate queries for the metric, best first. The first one with series is used."""
        ...

    async def ask(self, plan: CloudQueryPlan, since: float, until: float, *, deadline: float) -> CloudResponse:
        """Points between the two times (unix seconds), possibly some outside. `deadline` is in event loop time.
        Raises ProviderError."""
        ...


# --- the provider ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _CloudMetricState:
    """State of one metric: `plan` is the query of `plans` that last returned series."""

    metric: Metric
    plans: Sequence[CloudQueryPlan]
    plan: CloudQueryPlan | None = None
    silence: MetricGap = field(default_factory=MetricGap)

    def to_ask(self) -> Sequence[CloudQueryPlan]:
        """Queries to send now: the current one, or all (the current one first) until one returns series. All are
        tried again after SILENT_FETCHES fetches without samples."""
        if self.plan is not None and self.silence.empty_fetches < SILENT_FETCHES:
            return (self.plan,)
        return sorted(self.plans, key=lambda plan: plan is not self.plan)


class CloudProvider:
    """Provider (sources/base.py) for a cloud monitoring service."""

    remembers = True

    def __init__(self, settings: ProviderSettings, refresh: RefreshSettings, service: CloudService) -> None:
        self._settings, self._service = settings, service
        self._watches = {metric.name: _CloudMetricState(metric, service.plans(metric)) for metric in settings.wanted}
        self._fetches = FetchTracker(refresh)

    @property
    def source(self) -> str:
        """Source name as published in GET /watcher."""
        return self._service.source

    async def start(self) -> None:
        """Prepare the connection. Sends no request."""
        self._service.connection.start()

    async def close(self) -> None:
        """Close the connections to the service."""
        await self._service.connection.close()

    async def fetch(self, since: float, until: float, *, only: Collection[str] | None = None) -> Fetch:
        """Samples with since <= time <= until (unix seconds), of all wanted metrics or the metrics in `only`.

        Raises ProviderError if every query failed: unreachable before refused before malformed.
        """
        fetching = self._fetches.begin(since, until)
        asked = []
        for name, watch in self._watches.items():
            if only is not None and name not in only:
                continue
            if watch.plans:
                asked.append(watch)
            elif fetching.present:
                reason = f"no default query for {self.source}: set provider.queries.{watch.metric.key}"
                fetching.find(FindingKind.NO_SERIES, watch.metric, reason, Remedy.LEFT_OUT)
        outcomes = await gather_outcomes(self._fetch_metric(watch, fetching) for watch in asked)
        plans = {name: _shown(watch.plan) for name, watch in self._watches.items() if watch.plan is not None}
        self._fetches.announce(plans, address=self._service.connection.address)
        return fetch_of(outcomes, fetching, plans=plans)

    async def _fetch_metric(self, watch: _CloudMetricState, fetching: FetchContext) -> Sequence[Outcome]:
        """Outcome of one metric: samples, failure, or None without samples in the range."""
        try:
            batch = await self._first_that_has_some(watch, fetching)
        except ProviderError as error:
            watch.silence.note(False, present=fetching.present)
            return [QueryFailure(watch.metric.name, error)]
        watch.silence.note(batch is not None, present=fetching.present)
        if fetching.present and watch.silence.is_reportable:
            sought = " or ".join(plan.shown for plan in watch.plans)
            reason = f"no samples of {sought} in the last {fetching.until - fetching.since:.0f} s"
            fetching.find(FindingKind.NO_SERIES, watch.metric, reason, Remedy.LEFT_OUT)
        return [batch]

    async def _first_that_has_some(self, watch: _CloudMetricState, fetching: FetchContext) -> SeriesBatch | None:
        for plan in watch.to_ask():
            reply = await self._service.ask(plan, fetching.since, fetching.until, deadline=fetching.deadline)
            fetching.note_clock(reply.clock_offset_s)
            batch = self._batch(plan, reply, fetching)
            if batch is not None:
                watch.plan = plan
                return batch
        return None

    # --- from a response to samples ----------------------------------------------------------------------------------

    def _batch(self, plan: CloudQueryPlan, reply: CloudResponse, fetching: FetchContext) -> SeriesBatch | None:
        """Samples in the requested range, converted to the metric's unit; None if there are none. Raises
        ProviderRefused if no series has a host."""
        for warning in reply.warnings:
            reason = f"warning of the source: {printable(self._service.connection.scrub(warning))}"
            fetching.find(FindingKind.QUERY_FAILED, plan.metric, reason, Remedy.REPORTED)
        if reply.odd:
            reason = f"{reply.odd} unreadable series: a value is not a number, or values and times differ in length"
            fetching.find(FindingKind.NON_FINITE, plan.metric, reason, Remedy.DROPPED)
        named = [series for series in reply.series if series.host]
        self._report_nameless(plan, reply, len(reply.series) - len(named), fetching)
        if not named:
            return None
        time = np.concatenate([series.time for series in named])
        value = np.concatenate([series.value for series in named])
        index = np.repeat(np.arange(len(named), dtype=np.int64), [len(series.time) for series in named])
        fetching.findings += out_of_range_findings(plan.metric, time, since=fetching.since, until=fetching.until)
        keep = (time >= fetching.since) & (time <= fetching.until) & ~np.isnan(value)
        if not keep.any():
            return None
        suffix = "" if plan.own else self._settings.host_name_suffix or ""
        nodes = tuple(node_of(series.host, suffix=suffix) for series in named)
        factor = SOURCE_UNITS[plan.unit][1]
        return SeriesBatch(plan.metric, nodes, index[keep], time[keep], in_unit(value[keep], factor))

    def _report_nameless(
        self, plan: CloudQueryPlan, reply: CloudResponse, nameless: int, fetching: FetchContext
    ) -> None:
        if not nameless:
            return
        listed = shorten_names([printable(label) for label in sorted(reply.labels)], SHOWN_LABELS) or "none"
        if nameless == len(reply.series):
            raise ProviderRefused(
                f"no series of {plan.shown} has the tag {plan.label}; existing tags: {listed}",
                hint="Set provider.node_label to the tag with the Kubernetes node name; group your queries by it.",
            )
        reason = f"{nameless} of {len(reply.series)} series have no tag {plan.label}"
        fetching.find(FindingKind.UNKNOWN_NODE, plan.metric, reason, Remedy.DROPPED)


def _shown(plan: CloudQueryPlan) -> QueryPlan:
    return QueryPlan(plan.metric.name, plan.shown, plan.unit, plan.label, plan.smoothing_s, plan.reason)


def node_of(host: str, *, suffix: str) -> str:
    """Node name of a host: the host name without the domain labels that are covered by the configured suffix.

    With the suffix ".dev.example", the host "a.dev.example" is the node "a", and "a.b.dev.example" is "a.b". Without a
    suffix, the name is unchanged, because nodes may be named by their fully qualified domain names. (The Go
    load-watcher truncates every name at its first dot.)
    """
    if not suffix or not host.endswith(suffix):
        return host
    at = len(host) - len(suffix)
    dot = at - 1 if host[at - 1 : at] == "." else host.find(".", at)
    return host[:dot] if dot > 0 else host
