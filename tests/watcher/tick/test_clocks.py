"""Clocks that are set forward and back: in a running process, across a restart, and against the source."""

from __future__ import annotations

import logging

import pytest

from tests.fakes.sources import FakeClock, MemorySource
from tests.watcher.tick.test_tick import T0, Records, every, kinds, play, served, wave
from watcher.core.review.settings import ReviewSettings
from watcher.tick.shared import RefreshConfig
from watcher.tick.tick import Refresher

pytestmark = pytest.mark.slow

STEPS = [5.0, 60.0, 600.0, 3600.0, 86400.0]


async def store_until_now(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
    """Store the samples of twenty minutes."""
    source.put("a", every(15, T0 - 1200, T0), wave)
    await refresher.tick()


@pytest.mark.parametrize("step", [-step for step in STEPS])
def test_restored_samples_from_the_future_are_dropped(step: float) -> None:
    """After a restart with a clock behind the database: otherwise windows would not change until the clock reaches
    their end."""
    records = Records()

    async def after(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        await refresher.restore(records.restored())
        if step >= -30:
            assert served(refresher)
            return
        assert vars(refresher)["published"] is None
        assert "clock_step" in kinds(refresher)
        source.put("a", every(15, clock.now() - 1200, clock.now() + 600), wave)
        for _ in range(2):
            await refresher.tick()
            assert refresher.published is not None
            assert 0.0 <= clock.now() - refresher.published.snapshot.end < 15.0
            clock.pass_time(60)

    play(store_until_now, records=records)
    play(after, records=records, clock=FakeClock(T0 + step))


def test_single_restored_samples_from_the_future_are_dropped() -> None:
    """The clock was set back and corrected before the restart: a block with the wrong time is still stored."""
    records = Records()

    async def before(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        source.put("a", every(15, T0 - 1200, T0 + 3600), wave)
        await refresher.tick()
        clock.pass_time(3600)
        await refresher.tick()
        records.saved.reverse()

    async def after(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        await refresher.restore(records.restored())
        assert refresher.published is not None
        assert refresher.published.snapshot.end <= T0 + 30

    play(before, records=records)
    play(after, records=records, clock=FakeClock(T0 + 10))


@pytest.mark.parametrize("offset", [sign * step for step in STEPS for sign in (1, -1)])
def test_the_age_of_a_load_is_by_the_clock_of_its_source(offset: float, caplog: pytest.LogCaptureFixture) -> None:
    """If load-watcher's clock is behind, it queries the past of the source, which is not the current load; if it is
    ahead, it finds only old samples."""
    caplog.set_level(logging.INFO, logger="watcher.tick.fetching")

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        true_now = clock.now() + offset
        source.clock_offset_s = 0.0 if abs(offset) < 10 else offset
        source.put("a", every(15, true_now - 3 * 86400, true_now), wave)
        for _ in range(2):
            await refresher.tick()
            if refresher.published is not None:
                age = refresher.published.age(clock.monotonic())
                assert age == pytest.approx(abs(offset), abs=20.0)
                assert (age > 300.0) == (abs(offset) > 300.0)
            assert ("clock_skew" in kinds(refresher)) == (abs(offset) > 10)
        source.clock_offset_s = 0.0
        clock.step(offset)
        source.put("a", every(15, clock.now() - 1200, clock.now() + 60), wave)
        for _ in range(2):
            clock.pass_time(15)
            await refresher.tick()
        assert refresher.published is not None
        assert refresher.published.age(clock.monotonic()) < 30.0

    play(story)
    logged = [record.getMessage() for record in caplog.records if record.name == "watcher.tick.fetching"]
    said = [text for text in logged if "clock" in text]
    assert len(said) == (2 if abs(offset) > 10 else 0)


@pytest.mark.parametrize("step", [sign * step for step in STEPS for sign in (1, -1)])
def test_a_clock_that_is_set_while_the_process_runs(step: float) -> None:
    """The clock of the source is right. A load never looks newer than it is, and is fresh once the clock is right."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        source.put("a", every(15, T0 - 2 * 86400, T0 + 45), wave)
        source.clock_offset_s = 0.0
        for _ in range(3):
            await refresher.tick()
            clock.pass_time(15)
        clock.step(step)
        source.clock_offset_s = -step
        true_now = T0 + 45.0
        for _ in range(8):
            await refresher.tick()
            assert refresher.published is not None
            snapshot, age = refresher.published.snapshot, refresher.published.age(clock.monotonic())
            true_age = true_now - snapshot.end
            assert true_age >= 0.0
            assert age >= true_age - 20.0 or true_age <= 30.0
            assert age >= 300.0 or true_age < 330.0
            clock.pass_time(15)
            true_now += 15
            source.put("a", [true_now], wave)
        assert ("clock_skew" in kinds(refresher)) == (abs(step) > 10)
        clock.step(-step)
        source.clock_offset_s = 0.0
        for _ in range(2):
            await refresher.tick()
            clock.pass_time(15)
        assert refresher.published is not None
        assert refresher.published.age(clock.monotonic()) < 45.0
        assert 0.0 <= clock.now() - refresher.published.snapshot.end < 45.0

    play(story, config=RefreshConfig(interval=15.0, limits=ReviewSettings(interval_s=15.0)))


@pytest.mark.parametrize("step", [sign * step for step in STEPS for sign in (1, -1)])
def test_a_clock_that_is_set_together_with_that_of_its_source(step: float) -> None:
    """Both on one machine. The windows end at the new time after a few ticks, never ahead of it by more than 30 s."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        source.clock_offset_s = 0.0
        source.put("a", every(15, T0 - 1200, T0), wave)
        await refresher.tick()
        clock.pass_time(15)
        clock.step(step)
        source.samples.clear()
        source.put("a", every(15, clock.now() - 1200, clock.now() + 600), wave)
        for _ in range(4):
            await refresher.tick()
            clock.pass_time(15)
        assert refresher.published is not None
        end = refresher.published.snapshot.end
        assert clock.now() - 45.0 <= end <= clock.now() + 30.0
        assert refresher.published.age(clock.monotonic()) < 45.0

    play(story, config=RefreshConfig(interval=15.0, limits=ReviewSettings(interval_s=15.0)))


@pytest.mark.parametrize("step", STEPS)
def test_a_restart_with_a_clock_ahead_of_the_database(step: float) -> None:
    """The stored samples have the age by this clock: beyond max_staleness they are not served as fresh."""
    records = Records()

    async def after(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        await refresher.restore(records.restored())
        assert refresher.published is not None
        assert refresher.published.age(clock.monotonic()) == pytest.approx(step, abs=20.0)

    play(store_until_now, records=records)
    play(after, records=records, clock=FakeClock(T0 + step))
