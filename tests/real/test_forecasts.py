"""Forecasts of a service with a real Prometheus that has days of history, through a kill and an outage."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from tests.conftest import RunService, StartPrometheus
from tests.real.cluster_history import OUT_OF_ORDER
from tests.real.remote_write import Series
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
    wait_for(lambda: stored_hours(service) >= 120, what="the hours of both metrics in the store")
    service.kill()
    prometheus.stop()
    service.launch()
    service.wait_ready()
    wait_for(lambda: have_bounds(service), what="the stored bounds, without the source")
    again = forecasts(service)["a", "CPU"]
    assert found["bound"] == again["bound"]


def stored_hours(service: Service) -> int:
    with closing(sqlite3.connect(service.directory / "load-watcher.db")) as file:
        return int(file.execute("SELECT count(*) FROM maxima_hour").fetchone()[0])
