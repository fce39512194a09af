"""Limits of durations."""

import pytest

from watcher.core.config.quantities import duration
from watcher.core.config.values import InvalidValue


def test_a_duration_is_by_default_at_most_366_days():
    kind = duration()
    assert [kind.read(text) for text in ("0", "366d")] == [0.0, 31_622_400.0]
    assert "from 0s to 8784h" in kind.accepts
    for text in ("-1s", "366d1s"):
        with pytest.raises(InvalidValue):
            kind.read(text)
