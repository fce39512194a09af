"""The bounds after a backfill of seven days, one of which is missing, from a real Prometheus and a real InfluxDB."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.conftest import RunService, StartPrometheus
from tests.fakes.sources import FakeClock
from tests.real.cluster_history import OUT_OF_ORDER
from tests.real.parts import InfluxDB
from tests.real.proxy import FaultyProxy, Reply, passed_on
from tests.real.remote_write import Series
from tests.real.telegraf import cpu_fields, line
from tests.service import Service
from tests.waiting import eventually, wait_for
from watcher.core.forecast.document import node_forecasts
from watcher.core.forecast.fleet import LATE_S, METRICS, FleetForecast, ForecastConfig, ForecastTable
from watcher.providers.influxdb.provider import InfluxProvider
from watcher.providers.influxdb.queries import InfluxConfig
from watcher.refresh.config import RefreshConfig
from watcher.refresh.tick import Refresher

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
        return cls(times, 40 + 15 * swing + random.gamma(2, 4, shape), 50 + 5 * swing + random.normal(0, 1, shape))

    def bounds(self, now: float) -> dict[tuple[str, str, str], tuple[float | None, float | None, float | None, int]]:
        """Bound, coverage, severity and count of judged bounds, computed from these values alone."""
        fleet = FleetForecast(ForecastConfig())
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
        provider, clock = InfluxProvider(InfluxConfig(address=address)), FakeClock(now)
        config = RefreshConfig(forecast=ForecastConfig(), maxima_pace=0.0)
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
