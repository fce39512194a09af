"""Forecasts in the refresh: samples in, bounds out, and what a restart, a rename and another source keep."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from tests.fakes.sources import CPU, MEMORY, FakeClock, MemorySource
from tests.watcher.refresh.test_tick import Records, every
from watcher.core.forecast.document import ForecastState, node_forecasts
from watcher.core.forecast.fleet import ForecastConfig
from watcher.core.forecast.maxima import HOUR_SLOTS, encode
from watcher.model import MaximaHour, Provenance, StoredMaxima
from watcher.refresh.config import RefreshConfig
from watcher.refresh.tick import Refresher

pytestmark = pytest.mark.slow

NOW = 1_700_000_100.0 // 3600 * 3600 + 1800
HOUR = int(NOW // 3600)
CONFIG = RefreshConfig(forecast=ForecastConfig())


def wave(time: float) -> float:
    return 50.0 + (time * 7.3 % 11.0)


class Maxima(Records):
    """A store with two days of maxima of node a, of the origin that the source has."""

    def __init__(self, origin: Provenance | None = None, percent: float = 40.0) -> None:
        super().__init__()
        codes = np.full((HOUR_SLOTS, 1), encode(np.array([percent]))[0])
        self.stored = (
            []
            if origin is None
            else [StoredMaxima(MaximaHour(CPU.name, hour, ("a",), codes), origin) for hour in range(HOUR - 48, HOUR)]
        )

    async def maxima(self) -> list[StoredMaxima]:
        return [*self.stored, *await super().maxima()]


Story = Callable[[Refresher, MemorySource, FakeClock], Coroutine[Any, Any, None]]


def source_of(*nodes: str, expression: str | None = None) -> MemorySource:
    source = MemorySource()
    for metric in (CPU, MEMORY):
        for node in nodes:
            for time in every(15, NOW - 900, NOW + 1800):
                source.add(metric, node, time, wave(time))
    return source


def play(story: Story, *, records: Records, source: MemorySource, clock: FakeClock | None = None) -> None:
    async def run() -> None:
        the_clock = clock or FakeClock(NOW)
        refresher = Refresher(provider=source, config=CONFIG, store=records, clock=the_clock, tag="t")
        try:
            await story(refresher, source, the_clock)
        finally:
            await refresher.close()

    asyncio.run(run())
