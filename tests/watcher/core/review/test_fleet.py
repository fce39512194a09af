"""Values that a failed source returns for many nodes at once."""

from collections.abc import Mapping

import numpy as np
import pytest

from tests.watcher.core.review.test_samples import CPU, NOW, STORAGE, as_samples, cells_of
from watcher.core.review.fleet import FleetReview, FleetVerdict
from watcher.core.review.settings import ReviewSettings
from watcher.model import Cells, Metric, Remedy

LIMITS = ReviewSettings()
OBSERVE = ReviewSettings(mode="observe")
BEFORE = NOW - 15.0


def fleet(values: Mapping[str, float], *, time: float = NOW) -> Cells:
    return cells_of(*((node, time, value) for node, value in values.items()))


def numbered(count: int, value: float, *, first: int = 0) -> dict[str, float]:
    return {f"n{number:02}": value for number in range(first, first + count)}


def varied(count: int, *, first: int = 0, more: float = 0.0) -> dict[str, float]:
    return {f"n{number:02}": 10.123 + 1.7 * number + more for number in range(first, first + count)}


def review(
    reviewer: FleetReview,
    cells: Cells,
    before: Mapping[str, float] | None = None,
    *,
    metric: Metric = CPU,
    repeats: float = 0.0,
    limits: ReviewSettings = LIMITS,
    now: float = NOW,
    known: float = BEFORE,
) -> FleetVerdict:
    """The verdict after samples `before` at `known`; without them, about samples of the past."""
    values = np.array([np.nan if before is None else before.get(name, np.nan) for name in cells.names])
    newest = None if before is None else (np.where(np.isnan(values), np.nan, known), values)
    return reviewer.review(metric, cells, newest=newest, repeats=lambda: repeats, now=now, limits=limits)


def dropped(given: Cells, verdict: FleetVerdict) -> set[str]:
    return {name for name, _, _ in as_samples(given)} - {name for name, _, _ in as_samples(verdict.kept)}


@pytest.mark.parametrize(("zeros", "failed"), [(2, False), (3, True)])
def test_zeros_of_more_than_a_fifth_of_the_nodes_are_dropped(zeros: int, failed: bool):
    cells = fleet({**numbered(zeros, 0.0), **varied(10 - zeros, first=zeros, more=3.0)})
    found = review(FleetReview(), cells, varied(10))
    assert dropped(cells, found) == (set(numbered(zeros, 0.0)) if failed else set())
    assert found.zeros == (("n00", "n01", "n02") if failed else ())
    assert ("CPU: 3 of 10 nodes (n00, n01, n02) have exactly 0 % in one response" in found.reason) == failed
    assert [each.remedy for each in found.findings] == [Remedy.DROPPED] * failed


def test_the_only_node_may_be_idle():
    assert review(FleetReview(), fleet({"n00": 0.0}), {"n00": 10.0}).reason == ""


def test_other_metrics_may_be_zero_or_equal():
    assert review(FleetReview(), fleet(numbered(10, 0.0)), varied(10), metric=STORAGE).reason == ""


def test_samples_ahead_of_the_clock_are_not_judged():
    later = fleet(numbered(10, 0.0), time=NOW + LIMITS.max_ahead_s + 1.0)
    assert dropped(later, review(FleetReview(), later, varied(10))) == set()


@pytest.mark.parametrize(("frozen", "repeats", "failed"), [(3, 0.02, True), (3, 0.03, False), (2, 0.0, False)])
def test_values_that_many_nodes_repeat_are_dropped_unless_the_source_repeats_values(
    frozen: int, repeats: float, failed: bool
):
    before = varied(10)
    cells = fleet({**{name: value + 3.0 for name, value in before.items()}, **dict(list(before.items())[:frozen])})
    found = review(FleetReview(), cells, before, repeats=repeats)
    assert dropped(cells, found) == (set(list(before)[:frozen]) if failed else set())
    assert ("3 of 10 nodes (n00, n01, n02) repeat their previous value to the last digit" in found.reason) == failed


