"""Samples of new nodes from a rule that shows them as busy."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from watcher.providers.prometheus.responses import MatrixSamples
from watcher.providers.prometheus.young import YoungSeries, without_beginnings

FULL_S = 300.0


def reading(times: Mapping[str, Sequence[float]]) -> MatrixSamples:
    """Samples of series by instance."""
    series = [i for i, each in enumerate(times.values()) for _ in each]
    time = np.array([time for each in times.values() for time in each], dtype=np.float64)
    rows = tuple({"instance": name} for name in times)
    return MatrixSamples(tuple(times), frozenset(), np.array(series), time, np.zeros(len(time)), rows=rows)


def kept(young: YoungSeries, times: Mapping[str, Sequence[float]], since: float, until: float) -> list[float]:
    read = reading(times)
    found: list[float] = read.time[young.mature(read, since, until, full_s=FULL_S)].tolist()
    return found


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([10, 300, 590], [10, 300, 590]),  # may be older than the range
        ([130, 160, 429, 430, 700], [430, 700]),
        ([10, 300, 610, 900, 910], [10, 300, 910]),  # a gap
        ([10, 300, 590, 880], [10, 300, 590, 880]),  # the window had samples all the time
    ],
    ids=str,
)
def test_the_first_minutes_of_a_series_are_dropped(times: Sequence[float], expected: Sequence[float]):
    assert kept(YoungSeries(), {"a": times}, 0.0, 1000.0) == list(expected)


def test_a_later_reading_continues_the_first():
    """A new series begins at any time of it; a known one goes on."""
    young = YoungSeries()
    assert kept(young, {"a": [10, 880]}, 0.0, 900.0) == [10]
    assert kept(young, {"a": [910, 1180], "b": [1080]}, 900.0, 1200.0) == [1180]
    assert kept(young, {"a": [1210], "b": [1210, 1380]}, 1200.0, 1400.0) == [1210, 1380]


def test_after_a_time_without_readings_nothing_is_known():
    young = YoungSeries()
    assert kept(young, {"a": [10]}, 0.0, 900.0) == [10]
    assert kept(young, {"a": [5010]}, 5000.0, 5100.0) == [5010]


def test_the_first_slots_of_a_column_are_unknown():
    """Those of the first slot may be older."""
    nan = np.nan
    values = np.array([[1.0, nan], [1.0, nan], [1.0, 5.0], [nan, 6.0], [2.0, 7.0]])
    expected = [[1.0, nan], [1.0, nan], [1.0, nan], [nan, nan], [nan, 7.0]]
    np.testing.assert_equal(without_beginnings(values, 2), np.array(expected))
