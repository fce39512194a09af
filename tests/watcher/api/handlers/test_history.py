"""Stored windows as series: the queries of the store, and the part of the results in the response."""

import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.service import FakeService, Live, stored
from watcher.api.handlers.history import downsample, history_body
from watcher.model import METRICS, Operator
from watcher.store.errors import StoreError

NOW = 1_700_000_001.0  # of FakeService
PATH = "/api/v1/history"


def question(query: str) -> dict:
    """The query of the store for this request."""
    service = FakeService()
    with Live(service) as live:
        answer = live.ask(f"{PATH}?{query}")
    assert 200 == answer.status, answer.body
    (asked,) = service.asked
    return asked


def refusal(query: str) -> dict:
    """The error of the API."""
    service = FakeService()
    with Live(service) as live:
        answer = live.ask(f"{PATH}?{query}")
    assert (400, "bad_request") == (answer.status, answer.error["code"])
    assert [] == service.asked
    return answer.error


def test_by_default_all_series_of_the_last_hour_are_returned():
    """With the window of 15 minutes."""
    assert {
        "host": "node-1",
        "metrics": None,
        "operators": None,
        "window": "15m",
        "start": int(NOW) - 3600,
        "end": int(NOW),
    } == question("host=node-1")


def test_the_selection_is_passed_to_the_store():
    """A type selects all its metrics."""
    asked = question("host=node-1&type=Memory&type=CPU&operator=STD&window=5m&from=1699990000&to=1699993600")

    assert {"instance:node_cpu:ratio", "instance:node_memory_utilisation:ratio"} == set(asked["metrics"])
    assert (Operator.STD,) == asked["operators"]
    assert ("5m", 1699990000, 1699993600) == (asked["window"], asked["start"], asked["end"])
    assert {m.name for m in METRICS if m.type == "Energy"} == set(question("host=node-1&type=Energy")["metrics"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1699990000", 1_699_990_000),
        ("1699990000.9", 1_699_990_000),
        ("1.69999e9", 1_699_990_000),
        ("-1h", int(NOW - 3600)),
        ("-90m", int(NOW - 5400)),
        ("-1.5h", int(NOW - 5400)),
        ("-30", int(NOW - 30)),
        ("-500ms", int(NOW - 0.5)),
        ("-1d", int(NOW - 86400)),
        ("2023-11-14T21:00:00Z", 1_699_995_600),
        ("2023-11-14T22:00:00%2B01:00", 1_699_995_600),
        ("2023-11-14T21:00:00", 1_699_995_600),  # without a zone it is UTC
        ("2023-11-14", 1_699_920_000),
    ],
)
def test_times_have_three_formats(text, expected):
    """Unix seconds, RFC 3339, or a duration before now."""
    assert expected == question(f"host=node-1&from={text}&step=1h")["start"]


def test_now_is_a_valid_time():
    """Grafana sends it."""
    assert int(NOW) == question("host=node-1&to=now")["end"]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("", "parameter 'host' is missing"),
        ("host=", "parameter 'host' is missing"),
        ("host=a&host=b", "given 2 times"),
        ("host=a&from=yesterday", "from='yesterday' is not a time"),
        ("host=a&from=nan", "is not a time"),
        ("host=a&from=inf", "is not a time"),
        ("host=a&from=1e300", "is not a time"),
        ("host=a&from=-", "is not a time"),
        ("host=a&from=-1y", "is not a time"),
        ("host=a&to=-2000000000", "is not a time"),
        ("host=a&from=2023-13-01", "is not a time"),
        ("host=a&from=", "is not a time"),
        ("host=a&from=-1h&to=-2h", "from is not before to"),
        ("host=a&from=-1h&to=-1h", "from is not before to"),
        ("host=a&step=0", "step='0' is not a step"),
        ("host=a&step=-60", "is not a step"),
        ("host=a&step=0.1", "is not a step"),
        ("host=a&step=1y", "is not a step"),
        ("host=a&shape=columns", "unknown shape 'columns'"),
        ("host=a&window=7m", "unknown window '7m'"),
        ("host=a&start=1", "unknown parameter 'start'"),
    ],
)
def test_an_invalid_request_is_an_error_without_a_query(query, message):
    """The error names the invalid part."""
    assert message in refusal(query)["message"]


