"""The beta distribution: golden cases, and properties of the distribution function."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.plugins import beta
from tests.scorers.vectors import cases, tolerance


def one(value: float) -> Any:
    return np.array([float(value)])


@cases("LowRiskOverCommitment", "beta_cdf")
def test_golden_distribution_function(case):
    of = case["inputs"]
    assert beta.cdf(one(of["x"]), one(of["alpha"]), one(of["beta"]))[0] == tolerance(case, case["expected"]["value"])


@cases("LowRiskOverCommitment", "beta_max_variance")
def test_golden_largest_variance(case):
    assert beta.max_variance(one(case["inputs"]["m1"]))[0] == tolerance(case, case["expected"]["value"])


@cases("LowRiskOverCommitment", "beta_match_moments")
def test_golden_matching(case):
    of = case["inputs"]
    alpha, other = beta.matching(one(of["m1"]), one(of["m2"] - of["m1"] ** 2))
    expected = case["expected"]["alpha_beta"]
    assert (not np.isnan(alpha[0])) is case["expected"]["matched"]
    if expected is not None:
        assert [alpha[0], other[0]] == [tolerance(case, value) for value in expected]


@cases("LowRiskOverCommitment", "beta_new")
def test_golden_distributions(case):
    """An invalid distribution has a probability of 0; the moments of the others lead back to them."""
    of, expected = case["inputs"], case["expected"]
    alpha, other = np.array([float(of["alpha"])]), np.array([float(of["beta"])])
    if not expected["valid"]:
        assert 0.0 == beta.cdf(np.array([0.5]), alpha, other)[0]
        return
    first, second, third = expected["moments"]
    found = beta.matching(np.array([first]), np.array([second - first**2]))
    assert [each[0] for each in found] == [tolerance(case, float(of[key])) for key in ("alpha", "beta")]
    a, b = (float(each[0]) for each in found)
    assert second * (a + 2) / (a + b + 2) == tolerance(case, third)


@given(st.floats(0.001, 0.999), st.floats(0.01, 5000), st.floats(0.01, 5000))
def test_the_distribution_function_is_monotonic_and_symmetric(x, a, b):
    """From 0 to 1."""
    values = beta.cdf(np.array([0.0, x / 2, x, 1.0]), np.full(4, a), np.full(4, b))
    assert values[0] == 0.0
    assert values[3] == 1.0
    assert (np.diff(values) >= -1e-9).all()
    assert 1.0 - beta.cdf(one(1.0 - x), one(b), one(a))[0] == pytest.approx(values[2], abs=1e-9)


def test_many_values_are_computed_as_single_ones():
    """Some converge after few steps, some after many; the last are those of a narrow distribution."""
    pairs = itertools.product([0.02, 1.0, 90.0, 4000.0], [0.03, 2.0, 30.0])
    a, b = np.array(list(pairs)).T
    for near in (-0.2, 1e-3):
        x = np.clip(a / (a + b) + near, 1e-6, 1.0 - 1e-6)
        single = [
            beta.cdf(one(each), one(p), one(q))[0]
            for each, p, q in zip(x.tolist(), a.tolist(), b.tolist(), strict=True)
        ]
        np.testing.assert_allclose(beta.cdf(x, a, b), single, rtol=1e-12, atol=1e-15)


@given(st.integers(1, 60), st.integers(1, 60), st.floats(0.01, 0.99))
def test_for_integer_parameters_the_distribution_is_a_sum_of_binomials(a, b, x):
    """I_x(a, b) = P(at least a of a + b - 1 successes), DLMF 8.17.5."""
    n = a + b - 1
    exact = math.fsum(math.comb(n, k) * x**k * (1 - x) ** (n - k) for k in range(a, n + 1))
    assert beta.cdf(one(x), one(a), one(b))[0] == pytest.approx(exact, abs=1e-12)


@given(st.floats(1e-6, 1e7))
def test_the_gamma_function_equals_that_of_the_library(x):
    assert beta.log_gamma(one(x))[0] == pytest.approx(math.lgamma(x), rel=1e-13, abs=1e-13)


def test_the_distribution_is_continuous_at_a_million():
    """The normal distribution is used above."""
    x, near = 0.3 + 1e-4, 0.3
    below = beta.cdf(one(x), one(near * 1e6), one((1 - near) * 1e6))[0]
    above = beta.cdf(one(x), one(near * 1.5e6), one((1 - near) * 1.5e6))[0]
    assert below == pytest.approx(0.586, abs=0.002)
    assert above == pytest.approx(0.606, abs=0.002)
