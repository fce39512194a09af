"""Default arguments of the plug-ins, as docs/ states them."""

from __future__ import annotations

from typing import Any

import pytest

from scorers.plugins import low_risk_over_commitment, node_resource_limits
from scorers.plugins.high_load_filter import HighLoadFilterArgs
from scorers.plugins.koordinator import estimator
from scorers.plugins.koordinator.arguments import DEFAULT_WEIGHTS, LoadAwareSchedulingArgs
from scorers.plugins.koordinator.workload_usage import OwnerHistoryArgs
from scorers.plugins.load_variation_risk_balancing import LoadVariationRiskBalancingArgs
from scorers.plugins.low_risk_over_commitment import LowRiskOverCommitmentArgs
from scorers.plugins.node_resource_limits import NodeResourceLimitsArgs, WeightedResource
from scorers.plugins.target_load_packing import TargetLoadPackingArgs
from tests.defaults import defaults

ASSIGNED = {"assigned_pod_seconds": 60.0, "assigned_pod_decay": False}
MI = 2**20


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (HighLoadFilterArgs, {"fail_open": True, "node_metric_expiration_seconds": 180}),
        (
            LoadAwareSchedulingArgs,
            {
                "filter_expired_node_metrics": True,
                "node_metric_expiration_seconds": 180,
                "enable_schedule_when_node_metrics_expired": False,
                "dominant_resource_weight": 0,
                "prod_usage_include_sys": False,
                "score_according_prod_usage": False,
                "allow_customize_estimation": False,
            },
        ),
        (OwnerHistoryArgs, {"percentile": 95, "min_pods": 1, "min_readings": 10}),
        (
            LoadVariationRiskBalancingArgs,
            {**ASSIGNED, "safe_variance_margin": 1.0, "safe_variance_sensitivity": 1.0},
        ),
        (LowRiskOverCommitmentArgs, {"smoothing_window_size": 5}),
        (WeightedResource, {"weight": 1}),
        (NodeResourceLimitsArgs, {"filter": False}),
        (TargetLoadPackingArgs, {**ASSIGNED, "target_utilization": 40.0}),
    ],
    ids=lambda each: each.__name__ if isinstance(each, type) else "",
)
def test_default_arguments(kind: type[Any], values: dict[str, Any]) -> None:
    assert values == defaults(kind)


def test_default_resources_and_bounds() -> None:
    args = LoadAwareSchedulingArgs()
    assert ({"cpu": 65, "memory": 95}, {"cpu": 85, "memory": 70}, {"cpu": 1, "memory": 1}) == (
        args.usage_thresholds,
        args.estimated_scaling_factors,
        DEFAULT_WEIGHTS,
    )
    assert (250, 250, 200 * MI, 200 * MI, 1000) == (*estimator.DEFAULT_ESTIMATES.values(), estimator.LARGEST_FACTOR)
    assert (0.5, 0.99) == (low_risk_over_commitment.DEFAULT_WEIGHT, low_risk_over_commitment.MOST_OF_VARIANCE)
    assert (100_000, 2**56, 2**40) == (
        node_resource_limits.LARGEST_RATIO,
        node_resource_limits.LARGEST,
        node_resource_limits.FURTHEST,
    )
