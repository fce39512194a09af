"""The bounds of a fleet over time, and the document that states them."""

import msgspec
import numpy as np
import pytest

from watcher.core.forecast.document import ForecastsDocument, NodeForecast, forecasts_body
from watcher.core.forecast.fleet import LATE_S, METRICS, FleetForecast
from watcher.core.forecast.maxima import HOUR_SLOTS, SLOT_S
from watcher.core.forecast.settings import ForecastSettings
from watcher.core.forecast.states import ForecastState

CPU, MEMORY = METRICS
HOUR = 500_000  # since the Unix epoch
CONFIG = ForecastSettings(history=7 * 86400, horizons=(1, 6), horizon=6)


def fill(fleet: FleetForecast, node: str, *, hours: range, percent: float, metric: str = CPU) -> None:
    """Add one sample per slot of these hours."""
    slots = np.concatenate([hour * HOUR_SLOTS + np.arange(HOUR_SLOTS) for hour in hours])
    node_index = np.zeros(len(slots), dtype=np.int64)
    fleet.maxima.add(metric, (node,), node_index, slots * float(SLOT_S), np.full(len(slots), percent))


def compute(fleet: FleetForecast, hour: int) -> float:
    """Compute all bounds of an hour; return the time."""
    now = hour * 3600 + LATE_S
    for chunk in fleet.due_chunks(now):
        fleet.advance(chunk, now)
    return now


def forecast(fleet: FleetForecast, now: float, node: str = "a", *, kind: str = "CPU", horizon: int = 6) -> NodeForecast:
    table = fleet.table(now)
    body = forecasts_body(table, (node,), types=None, horizons=(horizon,))
    document = msgspec.json.decode(body, type=ForecastsDocument)
    return next(each for each in document.forecasts if each.type == kind)


def test_a_constant_load_has_its_own_level_as_the_bound():
    fleet = FleetForecast(CONFIG)
    fill(fleet, "a", hours=range(HOUR - 168, HOUR), percent=40.0)
    found = forecast(fleet, compute(fleet, HOUR))
    assert ForecastState.BOUND == found.state
    assert found.bound is not None
    assert 40 <= found.bound < 40.4
    assert (1.0, 0.0) == (found.coverage, found.severity)
    assert HOUR * 3600 == found.issued
    assert "at most 41 % (level 95 %; coverage in the last week 100.0 %, severity 0.0 %)" == found.text
    assert 168 * 3600 == found.history_s
    assert 168 - 6 - 72 + 1 == found.judged  # those from at least three days of history


def test_two_hours_of_history_give_no_bound_and_say_why():
    fleet = FleetForecast(CONFIG)
    fill(fleet, "a", hours=range(HOUR - 2, HOUR), percent=40.0)
    found = forecast(fleet, compute(fleet, HOUR))
    assert ForecastState.SHORT_HISTORY == found.state
    assert found.bound is None
    assert found.issued is None
    assert "no bound: less than a day of history (2.0 h with samples)" == found.text


@pytest.mark.parametrize(
    ("hours", "horizon", "text"),
    [
        (36, 6, "at most 41 % (level 95 %; from 1.5 days of history; no bound has been judged)"),
        (36, 24, "no bound: less than 3 days of history (36.0 h with samples)"),
        (96, 6, "at most 41 % (level 95 %; coverage of the last 22 bounds 100.0 %, severity 0.0 %)"),
        (96, 24, "at most 41 % (level 95 %; coverage of the last 13 bounds 100.0 %, severity 0.0 %)"),
    ],
)
def test_a_bound_from_a_short_history_says_how_long_it_is(hours: int, horizon: int, text: str):
    fleet = FleetForecast(ForecastSettings())
    fill(fleet, "a", hours=range(HOUR - hours, HOUR), percent=40.0)
    found = forecast(fleet, compute(fleet, HOUR), horizon=horizon)
    assert text == found.text
    assert hours * 3600 == found.history_s


def test_a_kept_history_that_is_too_short_for_a_horizon_is_named():
    fleet = FleetForecast(ForecastSettings(history=86400))
    fill(fleet, "a", hours=range(HOUR - 48, HOUR), percent=40.0)
    now = compute(fleet, HOUR)
    text = "no bound: less than 3 days of history (24.0 h with samples; forecast.history keeps a day)"
    assert text == forecast(fleet, now, horizon=24).text
    assert "from 1.0 days of history" in forecast(fleet, now).text
    assert "no bound: no samples in the last day" == forecast(fleet, now, kind="Memory").text


