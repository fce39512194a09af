"""Equal values that a failed source returns for many nodes are an outage from the first sample on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from tests.fakes.sources import CPU, MEMORY, FakeClock, MemorySource
from tests.watcher.tick.test_tick import T0, Records, every, kinds, numbers, play, served
from watcher.core.review.settings import ReviewSettings
from watcher.model import Metric
from watcher.tick.shared import RefreshConfig
from watcher.tick.tick import Refresher

pytestmark = pytest.mark.slow

NODES = [f"n{number:02}" for number in range(10)]


def load(number: int) -> Callable[[float], float]:
    """A load of 60 to 71 % that differs between nodes and varies."""
    return lambda time: 60.0 + ((time + 17.0 * number) * 7.3 % 11.0)


def fine(number: int) -> Callable[[float], float]:
    """The same load with more digits."""
    return lambda time: load(number)(time) + (time * 0.618033 % 1.0) / 3.0


def by_minute(load_at: Callable[[float], float]) -> Callable[[float], float]:
    """A load that changes at whole minutes only."""
    return lambda time: load_at(time // 60 * 60)


def put(source: MemorySource, since: float, until: float, *, wrong: dict[int, float] | None = None) -> None:
    """Samples of all nodes, each at its own second of a cadence of 15 s; the nodes of `wrong` have these values."""
    for metric in (CPU, MEMORY):
        for number, node in enumerate(NODES):
            value = load(number) if number not in (wrong or {}) else (wrong or {})[number]
            source.put(node, every(15, since + number % 5, until), value, metric=metric)


def lowest(refresher: Refresher) -> float:
    """The lowest value of CPU and Memory that is served."""
    nodes = served(refresher, "5m").values()
    return min(
        value
        for node in nodes
        for kind in ("CPU", "Memory")
        for (operator, _), value in numbers(node, kind).items()
        if operator != "STD"
    )


def newest(refresher: Refresher) -> dict[str, float]:
    """The newest CPU of each node in the published snapshot."""
    assert refresher.published is not None
    snapshot = refresher.published.snapshot
    return dict(zip(snapshot.nodes, snapshot.metrics[0].latest.tolist(), strict=True))


async def run(refresher: Refresher, clock: FakeClock, seconds: float, *, step: float = 15) -> float:
    """Tick for some time; return the lowest value that was served meanwhile."""
    found = []
    for _ in range(int(seconds // step)):
        clock.pass_time(step)
        await refresher.tick()
        found.append(lowest(refresher))
    return min(found)


FAST = RefreshConfig(interval=15.0, limits=ReviewSettings(interval_s=15.0))


@pytest.mark.parametrize("share", [3, 10])
@pytest.mark.parametrize("remembers", [True, False])
def test_zeros_of_many_nodes_are_never_served(share: int, remembers: bool) -> None:
    """From the first sample on, until the source is right again, and after that: overlapping responses repeat them."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        put(source, T0 - 1200, T0)
        await refresher.tick()
        put(source, T0 + 1, T0 + 120, wrong=dict.fromkeys(range(share), 0.0))
        assert await run(refresher, clock, 120) >= 60.0
        assert "partial_outage" in kinds(refresher)
        state = refresher.provider_health
        assert state.partial
        assert f"{share} of 10 nodes (n00, n01, n02" in state.reason
        put(source, T0 + 121, T0 + 600)
        assert await run(refresher, clock, 480) >= 60.0
        assert not refresher.provider_health.partial

    play(story, source=MemorySource(remembers=remembers), config=FAST)


