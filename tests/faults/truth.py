"""The true load of the nodes of a row, as a function of time: smooth, so that no fault of the source is like it, and
different after ten minutes and after an hour, so that old load is recognized."""

from __future__ import annotations

import math
import random
from functools import cache

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

STEP_S = 5.0
"""Seconds between two samples of a node."""
PERIOD_S = 47 * 60.0
SWING = 30.0
MIDDLE = 45.0
HOT = "node-hot"
"""A node that no pod may be placed on: its CPU is always above 93 %."""
NODES = (*(f"node-{number}" for number in range(7)), HOT)
MEMORY_SHARE = 0.6


@cache
def _noise(node: int, slot: int) -> float:
    return random.Random(f"{node} {slot}").uniform(-0.8, 0.8)


def cpu(node: str, time: float) -> float:
    """The CPU of a node in percent at `time` (unix seconds)."""
    number = NODES.index(node)
    noise = _noise(number, int(time // STEP_S))
    if node == HOT:
        return 95.5 + noise
    return MIDDLE + SWING * math.sin(2 * math.pi * (time / PERIOD_S + number / 7)) + noise


def memory(node: str, time: float) -> float:
    """The memory of a node in percent at `time` (unix seconds)."""
    return MEMORY_SHARE * cpu(node, time)


def samples(node: str, since: float, until: float) -> list[float]:
    """The times of the samples of a node with since < time <= until (unix seconds)."""
    first = math.floor(since / STEP_S) + 1
    return [slot * STEP_S for slot in range(first, math.floor(until / STEP_S) + 1)]


def possible_averages(node: str, window: float, since: float, until: float) -> tuple[float, float]:
    """The lowest and the highest average of the CPU over `window` seconds that end between two times, or over half of
    the window, which is enough for its average."""
    values: F64 = np.array([cpu(node, time) for time in samples(node, since - window, until)])
    sizes = [int(share * window // STEP_S) for share in (0.5, 0.75, 1.0)]
    after = round(window / STEP_S)
    averages = np.concatenate([_moving(values[after - size :], size) for size in sizes])
    return float(averages.min()), float(averages.max())


def _moving(values: F64, size: int) -> F64:
    return np.convolve(values, np.ones(size) / size, mode="valid")
