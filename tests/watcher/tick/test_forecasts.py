"""Forecasts in the refresh: from samples to bounds, and the effects of a restart, a rename and another source."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from tests.fakes.sources import CPU, MEMORY, FakeClock, MemorySource
from tests.waiting import eventually
from tests.watcher.tick.test_tick import Records, every
from watcher.core.forecast.document import NodeForecast, node_forecasts
from watcher.core.forecast.maxima import HOUR_SLOTS, SLOT_S, encode
from watcher.core.forecast.settings import ForecastSettings
from watcher.core.forecast.states import ForecastState
from watcher.core.windows.records import MaximaHour, StoredMaxima
from watcher.model import Provenance, SeriesBatch
from watcher.sources.base import Fetch
from watcher.sources.errors import ProviderUnreachable
from watcher.tick.shared import RefreshConfig
from watcher.tick.tick import Refresher

pytestmark = pytest.mark.slow

NOW = 1_700_000_100.0 // 3600 * 3600 + 1800
HOUR = int(NOW // 3600)
CONFIG = RefreshConfig(forecast=ForecastSettings(), maxima_pace=0.0)
ORIGIN = Provenance("Memory", f"{CPU.name} by node", "percent", 0.0)


def wave(time: float) -> float:
    """A load between 50 and 61, so that its exporter does not look frozen."""
    return 50.0 + (time * 7.3 % 11.0)


class StoredDays(Records):
    """A store that also has two days of maxima of node a."""

    def __init__(self, origin: Provenance = ORIGIN, *, percent: float = 80.0, own: bool = True) -> None:
        super().__init__()
        codes = np.full((HOUR_SLOTS, 1), encode(np.array([percent]))[0])
        self.stored = [
            StoredMaxima(MaximaHour(CPU.name, hour, ("a",), codes), origin, own) for hour in range(HOUR - 48, HOUR)
        ]

    async def maxima(self, hours: range | None = None) -> list[StoredMaxima]:
        chosen = [each for each in self.stored if hours is None or each.hour.hour in hours]
        return [*chosen, *await super().maxima(hours)]


@dataclass
class SourceOfMaxima(MemorySource):
    """A source that computes maxima: `percent` from `since` on; `broken` makes such requests fail."""

    since: float = NOW - 2 * 86400
    percent: float = 70.0
    broken: bool = False
    maxima_pace: float = 0.0
    requests: list[tuple[float, float, str]] = field(default_factory=list)

    async def fetch_maxima(self, since: float, until: float, *, metric: str) -> Fetch:
        self.requests.append((since, until, metric))
        await asyncio.sleep(0)
        if self.broken:
            raise ProviderUnreachable("no route")
        times = np.arange(max(since, self.since // SLOT_S * SLOT_S) + SLOT_S / 2, until, SLOT_S)
        if metric != CPU.name or not len(times):
            return Fetch(batches=())
        return Fetch(
            (SeriesBatch(CPU, ("a",), np.zeros(len(times), dtype=np.int64), times, np.full(len(times), self.percent)),)
        )


def source(kind: type[MemorySource] = MemorySource, *, node: str = "a", remembers: bool = False) -> MemorySource:
    made = kind(remembers=remembers)
    for metric in (CPU, MEMORY):
        made.put(node, every(15, NOW - 900, NOW + 3600), wave, metric=metric)
    return made


Story = Callable[[Refresher, MemorySource, FakeClock], Coroutine[Any, Any, None]]


def play(
    story: Story, *, records: Records | None = None, of: MemorySource | None = None, config: RefreshConfig = CONFIG
) -> None:
    """Run a test with its own refresher."""

    async def run() -> None:
        the_source, clock = of or source(), FakeClock(NOW)
        refresher = Refresher(provider=the_source, config=config, store=records, clock=clock, tag="t")
        try:
            await story(refresher, the_source, clock)
        finally:
            await refresher.close()

    asyncio.run(run())


def forecast(refresher: Refresher, node: str = "a") -> NodeForecast:
    assert refresher.forecasts.published is not None
    table = refresher.forecasts.published.table
    return next(iter(node_forecasts(table, (node,), types=(CPU.type,), horizons=(6,))))


def test_a_new_service_has_no_bound_and_states_the_length_of_its_history():
    async def story(refresher, of, clock):
        await refresher.tick()
        assert ForecastState.SHORT_HISTORY == forecast(refresher).state
        assert 900 <= forecast(refresher).history_s <= 1200

    play(story)


def test_stored_days_give_bounds_and_columns_after_the_first_windows():
    async def story(refresher, of, clock):
        await refresher.tick()
        found = forecast(refresher)
        assert ForecastState.BOUND == found.state
        assert found.bound is not None
        assert 80 <= found.bound < 80.4
        clock.pass_time(60)
        await refresher.tick()
        forecasts = refresher.published.snapshot.forecasts
        assert "6h" == forecasts.horizon
        assert found.bound == pytest.approx(forecasts.bounds[CPU.name, "6h"][0])

    play(story, records=StoredDays())


def test_the_first_response_has_bounds_if_the_maxima_arrive_at_once():
    """As in the demo."""

    async def story(refresher, of, clock):
        await refresher.tick()
        assert refresher.published.snapshot.forecasts is not None
        assert 70.0 == pytest.approx(refresher.published.snapshot.forecasts.bounds[CPU.name, "6h"][0], abs=0.4)

    play(story, of=source(SourceOfMaxima, remembers=True))


def test_stored_days_of_another_unit_are_not_used():
    async def story(refresher, of, clock):
        await refresher.tick()
        assert ForecastState.SHORT_HISTORY == forecast(refresher).state

    play(story, records=StoredDays(replace(ORIGIN, unit="ratio")))


def test_an_expression_that_changes_empties_the_maxima_of_its_metric():
    async def story(refresher, of, clock):
        await refresher.tick()
        of.expressions[CPU.name] = "another"
        clock.pass_time(60)
        await refresher.tick()
        clock.pass_time(3600)
        of.put("a", every(15, clock.now() - 900, clock.now()), wave)
        await refresher.tick()
        assert ForecastState.SHORT_HISTORY == forecast(refresher).state

    play(story, records=StoredDays())


def test_a_tick_stores_the_newest_hour_once_per_five_minutes_and_never_a_part_over_stored_hours():
    records = StoredDays()

    async def story(refresher, of, clock):
        for _ in range(11):
            await refresher.tick()
            clock.pass_time(60)
        stored = [record for record in records.saved if record.maxima]
        assert records.saved[0].maxima == (), "the first tick wrote before the stored hours were loaded"
        assert 2 <= len(stored) <= 4
        newest = stored[-1].maxima[0]
        assert HOUR == newest.hour
        assert 12 == newest.codes.shape[0]

    play(story, records=records)


def test_hours_that_only_another_replica_stored_are_stored_again():
    records = StoredDays(own=False)

    async def story(refresher, of, clock):
        for _ in range(4):
            await refresher.tick()
            clock.pass_time(60)
        hours = {hour.hour for record in records.saved for hour in record.maxima if hour.metric == CPU.name}
        assert {*range(HOUR - 48, HOUR + 1)} == hours

    play(story, records=records)


def test_after_a_kill_the_minutes_since_the_last_stored_hour_come_from_the_stored_samples():
    records = Records()

    async def first(refresher, of, clock):
        for _ in range(3):
            await refresher.tick()
            clock.pass_time(60)

    async def second(refresher, of, clock):
        clock.pass_time(180)
        of.samples.clear()
        of.put("a", every(15, NOW + 120, NOW + 200), wave)
        await refresher.restore(records.restored())
        await refresher.tick()
        assert 900 <= forecast(refresher).history_s

    play(first, records=records)
    play(second, records=records)


def test_a_clock_that_steps_back_keeps_the_days_before():
    async def story(refresher, of, clock):
        await refresher.tick()
        clock.step(-7200)
        of.put("a", every(15, clock.now() - 900, clock.now()), wave)
        await refresher.tick()
        assert ForecastState.BOUND == forecast(refresher).state

    play(story, records=StoredDays())


def test_a_reload_keeps_the_maxima_and_bounds():
    async def story(refresher, of, clock):
        await refresher.tick()
        other = Refresher(provider=of, config=CONFIG, store=None, clock=clock, tag="u")
        await other.continue_from(refresher)
        assert ForecastState.BOUND == forecast(other).state
        clock.pass_time(60)
        await other.tick()
        assert ForecastState.BOUND == forecast(other).state
        await other.close()

    play(story, records=StoredDays())


def test_disabled_forecasts_keep_nothing():
    async def story(refresher, of, clock):
        await refresher.tick()
        assert refresher.forecasts.published is None
        assert refresher.published.snapshot.forecasts is None

    play(story, config=RefreshConfig())


def test_a_restart_during_an_outage_of_the_source_serves_the_stored_bounds():
    records = StoredDays()

    async def first(refresher, of, clock):
        await refresher.tick()

    async def second(refresher, of, clock):
        of.down = ProviderUnreachable("no route")
        await refresher.restore(records.restored())
        await refresher.tick()
        assert ForecastState.BOUND == forecast(refresher).state

    play(first, records=records)
    play(second, records=records)


def test_a_restart_during_an_outage_has_no_bound_below_the_newest_stored_samples():
    records = StoredDays()

    async def first(refresher, of, clock):
        await refresher.tick()
        clock.pass_time(60)
        await refresher.tick()
        of.put("a", every(15, NOW + 60, NOW + 120), lambda time: 90.0 + wave(time) % 5.0)
        clock.pass_time(60)
        await refresher.tick()

    async def second(refresher, of, clock):
        clock.pass_time(120)
        of.down = ProviderUnreachable("no route")
        await refresher.restore(records.restored())
        await refresher.tick()
        found = forecast(refresher)
        assert found.bound is not None
        assert 90.0 <= found.bound

    play(first, records=records)
    play(second, records=records)


# --- the past of the source ------------------------------------------------------------------------------------------


async def finished(refresher: Refresher, clock: FakeClock) -> None:
    """Wait for the backfill, and run the tick after it."""
    await eventually(lambda: not refresher.forecasts.backfill.running, what="the backfill")
    clock.pass_time(60)
    await refresher.tick()


def test_the_days_that_the_source_has_are_fetched_newest_first():
    of = source(SourceOfMaxima, remembers=True)

    async def story(refresher, of, clock):
        await refresher.tick()
        await finished(refresher, clock)
        found = forecast(refresher)
        assert ForecastState.BOUND == found.state
        assert found.bound is not None
        assert 70 <= found.bound < 70.4
        cpu = [request for request in of.requests if request[2] == CPU.name]
        assert cpu == sorted(cpu, reverse=True)
        assert all(until - since <= 86400 for since, until, _ in cpu)
        assert len(cpu) <= 5, "the source was asked for more than two days before its first samples"

    play(story, of=of)


def test_only_missing_hours_are_fetched_and_none_twice():
    of = source(SourceOfMaxima, remembers=True)

    async def story(refresher, of, clock):
        await refresher.tick()
        await finished(refresher, clock)
        oldest = (HOUR - 48) * 3600
        assert not [each for each in of.requests if each[2] == CPU.name and oldest <= each[0] < HOUR * 3600]
        asked = len(of.requests)
        clock.pass_time(3600)
        of.put("a", every(15, NOW, clock.now()), wave)
        of.put("a", every(15, NOW, clock.now()), wave, metric=MEMORY)
        await refresher.tick()
        await finished(refresher, clock)
        again = of.requests[asked:]
        assert all(since >= HOUR * 3600 for since, _, _ in again), again

    play(story, of=of, records=StoredDays())


def test_a_backfill_that_fails_is_a_finding_and_is_retried_in_the_next_hour():
    of = source(SourceOfMaxima, remembers=True)
    assert isinstance(of, SourceOfMaxima)
    of.broken = True

    async def story(refresher, of, clock):
        await refresher.tick()
        await finished(refresher, clock)
        assert 3 == len(of.requests)
        reasons = [entry.reason for entry in refresher.findings.entries()]
        assert "backfill of maxima failed: no route; retried in an hour" in reasons
        of.broken = False
        clock.pass_time(3600)
        of.put("a", every(15, NOW, clock.now()), wave)
        await refresher.tick()
        await finished(refresher, clock)
        assert ForecastState.BOUND == forecast(refresher).state

    play(story, of=of)


def test_the_samples_of_a_source_without_maxima_are_fetched_in_slices_of_the_longest_window():
    of = source(remembers=True)
    of.put("a", every(60, NOW - 2 * 86400, NOW), lambda time: 60.0 + time % 7)

    async def story(refresher, of, clock):
        await refresher.tick()
        of.asked.clear()
        await finished(refresher, clock)
        assert ForecastState.BOUND == forecast(refresher).state
        assert max(until - since for since, until, _ in of.asked) <= 900 + 120

    play(story, of=of)
