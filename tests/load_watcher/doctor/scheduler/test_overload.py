"""The doctor compares the requests of pods with their usage, for profiles that need sufficient requests."""

from __future__ import annotations

from typing import Any

import pytest

from load_watcher.doctor.scheduler.plugins import ProfilePlugins, use_of
from load_watcher.doctor.scheduler.profile_metrics import check_requests
from watcher.platform.checks.results import CheckStatus

METRICS = """# HELP load_watcher_scheduler_requests_to_usage_ratio Requests of pods …
# TYPE load_watcher_scheduler_requests_to_usage_ratio gauge
load_watcher_scheduler_requests_to_usage_ratio{{resource="cpu"}} {cpu}
load_watcher_scheduler_requests_to_usage_ratio{{resource="memory"}} 1.2
load_watcher_scheduler_nodes 3
"""


def profile(name: str, **args: Any) -> ProfilePlugins:
    return ProfilePlugins("[scheduler.default]", use_of({name: args}))


def test_requests_below_half_of_the_usage_are_a_warning() -> None:
    (found,) = check_requests([profile("LoadVariationRiskBalancing")], METRICS.format(cpu=0.41))
    assert CheckStatus.WARN is found.status
    assert "0.41 times their cpu usage, 1.20 times their memory usage" in found.what
    assert 'set formula = "kep"' == found.cure


def test_sufficient_requests_are_reported_with_their_ratio() -> None:
    (found,) = check_requests([profile("TargetLoadPacking")], METRICS.format(cpu=1.6))
    assert CheckStatus.OK is found.status
    assert "they do not: the pods of this cluster request 1.60 times their cpu usage" in found.what


@pytest.mark.parametrize(
    ("profiles", "metrics"),
    [
        ([profile("LoadVariationRiskBalancing", formula="kep")], METRICS.format(cpu=0.2)),
        ([profile("TargetLoadPacking", resources=["cpu", "memory"])], METRICS.format(cpu=0.2)),
        ([profile("LowRiskOverCommitment")], ""),
    ],
)
def test_a_profile_without_the_risk_or_an_unknown_ratio_give_no_result(
    profiles: list[ProfilePlugins], metrics: str
) -> None:
    assert [] == list(check_requests(profiles, metrics))


def test_plug_ins_of_kube_scheduler_lack_the_recommended_arguments() -> None:
    """A KubeSchedulerConfiguration may have null arguments, which count as absent."""
    given = profile("TargetLoadPacking", resources=None)
    (found,) = check_requests([given], METRICS.format(cpu=0.41), instead="use the extender of load-watcher, and ")
    assert 'use the extender of load-watcher, and set resources = ["cpu", "memory"]' == found.cure