def test_too_many_points_are_an_error_with_a_sufficient_step():
    """The limit is that of Prometheus."""
    error = refusal("host=a&from=-30d&step=60")
    assert "more than 11000" in error["message"]
    step = re.search(r"step=(\d+)", error["hint"])
    assert step is not None

    question(f"host=node-1&from=-30d&step={step[1]}")
    assert f"step={step[1]}" in refusal(f"host=a&from=-30d&step={int(step[1]) - 1}")["hint"]


def test_series_and_rows():
    """The whole response in both formats."""
    service = FakeService(series=[stored({1_699_999_800: 12.3, 1_699_999_860: float("nan"), 1_699_999_920: 1e-5})])
    with Live(service) as live:
        series = live.ask(f"{PATH}?host=node-1&from=-10m")
        rows = live.ask(f"{PATH}?host=node-1&from=-10m&shape=rows")
    common = {"host": "node-1", "name": "instance:node_cpu:ratio", "type": "CPU", "operator": "AVG", "window": "15m"}

    assert series.json() == {
        "start": 1_699_999_401,
        "end": 1_700_000_001,
        "step": 60,
        "series": [{**common, "unit": "percent", "points": [[1_699_999_800, 12.3], [1_699_999_920, 1e-5]]}],
        "rows": [],
    }
    assert b"0.00001" in series.body
    assert rows.json()["series"] == []
    assert rows.json()["rows"] == [
        {**common, "time": 1_699_999_800, "value": 12.3},
        {**common, "time": 1_699_999_920, "value": 1e-5},
    ]


def test_metrics_of_another_version_are_left_out():
    """A newer version may have written the database."""
    body = history_body(
        [stored({60: 1.0}, metric="from the future")], host="a", start=0, end=99, step=60, as_rows=False
    )

    assert [] == json.loads(body)["series"]


def test_each_step_has_its_last_value_at_the_real_time():
    """By hand: steps of a minute, aligned to the clock; the third one has no value."""
    series = stored({0: 1.0, 30: 2.0, 59: 3.0, 60: 4.0, 100: float("nan"), 180: 5.0, 200: 6.0})
    time, value = downsample(series, 60)

    assert [59, 60, 200] == time.tolist()
    assert [3.0, 4.0, 6.0] == value.tolist()


@given(
    st.dictionaries(st.integers(0, 10_000), st.floats(width=32, allow_nan=True, allow_infinity=True), max_size=40),
    st.integers(1, 3000),
)
def test_thinning_keeps_one_real_point_per_step(points, step):
    """Of the finite values of each step, the last one."""
    series = stored(dict(sorted(points.items())))
    time, value = downsample(series, step)
    steps = (time // step).tolist()

    assert len(set(steps)) == len(steps)
    assert sorted(steps) == steps
    assert np.isfinite(value).all()
    for at, number in zip(time.tolist(), value.tolist(), strict=True):
        assert number == pytest.approx(points[at], rel=1e-6, abs=1e-10)
        assert not any(
            at < other < (at // step + 1) * step and np.isfinite(points[other]) and abs(points[other]) < 1e14
            for other in points
        )


def test_a_failed_query_is_a_503_with_the_reason():
    service = FakeService(history_error=StoreError("the database is locked", hint="stop the other service"))
    with Live(service) as live:
        answer = live.ask(f"{PATH}?host=node-1")

    assert (503, "history_unavailable") == (answer.status, answer.error["code"])
    assert "the database is locked" == answer.error["message"]
    assert "stop the other service" == answer.error["hint"]


def test_an_unknown_node_is_an_error():
    """Neither in the store nor in the last tick. A known node without stored samples has an empty history, a removed
    one its stored history."""
    with Live() as live:
        assert (404, "unknown_host") == (live.ask(f"{PATH}?host=x").status, live.ask(f"{PATH}?host=x").error["code"])
        assert [] == live.ask(f"{PATH}?host=node-1").json()["series"]
    with Live(FakeService(series=[stored({int(NOW): 1.0})], published=None)) as live:
        assert 1 == len(live.ask(f"{PATH}?host=gone").json()["series"])
