"""Checks of the source of samples, by one tick of the real pipeline.

The tick runs refresh.Refresher with the provider of the settings, without a store: it fetches, reviews and computes as
at a start of `serve`, and so has the same problems. The other checks only read its results.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from load_watcher.doctor import separate_extender
from load_watcher.doctor.listening import summarize_findings
from watcher.arrays import F64
from watcher.core.config.settings import Settings
from watcher.core.messages import shorten_names
from watcher.core.naming.name_resolver import NodeIndex
from watcher.core.windows.settings import RefreshSettings
from watcher.core.windows.statistics import MAX_CADENCE_S
from watcher.model import METRIC_ORDER, FindingKind, Metric, MetricType, SeriesBatch, Snapshot
from watcher.platform.checks.examination import CheckContext
from watcher.platform.checks.results import CheckResult, count, fail, ok, shorten_nodes, skipped, warn
from watcher.platform.provider_names import EXAMPLES
from watcher.service.build import refresh_config
from watcher.sources import registry
from watcher.sources.base import Fetch, NodeAwareProvider, Provider, QueryFailure, QueryPlan
from watcher.sources.errors import ProviderError
from watcher.sources.settings import ProviderSettings
from watcher.tick import cluster_nodes
from watcher.tick.tick import Refresher

TICK_S = 60.0
"""Maximum duration of the tick in seconds; an unfinished backfill is then incomplete."""
DOCUMENTED = frozenset({"prometheus", "influxdb", "metrics-server", "replay"})
NEEDED = (MetricType.CPU, MetricType.MEMORY)
"""Metric types that the Trimaran plug-ins use for scoring."""
EXPORTERS = {
    MetricType.ENERGY: "Kepler (or Scaphandre) is scraped",
    MetricType.GPU: "the DCGM exporter is scraped",
    MetricType.PRESSURE: (
        "node exporter is scraped with its collector pressure, that the nodes have /proc/pressure (where the kernel "
        "has it off by default, boot with psi=1)"
    ),
}
"""Exporters of the metric types that node exporter does not provide, for the suggested fix."""
RAREST_S = 2 * MAX_CADENCE_S
"""Maximum distance of samples in seconds: a window is valid with half the samples expected at the longest cadence, but
at least two, so the distance may also be at most half the window."""
SKEW_FINDINGS = (FindingKind.CLOCK_SKEW, FindingKind.FUTURE_SAMPLE)
# Findings that other checks report in more detail.
REPORTED_BY_OTHER_CHECKS = (
    *SKEW_FINDINGS,
    *(FindingKind.NO_SERIES, FindingKind.SHORT_COVERAGE, FindingKind.STALE, FindingKind.NODE_NAMES),
)
NODE_NAME_FINDINGS = (FindingKind.UNKNOWN_NODE, FindingKind.AMBIGUOUS_NODE, FindingKind.MISSING)
"""Findings that the check of the nodes reports, if the source's names are mapped to nodes of the cluster."""


NAMES_CURE = "see docs/reference/node-names.md: give the series of each machine the name of its node"


# --- one tick --------------------------------------------------------------------------------------------------------


@dataclass
class RecordingProvider:
    """A provider (base.Provider) that forwards to `inner` and records the fetches and the last error."""

    inner: Provider
    fetches: list[Fetch] = field(default_factory=list)
    error: ProviderError | None = None
    index: NodeIndex | None = None

    @property
    def source(self) -> str:
        return self.inner.source

    @property
    def remembers(self) -> bool:
        return self.inner.remembers

    async def start(self) -> None:
        await self.inner.start()

    async def fetch(self, since: float, until: float, *, only: Collection[str] | None = None) -> Fetch:
        """Fetch from `inner`; record the result, or the ProviderError that is raised."""
        try:
            fetch = await self.inner.fetch(since, until, only=only)
        except ProviderError as error:
            self.error = error
            raise
        self.fetches.append(fetch)
        return fetch

    def know_nodes(self, index: NodeIndex | None) -> None:
        """Forward the nodes of the cluster to a provider that uses them."""
        self.index = index
        if isinstance(self.inner, NodeAwareProvider):
            self.inner.know_nodes(index)

    async def close(self) -> None:
        await self.inner.close()