def test_the_record_of_a_short_kept_history_counts_its_bounds():
    fleet = FleetForecast(ForecastSettings(history=86400))
    for hour in range(HOUR, HOUR + 48):
        fill(fleet, "a", hours=range(hour - 24, hour), percent=40.0)
        now = compute(fleet, hour)
    assert "coverage of the last 19 bounds 100.0 %" in forecast(fleet, now).text


def test_a_node_that_is_off_most_of_the_day_has_gaps():
    fleet = FleetForecast(ForecastSettings())
    for hour in range(HOUR - 168, HOUR):
        if hour % 24 < 10:
            fill(fleet, "a", hours=range(hour, hour + 1), percent=40.0)
    now = compute(fleet, HOUR)
    found = forecast(fleet, now, horizon=24)
    assert ForecastState.GAPS == found.state
    reason = "too few spans of 24 h with samples in half of their slots"
    assert f"no bound: {reason} (70.0 h with samples)" == found.text
    assert ForecastState.BOUND == forecast(fleet, now).state


def test_bounds_that_are_not_computed_again_expire():
    fleet = FleetForecast(ForecastSettings())
    fill(fleet, "a", hours=range(HOUR - 168, HOUR), percent=40.0)
    now = compute(fleet, HOUR)
    assert ForecastState.BOUND == forecast(fleet, now + 7 * 3600 - 1).state
    found = forecast(fleet, now + 7 * 3600)
    assert ForecastState.EXPIRED == found.state
    assert "no bound: the newest bound is older than 6 h" == found.text
    assert ForecastState.BOUND == forecast(fleet, now + 7 * 3600, horizon=24).state


def test_a_gap_of_a_day_leaves_the_bound_of_the_other_days():
    fleet = FleetForecast(CONFIG)
    fill(fleet, "a", hours=range(HOUR - 168, HOUR - 72), percent=40.0)
    fill(fleet, "a", hours=range(HOUR - 48, HOUR), percent=40.0)
    found = forecast(fleet, compute(fleet, HOUR))
    assert ForecastState.BOUND == found.state
    assert 144 * 3600 == found.history_s


def test_unknown_nodes_and_metrics_without_samples_have_a_reason():
    fleet = FleetForecast(CONFIG)
    fill(fleet, "a", hours=range(HOUR - 48, HOUR), percent=40.0)
    now = compute(fleet, HOUR)
    for node, kind in (("a", "Memory"), ("unknown", "CPU")):
        found = forecast(fleet, now, node, kind=kind)
        assert ForecastState.NO_SAMPLES == found.state
        assert "no bound: no samples in the last 7 days" == found.text


def test_a_history_that_is_not_evaluated_yet_is_pending():
    fleet = FleetForecast(CONFIG)
    fill(fleet, "a", hours=range(HOUR - 48, HOUR), percent=40.0)
    assert ForecastState.PENDING == forecast(fleet, HOUR * 3600.0).state


def test_the_bound_is_never_below_the_load_since_it_was_issued():
    fleet = FleetForecast(CONFIG)
    fill(fleet, "a", hours=range(HOUR - 48, HOUR), percent=40.0)
    now = compute(fleet, HOUR)
    fill(fleet, "a", hours=range(HOUR, HOUR + 1), percent=90.0)
    found = forecast(fleet, now)
    assert found.bound is not None
    assert 90 <= found.bound < 90.4


def test_a_node_that_is_idle_has_a_bound_of_zero():
    fleet = FleetForecast(CONFIG)
    fill(fleet, "a", hours=range(HOUR - 168, HOUR), percent=0.0)
    found = forecast(fleet, compute(fleet, HOUR))
    assert (ForecastState.BOUND, 0.0, HOUR * 3600) == (found.state, found.bound, found.issued)


def test_a_new_node_that_is_idle_has_samples():
    fleet = FleetForecast(CONFIG)
    fill(fleet, "a", hours=range(HOUR - 48, HOUR), percent=40.0)
    now = compute(fleet, HOUR)
    fill(fleet, "b", hours=range(HOUR, HOUR + 1), percent=0.0)
    assert ForecastState.SHORT_HISTORY == forecast(fleet, now, "b").state