def test_zeros_that_begin_on_few_nodes_are_removed_again() -> None:
    """The first two zeros count as those of idle nodes until the others follow."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        put(source, T0 - 1200, T0)
        await refresher.tick()
        put(source, T0 + 1, T0 + 15, wrong=dict.fromkeys(range(2), 0.0))
        await run(refresher, clock, 15)
        assert newest(refresher)["n00"] == 0.0
        put(source, T0 + 16, T0 + 120, wrong=dict.fromkeys(range(10), 0.0))
        clock.pass_time(15)
        assert await run(refresher, clock, 90) >= 60.0

    play(story, config=FAST)


def test_zeros_in_the_past_are_left_out() -> None:
    """A start fetches the minutes of a fault that ended before it."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        put(source, T0 - 1200, T0)
        put(source, T0 - 500, T0 - 300, wrong=dict.fromkeys(range(10), 0.0))
        for metric in (CPU, MEMORY):
            for node in NODES:
                times = source.samples[metric.name][node]
                for time in [t for t in times if T0 - 500 <= t <= T0 - 300 and times[t]]:
                    del times[time]
        await refresher.tick()
        for window in ("5m", "10m", "15m"):
            for node in served(refresher, window).values():
                assert min(value for (operator, _), value in numbers(node).items() if operator == "AVG") >= 60.0

    play(story, config=FAST)


@pytest.mark.parametrize("metric", [CPU, MEMORY])
def test_zeros_of_one_metric_lose_that_metric(metric: Metric) -> None:
    """Once its last values are stale; the other one is served."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        put(source, T0 - 1200, T0 + 600)
        for node in NODES:
            source.put(node, [t for t in source.samples[metric.name][node] if t > T0], 0.0, metric=metric)
        await refresher.tick()
        await run(refresher, clock, 300)
        clock.pass_time(30)
        await refresher.tick()
        here, other = ("CPU", "Memory") if metric is CPU else ("Memory", "CPU")
        node = served(refresher)["n00"]
        assert not numbers(node, here)
        assert numbers(node, other)

    play(story, config=FAST)


@pytest.mark.parametrize(
    "jump", [lambda _value: 12.5, lambda value: value - 45.25], ids=["to one value", "by one difference"]
)
def test_equal_jumps_are_never_served(jump: Callable[[float], float]) -> None:
    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        put(source, T0 - 1200, T0)
        await refresher.tick()
        last = {
            (metric.name, node): max(source.samples[metric.name][node].items())[1]
            for metric in (CPU, MEMORY)
            for node in NODES
        }
        for metric in (CPU, MEMORY):
            for node in NODES[:4]:
                source.put(node, every(15, T0 + 1, T0 + 60), jump(last[metric.name, node]), metric=metric)
        for metric in (CPU, MEMORY):
            for number, node in enumerate(NODES[4:]):
                source.put(node, every(15, T0 + 1, T0 + 60), load(number), metric=metric)
        assert await run(refresher, clock, 60) >= 60.0
        assert "4 of 10 nodes" in refresher.provider_health.reason
        put(source, T0 + 61, T0 + 300)
        assert await run(refresher, clock, 240) >= 60.0
        assert not refresher.provider_health.partial

    play(story, config=FAST)


@pytest.mark.parametrize(
    ("wrong", "limits"),
    [
        ({0: 0.0, 1: 0.0}, ReviewSettings(interval_s=15.0)),
        (dict.fromkeys(range(10), 100.0), ReviewSettings(interval_s=15.0)),
        ({number: 20.0 + number for number in range(10)}, ReviewSettings(interval_s=15.0)),
        (dict.fromkeys(range(10), 0.0), ReviewSettings(interval_s=15.0, mode="observe")),
    ],
    ids=["two idle nodes of ten", "a saturated fleet", "jumps that differ", "observed only"],
)
def test_plausible_values_are_served(wrong: dict[int, float], limits: ReviewSettings) -> None:
    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        put(source, T0 - 1200, T0)
        await refresher.tick()
        put(source, T0 + 1, T0 + 60, wrong=wrong)
        await run(refresher, clock, 30)
        found = newest(refresher)
        assert wrong == {number: found[NODES[number]] for number in wrong}
        assert not refresher.provider_health.partial

    play(story, config=RefreshConfig(interval=15.0, limits=limits))


def test_a_single_node_may_be_idle() -> None:
    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        source.put("a", every(15, T0 - 1200, T0), load(0))
        await refresher.tick()
        source.put("a", every(15, T0 + 1, T0 + 60), 0.0)
        clock.pass_time(15)
        await refresher.tick()
        assert newest(refresher) == {"a": 0.0}

    play(story, config=FAST)


@pytest.mark.parametrize("share", [3, 10])
def test_frozen_values_of_many_nodes_are_an_outage(share: int) -> None:
    """Old values with new times: they are dropped from the first one on, age, and the list is refused in the end."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        for metric in (CPU, MEMORY):
            for number, node in enumerate(NODES):
                source.put(node, every(15, T0 - 1200, T0), fine(number), metric=metric)
                last = source.samples[metric.name][node]
                until = T0 + 400 if number < share else T0
                source.put(node, every(15, T0 + 15, until), last[max(last)], metric=metric)
                source.put(node, every(15, until + 15, T0 + 1200), fine(number), metric=metric)
        await refresher.tick()
        await run(refresher, clock, 15)
        assert refresher.published is not None
        before = refresher.published.snapshot.metrics[0]
        assert f"{share} of 10 nodes" in refresher.provider_health.reason
        await run(refresher, clock, 150)
        after = refresher.published.snapshot.metrics[0]
        np.testing.assert_array_equal(before.sampled[:share], after.sampled[:share])
        for _ in range(25):
            clock.pass_time(15)
            await refresher.tick()
        assert not refresher.provider_health.partial
        assert not refresher.published.snapshot.lost

    play(story, config=FAST)


