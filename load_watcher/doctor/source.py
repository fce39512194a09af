"""The source of samples: one tick of the service's own, and what came of it.

The tick is the real one (refresh.Refresher over the provider that the settings name), without a store: it asks, reviews
and computes as a start of `serve` does, so what is missing or odd here would be there. The checks below only read what
it left.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from load_watcher.doctor.listening import of_kinds
from watcher.arrays import F64
from watcher.core.windows.statistics import MAX_CADENCE_S
from watcher.model import METRIC_ORDER, FindingKind, Metric, MetricType, SeriesBatch, Snapshot
from watcher.platform.checks.examination import Examination
from watcher.platform.checks.results import Result, count, fail, ok, skipped, some_of, warn
from watcher.platform.settings.tables import Settings
from watcher.providers import registry
from watcher.providers.base import Fetch, Provider, ProviderError, QueryFailure, QueryPlan
from watcher.refresh import cluster_nodes
from watcher.refresh.tick import Refresher
from watcher.service.build import refresh_config

TICK_S = 60.0
"""Longest that one tick is waited for; a backfill that is not done by then goes without."""
NEEDED = (MetricType.CPU, MetricType.MEMORY)
"""What the Trimaran plug-ins score by."""
EXPORTERS = {MetricType.ENERGY: "Kepler (or Scaphandre) scraped", MetricType.GPU: "the DCGM exporter scraped"}
"""In a Prometheus what is not node exporter's."""
RAREST_S = 2 * MAX_CADENCE_S
"""A window counts with half the samples that it should have at the longest cadence, and with no fewer than two
(contract 5.1, "Coverage"): so samples may be this far apart, and no farther than half of the window."""
SKEW_FINDINGS = (FindingKind.CLOCK_SKEW, FindingKind.FUTURE_SAMPLE)
# What a line of its own tells better.
TOLD_ELSEWHERE = (
    *SKEW_FINDINGS,
    *(FindingKind.NO_SERIES, FindingKind.SHORT_COVERAGE, FindingKind.STALE, FindingKind.NODE_NAMES),
)
OF_NAMES = (FindingKind.UNKNOWN_NODE, FindingKind.AMBIGUOUS_NODE, FindingKind.MISSING)
"""Told by the check of the nodes where the source is held against the cluster."""


# --- one tick --------------------------------------------------------------------------------------------------------


@dataclass
class Watched:
    """A provider that notes what the one inside it says; else the same (base.Provider)."""

    inner: Provider
    fetches: list[Fetch] = field(default_factory=list)
    error: ProviderError | None = None

    @property
    def source(self) -> str:
        """As the one inside."""
        return self.inner.source

    @property
    def remembers(self) -> bool:
        """As the one inside."""
        return self.inner.remembers

    async def start(self) -> None:
        """As the one inside."""
        await self.inner.start()

    async def fetch(self, since: float, until: float, *, only: Collection[str] | None = None) -> Fetch:
        """As the one inside, noting the answer or the error."""
        try:
            fetch = await self.inner.fetch(since, until, only=only)
        except ProviderError as error:
            self.error = error
            raise
        self.fetches.append(fetch)
        return fetch

    async def close(self) -> None:
        """As the one inside."""
        await self.inner.close()


@dataclass(frozen=True, slots=True)
class Visit:
    """What a tick left. `fetch` is the answer for the present, `earlier` are those for the past, both with the names of
    the source; `at` is when it was over, in unix seconds. `snapshot` is None where there was no sample at all."""

    fetch: Fetch
    earlier: Sequence[Fetch]
    snapshot: Snapshot | None
    refresher: Refresher
    at: float

    @property
    def nodes(self) -> Sequence[str]:
        """The nodes that have samples, by the names that would be served."""
        return () if self.snapshot is None else self.snapshot.nodes

    @property
    def named(self) -> bool:
        """Whether names of the source become those of the cluster."""
        return self.refresher.directory is not None

    @property
    def names(self) -> tuple[str, ...]:
        """The nodes by the names of the source."""
        return tuple(sorted({name for batch in self.fetch.batches for name in batch.nodes}))


async def source(examination: Examination) -> Sequence[Result]:
    """Whether the source answers, and lets us."""
    found = examination.the(Settings)
    try:
        watched = Watched(registry.build(found))
    except ProviderError as error:
        return [fail(str(error), error.hint)]
    cluster = cluster_nodes.from_settings(found)
    config = replace(refresh_config(found), pods="off")  # those are asked for apart
    refresher = Refresher(provider=watched, config=config, directory=cluster)
    began = time.monotonic()
    try:
        await watched.start()
        if cluster is not None:
            await cluster.start()
            await cluster.settle(found.provider.timeout)  # a tick of serve would wait less long, and try again
        with suppress(TimeoutError):
            async with asyncio.timeout(TICK_S):
                await refresher.tick()
    finally:
        await watched.close()
        if cluster is not None:
            await cluster.close()
        await refresher.close()
    if not watched.fetches:
        return [_unanswered(watched.error, refresher)]
    published = refresher.published
    visit = Visit(
        fetch=watched.fetches[0],
        earlier=watched.fetches[1:],
        snapshot=None if published is None else published.snapshot,
        refresher=refresher,
        at=time.time(),
    )
    examination.leave(visit)
    asked = found.provider.address and found.provider.name not in ("host", "metrics-server")  # which do without
    where = f" at {found.provider.address}" if asked else ""
    took = time.monotonic() - began
    return [ok(f"{watched.source}{where} answers and lets us; a first refresh takes {took:.1f} s")]


