"""The tick: ask the source for what is new, judge it, keep it, compute the windows, publish them, store them.

One tick is one pass through that sentence (`Refresher.tick`). Whatever goes wrong costs as little as it can: a failing
query its metric, a failing source nothing but time (the last windows stay, with their true age), a failing database the
record of a minute. A tick ends by itself within 0.8 intervals, so health never depends on the source.

The first answer does not wait for the past: a start asks for the newest two minutes, publishes, and then fetches what
is missing in slices, newest first. The same happens after a gap, and for a metric that failed and came back.

Arithmetic runs in a worker thread of its own; the event loop only awaits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ParamSpec, Protocol, TypeVar

import numpy as np

from watcher import names, review
from watcher.capacities import KnowsCapacities, KnowsNodes, ListsNodes
from watcher.findings import FindingLog
from watcher.history import History
from watcher.kube import ObjectMetadata
from watcher.model import (
    METRIC_BY_KEY,
    METRIC_BY_NAME,
    Cells,
    Finding,
    FindingKind,
    FindingsDocument,
    LastSample,
    Metric,
    Provenance,
    ProviderHealth,
    QuerySource,
    Remedy,
    Restored,
    SeriesBatch,
    Snapshot,
    TickRecord,
    Window,
    WindowRecord,
    origin_of,
)
from watcher.names import NodeIndex
from watcher.naming import Named, Naming, follow
from watcher.node_metrics import Capacity
from watcher.outage import Guard
from watcher.pod_refresh import PodConfig, PodRefresher
from watcher.pods import PODS
from watcher.providers.base import Fetch, Provider, ProviderError, ProviderPartial, QueryPlan, provenance
from watcher.publish import Published, SilentBody
from watcher.silent import SilentNodes
from watcher.snapshot import take_snapshot, window_records
from watcher.spans import LATE_INTERVALS, OVERLAP_S, Slice, Spans, holes

log = logging.getLogger(__name__)

TICK_SHARE = 0.8  # of an interval: the hard deadline of a tick, retries included
# What the Trimaran plug-ins score by, as a finding names it and as people do; "" is everything.
SCORED_BY = {"": "nodes", METRIC_BY_KEY["CPU"].name: "CPU", METRIC_BY_KEY["Memory"].name: "Memory"}
NAMES_S = 2.0  # how long after the start the first answer waits for the names of the cluster's nodes
NAMES_AT_LEISURE_S = 10.0  # the same, while what was stored is being served

P = ParamSpec("P")
T = TypeVar("T")


class Clock(Protocol):
    """Wall time and monotonic time, both in seconds."""

    def now(self) -> float: ...

    def monotonic(self) -> float: ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


class Keeper(Protocol):
    """What the tick needs of a store: it takes a record and returns at once."""

    def save(self, record: TickRecord) -> None: ...


class Directory(Protocol):
    """What the tick needs of the cluster: who its nodes are (directory.ClusterNodes)."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def settle(self, patience: float) -> None:
        """Wait until the nodes are known, or cannot be; at most until `patience` seconds after the start."""

    async def index(self) -> NodeIndex | None:
        """The nodes; None as long as they are not known."""

    def trouble(self) -> str:
        """Why they are not known, or may be out of date; empty while all is well."""


@dataclass(frozen=True, slots=True)
class RefreshConfig:
    """The settings that the tick needs; times in seconds."""

    interval: float = 60.0
    resolution: int = 15
    windows: tuple[Window, ...] = (Window("5m", 300), Window("10m", 600), Window("15m", 900))
    max_staleness: float = 300.0
    keep: tuple[str, ...] = ("CPU", "Memory")  # metric types whose windows are recorded each minute
    cluster: str = ""  # the name of the cluster, "" for none
    limits: review.Limits = field(default_factory=review.Limits)
    pods: str = "auto"  # auto, on or off

    @property
    def reach(self) -> float:
        """How many seconds back samples are fetched. A window ends with the newest sample, which may be some time old,
        so the longest one begins earlier than its length ago."""
        return self.windows[-1].seconds + LATE_INTERVALS * self.interval