def test_bounds_are_computed_once_an_hour_after_late_samples():
    fleet = FleetForecast(CONFIG)
    fill(fleet, "a", hours=range(HOUR - 48, HOUR), percent=40.0)
    now = compute(fleet, HOUR)
    assert [] == fleet.due_chunks(now + 3599)
    assert [0] == fleet.due_chunks(now + 3600)
    assert not fleet.is_new(0)


def test_a_clock_that_steps_back_computes_the_bounds_again():
    fleet = FleetForecast(CONFIG)
    fill(fleet, "a", hours=range(HOUR - 48, HOUR), percent=40.0)
    compute(fleet, HOUR)
    earlier = (HOUR - 6) * 3600 + LATE_S
    fleet.step_back(earlier)
    assert fleet.is_new(0)
    found = forecast(fleet, compute(fleet, HOUR - 6))
    assert ForecastState.BOUND == found.state
    assert (HOUR - 6) * 3600 == found.issued


def test_another_unit_or_source_removes_the_bounds_of_its_metric():
    fleet = FleetForecast(CONFIG)
    for metric in METRICS:
        fill(fleet, "a", hours=range(HOUR - 48, HOUR), percent=40.0, metric=metric)
    now = compute(fleet, HOUR)
    fleet.drop(CPU)
    assert "no bound: no samples in the last 7 days" == forecast(fleet, now).text
    assert ForecastState.BOUND == forecast(fleet, now, kind="Memory").state
    fill(fleet, "a", hours=range(HOUR, HOUR + 1), percent=4.0)
    begun = forecast(fleet, now)
    assert ForecastState.SHORT_HISTORY == begun.state
    assert "no bound: less than a day of history (the first hour is not complete)" == begun.text
    after = forecast(fleet, compute(fleet, HOUR + 1))
    assert "no bound: less than a day of history (1.0 h with samples)" == after.text


def test_a_renamed_node_keeps_its_bound_under_the_new_name():
    fleet = FleetForecast(CONFIG)
    fill(fleet, "10.0.0.1:9100", hours=range(HOUR - 48, HOUR), percent=40.0)
    compute(fleet, HOUR)
    fleet.rename(CPU, {"10.0.0.1:9100": "a"})
    assert ForecastState.BOUND == forecast(fleet, compute(fleet, HOUR)).state


def test_a_node_in_the_column_of_a_removed_node_has_none_of_its_record():
    fleet = FleetForecast(CONFIG)
    fill(fleet, "a", hours=range(HOUR - 48, HOUR), percent=40.0)
    fill(fleet, "b", hours=range(HOUR - 48, HOUR), percent=40.0)
    compute(fleet, HOUR)
    fleet.rename(CPU, {"a": None})
    now = compute(fleet, HOUR)
    fleet.drop_empty_nodes()
    fill(fleet, "c", hours=range(HOUR, HOUR + 1), percent=10.0)
    found = forecast(fleet, now, "c")
    assert (None, 0, None) == (found.bound, found.judged, found.coverage)
    assert ForecastState.BOUND == forecast(fleet, now, "b").state


def test_tables_differ_only_if_their_content_does():
    fleet = FleetForecast(CONFIG)
    fill(fleet, "a", hours=range(HOUR - 48, HOUR), percent=40.0)
    now = compute(fleet, HOUR)
    assert fleet.table(now).equals(fleet.table(now + 60))
    before = fleet.table(now)
    fill(fleet, "a", hours=range(HOUR, HOUR + 1), percent=90.0)
    assert not fleet.table(now).equals(before)


def test_an_empty_fleet_has_an_empty_document():
    table = FleetForecast(CONFIG).table(HOUR * 3600.0)
    document = msgspec.json.decode(forecasts_body(table, (), types=None, horizons=(6,)), type=ForecastsDocument)
    assert [] == document.forecasts
    assert ForecastState.NO_SAMPLES == document.state


@pytest.mark.slow
def test_many_nodes_are_computed_in_steps_of_one_chunk():
    fleet = FleetForecast(CONFIG)
    names = tuple(f"n{i}" for i in range(5_000))
    for slot in range((HOUR - 25) * HOUR_SLOTS, HOUR * HOUR_SLOTS, 2):
        time = np.full(len(names), float(slot * SLOT_S))
        fleet.maxima.add(CPU, names, np.arange(len(names)), time, np.full(len(names), 30.0))
    now = compute(fleet, HOUR)
    assert 20 == len(fleet.maxima.chunks)
    assert ForecastState.BOUND == forecast(fleet, now, "n4999").state
