"""The part of newly assigned pods that is added to the measured load of their nodes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.cluster.unmeasured_pods import RecentPods, UnmeasuredShare
from tests.scorers.simulated_cluster import info
from tests.scorers.vectors import cases

NOW = 1_700_000_000.0
AGES = st.lists(st.integers(-120, 1_200), max_size=8)


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (UnmeasuredShare(), [1000.0, 1000.0, 0.0, 0.0]),
        (UnmeasuredShare(0.0), [1000.0, 0.0, 0.0, 0.0]),
        (UnmeasuredShare(300.0), [1000.0, 1000.0, 1000.0, 0.0]),
        (UnmeasuredShare(300.0, gradual=True), [1000.0, 900.0, 800.0, 0.0]),
    ],
)
def test_the_demand_of_a_pod_counts_by_its_age_at_the_newest_sample(
    share: UnmeasuredShare, expected: list[float]
) -> None:
    for age, amount in zip((-10.0, 30.0, 60.0, 300.0), expected, strict=True):
        recent = RecentPods()
        recent.register("demand", lambda _: 1000.0, share)
        recent.add(info("a"), row=0, at=NOW - age)
        assert [amount] == recent.unmeasured("demand", measured=np.array([NOW])).tolist(), age


@given(before=AGES, after=AGES, seconds=st.sampled_from([60.0, 300.0, 900.0]), gradual=st.booleans())
def test_sums_updated_by_events_equal_sums_from_scratch(
    before: list[int], after: list[int], seconds: float, gradual: bool
) -> None:
    measured, share = np.array([NOW, np.nan]), UnmeasuredShare(seconds, gradual)
    recent, scratch = RecentPods(), RecentPods()
    for each in (recent, scratch):
        each.register("demand", lambda pod: 7.0 * len(pod.key), share)
    for i, age in enumerate(before):
        recent.add(info(f"old-{i}"), row=i % 2, at=NOW - age)
    recent.unmeasured("demand", measured=measured)
    for i, _ in enumerate(before):
        recent.remove(info(f"old-{i}").key)
    for i, age in enumerate(after):
        for each in (recent, scratch):
            each.add(info(f"new-{i}"), row=i % 2, at=NOW - age)
    assert scratch.unmeasured("demand", measured=measured).tolist() == (
        recent.unmeasured("demand", measured=measured).tolist()
    )


def test_a_pod_is_kept_as_long_as_a_demand_counts_it() -> None:
    recent = RecentPods()
    recent.register("upstream", lambda _: 1.0)
    recent.add(info("a"), row=0, at=NOW - 800.0)
    recent.register("long", lambda _: 1.0, UnmeasuredShare(900.0))
    recent.prune(now=NOW, measured=NOW)
    assert [1.0] == recent.unmeasured("long", measured=np.array([NOW])).tolist()
    recent.unregister("long")
    recent.prune(now=NOW, measured=NOW)
    assert 0 == len(recent)


@cases("PodAssignEventHandler", "cleanup")
def test_golden_recent_pods(case):
    """The pods that count in addition to a measurement of now. They are kept for longer, since measurements lag; if all
    are old, none is kept."""
    of = case["inputs"]
    recent = RecentPods()
    recent.register("pods", lambda _: 1.0)
    for at in of["timestamps"]:
        recent.add(info(str(at)), row=0, at=float(at))
    counted = recent.unmeasured("pods", measured=np.array([float(of["now"])]))
    assert len(case["expected"]["kept"]) == counted[0]
    recent.prune(now=float(of["now"]), measured=float(of["now"]))
    assert [at for at in of["timestamps"] if at > of["now"] - 300] == [at for _, _, at in recent.of(0)]
