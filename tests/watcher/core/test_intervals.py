"""Quantiles of Student's t distribution, compared with tables."""

import itertools

import pytest

from watcher.core.intervals import student_975


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [(1, 12.706), (2, 4.303), (30, 2.042), (31, 2.0395), (40, 2.0211), (60, 2.0003), (120, 1.9799), (10**9, 1.95996)],
)
def test_quantiles_equal_those_of_tables(degrees: int, quantile: float):
    assert student_975(degrees) == pytest.approx(quantile, abs=5e-4)


def test_quantiles_fall_in_ever_smaller_steps():
    """From a table up to 30 degrees of freedom, and from a series above."""
    found = [student_975(degrees) for degrees in range(1, 60)]
    steps = [one - other for one, other in itertools.pairwise(found)]
    assert all(step > 0 for step in steps)
    assert all(later <= earlier + 1.5e-3 for earlier, later in itertools.pairwise(steps))
