"""What the publisher finds in the NodeMetrics of a cluster."""

from typing import Any

import msgspec
import pytest

from watcher.core.koordinator.collect_policy import PolicyOverride
from watcher.core.koordinator.written_objects import MANAGER, WrittenNodeMetric

REPORTED = 1_700_000_000.0
REPORT: dict[str, Any] = {"f:status": {"f:updateTime": {}}}
PODS: dict[str, Any] = {"f:status": {"f:podsMetric": {}}}
POLICY: dict[str, Any] = {"f:spec": {"f:metricCollectPolicy": {}}}


def written(*fields: tuple[str, Any], **status: str) -> WrittenNodeMetric:
    """An object with these managed fields, as pairs of manager and fields."""
    managed = [{"manager": manager, "fieldsV1": each} for manager, each in fields]
    policy = {
        "reportIntervalSeconds": 90,
        "nodeAggregatePolicy": {"durations": ["5m", "soon", "1h"]},
    }
    return msgspec.convert(
        {
            "metadata": {"name": "a", "managedFields": managed},
            "spec": {"metricCollectPolicy": policy},
            "status": {"updateTime": "2023-11-14T22:13:20Z", **status},
        },
        WrittenNodeMetric,
    )


@pytest.mark.parametrize(
    ("found", "age", "by_another"),
    [
        (written(("koordlet", REPORT)), 119.0, True),
        (written(("koordlet", REPORT)), 120.0, False),
        (written((MANAGER, REPORT)), 119.0, False),
        (written((MANAGER, REPORT), ("koordlet", REPORT)), 119.0, True),
        (written(("koordlet", REPORT), (MANAGER, REPORT)), 119.0, False),
        (written(("koordlet", POLICY)), 119.0, True),  # the reporter is unknown
        (written(("koordlet", REPORT), updateTime="soon"), 119.0, False),
    ],
)
def test_another_program_reports_if_it_was_the_last_within_two_intervals(
    found: WrittenNodeMetric, age: float, by_another: bool
):
    assert by_another == found.reported_by_another(now=REPORTED + age, interval=60.0)


@pytest.mark.parametrize(("manager", "own"), [(MANAGER, True), ("koordlet", False)])
def test_pod_usage_is_that_of_its_writer(manager: str, own: bool):
    assert own == written((manager, PODS)).has_own_pods


@pytest.mark.parametrize(
    ("writers", "counts"),
    [((), True), ((MANAGER,), False), (("koord-manager",), True), ((MANAGER, "koord-manager"), True)],
)
def test_a_policy_counts_unless_it_is_only_of_this_program(writers: tuple[str, ...], counts: bool):
    found = written(*((each, POLICY) for each in writers))
    assert found.policy == PolicyOverride(90, None, (300, 3600))
    assert found.policy_of_others() == (found.policy if counts else None)
