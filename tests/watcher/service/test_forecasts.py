"""Forecasts of the whole service in one process, over HTTP: short histories, a clock that is set, another unit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import requests
from aiohttp import web

from scorers.pasted_profile.module import PastedProfileModule
from tests.fakes.sources import CPU, MEMORY, FakeClock, MemorySource
from tests.waiting import eventually
from tests.watcher.tick.test_forecasts import NOW, SourceOfMaxima, wave
from tests.watcher.tick.test_tick import every
from watcher.platform.http.runner import Runner
from watcher.service.build import Sources
from watcher.service.server import Watcher
from watcher.service.settings.loading import load
from watcher.sources.base import QueryPlan

pytestmark = pytest.mark.slow

FILTERING = "{plugins: [{name: HighLoadFilter, args: {use: forecast}}]}"
POD = "{kind: Pod, metadata: {name: p}, spec: {containers: [{name: c, resources: {requests: {cpu: 100m}}}]}}"


@dataclass
class SourceOfUnit(SourceOfMaxima):
    """A source whose values have another unit."""

    unit: str = "percent"

    def _plan(self, name: str) -> QueryPlan:
        return replace(super()._plan(name), unit=self.unit)


def source(*, days: float, unit: str = "percent") -> SourceOfUnit:
    made = SourceOfUnit(since=NOW - days * 86400, unit=unit)
    for metric in (CPU, MEMORY):
        made.put("a", every(15, NOW - 900, NOW), wave, metric=metric)
    return made


@asynccontextmanager
async def serving(directory: Path, of: MemorySource, clock: FakeClock) -> AsyncIterator[tuple[Watcher, str]]:
    """The address of the service after its first tick and the backfill."""
    given = {
        "provider.name": "host",
        "refresh.resolution": "15s",
        "refresh.interval": "10m",
        "refresh.max_staleness": "1h",
    }
    settings = load(flags={**given, "store.url": f"sqlite:///{directory / 'a.db'}"}, environ={}, cwd=directory)
    watcher = Watcher(settings, clock=clock, parts=(PastedProfileModule(),), sources=Sources(provider=lambda _: of))
    runner = Runner(watcher.app, shutdown_timeout=1.0)
    try:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        await eventually(lambda: watcher.view.refresher.stats.ticks, what="the first tick")
        await eventually(lambda: not watcher.view.refresher.forecasts.backfill.running, what="the backfill")
        yield watcher, f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def next_tick(watcher: Watcher, of: MemorySource, clock: FakeClock) -> None:
    clock.pass_time(60)
    for metric in (CPU, MEMORY):
        of.put("a", every(15, clock.now() - 60, clock.now()), wave, metric=metric)
    await watcher.view.refresher.tick()


async def asked(url: str, **body: Any) -> dict[str, Any]:
    """The JSON of a GET, or of a POST of `body`."""
    answer = await asyncio.to_thread(requests.request, "POST" if body else "GET", url, json=body or None, timeout=30)
    found: dict[str, Any] = answer.json()
    assert 200 == answer.status_code, found
    return found


async def forecast(address: str) -> dict[str, Any]:
    """The forecast of CPU over the default horizon."""
    (found,) = (await asked(f"{address}/api/v1/forecasts?host=a&type=CPU"))["forecasts"]
    return dict(found)


async def test_with_two_hours_of_history_plugins_use_windows(tmp_path: Path) -> None:
    of, clock = source(days=2 / 24), FakeClock(NOW)
    async with serving(tmp_path, of, clock) as (watcher, address):
        await next_tick(watcher, of, clock)
        found = await forecast(address)
        assert "short_history" == found["state"]
        assert found["text"].startswith("no bound: less than a day of history (2.")
        assert "bound" not in found or found["bound"] is None
        columns = await asked(f"{address}/api/v1/columns?operator=FORECAST&operator=AVG")
        assert {"AVG"} == {each["operator"] for each in columns["columns"]}
        trial = await asked(f"{address}/scheduler/try", profile=FILTERING, pod=POD)
        (node,) = trial["nodes"]
        (filtering,) = node["plugins"]
        assert node["load"][CPU.name]["AVG"] == filtering["steps"]["cpu load %"]
        assert "forecast: none (less than a day of history), so the window is used" in filtering["reason"]


async def test_a_clock_that_is_set_back_keeps_the_bound_of_the_days_before(tmp_path: Path) -> None:
    of, clock = source(days=3), FakeClock(NOW)
    async with serving(tmp_path, of, clock) as (watcher, address):
        await next_tick(watcher, of, clock)
        before = await forecast(address)
        clock.step(-2 * 86400)
        await next_tick(watcher, of, clock)
        after = await forecast(address)
    assert ("bound", "bound") == (before["state"], after["state"])
    assert after["issued"] <= clock.now() < before["issued"]
    assert after["history_s"] < before["history_s"] - 86400


async def test_stored_maxima_of_another_unit_make_no_bound(tmp_path: Path) -> None:
    """A restart with the same database, whose source has the earlier unit or another one."""
    clock, states = FakeClock(NOW), {}
    async with serving(tmp_path, of := source(days=2), clock) as (watcher, address):
        for _ in range(3):
            await next_tick(watcher, of, clock)
        assert "bound" == (await forecast(address))["state"]
    for unit in ("percent", "ratio"):
        of = source(days=0, unit=unit)
        async with serving(tmp_path, of, clock) as (watcher, address):
            await next_tick(watcher, of, clock)
            states[unit] = (await forecast(address))["state"]
    assert {"percent": "bound", "ratio": "short_history"} == states
