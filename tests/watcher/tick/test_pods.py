"""Pods in the tick: when they are fetched, what is kept, and failures that affect only pods."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from tests.fakes.sources import FakeClock, MemorySource, PodSource
from tests.watcher.tick.test_names import Reported
from watcher.core.pods.coverage import PodGaps
from watcher.core.pods.published import PublishedPods
from watcher.core.pods.table import PodOrigin, PodUsage
from watcher.sources.base import NoPodUsage, PodFetch
from watcher.sources.errors import ProviderRefused, ProviderUnreachable
from watcher.tick.pods import WANTED_FOR_S
from watcher.tick.shared import RefreshConfig
from watcher.tick.tick import Refresher

T0 = 1_700_000_050.0
Story = Callable[[Refresher, PodSource, FakeClock], Coroutine[Any, Any, None]]


def play(story: Story, *, source: MemorySource | None = None, directory: Reported | None = None, **config: Any) -> None:
    """Run a test with its own refresher and a node that responds."""

    async def run() -> None:
        the_source, clock = source or PodSource(), FakeClock(T0)
        the_source.put("n1", np.arange(T0 - 120, T0 + 3600, 15.0).tolist(), lambda time: 50 + time % 7)
        refresher = Refresher(
            provider=the_source, config=RefreshConfig(**config), directory=directory, clock=clock, tag="t"
        )
        try:
            await story(refresher, the_source, clock)  # type: ignore[arg-type]
        finally:
            await refresher.close()

    asyncio.run(run())


async def minutes(refresher: Refresher, source: PodSource, clock: FakeClock, count: int) -> None:
    """This number of minutes, with one pod that uses one core more in each."""
    for number in range(count):
        if number:
            clock.pass_time(60)
        source.pods["a/x"] = ("n1", clock.wall - 5, float(number), 2.0**30)
        await refresher.tick()


@dataclass
class GapSource(PodSource):
    """A source that measures `idle` nodes too, and knows the causes of gaps."""

    gaps: PodGaps | Exception = field(default_factory=lambda: PodGaps(""))
    idle: frozenset[str] = frozenset()

    async def fetch_pods(self, now: float) -> PodFetch:
        return replace(await super().fetch_pods(now), nodes=self.idle)

    async def pod_gaps(self, now: float) -> PodGaps:
        if isinstance(self.gaps, Exception):
            raise self.gaps
        return self.gaps


def pods_of(refresher: Refresher) -> PublishedPods:
    assert refresher.pods.published is not None
    return refresher.pods.published


def findings(refresher: Refresher) -> dict[str, str]:
    """kind -> reason of the findings about pods."""
    return {entry.kind: entry.reason for entry in refresher.findings.entries() if entry.metric == "pods"}


# --- nodes ------------------------------------------------------------------------------------------------------------


def test_nodes_without_readings_are_a_finding_with_the_cause():
    """Nodes without usage have none. The source knows the causes and the nodes with pods: it measures n5, which runs no
    pods, and n6 runs none."""
    causes = {"n2": "not scraped", "n3": "not scraped"}
    gaps = PodGaps("no agent", causes, frozenset({"n1", "n2", "n3", "n4", "n5"}))
    source = GapSource(gaps=gaps, idle=frozenset({"n5"}))
    for name in ("n2", "n3", "n4", "n5", "n6"):
        source.put(name, np.arange(T0 - 120, T0 + 3600, 15.0).tolist(), lambda time: 50 + time % 7)

    async def story(refresher: Refresher, source: PodSource, clock: FakeClock) -> None:
        await minutes(refresher, source, clock, 1)
        document = pods_of(refresher).document()
        assert {**causes, "n4": "no agent"} == document.unknown
        assert {"n1": T0 - 5, "n5": T0, "n6": T0} == document.measured
        expected = "no pod usage for 3 of 6 nodes; n2, n3: not scraped; n4: no agent"
        assert {"no_series": expected} == findings(refresher)
        assert ["n4"] == list(pods_of(refresher).document(nodes={"n4"}).unknown)

    play(story, source=source, pods="on")


def test_a_node_whose_readings_end_has_no_pod_usage():
    """After refresh.max_staleness; its own load and the pods of the other node stay."""
    source = PodSource()
    source.put("n2", np.arange(T0 - 120, T0 + 3600, 15.0).tolist(), lambda time: 50 + time % 7)

    async def story(refresher: Refresher, source: PodSource, clock: FakeClock) -> None:
        source.pods["a/y"] = ("n2", T0 - 5, 1.0, 1.0)
        await minutes(refresher, source, clock, 5)
        assert {} == pods_of(refresher).document().unknown
        clock.pass_time(60)
        await minutes(refresher, source, clock, 2)
        assert ["n2"] == list(pods_of(refresher).document().unknown)
        assert "older than 300 s" in findings(refresher)["no_series"]

    play(story, source=source, pods="on")


def test_a_source_without_causes_does_not_end_the_refresh():
    source = GapSource(gaps=ProviderUnreachable("no route"))
    source.put("n2", np.arange(T0 - 120, T0 + 3600, 15.0).tolist(), lambda time: 50 + time % 7)

    async def story(refresher: Refresher, source: PodSource, clock: FakeClock) -> None:
        await minutes(refresher, source, clock, 1)
        assert {"n2": "the cause is unknown: no route"} == pods_of(refresher).document().unknown

    play(story, source=source, pods="on")


# --- times -----------------------------------------------------------------------------------------------------------


def test_by_default_pods_are_not_fetched():
    """They cost more than all nodes, and most users never need them."""

    async def story(refresher: Refresher, source: PodSource, clock: FakeClock) -> None:
        await minutes(refresher, source, clock, 3)
        assert refresher.published is not None
        assert (None, []) == (refresher.pods.published, source.asked_for_pods)
        assert {} == findings(refresher)

    play(story)


def test_pods_are_fetched_while_clients_request_them():
    """From the tick after the first request, until a quarter of an hour after the last one."""

    async def story(refresher: Refresher, source: PodSource, clock: FakeClock) -> None:
        assert "" == refresher.pods.want()
        await minutes(refresher, source, clock, 10)
        assert 10 == len(source.asked_for_pods)
        assert "" == refresher.pods.want()
        await minutes(refresher, source, clock, 16)
        assert 25 == len(source.asked_for_pods)
        clock.pass_time(60)
        await refresher.tick()
        assert 25 == len(source.asked_for_pods)
        assert refresher.pods.published is None

    play(story)


def test_on_fetches_always_and_off_never():
    """For any requests; with off, the response states it."""

    async def on(refresher: Refresher, source: PodSource, clock: FakeClock) -> None:
        await minutes(refresher, source, clock, 20)
        assert 20 == len(source.asked_for_pods)

    async def off(refresher: Refresher, source: PodSource, clock: FakeClock) -> None:
        assert 'refresh.pods = "off"' in refresher.pods.want()
        await minutes(refresher, source, clock, 3)
        assert [] == source.asked_for_pods

    play(on, pods="on")
    play(off, pods="off")


@pytest.mark.parametrize(("every", "asked"), [(15.0, 5), (7.0, 5), (60.0, 5), (55.0, 5), (240.0, 2)])
def test_pods_are_fetched_once_a_minute_at_any_tick_interval(every: float, asked: int):
    """In the first four minutes; ticks that are slightly early count."""

    async def story(refresher: Refresher, source: PodSource, clock: FakeClock) -> None:
        source.pods["a/x"] = ("n1", T0 - 5, 1.0, 1.0)
        for _ in range(int(240 // every) + 1):
            await refresher.tick()
            clock.pass_time(every)
        assert asked == len(source.asked_for_pods)

    play(story, pods="on", interval=max(60.0, every))


# --- readings --------------------------------------------------------------------------------------------------------


def test_minutes_become_windows():
    """Served with the time and origin of the source; each table has its own tag."""

    async def story(refresher: Refresher, source: PodSource, clock: FakeClock) -> None:
        await minutes(refresher, source, clock, 6)
        pods = pods_of(refresher)
        document = pods.document()
        assert [5.0] == document.cores
        assert [T0 + 295] == document.time
        assert (60.0, "cores", 60.0, "Memory") == (
            document.every_s,
            document.cores_from,
            document.cores_span_s,
            document.source,
        )
        assert {"5m": [3.0], "10m": [2.5], "15m": [None]} == {each.window: each.cores for each in document.averages}
        assert 5.0 == pods.age(clock.monotonic())
        await minutes(refresher, source, clock, 2)
        assert pods.tag != pods_of(refresher).tag

    play(story, pods="on")


def test_invalid_readings_are_findings_and_valid_ones_stay():
    """The review is that of samples."""

    async def story(refresher: Refresher, source: PodSource, clock: FakeClock) -> None:
        source.pods["a/bad"] = ("n1", T0 + 3600, 1.0, 1.0)
        await minutes(refresher, source, clock, 1)
        assert (("a", "x"),) == pods_of(refresher).table.pods
        assert "a/bad" in findings(refresher)["future_sample"]

    play(story, pods="on")


def test_another_expression_removes_the_earlier_readings():
    """A rate over another span must not share a mean with the earlier ones."""

    async def story(refresher: Refresher, source: PodSource, clock: FakeClock) -> None:
        await minutes(refresher, source, clock, 4)
        source.pods_from = "cores over another span"
        clock.pass_time(60)
        await minutes(refresher, source, clock, 1)
        ring = pods_of(refresher).table.recent_cores
        assert 1 == np.count_nonzero(~np.isnan(ring))
        assert "the minutes of pods were emptied" in findings(refresher)["source"]

    play(story, pods="on")


def test_a_clock_that_is_set_back_removes_the_readings():
    """They are in the future, so later ones would not count as newer."""

    async def story(refresher: Refresher, source: PodSource, clock: FakeClock) -> None:
        await minutes(refresher, source, clock, 3)
        clock.step(-1800)
        source.put("n1", np.arange(clock.wall - 120, clock.wall + 600, 15.0).tolist(), 50.0)
        clock.pass_time(60)
        await minutes(refresher, source, clock, 2)
        assert [1.0] == pods_of(refresher).table.cores.tolist()
        assert pods_of(refresher).table.end < T0

    play(story, pods="on")


def test_a_reload_keeps_pods_and_requests():
    """The new refresher continues with them."""

    async def story(refresher: Refresher, source: PodSource, clock: FakeClock) -> None:
        refresher.pods.want()
        await minutes(refresher, source, clock, 3)
        new = Refresher(provider=source, config=RefreshConfig(max_staleness=200.0), clock=clock, tag="u")
        await new.continue_from(refresher)
        assert pods_of(new) is pods_of(refresher)
        clock.pass_time(60)
        await minutes(new, source, clock, 1)
        assert 4 == np.count_nonzero(~np.isnan(pods_of(new).table.recent_cores))
        await new.close()

    play(story)


def test_nodes_of_pods_have_the_names_of_the_cluster():
    """Like nodes with a load. A node that the cluster does not know keeps its name, with a finding."""
    cluster = Reported({"node-a": "10.0.0.1", "node-b": "10.0.0.2"})

    async def story(refresher: Refresher, source: PodSource, clock: FakeClock) -> None:
        source.pods = {
            "a/x": ("10.0.0.1", T0 - 5, 1.0, 1.0),
            "a/y": ("node-b", T0 - 5, 1.0, 1.0),
            "a/z": ("10.0.0.9", T0 - 5, 1.0, 1.0),
        }
        await refresher.tick()
        assert ("node-a", "node-b", "10.0.0.9") == pods_of(refresher).table.nodes
        unknown = [entry.node for entry in refresher.findings.entries() if entry.kind == "unknown_node"]
        assert "10.0.0.9" in unknown
        assert "10.0.0.1" not in unknown

    play(story, directory=cluster, pods="on")


def test_a_reload_with_longer_windows_removes_the_readings():
    async def story(refresher: Refresher, source: PodSource, clock: FakeClock) -> None:
        await minutes(refresher, source, clock, 3)
        config = RefreshConfig(pods="on", windows=refresher.config.windows[:2])
        new = Refresher(provider=source, config=config, clock=clock, tag="u")
        await new.continue_from(refresher)
        clock.pass_time(60)
        await minutes(new, source, clock, 1)
        assert (10, 1) == pods_of(new).table.recent_cores.shape
        await new.close()

    play(story, pods="on")


# --- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "finding", "counted"),
    [
        (ProviderUnreachable("gone"), "query_failed", "unreachable"),
        (ProviderRefused("no", hint="ask nicely"), "query_failed", "refused"),
        (RuntimeError("a bug"), "query_failed", "internal"),
    ],
    ids=["unreachable", "refused", "bug"],
)
def test_a_failure_of_pods_does_not_affect_the_nodes(error, finding, counted, caplog):
    """The known pods stay with their real age, and one line is logged."""
    caplog.set_level(logging.INFO, logger="watcher.tick.pods")

    async def story(refresher: Refresher, source: PodSource, clock: FakeClock) -> None:
        await minutes(refresher, source, clock, 2)
        before = pods_of(refresher)
        source.no_pods = error
        clock.pass_time(60)
        await minutes(refresher, source, clock, 2)
        assert refresher.provider_health.ok
        assert clock.wall - 60 < pods_snapshot_time(refresher)
        assert before is pods_of(refresher)
        assert 125.0 == before.age(clock.monotonic())
        assert finding in findings(refresher)
        assert 2 == refresher.stats.query_failures[counted, "pods"]
        assert refresher.pods.want()
        assert "" == refresher.pods.impossible_reason  # the source may have pods again
        source.no_pods = None
        clock.pass_time(60)
        await minutes(refresher, source, clock, 1)
        assert "" == refresher.pods.want()
        assert before is not pods_of(refresher)

    play(story, pods="on")
    reported = [record.levelname for record in caplog.records if not record.exc_info]
    assert ["INFO", "WARNING", "INFO"] == reported


class Crooked(PodSource):
    """Pods of a third-party provider: more pods than nodes."""

    async def fetch_pods(self, now: float) -> PodFetch:
        column = np.ones(2)
        usage = PodUsage((("a", "x"), ("a", "y")), ("n1",), now - column, column, column)
        return PodFetch(usage, PodOrigin("Crooked", "cores", 60.0, "bytes", "rss"))


def test_an_inconsistent_response_affects_only_pods():
    """The tick continues to its end."""

    async def story(refresher: Refresher, source: PodSource, clock: FakeClock) -> None:
        await refresher.tick()
        assert 1 == refresher.stats.query_failures["internal", "pods"]
        assert 1 == refresher.stats.ticks
        assert refresher.provider_health.ok

    play(story, source=Crooked(), pods="on")


def pods_snapshot_time(refresher: Refresher) -> float:
    """The time of the published snapshot of nodes."""
    assert refresher.published is not None
    return refresher.published.snapshot.timestamp


@pytest.mark.parametrize("pods", ["auto", "on"])
def test_a_source_without_pods_is_reported(pods: str):
    """To each client that requests them, with a remedy; a finding only if the settings require pods."""

    async def story(refresher: Refresher, source: Any, clock: FakeClock) -> None:
        assert "" == refresher.pods.want() == refresher.pods.impossible_reason
        await refresher.tick()
        assert refresher.published is not None
        why = refresher.pods.want()
        assert why == refresher.pods.impossible_reason
        assert "Memory provides no pod usage" in why
        assert "metrics-server" in why
        required = pods == "on"
        clock.pass_time(WANTED_FOR_S + 1)
        assert (why if required else "") == refresher.pods.impossible_reason  # a client may request pods again
        assert (why if required else None) == findings(refresher).get("no_series")
        assert int(required) == refresher.stats.query_failures.get(("no_pods", "pods"), 0)

    play(story, source=MemorySource(), pods=pods)


def test_a_source_whose_pods_are_gone_serves_none():
    """The source responds without their series, so the earlier readings are not served either."""

    async def story(refresher: Refresher, source: PodSource, clock: FakeClock) -> None:
        await minutes(refresher, source, clock, 2)
        source.no_pods = NoPodUsage("no series", hint="scrape them")
        clock.pass_time(60)
        await minutes(refresher, source, clock, 1)
        assert refresher.pods.published is None
        assert "no series. scrape them" == refresher.pods.want()

    play(story, pods="on")


def test_a_source_that_hangs_is_cancelled_at_the_deadline():
    """The nodes were published before, and stay."""

    async def story(refresher: Refresher, source: PodSource, clock: FakeClock) -> None:
        source.pods_hang = True
        await refresher.tick()
        assert refresher.published is not None
        refresher.pods.want()
        await refresher.pods.refresh(asyncio.get_running_loop().time() + 0.05, None)
        assert refresher.provider_health.ok
        assert "no response to the pod queries" in findings(refresher)["query_failed"]
        assert 1 == refresher.stats.query_failures["unreachable", "pods"]

    play(story)


def test_an_unavailable_source_is_not_queried_for_pods():
    """The failed query of nodes is sufficient."""

    async def story(refresher: Refresher, source: PodSource, clock: FakeClock) -> None:
        source.down = ProviderUnreachable("gone")
        await minutes(refresher, source, clock, 2)
        assert [] == source.asked_for_pods

    play(story, pods="on")