@dataclass(frozen=True, slots=True)
class TickResult:
    """Result of a tick. `fetch` is the fetch of current samples, `earlier` the fetches for the backfill, both with the
    source's node names; `at` is the end of the tick in unix seconds. `snapshot` is None without samples. `known` are
    the names of the nodes of the cluster, as far as they are known.
    """

    fetch: Fetch
    earlier: Sequence[Fetch]
    snapshot: Snapshot | None
    refresher: Refresher
    at: float
    known: Collection[str] = ()

    @property
    def nodes(self) -> Sequence[str]:
        """Nodes with samples, by the names under which they would be served."""
        return () if self.snapshot is None else self.snapshot.nodes

    @property
    def named(self) -> bool:
        """Whether the source's names are mapped to node names of the cluster."""
        return self.refresher.directory is not None

    @property
    def names(self) -> tuple[str, ...]:
        """Nodes with samples, by the source's names, sorted."""
        return tuple(sorted({name for batch in self.fetch.batches for name in batch.nodes}))


async def source(examination: CheckContext) -> Sequence[CheckResult]:
    """Run one tick, to check that the source is reachable and accepts the credentials; for load-watcher extender, check
    the watcher."""
    found = examination.get(Settings)
    if separate_extender.is_configured(found):
        return await separate_extender.check_watcher(found, examination)
    try:
        watched = RecordingProvider(registry.build(found))
    except ProviderError as error:
        return [fail(str(error), error.hint)]
    cluster = cluster_nodes.from_settings(found)
    config = replace(refresh_config(found), pods="off")  # the check of pods fetches their usage
    refresher = Refresher(provider=watched, config=config, directory=cluster)
    began = time.monotonic()
    try:
        await watched.start()
        if cluster is not None:
            await cluster.start()
            await cluster.wait_known(found[ProviderSettings].timeout)  # longer than a tick of serve, which is repeated
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
    visit = TickResult(
        fetch=watched.fetches[0],
        earlier=watched.fetches[1:],
        snapshot=None if published is None else published.snapshot,
        refresher=refresher,
        at=time.time(),
        known=(*watched.fetches[0].known, *(() if watched.index is None else watched.index.nodes)),
    )
    examination.put(visit)
    asked = found[ProviderSettings].address and found[ProviderSettings].name not in (
        "host",
        "metrics-server",
    )  # these use no address
    where = f" at {found[ProviderSettings].address}" if asked else ""
    took = time.monotonic() - began
    return [ok(f"{watched.source}{where} is accessible; the first refresh took {took:.1f} s")]


def _unanswered(error: ProviderError | None, refresher: Refresher) -> CheckResult:
    if error is None:
        return fail(
            f"no samples from {refresher.provider.source}: {refresher.provider_health.reason or 'timeout'}",
            "raise provider.timeout and refresh.interval, or fetch fewer metrics (provider.metrics)",
        )
    return fail(f"{refresher.provider.source}: {error}", error.hint)


# --- which series exist ----------------------------------------------------------------------------------------------


async def series(examination: CheckContext) -> Sequence[CheckResult]:
    """Report the query of each configured metric with its reason, or why the metric is missing."""
    visit, found = examination.get(TickResult), examination.get(Settings)
    failures = {failure.metric: failure for failure in visit.fetch.failures}
    absent = {each.metric: each.reason for each in visit.fetch.findings if each.kind is FindingKind.NO_SERIES}
    unnamed = {each.metric: each.reason for each in visit.fetch.findings if each.kind in NODE_NAME_FINDINGS}
    had = {batch.metric.name for fetch in (visit.fetch, *visit.earlier) for batch in fetch.batches}
    results = []
    for metric in _reported_of(found, visit, failures=failures, absent=absent):
        plan = visit.fetch.plans.get(metric.name)
        if failure := failures.get(metric.name):
            results.append(_missing(metric, str(failure.error), failure.error.hint))
        elif metric.name in absent or plan is None or (metric.name not in had and "" in absent):
            reason = absent.get(metric.name) or absent.get("") or "not available from the source"
            names = await _similar_names(metric, found)
            results.append(_missing(metric, reason, _cure_of_absence(metric, found) + names))
        elif metric.name not in had and metric.name in unnamed:
            results.append(_missing(metric, f"{_asked(plan)}: {unnamed[metric.name]}", NAMES_CURE))
        elif metric.name not in had:
            cure = "scrape it at least every two minutes: an expression like rate(x[5m]) needs two samples in 5 minutes"
            results.append(_missing(metric, f"{_asked(plan)} exists, but returned no samples", cure))
        else:
            naming = visit.fetch.naming.get(metric.name, "")
            candidates = f"; candidates for node names: {naming}" if naming else ""
            label = plan.node_label
            results.append(ok(f"{metric.key}: {_asked(plan)}, node names from {label} ({plan.reason}){candidates}"))
    return results