def _unanswered(error: ProviderError | None, refresher: Refresher) -> Result:
    if error is None:
        return fail(
            f"{refresher.provider.source} gave nothing: {refresher.provider_health.reason or 'no answer in time'}",
            "give it more time (provider.timeout, refresh.interval), or ask it for less (provider.metrics)",
        )
    return fail(f"{refresher.provider.source}: {error}", error.hint)


# --- which series exist ----------------------------------------------------------------------------------------------


async def series(examination: Examination) -> Sequence[Result]:
    """For each metric that is wanted: what is asked for it and why, or what is missing."""
    visit, found = examination.the(Visit), examination.the(Settings)
    failures = {failure.metric: failure for failure in visit.fetch.failures}
    absent = {each.metric: each.reason for each in visit.fetch.findings if each.kind is FindingKind.NO_SERIES}
    had = {batch.metric.name for fetch in (visit.fetch, *visit.earlier) for batch in fetch.batches}
    results = []
    for metric in _told_of(found, visit, failures=failures, absent=absent):
        plan = visit.fetch.plans.get(metric.name)
        if failure := failures.get(metric.name):
            results.append(_missing(metric, str(failure.error), failure.error.hint))
        elif metric.name in absent or plan is None or (metric.name not in had and "" in absent):
            reason = absent.get(metric.name) or absent.get("") or "the source does not have it"
            results.append(_missing(metric, reason, _cure_of_absence(metric, found)))
        elif metric.name not in had:
            cure = "is it scraped at least every two minutes? An expression like rate(x[5m]) needs two samples in five"
            results.append(_missing(metric, f"{_asked(plan)} exists, and brought no sample", cure))
        else:
            results.append(ok(f"{metric.key}: {_asked(plan)}, names of nodes from {plan.node_label} ({plan.reason})"))
    return results


def _told_of(
    found: Settings, visit: Visit, *, failures: Mapping[str, QueryFailure], absent: Mapping[str, str]
) -> Iterator[Metric]:
    """The metrics that are wanted, and of which the source said anything; CPU and Memory always."""
    named = found.origins.get("provider.metrics", "default") != "default"
    for metric in found.provider.wanted:
        known = metric.name in visit.fetch.plans or metric.name in failures or metric.name in absent
        if known or named or metric.type in NEEDED:
            yield metric


def _asked(plan: QueryPlan) -> str:
    return " ".join(plan.expression.split())


def _missing(metric: Metric, what: str, cure: str) -> Result:
    told = f"{metric.key}: {what}"
    return fail(told, cure) if metric.type in NEEDED else warn(told, cure)


def _page(found: Settings) -> str:
    return f"docs/{found.provider.name}.md"


def _cure_of_absence(metric: Metric, found: Settings) -> str:
    if metric.key in found.provider.queries:
        return f"provider.queries.{metric.key} asks for that: is it spelt as the source has it ({_page(found)})?"
    if found.provider.name in ("prometheus", "influxdb"):
        exporter = EXPORTERS.get(metric.type, "node exporter scraped")
        exporter = "Telegraf running" if found.provider.name == "influxdb" else exporter
        ours = "do this cluster's series have the labels of provider.matchers, " if found.provider.matchers else ""
        return (
            f"{ours}is {exporter}, and does what it says arrive here? Where it stands under another name, set "
            f"provider.queries.{metric.key} ({_page(found)})"
        )
    if metric.type in NEEDED:
        names = ("cluster_name", "host_name_suffix")
        narrowed = " and ".join(f"provider.{name}" for name in names if getattr(found.provider, name))
        hosts = f"do the source's hosts have {narrowed}? " if narrowed else ""
        return f"{hosts}{_page(found)} says what it needs; without it no plug-in can score by {metric.key}"
    return f"leave {metric.key} out of provider.metrics, or take another source: {_page(found)}"


# --- how new, how often, by whose clock ------------------------------------------------------------------------------


async def freshness(examination: Examination) -> Sequence[Result]:
    """Whether the newest samples are new, of all nodes."""
    visit, found = examination.the(Visit), examination.the(Settings)
    snapshot, limit = visit.snapshot, found.refresh.max_staleness
    if snapshot is None or not snapshot.nodes:
        cure = (
            "the lines of the series say what is missing; are the exporters scraped, and is the source's clock right?"
        )
        return [fail("no node has a sample that is new enough to be served", cure)]
    age = visit.at - snapshot.end
    silent = [name for name, old in zip(snapshot.nodes, snapshot.age_s, strict=True) if not np.isnan(old)]
    told = f"the newest sample is {max(0.0, age):.0f} s old, of {count(len(snapshot.nodes), 'node')}"
    if silent:
        cure = "look at their exporters: what is silent for longer than refresh.max_staleness is not served"
        return [
            ok(told),
            warn(f"these are silent, or stand still with many others: {some_of(silent, snapshot.nodes)}", cure),
        ]
    if age > limit / 2:
        cure = f"the source lags: above {limit:.0f} s (refresh.max_staleness) nothing is served"
        return [warn(told, cure)]
    return [ok(told)]