def test_a_node_whose_value_moved_in_the_same_response_is_not_frozen():
    before = varied(4)
    again = [(name, NOW, value) for name, value in before.items()]
    cells = cells_of(*again, *((name, NOW + 15.0, value + 1.0) for name, value in before.items()))
    assert review(FleetReview(), cells, before).reason == ""


def test_coarse_values_may_repeat():
    before = {name: round(value, 2) for name, value in varied(10).items()}
    assert review(FleetReview(), fleet(before), before).reason == ""


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (numbered(3, 77.125), "jumped to 77.125 %"),
        ({name: value + 40.0 for name, value in varied(3).items()}, "jumped by +40 points"),
        ({name: value + 20.0 for name, value in varied(3).items()}, ""),  # not above jump_points
        (numbered(3, 100.0), ""),  # many nodes may be saturated at once
        (numbered(2, 77.125), ""),  # a fifth of the nodes
    ],
)
def test_equal_jumps_of_more_than_a_fifth_of_the_nodes_are_dropped(after: dict[str, float], reason: str):
    before = varied(10)
    cells = fleet({**{name: value + 3.0 for name, value in before.items()}, **after})
    found = review(FleetReview(), cells, before)
    assert dropped(cells, found) == (set(after) if reason else set())
    assert (f"3 of 10 nodes (n00, n01, n02) {reason} in one response" in found.reason) == bool(reason)


def test_two_integers_may_be_equal():
    """Their jumps are a failure from three nodes, or with digits that are not equal by chance."""
    before = {"a": 10.0, "b": 11.0, "c": 12.345}
    for value, failed in ((50.0, False), (50.125, True)):
        cells = fleet({"a": value, "b": value, "c": 13.456})
        assert dropped(cells, review(FleetReview(), cells, before)) == ({"a", "b"} if failed else set())


def test_samples_of_the_past_have_no_jumps():
    assert review(FleetReview(), fleet(numbered(10, 77.125))).reason == ""


def test_dropped_samples_are_dropped_again_when_they_return():
    """Responses overlap: the next one has the wrong samples beside good ones of all nodes."""
    reviewer = FleetReview()
    before = varied(10)
    wrong = fleet({**varied(10, more=3.0), **numbered(3, 0.0)})
    assert dropped(wrong, review(reviewer, wrong, before)) == {"n00", "n01", "n02"}
    late = fleet(numbered(1, 0.0))
    found = review(reviewer, late, before)
    assert (dropped(late, found), found.findings) == ({"n00"}, ())
    good = fleet(varied(10, more=5.0), time=NOW + 15.0)
    assert dropped(good, review(reviewer, good, before, now=NOW + 15.0)) == set()
    other = fleet(numbered(1, 0.0), time=NOW - 15.0)
    assert dropped(other, review(reviewer, other, before, known=NOW - 30.0)) == set()
    reviewer.forget()
    assert dropped(late, review(reviewer, late, before)) == set()


def test_dropped_samples_are_forgotten_with_their_nodes():
    reviewer = FleetReview()
    before = varied(10)
    review(reviewer, fleet({**varied(10, more=3.0), **numbered(3, 0.0)}), before)
    for after, again in ((LIMITS.forget_after, True), (LIMITS.forget_after + 1.0, False)):
        review(reviewer, fleet(varied(10, more=3.0), time=NOW + after), before, now=NOW + after)
        late = fleet(numbered(1, 0.0))
        assert bool(dropped(late, review(reviewer, late, before, now=NOW + after))) == again


def test_without_remedies_failures_are_only_reported():
    cells = fleet(numbered(10, 0.0))
    found = review(FleetReview(), cells, varied(10), limits=OBSERVE)
    assert (dropped(cells, found), found.reason, found.zeros) == (set(), "", ())
    assert [each.remedy for each in found.findings] == [Remedy.REPORTED]
