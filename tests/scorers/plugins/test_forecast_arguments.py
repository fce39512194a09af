"""Plug-ins with `use: forecast`: the load of a node is the higher one of the window's and the bound of the forecast."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.cluster.table import ClusterTable
from scorers.plugin_api.arguments import ArgumentsError
from scorers.plugin_api.framework import Scores, Verdicts, create_plugin
from scorers.profiles.registry import factory_of
from tests.scorers.simulated_cluster import NOW, info, load, node, table
from watcher.client import Columns

POD = info("new", containers=[{"requests": {"cpu": "400m"}, "limits": {"cpu": "400m"}}])
SIZE = {"cpu": "4", "memory": "8Gi"}
TEXT = "at most 60 % within 6 h (level 95 %; coverage 94.6 %)"
NODES = ("a", "b", "c")
LOADS: dict[str, dict[tuple[str, str], float]] = {
    # at 20 % now, and at most 60 % within six hours
    "a": {("CPU", "AVG"): 20.0, ("CPU", "STD"): 10.0, ("CPU", "FORECAST"): 60.0, ("Memory", "AVG"): 10.0},
    # above its bound: the window counts
    "b": {("CPU", "AVG"): 30.0, ("CPU", "STD"): 10.0, ("CPU", "FORECAST"): 25.0, ("Memory", "AVG"): 10.0},
    # without a bound
    "c": {("CPU", "AVG"): 20.0, ("CPU", "STD"): 10.0, ("Memory", "AVG"): 10.0},
}
AHEAD = {"use": "forecast"}
THRESHOLDS = {"usageThresholds": {"cpu": 65}}


def cluster(loads: Columns) -> ClusterTable:
    return table([node(name, SIZE) for name in loads.nodes], loads=loads)


def made(name: str, arguments: dict[str, Any], of: ClusterTable) -> Any:
    return create_plugin(factory_of(name), arguments, of)[0]


def scored(name: str, arguments: dict[str, Any], loads: Columns) -> Scores:
    of = cluster(loads)
    scores: Scores = made(name, arguments, of).score(POD, of, rows_of(of), now=NOW)
    return scores


def filtered(name: str, arguments: dict[str, Any], loads: Columns) -> Verdicts:
    of = cluster(loads)
    verdicts: Verdicts = made(name, arguments, of).filter(POD, of, rows_of(of), now=NOW)
    return verdicts


def rows_of(of: ClusterTable) -> Any:
    return np.array([of.row[name] for name in sorted(of.row)], dtype=np.int64)


LOAD = load(LOADS, horizon="6h")


def test_scores_of_load_aware_scheduling_by_hand() -> None:
    """cpu: 4000 - 800 - 340 of 4000, 71.5; by the bound 4000 - 2400 - 340 of 4000, 31.5."""
    name, arguments = "LoadAwareScheduling", {"resourceWeights": {"cpu": 1}}
    np.testing.assert_array_equal(scored(name, arguments, LOAD).values, [71, 61, 71])
    np.testing.assert_array_equal(scored(name, arguments | AHEAD, LOAD).values, [31, 61, 71])


@pytest.mark.parametrize("name", ["HighLoadFilter", "LoadAwareScheduling"])
def test_filters_compare_their_thresholds_with_the_bound(name: str) -> None:
    """With the pod, node a has at most 70 % (HighLoadFilter) or 69 % (an estimate of 340 of 400 millicores)."""
    assert filtered(name, THRESHOLDS, LOAD).passed.tolist() == [True, True, True]
    verdicts = filtered(name, THRESHOLDS | AHEAD, LOAD)
    assert verdicts.passed.tolist() == [False, True, True]
    assert TEXT in verdicts.details(0)


@pytest.mark.parametrize("name", ["HighLoadFilter", "LoadAwareScheduling"])
def test_the_watcher_is_asked_for_forecasts_only_if_they_are_used(name: str) -> None:
    for arguments, horizons in ((THRESHOLDS, ()), (THRESHOLDS | AHEAD, ("6h",)), (AHEAD | {"horizon": "1h"}, ("1h",))):
        of = cluster(LOAD)
        made(name, arguments, of)
        assert of.needs.horizons == horizons


def test_percentiles_of_load_aware_scheduling_are_raised_to_the_bound() -> None:
    aggregated = {"usageThresholds": {"cpu": 65}, "usageAggregationType": "p95", "scoreAggregationType": "p95"}
    arguments = THRESHOLDS | {"aggregated": aggregated}
    assert filtered("LoadAwareScheduling", arguments, LOAD).passed.tolist() == [True, True, True]
    assert filtered("LoadAwareScheduling", arguments | AHEAD, LOAD).passed.tolist() == [False, True, True]


def test_an_explanation_states_the_bound_or_the_reason() -> None:
    name = "LoadAwareScheduling"
    scores = scored(name, AHEAD, LOAD)
    assert TEXT in scores.reason(0)
    assert "at most 25 % within 6 h" in scores.reason(1)
    assert "none (less than a day of history), so the window is used" in scores.reason(2)
    assert [scores.more_steps(i)["cpu forecast %"] for i in (0, 1)] == [60.0, 25.0]
    assert scores.inputs["horizon"] == "6h"
    assert "forecasts" not in scores.inputs
    assert "forecast" not in scored(name, {}, LOAD).reason(0)


@pytest.mark.parametrize(
    ("loads", "why"),
    [
        (load(LOADS), "the watcher serves no forecasts"),
        (load(LOADS, horizon="1h"), "the watcher serves no forecasts over 6 h"),
        (load({"c": LOADS["c"]}, horizon="6h"), "less than a day of history"),
        (load({"c": LOADS["c"]}, horizon="6h", missing="pending"), "the history is not evaluated yet"),
    ],
)
@pytest.mark.parametrize("name", ["LoadAwareScheduling", "HighLoadFilter"])
def test_a_cluster_without_bounds_uses_windows_and_says_why(name: str, loads: Columns, why: str) -> None:
    of = cluster(loads)
    plugin, by_window = made(name, AHEAD, of), made(name, {}, of)
    assert plugin.missing_forecasts(of) == why
    assert by_window.missing_forecasts(of) == ""
    if name == "HighLoadFilter":
        verdicts = plugin.filter(POD, of, rows_of(of), now=NOW)
        inputs, text = verdicts.inputs, verdicts.details(0)
    else:
        scores = plugin.score(POD, of, rows_of(of), now=NOW)
        inputs, text = scores.inputs, scores.reason(0)
        np.testing.assert_array_equal(scores.values, by_window.score(POD, of, rows_of(of), now=NOW).values)
    assert inputs["forecasts"] == f"none: {why}"
    assert f"none ({why}), so the window is used" in text


def test_a_node_without_load_stays_unknown_although_it_has_a_bound() -> None:
    """A silent node keeps the rule of nodes without metrics."""
    loads = load({"a": {("CPU", "FORECAST"): 99.0}, "b": LOADS["b"], "c": LOADS["c"]}, horizon="6h")
    assert "cpu unknown" in filtered("HighLoadFilter", THRESHOLDS | AHEAD, loads).details(0)


# --- rules -----------------------------------------------------------------------------------------------------------

PERCENT = st.floats(0, 100)
AWARE = "LoadAwareScheduling"


@st.composite
def fleets(draw: st.DrawFn) -> dict[str, dict[tuple[str, str], float]]:
    found = {}
    for name in NODES:
        found[name] = {(kind, each): draw(PERCENT) for kind in ("CPU", "Memory") for each in ("AVG", "STD")}
        found[name] |= {(kind, "FORECAST"): draw(PERCENT) for kind in ("CPU", "Memory") if draw(st.booleans())}
    return found


@given(fleets())
def test_the_load_is_never_below_that_of_windows(fleet: dict[str, dict[tuple[str, str], float]]) -> None:
    """Scores, which fall with the load, are not higher; nodes that windows reject are rejected."""
    loads = load(fleet, horizon="6h")
    assert (scored(AWARE, AHEAD, loads).values <= scored(AWARE, {}, loads).values).all()
    for name in ("HighLoadFilter", "LoadAwareScheduling"):
        passes_window = filtered(name, THRESHOLDS, loads).passed
        assert not (filtered(name, THRESHOLDS | AHEAD, loads).passed & ~passes_window).any()


@given(fleets(), st.floats(0, 50))
def test_a_higher_bound_never_makes_a_node_better(fleet: dict[str, dict[tuple[str, str], float]], more: float) -> None:
    raised = {
        name: {key: min(100.0, value + more) if key[1] == "FORECAST" else value for key, value in values.items()}
        for name, values in fleet.items()
    }
    before, after = load(fleet, horizon="6h"), load(raised, horizon="6h")
    assert (scored(AWARE, AHEAD, after).values <= scored(AWARE, AHEAD, before).values).all()
    for name in ("HighLoadFilter", "LoadAwareScheduling"):
        passed = filtered(name, THRESHOLDS | AHEAD, after).passed
        assert not (passed & ~filtered(name, THRESHOLDS | AHEAD, before).passed).any()


# --- arguments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "arguments", "problem"),
    [
        ("HighLoadFilter", {"use": "oracle"}, "must be window or forecast"),
        ("HighLoadFilter", {"use": "forecast", "horizon": "2h"}, "must be 1h, 6h or 24h"),
        ("HighLoadFilter", {"horizon": "1h"}, 'set use to "forecast"'),
        ("TargetLoadPacking", {"use": "forecast"}, "use: was removed in this version; remove it: placement by"),
        ("LoadAwareScheduling", {"use": "forecast", "nodeMetricSource": "cluster"}, "set nodeMetricSource to"),
        ("LoadVariationRiskBalancing", {"horizon": "6h"}, "horizon: was removed in this version"),
        ("LowRiskOverCommitment", {"use": "forecast"}, "unknown argument"),
    ],
)
def test_arguments_that_cannot_be_served(name: str, arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(ArgumentsError) as error:
        made(name, arguments, ClusterTable())
    assert any(problem in each for each in error.value.problems), error.value.problems
