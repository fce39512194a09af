"""Forecasts of a service with a real Prometheus that has days of history, through a kill and an outage."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np
import pytest

from tests.conftest import RunService, StartPrometheus
from tests.real.cluster_history import OUT_OF_ORDER
from tests.real.fleet import make_fleet, recording_rule_series
from tests.real.remote_write import Series
from tests.real.stored_maxima import fill_week, stored_hours
from tests.service import Service
from tests.waiting import wait_for

pytestmark = [pytest.mark.real, pytest.mark.slow]

FAST = """
[refresh]
interval = "5s"
resolution = "5s"
max_staleness = "10m"
"""
DAYS = 2.5
NODES = ("a", "b")


def history(end: float) -> list[Series]:
    """CPU and memory of recording rules, every 30 s: 30 to 40 %, and 70 % of CPU for a minute of each hour."""
    times = np.arange(end - DAYS * 86400, end, 30.0)
    series = []
    for number, node in enumerate(NODES):
        labels = {"instance": node}
        cpu = 0.3 + 0.1 * ((times // 30 + number) % 7) / 7
        cpu[times % 3600 < 60] = 0.7
        memory = 0.5 + 0.01 * ((times // 30) % 5)
        for name, values in (("instance:node_cpu:ratio", cpu), ("instance:node_memory_utilisation:ratio", memory)):
            series.append(Series({"__name__": name, **labels}, times, values))
    return series


def forecasts(service: Service) -> dict[tuple[str, str], dict[str, Any]]:
    answer = service.get("/api/v1/forecasts")
    return {(each["node"], each["type"]): each for each in answer.json().get("forecasts", [])}


def have_bounds(service: Service) -> bool:
    found = forecasts(service)
    return len(found) == 4 and all(each["state"] == "bound" for each in found.values())


@pytest.mark.timeout(240)
def test_two_days_of_prometheus_become_bounds_that_outlive_a_kill_and_an_outage(
    start_prometheus: StartPrometheus, run_service: RunService
) -> None:
    prometheus = start_prometheus(config=OUT_OF_ORDER)
    prometheus.write(history(time.time()))
    service = run_service("--provider", "prometheus", "--address", prometheus.url, config=FAST)
    wait_for(lambda: have_bounds(service), what="the bounds", timeout=90)
    found = forecasts(service)["a", "CPU"]
    assert 70 <= found["bound"] < 70.5, "the maximum of each five minutes has the minute at 70 %"
    assert 2 * 86400 <= found["history_s"] <= 3 * 86400
    place = f"sqlite:///{service.directory / 'load-watcher.db'}"
    wait_for(lambda: stored_hours(place) >= 120, what="the hours of both metrics in the store")
    service.kill()
    prometheus.stop()
    service.launch()
    service.wait_ready()
    wait_for(lambda: have_bounds(service), what="the stored bounds, without the source")
    again = forecasts(service)["a", "CPU"]
    assert found["bound"] == again["bound"]


# --- kill -9 at 5,000 nodes ------------------------------------------------------------------------------------------

MANY = 2000
STILL = """
[refresh]
interval = "15s"
resolution = "15s"
max_staleness = "1h"
"""


def all_bounds(service: Service) -> dict[tuple[str, str], tuple[Any, Any]]:
    """The bounds and issue times of all nodes; empty until each node has one."""
    found = forecasts(service)
    complete = len(found) == 2 * MANY and all(each["state"] == "bound" for each in found.values())
    return {key: (each["bound"], each["issued"]) for key, each in found.items()} if complete else {}


def wait_for_bounds(service: Service) -> dict[tuple[str, str], tuple[Any, Any]]:
    seen: list[dict[tuple[str, str], tuple[Any, Any]]] = []

    def complete() -> bool:
        seen.append(all_bounds(service))
        return bool(seen[-1])

    wait_for(complete, what="the bounds of all nodes", timeout=200, ignoring=(OSError,))
    return seen[-1]


@pytest.mark.timeout(600)
def test_a_week_of_thousands_of_nodes_outlives_a_kill(
    place: str, start_prometheus: StartPrometheus, run_service: RunService
) -> None:
    """With SQLite and with PostgreSQL; the last start has no source."""
    prometheus = start_prometheus()
    now = time.time()
    prometheus.write(recording_rule_series(make_fleet(MANY, start=now - 960, end=now - 7)))
    arguments = ("--provider", "prometheus", "--address", prometheus.url, "--store-url", place)
    service = run_service(*arguments, config=STILL)
    service.wait_for_status(200, "/readyz", timeout=100)
    wait_for(lambda: stored_hours(place) >= 2, what="the newest hour of both metrics in the store", timeout=100)
    service.stop()
    asyncio.run(fill_week(place, now=now))
    service.launch()
    before = wait_for_bounds(service)
    prometheus.stop()
    for _ in range(2):  # an hour may end between the two starts
        service.kill()
        service.launch()
        earlier, before = before, wait_for_bounds(service)
        if {issued for _, issued in earlier.values()} == {issued for _, issued in before.values()}:
            break
    assert before == earlier
