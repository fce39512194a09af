"""Pipeline for a tick's samples: resolve node names, review, append to the history, compute the snapshot and records.

The tick (tick.py) passes the fetched samples to this module. All calls that compute run in the tick's worker thread,
one at a time, without I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np

from watcher.core.naming import name_resolver
from watcher.core.naming.name_resolver import NodeIndex
from watcher.core.naming.renames import NamedBatch, NodeRenames, apply_renames
from watcher.core.publishing.documents import Published, SilentBody
from watcher.core.review import faults, samples
from watcher.core.review.fleet import FleetReview
from watcher.core.review.outage import OutageGuard
from watcher.core.windows.backfill import Slice, gaps
from watcher.core.windows.history import History
from watcher.core.windows.hot_loads import HotLoads, LoadStart, NodeMetric, hot_loads
from watcher.core.windows.records import MaximaHour, SampleBlock, TickRecord, WindowRecord
from watcher.core.windows.resolution import resample
from watcher.core.windows.silent_nodes import SilentNodes
from watcher.core.windows.snapshot import take_snapshot, window_records
from watcher.model import (
    METRIC_BY_NAME,
    Cells,
    Finding,
    FindingKind,
    LastSample,
    Metric,
    Provenance,
    Remedy,
    SeriesBatch,
    Snapshot,
    origin_of,
)
from watcher.sources.base import Fetch, provenance
from watcher.tick.bounds import NodeBound, ResolutionChooser
from watcher.tick.forecast_history import ForecastHistory
from watcher.tick.shared import TickContext


class Processed(NamedTuple):
    """Result of the review of one fetch: the findings; the metrics whose history was emptied, or not restored, because
    their samples have another source (their past must be fetched again); and by metric name why the samples of the
    fleet are implausible."""

    findings: list[Finding]
    emptied: list[str]
    implausible: Mapping[str, str]


class SamplePipeline:
    """Owner of the history. `stores`: tick records are needed for a store."""

    def __init__(self, context: TickContext, *, stores: bool) -> None:
        config, remembers = context.config, context.provider.remembers
        self._index: NodeIndex | None = None  # as of this tick; None: the source's names are not resolved
        self._restored: TickRecord | None = None  # until the history contains all of them
        self._guard = OutageGuard(config.limits)
        self._fleet = FleetReview()
        self._source_ahead_s = 0.0  # by its Date header; 0 if its clock is behind, as the samples are older then
        self._silent = SilentNodes()
        self._hot = HotLoads()
        self._config = config
        self._source = context.provider.source
        self._clock = context.clock
        self._tag = context.tag
        self._stores = stores
        self._sequence = 0
        self._resolution = ResolutionChooser(config, adapts=not config.resolution and remembers, remembers=remembers)
        self._history = self._new_history()
        self._naming = NodeRenames()
        self._bound = NodeBound(config.most_nodes)
        self._provenance: dict[str, Provenance] = {}
        self._listed: frozenset[str] = frozenset()  # nodes of the cluster, when they were last known
        self._recorded_minute = -1
        self.forecasts = ForecastHistory(config.forecast)

    def reset(self, now: float) -> None:
        """Reset the history: the clock stepped back to `now` (unix seconds), and the history lies in the future."""
        self.forecasts.step_back(now)
        self._history = self._new_history()
        self._naming = NodeRenames()  # it stores since when a name means a node
        self._fleet.forget()
        self._hot = HotLoads()
        self._restored = None
        self._recorded_minute = -1

    def rerecord_minute(self) -> None:
        """Record this minute's windows again at the next `compute`."""
        self._recorded_minute = -1

    def _new_history(self) -> History:
        # samples that arrive before the next snapshot must not evict samples that the last snapshot covers
        slack = 2 * self._config.interval + self._config.limits.max_ahead_s
        return History(resolution=self.resolution, windows=self._config.windows, slack_s=slack)

    @property
    def resolution(self) -> int:
        """Width of a slot of the history in seconds."""
        return self._resolution.width

    def _follow_cadence(self, batches: Sequence[SeriesBatch], now: float) -> list[Finding]:
        """Adapt the resolution to newly fetched samples, and return the findings about dropped samples. The samples of
        the history move to the new slots."""
        before = self._history
        findings = self._resolution.follow(batches, before, self._restored, now=now)
        if self.resolution != before.resolution:
            self._history = self._new_history()
            blocks = resample(before.blocks(), before=before.resolution, after=self.resolution)
            self._history.load(blocks, changed=True)
        return findings

    # --- samples in --------------------------------------------------------------------------------------------------

    def process(self, fetch: Fetch, index: NodeIndex | None, *, now: float, present: bool) -> Processed:
        """Review and append fetched samples. `index` has the nodes of the cluster, None if they are unknown; `now` is
        in unix seconds; `present`: the fetch has the newest samples and is not a slice of a backfill."""
        self._index = index
        named, refused = self._bound.within(
            self._named(fetch.batches, now=now, present=present), known=self._history.names, cluster=self._cluster
        )
        adapted = self._follow_cadence([each.batch for each in named], now) if present else []
        changed, emptied = self._settle_provenance(fetch, named, now)
        found = [*fetch.findings, *adapted, *changed]
        implausible: dict[str, str] = {}
        if refused:
            found.append(Finding(FindingKind.MEMORY, "", "", now, refused, Remedy.LEFT_OUT))
        found.extend(apply_renames(named, history=self._history, guard=self._guard, now=now))
        for each in named:
            self.forecasts.rename(each.batch.metric.name, each.renamed)
            found.extend(each.findings)
            findings, reason = self._append(each.batch, now, present=present)
            found.extend(findings)
            if reason:
                implausible[each.batch.metric.name] = reason
        self.forecasts.keep_within(self._config.most_nodes, self._history.names)
        if present:
            self._bound.state(refused)
            found.extend(self._name_findings(named, now))
            self._source_ahead_s = faults.ahead(fetch.clock_offset_s, limits=self._config.limits)
        skew = faults.skew(fetch.clock_offset_s, newest=self._history.end, now=now, limits=self._config.limits)
        if skew is not None:
            found.append(skew)
        return Processed(found, emptied, implausible)

    def add_past_maxima(self, fetch: Fetch, index: NodeIndex | None, *, now: float, resolution: int) -> int:
        """Review samples of the last days, with slots of `resolution` seconds, and add them to the maxima; return their
        number. Their findings are not reported: they are about the past."""
        self._index = index
        added = 0
        known = {*self._history.names, *self._silent.last}
        past = self._named(fetch.batches, now=now, present=False)
        named, _ = self._bound.within(past, known=known, cluster=self._cluster, most=len(known))
        for each in named:
            cells, _ = samples.combine(each.batch, resolution=resolution, limits=self._config.limits)
            reviewed = samples.clean(each.batch.metric, cells, now=now, limits=self._config.limits)
            self.forecasts.add(each.batch.metric, reviewed.cells)
            added += len(reviewed.cells.slot)
        return added

    @property
    def _cluster(self) -> Collection[str]:
        """The nodes of the cluster as far as they are known."""
        return self._listed if self._index is None else self._index.nodes

    # --- the names of nodes ------------------------------------------------------------------------------------------

    def _named(self, batches: Iterable[SeriesBatch], *, now: float, present: bool) -> list[NamedBatch]:
        """Return the batches with node names; unchanged if the cluster's nodes are unknown."""
        if self._index is None:
            return [NamedBatch(batch) for batch in batches]
        if not present:
            return [self._naming.name_past(batch, self._index, now=now) for batch in batches]
        return [self._naming.name(batch, self._index, now=now) for batch in batches]

    def _name_findings(self, named: Sequence[NamedBatch], now: float) -> Iterator[Finding]:
        """Yield findings about names that match no node, and about nodes without series."""
        if self._index is None or not named:
            return
        for resolution in {id(each.resolution): each.resolution for each in named}.values():
            if resolution is not None:
                yield from name_resolver.findings(resolution, self._index, now=now)
        seen = set(self._history.names).union(*(each.batch.nodes for each in named))
        yield from name_resolver.missing_findings(self._index.without_series(seen), now=now)

    # --- review and provenance ---------------------------------------------------------------------------------------

    def _append(self, batch: SeriesBatch, now: float, *, present: bool) -> tuple[list[Finding], str]:
        """Review one metric's samples and append them to the history; return the findings, and why the samples of the
        fleet are implausible, "" if they are not."""
        limits, metric = self._config.limits, batch.metric
        combined, findings = samples.combine(batch, resolution=self.resolution, limits=limits)
        newest = self._history.newest(metric, combined.names) if present else None
        fleet = self._fleet.review(
            metric, combined, newest=newest, repeats=partial(self._history.repeats, metric), now=now, limits=limits
        )
        if fleet.zeros:
            self._history.drop_newest(metric, fleet.zeros, value=0.0)
        reviewed = samples.clean(metric, fleet.kept, now=now, limits=limits)
        found = [*findings, *fleet.findings, *reviewed.findings, *self._jumps(metric, reviewed.cells)]
        self._history.append(metric, reviewed.cells)
        self.forecasts.add(metric, reviewed.cells)
        if limits.enforced:
            filled = self._history.carry(metric, reviewed.bad, slots=limits.carry_slots)
            found.extend(faults.carry_findings(metric, filled))
        return found, fleet.reason

    def _jumps(self, metric: Metric, cells: Cells) -> Iterable[Finding]:
        """Report jumps in samples that the history does not have yet, because fetches overlap."""
        time, value = self._history.newest(metric, cells.names)
        fresh = cells.where(~(cells.time <= time[cells.node]))
        if not len(fresh.slot):
            return ()
        return faults.jumps(
            metric,
            fresh,
            previous=value,
            spread=partial(self._history.spread, metric),
            limits=self._config.limits,
        )

    def _settle_provenance(
        self, fetch: Fetch, named: Iterable[NamedBatch], now: float
    ) -> tuple[list[Finding], list[str]]:
        """Update each metric's provenance; return findings, and the metrics whose past must be fetched again. Samples
        of a metric share a window only if source, expression, unit and smoothing are the same: stored samples are
        loaded once that is verified, and the history of a metric whose source changed is emptied. A change from the
        source's names to cluster node names does not empty it: the samples are renamed."""
        findings: list[Finding] = []
        emptied: list[str] = []
        translated = {each.batch.metric.name: each.translated for each in named}
        for name, plan in fetch.plans.items():
            origin = origin_of(self._source, cluster=self._config.cluster)
            old, plain = self._provenance.get(name), provenance(plan, origin)
            of_cluster = provenance(plan, origin, of_cluster=True)
            fitting = (plain,) if self._index is None else (plain, of_cluster)
            new = of_cluster if translated.get(name, old == of_cluster) else plain
            self._provenance[name] = new
            self.forecasts.fitting[name] = fitting
            if old in fitting or (old is None and self._load_restored(name, fitting)):
                continue
            emptied.append(name)
            self.forecasts.drop(name)
            if old is not None:
                self._history.drop(name)
                self._hot = self._hot.without(name)
                self._forget_fleet()
                reason = f"the source changed from {old.expression} to {new.expression}; its history was emptied"
                findings.append(Finding(FindingKind.SOURCE, "", name, now, reason, Remedy.HISTORY_EMPTIED))
        return findings, emptied

    def _load_restored(self, name: str, fitting: Collection[Provenance]) -> bool:
        """Load the stored samples of a metric. Return False if they must not share a window with new samples."""
        restored = self._restored
        if restored is None:
            return True
        if restored.provenance.get(name) not in fitting:
            self._forget_fleet()
            return False
        blocks = [block for block in restored.blocks if block.metric == name]
        same = restored.resolution == self.resolution
        self._history.load(resample(blocks, before=restored.resolution, after=self.resolution), changed=not same)
        self.forecasts.add_blocks(blocks, resolution=restored.resolution)
        return True

    def _forget_fleet(self) -> None:
        """Forget known and silent nodes: under another label nodes may have other names, so the old names did not fall
        silent."""
        self._guard.forget()
        if self._index is None:  # otherwise silent nodes have cluster node names, which do not change
            self._silent.forget()

    # --- silent nodes ------------------------------------------------------------------------------------------------

    @property
    def never_seen(self) -> tuple[str, ...]:
        """Nodes of the cluster without any sample, as of the last snapshot."""
        return self._silent.never_seen

    def add_last_seen(self, found: Mapping[str, LastSample]) -> SilentBody:
        """Add last-seen values from the store; return the new list of silent nodes. Call it between two ticks."""
        self._silent.add_last_seen(found)
        return SilentBody.of(self._silent.document)

    def continue_hot(self, found: Mapping[NodeMetric, LoadStart]) -> HotLoads:
        """Add starts of high loads from the store; return the new ones. Call it between two ticks."""
        self._hot = self._hot.continued(found)
        return self._hot

    # --- from history to snapshot ------------------------------------------------------------------------------------

    def compute(
        self, now: float, *, before: Snapshot | None, listed: Collection[str] | None, is_young: bool = False
    ) -> tuple[list[Finding], Published | None, TickRecord | None]:
        """Compute and encode the windows; return the findings, the new published snapshot, and the record to store.
        `now` is in unix seconds, `before` is the published snapshot, `listed` are the nodes of the cluster, None if
        unknown. `is_young`: by the monotonic clock, the published snapshot is not stale. If all samples are stale by
        the wall clock nevertheless, that clock stepped forward, and the published snapshot stays."""
        self._forget_removed(listed)
        self._history.drop_empty_nodes()
        if not self._history.names or (is_young and now - self._history.end > self._config.max_staleness):
            return [], None, None  # the published snapshot stays until it is stale
        snapshot, findings = self._snapshot(self._history, now=now, source=self._source, guard=self._guard)
        snapshot = replace(snapshot, forecasts=self.forecasts.of_nodes(snapshot.nodes, now))
        published = self._encode(snapshot, now=now)
        published.silent = SilentBody.of(self._silent.update(snapshot, before=before, now=now, listed=listed))
        self._hot = published.hot = hot_loads(snapshot, self._hot)
        return findings, published, self._record(snapshot)

    def _forget_removed(self, listed: Collection[str] | None) -> None:
        """Stop waiting for nodes without recent samples whose Node objects were removed since the last call, and remove
        their samples: a new node of the same name has none."""
        if listed is None:
            return
        removed = (self._listed - set(listed)) & self._silent.last.keys()
        self._listed = frozenset(listed)
        if removed:
            self._guard.rename(dict.fromkeys(removed))
            for metric in self._history.metrics:
                self._history.rename(metric.name, dict.fromkeys(removed))
                self.forecasts.rename(metric.name, dict.fromkeys(removed))

    def continue_from(self, other: SamplePipeline) -> None:
        """Keep the known, silent and lost nodes of a pipeline of the same source: after a reload, an incomplete list
        that was refused must not be served."""
        self.forecasts.continue_from(other.forecasts)
        self._silent, self._guard, self._hot = other._silent, other._guard, other._hot
        self._guard.limits = self._config.limits

    def resume(self, restored: TickRecord) -> None:
        """Continue with samples of the store or of another refresher, before the first tick."""
        self._restored = restored
        if restored.source == self._source:
            self._resolution.resume(restored.resolution)
            self._history = self._new_history()

    def forget_restored(self) -> None:
        """Drop the restored samples: the history contains all of them."""
        self._restored = None

    def compute_restored(self, restored: TickRecord, now: float) -> Published | None:
        """Continue with stored samples and compute their windows, with their own source and times; None without
        samples."""
        self.resume(restored)
        history = History(resolution=restored.resolution, windows=restored.windows)
        history.load(restored.blocks)
        if not history.names:
            return None
        same = restored.source == self._source
        if same:
            # until the source responds, stored maxima fit if they are of the same origin as the stored samples
            self.forecasts.fitting |= {name: (origin,) for name, origin in restored.provenance.items()}
            self.forecasts.restored = restored
            self._guard.expect_back(restored.lost, now=now)
            self._silent.restore(restored.silent, now=now)
        # a fleet that was known shortly before a restart must not shrink unnoticed
        recent = same and now - restored.end <= self._config.max_staleness
        guard = self._guard if recent else OutageGuard(self._config.limits)
        snapshot, _ = self._snapshot(history, now=restored.timestamp, source=restored.source, guard=guard)
        published = self._encode(snapshot, now=now)
        published.hot = hot_loads(snapshot, HotLoads())
        if same:
            self._hot = published.hot
            document = msgspec.structs.replace(
                self._silent.document, lost=dict(snapshot.lost), served=len(snapshot.nodes)
            )
            published.silent = SilentBody.of(document)
        return published

    def _snapshot(
        self, history: History, *, now: float, source: str, guard: OutageGuard
    ) -> tuple[Snapshot, list[Finding]]:
        known = {metric.name: self._provenance_of(metric.name, source) for metric in history.metrics}
        return take_snapshot(
            history, now=now, source=source, provenance=known, guard=guard, max_staleness=self._config.max_staleness
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
            age_s=max(0.0, now + self._source_ahead_s - snapshot.end),
        )
        published.encode_default()
        return published

    # --- records for the store ---------------------------------------------------------------------------------------

    def _record(self, snapshot: Snapshot) -> TickRecord | None:
        """Return this tick's record for the database: the changed slots and, once a minute, the windows."""
        if not self._stores or not np.isfinite(snapshot.end):
            return None
        minute = int(snapshot.end // 60) * 60
        records: tuple[WindowRecord, ...] = ()
        if minute != self._recorded_minute and snapshot.nodes:
            self._recorded_minute = minute
            records = window_records(snapshot, minute=minute, types=self._config.recorded_types)
        changed, maxima = self._history.take_changed(), self.forecasts.take_changed()
        return self._tick_record(snapshot, end=snapshot.end, blocks=changed, records=records, maxima=maxima)

    def samples(self, published: Published | None) -> TickRecord | None:
        """Return all samples in the form in which a store restores them; `published` is the newest snapshot."""
        if published is None or not self._history.names:
            return self._restored
        return self._tick_record(published.snapshot, end=self._history.end, blocks=self._history.blocks())

    def _tick_record(
        self,
        snapshot: Snapshot,
        *,
        end: float,
        blocks: tuple[SampleBlock, ...],
        records: tuple[WindowRecord, ...] = (),
        maxima: tuple[MaximaHour, ...] = (),
    ) -> TickRecord:
        return TickRecord(
            timestamp=snapshot.timestamp,
            end=end,
            source=snapshot.source,
            resolution=self.resolution,
            windows=self._config.windows,
            provenance=dict(self._provenance),
            blocks=blocks,
            records=records,
            lost=snapshot.lost,
            silent=dict(self._silent.last),
            maxima=maxima,
        )

    def restored_range(self, now: float) -> tuple[float, list[Slice]] | None:
        """Return the end of the restored samples (unix seconds) and their gaps, None without restored samples. Samples
        of another source are not reused, so they have no gaps."""
        restored = self._restored
        if restored is None:
            return None
        until = min(restored.end, now)
        if restored.source != self._source:
            return until, []
        since = now - self._config.reach
        return until, gaps(restored.blocks, resolution=restored.resolution, since=since, until=until)


def samples_of_cluster(restored: TickRecord, cluster: str) -> TickRecord | None:
    """Return the samples of this cluster, None if all of them are of other clusters."""
    origins = {metric: one for metric, one in restored.provenance.items() if one.cluster == cluster}
    if restored.provenance and not origins:
        return None
    blocks = tuple(block for block in restored.blocks if block.metric in origins)
    return replace(restored, provenance=origins, blocks=blocks)


def samples_until(restored: TickRecord, until: float) -> TickRecord | None:
    """Return the samples without those after `until` (unix seconds); None if the newest tick is after it: then a clock
    was set between the samples and now, and the time of none of them is known."""
    if max(restored.end, restored.timestamp) > until:
        return None
    blocks = tuple(_block_until(block, until, resolution=restored.resolution) for block in restored.blocks)
    lost = {node: time for node, time in restored.lost.items() if time <= until}
    silent = {node: last for node, last in restored.silent.items() if last.sampled <= until}
    return replace(restored, blocks=tuple(block for block in blocks if len(block.values)), lost=lost, silent=silent)


def _block_until(block: SampleBlock, until: float, *, resolution: int) -> SampleBlock:
    slots = max(0, int(until // resolution) + 1 - block.first_slot)
    if slots >= len(block.values):
        return block
    return replace(block, values=block.values[:slots], offset_ms=block.offset_ms[:slots])
