"""Forecasts in a real browser: the bound of a node with its sentence, and colours and a column of the fleet."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.fakes.service import FakeService, Live, stored
from tests.fakes.snapshots import END, publish, snapshot_of, steady
from tests.real.browser import Tab, chromium, tab
from watcher.core.forecast.document import snapshot_forecasts
from watcher.core.forecast.fleet import METRICS, FleetForecast
from watcher.core.forecast.maxima import DAY_SLOTS, SLOT_S
from watcher.core.forecast.settings import ForecastSettings
from watcher.tick.forecasts import PublishedForecasts

pytestmark = pytest.mark.real

PHONE = 390
CONFIG = ForecastSettings()
LOADS = {"web-1": 20.0, "web-2": 55.0, "db-1": 35.0, "new-1": 12.0}
PEAKS = {"web-1": 62.0, "web-2": 58.0, "db-1": 91.0, "new-1": 30.0}
YOUNG = "new-1"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One for all tests."""
    with chromium() as running:
        yield running


@pytest.fixture
def light(browser: Any) -> Iterator[Tab]:
    with tab(browser) as opened:
        yield opened


def service(*, is_on: bool = True) -> FakeService:
    """Four nodes, of which one is two hours old, with eight days of maxima that peak once a day."""
    snapshot = snapshot_of({name: {"CPU": steady(load), "Memory": steady(load / 2)} for name, load in LOADS.items()})
    if not is_on:
        return FakeService(published=publish(snapshot))
    fleet = FleetForecast(CONFIG)
    for slot in range(8 * DAY_SLOTS):
        time = END - 150.0 - SLOT_S * slot
        names = [name for name in snapshot.nodes if name != YOUNG or slot < 24]
        high = [PEAKS[name] if slot % DAY_SLOTS == 100 else LOADS[name] for name in names]
        for metric, part in zip(METRICS, (1.0, 0.5), strict=True):
            values = np.array(high) * part
            fleet.maxima.add(metric, names, np.arange(len(names)), np.full(len(names), time), values)
    for chunk in fleet.due_chunks(END):
        fleet.advance(chunk, END)
    table = fleet.table(END)
    published = publish(replace(snapshot, forecasts=snapshot_forecasts(table, snapshot.nodes)))
    minutes = {int(END) - 60 * minute: 35.0 + 8.0 * math.sin(minute / 7) for minute in range(60, -1, -1)}
    return FakeService(
        published=published, forecast=CONFIG, forecasts=PublishedForecasts(table, "f1"), series=[stored(minutes)]
    )


def url(live: Live) -> str:
    return f"http://127.0.0.1:{live.port}/"


@pytest.mark.parametrize(("dark", "width"), [(False, 1280), (True, 1280), (False, PHONE)])
def test_a_node_states_its_bound_or_why_there_is_none(browser: Any, dark: bool, width: int) -> None:
    with Live(service()) as live, tab(browser, dark=dark, width=width) as opened:
        opened.open(f"{url(live)}#/node/db-1", shows="forecast within 6 h: at most 92 % (level 95 %; coverage in the")
        opened.wait_for("forecast within 6 h: at most 46 %")
        assert [] == opened.unfit()
        opened.open(f"{url(live)}#/node/{YOUNG}", shows="forecast within 6 h: no bound: less than a day of history")
        assert [] == opened.errors()
        assert opened.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_without_forecasts_a_node_shows_the_lines_that_enable_them(light: Tab) -> None:
    with Live(service(is_on=False)) as live:
        light.open(f"{url(live)}#/node/db-1", shows="The charts would show an upper bound")
        assert "[forecast]\nenabled = true" in light.page.locator(".missing pre").first.inner_text()
        light.open(f"{url(live)}#/fleet", shows="Colour by")
        assert 0 == light.page.get_by_text("CPU forecast").count()
        assert [] == light.errors()


@pytest.mark.parametrize(("dark", "width"), [(False, 1280), (True, 1280), (False, PHONE)])
def test_the_fleet_is_coloured_and_sorted_by_forecasts(browser: Any, dark: bool, width: int) -> None:
    with Live(service()) as live, tab(browser, dark=dark, width=width) as opened:
        opened.open(f"{url(live)}#/fleet?metric=cpuBound", shows="Distribution of CPU forecast (6h)")
        opened.wait_for("CPU forecast (6h), highest")
        opened.wait_for("the colour is the")
        assert "trend" not in opened.page.locator(".legend").inner_text()  # only loads have marks in cells
        assert [] == opened.unfit()
        opened.open(f"{url(live)}#/fleet?as=table&metric=cpuBound", shows="CPU forecast")
        rows = {row[0].split()[0]: row for row in opened.cells("Nodes")}
        assert ["db-1", "web-1", "web-2", YOUNG] == list(rows)
        assert "91.3 %" in rows["db-1"] or "91.4 %" in rows["db-1"], rows["db-1"]
        assert "–" in rows[YOUNG]
        assert [] == opened.errors()
