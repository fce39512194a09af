"""Beta distribution over arrays: distribution function, density, and parameters for a given mean and variance.

NumPy has no incomplete beta function, and SciPy is a large dependency for one function. The implementation evaluates
the continued fraction of I_x(a, b) with Lentz's modified method and uses the symmetry I_x(a, b) = 1 - I_(1-x)(b, a)
where it converges faster (DLMF 8.17.22; Numerical Recipes 6.4). The error is below 1e-9 for parameters up to 10,000.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import math

import numpy as np

from watcher.arrays import F64

LARGEST = 1e6  # above, the normal distribution is used
ITERATIONS = 5000
ACCURATE = 1e-15
FEW = 8  # up to this number of elements, plain numbers are faster than arrays
_TINY = 1e-300

_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)
_erf = np.vectorize(math.erf, otypes=[np.float64])


def cdf(x: F64, alpha: F64, beta: F64) -> F64:
    """Return P(X <= x) [n]: 0 for x <= 0, 1 for x >= 1, and, as upstream, 0 for parameters <= 0."""
    x, alpha, beta = np.broadcast_arrays(
        np.asarray(x, dtype=np.float64), np.asarray(alpha, dtype=np.float64), np.asarray(beta, dtype=np.float64)
    )
    found: F64 = np.where(x <= 0.0, 0.0, 1.0)
    inside = (x > 0.0) & (x < 1.0) & (alpha > 0.0) & (beta > 0.0)
    large = inside & (np.maximum(alpha, beta) > LARGEST)
    exact = inside & ~large
    if large.any():
        found[large] = _normal(x[large], alpha[large], beta[large])
    if exact.any():
        found[exact] = _incomplete(x[exact], alpha[exact], beta[exact])
    return np.where((alpha > 0.0) & (beta > 0.0), found, 0.0)


def matching(mean: F64, variance: F64) -> tuple[F64, F64]:
    """Return alpha and beta [n] of the distribution with this mean and variance; NaN if there is none.

        k = m (1 - m) / v - 1        alpha = m k        beta = (1 - m) k

    for 0 <= m <= 1 and 0 <= v < m (1 - m).
    """
    most = max_variance(mean)
    fits = (mean >= 0.0) & (mean <= 1.0) & (variance >= 0.0) & (variance < most)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        k = np.maximum(most / variance - 1.0, np.nextafter(0.0, 1.0))
        return np.where(fits, mean * k, np.nan), np.where(fits, (1.0 - mean) * k, np.nan)


def max_variance(mean: F64) -> F64:
    """Return m (1 - m), the upper bound of the variance on 0..1; 0 outside 0 < m < 1."""
    return np.where((mean > 0.0) & (mean < 1.0), mean * (1.0 - mean), 0.0)


def log_gamma(x: F64) -> F64:
    """Return log(gamma(x)) [n] for x > 0: Stirling's series at x + 8, where seven terms reach double precision."""
    rising = np.ones_like(x)
    for k in range(8):
        rising = rising * (x + k)
    y = x + 8.0
    series = np.zeros_like(y)
    for term in reversed(_STIRLING):
        series = series / (y * y) + term
    whole: F64 = (y - 0.5) * np.log(y) - y + 0.5 * math.log(2.0 * math.pi) + series / y - np.log(rising)
    return whole


def _log_beta(a: F64, b: F64) -> F64:
    return log_gamma(a) + log_gamma(b) - log_gamma(a + b)


def _normal(x: F64, a: F64, b: F64) -> F64:
    mean = a / (a + b)
    deviation = np.sqrt(mean * (1.0 - mean) / (a + b + 1.0))
    shares: F64 = 0.5 * (1.0 + _erf((x - mean) / (deviation * math.sqrt(2.0))))
    return shares


def _incomplete(x: F64, a: F64, b: F64) -> F64:
    """Regularized incomplete beta function I_x(a, b) for 0 < x < 1."""
    swapped = x >= (a + 1.0) / (a + b + 2.0)
    at, p, q = np.where(swapped, 1.0 - x, x), np.where(swapped, b, a), np.where(swapped, a, b)
    front = np.exp(p * np.log(at) + q * np.log1p(-at) - _log_beta(p, q)) / p
    value = np.clip(front * _fraction(at, p, q), 0.0, 1.0)
    shares: F64 = np.where(swapped, 1.0 - value, value)
    return shares


def _fraction(x: F64, a: F64, b: F64) -> F64:
    """Evaluate the continued fraction; each element iterates until it converges."""
    if len(x) <= FEW:
        return np.array([_fraction_one(*each) for each in zip(x.tolist(), a.tolist(), b.tolist(), strict=True)])
    result = np.empty(len(x))
    index = np.arange(len(x))
    c = np.ones(len(x))
    d = 1.0 / _not_zero(1.0 - (a + b) * x / (a + 1.0))
    h = d.copy()
    for m in range(1, ITERATIONS):
        even = m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0))
        d = 1.0 / _not_zero(1.0 + even * d)
        c = _not_zero(1.0 + even / c)
        h = h * d * c
        d = 1.0 / _not_zero(1.0 + odd * d)
        c = _not_zero(1.0 + odd / c)
        step = d * c
        h = h * step
        moving = np.abs(step - 1.0) > ACCURATE
        if not moving.all():
            result[index[~moving]] = h[~moving]
            index, x, a, b = index[moving], x[moving], a[moving], b[moving]
            c, d, h = c[moving], d[moving], h[moving]
            if not len(index):
                return result
    result[index] = h
    return result


def _fraction_one(x: float, a: float, b: float) -> float:
    """`_fraction` of one element, by the same operations in the same order."""
    c = 1.0
    d = 1.0 / _not_zero_one(1.0 - (a + b) * x / (a + 1.0))
    h = d
    for m in range(1, ITERATIONS):
        even = m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0))
        d = 1.0 / _not_zero_one(1.0 + even * d)
        c = _not_zero_one(1.0 + even / c)
        h = h * d * c
        d = 1.0 / _not_zero_one(1.0 + odd * d)
        c = _not_zero_one(1.0 + odd / c)
        step = d * c
        h = h * step
        if not abs(step - 1.0) > ACCURATE:
            break
    return h


def _not_zero_one(value: float) -> float:
    return _TINY if abs(value) < _TINY else value


def _not_zero(values: F64) -> F64:
    return np.where(np.abs(values) < _TINY, _TINY, values)
