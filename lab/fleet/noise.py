"""Reproducible random numbers for any time, derived from keys: equal keys give equal numbers.

Pure: no I/O, no clock, no state.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from watcher.arrays import F64

U64 = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def key_of(*parts: object) -> int:
    """Return a 64-bit hash of the texts of `parts`; unlike hash(), it is equal in all processes."""
    return int.from_bytes(blake2b("\0".join(map(str, parts)).encode(), digest_size=8).digest(), "little")


def mixed(key: U64, more: U64 | int) -> U64:
    """Derive keys that are independent for different `more` (splitmix64: Steele et al., OOPSLA 2014)."""
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is intended
        z = key + (np.asarray(more, dtype=np.uint64) + np.uint64(1)) * _GOLDEN
        z = (z ^ (z >> np.uint64(30))) * _FIRST
        z = (z ^ (z >> np.uint64(27))) * _SECOND
        mixture: U64 = z ^ (z >> np.uint64(31))
    return mixture


def uniform(key: U64) -> F64:
    """Return a uniformly distributed number 0 ≤ x < 1 for each key."""
    spread: F64 = (key >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return spread


def wandering(key: U64, time: F64, period: float) -> F64:
    """Return smooth value noise from -1 to 1 for each key and time (seconds): uniformly distributed at multiples of
    `period` (seconds), with smoothstep interpolation between them.
    """
    at = time / period
    step = np.floor(at)
    part = at - step
    part = part * part * (3.0 - 2.0 * part)
    whole = step.astype(np.int64).astype(np.uint64)
    before = uniform(mixed(key, whole))
    after = uniform(mixed(key, whole + np.uint64(1)))
    value: F64 = 2.0 * (before + (after - before) * part) - 1.0
    return value
