"""Annotations of pods that the estimator of LoadAwareScheduling reads."""

from __future__ import annotations

import pytest

from scorers.plugins.koordinator.arguments import LoadAwareSchedulingArgs
from scorers.plugins.koordinator.estimator import AFTER_SCHEDULED, forced_until
from tests.scorers.simulated_cluster import NOW, pod

FROM_ARGUMENTS = 30.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("60", 60.0),
        ("+60", 60.0),
        ("007", 7.0),
        ("0", None),
        *((text, FROM_ARGUMENTS) for text in ("-60", "++60", "+-60", "6_0", "1.5", " 60", "x", "+", "", "٦٠")),
    ],
)
def test_seconds_are_read_as_koordinator_does(text: str, seconds: float | None):
    """As strconv.ParseInt; the arguments apply instead of an invalid or negative number."""
    args = LoadAwareSchedulingArgs(allow_customize_estimation=True, estimated_seconds_after_pod_scheduled=30)
    annotated = pod(metadata={"annotations": {AFTER_SCHEDULED: text}})
    found = forced_until(annotated, args, scheduled=NOW)
    assert found == (None if seconds is None else NOW + seconds)
