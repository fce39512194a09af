"""The tick: the queries of a source, the published snapshots, and the effects of failures."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tests.fakes.sources import CPU, MEMORY, FakeClock, MemorySource
from tests.waiting import PATIENCE_SECONDS, eventually
from watcher.core.publishing.selection import Selection, Shape
from watcher.core.review.settings import ReviewSettings
from watcher.core.windows.records import StoredMaxima, TickRecord
from watcher.model import Operator
from watcher.sources.errors import ProviderPartial, ProviderUnreachable
from watcher.tick.shared import RefreshConfig
from watcher.tick.tick import Refresher

pytestmark = pytest.mark.slow

T0 = 1_700_000_010.0


@dataclass
class Records:
    """A store that keeps the records."""

    saved: list[TickRecord] = field(default_factory=list)

    def save(self, record: TickRecord) -> None:
        self.saved.append(record)

    async def maxima(self, hours: range | None = None) -> list[StoredMaxima]:
        """The newest version of each hour."""
        found = [(record, hour) for record in self.saved for hour in record.maxima]
        return [
            StoredMaxima(hour, record.provenance[hour.metric])
            for record, hour in found
            if hours is None or hour.hour in hours
        ]

    def restored(self) -> TickRecord:
        """The record that a store returns at the next start."""
        last = self.saved[-1]
        blocks = {(block.metric, block.first_slot): block for record in self.saved for block in record.blocks}
        return dataclasses.replace(last, blocks=tuple(blocks.values()), records=(), silent={}, maxima=())


def wave(time: float) -> float:
    """A load that varies, so that its exporter does not look frozen."""
    return 50.0 + (time * 7.3 % 11.0)


def every(cadence: float, since: float, until: float) -> list[float]:
    return [since + cadence * i for i in range(int((until - since) // cadence) + 1)]


Story = Callable[[Refresher, MemorySource, FakeClock, Records], Coroutine[Any, Any, None]]


def play(
    story: Story,
    *,
    source: MemorySource | None = None,
    clock: FakeClock | None = None,
    config: RefreshConfig | None = None,
    records: Records | None = None,
) -> None:
    """Run a test with its own refresher."""

    async def run() -> None:
        the_source, the_clock, the_records = source or MemorySource(), clock or FakeClock(T0), records or Records()
        refresher = Refresher(
            provider=the_source, config=config or RefreshConfig(), store=the_records, clock=the_clock, tag="t"
        )
        try:
            await story(refresher, the_source, the_clock, the_records)
        finally:
            await refresher.close()

    asyncio.run(run())


def served(refresher: Refresher, window: str = "15m") -> dict[str, Any]:
    """The nodes of the document in the format of the API."""
    assert refresher.published is not None
    of = {known.label: known for known in refresher.published.snapshot.windows}
    document = refresher.published.document(Selection(of[window]))
    nodes: dict[str, Any] = json.loads(document.body(Shape.WATCHER))["data"]["NodeMetricsMap"]
    return nodes


def numbers(node: dict[str, Any], kind: str = "CPU") -> dict[tuple[str, str], float]:
    return {(m["operator"], m["rollup"]): m["value"] for m in node["metrics"] if m["type"] == kind}


def kinds(refresher: Refresher) -> set[str]:
    return {entry.kind for entry in refresher.findings.entries()}


# --- readiness -------------------------------------------------------------------------------------------------------


def test_a_source_without_a_past_is_ready_with_its_first_window() -> None:
    """Half of the samples of five minutes make a window. The service stays ready; later failures have their own
    states."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        waiting = []
        for _ in range(20):
            source.put("a", [clock.now()], wave)
            await refresher.tick()
            waiting.append(refresher.not_ready_reason())
            if not waiting[-1]:
                break
            clock.pass_time(15)
        assert 135.0 <= clock.now() - T0 <= 150.0
        assert ("AVG", "5m") in numbers(served(refresher, "5m")["a"])
        assert waiting[0] == "no node has its 5m window yet; ready in 300 s at the latest"
        clock.pass_time(2000)
        source.put("a", [clock.now()], wave)
        await refresher.tick()
        assert {("Latest", "")} == set(numbers(served(refresher)["a"]))
        assert refresher.not_ready_reason() == ""

    play(story, source=MemorySource(remembers=False))


@pytest.mark.parametrize("remembers", [True, False])
def test_readiness_does_not_wait_forever(remembers: bool) -> None:
    """If samples are too rare for any window, waiting does not help."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        source.put("a", every(400, T0 - 1200, T0 + 400), wave)
        await refresher.tick()
        assert refresher.needs_quick_ticks
        clock.pass_time(299)
        assert refresher.not_ready_reason()
        clock.pass_time(1)
        assert refresher.not_ready_reason() == ""

    play(story, source=MemorySource(remembers=remembers))


def test_a_source_with_a_past_is_ready_when_the_past_was_fetched() -> None:
    """One tick if it responds; while slices of the past are missing, windows are incomplete."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        source.put("a", every(15, T0 - 1200, T0 + 600), wave)
        fetch, slices = source.fetch, 2

        async def slow_past(since: float, until: float, *, only: Any = None) -> Any:
            nonlocal slices
            if until < clock.now():
                slices -= 1
                if slices < 0:
                    raise ProviderUnreachable("out of memory")
            return await fetch(since, until, only=only)

        source.fetch = slow_past  # type: ignore[method-assign]
        await refresher.tick()
        assert not refresher.needs_quick_ticks
        assert "backfill is not complete yet" in refresher.not_ready_reason()
        slices = 100
        clock.pass_time(60)
        await refresher.tick()
        assert refresher.not_ready_reason() == ""

    play(story)


