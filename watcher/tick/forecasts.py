"""The forecasts of the refresh: bounds are computed in the background of the ticks, and published for the API."""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import dataclass

from watcher.core.forecast.fleet import ForecastTable
from watcher.core.forecast.settings import ForecastSettings
from watcher.store.errors import StoreError
from watcher.tick.forecast_history import ForecastHistory
from watcher.tick.maxima_backfill import MaximaBackfill
from watcher.tick.shared import TickContext, TickStore

log = logging.getLogger(__name__)

LOADS = 10
"""Ticks in which stored maxima of another origin are read again."""
LOADED_HOURS = 12
"""Hours that are read at once: seven days of 5,000 nodes would take 20 MB beside the history."""


@dataclass(frozen=True, slots=True)
class PublishedForecasts:
    """The served forecasts; `tag` changes with the content."""

    table: ForecastTable
    tag: str


class ForecastRefresher:
    """Computes bounds after the newest samples are published. `published` is replaced as a whole; None before the first
    tick, and if forecasts are disabled."""

    def __init__(
        self, context: TickContext, history: ForecastHistory, *, store: TickStore | None, backfill: MaximaBackfill
    ) -> None:
        self.published: PublishedForecasts | None = None
        self._history = history
        self._worker = context.worker
        self._clock = context.clock
        self._tag = context.tag
        self._sequence = 0
        self._store = store
        self.backfill = backfill
        backfill.done = self._compute
        self._loads_left = LOADS if store is not None else 0
        history.holds = store is not None

    @property
    def config(self) -> ForecastSettings | None:
        """The settings of the forecasts, None if they are disabled."""
        return None if self._history.fleet is None else self._history.fleet.config

    @property
    def enabled(self) -> bool:
        """Whether the settings enable forecasts."""
        return self.config is not None

    def continue_from(self, other: ForecastRefresher) -> None:
        """Serve the forecasts of a refresher with other settings until the first tick."""
        if self.enabled:
            self.published = other.published
            if self._history.fleet is other._history.fleet:
                self._loads_left = other._loads_left

    async def close(self) -> None:
        """Stop a backfill of the past, before its provider is closed."""
        await self.backfill.close()

    async def _load(self) -> None:
        """Load the stored maxima after the first windows are served; again for a few ticks if some do not fit, because
        the names of the cluster's nodes may be known late."""
        if not self._loads_left or not self._history.fitting:
            return
        now, complete = self._clock.now(), True
        for hours in self._history.hours(now, LOADED_HOURS):
            try:
                stored = [] if self._store is None else await self._store.maxima(hours)
            except StoreError as error:
                log.debug("cannot load the maxima of forecasts yet: %s", error)  # the store reports its errors itself
                return
            complete &= await self._worker.run(self._history.load, stored, now)
        self._loads_left = 0 if complete else self._loads_left - 1
        if not self._loads_left:
            self._history.holds = False

    async def refresh(self, deadline: float) -> None:
        """Load the stored maxima, begin to fetch missing ones, and compute the due bounds, one chunk at a time, until
        the deadline (loop time)."""
        if self.enabled:
            await self._begin()
            await self._compute(deadline)

    async def _begin(self) -> None:
        await self._load()
        if not self._history.holds:
            self.backfill.start_if_due()

    async def prepare(self, deadline: float) -> None:
        """Before the first windows are served: wait until the deadline (loop time) for the past of a provider that
        computes it without a source, so that the first answer has bounds."""
        if self.enabled and self.backfill.at_once:
            await self._begin()
            await self.backfill.wait(deadline)

    async def _compute(self, deadline: float = math.inf) -> None:
        """Compute the due bounds, and publish the table if it changed."""
        now = self._clock.now()
        for chunk in await self._worker.run(self._history.due_chunks, now):
            if asyncio.get_running_loop().time() >= deadline:
                break
            await self._worker.run(self._history.advance, chunk, now)
        table = await self._worker.run(self._history.table, now)
        if table is not None and (self.published is None or not table.equals(self.published.table)):
            self._sequence += 1
            self.published = PublishedForecasts(table, f"{self._tag}-forecast-{self._sequence:x}")
