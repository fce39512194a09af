"""What the providers share beyond their requests."""

import numpy as np

from watcher.providers.fetching import in_unit


def test_a_value_beyond_the_range_of_floats_becomes_infinite_without_a_warning():
    """The review drops it; a warning of NumPy would be an error in this test."""
    assert [np.inf, -np.inf, 50.0] == in_unit(np.array([1.7e308, -1.7e308, 0.5]), 100.0).tolist()
