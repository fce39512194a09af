"""The resolution of the history follows the cadence of the source, within its bounds and across restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fakes.sources import CPU, MEMORY, FakeClock, MemorySource
from tests.watcher.store.ticks import store_at
from tests.watcher.tick.test_tick import numbers, served, wave
from watcher.core.windows.history import History
from watcher.core.windows.records import TickRecord
from watcher.model import SeriesBatch
from watcher.tick.bounds import ResolutionChooser
from watcher.tick.shared import RefreshConfig
from watcher.tick.tick import Refresher

T0 = 1_700_000_100.0
AUTO = RefreshConfig(resolution=0)


class Run:
    """A watcher with its source, its clock and a database file."""

    def __init__(self, path: Path) -> None:
        self.path = path / "load-watcher.db"
        self.clock = FakeClock(T0)
        self.source = MemorySource()
        self.until: dict[str, float] = {}
        self.refresher: Refresher
        self.restored: TickRecord | None = None

    def load(self, *nodes: str, cadence: float, seconds: float = 1200.0) -> None:
        """Add samples of CPU and Memory up to now, at multiples of the cadence and with a phase per node."""
        for number, node in enumerate(nodes):
            since = self.until.get(node, self.clock.wall - seconds)
            phase = 0.25 + 0.5 * number
            first = np.ceil((since - phase) / cadence)
            times = [cadence * i + phase for i in range(int(first), int((self.clock.wall - phase) // cadence) + 1)]
            for metric in (CPU, MEMORY):
                self.source.put(node, times, wave, metric=metric)
            self.until[node] = self.clock.wall + 0.001

    async def tick(self, *nodes: str, cadence: float) -> None:
        self.clock.pass_time(60.0)
        self.load(*nodes, cadence=cadence)
        await self.refresher.tick()

    def mean(self, node: str, *, seconds: float) -> float:
        """The mean of all samples of the source in the window that ends with its newest sample."""
        assert self.refresher.published is not None
        width = self.refresher.resolution
        end = (self.refresher.published.snapshot.end // width + 1) * width
        samples = self.source.samples[CPU.name][node]
        return float(np.mean([value for time, value in samples.items() if end - seconds <= time < end]))

    def average(self, node: str, window: str) -> float:
        return numbers(served(self.refresher, window)[node])["AVG", window]

    def reasons(self) -> list[str]:
        return [each.reason for each in self.refresher.findings.entries() if each.kind == "resolution"]


Life = Callable[[Run], Awaitable[None]]


def play(path: Path, *lives: Life, config: RefreshConfig = AUTO, **source: Any) -> Run:
    """Run several processes of one watcher one after the other, with the same database."""
    run = Run(path)
    run.source = MemorySource(**source)

    async def whole() -> None:
        for life in lives:
            store = store_at(run.path)
            run.restored = await store.open()
            run.refresher = Refresher(provider=run.source, config=config, store=store, clock=run.clock, tag="t")
            try:
                if run.restored is not None:
                    await run.refresher.restore(run.restored)
                await life(run)
            finally:
                await store.close()
                await run.refresher.close()

    asyncio.run(whole())
    return run


@pytest.mark.parametrize(("cadence", "expected"), [(5.0, 5), (7.0, 6), (10.0, 10), (15.0, 15), (30.0, 15)])
def test_averages_are_over_all_samples_of_the_source(tmp_path: Path, cadence: float, expected: int) -> None:
    """From the first tick on, whose backfill fetches the whole window."""

    async def life(run: Run) -> None:
        run.load("a", "b", cadence=cadence)
        await run.refresher.tick()
        for _ in range(3):
            assert run.refresher.resolution == expected
            for node in ("a", "b"):
                for window, seconds in (("5m", 300), ("15m", 900)):
                    assert run.average(node, window) == pytest.approx(run.mean(node, seconds=seconds), rel=1e-12)
            await run.tick("a", "b", cadence=cadence)
        assert run.reasons() == []

    play(tmp_path, life)


def test_a_fixed_resolution_reports_dropped_samples(tmp_path: Path) -> None:
    """Once, with their share and the remedy; the default interval of Telegraf is 10 s."""

    async def life(run: Run) -> None:
        run.load("a", "b", cadence=10.0)
        await run.refresher.tick()
        for _ in range(3):
            await run.tick("a", "b", cadence=10.0)
        assert run.refresher.resolution == 15
        (reason,) = run.reasons()
        assert reason.startswith("33 % of the samples are dropped: the source has a sample every 10 s")
        assert reason.endswith('Set refresh.resolution = "auto", or the interval of the samples')
        assert run.average("a", "15m") != pytest.approx(run.mean("a", seconds=900), rel=1e-6)

    play(tmp_path, life, config=RefreshConfig())


def test_a_share_that_varies_around_the_limit_is_reported_once() -> None:
    """1 % may be dropped. The share of an irregular source is above it in one fetch and below it in the next one."""
    chooser = ResolutionChooser(RefreshConfig(), adapts=False, remembers=True)
    history = History(resolution=15, windows=RefreshConfig().windows)

    def reported(extra: int) -> int:
        """The number of findings for 400 samples at 15 s and `extra` more, each in the slot of another sample."""
        times = np.sort([T0 + 15.0 * i + shift for shift, count in ((0.0, 400), (4.0, extra)) for i in range(count)])
        batch = SeriesBatch(CPU, ("a",), np.zeros(len(times), dtype=np.int64), times, times % 7.0)
        return len(chooser.follow([batch], history, None, now=T0))

    assert [reported(extra) for extra in (5, 3, 5, 3, 5)] == [1, 0, 0, 0, 0]
    assert [reported(extra) for extra in (0, 5)] == [0, 1]


def test_below_five_seconds_samples_are_dropped_and_reported(tmp_path: Path) -> None:
    async def life(run: Run) -> None:
        run.load("a", cadence=2.0)
        await run.refresher.tick()
        assert run.refresher.resolution == 5
        (reason,) = run.reasons()
        assert "60 % of the samples are dropped: the source has a sample every 2 s" in reason

    play(tmp_path, life)


def test_the_memory_bound_prevents_fine_slots(tmp_path: Path) -> None:
    """8 nodes and two metrics need 39 kB at 5 s, and 13 kB at 15 s."""

    async def life(run: Run) -> None:
        nodes = [f"node-{i}" for i in range(8)]
        run.load(*nodes[:2], cadence=5.0)
        await run.refresher.tick()
        assert (run.refresher.resolution, run.reasons()) == (5, [])
        run.load(*nodes, cadence=5.0, seconds=60.0)  # the fleet grows
        await run.tick(*nodes, cadence=5.0)
        assert run.refresher.resolution == 15
        (reason,) = run.reasons()
        assert reason.startswith("67 % of the samples are dropped")
        assert "raise the memory limit of the container" in reason
        assert ("AVG", "15m") in numbers(served(run.refresher)["node-0"])

    play(tmp_path, life, config=RefreshConfig(resolution=0, history_bytes=15_000))


def test_a_source_without_history_keeps_its_resolution(tmp_path: Path) -> None:
    async def life(run: Run) -> None:
        run.load("a", cadence=5.0)
        await run.refresher.tick()
        assert (run.refresher.resolution, run.reasons()) == (15, [])

    play(tmp_path, life, remembers=False)


def test_a_source_that_becomes_finer_keeps_its_windows(tmp_path: Path) -> None:
    """The older samples move to the finer slots, and the averages are over all samples at each tick."""

    async def life(run: Run) -> None:
        run.load("a", cadence=15.0)
        await run.refresher.tick()
        for _ in range(3):
            await run.tick("a", cadence=5.0)
            assert run.refresher.resolution == 5
            for window, seconds in (("5m", 300), ("15m", 900)):
                assert run.average("a", window) == pytest.approx(run.mean("a", seconds=seconds), rel=1e-12)

    play(tmp_path, life)


def test_the_resolution_is_stored_and_used_at_the_next_start(tmp_path: Path) -> None:
    """Before the source responds. A source that has become slower keeps the resolution until no sample of the history
    needs it, so no window is lost."""

    nodes = ("a", "b", "c", "d")

    async def before(run: Run) -> None:
        run.load(*nodes, cadence=5.0)
        await run.refresher.tick()

    async def after(run: Run) -> None:
        assert run.refresher.resolution == 5
        assert run.average("a", "15m") == pytest.approx(run.mean("a", seconds=900), rel=1e-12)
        seen = []
        for _ in range(25):
            await run.tick(*nodes, cadence=30.0)
            seen.append(run.refresher.resolution)
            if ("AVG", "15m") in numbers(served(run.refresher)["a"]):  # coverage is by the cadence of most samples
                assert run.average("a", "15m") == pytest.approx(run.mean("a", seconds=900), rel=0.01)
        assert (seen[0], seen[-1]) == (5, 15)

    run = play(tmp_path, before, after, after_restart(15))
    assert run.restored is not None


def after_restart(expected: int) -> Life:
    async def life(run: Run) -> None:
        assert (run.refresher.resolution, ("AVG", "15m") in numbers(served(run.refresher)["a"])) == (expected, True)

    return life


@pytest.mark.parametrize(("first", "second"), [(15, 5), (5, 15)])
def test_another_setting_keeps_the_stored_samples(tmp_path: Path, first: int, second: int) -> None:
    """A source without history cannot be queried again: the stored samples move to the new slots, in the database
    too."""

    async def before(run: Run) -> None:
        run.load("a", cadence=15.0)
        await run.refresher.tick()

    async def after(run: Run) -> None:
        run.load("a", cadence=15.0)  # as before; the source returns only the samples of the last minutes
        await run.tick("a", cadence=15.0)
        assert run.refresher.resolution == second
        assert run.average("a", "15m") == pytest.approx(run.mean("a", seconds=900), rel=1e-12)

    play(tmp_path, before, config=RefreshConfig(resolution=first), remembers=False)
    play(tmp_path, after, after_restart(second), config=RefreshConfig(resolution=second), remembers=False)
