"""The start of a high load: over ticks, and after a restart from the stored windows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.fakes.sources import CPU, FakeClock, MemorySource
from tests.waiting import eventually
from tests.watcher.store.ticks import opened, store_at
from watcher.core.config.settings import Settings
from watcher.core.windows.hot_loads import LoadStart
from watcher.service.hot_history import HotHistory
from watcher.store.store import Store
from watcher.tick.shared import RefreshConfig
from watcher.tick.tick import Refresher

pytestmark = pytest.mark.slow

BEGAN = 1_700_000_010.0  # when the load rises
KEY = ("a", CPU.name)


def load(time: float) -> float:
    """Low, then high; it varies, so that the exporter does not look frozen."""
    return (92.0 if time >= BEGAN else 20.0) + time * 7.3 % 5.0


def put_until(source: MemorySource, until: float, *, since: float) -> None:
    source.put("a", [since + 15 * step for step in range(int((until - since) // 15) + 1)], load)


@asynccontextmanager
async def refreshing(source: MemorySource, clock: FakeClock, store: Store) -> AsyncIterator[Refresher]:
    refresher = Refresher(provider=source, config=RefreshConfig(), store=store, clock=clock, tag="t")
    try:
        yield refresher
    finally:
        await refresher.close()


def _is_saved(store: Store, end: float) -> bool:
    return store.status.last_saved == end


async def run_ticks(refresher: Refresher, store: Store, clock: FakeClock, *, minutes: int) -> LoadStart:
    """Tick once a minute, each after the previous one is stored; return the start that is published last."""
    source = refresher.provider
    assert isinstance(source, MemorySource)
    for _ in range(minutes):
        clock.pass_time(60)
        put_until(source, clock.now(), since=clock.now() - 60)
        await refresher.tick()
        assert refresher.published is not None
        await eventually(partial(_is_saved, store, refresher.published.snapshot.end), what="the tick to be stored")
    assert refresher.published is not None
    return refresher.published.hot.starts[KEY]


async def test_a_load_keeps_its_duration_after_a_restart(tmp_path: Path) -> None:
    """An hour of ticks; then a service with the samples of the last minutes and the windows of the store."""
    place, clock = tmp_path / "store.db", FakeClock(BEGAN)
    source = MemorySource()
    put_until(source, BEGAN, since=BEGAN - 1200)
    async with opened(place) as store, refreshing(source, clock, store) as refresher:
        start = await run_ticks(refresher, store, clock, minutes=60)
        assert LoadStart(BEGAN, False) == start
    store = store_at(place)
    restored = await store.open()
    assert restored is not None
    try:
        async with refreshing(MemorySource(remembers=False), clock, store) as again:
            await again.restore(restored)
            short = await run_ticks(again, store, clock, minutes=1)
            assert clock.now() - short.since <= 960
            assert short.longer
            history = HotHistory()
            await history.update(again, store, settings=Settings(), now=clock.now())
            assert again.published is not None
            long = again.published.hot.starts[KEY]
            assert BEGAN <= long.since <= BEGAN + 300  # the mean of five minutes is high this much later
            assert not long.longer
            assert long == await run_ticks(again, store, clock, minutes=2)
            assert {} == await history.find(again.published.hot, store, settings=Settings(), now=clock.now())
    finally:
        await store.close()
