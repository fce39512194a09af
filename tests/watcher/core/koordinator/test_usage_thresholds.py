"""Usage thresholds of nodes from their forecasts, and their effect on the plug-in LoadAwareScheduling."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.plugin_api.framework import create_plugin
from scorers.plugins.koordinator.load_aware_scheduling import LoadAwareScheduling
from tests.fakes.snapshots import snapshot_of
from tests.scorers.simulated_cluster import NOW, info, load, node, rows, table
from watcher.core.forecast.states import STATES, ForecastState
from watcher.core.koordinator.usage_thresholds import (
    ANNOTATION,
    NO_THRESHOLDS,
    ThresholdRange,
    UsageThresholds,
    node_thresholds,
    read_thresholds,
)
from watcher.model import Snapshot, SnapshotForecasts

CPU, MEMORY = "instance:node_cpu:ratio", "instance:node_memory_utilisation:ratio"
RANGES = {"cpu": ThresholdRange(30, 65), "memory": ThresholdRange(50, 95)}
PERCENTS = st.floats(0, 100, allow_nan=False)
SIZE = {"cpu": "10", "memory": "100Gi"}


def foreseen(
    usage: dict[str, tuple[float, float]],
    bounds: dict[str, tuple[float, float]],
    *,
    missing: ForecastState = ForecastState.SHORT_HISTORY,
    ages: dict[str, float] | None = None,
) -> Snapshot:
    """A snapshot with a constant CPU and memory load of each node, and the bounds of some of them; NaN: no bound."""
    samples = {name: {"CPU": [cpu] * 60, "Memory": [memory] * 60} for name, (cpu, memory) in usage.items()}
    snapshot = snapshot_of(samples, ages=ages)
    columns = {
        name: np.array([bounds.get(node, (np.nan, np.nan))[place] for node in snapshot.nodes])
        for place, name in enumerate((CPU, MEMORY))
    }
    codes = [STATES.index(ForecastState.BOUND), STATES.index(missing)]
    forecasts = SnapshotForecasts(
        "6h",
        0.95,
        {(name, "6h"): column for name, column in columns.items()},
        {(name, "6h"): np.full(len(column), np.nan) for name, column in columns.items()},
        {
            (name, "6h"): np.where(np.isnan(column), codes[1], codes[0]).astype(np.uint8)
            for name, column in columns.items()
        },
    )
    return replace(snapshot, forecasts=forecasts)


def thresholds(snapshot: Snapshot) -> dict[str, dict[str, int]]:
    return {name: each.usage_thresholds for name, each in node_thresholds(snapshot, RANGES).items()}


def test_a_threshold_is_high_in_the_valley_and_low_at_the_peak() -> None:
    usage = {"night": (20.0, 40.0), "peak": (55.0, 60.0), "above": (58.0, 60.0), "far": (5.0, 5.0)}
    bounds = {"night": (45.2, 60.0), "peak": (55.0, 60.0), "above": (55.0, 60.0), "far": (90.0, 90.0)}
    assert thresholds(foreseen(usage, bounds)) == {
        "night": {"cpu": 49, "memory": 65},  # 65 - 35 * 20 / 45.2, rounded down; 95 - 45 * 40 / 60
        "peak": {"cpu": 30, "memory": 50},
        "above": {"cpu": 30, "memory": 50},
        "far": {"cpu": 63, "memory": 92},
    }


@pytest.mark.parametrize("missing", [ForecastState.SHORT_HISTORY, ForecastState.NO_SAMPLES])
def test_a_node_without_a_bound_has_none_and_half_a_bound_sets_the_other_resource_to_its_highest(
    missing: ForecastState,
) -> None:
    snapshot = foreseen({"a": (20.0, 40.0), "b": (20.0, 40.0)}, {"b": (40.0, np.nan)}, missing=missing)
    assert thresholds(snapshot) == {"a": {}, "b": {"cpu": 47, "memory": 95}}


def test_nodes_of_unknown_usage_or_forecast_are_left_out() -> None:
    bounds = {"a": (40.0, 60.0), "b": (40.0, 60.0)}
    silent = foreseen({"a": (20.0, 40.0), "b": (20.0, 40.0)}, bounds, ages={"a": 200.0})
    assert list(thresholds(silent)) == ["b"]
    assert thresholds(foreseen({"a": (20.0, 40.0)}, {}, missing=ForecastState.PENDING)) == {}
    assert thresholds(replace(silent, forecasts=None)) == {}


@given(bound=PERCENTS, one=PERCENTS, other=PERCENTS)
def test_thresholds_stay_within_their_range_and_never_rise_with_the_usage(
    bound: float, one: float, other: float
) -> None:
    """A node in the valley of its load takes more pods than at its peak (the proposal of Koordinator)."""
    valley, peak = sorted((one, other))
    found = thresholds(foreseen({"a": (valley, valley), "b": (peak, peak)}, dict.fromkeys("ab", (bound, bound))))
    for resource, within in RANGES.items():
        assert within.lowest <= found["b"][resource] <= found["a"][resource] <= within.highest
        if 0 < bound <= peak:
            assert found["b"][resource] == within.lowest
        if not valley:
            assert found["a"][resource] == within.highest


@given(usage=PERCENTS, bound=PERCENTS, request=st.integers(1, 50))
def test_the_plugin_of_this_project_uses_the_annotation(usage: float, bound: float, request: int) -> None:
    """It rejects exactly the nodes above the annotation's thresholds, apart from the rounding of its percentages."""
    wanted = node_thresholds(foreseen({"a": (usage, 10.0)}, {"a": (bound, 10.0)}), RANGES)["a"]
    loads = load({"a": {("CPU", "AVG"): usage, ("Memory", "AVG"): 10.0, ("CPU", "FORECAST"): bound}}, horizon="6h")
    pod = info("new", containers=[{"requests": {"cpu": f"{request * 100}m"}, "limits": {"cpu": f"{request * 100}m"}}])

    def passes(annotations: dict[str, str], **arguments: Any) -> bool:
        of = table([node("a", SIZE, annotations=annotations)], loads=loads)
        exact = {"estimatedScalingFactors": {"cpu": 100}, "usageThresholds": {"cpu": 100}}
        plugin, _ = create_plugin(LoadAwareScheduling, exact | arguments, of)
        return bool(plugin.filter(pod, of, rows(of), now=NOW).passed[0])

    accepted = passes({ANNOTATION: wanted.text()})
    threshold = wanted.usage_thresholds["cpu"]
    percent = usage + request
    if abs(percent - threshold) > 1.0:
        assert accepted == (percent < threshold)


def test_the_text_of_an_annotation_is_read_back_and_foreign_ones_are_known() -> None:
    written = UsageThresholds({"cpu": 39, "memory": 75})
    assert written.text() == '{"usageThresholds":{"cpu":39,"memory":75}}'
    assert read_thresholds(written.text()) == written
    assert read_thresholds("{}") == NO_THRESHOLDS
    for foreign in ("", "no JSON", '{"usageThresholds":{"cpu":39},"prodUsageThresholds":{"cpu":55}}'):
        assert read_thresholds(foreign) is None