async def cadence(examination: Examination) -> Sequence[Result]:
    """Whether samples come often enough for the windows, and reach back far enough."""
    visit = examination.the(Visit)
    snapshot = visit.snapshot
    if snapshot is None or not snapshot.nodes:
        return [skipped("there are no samples")]
    if not visit.refresher.provider.remembers:
        rare = [each for each in visit.fetch.findings if each.kind is FindingKind.SHORT_COVERAGE]
        if rare:
            return [fail(rare[0].reason, "without that no node has a window, only its latest value")]
        return [ok("it knows only the present: windows begin when serve starts, the 5-minute one after half of that")]
    distance = distance_of(visit)
    if distance is None:
        return [warn("there is one sample a node: how often they come cannot be told yet", "try again in some minutes")]
    told = f"samples come every {distance:.0f} s"
    without = _without_window(snapshot)
    shortest = snapshot.windows[0]
    if distance > min(shortest.seconds / 2, RAREST_S):
        cure = "lower the scrape interval (or the interval of the recording rule) to a minute or less"
        return [fail(f"{told}, too seldom for the {shortest.label} window", cure)]
    if without:
        cure = "younger than half of it, or scraped too seldom? They have their latest value only, and no deviation"
        return [
            warn(f"{told}; these lack the {shortest.label} window of CPU: {some_of(without, snapshot.nodes)}", cure)
        ]
    return [ok(f"{told}, enough for the windows {', '.join(window.label for window in snapshot.windows)}")]


def distance_of(visit: Visit) -> float | None:
    """Median distance in seconds of the distinct times of a node, of the metric that schedulers use most; None where no
    node has two. Other than a history's cadence this has no upper bound."""
    batches = [batch for fetch in (visit.fetch, *visit.earlier) for batch in fetch.batches]
    if not batches:
        return None
    first = min((batch.metric.name for batch in batches), key=METRIC_ORDER.__getitem__)
    distances = _distances([batch for batch in batches if batch.metric.name == first])
    return float(np.median(distances)) if len(distances) else None


def _distances(batches: Sequence[SeriesBatch]) -> F64:
    """Distances of the distinct times of each node, over all batches; seconds."""
    index: dict[str, int] = {}
    node = np.concatenate(
        [np.array([index.setdefault(name, len(index)) for name in batch.nodes])[batch.series] for batch in batches]
    )
    time = np.concatenate([batch.time for batch in batches])
    order = np.lexsort((time, node))
    step, same = np.diff(time[order]), np.diff(node[order]) == 0
    return np.asarray(step[same & (step > 0)], dtype=np.float64)


def _without_window(snapshot: Snapshot) -> list[str]:
    """The nodes that have a CPU sample, and not enough for the shortest window."""
    for windows in snapshot.metrics:
        if windows.metric.type is MetricType.CPU:
            lacks = np.isnan(windows.average[0]) & ~np.isnan(windows.latest)
            return [name for name, short in zip(snapshot.nodes, lacks, strict=True) if short]
    return []


async def clock(examination: Examination) -> Sequence[Result]:
    """Whether the source's clock and ours agree."""
    visit = examination.the(Visit)
    entries = [each for each in visit.refresher.findings.entries() if each.kind in SKEW_FINDINGS]
    cure = "set both clocks by NTP; samples from more than 30 s ahead of ours are refused"
    if entries:
        return [fail(f"{each.node}: {each.reason}" if each.node else each.reason, cure) for each in entries[:3]]
    offset = visit.fetch.clock_offset_s
    if offset is None:
        return [skipped("the source does not tell its time, and its samples are not ahead of ours")]
    return [ok("the source's clock agrees with ours" + (f" to {abs(offset):.0f} s" if offset else ""))]


async def samples(examination: Examination) -> Sequence[Result]:
    """What the review of these samples found, so far as no other line tells it."""
    visit = examination.the(Visit)
    failed = {failure.metric for failure in visit.fetch.failures}
    entries = [
        each
        for each in visit.refresher.findings.entries()
        if each.kind not in TOLD_ELSEWHERE
        and not (each.kind == FindingKind.QUERY_FAILED and each.metric in failed)
        and not (visit.named and each.kind in OF_NAMES and not each.metric)
    ]
    return list(of_kinds(entries)) or [ok("the review of samples found nothing odd")]


# --- names -----------------------------------------------------------------------------------------------------------


def addresses_among(names: Sequence[str]) -> list[str]:
    """Those names that are IP addresses, which no node of Kubernetes is called by."""
    found = []
    for name in names:
        with suppress(ValueError):
            ipaddress.ip_address(name)
            found.append(name)
    return found
