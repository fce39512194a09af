"""The tick: fetch new samples from the source, review and append them, compute the windows, publish and store them.

`Refresher.tick` runs these steps once. Failures are contained: a failed query loses its metric, a failed source keeps
the last windows published with their true age, and a failed database loses the record of a minute. A tick ends within
0.8 intervals, so liveness does not depend on the source.

The first response does not wait for the backfill: after a start, a tick fetches the newest two minutes, publishes, and
then fetches the missing past in slices, newest first. The same applies after a gap, and to a metric that failed and
recovered.

Computation (pipeline.py) runs in a separate worker thread; the event loop only awaits it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

import msgspec
import numpy as np

from watcher.clock import Clock, SystemClock
from watcher.core.koordinator.report import Capacity
from watcher.core.kubernetes.node_facts import CapacityProvider, NodeLister, NodeMetadataProvider
from watcher.core.kubernetes.objects import ObjectMetadata
from watcher.core.pods.table import PODS
from watcher.core.publishing.documents import Published, SilentBody
from watcher.core.publishing.wire import FindingsDocument, QuerySource
from watcher.core.review.findings import FindingLog
from watcher.core.windows.backfill import OVERLAP_S, Backfill, Slice
from watcher.model import METRIC_BY_NAME, Finding, FindingKind, LastSample, ProviderHealth, Remedy, RestoredSamples
from watcher.platform.repeated_errors import RepeatedErrors
from watcher.providers.base import Fetch, Provider, ProviderError, ProviderPartial, QueryPlan
from watcher.refresh.config import (
    NAMES_S,
    NAMES_WHEN_SERVING_S,
    TICK_SHARE,
    NodeSource,
    RefreshConfig,
    TickStats,
    TickStore,
)
from watcher.refresh.pipeline import SamplePipeline, samples_of_cluster
from watcher.refresh.pods import PodRefresher, pod_config
from watcher.refresh.source_health import SourceHealth, with_hint

log = logging.getLogger(__name__)


P = ParamSpec("P")
T = TypeVar("T")


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
        self.findings = FindingLog()
        self.plans: Mapping[str, QueryPlan] = {}
        self.stats = TickStats()
        self._store = store
        self._observe = observe  # (stage of a tick, duration in seconds)
        self._clock = clock or SystemClock()
        self._source = SourceHealth(provider.source, clock=self._clock)
        tag = tag or f"{int(self._clock.now()):x}"
        self._backfill_plan = Backfill(reach=config.reach, interval=config.interval, remembers=provider.remembers)
        self._pipeline = SamplePipeline(
            config,
            source=provider.source,
            backfill=self._backfill_plan,
            clock=self._clock,
            tag=tag,
            stores=store is not None,
            adapts=config.adapts and provider.remembers,
        )
        self._started_at = self._clock.monotonic()
        self._warm = False  # True after the first complete windows: the service then stays ready
        self._last_began = self._clock.monotonic()
        self._last_clocks: tuple[float, float] | None = None
        self._tick_lock = asyncio.Lock()
        self._errors = RepeatedErrors(log)
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pipeline")
        self.pods = PodRefresher(
            provider,
            config=pod_config(config),
            clock=self._clock,
            tag=tag,
            index=lambda: self._pipeline.index,
            work=self._in_worker,
            report=lambda findings: self.findings.add(findings),  # not bound: a reload replaces the log
            count=lambda kind: self._count_failure(kind, PODS),
            observe=observe,
        )

    # --- life cycle --------------------------------------------------------------------------------------------------

    async def restore(self, restored: RestoredSamples) -> None:
        """Publish stored samples, with their own source and times, before the provider is queried. Samples of another
        cluster are ignored."""
        now = self._clock.now()
        ours = samples_of_cluster(restored, self.config.cluster)
        if ours is None:
            log.warning(
                "stored samples not loaded: they belong to another cluster (cluster.name is %s)",
                self.config.cluster or "not set",
            )
            return
        restored = ours
        self._pipeline.resume(restored)
        published = await self._in_worker(self._pipeline.compute_restored, restored, now)
        if published is None:
            return
        self.published = published
        young = now - restored.end <= self.config.max_staleness
        self._warm = self._warm or (young and not self.needs_quick_ticks)
        log.info(
            "restored %s nodes from %s, newest sample %.0f s old",
            len(published.snapshot.nodes),
            restored.source,
            now - restored.end,
        )

    async def continue_from(self, other: Refresher) -> None:
        """Take over from a refresher with other settings: its snapshot stays published until the first tick of this
        refresher, and its samples are reused if the source is the same."""
        self.findings = other.findings
        if other.provider.source == self.provider.source:
            # known and lost nodes stay so: after a reload, an incomplete list that was refused must not be served
            self._pipeline.silent = other._pipeline.silent
            self._pipeline.guard = other._pipeline.guard
            self._pipeline.guard.limits = self.config.limits
        self.stats = other.stats
        self._warm, self._started_at = other._warm, other._started_at
        self.pods.continue_from(other.pods)
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

    async def samples(self) -> RestoredSamples | None:
        """Return all samples with their origin, in the form in which a store restores them."""
        return await self._in_worker(lambda: self._pipeline.samples(self.published))

    async def close(self) -> None:
        """Wait for a running tick, then stop the worker thread."""
        async with self._tick_lock:
            self._worker.shutdown(wait=False, cancel_futures=True)

    # --- state for the service ---------------------------------------------------------------------------------------

    @property
    def provider_health(self) -> ProviderHealth:
        """State of the source as of the last query."""
        return self._source.state

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

    @property
    def never_seen(self) -> tuple[str, ...]:
        """Nodes of the cluster without any sample, as of the last tick."""
        return self._pipeline.silent.never_seen

    def add_last_seen(self, found: Mapping[str, LastSample]) -> None:
        """Add the last-seen times and values of nodes from before the start. Call it between two ticks."""
        self._pipeline.silent.add_last_seen(found)
        if self.published is not None:
            self.published.silent = SilentBody.of(self._pipeline.silent.document)
            self._note_source_state()

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
                )
                for plan in self.plans.values()
            ],
        )

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
            if await self._fetch_newest(deadline):
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._backfill(deadline), name="backfill")
                    group.create_task(self.pods.refresh(deadline), name="pods")
                backfilled = self._backfill_plan.next_slice(self._clock.now()) is None
                self._warm = self._warm or (backfilled and not self.needs_quick_ticks)
            self.stats.ticks += 1
            self._observe("tick", self._clock.monotonic() - began)

    async def _fetch_newest(self, deadline: float) -> bool:
        """Fetch and publish the newest samples; return False if the source returned nothing."""
        now = self._clock.now()
        restored = self._pipeline.restored
        if restored is not None and not self._backfill_plan.begun:
            until = min(restored.end, now)
            missing = await self._in_worker(self._pipeline.gaps_of, restored, now - self.config.reach, until)
            self._backfill_plan.resume_from(until, missing=missing)
        since = self._backfill_plan.begin(now, overlap=self._overlap())
        # a source without history may take its sample during the fetch
        until = now if self.provider.remembers else now + self.config.interval
        fetch = await self._fetch(since=since, until=until, deadline=deadline)
        if fetch is None:
            return False
        self._backfill_plan.fetched(now)
        await self._learn_names(deadline)
        fetched_at = self._clock.now()
        await self._take_in(fetch, now=fetched_at, present=True)
        await self._publish(now=fetched_at)
        if self.published is not None:
            self._source.names_compared(self.published.snapshot.nodes, self._pipeline.index)
        self._record_failures(fetch, now=now, since=since)
        self._note_source_state()
        if fetch.plans and self._backfill_plan.complete:
            self._pipeline.restored = None  # the history contains all restored samples
        return True

    async def _backfill(self, deadline: float) -> None:
        """Fetch the missing slices, newest first, until the deadline; then publish again."""
        taken_in = False
        while asyncio.get_running_loop().time() < deadline:
            piece = self._backfill_plan.next_slice(self._clock.now())
            if piece is None or (fetch := await self._fetch_past(piece, deadline=deadline)) is None:
                break
            self._backfill_plan.slice_fetched()
            # process each slice immediately: all slices together take half a gigabyte with 50,000 nodes
            await self._take_in(fetch, now=self._clock.now(), present=False)
            lacking = {*fetch.partial, *(failure.metric for failure in fetch.failures)}
            self._backfill_plan.mark_still_missing(lacking, since=piece.since)
            taken_in = True
        if taken_in:
            self._pipeline.rerecord_minute()  # this minute's windows are complete only now
            await self._publish(now=self._clock.now())

    async def _fetch(self, *, since: float, until: float, deadline: float) -> Fetch | None:
        """Fetch the newest samples, None if the source returned nothing. The result sets whether the source is up."""
        began = self._clock.monotonic()
        try:
            async with asyncio.timeout_at(deadline):
                fetch = await self.provider.fetch(since, until)
        except TimeoutError:
            self._provider_down(
                f"no response within {TICK_SHARE:g} of the refresh interval", hint="", kind="unreachable"
            )
            return None
        except ProviderError as error:
            self._provider_down(str(error), hint=error.hint, kind=error.kind)
            return None
        except Exception as error:  # a bug here or in a library must not look like a healthy source
            self._errors.failed(error, "unexpected error in the provider; the last windows stay published")
            self._provider_down(
                f"internal error: {type(error).__name__}", hint="see the log for details", kind="internal"
            )
            return None
        finally:
            self._observe("fetch", self._clock.monotonic() - began)
        self._errors.succeeded()
        self._source.up()
        return fetch

    async def _fetch_past(self, piece: Slice, *, deadline: float) -> Fetch | None:
        """Fetch a slice of the past, None if it must wait for the next tick. A failure here does not mark the source as
        down, because it has just responded to the query for the newest samples."""
        try:
            async with asyncio.timeout_at(deadline):
                return await self.provider.fetch(piece.since, piece.until, only=piece.only)
        except TimeoutError:
            return None
        except ProviderError as error:
            self._count_failure(error.kind, "")
            reason = f"backfill of {piece.until - piece.since:.0f} s failed: {error}"
            now = self._clock.now()
            self.findings.add([Finding(FindingKind.QUERY_FAILED, "", "", now, reason, Remedy.REPORTED)])
            return None

    # --- overlap and gaps --------------------------------------------------------------------------------------------

    def _overlap(self) -> float:
        """Overlap of two successive fetches in seconds: two cadences, at least two minutes."""
        cadence = 0.0
        if self.published is not None:
            medians = [float(np.median(w.cadence)) for w in self.published.snapshot.metrics if len(w.cadence)]
            cadence = max(medians, default=0.0)
        return max(2.0 * cadence, OVERLAP_S)

    def _record_failures(self, fetch: Fetch, *, now: float, since: float) -> None:
        """Record which metrics failed or are incomplete, and plan the backfill of recovered metrics."""
        self.plans = fetch.plans or self.plans
        for failure in fetch.failures:
            name = failure.metric
            if self._backfill_plan.mark_behind(name, since=since):
                log.warning("cannot fetch metric %s: %s", name, with_hint(str(failure.error), failure.error.hint))
            self._count_failure(failure.error.kind, name)
            reason = with_hint(str(failure.error), failure.error.hint)
            in_part = isinstance(failure.error, ProviderPartial)
            kind = FindingKind.PARTIAL_RESPONSE if in_part else FindingKind.QUERY_FAILED
            self.findings.add([Finding(kind, "", name, now, reason, Remedy.LEFT_OUT)])
        self._record_partial(fetch, now=now, since=since)
        self._source.note_findings(fetch.findings)
        answered = [batch.metric.name for batch in fetch.batches if batch.metric.name not in fetch.partial]
        back = self._backfill_plan.catch_up(answered, now=now, since=since, overlap=self._overlap())
        if back and self.provider.remembers:
            log.info("metrics can be fetched again, backfilling the gap: %s", ", ".join(back))
        elif back:
            log.info("metrics can be fetched again: %s", ", ".join(back))

    def _record_partial(self, fetch: Fetch, *, now: float, since: float) -> None:
        """Report partial responses. Their samples were appended; nodes missing from them keep their last samples, and
        the missing part is fetched once the source responds completely again."""
        for name in sorted(fetch.partial.keys() - {failure.metric for failure in fetch.failures}):
            self._backfill_plan.mark_behind(name, since=since)
            self._count_failure(ProviderPartial.kind, name)
            reason = f"partial response, missing nodes keep their last samples: {fetch.partial[name]}"
            self.findings.add([Finding(FindingKind.PARTIAL_RESPONSE, "", name, now, reason, Remedy.HELD)])
        self._source.answered_in_part(min(fetch.partial.items())[1] if fetch.partial else "")

    # --- processing --------------------------------------------------------------------------------------------------

    async def _take_in(self, fetch: Fetch, *, now: float, present: bool) -> None:
        """Review and append in the worker thread."""
        self.findings.add(await self._in_worker(self._pipeline.process, fetch, now, present))

    async def _publish(self, *, now: float) -> None:
        """Compute and encode in the worker thread, publish here, then pass the record to the store."""
        began = self._clock.monotonic()
        current = self.published
        is_young = current is not None and current.age(self._clock.monotonic()) <= self.config.max_staleness
        before = None if current is None else current.snapshot
        findings, published, record = await self._in_worker(
            self._pipeline.compute, now, before=before, listed=self._listed(), is_young=is_young
        )
        self.findings.add(findings)
        if published is not None:
            self.published = published
            self._note_source_state()
        if record is not None and self._store is not None:
            self._store.save(record)
        self._observe("process", self._clock.monotonic() - began)

    def _listed(self) -> frozenset[str] | None:
        """Return the nodes of the cluster, None if they are unknown. An empty list counts as unknown."""
        sources: tuple[object, ...] = (self.directory, self.provider)
        lists = (one.node_names() for one in sources if isinstance(one, NodeLister))
        return next((frozenset(names) for names in lists if names), None)

    # --- the names of nodes ------------------------------------------------------------------------------------------

    async def _learn_names(self, deadline: float) -> None:
        """Update the index of the cluster's nodes. The tick waits for the node list only shortly after the start."""
        if self.directory is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self.directory.wait_known(NAMES_S if self.published is None else NAMES_WHEN_SERVING_S)
        before, index = self._pipeline.index, await self.directory.index()
        self._pipeline.index = index
        if before is None and index is not None:
            log.info("the cluster has %s nodes; samples are assigned to these node names", len(index.nodes))
        if trouble := self.directory.error_text():
            self.findings.add([Finding(FindingKind.NODE_NAMES, "", "", self._clock.now(), trouble, Remedy.REPORTED)])

    # --- clock, source, worker ---------------------------------------------------------------------------------------

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
        self.findings.add([Finding(FindingKind.CLOCK_STEP, "", "", now, reason, Remedy.HISTORY_EMPTIED)])
        self._pipeline.reset()
        self.pods.forget()
        self._backfill_plan.forget()

    def _provider_down(self, reason: str, *, hint: str, kind: str) -> None:
        now = self._clock.now()
        self.stats.failed += 1
        self._count_failure(kind, "")
        self.findings.add([Finding(FindingKind.QUERY_FAILED, "", "", now, with_hint(reason, hint), Remedy.HELD)])
        self._source.down(reason, hint=hint)
        self._note_source_state()

    def _note_source_state(self) -> None:
        """Publish whether the source returned complete data: otherwise a node without samples is not at fault."""
        if self.published is None:
            return
        state, silent = self._source.state, self.published.silent
        is_ok = state.ok is not False and not state.partial
        if is_ok != silent.document.source_ok:
            self.published.silent = SilentBody.of(msgspec.structs.replace(silent.document, source_ok=is_ok))

    def _count_failure(self, kind: str, metric: str) -> None:
        key = (kind, metric)
        self.stats.query_failures[key] = self.stats.query_failures.get(key, 0) + 1

    async def _in_worker(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        # shielded: the next tick must not use the history while a cancelled tick still writes it
        return await asyncio.shield(loop.run_in_executor(self._worker, partial(function, *args, **kwargs)))