@dataclass(slots=True)
class TickStats:
    """How the ticks went so far, for our own metrics; all of it only grows."""

    ticks: int = 0
    failed: int = 0
    skipped: int = 0
    query_failures: dict[tuple[str, str], int] = field(default_factory=dict)  # (kind, metric) -> count


class Refresher:
    """Owner of the history and of what is published. `published` is replaced whole, by one assignment."""

    def __init__(
        self,
        *,
        provider: Provider,
        config: RefreshConfig,
        store: Keeper | None = None,
        directory: Directory | None = None,
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
        self.provider_health = ProviderHealth(None, "the source has not been asked yet", 0.0)
        self._store = store
        self._observe = observe  # stage of a tick, and how many seconds it took
        self._clock = clock or SystemClock()
        self._tag = tag or f"{int(self._clock.now()):x}"
        self._sequence = 0
        self._history = self._new_history()
        self._guard = Guard(config.limits)
        self._silent = SilentNodes()
        self._index: NodeIndex | None = None  # of this tick; None: names stay as the source gives them
        self._naming = Naming()
        self._strange = False  # no name is a node's; there was a log line
        self._restored: Restored | None = None
        self._spans = Spans(reach=config.reach, interval=config.interval, remembers=provider.remembers)
        self._provenance: dict[str, Provenance] = {}
        self._recorded_minute = -1
        self._born = self._clock.monotonic()
        self._warm = False  # once it has its windows a service stays ready, whatever comes
        self._absent: frozenset[str] = frozenset()  # of SCORED_BY; there was a log line
        self._last_began = self._clock.monotonic()
        self._last_clocks: tuple[float, float] | None = None
        self._tick_lock = asyncio.Lock()
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="digest")
        self.pods = PodRefresher(
            provider,
            config=_pod_config(config),
            clock=self._clock,
            tag=self._tag,
            index=lambda: self._index,
            work=self._in_worker,
            report=lambda findings: self.findings.add(findings),  # a reload puts another log in its place
            count=lambda kind: self._count_failure(kind, PODS),
            observe=observe,
        )

    # --- life --------------------------------------------------------------------------------------------------------

    async def restore(self, restored: Restored) -> None:
        """Publish what the store had, under its own source and times, before the provider is asked. What it had of
        another cluster is of no use here, nor for anybody who asks."""
        now = self._clock.now()
        ours = _of_cluster(restored, self.config.cluster)
        if ours is None:
            log.warning("the stored samples are of another cluster than %s: not loaded", self.config.cluster or "this")
            return
        self._restored = restored = ours
        published = await self._in_worker(self._publish_restored, restored, now)
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
        """Take over from a refresher with other settings: what it published stays until the first tick here, and its
        samples go on where their source is the same."""
        self.findings = other.findings
        if other.provider.source == self.provider.source:
            # who was known, and who was lost, stays so: a reload must not turn what was refused into a remnant
            self._silent = other._silent
            self._guard = other._guard
            self._guard.limits = self.config.limits
        self.stats = other.stats
        self._warm, self._born = other._warm, other._born
        self.pods.continue_from(other.pods)
        self.published = other.published
        if other.published is not None and np.isfinite(other.published.snapshot.end):
            self._restored = await other.samples()

    async def capacities(self) -> Mapping[str, Capacity]:
        """How large nodes are, as far as the source or the cluster's node list has it at hand."""
        found: dict[str, Capacity] = {}
        sources: tuple[object, ...] = (self.provider, self.directory)
        for one in sources:
            if isinstance(one, KnowsCapacities):
                found |= await one.capacities()
        return found

    def node_metadata(self, node: str) -> ObjectMetadata | None:
        """Who a node of the cluster is, as far as the source or the cluster's node list has it at hand."""
        sources: tuple[object, ...] = (self.provider, self.directory)
        known = (one.node_metadata(node) for one in sources if isinstance(one, KnowsNodes))
        return next((each for each in known if each is not None), None)

    async def samples(self) -> Restored | None:
        """All samples and where they come from, as a store would give them back."""
        return await self._in_worker(self._samples)

    def _samples(self) -> Restored | None:
        if self.published is None or not self._history.names:
            return self._restored
        snapshot = self.published.snapshot
        return Restored(
            timestamp=snapshot.timestamp,
            end=self._history.end,
            source=snapshot.source,
            resolution=self.config.resolution,
            windows=self.config.windows,
            provenance=dict(self._provenance),
            blocks=self._history.blocks(),
            lost=snapshot.lost,
        )

    async def close(self) -> None:
        """Wait for a tick that runs, then stop the worker."""
        async with self._tick_lock:
            self._worker.shutdown(wait=False, cancel_futures=True)

    # --- what others read --------------------------------------------------------------------------------------------

    @property
    def needs_quick_ticks(self) -> bool:
        """Whether no node has its shortest window yet: then ticks run every resolution."""
        if self.published is None:
            return True
        metrics = self.published.snapshot.metrics
        return all(bool(np.isnan(windows.average[0]).all()) for windows in metrics)

    def warming_up(self) -> str:
        """Empty once there are windows to schedule by, else what they wait for.

        That is when some node has its shortest window and, of a source that remembers, the past was fetched; but at the
        latest when the shortest window has passed since the start, because more waiting would bring no more (contract
        5: ready is "a window young enough to serve")."""
        shortest = self.config.windows[0]
        waited = self._clock.monotonic() - self._born
        if self._warm or waited >= shortest.seconds:
            return ""
        missing = f"no node has its {shortest.label} window" if self.needs_quick_ticks else "the past is not fetched"
        return f"{missing} yet; ready in {shortest.seconds - waited:.0f} s at the latest"

    @property
    def unheard(self) -> tuple[str, ...]:
        """The nodes of the cluster that nothing was heard of, as of the last tick."""
        return self._silent.unheard

    def recall(self, found: Mapping[str, LastSample]) -> None:
        """What was known of some of these nodes before the start. Between two ticks."""
        self._silent.recall(found)
        if self.published is not None:
            self.published.silent = SilentBody.of(self._silent.document)

    def alive(self) -> str:
        """Empty if a tick began, or was skipped because one still ran, within 1.5 intervals; else what is wrong."""
        waited = self._clock.monotonic() - self._last_began
        limit = 1.5 * self.config.interval
        if waited <= limit:
            return ""
        return f"no tick began for {waited:.0f} s, more than 1.5 intervals ({limit:.0f} s)"

    def note_skipped(self) -> None:
        """The scheduler found the previous tick still running. That counts as life, and is counted."""
        self._last_began = self._clock.monotonic()
        self.stats.skipped += 1

    def findings_document(self) -> FindingsDocument:
        """What the review found, and what is asked of the source."""
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
        """Fetch, review, append, compute, publish, store; then what is missing of the past, and beside it what pods
        use. Never raises for what a source can do wrong, and ends within its deadline."""
        if self._tick_lock.locked():
            self.note_skipped()
            return
        async with self._tick_lock:
            self._last_began = began = self._clock.monotonic()
            deadline = asyncio.get_running_loop().time() + TICK_SHARE * self.config.interval
            self._watch_clock()
            if await self._fetch_newest(deadline):
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._backfill(deadline), name="backfill")
                    group.create_task(self.pods.refresh(deadline), name="pods")
                backfilled = self._spans.next_slice(self._clock.now()) is None
                self._warm = self._warm or (backfilled and not self.needs_quick_ticks)
            self.stats.ticks += 1
            self._observe("tick", self._clock.monotonic() - began)

    async def _fetch_newest(self, deadline: float) -> bool:
        """The part of a tick that brings the present; False if the source gave nothing."""
        now = self._clock.now()
        if self._restored is not None and not self._spans.begun:
            until = min(self._restored.end, now)
            missing = await self._in_worker(self._holes, self._restored, now - self.config.reach, until)
            self._spans.go_on_from(until, missing=missing)
        since = self._spans.begin(now, overlap=self._overlap())
        # a source that knows only the present may take its sample while we wait for it
        until = now if self.provider.remembers else now + self.config.interval
        fetch = await self._fetch(since=since, until=until, deadline=deadline)
        if fetch is None:
            return False
        self._spans.fetched(now)
        await self._learn_names(deadline)
        fetched_at = self._clock.now()
        await self._take_in(fetch, now=fetched_at, present=True)
        await self._digest(now=fetched_at)
        self._tell_strangers()
        self._account(fetch, now=now, since=since)
        if fetch.plans and self._spans.complete:
            self._restored = None  # all of it is in the history now
        return True

    async def _backfill(self, deadline: float) -> None:
        """Fetch the slices that are missing, newest first, as far as the deadline allows; then publish once more."""
        taken_in = False
        while asyncio.get_running_loop().time() < deadline:
            piece = self._spans.next_slice(self._clock.now())
            if piece is None or (fetch := await self._fetch_past(piece, deadline=deadline)) is None:
                break
            self._spans.slice_fetched()
            # at once, because all of them together are half a gigabyte in a cluster of 50,000 nodes
            await self._take_in(fetch, now=self._clock.now(), present=False)
            lacking = {*fetch.partial, *(failure.metric for failure in fetch.failures)}
            self._spans.still_lacks(lacking, since=piece.since)
            taken_in = True
        if taken_in:
            self._recorded_minute = -1  # this minute's windows are recorded again, now that they are whole
            await self._digest(now=self._clock.now())

    async def _fetch(self, *, since: float, until: float, deadline: float) -> Fetch | None:
        """What the source has, None if it gave nothing: that is what decides whether it is up."""
        began = self._clock.monotonic()
        try:
            async with asyncio.timeout_at(deadline):
                fetch = await self.provider.fetch(since, until)
        except TimeoutError:
            self._provider_down(f"no answer within {TICK_SHARE:g} of the interval", hint="", kind="unreachable")
            return None
        except ProviderError as error:
            self._provider_down(str(error), hint=error.hint, kind=error.kind)
            return None
        except Exception as error:  # a fault of ours or of a library: it must not look like a source that is well
            log.exception("the provider failed in a way that was not foreseen")
            self._provider_down(f"internal error: {type(error).__name__}", hint="the log has more", kind="internal")
            return None
        finally:
            self._observe("fetch", self._clock.monotonic() - began)
        self._provider_up()
        return fetch

    async def _fetch_past(self, piece: Slice, *, deadline: float) -> Fetch | None:
        """A slice of the past, None if it must wait for the next tick. The source has just answered for the present, so
        it is up, whatever becomes of this: a tick that ends in the middle of a slice says nothing of the source."""
        try:
            async with asyncio.timeout_at(deadline):
                return await self.provider.fetch(piece.since, piece.until, only=piece.only)
        except TimeoutError:
            return None
        except ProviderError as error:
            self._count_failure(error.kind, "")
            reason = f"the samples of {piece.until - piece.since:.0f} s in the past could not be fetched: {error}"
            now = self._clock.now()
            self.findings.add([Finding(FindingKind.QUERY_FAILED, "", "", now, reason, Remedy.REPORTED)])
            return None

    # --- which spans to ask for --------------------------------------------------------------------------------------

    def _overlap(self) -> float:
        """How far a fetch looks back behind the one before: two cadences, and two minutes at least."""
        cadence = 0.0
        if self.published is not None:
            medians = [float(np.median(w.cadence)) for w in self.published.snapshot.metrics if len(w.cadence)]
            cadence = max(medians, default=0.0)
        return max(2.0 * cadence, OVERLAP_S)

    def _holes(self, restored: Restored, since: float, until: float) -> list[Slice]:
        """What the stored samples lack. Those of another source are not gone on with, so all of theirs is fetched."""
        if restored.source != self.provider.source:
            return []
        return holes(restored.blocks, resolution=restored.resolution, since=since, until=until)

    def _account(self, fetch: Fetch, *, now: float, since: float) -> None:
        """Remember which metrics failed or came in part, and plan to fetch what they missed once they answer again."""
        self.plans = fetch.plans or self.plans
        for failure in fetch.failures:
            name = failure.metric
            if self._spans.falls_behind(name, since=since):
                log.warning("metric %s could not be fetched: %s", name, _told(str(failure.error), failure.error.hint))
            self._count_failure(failure.error.kind, name)
            reason = _told(str(failure.error), failure.error.hint)
            in_part = isinstance(failure.error, ProviderPartial)
            kind = FindingKind.PARTIAL_RESPONSE if in_part else FindingKind.QUERY_FAILED
            self.findings.add([Finding(kind, "", name, now, reason, Remedy.LEFT_OUT)])
        self._account_parts(fetch, now=now, since=since)
        self._tell_absence(fetch)
        answered = [batch.metric.name for batch in fetch.batches if batch.metric.name not in fetch.partial]
        back = self._spans.catch_up(answered, now=now, since=since, overlap=self._overlap())
        if back and self.provider.remembers:
            log.info("fetching the past of %s", ", ".join(back))
        elif back:
            log.info("metrics can be fetched again: %s", ", ".join(back))

    def _tell_absence(self, fetch: Fetch) -> None:
        """A log line when a well source lacks what plug-ins score by, or all, and one when it has that again."""
        reasons = {
            finding.metric: finding.reason for finding in fetch.findings if finding.kind is FindingKind.NO_SERIES
        }
        absent = {name: reasons[name] for name in SCORED_BY if name in reasons}
        if absent and absent.keys() != self._absent:
            what = " and ".join(SCORED_BY[name] for name in absent)
            reason = next(iter(absent.values()))
            log.warning("%s knows nothing of %s: %s; load-watcher doctor says more", self.provider.source, what, reason)
        elif self._absent and not absent:
            log.info("%s knows CPU and Memory now", self.provider.source)
        self._absent = frozenset(absent)

    def _account_parts(self, fetch: Fetch, *, now: float, since: float) -> None:
        """What came in part was taken in. Who is not in it keeps the last samples, and what is missing is fetched once
        the source is whole again."""
        for name in sorted(fetch.partial.keys() - {failure.metric for failure in fetch.failures}):
            self._spans.falls_behind(name, since=since)
            self._count_failure(ProviderPartial.kind, name)
            reason = f"the answer is partial, nodes that it lacks keep their last samples: {fetch.partial[name]}"
            self.findings.add([Finding(FindingKind.PARTIAL_RESPONSE, "", name, now, reason, Remedy.HELD)])
        self._provider_partial(min(fetch.partial.items())[1] if fetch.partial else "")

    # --- digesting ---------------------------------------------------------------------------------------------------

    async def _take_in(self, fetch: Fetch, *, now: float, present: bool) -> None:
        """Review and append in the worker thread."""
        self.findings.add(await self._in_worker(self._absorb, fetch, now, present))

    def _absorb(self, fetch: Fetch, now: float, present: bool) -> list[Finding]:
        named = self._named(fetch.batches, now=now, present=present)
        found = [*fetch.findings, *self._settle_provenance(fetch, named, now)]
        found.extend(follow(named, history=self._history, guard=self._guard, now=now))
        for each in named:
            found.extend(each.findings)
            found.extend(self._append(each.batch, now))
        if present:
            found.extend(self._name_findings(named, now))
        skew = review.skew(fetch.clock_offset_s, newest=self._history.end, now=now, limits=self.config.limits)
        return found if skew is None else [*found, skew]

    async def _digest(self, *, now: float) -> None:
        """Compute and encode in the worker thread; publish here; then hand over to the store."""
        began = self._clock.monotonic()
        findings, published, record = await self._in_worker(self._compute, now, self._listed())
        self.findings.add(findings)
        if published is not None:
            self.published = published
        if record is not None and self._store is not None:
            self._store.save(record)
        self._observe("digest", self._clock.monotonic() - began)

    def _compute(
        self, now: float, listed: Collection[str] | None
    ) -> tuple[list[Finding], Published | None, TickRecord | None]:
        self._history.forget_silent()
        if not self._history.names:
            return [], None, None  # what is published stays, until it is stale
        snapshot, findings = self._snapshot(self._history, now=now, source=self.provider.source, guard=self._guard)
        published = self._encode(snapshot, now=now)
        before = None if self.published is None else self.published.snapshot
        published.silent = SilentBody.of(self._silent.step(snapshot, before=before, now=now, listed=listed))
        return findings, published, self._record(snapshot)

    def _listed(self) -> frozenset[str] | None:
        """The nodes of the cluster, None where they are not known. A list without a node says nothing."""
        sources: tuple[object, ...] = (self.directory, self.provider)
        lists = (one.node_names() for one in sources if isinstance(one, ListsNodes))
        return next((frozenset(names) for names in lists if names), None)

    # --- the names of nodes ------------------------------------------------------------------------------------------

    async def _learn_names(self, deadline: float) -> None:
        """See who the nodes of the cluster are. Only right after the start is there anything to wait for."""
        if self.directory is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self.directory.settle(NAMES_S if self.published is None else NAMES_AT_LEISURE_S)
        before, self._index = self._index, await self.directory.index()
        if before is None and self._index is not None:
            log.info(
                "the cluster has %s nodes; what the source tells of them goes by their names", len(self._index.nodes)
            )
        if trouble := self.directory.trouble():
            self.findings.add([Finding(FindingKind.NODE_NAMES, "", "", self._clock.now(), trouble, Remedy.REPORTED)])

    def _tell_strangers(self) -> None:
        """A log line when schedulers find no load, since none of the names served is a node's, and one at the end."""
        if self._index is None or self.published is None or not (self._index.nodes and self.published.snapshot.nodes):
            return
        strange = set(self.published.snapshot.nodes).isdisjoint(self._index.nodes)
        if strange and not self._strange:
            log.warning(
                "no name of the source is a node of the cluster, so schedulers find no load: the source has %s, "
                "the cluster %s; load-watcher doctor says more",
                self.published.snapshot.nodes[0],
                next(iter(self._index.nodes)),
            )
        elif self._strange and not strange:
            log.info("names of the source are nodes of the cluster now")
        self._strange = strange

    def _named(self, batches: Iterable[SeriesBatch], *, now: float, present: bool) -> list[Named]:
        """The batches under the names of nodes; as they are where those are not known."""
        if self._index is None:
            return [Named(batch) for batch in batches]
        if not present:
            return [self._naming.name_past(batch, self._index, now=now) for batch in batches]
        return [self._naming.name(batch, self._index, now=now) for batch in batches]

    def _name_findings(self, named: Sequence[Named], now: float) -> Iterator[Finding]:
        """Which names are no node's, and which nodes have no series."""
        if self._index is None or not named:
            return
        for resolution in {id(each.resolution): each.resolution for each in named}.values():
            if resolution is not None:
                yield from names.findings(resolution, self._index, now=now)
        seen = set(self._history.names).union(*(each.batch.nodes for each in named))
        yield from names.missing(self._index.without_series(seen), now=now)

    # --- review, and what changed of the source ----------------------------------------------------------------------

    def _append(self, batch: SeriesBatch, now: float) -> Iterator[Finding]:
        """One metric's samples, reviewed, into the history; yields what was found."""
        limits = self.config.limits
        cells, findings = review.combine(batch, resolution=self.config.resolution, limits=limits)
        yield from findings
        reviewed = review.clean(batch.metric, cells, now=now, limits=limits)
        yield from reviewed.findings
        yield from self._jumps(batch.metric, reviewed.cells)
        self._history.append(batch.metric, reviewed.cells)
        if limits.enforced:
            filled = self._history.carry(batch.metric, reviewed.bad, slots=limits.carry_slots)
            yield from review.carried(batch.metric, filled)

    def _jumps(self, metric: Metric, cells: Cells) -> Iterable[Finding]:
        """Jumps are looked for in what the history does not have yet: fetches overlap."""
        time, value = self._history.newest(metric, cells.names)
        fresh = cells.where(~(cells.time <= time[cells.node]))
        if not len(fresh.slot):
            return ()
        return review.jumps(
            metric,
            fresh,
            previous=value,
            spread=partial(self._history.spread, metric),
            limits=self.config.limits,
        )

    def _settle_provenance(self, fetch: Fetch, named: Iterable[Named], now: float) -> Iterator[Finding]:
        """Samples of one metric share a window only if they come from the same source, expression, unit and smoothing.
        So stored samples are loaded when that is known to hold, and a metric whose source changed starts anew. What
        was kept under other names than those of the cluster's nodes can stay once these are known: it gets theirs."""
        translated = {each.batch.metric.name: each.translated for each in named}
        for name, plan in fetch.plans.items():
            origin = origin_of(self.provider.source, cluster=self.config.cluster)
            old, plain = self._provenance.get(name), provenance(plan, origin)
            of_cluster = provenance(plan, origin, of_cluster=True)
            fitting = (plain,) if self._index is None else (plain, of_cluster)
            new = of_cluster if translated.get(name, old == of_cluster) else plain
            self._provenance[name] = new
            if old in fitting or (old is None and self._load_restored(name, fitting)):
                continue
            self._spans.falls_behind(name, since=now - self.config.reach)
            if old is not None:
                self._history.drop(name)
                self._forget_fleet()
                reason = f"the source changed from {old.expression} to {new.expression}; its history starts anew"
                yield Finding(FindingKind.SOURCE, "", name, now, reason, Remedy.HISTORY_EMPTIED)

    def _load_restored(self, name: str, fitting: Collection[Provenance]) -> bool:
        """Take in the stored samples of a metric. False if there are some that may not stand beside new ones."""
        restored = self._restored
        if restored is None:
            return True
        if restored.resolution != self.config.resolution or restored.provenance.get(name) not in fitting:
            self._forget_fleet()
            return False
        self._history.load([block for block in restored.blocks if block.metric == name])
        return True

    def _forget_fleet(self) -> None:
        """Under another label the nodes may have other names: those that go now did not fall silent."""
        self._guard.forget()
        if self._index is None:  # else the silent are those of the cluster, whatever the source calls them
            self._silent.forget()

    # --- from history to what is published ---------------------------------------------------------------------------

    def _snapshot(self, history: History, *, now: float, source: str, guard: Guard) -> tuple[Snapshot, list[Finding]]:
        known = {metric.name: self._provenance_of(metric.name, source) for metric in history.metrics}
        return take_snapshot(
            history, now=now, source=source, provenance=known, guard=guard, max_staleness=self.config.max_staleness
        )

    def _provenance_of(self, metric: str, source: str) -> Provenance:
        known = self._provenance.get(metric)
        if known is None and self._restored is not None:
            known = self._restored.provenance.get(metric)
        return known or Provenance(source, "", METRIC_BY_NAME[metric].unit, 0.0)

    def _encode(self, snapshot: Snapshot, *, now: float) -> Published:
        self._sequence += 1
        published = Published(
            snapshot,
            tag=f"{self._tag}-{self._sequence:x}",
            monotonic=self._clock.monotonic(),
            age_s=max(0.0, now - snapshot.end),
        )
        published.encode_default()
        return published

    def _publish_restored(self, restored: Restored, now: float) -> Published | None:
        history = History(resolution=restored.resolution, windows=restored.windows)
        history.load(restored.blocks)
        if not history.names:
            return None
        same = restored.source == self.provider.source
        if same:
            self._guard.await_back(restored.lost, now=now)
        # a fleet that was known a moment ago must not shrink unnoticed across a restart
        recent = same and now - restored.end <= self.config.max_staleness
        guard = self._guard if recent else Guard(self.config.limits)
        snapshot, _ = self._snapshot(history, now=restored.timestamp, source=restored.source, guard=guard)
        return self._encode(snapshot, now=now)

    # --- what the store keeps ----------------------------------------------------------------------------------------

    def _record(self, snapshot: Snapshot) -> TickRecord | None:
        """What this tick adds to the database: the slots that changed and, once a minute, the windows."""
        if self._store is None or not np.isfinite(snapshot.end):
            return None
        minute = int(snapshot.end // 60) * 60
        records: tuple[WindowRecord, ...] = ()
        if minute != self._recorded_minute and snapshot.nodes:
            self._recorded_minute = minute
            records = window_records(snapshot, minute=minute, types=self.config.keep)
        return TickRecord(
            timestamp=snapshot.timestamp,
            end=snapshot.end,
            source=snapshot.source,
            resolution=snapshot.resolution,
            windows=snapshot.windows,
            provenance=dict(self._provenance),
            blocks=self._history.take_changed(),
            records=records,
            lost=snapshot.lost,
        )

    # --- clock, source, worker ---------------------------------------------------------------------------------------

    def _watch_clock(self) -> None:
        """A clock that steps back by more than an interval leaves the history in the future: it is emptied and fetched
        anew. What is published stays; its age runs on the monotonic clock."""
        now, monotonic = self._clock.now(), self._clock.monotonic()
        before, self._last_clocks = self._last_clocks, (now, monotonic)
        if before is None:
            return
        step = (now - before[0]) - (monotonic - before[1])
        if step >= -self.config.interval:
            return
        log.warning("the clock stepped back by %.0f s: the history is emptied and fetched anew", -step)
        reason = f"our clock stepped back by {-step:.0f} s; the history is fetched anew"
        self.findings.add([Finding(FindingKind.CLOCK_STEP, "", "", now, reason, Remedy.HISTORY_EMPTIED)])
        self._history = self._new_history()
        self._naming = Naming()  # it knows from when on a name means what it does
        self._restored = None
        self.pods.forget()
        self._spans.forget()
        self._recorded_minute = -1

    def _provider_down(self, reason: str, *, hint: str, kind: str) -> None:
        now = self._clock.now()
        self.stats.failed += 1
        self._count_failure(kind, "")
        told = _told(reason, hint)
        self.findings.add([Finding(FindingKind.QUERY_FAILED, "", "", now, told, Remedy.HELD)])
        since = now if self.provider_health.ok is not False else self.provider_health.since
        if self.provider_health.ok is not False:
            log.warning("%s is down: %s", self.provider.source, told)
        self.provider_health = ProviderHealth(False, reason, since)

    def _count_failure(self, kind: str, metric: str) -> None:
        key = (kind, metric)
        self.stats.query_failures[key] = self.stats.query_failures.get(key, 0) + 1

    def _provider_up(self) -> None:
        now = self._clock.now()
        if self.provider_health.ok:
            return
        if self.provider_health.ok is False:
            log.info("%s is back after %.0f s", self.provider.source, now - self.provider_health.since)
        self.provider_health = ProviderHealth(True, "", now)

    def _provider_partial(self, missing: str) -> None:
        """The source has answered; `missing` is what it said of a part that it lacks, "" if it is whole."""
        now, before = self._clock.now(), self.provider_health
        if missing and not before.partial:
            log.warning("%s answers in part only: %s", self.provider.source, missing)
        elif before.partial and not missing:
            log.info("%s answers whole again after %.0f s", self.provider.source, now - before.since)
        since = before.since if before.partial == bool(missing) else now
        self.provider_health = ProviderHealth(True, missing, since)

    def _new_history(self) -> History:
        # what may come in before the next snapshot must not push out what the last one covers
        slack = 2 * self.config.interval + self.config.limits.max_ahead_s
        return History(resolution=self.config.resolution, windows=self.config.windows, slack_s=slack)

    async def _in_worker(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        # shielded: a cancelled tick must not leave the history half written and free for the next one
        return await asyncio.shield(loop.run_in_executor(self._worker, partial(function, *args, **kwargs)))


def _of_cluster(restored: Restored, cluster: str) -> Restored | None:
    """What is of this cluster, None if there is something and nothing of it is."""
    origins = {metric: one for metric, one in restored.provenance.items() if one.cluster == cluster}
    if restored.provenance and not origins:
        return None
    blocks = tuple(block for block in restored.blocks if block.metric in origins)
    return replace(restored, provenance=origins, blocks=blocks)


def _pod_config(config: RefreshConfig) -> PodConfig:
    return PodConfig(
        mode=config.pods,
        interval=config.interval,
        windows=config.windows,
        max_staleness=config.max_staleness,
        max_ahead_s=config.limits.max_ahead_s,
    )


def _told(reason: str, hint: str) -> str:
    """What is wrong and what to do about it, as sentences."""
    return f"{reason}. {hint}" if hint else reason
