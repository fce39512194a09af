"""Random fleets for the tests of marks."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from scorers.marks.excess import FleetLoad

NOW = 1_700_000_000.0
NEVER = -np.inf


def fleet(cpu, memory=None, *, bounds=None, names=None):
    """A fleet with these CPU loads in percent; memory is 50 % everywhere unless given."""
    windows = np.array([cpu, [50.0] * len(cpu) if memory is None else memory], dtype=np.float64)
    known = np.full_like(windows, np.nan) if bounds is None else np.array([bounds, [np.nan] * len(cpu)])
    return FleetLoad(names or [f"node-{i:03}" for i in range(len(cpu))], windows, known, np.array([40.0, 60.0]))


@st.composite
def fleets(draw):
    """Fleets of which some loads and most bounds are unknown."""
    n = draw(st.integers(0, 30))
    percent = st.one_of(st.just(np.nan), st.floats(0, 100))
    row = st.lists(percent, min_size=n, max_size=n)
    rows = np.array([draw(row) for _ in range(4)], dtype=np.float64).reshape(4, n)
    names = draw(st.permutations([f"node-{i:03}" for i in range(n)]))
    return FleetLoad(names, rows[:2], rows[2:], np.array([40.0, 60.0]))


def none(load):
    """Nodes without an earlier change."""
    return np.full(len(load.names), NEVER)


def zeros(load):
    return np.zeros(len(load.names), dtype=np.int64)