def test_a_source_that_repeats_values_is_not_frozen() -> None:
    """Its query has a value each 15 s, its scrapes are a minute apart."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        for metric in (CPU, MEMORY):
            for number, node in enumerate(NODES):
                stepped = fine(number)
                source.put(node, every(15, T0 - 1200, T0 + 300), by_minute(stepped), metric=metric)
        await refresher.tick()
        for _ in range(20):
            await run(refresher, clock, 15)
            assert not refresher.provider_health.partial

    play(story, config=FAST)


# --- fleets of several sizes -----------------------------------------------------------------------------------------

SIZES = [2, 3, 5, 50]
EACH = 15  # seconds between samples


def fleet_load(number: int, time: float) -> float:
    """A load of 60 to 71 % with many digits that differs between nodes and varies."""
    return 60.0 + ((time + 17.0 * number) * 7.3 % 11.0) + (time * 0.618033 % 1.0) / 3.0


def put_fleet(
    source: MemorySource, size: int, since: float, until: float, value: Callable[[int, float], float] = fleet_load
) -> None:
    for metric in (CPU, MEMORY):
        for number in range(size):
            source.put(f"n{number:02}", every(EACH, since, until), partial(value, number), metric=metric)


def zero(_number: int, _time: float) -> float:
    return 0.0


def half(_number: int, _time: float) -> float:
    return 12.5


def lower(number: int, _time: float) -> float:
    return fleet_load(number, T0) - 40.0


def still(number: int, _time: float) -> float:
    return fleet_load(number, T0)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("fault", [zero, half, lower, still], ids=lambda fault: fault.__name__)
def test_faults_of_whole_fleets_never_enter_a_mean(size: int, fault: Callable[[int, float], float]) -> None:
    """From the first sample on; and once the source is right again, its samples count at once."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        put_fleet(source, size, T0 - 1200, T0)
        await refresher.tick()
        put_fleet(source, size, T0 + EACH, T0 + 90, fault)
        assert await run(refresher, clock, EACH) >= 60.0
        assert f"{size} of {size} nodes" in refresher.provider_health.reason
        assert await run(refresher, clock, 75) >= 60.0
        put_fleet(source, size, T0 + 90 + EACH, T0 + 300)
        assert await run(refresher, clock, 2 * EACH) >= 60.0
        assert not refresher.provider_health.partial
        assert refresher.published is not None
        assert clock.now() - refresher.published.snapshot.end < EACH

    play(story, config=FAST)


