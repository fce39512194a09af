"""The bounds after a backfill of seven days, one of which is missing, from a real Prometheus and a real InfluxDB."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.conftest import RunService, StartPrometheus
from tests.fakes.sources import FakeClock
from tests.fetches import sections
from tests.real.cluster_history import OUT_OF_ORDER
from tests.real.parts import InfluxDB, Server
from tests.real.proxy import FaultyProxy, Reply, passed_on, unavailable
from tests.real.remote_write import Series
from tests.real.stored_maxima import oldest_hour, stored_hours
from tests.real.telegraf import cpu_fields, line
from tests.service import Service
from tests.waiting import eventually, wait_for
from watcher.core.forecast.document import node_forecasts
from watcher.core.forecast.fleet import LATE_S, METRICS, FleetForecast, ForecastTable
from watcher.core.forecast.settings import ForecastSettings
from watcher.sources.influxdb.provider import InfluxProvider
from watcher.tick.shared import RefreshConfig
from watcher.tick.tick import Refresher

pytestmark = [pytest.mark.real, pytest.mark.slow]

NODES = ("a", "b")
DAYS = 7.3
GAP_DAYS = (1.9, 3.9)
"""Days before the end without samples: a whole request for the past returns none."""
FAST = """
[refresh]
interval = "5s"
resolution = "5s"
max_staleness = "1h"
"""
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Week:
    """CPU and memory of the nodes in percent, [nodes, times], every minute: a daily swing with noise."""

    times: Values
    cpu: Values
    memory: Values

    @classmethod
    def until(cls, end: float) -> Week:
        """The days before `end` (unix seconds); no sample is at the edge of five minutes."""
        times = np.arange((end - DAYS * 86400) // 60 * 60 + 7.0, end, 60.0)
        before = (end - times) / 86400
        times = times[(before < GAP_DAYS[0]) | (before > GAP_DAYS[1])]
        random = np.random.default_rng(5)
        shape = (len(NODES), len(times))
        swing = np.sin(times / 86400 * 2 * np.pi + np.arange(len(NODES))[:, np.newaxis])
        # A use above 100 % is not plausible: the service drops it.
        cpu = np.minimum(40 + 15 * swing + random.gamma(2, 4, shape), 99.0)
        return cls(times, cpu, 50 + 5 * swing + random.normal(0, 1, shape))

    def bounds(self, now: float) -> dict[tuple[str, str, str], tuple[float | None, float | None, float | None, int]]:
        """Bound, coverage, severity and count of judged bounds, computed from these values alone."""
        fleet = FleetForecast(ForecastSettings())
        node = np.repeat(np.arange(len(NODES), dtype=np.int64), len(self.times))
        for metric, values in zip(METRICS, (self.cpu, self.memory), strict=True):
            fleet.maxima.add(metric, NODES, node, np.tile(self.times, len(NODES)), values.ravel())
        for chunk in fleet.due_chunks(now):
            fleet.advance(chunk, now)
        return stated(fleet.table(now))


def stated(table: ForecastTable) -> dict[tuple[str, str, str], Any]:
    return {
        (each.node, each.type, each.horizon): (each.bound, each.coverage, each.severity, each.judged)
        for each in node_forecasts(table, NODES, types=None, horizons=(1, 6, 24))
    }


def served(service: Service) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = service.get("/api/v1/forecasts?horizon=all").json().get("forecasts", [])
    return found


@pytest.mark.timeout(300)
def test_bounds_from_prometheus_are_those_of_its_samples(
    start_prometheus: StartPrometheus, run_service: RunService
) -> None:
    """At most one request per second fetches the past; meanwhile the service serves the windows."""
    prometheus = start_prometheus(config=OUT_OF_ORDER)
    week = Week.until(time.time())
    for name, values in (("cpu:ratio", week.cpu), ("memory_utilisation:ratio", week.memory)):
        labels = [{"__name__": f"instance:node_{name}", "instance": node} for node in NODES]
        prometheus.write(Series(each, week.times, row / 100) for each, row in zip(labels, values, strict=True))
    asked: list[float] = []

    def note(reply: Reply) -> None:
        if "max_over_time" in reply.question:
            asked.append(time.monotonic())
        passed_on(reply)

    with FaultyProxy(prometheus.url) as proxy:
        proxy.fault = note
        service = run_service("--provider", "prometheus", "--address", proxy.url, config=FAST)
        service.wait_for_status(200)
        during: list[int] = []

        def complete() -> bool:
            during.append(service.get("/watcher").status)
            return re.search(r"fetched \d+ maxima of the last days", service.log()) is not None

        wait_for(complete, what="the backfill", timeout=120)
        wait_for(lambda: all(each["state"] == "bound" for each in served(service)), what="the bounds")
    assert set(during) == {200}
    assert len(asked) >= 2 * 5
    assert min(np.diff(asked)) > 0.8, "more than one request per second"
    found = served(service)
    (issued,) = {each["issued"] for each in found}
    expected = week.bounds(issued + LATE_S + 1.0)
    assert len(found) == len(expected) == 12
    for each in found:
        of = expected[each["node"], each["type"], each["horizon"]]
        assert (each["bound"], each["coverage"], each["severity"], each["judged"]) == of, each["text"]


Range = tuple[float, float]


class Past:
    """The requests for the past that go through the proxy: `asked` has their times, `ranges` their ranges (unix
    seconds) by the text of the query; after `most` requests, they fail."""

    def __init__(self, ranges_of: Callable[[str], tuple[str, Range] | None], *, most: int | None = None) -> None:
        self.asked: list[float] = []
        self.ranges: list[tuple[str, Range]] = []
        self.most = most
        self._ranges_of = ranges_of

    def __call__(self, reply: Reply) -> None:
        found = self._ranges_of(unquote_plus(reply.question))
        if found is not None:
            self.asked.append(time.monotonic())
            if self.most is not None and len(self.asked) > self.most:
                unavailable(reply)
                return
            self.ranges.append(found)
        passed_on(reply)


def prometheus_past(question: str) -> tuple[str, Range] | None:
    """The range of the five minutes that a query for maxima asks for."""
    start, end = (re.search(rf"\b{name}=([0-9.]+)", question) for name in ("start", "end"))
    if "max_over_time" not in question or start is None or end is None:
        return None
    metric = next(name for name in ("cpu", "memory") if f"node_{name}" in question)
    return metric, (float(start[1]) - 300.0, float(end[1]))


@pytest.mark.timeout(300)
def test_a_backfill_that_fails_is_named_and_continued(
    start_prometheus: StartPrometheus, run_service: RunService
) -> None:
    """Prometheus fails in the middle of the past; the next start fetches the rest, and the one after it only hours
    without samples."""
    prometheus = start_prometheus(config=OUT_OF_ORDER)
    now = time.time()
    week = Week.until(now)
    for name, values in (("cpu:ratio", week.cpu), ("memory_utilisation:ratio", week.memory)):
        labels = [{"__name__": f"instance:node_{name}", "instance": node} for node in NODES]
        prometheus.write(Series(each, week.times, row / 100) for each, row in zip(labels, values, strict=True))
    with FaultyProxy(prometheus.url) as proxy:
        proxy.fault = first = Past(prometheus_past, most=2)
        service = run_service("--provider", "prometheus", "--address", proxy.url, config=FAST)
        service.wait_for_status(200)

        def named() -> bool:
            assert 200 == service.get("/watcher").status
            found = service.get("/api/v1/findings").json()["findings"]
            return any("backfill of maxima failed" in each["reason"] for each in found)

        wait_for(named, what="the finding", timeout=60)
        fetched = sum(round((until - since) / 3600) for _, (since, until) in first.ranges)
        place = f"sqlite:///{service.directory / 'load-watcher.db'}"
        wait_for(lambda: stored_hours(place) >= fetched - 2, what="the fetched hours in the store", timeout=60)
        proxy.fault = second = Past(prometheus_past)
        fetch_again(service)
        wait_for(lambda: stored_hours(place) >= 2 * 24 * 5, what="all hours in the store", timeout=60)
        proxy.fault = third = Past(prometheus_past)
        fetch_again(service)
    newest = now // 3600 * 3600 - 3600
    gap = now - GAP_DAYS[1] * 86400 - 3600, now - GAP_DAYS[0] * 86400 + 3600
    for metric, (since, until) in second.ranges:
        known = [of for name, of in first.ranges if name == metric]
        assert all(until <= a or since >= b for a, b in known if b < newest), "fetched twice"
    assert len(second.ranges) >= 4
    for _, (since, until) in third.ranges:
        oldest = until <= now - 7 * 86400 + 7200  # the store keeps no hour that began before the history
        assert since >= newest or oldest or gap[0] <= since < until <= gap[1], "fetched again"


def fetch_again(service: Service) -> None:
    """Kill and start the service, and wait until its backfill ends."""
    service.kill()
    before = len(service.log())
    service.launch()
    done = re.compile(r"fetched \d+ maxima of the last days")
    wait_for(lambda: done.search(service.log()[before:]), what="the end of the backfill", timeout=120)


def telegraf_lines(week: Week) -> Iterator[str]:
    for row, node in enumerate(NODES):
        for at, cpu, memory in zip(week.times.tolist(), week.cpu[row].tolist(), week.memory[row].tolist(), strict=True):
            yield line("cpu", {"host": node, "cpu": "cpu-total"}, cpu_fields(cpu), at)
            yield line("mem", {"host": node}, {"available_percent": 100.0 - memory, "used_percent": memory}, at)


@pytest.mark.timeout(300)
def test_bounds_from_influxdb_are_those_of_its_samples(tmp_path: Path) -> None:
    now = 1_700_000_000.0 // 3600 * 3600 + 1805.0
    week = Week.until(now)

    async def story(address: str) -> dict[tuple[str, str, str], Any]:
        provider, clock = InfluxProvider(*sections(address=address)), FakeClock(now)
        config = RefreshConfig(forecast=ForecastSettings(), maxima_pace=0.0)
        refresher = Refresher(provider=provider, config=config, store=None, clock=clock, tag="t")
        await provider.start()
        try:
            await refresher.tick()
            forecasts = refresher.forecasts
            await eventually(lambda: not forecasts.backfill.running, what="the backfill", timeout=200)
            assert forecasts.published is not None
            return stated(forecasts.published.table)
        finally:
            await forecasts.close()
            await provider.close()
            await refresher.close()

    with InfluxDB(tmp_path / "influxdb") as server:
        server.write(telegraf_lines(week))
        found = asyncio.run(story(server.url))
    assert found == week.bounds(now)
    assert all(bound is not None for bound, *_ in found.values())


def influxdb_past(question: str) -> tuple[str, Range] | None:
    """The range of a query for samples from before the windows."""
    times = re.search(r"time >= (\d+)ms AND time <= (\d+)ms", question)
    if times is None or (until := int(times[2]) / 1000) > time.time() - 1100:
        return None
    return ("cpu" if 'FROM "cpu"' in question else "memory"), (int(times[1]) / 1000, until)


@pytest.mark.timeout(300)
def test_a_backfill_from_influxdb_continues_after_a_kill(
    tmp_path: Path, run_service: RunService, running: Callable[[Server], Server]
) -> None:
    """At most one request per second, and answers meanwhile; no hour that was stored is fetched again."""
    server = InfluxDB(tmp_path / "influxdb")
    running(server)
    server.start().write(telegraf_lines(Week.until(time.time())))
    with FaultyProxy(server.url) as proxy:
        proxy.fault = first = Past(influxdb_past)
        service = run_service("--provider", "influxdb", "--address", proxy.url, config=FAST)
        service.wait_for_status(200)
        place = f"sqlite:///{service.directory / 'load-watcher.db'}"

        def some_hours() -> bool:
            assert 200 == service.get("/watcher").status
            return stored_hours(place) >= 5

        wait_for(some_hours, what="hours of the past in the store", timeout=90)
        stored = oldest_hour(place)
        service.kill()
        proxy.fault = second = Past(influxdb_past)
        service.launch()
        wait_for(lambda: len(second.ranges) >= 4, what="requests after the kill", timeout=60)
    assert min(np.diff(first.asked)) > 0.8, "more than one request per second"
    assert min(np.diff(second.asked)) > 0.8, "more than one request per second"
    assert {"cpu"} == {name for name, _ in first.ranges}
    for name, (_, until) in second.ranges:
        assert name == "memory" or until <= (stored + 1) * 3600 + 900 or until >= time.time() - 3600, "fetched again"
