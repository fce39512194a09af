"""Defaults and limits that docs/ states, or that a reader of the API relies on for fields that are left out."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import pytest

from tests.defaults import defaults
from watcher.core import messages
from watcher.core.forecast import bound, maxima
from watcher.core.forecast import fleet as forecast_fleet
from watcher.core.forecast.settings import ForecastSettings
from watcher.core.koordinator import collect_policy, report, written_objects
from watcher.core.koordinator.collect_policy import CollectPolicies, CollectPolicy
from watcher.core.kubernetes import pod_resources
from watcher.core.kubernetes.objects import AccessReviewStatus, NodeSpec
from watcher.core.naming import evidence, machines
from watcher.core.naming.evidence import KnownNode
from watcher.core.pods import coverage
from watcher.core.pods import table as pod_table
from watcher.core.pods.observed import SnapshotPod
from watcher.core.problems import fleet_problems, hot_nodes
from watcher.core.publishing import documents, labels
from watcher.core.publishing.wire import ColumnsDocument, ForecastsOffer, NodeMetricsEntry, PodsDocument, PodsOffer
from watcher.core.review import clocks, findings, fleet, outage, samples
from watcher.core.review.settings import ReviewSettings
from watcher.core.windows import backfill, fleet_trend, hot_loads, resolution, silent_nodes, slot_widths, statistics
from watcher.core.windows.settings import RefreshSettings
from watcher.core.windows.silent_nodes import SilentDocument

DAY = 86_400


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (RefreshSettings, {"interval": 60.0, "resolution": 0, "max_staleness": 300.0}),
        (ForecastSettings, {"enabled": True, "history": 7 * DAY, "level": 0.95, "horizon": 6}),
        (
            ReviewSettings,
            {
                "carry_slots": 2, "outage_fraction": 0.2, "forget_after": 1800.0, "max_staleness_s": 300.0,
                "interval_s": 60.0, "max_ahead_s": 30.0, "max_skew_s": 10.0, "outage_nodes": 1, "jump_points": 20.0,
                "jump_spreads": 6.0,
            },
        ),
        (CollectPolicy, {"report_interval_s": 60, "aggregate_duration_s": 300}),
        (CollectPolicies, {"shortest_interval_s": 30}),
        (NodeSpec, {"unschedulable": False}),
        (AccessReviewStatus, {"allowed": False}),
        (KnownNode, {"created": -math.inf, "ready": False}),
        (SnapshotPod, {"cores": 0.0, "bytes": 0, "priority": 0}),
        (NodeMetricsEntry, {"sampled": 0}),
        (ColumnsDocument, {"source_ok": True}),
        (PodsDocument, {"valid_s": 300.0}),
        (PodsOffer, {"minutes": False, "known": False}),
        (ForecastsOffer, {"level": 0.0}),
        (SilentDocument, {"served": 0, "source_ok": True}),
    ],
    ids=lambda each: each.__name__ if isinstance(each, type) else "",
)  # fmt: skip
def test_defaults_of_fields(kind: type[Any], values: dict[str, Any]) -> None:
    assert values == defaults(kind)


@pytest.mark.parametrize(
    ("module", "values"),
    [
        (messages, {"SHOWN_CHARACTERS": 256, "SHORT_SECRET": 6, "SHORTEST_WORD": 3}),
        (report, {"WARM_SHARE": 0.5}),
        (collect_policy, {"SHORTEST_INTERVAL_S": 30, "SHORTEST_PERIOD_S": 60}),
        (written_objects, {"REPORT_INTERVALS": 2}),
        (pod_resources, {"MAX_AMOUNT": 2**53}),
        (samples, {"MAX_NAME": 253, "TOO_LARGE": 1e15, "END_OF_TIME": 1e11, "SLACK_POINTS": 5.0}),
        (
            findings,
            {
                "NAMED_AT_MOST": 50, "JUMP_MIN_SAMPLES": 8, "JUMP_FACTOR": 4.0, "SILENT_CADENCES": 3.0,
                "SILENT_AT_LEAST_S": 90.0, "NEWEST_AHEAD_S": 5.0,
            },
        ),
        (outage, {"LATE_CADENCES": 2.0, "SAME_EVENT_INTERVALS": 1.5}),
        (clocks, {"AHEAD_S": 30.0, "NAMED_S": 10.0}),
        (
            fleet,
            {"NODES_AT_LEAST": 2, "SATURATED": 100.0, "COARSE_DIGITS": 2, "COARSE_NODES": 3, "REPEATS_AT_MOST": 0.02},
        ),
        (documents, {"SIGNIFICANT_DIGITS": 15, "MAX_DECIMALS": 10, "SAMPLED_DECIMALS": 3, "COVERAGE_DECIMALS": 4}),
        (labels, {"MOST_VALUES": 200, "MOST_LABELS": 60}),
        (machines, {"SKEW_S": 120.0, "NEAR_S": 30.0, "YOUNG_S": 86_400.0}),
        (evidence, {"CANDIDATES": 3, "NEAR": 0.6, "NEARBY_NAMES": 8}),
        (maxima, {"SLOT_S": 300, "HOUR_SLOTS": 12, "DAY_SLOTS": 288}),
        (bound, {"RATE": 0.04, "LOWEST": -0.2, "WEEK_HOURS": 168, "MATURE_SLOTS": 3 * 288}),
        (forecast_fleet, {"LATE_S": 150.0}),
        (resolution, {"ALMOST_NONE": 0.01, "MIN_DISTANCES": 8}),
        (hot_loads, {"HOT_PERCENT": 85.0, "DIP_PERCENT": 10.0}),
        (statistics, {"MAX_CADENCE_S": 120.0, "MIN_SAMPLES": 2, "COVERAGE": 0.5}),
        (slot_widths, {"POINT_RESOLUTION_S": 15, "FINEST_S": 5}),
        (silent_nodes, {"FORGET_S": 86_400.0, "MAX_NODES": 20_000}),
        (backfill, {"SLICE_S": 120.0, "OVERLAP_S": 120.0, "LATE_INTERVALS": 2.0, "HOLE_CADENCES": 3.0}),
        (fleet_trend, {"TREND_S": DAY, "SHORTEST_STEP_S": 300, "HOUR_S": 3600}),
        (
            hot_nodes,
            {"CRITICAL_PERCENT": 95.0, "NAMED_SHARE": 0.25, "OUTSIDE_SHARE": 0.5, "MOST_NAMED": 2, "GIB": 2.0**30},
        ),
        (
            fleet_problems,
            {"NAMED": 10, "ACTIVE_INTERVALS": 3.0, "ACTIVE_AT_LEAST_S": 300.0, "REPEATED_INTERVALS": 2.0},
        ),
        (coverage, {"VALID_S": 300.0}),
        (pod_table, {"SLOT_S": 60, "LONGEST_CADENCE_S": 120.0}),
    ],
    ids=lambda each: each.__name__ if isinstance(each, ModuleType) else "",
)  # fmt: skip
def test_limits(module: ModuleType, values: dict[str, float]) -> None:
    assert values == {name: getattr(module, name) for name in values}


def test_a_fetch_may_take_three_quarters_of_the_interval() -> None:
    assert (45.0, 7.5) == (RefreshSettings().fetch_deadline, RefreshSettings(interval=10.0).fetch_deadline)
