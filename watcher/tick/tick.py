"""The tick: fetch new samples from the source, review and append them, compute the windows, publish and store them.

`Refresher.tick` runs these steps once. A failed query loses its metric, a failed source keeps the last windows
published with their true age, and a failed database loses the record of a minute. A tick ends within 0.8 intervals, so
liveness does not depend on the source.

The first response does not wait for the backfill: after a start, a tick fetches the newest two minutes, publishes, and
then fetches the missing past in slices, newest first. The same applies after a gap, and to a metric that failed and
recovered.

fetching.py fetches and plans the backfill; pipeline.py computes, in a separate worker thread that the event loop only
awaits; pods.py refreshes the usage of pods.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping

import msgspec
import numpy as np

from watcher.core.koordinator.report import Capacity
from watcher.core.kubernetes.node_facts import CapacityProvider, NodeLister, NodeMetadataProvider
from watcher.core.kubernetes.objects import ObjectMetadata
from watcher.core.naming.name_resolver import NodeIndex
from watcher.core.publishing.documents import Published, SilentBody
from watcher.core.publishing.wire import FindingsDocument, QuerySource
from watcher.core.review import known_nodes
from watcher.core.review.findings import FindingLog
from watcher.core.windows.backfill import OVERLAP_S
from watcher.core.windows.hot_loads import LoadStart, NodeMetric
from watcher.core.windows.records import TickRecord
from watcher.model import METRIC_BY_NAME, Finding, FindingKind, LastSample, ProviderHealth, Remedy
from watcher.platform.clock import Clock, SystemClock
from watcher.platform.memory import BUDGET
from watcher.sources.base import Fetch, NodeAwareProvider, Provider, QueryPlan
from watcher.tick.bounds import NODES as REFUSED_NODES
from watcher.tick.fetching import NewestSamples, SampleFetcher
from watcher.tick.forecasts import ForecastRefresher
from watcher.tick.maxima_backfill import MaximaBackfill
from watcher.tick.pipeline import Processed, SamplePipeline, samples_of_cluster, samples_until
from watcher.tick.pods import PodRefresher
from watcher.tick.shared import (
    NAMES_S,
    NAMES_SHARE,
    NAMES_WHEN_SERVING_S,
    TICK_SHARE,
    NodeSource,
    RefreshConfig,
    TickContext,
    TickReports,
    TickStats,
    TickStore,
    TickWorker,
)

log = logging.getLogger(__name__)


class Refresher:
    """Runs ticks and owns the published snapshot; `published` is replaced as a whole, by one assignment."""

    def __init__(
        self,
        *,
        provider: Provider,
        config: RefreshConfig,
        store: TickStore | None = None,
        directory: NodeSource | None = None,
        clock: Clock | None = None,
        tag: str = "",
        observe: Callable[[str, float], None] = lambda stage, seconds: None,
    ) -> None:
        self.provider = provider
        self.directory = directory
        self.config = config
        self.published: Published | None = None
        self._store = store
        self._clock = clock or SystemClock()
        self._reports = TickReports(observe)
        self._worker = TickWorker()
        tag = tag or f"{int(self._clock.now()):x}"
        context = TickContext(provider, config, self._clock, tag, self._worker, self._reports)
        self._fetcher = SampleFetcher(context)
        self._pipeline = SamplePipeline(context, stores=store is not None)
        self.pods = PodRefresher(context)
        backfill = MaximaBackfill(context, self._pipeline, index=lambda: self._index)
        self.forecasts = ForecastRefresher(context, self._pipeline.forecasts, store=store, backfill=backfill)
        self._index: NodeIndex | None = None  # nodes of the cluster, None: names of the source are not resolved
        self._started_at = self._clock.monotonic()
        self._warm = False  # True after the first complete windows: the service then stays ready
        self._last_began = self._clock.monotonic()
        self._last_clocks: tuple[float, float] | None = None
        self._tick_lock = asyncio.Lock()

    # --- life cycle --------------------------------------------------------------------------------------------------

    async def restore(self, restored: TickRecord) -> None:
        """Publish stored samples, with their own source and times, before the provider is queried. Samples of another
        cluster, and samples from the future, are ignored."""
        now = self._clock.now()
        ours = samples_of_cluster(restored, self.config.cluster)
        if ours is None:
            log.warning(
                "stored samples not loaded: they belong to another cluster (cluster.name is %s)",
                self.config.cluster or "not set",
            )
            return
        past = samples_until(ours, now + self.config.limits.max_ahead_s)
        if past is None:
            self._set_aside(ours, now=now)
            return
        ours, others = known_nodes.restored_within(past, most=self.config.most_nodes)
        if others:
            log.warning(
                "the samples of %d stored nodes are not loaded: %d nodes are kept within the memory limit",
                others,
                self.config.most_nodes,
            )
        published = await self._worker.run(self._pipeline.compute_restored, ours, now)
        if published is None:
            return
        self.published = published
        young = now - ours.end <= self.config.max_staleness
        self._warm = self._warm or (young and not self.needs_quick_ticks)
        log.info(
            "restored %s nodes from %s, newest sample %.0f s old",
            len(published.snapshot.nodes),
            ours.source,
            now - ours.end,
        )

    def _set_aside(self, restored: TickRecord, *, now: float) -> None:
        ahead = max(restored.end, restored.timestamp) - now
        reason = (
            f"the stored samples end {ahead:.0f} s ahead of the clock of load-watcher, which was set back or is wrong; "
            "the samples are not loaded, and the history is fetched again: check time synchronization"
        )
        log.warning("%s", reason)
        self._reports.findings.add([Finding(FindingKind.CLOCK_STEP, "", "", now, reason, Remedy.SET_ASIDE)])

    async def continue_from(self, other: Refresher) -> None:
        """Take over from a refresher with other settings: its snapshot stays published until the first tick of this
        refresher, and its samples are reused if the source is the same."""
        await other.forecasts.close()  # its thread must not change the history that this refresher takes over
        self._reports.continue_from(other._reports)
        if other.provider.source == self.provider.source:
            self._pipeline.continue_from(other._pipeline)
        self._warm, self._started_at = other._warm, other._started_at
        self.pods.continue_from(other.pods)
        self.forecasts.continue_from(other.forecasts)
        self.published = other.published
        if other.published is not None and np.isfinite(other.published.snapshot.end):
            restored = await other.samples()
            if restored is not None:
                self._pipeline.resume(restored)

    async def capacities(self) -> Mapping[str, Capacity]:
        """Return the nodes' capacities, as far as the source or the cluster's node list knows them."""
        found: dict[str, Capacity] = {}
        sources: tuple[object, ...] = (self.provider, self.directory)
        for one in sources:
            if isinstance(one, CapacityProvider):
                found |= await one.capacities()
        return found

    def node_metadata(self, node: str) -> ObjectMetadata | None:
        """Return a node's metadata from the source or the cluster's node list, None if neither knows the node."""
        sources: tuple[object, ...] = (self.provider, self.directory)
        known = (one.node_metadata(node) for one in sources if isinstance(one, NodeMetadataProvider))
        return next((each for each in known if each is not None), None)

    async def samples(self) -> TickRecord | None:
        """Return all samples with their origin, in the form in which a store restores them."""
        return await self._worker.run(self._pipeline.samples, self.published)

    async def close(self) -> None:
        """Wait for a running tick, then stop the worker thread."""
        await self.forecasts.close()
        async with self._tick_lock:
            self._worker.close()

    # --- state for the service ---------------------------------------------------------------------------------------

    @property
    def findings(self) -> FindingLog:
        """The findings of the ticks, which outlive a reload."""
        return self._reports.findings

    @property
    def stats(self) -> TickStats:
        """The counters of the ticks, which outlive a reload."""
        return self._reports.stats

    @property
    def plans(self) -> Mapping[str, QueryPlan]:
        """The queries of the source by metric, as of its last response."""
        return self._fetcher.plans

    @property
    def provider_health(self) -> ProviderHealth:
        """State of the source as of the last query."""
        return self._fetcher.health.state

    @property
    def resolution(self) -> int:
        """Width of a slot of the history in seconds."""
        return self._pipeline.resolution

    @property
    def needs_quick_ticks(self) -> bool:
        """Whether no node has its shortest window yet; in that case ticks run once per resolution."""
        if self.published is None:
            return True
        metrics = self.published.snapshot.metrics
        return all(bool(np.isnan(windows.average[0]).all()) for windows in metrics)

    @property
    def never_seen(self) -> tuple[str, ...]:
        """Nodes of the cluster without any sample, as of the last tick."""
        return self._pipeline.never_seen

    def add_last_seen(self, found: Mapping[str, LastSample]) -> None:
        """Add the last-seen times and values of nodes from before the start. Call it between two ticks."""
        silent = self._pipeline.add_last_seen(found)
        if self.published is not None:
            self.published.silent = silent
            self._note_source_state()

    def continue_hot(self, found: Mapping[NodeMetric, LoadStart]) -> None:
        """Add the starts of high loads from before the start. Call it between two ticks."""
        hot = self._pipeline.continue_hot(found)
        if self.published is not None:
            self.published.hot = hot

    def findings_document(self) -> FindingsDocument:
        """Return the findings of the review, and the queries that the source runs."""
        return FindingsDocument(
            timestamp=int(self._clock.now()),
            review_mode=self.config.limits.mode,
            findings=self.findings.entries(),
            sources=[
                QuerySource(
                    metric=plan.metric,
                    type=METRIC_BY_NAME[plan.metric].type,
                    expression=plan.expression,
                    unit=plan.unit,
                    node_label=plan.node_label,
                    smoothing_s=plan.smoothing_s,
                    reason=plan.reason,
                    naming=self._fetcher.naming.get(plan.metric, ""),
                )
                for plan in self.plans.values()
            ],
        )

    # --- probes ------------------------------------------------------------------------------------------------------

    def stall_reason(self) -> str:
        """Return "" if a tick began, or was skipped because one still ran, within 1.5 intervals; otherwise the
        reason."""
        waited = self._clock.monotonic() - self._last_began
        limit = 1.5 * self.config.interval
        if waited <= limit:
            return ""
        return f"no tick began for {waited:.0f} s, more than 1.5 intervals ({limit:.0f} s)"

    def note_skipped(self) -> None:
        """Count a tick that was skipped because the previous one still runs. Liveness treats it as a tick."""
        self._last_began = self._clock.monotonic()
        self.stats.skipped += 1

    def not_ready_reason(self) -> str:
        """Return why the service is not ready, "" once it has windows to schedule by.

        It is ready when some node has its shortest window and, for a source with history, the backfill is complete; at
        the latest when the shortest window has passed since the start, because longer waiting adds no data."""
        shortest = self.config.windows[0]
        waited = self._clock.monotonic() - self._started_at
        if self._warm or waited >= shortest.seconds:
            return ""
        missing = f"no node has its {shortest.label} window" if self.needs_quick_ticks else "backfill is not complete"
        return f"{missing} yet; ready in {shortest.seconds - waited:.0f} s at the latest"

    # --- the tick ----------------------------------------------------------------------------------------------------

    async def tick(self) -> None:
        """Fetch, review, append, compute, publish and store; then backfill and refresh pod usage concurrently. Does not
        raise for errors of the source, and ends within its deadline."""
        if self._tick_lock.locked():
            self.note_skipped()
            return
        async with self._tick_lock:
            self._last_began = began = self._clock.monotonic()
            deadline = asyncio.get_running_loop().time() + TICK_SHARE * self.config.interval
            self._detect_clock_step()
            await self._resume_after_restored()
            await self._learn_names(asyncio.get_running_loop().time() + NAMES_SHARE * self.config.interval)
            newest = await self._fetcher.newest(deadline, overlap=self._overlap())
            if newest is None:
                self._note_source_state()
                await self.forecasts.refresh(deadline)  # bounds are for hours: an outage does not end them
            else:
                await self._take_newest(newest, deadline)
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._backfill(deadline), name="backfill")
                    group.create_task(self.pods.refresh(deadline, self._index, self._nodes_with_load()), name="pods")
                    group.create_task(self.forecasts.refresh(deadline), name="forecasts")
                backfilled = self._fetcher.backfill.next_slice(self._clock.now()) is None
                self._warm = self._warm or (backfilled and not self.needs_quick_ticks)
            self._note_refusals()
            self.stats.ticks += 1
            self._reports.observe("tick", self._clock.monotonic() - began)

    @property
    def index(self) -> NodeIndex | None:
        """The nodes of the cluster, None if they are unknown."""
        return self._index

    def _nodes_with_load(self) -> Collection[str]:
        published = self.published
        return () if published is None else published.snapshot.nodes

    async def _resume_after_restored(self) -> None:
        """Before the first fetch: continue where the restored samples end, and plan the backfill of their gaps."""
        if self._fetcher.backfill.begun:
            return
        restored = await self._worker.run(self._pipeline.restored_range, self._clock.now())
        if restored is not None:
            until, gaps = restored
            self._fetcher.backfill.resume_from(until, missing=gaps)

    async def _take_newest(self, newest: NewestSamples, deadline: float) -> None:
        """Process and publish the newest samples, and record what is missing from them."""
        now = self._clock.now()
        processed = await self._process(newest.fetch, now=now, present=True)
        self._fetcher.health.note_clock(processed.findings)
        if self.published is None:
            await self.forecasts.prepare(deadline)
        await self._publish(now=now)
        if self.published is not None:
            self._fetcher.health.names_compared(self.published.snapshot.nodes, self._index)
        self._fetcher.settle(
            newest, emptied=processed.emptied, implausible=processed.implausible, overlap=self._overlap()
        )
        self._note_source_state()
        if newest.fetch.plans and self._fetcher.backfill.complete:
            self._pipeline.forget_restored()

    async def _backfill(self, deadline: float) -> None:
        """Fetch the missing slices of the past, newest first, until the deadline; then publish again."""
        fetched = False
        while (fetch := await self._fetcher.past(deadline)) is not None:
            # process each slice immediately: all slices together take half a gigabyte with 50,000 nodes
            await self._process(fetch, now=self._clock.now(), present=False)
            fetched = True
        if fetched:
            self._pipeline.rerecord_minute()  # this minute's windows are complete only now
            await self._publish(now=self._clock.now())

    async def _process(self, fetch: Fetch, *, now: float, present: bool) -> Processed:
        """Review and append in the worker thread, and record the findings."""
        processed = await self._worker.run(self._pipeline.process, fetch, self._index, now=now, present=present)
        self._reports.findings.add(processed.findings)
        return processed

    async def _publish(self, *, now: float) -> None:
        """Compute and encode in the worker thread, publish here, then pass the record to the store."""
        began = self._clock.monotonic()
        current = self.published
        is_young = current is not None and current.age(self._clock.monotonic()) <= self.config.max_staleness
        before = None if current is None else current.snapshot
        findings, published, record = await self._worker.run(
            self._pipeline.compute, now, before=before, listed=self._listed(), is_young=is_young
        )
        self._reports.findings.add(findings)
        if published is not None:
            self.published = published
            self._note_source_state()
        if record is not None and self._store is not None:
            self._store.save(record)
        self._reports.observe("process", self._clock.monotonic() - began)

    # --- the inputs of the tick --------------------------------------------------------------------------------------

    def _overlap(self) -> float:
        """Overlap of two successive fetches in seconds: two cadences, at least two minutes."""
        cadence = 0.0
        if self.published is not None:
            medians = [float(np.median(w.cadence)) for w in self.published.snapshot.metrics if len(w.cadence)]
            cadence = max(medians, default=0.0)
        return max(2.0 * cadence, OVERLAP_S)

    def _listed(self) -> frozenset[str] | None:
        """Return the nodes of the cluster, None if they are unknown. An empty list counts as unknown."""
        sources: tuple[object, ...] = (self.directory, self.provider)
        lists = (one.node_names() for one in sources if isinstance(one, NodeLister))
        return next((frozenset(names) for names in lists if names), None)

    async def _learn_names(self, deadline: float) -> None:
        """Update the index of the cluster's nodes. The tick waits for the node list only shortly after the start."""
        if self.directory is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self.directory.wait_known(NAMES_S if self.published is None else NAMES_WHEN_SERVING_S)
        before, self._index = self._index, await self.directory.index()
        if before is None and self._index is not None:
            log.info("the cluster has %s nodes; samples are assigned to these node names", len(self._index.nodes))
        if isinstance(self.provider, NodeAwareProvider):
            self.provider.know_nodes(self._index)
        if trouble := self.directory.error_text():
            self._reports.findings.add(
                [Finding(FindingKind.NODE_NAMES, "", "", self._clock.now(), trouble, Remedy.REPORTED)]
            )

    def _detect_clock_step(self) -> None:
        """Detect a wall clock that steps back by more than an interval. The history would then lie in the future, so it
        is emptied and fetched again. The published snapshot stays; its age uses the monotonic clock."""
        now, monotonic = self._clock.now(), self._clock.monotonic()
        before, self._last_clocks = self._last_clocks, (now, monotonic)
        if before is None:
            return
        step = (now - before[0]) - (monotonic - before[1])
        if step >= -self.config.interval:
            return
        log.warning("wall clock stepped back by %.0f s; the history is emptied and fetched again", -step)
        reason = f"the wall clock of load-watcher stepped back by {-step:.0f} s; the history is fetched again"
        self._reports.findings.add([Finding(FindingKind.CLOCK_STEP, "", "", now, reason, Remedy.HISTORY_EMPTIED)])
        self._pipeline.reset(now)
        self.pods.forget()
        self._fetcher.backfill.forget()

    def _note_refusals(self) -> None:
        """Report what is not kept because the memory of the process is full; the pipeline reports nodes itself."""
        now, refused = self._clock.now(), BUDGET.refused
        self._reports.findings.add(
            [
                Finding(FindingKind.MEMORY, "", "", now, reason, Remedy.LEFT_OUT)
                for what, reason in sorted(refused.items())
                if what != REFUSED_NODES
            ]
        )

    def _note_source_state(self) -> None:
        """Publish whether the source returned complete data: otherwise a node without samples is not at fault."""
        if self.published is None:
            return
        state, silent = self.provider_health, self.published.silent
        is_ok = state.ok is not False and not state.partial
        if is_ok != silent.document.source_ok:
            self.published.silent = SilentBody.of(msgspec.structs.replace(silent.document, source_ok=is_ok))