def _reported_of(
    found: Settings, visit: TickResult, *, failures: Mapping[str, QueryFailure], absent: Mapping[str, str]
) -> Iterator[Metric]:
    """Yield the metrics to report: CPU, Memory, and others that the user configured or the source mentions."""
    named = found.origins.get("provider.metrics", "default") != "default"
    for metric in found[ProviderSettings].wanted:
        known = metric.name in visit.fetch.plans or metric.name in failures or metric.name in absent
        if known or named or metric.type in NEEDED:
            yield metric


def _asked(plan: QueryPlan) -> str:
    return " ".join(plan.expression.split())


def _missing(metric: Metric, what: str, cure: str) -> CheckResult:
    message = f"{metric.key}: {what}"
    return fail(message, cure) if metric.type in NEEDED else warn(message, cure)


def _page(found: Settings) -> str:
    """The page of the provider. A host or a package without a page has only its settings."""
    name = found[ProviderSettings].name
    if name in EXAMPLES:
        return f"{EXAMPLES[name]}/{name}.md"
    return f"docs/tasks/{name}.md" if name in DOCUMENTED else "docs/reference/settings.md"


async def _similar_names(metric: Metric, found: Settings) -> str:
    """Text about the series of a Prometheus whose names are similar to the metric, if it is one that plug-ins need."""
    word = metric.key.lower()
    if found[ProviderSettings].name != "prometheus" or metric.type not in NEEDED:
        return ""
    # Imported on demand: its library takes a third of a second to import.
    from watcher.sources.prometheus.metric_names import similar_names

    names = await asyncio.to_thread(similar_names, found[ProviderSettings], [word])
    if not names:
        return f'; the server has no series with "{word}" in the name'
    return f'; its series with "{word}" in the name: {shorten_names(names)}'


def _cure_of_absence(metric: Metric, found: Settings) -> str:
    if metric.key in found[ProviderSettings].queries:
        return f"check the spelling of the expression in provider.queries.{metric.key} ({_page(found)})"
    if found[ProviderSettings].name in ("prometheus", "influxdb"):
        exporter = EXPORTERS.get(metric.type, "node exporter is scraped")
        exporter = "Telegraf is running" if found[ProviderSettings].name == "influxdb" else exporter
        ours = (
            "this cluster's series have the labels of provider.matchers, that "
            if found[ProviderSettings].matchers
            else ""
        )
        return (
            f"check that {ours}{exporter} and that its data reaches the source; if the series has another name, set "
            f"provider.queries.{metric.key} ({_page(found)})"
        )
    if metric.type in NEEDED:
        names = ("cluster_name", "host_name_suffix")
        narrowed = " and ".join(f"provider.{name}" for name in names if getattr(found[ProviderSettings], name))
        hosts = f"check that the source's hosts match {narrowed}; " if narrowed else ""
        return f"{hosts}see {_page(found)} for its requirements; without it, plug-ins cannot score by {metric.key}"
    return f"remove {metric.key} from provider.metrics, or use another source ({_page(found)})"


# --- age, cadence and clock of the samples ---------------------------------------------------------------------------


async def freshness(examination: CheckContext) -> Sequence[CheckResult]:
    """Check the age of the newest samples of all nodes."""
    visit, found = examination.get(TickResult), examination.get(Settings)
    snapshot, limit = visit.snapshot, found[RefreshSettings].max_staleness
    if snapshot is None or not snapshot.nodes:
        cure = (
            "see the results of the series; check that the exporters are scraped and that the source's clock is correct"
        )
        return [fail("no node has a sample that is recent enough to be served", cure)]
    age = visit.at - snapshot.end
    silent = [name for name, old in zip(snapshot.nodes, snapshot.age_s, strict=True) if not np.isnan(old)]
    message = f"the newest sample is {max(0.0, age):.0f} s old ({count(len(snapshot.nodes), 'node')})"
    if silent:
        cure = "check their exporters; nodes silent for longer than refresh.max_staleness are not served"
        return [
            ok(message),
            warn(
                f"nodes that are silent, or frozen in a partial outage: {shorten_nodes(silent, snapshot.nodes)}", cure
            ),
        ]
    if age > limit / 2:
        cure = f"the source lags; above {limit:.0f} s (refresh.max_staleness) nothing is served"
        return [warn(message, cure)]
    return [ok(message)]