@pytest.mark.parametrize(("age", "ready"), [(250.0, True), (350.0, False)])
def test_restored_windows_make_the_service_ready_if_they_are_recent(age: float, ready: bool) -> None:
    """Before the first query of the source; old windows are not used for scheduling."""
    records = Records()

    async def before(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        source.put("a", every(15, T0 - 1200, T0), wave)
        await refresher.tick()

    async def after(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        assert refresher.not_ready_reason()
        await refresher.restore(records.restored())
        assert ready == (refresher.not_ready_reason() == "")

    play(before, records=records)
    play(after, records=records, clock=FakeClock(T0 + age), source=MemorySource(remembers=False))


# --- spans -----------------------------------------------------------------------------------------------------------


def test_the_first_response_does_not_wait_for_the_past() -> None:
    """The newest two minutes are fetched and published first; the rest follows in slices, newest first."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        source.put("a", every(15, T0 - 1200, T0), wave)
        published_when: list[int] = []
        original = source.fetch

        async def watching(since: float, until: float, *, only: Any = None) -> Any:
            published_when.append(0 if refresher.published is None else len(served(refresher)))
            return await original(since, until, only=only)

        source.fetch = watching  # type: ignore[method-assign]
        await refresher.tick()
        spans = [(until - since) for since, until, _ in source.asked]
        assert max(spans) <= 120.0
        assert [until for _, until, _ in source.asked] == sorted((u for _, u, _ in source.asked), reverse=True)
        assert min(since for since, _, _ in source.asked) <= T0 - 900
        assert published_when == [0] + [1] * (len(spans) - 1)
        assert ("AVG", "15m") in numbers(served(refresher)["a"])

    play(story)


def test_a_tick_fetches_only_new_samples() -> None:
    """After the start, a fetch begins two minutes before the end of the previous one."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        source.put("a", every(15, T0 - 1200, T0 + 600), wave)
        await refresher.tick()
        source.asked.clear()
        clock.pass_time(60)
        await refresher.tick()
        assert source.asked == [(T0 - 120, T0 + 60, None)]

    play(story)


@pytest.mark.parametrize(("cadence", "overlap"), [(30, 120), (60, 120), (75, 150), (90, 180), (120, 240)])
def test_fetches_overlap_by_two_cadences(cadence: int, overlap: int) -> None:
    """At least two minutes; a sample that appears one cadence late gets its slot."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        source.put("a", every(cadence, T0 - 1200, T0 + 600), wave)
        await refresher.tick()
        source.asked.clear()
        clock.pass_time(60)
        await refresher.tick()
        assert source.asked == [(T0 - overlap, T0 + 60, None)]

    play(story)


def test_late_samples_are_not_lost() -> None:
    """A node whose samples appear a minute late still gets them in their slots."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        source.put("a", every(15, T0 - 1200, T0 + 120), wave)
        source.put("late", every(15, T0 - 1200, T0 - 60), wave)
        await refresher.tick()
        source.put("late", every(15, T0 - 45, T0 + 60), wave)
        clock.pass_time(60)
        await refresher.tick()
        assert numbers(served(refresher)["late"]) == numbers(served(refresher)["a"])

    play(story)


def test_a_gap_is_fetched_newest_first() -> None:
    """After six minutes without the source, the newest two minutes are fetched first, then the gap is filled."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        source.put("a", every(15, T0 - 1200, T0 + 1200), wave)
        await refresher.tick()
        source.down = ProviderUnreachable("gone")
        for _ in range(6):
            clock.pass_time(60)
            await refresher.tick()
        source.down = None
        source.asked.clear()
        clock.pass_time(60)
        await refresher.tick()
        assert source.asked[0] == (T0 + 300, T0 + 420, None)
        assert min(since for since, _, _ in source.asked) == T0 - 120
        assert refresher.published is not None
        assert refresher.published.snapshot.metrics[0].count[2, 0] == 60

    play(story)


@pytest.mark.parametrize(
    ("remembers", "reported"),
    [
        (True, [f"metrics can be fetched again, backfilling the gap: {MEMORY.name}"]),
        (False, [f"metrics can be fetched again: {MEMORY.name}"]),
    ],
)
def test_the_recovery_of_a_metric_is_logged_once(
    remembers: bool, reported: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A gap is filled only by a source with a past."""
    source = MemorySource(remembers=remembers)

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        for metric in (CPU, MEMORY):
            source.put("a", every(15, T0 - 1200, T0 + 1200), wave, metric=metric)
        for fails in (False, True, False, False):
            source.failing = {MEMORY.name: ProviderUnreachable("503")} if fails else {}
            await refresher.tick()
            clock.pass_time(60)

    with caplog.at_level(logging.INFO, logger="watcher"):
        play(story, source=source)
    assert reported == [line for line in caplog.messages if "can be fetched again" in line]


@pytest.mark.parametrize("hangs", [True, False])
def test_a_failed_query_of_the_past_is_not_a_failure_of_the_source(
    hangs: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The source has responded for the present, so it is up; the missing slice is fetched again at the next tick."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        source.put("a", every(15, T0 - 1200, T0 + 120), wave)
        fetch = source.fetch

        async def without_past(since: float, until: float, *, only: Any = None) -> Any:
            if until < clock.now():
                if hangs:
                    await asyncio.Event().wait()
                raise ProviderUnreachable("out of memory")
            return await fetch(since, until, only=only)

        source.fetch = without_past  # type: ignore[method-assign]
        await refresher.tick()
        assert refresher.provider_health.ok is True
        assert "a" in served(refresher)
        assert hangs != ("query_failed" in kinds(refresher))
        source.fetch = fetch  # type: ignore[method-assign]
        await refresher.tick()
        assert ("AVG", "15m") in numbers(served(refresher)["a"])

    with caplog.at_level(logging.INFO, logger="watcher"):
        # A hanging query is awaited until the deadline; until then, a busy machine should have done the rest.
        play(story, config=RefreshConfig(interval=5.0))
    assert "down" not in caplog.text


def test_the_past_of_a_metric_that_failed_is_fetched_when_it_is_back() -> None:
    """One failing query affects its metric, not the tick; the missed time is fetched for this metric only."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        for metric in (CPU, MEMORY):
            source.put("a", every(15, T0 - 1200, T0 + 1200), wave, metric=metric)
        await refresher.tick()
        source.failing = {MEMORY.name: ProviderUnreachable("503", hint="Is it well?")}
        for _ in range(4):
            clock.pass_time(60)
            await refresher.tick()
        assert ["503. Is it well?"] == [e.reason for e in refresher.findings.entries() if e.kind == "query_failed"]
        assert refresher.provider_health.ok is True
        source.failing = {}
        clock.pass_time(60)
        source.asked.clear()
        await refresher.tick()
        assert {only for _, _, only in source.asked[1:]} == {frozenset({MEMORY.name})}
        assert refresher.published is not None
        cpu, memory = refresher.published.snapshot.metrics
        assert cpu.count.tolist() == memory.count.tolist()

    play(story)


def ten_nodes(source: MemorySource) -> None:
    for i in range(10):
        source.put(f"node-{i}", every(15, T0 - 1200, T0 + 3600), wave)


async def tick_on(refresher: Refresher, clock: FakeClock, *, times: int) -> None:
    for _ in range(times):
        clock.pass_time(60)
        await refresher.tick()


def test_nodes_that_a_partial_response_lacks_keep_their_last_values(caplog: pytest.LogCaptureFixture) -> None:
    """No node leaves the list while its last samples are not stale. The warning of the source is a finding and in its
    health, with one log line when it begins and one when it ends."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        ten_nodes(source)
        await refresher.tick()
        before = served(refresher)
        source.partial, source.missing = {CPU.name: "store-2 is away"}, {"node-8", "node-9"}
        await tick_on(refresher, clock, times=4)
        after = served(refresher)
        assert before.keys() == after.keys()
        for name in ("node-8", "node-9"):
            assert numbers(after[name]) == pytest.approx(numbers(before[name]), rel=0.05)
            assert after[name]["age_s"] == 240.0
        assert "age_s" not in after["node-0"]
        assert (True, "store-2 is away", True) == (
            refresher.provider_health.ok,
            refresher.provider_health.reason,
            refresher.provider_health.partial,
        )
        assert refresher.provider_health.since == T0 + 60
        (entry,) = (entry for entry in refresher.findings.entries() if entry.kind == "partial_response")
        assert ("held", CPU.name, 4) == (entry.remedy, entry.metric, entry.count)
        assert "store-2 is away" in entry.reason
        assert refresher.stats.query_failures == {("partial", CPU.name): 4}
        source.partial = {}
        await tick_on(refresher, clock, times=2)
        assert (True, "") == (refresher.provider_health.ok, refresher.provider_health.reason)
        assert refresher.provider_health.since == T0 + 300

    with caplog.at_level(logging.INFO, logger="watcher"):
        play(story)
    assert 1 == caplog.text.count("Memory returns partial data: store-2 is away")
    assert 1 == caplog.text.count("Memory returns complete data again after 240 s")
    assert "cannot fetch metric" not in caplog.text


def test_samples_that_partial_responses_lacked_are_fetched_from_the_complete_one() -> None:
    """Nodes that were missing for ten minutes have their windows again with the first complete response."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        ten_nodes(source)
        await refresher.tick()
        source.partial, source.missing = {CPU.name: "store-2 is away"}, {"node-9"}
        await tick_on(refresher, clock, times=10)
        assert served(refresher).keys() == {f"node-{i}" for i in range(9)}
        assert {"stale", "partial_response"} <= kinds(refresher)
        source.partial = {}
        await tick_on(refresher, clock, times=1)
        assert refresher.published is not None
        (windows,) = refresher.published.snapshot.metrics
        assert windows.count[2].tolist() == [60] * 10
        source.asked.clear()
        await tick_on(refresher, clock, times=1)
        assert len(source.asked) == 1

    play(story)


def test_many_nodes_missing_from_partial_responses_are_a_partial_outage() -> None:
    """The rule for failed exporters applies to a failed store: no incomplete list is served."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        ten_nodes(source)
        await refresher.tick()
        source.partial, source.missing = {CPU.name: "store-2 is away"}, {f"node-{i}" for i in range(5)}
        await tick_on(refresher, clock, times=10)
        assert refresher.published is not None
        assert len(refresher.published.snapshot.lost) == 5
        source.partial = {}
        await tick_on(refresher, clock, times=1)
        assert not refresher.published.snapshot.lost
        assert len(served(refresher)) == 10

    play(story)


def test_after_a_start_with_partial_responses_the_whole_past_is_fetched_later() -> None:
    """The slices of the first tick lack the same nodes as its present."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        ten_nodes(source)
        source.partial, source.missing = {CPU.name: "store-2 is away"}, {"node-9"}
        await refresher.tick()
        await tick_on(refresher, clock, times=1)
        source.partial = {}
        await tick_on(refresher, clock, times=1)
        assert refresher.published is not None
        (windows,) = refresher.published.snapshot.metrics
        assert windows.count[2].tolist() == [60] * 10

    play(story)


def test_a_partly_withheld_metric_is_handled_like_a_failed_one() -> None:
    """Its finding has the kind of the failure, and the source is partial, not down."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        for metric in (CPU, MEMORY):
            source.put("a", every(15, T0 - 1200, T0 + 1200), wave, metric=metric)
        await refresher.tick()
        source.partial = {CPU.name: "store-2 is away", MEMORY.name: "store-2 is away"}
        source.failing = {MEMORY.name: ProviderPartial("store-2 is away", hint="Is it up?")}
        await tick_on(refresher, clock, times=2)
        assert refresher.provider_health.partial
        found = {(each.metric, each.remedy) for each in refresher.findings.entries() if each.kind == "partial_response"}
        assert {(CPU.name, "held"), (MEMORY.name, "left_out")} == found
        assert refresher.stats.query_failures == {("partial", CPU.name): 2, ("partial", MEMORY.name): 2}
        source.partial, source.failing = {}, {}
        await tick_on(refresher, clock, times=1)
        assert refresher.published is not None
        assert [60, 60] == [int(windows.count[2, 0]) for windows in refresher.published.snapshot.metrics]

    play(story)


def test_a_source_without_a_past_is_not_queried_for_it() -> None:
    """This host, or metrics-server: one fetch per tick, no slices."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        source.put("a", [T0], 5.0)
        await refresher.tick()
        assert len(source.asked) == 1
        assert numbers(served(refresher)["a"]) == {("Latest", ""): 5.0}
        assert refresher.needs_quick_ticks

    play(story, source=MemorySource(remembers=False))


# --- published snapshots ---------------------------------------------------------------------------------------------


def test_the_first_sample_of_the_present_is_served_at_once() -> None:
    """Such a source takes its first sample while the first tick waits for it."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        source.put("a", [T0 + 1.0], 5.0)
        fetch = source.fetch

        async def slow(since: float, until: float, *, only: Any = None) -> Any:
            clock.pass_time(1.0)
            return await fetch(since, until, only=only)

        source.fetch = slow  # type: ignore[method-assign]
        await refresher.tick()
        assert numbers(served(refresher)["a"]) == {("Latest", ""): 5.0}

    play(story, source=MemorySource(remembers=False))


@pytest.mark.parametrize("age", [0.0, 14.0, 70.0])
def test_a_first_start_fetches_the_whole_longest_window(age: float) -> None:
    """It ends with the newest sample, so it begins earlier if that is older."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        source.put("a", every(15, T0 - 1500 - age, T0 - age), wave)
        await refresher.tick()
        assert refresher.published is not None
        assert [20, 40, 60] == refresher.published.snapshot.metrics[0].count[:, 0].tolist()

    play(story)


def test_a_node_has_the_longest_window_that_its_samples_fill() -> None:
    """New nodes have Latest, then 5 minutes, then 10, beside old ones with 15; the rollup names the window."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        source.put("old", every(15, T0 - 1200, T0), wave)
        source.put("ten", every(15, T0 - 300, T0), wave)
        source.put("five", every(15, T0 - 150, T0), wave)
        source.put("new", [T0], wave)
        await refresher.tick()
        rollups = {name: {rollup for _, rollup in numbers(node)} for name, node in served(refresher).items()}
        assert rollups == {"old": {"15m"}, "ten": {"10m"}, "five": {"5m"}, "new": {""}}
        assert {rollup for _, rollup in numbers(served(refresher, "5m")["old"])} == {"5m"}
        assert not refresher.needs_quick_ticks

    play(story)


def test_after_an_outage_begins_the_last_windows_stay_with_their_real_age(caplog: pytest.LogCaptureFixture) -> None:
    """One log line when it begins, one when it ends."""
    caplog.set_level(logging.INFO, logger="watcher")

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        source.put("a", every(15, T0 - 1200, T0), wave)
        await refresher.tick()
        before = refresher.published
        source.down = ProviderUnreachable("connection refused", hint="is it running?")
        for _ in range(3):
            clock.pass_time(60)
            await refresher.tick()
        assert refresher.published is before
        assert before is not None
        assert before.age(clock.monotonic()) == pytest.approx(180.0)
        assert refresher.provider_health.ok is False
        assert refresher.provider_health.reason == "connection refused"
        source.down = None
        await refresher.tick()
        assert refresher.provider_health.ok is True

    play(story)
    lines = [record.getMessage() for record in caplog.records if record.name == "watcher.tick.fetching"]
    assert len(lines) == 2
    assert lines[0].startswith("cannot read from Memory: connection refused")
    assert lines[1].startswith("Memory is back after 120 s")


def test_a_source_without_cpu_and_memory_has_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """It responds, so nothing is down; without this line the reason would be unknown. A missing network metric has no
    warning."""
    caplog.set_level(logging.INFO, logger="watcher")

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        source.absent = {"instance:node_network_transmit_bytes:rate:sum": "no network"}
        await refresher.tick()
        assert not caplog.records
        for absent in ({CPU.name: "no idle", MEMORY.name: "no free"}, {MEMORY.name: "no free"}, {}):
            source.absent = absent
            for _ in range(3):
                clock.pass_time(60)
                await refresher.tick()

    play(story)
    assert [record.getMessage() for record in caplog.records] == [
        "Memory has no data for CPU and Memory: no idle; run load-watcher doctor for details",
        "Memory has no data for Memory: no free; run load-watcher doctor for details",
        "Memory has CPU and Memory now",
    ]


def test_a_tick_with_a_hanging_source_ends_at_its_deadline() -> None:
    """A tick takes at most 0.8 intervals, and the next ones run."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        source.hang = True
        await asyncio.wait_for(refresher.tick(), timeout=PATIENCE_SECONDS)
        assert refresher.provider_health.ok is False
        assert refresher.stall_reason() == ""
        source.hang = False
        source.put("a", [T0], 5.0)

        async def published():
            await refresher.tick()  # whose deadline is sometimes too short for a busy machine
            return refresher.published

        await eventually(published, what="a tick that is not late")

    play(story, config=RefreshConfig(interval=0.2, max_staleness=300.0))


def test_two_ticks_never_overlap() -> None:
    """A tick that is due while another one runs is skipped and counted, and counts as a sign of life."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        source.hang = True
        first = asyncio.create_task(refresher.tick())
        await eventually(lambda: source.asked, what="the first tick to ask")
        clock.pass_time(1000)
        assert "no tick began" in refresher.stall_reason()
        await refresher.tick()
        assert refresher.stall_reason() == ""
        assert len(source.asked) == 1
        assert refresher.stats.skipped == 1
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)

    play(story)


def test_a_cancelled_tick_loses_only_its_fetch() -> None:
    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        source.put("a", every(15, T0 - 1200, T0 + 600), wave)
        await refresher.tick()
        before = numbers(served(refresher)["a"])
        clock.pass_time(60)
        source.hang = True
        task = asyncio.create_task(refresher.tick())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert numbers(served(refresher)["a"]) == before
        source.hang = False
        await refresher.tick()
        assert refresher.published is not None
        assert refresher.published.snapshot.end == T0 + 60

    play(story)


# --- outages ---------------------------------------------------------------------------------------------------------


def test_in_a_partial_outage_the_last_values_are_served_and_then_the_list_is_refused() -> None:
    """Half of the exporters fail: their nodes stay with `age_s` until max_staleness; then the incomplete list is
    refused."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        for i in range(10):
            source.put(f"node-{i}", every(15, T0 - 1200, T0 + (0 if i < 5 else 900)), wave)
        await refresher.tick()
        for _ in range(4):
            clock.pass_time(60)
            await refresher.tick()
        nodes = served(refresher)
        assert len(nodes) == 10
        assert {name for name, node in nodes.items() if "age_s" in node} == {f"node-{i}" for i in range(5)}
        assert nodes["node-0"]["age_s"] == pytest.approx(240.0)
        assert "partial_outage" in kinds(refresher)
        for _ in range(2):
            clock.pass_time(60)
            await refresher.tick()
        assert refresher.published is not None
        assert set(refresher.published.snapshot.lost) == {f"node-{i}" for i in range(5)}
        for i in range(5):
            source.put(f"node-{i}", every(15, clock.now() - 60, clock.now() + 60), wave)
        clock.pass_time(60)
        await refresher.tick()
        assert not refresher.published.snapshot.lost
        assert len(served(refresher)) == 10

    play(story)


def half_lost(source: MemorySource) -> None:
    for i in range(10):
        source.put(f"node-{i}", every(15, T0 - 1200, T0 + (0 if i < 5 else 1800)), wave)


async def until_half_is_lost(refresher: Refresher, clock: FakeClock) -> None:
    await refresher.tick()
    for _ in range(7):
        clock.pass_time(60)
        await refresher.tick()
    assert refresher.published is not None
    assert len(refresher.published.snapshot.lost) == 5


def test_after_a_restart_during_a_partial_outage_the_list_is_still_refused() -> None:
    """After kill -9, from the first document on, until the nodes are back."""
    records, source, clock = Records(), MemorySource(), FakeClock(T0)
    half_lost(source)

    async def before(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        await until_half_is_lost(refresher, clock)

    async def after(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        clock.pass_time(30)
        await refresher.restore(records.restored())
        assert refresher.published is not None
        assert len(refresher.published.snapshot.lost) == 5
        for _ in range(3):
            await refresher.tick()
            assert len(refresher.published.snapshot.lost) == 5
            clock.pass_time(60)
        for i in range(5):
            source.put(f"node-{i}", every(15, clock.now() - 60, clock.now() + 60), wave)
        await refresher.tick()
        assert not refresher.published.snapshot.lost
        assert len(served(refresher)) == 10

    play(before, source=source, clock=clock, records=records)
    play(after, source=source, clock=clock, records=records)


def test_after_a_reload_during_a_partial_outage_the_list_is_still_refused() -> None:
    """SIGHUP with other settings of the review: the guard keeps its state."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        half_lost(source)
        await until_half_is_lost(refresher, clock)
        renewed = Refresher(provider=source, config=RefreshConfig(limits=ReviewSettings(carry_slots=1)), clock=clock)
        await renewed.continue_from(refresher)
        clock.pass_time(60)
        await renewed.tick()
        assert renewed.published is not None
        assert len(renewed.published.snapshot.lost) == 5
        await renewed.close()

    play(story)


def test_an_outage_after_a_reload_is_judged_by_the_new_limits() -> None:
    """Half of the nodes are less than the old outage_fraction, and more than the new one."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        half_lost(source)
        await refresher.tick()
        renewed = Refresher(provider=source, config=RefreshConfig(limits=ReviewSettings()), clock=clock)
        await renewed.continue_from(refresher)
        await until_half_is_lost(renewed, clock)
        await renewed.close()

    play(story, config=RefreshConfig(limits=ReviewSettings(outage_fraction=0.9)))


def test_an_unexpected_exception_of_a_provider_is_an_outage() -> None:
    """A bug in load-watcher or a library must not look like a working source."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        source.put("a", every(15, T0 - 1200, T0), wave)
        await refresher.tick()
        source.down = ZeroDivisionError("secret inside")  # type: ignore[assignment]
        clock.pass_time(60)
        await refresher.tick()
        assert refresher.provider_health.ok is False
        assert refresher.provider_health.reason == "internal error: ZeroDivisionError"

    play(story)


def test_a_single_failed_node_is_removed() -> None:
    """It is left out after max_staleness, and the list is served."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        for i in range(10):
            source.put(f"node-{i}", every(15, T0 - 1200, T0 + (0 if i < 1 else 900)), wave)
        await refresher.tick()
        for _ in range(6):
            clock.pass_time(60)
            await refresher.tick()
        assert refresher.published is not None
        assert not refresher.published.snapshot.lost
        assert set(served(refresher)) == {f"node-{i}" for i in range(1, 10)}

    play(story)


def test_a_frozen_exporter_is_quarantined_until_its_values_change() -> None:
    """Five equal samples of all varying metrics: the node is left out with a finding."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        for i in range(9):
            source.put(f"node-{i}", every(15, T0 - 1200, T0 + 900), wave)
        source.put("stuck", every(15, T0 - 1200, T0 + 60), 42.0)
        source.put("stuck", every(15, T0 + 75, T0 + 900), wave)
        await refresher.tick()
        assert "stuck" not in served(refresher)
        assert "frozen" in kinds(refresher)
        clock.pass_time(120)
        await refresher.tick()
        assert "stuck" in served(refresher)

    play(story)


def test_observe_mode_only_reports() -> None:
    """review.mode = observe: impossible or frozen values stay."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        for i in range(9):
            source.put(f"node-{i}", every(15, T0 - 1200, T0 + 900), wave)
        source.put("stuck", every(15, T0 - 1200, T0), 130.0)
        await refresher.tick()
        assert numbers(served(refresher)["stuck"])[("AVG", "15m")] == 130.0
        assert {"frozen", "out_of_range"} <= kinds(refresher)

    play(story, config=RefreshConfig(limits=ReviewSettings(mode="observe")))


def test_a_dropped_sample_is_replaced_with_a_finding() -> None:
    """An impossible value is dropped, the previous one replaces it for at most two slots; both are findings."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        source.put("a", every(15, T0 - 1200, T0), wave)
        source.put("a", [T0 - 30.0, T0 - 15.0], 500.0)
        await refresher.tick()
        assert {"out_of_range", "missing"} <= kinds(refresher)
        assert refresher.published is not None
        assert refresher.published.snapshot.metrics[0].count[0, 0] == 18
        assert max(numbers(served(refresher)["a"]).values()) < 65.0

    play(story)


# --- clocks ----------------------------------------------------------------------------------------------------------


def test_a_clock_that_is_set_back_empties_the_history_and_keeps_the_published_snapshot() -> None:
    """The snapshot has an age by the monotonic clock; the past is fetched again."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        source.put("a", every(15, T0 - 6000, T0), wave)
        await refresher.tick()
        published = refresher.published
        assert published is not None
        clock.pass_time(60)
        clock.step(-3600)
        source.down = ProviderUnreachable("not yet")
        await refresher.tick()
        assert refresher.published is published
        assert published.age(clock.monotonic()) == pytest.approx(60.0)
        assert "clock_step" in kinds(refresher)
        source.down = None
        clock.pass_time(60)
        await refresher.tick()
        assert refresher.published.snapshot.end <= clock.now()
        assert ("AVG", "15m") in numbers(served(refresher)["a"])

    play(story)


def test_a_clock_that_is_set_forward_and_back_keeps_the_published_snapshot() -> None:
    """Until the source has samples of the new time. The age is by the monotonic clock, so the list is not stale."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        source.put("a", every(15, T0 - 1200, T0), wave)
        await refresher.tick()
        published, saved = refresher.published, len(records.saved)
        assert published is not None
        clock.pass_time(60)
        clock.step(1e9)
        await refresher.tick()
        assert (refresher.published, len(records.saved)) == (published, saved)
        assert published.age(clock.monotonic()) == pytest.approx(60.0)
        clock.pass_time(60)
        source.put("a", every(15, T0 + 1e9 + 60, T0 + 1e9 + 120), wave)
        await refresher.tick()
        ahead = refresher.published
        assert ahead is not None
        assert ahead.snapshot.nodes == ("a",)
        assert ahead.snapshot.end > T0 + 1e9
        clock.pass_time(60)
        clock.step(-1e9)
        source.put("a", every(15, T0, T0 + 180), wave)
        await refresher.tick()
        back = refresher.published
        assert back is not None
        assert back.snapshot.end == T0 + 180
        assert back.age(clock.monotonic()) == pytest.approx(0.0)

    play(story)


def test_a_list_without_new_samples_becomes_stale() -> None:
    """Without a change of the clock: the source responds, but has no new samples."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        source.put("a", every(15, T0 - 1200, T0), wave)
        await refresher.tick()
        for _ in range(6):
            clock.pass_time(60)
            await refresher.tick()
        assert refresher.published is not None
        assert refresher.published.age(clock.monotonic()) == pytest.approx(360.0)

    play(story)


def test_the_published_snapshot_stays_while_the_emptied_history_has_no_samples() -> None:
    """After the clock was set back, the source may not have samples of the new time yet."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        source.put("a", every(15, T0 - 1200, T0), wave)
        await refresher.tick()
        before = served(refresher)
        source.samples[CPU.name]["a"].clear()
        clock.pass_time(60)
        clock.step(-3600)
        await refresher.tick()
        assert before == served(refresher)

    play(story)


def test_a_small_correction_of_the_clock_changes_nothing() -> None:
    """NTP sets clocks by seconds."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        source.put("a", every(15, T0 - 1200, T0 + 600), wave)
        await refresher.tick()
        clock.pass_time(60)
        clock.step(-20)
        await refresher.tick()
        assert "clock_step" not in kinds(refresher)
        assert ("AVG", "15m") in numbers(served(refresher)["a"])

    play(story)


def test_a_difference_of_the_clock_of_the_source_is_reported() -> None:
    """As a finding."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        source.put("a", every(15, T0 - 1200, T0), wave)
        await refresher.tick()
        assert "clock_skew" in kinds(refresher)

    play(story, source=MemorySource(clock_offset_s=-42.0))


# --- restart ---------------------------------------------------------------------------------------------------------


def test_a_restart_continues_exactly() -> None:
    """Stored windows are served before the first query, with their times; then only the gap is fetched."""
    records = Records()
    source = MemorySource()
    source.put("a", every(15, T0 - 1200, T0 + 1200), wave)
    source.put("b", every(15, T0 - 1200, T0 + 1200), lambda t: wave(t) / 3)
    clock = FakeClock(T0)
    documents: list[dict[str, Any]] = []

    async def before(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        await refresher.tick()
        clock.pass_time(60)
        await refresher.tick()
        documents.append(served(refresher))

    async def after(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        clock.pass_time(90)
        source.asked.clear()
        await refresher.restore(records.restored())
        assert refresher.published is not None
        assert served(refresher) == documents[0]
        assert refresher.published.snapshot.timestamp == T0 + 60
        assert refresher.published.age(clock.monotonic()) == pytest.approx(90.0)
        assert source.asked == []
        await refresher.tick()
        assert [since for since, _, _ in source.asked] == [T0 + 60 - 120]
        assert refresher.published.snapshot.metrics[0].count[2].tolist() == [60, 60]

    play(before, source=source, clock=clock, records=records)
    play(after, source=source, clock=clock, records=records)


def test_a_crash_before_the_past_was_fetched_loses_no_sample() -> None:
    """Only the first snapshot was stored: after the restart, the older minutes are fetched, newest first, and so is the
    gap that a crash leaves between the two parts of a backfill."""
    records, source, clock = Records(), MemorySource(), FakeClock(T0)
    source.put("a", every(15, T0 - 1200, T0 + 1200), wave)

    async def crash(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        if records.saved:
            await refresher.restore(records.restored())
        await refresher.tick()
        records.saved.pop()  # the state that the tick stored with the complete past

    async def after(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        await refresher.restore(records.restored())
        await refresher.tick()
        assert refresher.published is not None
        assert refresher.published.snapshot.metrics[0].count[2].tolist() == [60]

    play(crash, source=source, clock=clock, records=records)
    assert len(records.saved) == 1
    clock.pass_time(30)
    play(after, source=source, clock=clock, records=records)
    clock.pass_time(500)
    play(crash, source=source, clock=clock, records=records)
    clock.pass_time(30)
    play(after, source=source, clock=clock, records=records)


def test_samples_of_another_expression_are_served_until_the_first_tick() -> None:
    """The expression changed: the old windows are served with their origin until the first tick; then all samples are
    new."""
    records = Records()
    old = MemorySource(source="Old")
    old.put("a", every(15, T0 - 1200, T0), lambda t: wave(t) / 10)
    new = MemorySource(source="New")
    new.put("a", every(15, T0 - 1200, T0 + 120), wave)
    clock = FakeClock(T0)

    async def before(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        await refresher.tick()

    async def after(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        clock.pass_time(60)
        await refresher.restore(records.restored())
        assert refresher.published is not None
        assert refresher.published.snapshot.source == "Old"
        await refresher.tick()
        assert refresher.published.snapshot.source == "New"
        assert not refresher.published.snapshot.lost
        assert numbers(served(refresher)["a"])[("AVG", "15m")] > 50.0
        assert refresher.published.snapshot.metrics[0].count[2, 0] == 60

    play(before, source=old, clock=clock, records=records)
    play(after, source=new, clock=clock, records=records)


@pytest.mark.parametrize(("before", "after"), [("east", "west"), ("", "west"), ("east", "")])
def test_samples_of_another_cluster_are_not_published(before: str, after: str) -> None:
    """With the same expression of the same source under another name of the cluster, nodes with equal names are
    different ones."""
    records, clock = Records(), FakeClock(T0)
    old, new = MemorySource(), MemorySource()
    for i in range(5):
        old.put(f"node-{i}", every(15, T0 - 1200, T0), wave)
    new.put("node-0", every(15, T0 - 1200, T0 + 120), lambda time: wave(time) / 10)

    async def first(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        await refresher.tick()

    async def second(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        clock.pass_time(60)
        await refresher.restore(records.restored())
        restored = refresher.published
        assert restored is None
        await refresher.tick()
        assert refresher.published is not None
        assert not refresher.published.snapshot.lost
        assert set(served(refresher)) == {"node-0"}
        assert numbers(served(refresher)["node-0"])[("AVG", "15m")] < 10.0
        assert {after} == {origin.cluster for origin in records.saved[-1].provenance.values()}

    play(first, source=old, clock=clock, records=records, config=RefreshConfig(cluster=before))
    play(second, source=new, clock=clock, records=records, config=RefreshConfig(cluster=after))


def test_samples_of_two_clusters_in_a_database_are_distinguished() -> None:
    """Samples of a metric that only the earlier cluster had remain stored for a while, and are ignored."""
    records, clock = Records(), FakeClock(T0)
    source = MemorySource()
    for metric in (CPU, MEMORY):
        source.put("a", every(15, T0 - 1200, T0 + 120), wave, metric=metric)

    async def first(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        await refresher.tick()

    async def second(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        kept = records.restored()
        foreign = dataclasses.replace(kept.provenance[MEMORY.name], source="Memory of cluster east")
        provenance = {**kept.provenance, MEMORY.name: foreign}
        await refresher.restore(dataclasses.replace(kept, provenance=provenance))
        assert refresher.published is not None
        assert [CPU.name] == [windows.metric.name for windows in refresher.published.snapshot.metrics]

    config = RefreshConfig(cluster="west")
    play(first, source=source, clock=clock, records=records, config=config)
    play(second, source=source, clock=clock, records=records, config=config)


def test_a_host_with_a_new_name_is_another_node() -> None:
    """A container that is created again with the same database: the old name is neither served nor awaited."""
    records = Records()
    clock = FakeClock(T0)
    old, new = (
        MemorySource(remembers=False, label="this host, old"),
        MemorySource(remembers=False, label="this host, new"),
    )
    old.put("old", every(15, T0 - 900, T0), wave)
    new.put("new", every(15, T0 + 15, T0 + 900), wave)

    async def before(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        await refresher.tick()

    async def after(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        await refresher.restore(records.restored())
        for _ in range(10):
            clock.pass_time(60)
            await refresher.tick()
        assert refresher.published is not None
        assert not refresher.published.snapshot.lost
        assert set(served(refresher)) == {"new"}

    play(before, source=old, clock=clock, records=records)
    play(after, source=new, clock=clock, records=records)


def test_a_changed_expression_of_a_running_service_restarts_its_metric() -> None:
    """Discovery found another expression: old and new samples share no window, and the past is fetched again."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        source.put("a", every(15, T0 - 1200, T0 + 600), wave)
        source.put("a", every(15, T0 - 1200, T0 + 600), wave, metric=MEMORY)
        await refresher.tick()
        source.expressions[CPU.name] = "another"
        source.samples[CPU.name]["a"] = {time: 7.0 + time % 2 for time in source.samples[CPU.name]["a"]}
        clock.pass_time(60)
        await refresher.tick()
        assert "source" in kinds(refresher)
        assert numbers(served(refresher)["a"])[("AVG", "15m")] < 9.0
        assert refresher.published is not None
        assert refresher.published.snapshot.metrics[0].count[2, 0] == 60

    play(story)


def test_a_reload_continues_with_the_samples() -> None:
    """Other settings, same source: nothing is lost, and the published snapshot stays until the first tick."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        source.put("a", every(15, T0 - 900, T0), wave)
        await refresher.tick()
        next_one = Refresher(provider=source, config=RefreshConfig(interval=30.0), clock=clock)
        await next_one.continue_from(refresher)
        assert served(next_one) == served(refresher)
        source.samples[CPU.name]["a"] = {T0 + 15: 60.0}
        clock.pass_time(15)
        await next_one.tick()
        assert next_one.published is not None
        assert next_one.published.snapshot.metrics[0].count[2, 0] == 60
        await next_one.close()

    play(story, source=MemorySource(remembers=False))


def test_the_first_stored_minute_has_the_windows_of_the_backfill() -> None:
    """It is stored before the past is fetched, and again afterwards."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        source.put("a", every(15, T0 - 1500, T0), wave)
        await refresher.tick()
        longest = [record.records[-1] for record in records.saved if record.records]
        assert ["15m"] * 2 == [record.window.label for record in longest]
        assert longest[0].time == longest[1].time
        assert np.isnan(longest[0].values[0, 0])
        assert numbers(served(refresher)["a"])["AVG", "15m"] == pytest.approx(float(longest[1].values[0, 0]), rel=1e-6)

    play(story)


def test_windows_are_stored_once_a_minute_and_samples_at_each_tick() -> None:
    """AVG and STD of CPU and Memory; short intervals do not multiply the records."""

    async def story(refresher: Refresher, source: MemorySource, clock: FakeClock, records: Records) -> None:
        clock.wall = T0 - T0 % 60 + 5.0
        source.put("a", every(15, clock.wall - 1200, clock.wall + 600), wave)
        await refresher.tick()
        records.saved.clear()
        for _ in range(4):
            clock.pass_time(15)
            await refresher.tick()
        assert len(records.saved) == 4
        assert [len(record.records) for record in records.saved].count(3) == 1
        assert all(record.blocks for record in records.saved)
        (record,) = [record for tick in records.saved for record in tick.records if record.window.label == "15m"]
        assert record.columns == ((CPU.name, Operator.AVG), (CPU.name, Operator.STD))
        assert record.values.shape == (2, 1)
        assert np.isfinite(record.values).all()

    play(story)
