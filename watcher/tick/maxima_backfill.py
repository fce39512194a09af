"""Fetches the maxima of the last days from a source with history, in the background, one request per second.

A request has at most an hour of 5,000 nodes, or as many values of other fleets. Only hours that the history lacks are
fetched, the newest first, so a restart continues where the stored hours end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import numpy as np

from watcher.core.forecast.fleet import METRICS, FleetForecast
from watcher.core.forecast.maxima import HOUR_SLOTS, SLOT_S
from watcher.core.naming.name_resolver import NodeIndex
from watcher.model import Finding, FindingKind, Remedy
from watcher.sources.base import Fetch, MaximaProvider
from watcher.sources.errors import ProviderError
from watcher.tick.pipeline import SamplePipeline
from watcher.tick.shared import TickContext

log = logging.getLogger(__name__)

MOST_VALUES = 60_000  # of one response
MOST_HOURS = 24  # of one request
COMPLETE_SLOTS = 10  # an hour with fewer slots with samples is fetched
EMPTY_HOURS = 48  # after this many hours without samples, the source has none from before; it may lack a whole day
FAILURES = 3  # consecutive failures that end the backfill until the next hour
SAMPLES_PER_S = 0.1  # of a node and two metrics, assumed of a source that has no maxima


@dataclass(frozen=True, slots=True)
class MissingMaxima:
    """A range of slots that the history lacks, of one metric."""

    metric: str
    first: int
    stop: int


def missing_maxima(
    fleet: FleetForecast, now: float, *, most_hours: int, tried: set[tuple[str, int]]
) -> list[MissingMaxima]:
    """Return the hours with too few samples, the newest first, in ranges of at most `most_hours` hours; `tried` are
    the (metric, hour) to leave out."""
    stop_slot = int(now // SLOT_S) - 1  # the newest slot is not complete
    newest = stop_slot // HOUR_SLOTS
    hours = fleet.config.slots // HOUR_SLOTS + 1  # bounds are from whole hours, before the newest one
    found: list[MissingMaxima] = []
    for metric in METRICS:
        first = (newest - hours + 1) * HOUR_SLOTS
        known = fleet.maxima.slots_with_samples(metric, first=first, stop=first + hours * HOUR_SLOTS)
        counts = known.reshape(hours, HOUR_SLOTS).sum(axis=1)
        wanted = np.minimum(COMPLETE_SLOTS, np.full(hours, stop_slot) - (first + HOUR_SLOTS * np.arange(hours)))
        missing = [newest - hours + 1 + each for each in np.flatnonzero(counts < wanted).tolist()]
        lacking = [hour for hour in reversed(missing) if (metric, hour) not in tried]
        found.extend(_ranges(metric, lacking, most_hours, stop_slot))
    return sorted(found, key=lambda each: (-each.stop, each.metric))


def _ranges(metric: str, hours: Sequence[int], most: int, stop_slot: int) -> list[MissingMaxima]:
    """Join successive hours, given newest first."""
    ranges: list[MissingMaxima] = []
    group: list[int] = []
    for hour in hours:
        if group and (hour != group[-1] - 1 or len(group) == most):
            ranges.append(_range(metric, group, stop_slot))
            group = []
        group.append(hour)
    return [*ranges, _range(metric, group, stop_slot)] if group else ranges


def _range(metric: str, group: Sequence[int], stop_slot: int) -> MissingMaxima:
    return MissingMaxima(metric, group[-1] * HOUR_SLOTS, min((group[0] + 1) * HOUR_SLOTS, stop_slot))


async def _nothing() -> None:
    return


class MaximaBackfill:
    """Runs one backfill at a time. `index` returns the nodes of the cluster."""

    def __init__(
        self, context: TickContext, pipeline: SamplePipeline, *, index: Callable[[], NodeIndex | None]
    ) -> None:
        self._provider = context.provider
        self._pipeline = pipeline
        self._worker = context.worker
        self._clock = context.clock
        self._reports = context.reports
        self._index = index
        self._pace = context.config.maxima_pace  # seconds before each request
        self._tried: set[tuple[str, int]] = set()
        self._empty: dict[str, int] = {}
        self._task: asyncio.Task[None] | None = None
        self._looked_hour = -1
        self.done: Callable[[], Awaitable[None]] = _nothing
        """Called after a backfill that found samples."""

    @property
    def running(self) -> bool:
        """Whether missing hours are being fetched now."""
        return self._task is not None and not self._task.done()

    @property
    def at_once(self) -> bool:
        """Whether the maxima come without waiting between requests, because no server computes them."""
        return isinstance(self._provider, MaximaProvider) and self._provider.maxima_pace == 0.0

    async def wait(self, deadline: float) -> None:
        """Wait for a running backfill until the deadline (loop time). It continues afterwards."""
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=max(0.0, deadline - asyncio.get_running_loop().time()))

    def start_if_due(self) -> None:
        """Look for missing hours once per hour, and fetch them in the background."""
        fleet, hour = self._pipeline.forecasts.fleet, int(self._clock.now() // 3600)
        if fleet is None or not fleet.maxima.nodes or not self._provider.remembers:
            return
        if not self.running and hour != self._looked_hour:
            self._looked_hour = hour
            self._task = asyncio.create_task(self._run(), name="maxima-backfill")

    async def close(self) -> None:
        """Cancel the requests of a running backfill."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            await self._fetch_missing()
        except Exception:
            log.exception("unexpected error in the backfill of maxima; it is tried again in the next hour")

    async def _fetch_missing(self) -> None:
        fleet = self._pipeline.forecasts.fleet
        if fleet is None:
            return
        nodes = max(1, len(fleet.maxima.nodes))
        most = max(1, min(MOST_HOURS, MOST_VALUES // (nodes * HOUR_SLOTS)))
        now = self._clock.now()
        missing = await self._worker.run(missing_maxima, fleet, now, most_hours=most, tried=self._tried)
        if not missing:
            return
        log.info("fetching the maxima of the last days: %s requests", len(missing))
        added = failed = 0
        for each in missing:
            if self._empty.get(each.metric, 0) >= EMPTY_HOURS:
                continue
            try:
                found = await self._fetch(each, nodes)
            except (ProviderError, TimeoutError) as error:
                failed += 1
                if failed == FAILURES:
                    self._report(
                        f"backfill of maxima failed: {str(error) or 'no response in time'}; retried in an hour"
                    )
                    break
                continue
            failed = 0
            added += found
            self._note(each, found)
        log.info("fetched %s maxima of the last days", added)
        if added:
            await self._worker.run(fleet.restart)
            await self.done()

    async def _fetch(self, wanted: MissingMaxima, nodes: int) -> int:
        """Fetch a range; return the number of its values. Raises ProviderError and TimeoutError."""
        since, until = float(wanted.first * SLOT_S), float(wanted.stop * SLOT_S)
        if isinstance(self._provider, MaximaProvider):
            await asyncio.sleep(self._provider.maxima_pace)
            return await self._add(
                await self._provider.fetch_maxima(since, until, metric=wanted.metric), resolution=SLOT_S
            )
        length = max(60.0, min(SLOT_S * 3.0, MOST_VALUES / (nodes * SAMPLES_PER_S)))
        added = 0
        while until > since:
            begin = max(since, until - length)
            await asyncio.sleep(self._pace)
            fetch = await self._provider.fetch(begin, until, only={wanted.metric})
            added += await self._add(fetch, resolution=self._pipeline.resolution)
            until = begin
        return added

    async def _add(self, fetch: Fetch, *, resolution: int) -> int:
        if fetch.failures:
            raise fetch.failures[0].error
        return await self._worker.run(
            self._pipeline.add_past_maxima, fetch, self._index(), now=self._clock.now(), resolution=resolution
        )

    def _note(self, fetched: MissingMaxima, found: int) -> None:
        hours = range(fetched.first // HOUR_SLOTS, -(-fetched.stop // HOUR_SLOTS))
        self._tried.update((fetched.metric, hour) for hour in hours)
        self._empty[fetched.metric] = 0 if found else self._empty.get(fetched.metric, 0) + len(hours)

    def _report(self, reason: str) -> None:
        log.warning("%s", reason)
        finding = Finding(FindingKind.QUERY_FAILED, "", "", self._clock.now(), reason, Remedy.REPORTED)
        self._reports.findings.add([finding])
