"""GET /api/v1/forecasts and operator=FORECAST: responses, selections and errors."""

import gzip
import json
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from tests.fakes.service import FakeService, Live
from tests.fakes.snapshots import publish, small_fleet, snapshot_of
from watcher.core.forecast.document import snapshot_forecasts
from watcher.core.forecast.fleet import LATE_S, METRICS, FleetForecast
from watcher.core.forecast.maxima import HOUR_SLOTS, SLOT_S
from watcher.core.forecast.settings import ForecastSettings
from watcher.tick.forecasts import PublishedForecasts

CPU, MEMORY = METRICS
HOUR = 470_000
NOW = HOUR * 3600 + LATE_S
CONFIG = ForecastSettings()
PATH = "/api/v1/forecasts"


def fleet() -> FleetForecast:
    """Eight days of node-1 and of a silent node, an hour of node-2, nothing of node-3."""
    made = FleetForecast(CONFIG)
    for node, hours in (("node-1", 192), ("silent", 192), ("node-2", 1)):
        slots = np.arange((HOUR - hours) * HOUR_SLOTS, HOUR * HOUR_SLOTS)
        for metric, percent in ((CPU, 40.0), (MEMORY, 60.0)):
            node_index = np.zeros(len(slots), dtype=np.int64)
            made.maxima.add(
                metric, (node,), node_index, slots.astype(np.float64) * SLOT_S, np.full(len(slots), percent)
            )
    for chunk in made.due_chunks(NOW):
        made.advance(chunk, NOW)
    return made


def service() -> FakeService:
    table = fleet().table(NOW)
    snapshot = snapshot_of(small_fleet())
    snapshot = replace(snapshot, forecasts=snapshot_forecasts(table, snapshot.nodes))
    return FakeService(published=publish(snapshot), forecast=CONFIG, forecasts=PublishedForecasts(table, "forecasts-1"))


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with Live(service()) as running:
        yield running


def test_each_node_has_its_bounds_or_the_reason_why_not(live):
    document = live.ask(PATH).json()
    assert ("bound", "", 0.95, "6h") == tuple(document[key] for key in ("state", "reason", "level", "horizon"))
    assert ["1h", "6h", "24h"] == document["horizons"]
    states = {(each["node"], each["type"]): each["state"] for each in document["forecasts"]}
    assert {
        ("node-1", "CPU"): "bound",
        ("node-1", "Memory"): "bound",
        ("node-2", "CPU"): "short_history",
        ("node-2", "Memory"): "short_history",
        ("node-3", "CPU"): "no_samples",
        ("node-3", "Memory"): "no_samples",
        ("silent", "CPU"): "bound",
        ("silent", "Memory"): "bound",
    } == states
    found = next(each for each in document["forecasts"] if each["node"] == "node-1")
    assert 40 <= found["bound"] < 40.4
    assert "at most 41 % (level 95 %; coverage in the last week 100.0 %, severity 0.0 %)" == found["text"]
    assert HOUR * 3600 == found["issued"]


def test_hosts_types_and_horizons_select(live):
    found = live.ask(f"{PATH}?host=node-1&host=node-3&type=CPU&horizon=1h&horizon=24h").json()["forecasts"]
    assert [("node-1", "1h"), ("node-1", "24h"), ("node-3", "1h"), ("node-3", "24h")] == [
        (each["node"], each["horizon"]) for each in found
    ]
    assert 3 == len(live.ask(f"{PATH}?host=node-1&type=CPU&horizon=all").json()["forecasts"])
    assert [] == live.ask(f"{PATH}?type=Storage").json()["forecasts"]


@pytest.mark.parametrize(
    ("query", "status", "message"),
    [
        ("horizon=2h", 400, "unknown horizon '2h'"),
        ("host=unknown", 404, "no metrics for node 'unknown'"),
        ("operator=AVG", 400, "unknown parameter 'operator'"),
    ],
)
def test_unknown_values_are_errors(live, query, status, message):
    answer = live.ask(f"{PATH}?{query}")
    assert (status, message) == (answer.status, answer.error["message"])


def test_the_body_is_compressed_and_has_an_etag(live):
    plain, zipped = live.ask(PATH), live.ask(PATH, headers={"Accept-Encoding": "gzip"})
    assert plain.body == gzip.decompress(zipped.body)
    etag = zipped.headers["ETag"]
    assert 304 == live.ask(PATH, headers={"Accept-Encoding": "gzip", "If-None-Match": etag}).status
    assert etag != live.ask(f"{PATH}?type=CPU", headers={"Accept-Encoding": "gzip"}).headers["ETag"]


def test_disabled_forecasts_and_missing_first_ticks_are_errors_with_a_reason():
    with Live(FakeService()) as live:
        document = live.ask(PATH).json()
        assert ("disabled", []) == (document["state"], document["forecasts"])
        assert "forecast.enabled" in document["reason"]
    with Live(FakeService(forecast=CONFIG)) as live:
        assert (404, "no_metrics") == ((answer := live.ask(PATH)).status, answer.error["code"])


# --- operator=FORECAST -----------------------------------------------------------------------------------------------


def metrics(answer, node: str) -> list[tuple[str, str, str]]:
    found = answer.json()["data"]["NodeMetricsMap"][node]["metrics"]
    return [(each["type"], each["operator"], each["rollup"]) for each in found]


def test_forecasts_are_in_documents_only_on_request(live):
    assert b"FORECAST" not in live.ask("/watcher").body
    assert b"FORECAST" not in live.ask("/api/v1/columns").body
    asked = live.ask("/watcher?operator=AVG&operator=FORECAST&type=CPU")
    assert [("CPU", "AVG", "15m"), ("CPU", "FORECAST", "6h")] == metrics(asked, "node-1")
    assert [("CPU", "AVG", "15m")] == metrics(asked, "node-2"), "a node without a bound has no such metric"


def test_a_forecast_that_is_requested_alone_has_the_average_too(live):
    """Without AVG or Latest, the Go plug-ins assume a load of 0."""
    assert [("CPU", "AVG", "15m"), ("CPU", "FORECAST", "24h")] == metrics(
        live.ask("/watcher?operator=FORECAST&type=CPU&horizon=24h"), "node-1"
    )


def test_columns_have_null_where_there_is_no_bound(live):
    columns = live.ask("/api/v1/columns?operator=FORECAST&type=CPU&horizon=1h").json()["columns"]
    column = next(each for each in columns if each["operator"] == "FORECAST")
    assert ("1h", "percent") == (column["window"], column["unit"])
    assert 40 <= column["values"][0] < 40.4
    assert [None, None] == column["values"][1:]


def test_an_unknown_horizon_is_refused(live):
    answer = live.ask("/watcher?operator=FORECAST&horizon=7h")
    assert (400, "unknown horizon '7h'") == (answer.status, answer.error["message"])
    assert "1h, 6h, 24h" in answer.error["hint"]


@pytest.mark.parametrize("path", ["/watcher?horizon=1h", "/api/v1/columns?operator=AVG&horizon=6h"])
def test_a_horizon_without_the_operator_is_refused(live, path):
    answer = live.ask(path)
    assert (400, "horizon is only for operator=FORECAST") == (answer.status, answer.error["message"])


def test_metrics_have_the_default_horizon_of_nodes_with_a_bound(live):
    lines = [line for line in live.ask("/metrics").body.decode().splitlines() if "forecast_ratio{" in line]
    assert 2 == len(lines)
    assert lines[0].startswith('load_watcher_node_forecast_ratio{node="node-1",resource="CPU",horizon="6h"} 0.4')
    assert json.loads(lines[1].rpartition(" ")[2]) > 0.6