@pytest.mark.parametrize(
    ("loads", "is_outage"),
    [
        ([(10.0, 45.0), (12.0, 45.0)], False),  # two integers are equal by chance
        ([(10.0, 45.0), (12.0, 47.0)], False),  # or two differences
        ([(10.0, 45.0), (12.0, 45.0), (14.0, 45.0)], True),
        ([(10.5, 45.0), (12.123456, 45.0)], True),  # a source with decimal digits does not return integers
        ([(10.123456, 45.123456), (12.654321, 47.654321)], True),
        ([(10.0, 45.0), (12.0, 46.0), (14.0, 45.0)], False),  # two of three
        ([(10.0, 100.0), (12.0, 100.0), (14.0, 100.0)], False),  # saturated
    ],
)
def test_two_integers_may_be_equal(loads: list[tuple[float, float]], is_outage: bool) -> None:
    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        for number, (before, after) in enumerate(loads):
            source.put(f"n{number}", every(EACH, T0 - 1200, T0), before)
            source.put(f"n{number}", [T0 + EACH], after)
        await refresher.tick()
        clock.pass_time(EACH)
        await refresher.tick()
        assert refresher.provider_health.partial == is_outage
        assert list(newest(refresher).values()) == [before if is_outage else after for before, after in loads]

    play(story, config=FAST)


# --- new names with every response -----------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [5_000, 20_000])
def test_new_names_are_left_out_and_forgotten(names: int, caplog: pytest.LogCaptureFixture) -> None:
    """As with a wrong node_label: 5,000 nodes are kept. Known nodes stay, and new ones count after the flood."""
    caplog.set_level(logging.INFO, logger="watcher.tick.bounds")

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        put(source, T0 - 1200, T0 + 3600)
        await refresher.tick()
        for number in range(3):
            clock.pass_time(60)
            source.samples[CPU.name] = {node: source.samples[CPU.name][node] for node in NODES}
            for name in range(names):
                source.put(f"10.{number}.{name}", [clock.now() - 1], 50.0 + name / names)
            await refresher.tick()
            assert set(NODES) <= set(newest(refresher))
            assert len(newest(refresher)) <= 5_000
        reason = refresher.provider_health.reason
        assert f"{names:,} new node names in a fetch, such as 10.2." in reason
        assert "Is node_label right?" in reason
        assert "memory" in kinds(refresher)
        source.samples[CPU.name] = {node: source.samples[CPU.name][node] for node in NODES}
        clock.pass_time(60)
        await refresher.tick()
        assert not refresher.provider_health.partial
        for _ in range(25):
            clock.pass_time(60)
            await refresher.tick()
        source.put("late", [clock.now() - 1], 50.0)
        await refresher.tick()
        assert set(newest(refresher)) == {*NODES, "late"}

    play(story, config=replace(FAST, interval=60.0, most_nodes=5_000))
    said = [record.getMessage() for record in caplog.records if record.name == "watcher.tick.bounds"]
    assert len(said) == 2, said
    assert said[1] == "all nodes of the source are kept again"


# --- responses without samples ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("remembers", [True, False])
def test_a_source_that_returns_nothing_is_incomplete_at_once(remembers: bool) -> None:
    """Not only when its last samples are stale; and complete again with the first samples."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        put(source, T0 - 1200, T0)
        await refresher.tick()
        assert not refresher.provider_health.partial
        kept = dict(source.samples)
        source.samples.update({name: {} for name in kept})
        clock.pass_time(15)
        await refresher.tick()
        state = refresher.provider_health
        assert (state.ok, state.reason) == (True, "the source responds without samples of any node")
        assert lowest(refresher) >= 60.0
        source.samples.update(kept)
        put(source, T0 + 1, T0 + 60)
        clock.pass_time(15)
        await refresher.tick()
        assert (refresher.provider_health.ok, refresher.provider_health.reason) == (True, "")

    play(story, source=MemorySource(remembers=remembers), config=FAST)


def test_a_source_without_series_is_incomplete_soon() -> None:
    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        source.samples = {CPU.name: {}, MEMORY.name: {}}
        found = []
        for _ in range(3):
            await refresher.tick()
            found.append(refresher.provider_health.partial)
            clock.pass_time(15)
        assert found == [False, False, True]

    play(story, config=FAST)