async def cadence(examination: CheckContext) -> Sequence[CheckResult]:
    """Check that the samples are frequent enough for the windows and reach back far enough."""
    visit = examination.get(TickResult)
    snapshot = visit.snapshot
    if snapshot is None or not snapshot.nodes:
        return [skipped("no samples")]
    if not visit.refresher.provider.remembers:
        rare = [each for each in visit.fetch.findings if each.kind is FindingKind.SHORT_COVERAGE]
        if rare:
            return [fail(rare[0].reason, "fix this; until then nodes have only their latest value, and no windows")]
        return [ok("the source has no history: windows begin when serve starts, the 5m window after half its length")]
    distance = distance_of(visit)
    if distance is None:
        return [warn("only one sample per node: their interval is not known yet", "try again in a few minutes")]
    message = f"samples every {distance:.0f} s"
    without = _without_window(snapshot)
    shortest = snapshot.windows[0]
    if distance > min(shortest.seconds / 2, RAREST_S):
        cure = "lower the scrape interval (or the interval of the recording rule) to a minute or less"
        return [fail(f"{message}, not frequent enough for the {shortest.label} window", cure)]
    if without:
        cure = "check that these nodes are scraped often enough; a new node has only latest values for half a window"
        nodes = shorten_nodes(without, snapshot.nodes)
        return [warn(f"{message}; nodes without the {shortest.label} window of CPU: {nodes}", cure)]
    return [ok(f"{message}, frequent enough for the windows {', '.join(window.label for window in snapshot.windows)}")]


def distance_of(visit: TickResult) -> float | None:
    """Return the median distance in seconds of the distinct sample times per node, for the metric that comes first in
    METRIC_ORDER; None if no node has two samples. Unlike the history's cadence, it has no upper bound.
    """
    batches = [batch for fetch in (visit.fetch, *visit.earlier) for batch in fetch.batches]
    if not batches:
        return None
    first = min((batch.metric.name for batch in batches), key=METRIC_ORDER.__getitem__)
    distances = _distances([batch for batch in batches if batch.metric.name == first])
    return float(np.median(distances)) if len(distances) else None


def _distances(batches: Sequence[SeriesBatch]) -> F64:
    """Return the distances in seconds of the distinct sample times of each node, over all batches; 1-D array."""
    index: dict[str, int] = {}
    node = np.concatenate(
        [np.array([index.setdefault(name, len(index)) for name in batch.nodes])[batch.series] for batch in batches]
    )
    time = np.concatenate([batch.time for batch in batches])
    order = np.lexsort((time, node))
    step, same = np.diff(time[order]), np.diff(node[order]) == 0
    return np.asarray(step[same & (step > 0)], dtype=np.float64)


def _without_window(snapshot: Snapshot) -> list[str]:
    """Return the nodes that have a CPU sample but too few samples for the shortest window."""
    for windows in snapshot.metrics:
        if windows.metric.type is MetricType.CPU:
            lacks = np.isnan(windows.average[0]) & ~np.isnan(windows.latest)
            return [name for name, short in zip(snapshot.nodes, lacks, strict=True) if short]
    return []


async def clock(examination: CheckContext) -> Sequence[CheckResult]:
    """Check that the clocks of the source and of this machine agree."""
    visit = examination.get(TickResult)
    entries = [each for each in visit.refresher.findings.entries() if each.kind in SKEW_FINDINGS]
    cure = "synchronize both clocks with NTP; samples more than 30 s in the future are refused"
    if entries:
        return [fail(f"{each.node}: {each.reason}" if each.node else each.reason, cure) for each in entries[:3]]
    offset = visit.fetch.clock_offset_s
    if offset is None:
        return [skipped("the source does not report its time, and no sample is in the future")]
    return [ok("the source's clock agrees with this machine's" + (f" within {abs(offset):.0f} s" if offset else ""))]


async def samples(examination: CheckContext) -> Sequence[CheckResult]:
    """Report the findings of the sample review that no other check reports."""
    visit = examination.get(TickResult)
    failed = {failure.metric for failure in visit.fetch.failures}
    entries = [
        each
        for each in visit.refresher.findings.entries()
        if each.kind not in REPORTED_BY_OTHER_CHECKS
        and not (each.kind == FindingKind.QUERY_FAILED and each.metric in failed)
        and not (visit.named and each.kind in NODE_NAME_FINDINGS and not each.metric)
    ]
    return list(summarize_findings(entries)) or [ok("the sample review has no findings")]


# --- names -----------------------------------------------------------------------------------------------------------


def addresses_among(names: Sequence[str]) -> list[str]:
    """Return the names that are IP addresses, which are rarely names of Kubernetes nodes."""
    found = []
    for name in names:
        with suppress(ValueError):
            ipaddress.ip_address(name)
            found.append(name)
    return found
