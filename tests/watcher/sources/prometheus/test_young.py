"""Samples of new nodes from a rule that shows them as busy."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from tests.fakes.prometheus import Asked, FakePrometheus, matrix, vector
from tests.watcher.sources.prometheus.test_provider import NOW, run
from watcher.model import METRIC_BY_KEY
from watcher.sources.base import Fetch
from watcher.sources.prometheus.provider import PrometheusProvider
from watcher.sources.prometheus.responses import MatrixSamples
from watcher.sources.prometheus.young import YoungSeries, mature_maxima, without_beginnings

FULL_S = 300.0


def reading(times: Mapping[str, Sequence[float]]) -> MatrixSamples:
    """Samples of series by instance."""
    series = np.array([i for i, each in enumerate(times.values()) for _ in each], dtype=np.int64)
    time = np.array([time for each in times.values() for time in each], dtype=np.float64)
    rows = tuple({"instance": name} for name in times)
    return MatrixSamples(tuple(times), frozenset(), series, time, np.zeros(len(time)), rows=rows)


def kept(young: YoungSeries, times: Mapping[str, Sequence[float]], since: float, until: float) -> list[float]:
    read = reading(times)
    found: list[float] = read.time[young.mature(read, since, until, full_s=FULL_S)].tolist()
    return found


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([10, 130, 250], [10, 130, 250]),  # may be older than the range
        ([130, 160, 429, 430, 700], [430, 700]),
        ([10, 130, 250, 560, 680, 850, 860], [10, 130, 250, 860]),  # a gap
        ([10, 130, 250, 540, 660], [10, 130, 250, 540, 660]),  # the window had samples at all times
    ],
    ids=str,
)
def test_the_first_minutes_of_a_series_are_dropped(times: Sequence[float], expected: Sequence[float]):
    assert kept(YoungSeries(), {"a": times}, 0.0, 1000.0) == list(expected)


def test_a_later_reading_continues_the_first():
    """A new series may begin at any time in it; a known one continues."""
    young = YoungSeries()
    assert kept(young, {"a": [10, 40, 70, 880]}, 0.0, 900.0) == [10, 40, 70]
    assert kept(young, {"a": [880, 910, 1180], "b": [1080]}, 880.0, 1200.0) == [1180]
    assert kept(young, {"a": [1210], "b": [1210, 1380]}, 1200.0, 1400.0) == [1210, 1380]


def test_after_a_time_without_readings_the_age_is_unknown():
    young = YoungSeries()
    assert kept(young, {"a": [10]}, 0.0, 900.0) == [10]
    assert kept(young, {"a": [5010]}, 5000.0, 5100.0) == [5010]


def test_a_range_that_was_not_read_is_not_a_gap_of_a_series():
    """Its begin is read again."""
    young, every = YoungSeries(), range(0, 2000, 30)
    kept(young, {"a": [at for at in every if at <= 900]}, 0.0, 900.0)
    begin = young.begin(1190.0, full_s=FULL_S)
    assert begin <= 900.0
    later = [at for at in every if begin <= at <= 1800]
    assert kept(young, {"a": later}, begin, 1800.0) == later


def test_a_series_that_has_begun_behind_the_read_range_may_be_older():
    young = YoungSeries()
    kept(young, {"a": range(0, 900, 30)}, 0.0, 900.0)
    later = list(range(1200, 1800, 30))
    assert kept(young, {"a": later}, 1190.0, 1800.0) == later


def test_samples_of_a_rule_that_is_evaluated_every_six_minutes_are_kept():
    """In one reading, and in later ones of one sample. A missing sample is a gap."""
    young = YoungSeries()
    times = [360.0 * k for k in range(20)]
    assert kept(young, {"a": times[:10]}, 0.0, 3300.0) == times[:10]
    for at in times[10:]:
        assert kept(young, {"a": [at]}, at - 300.0, at + 60.0) == [at]
    assert kept(young, {"a": [times[-1] + 1080.0]}, times[-1] + 60.0, times[-1] + 1100.0) == []


def test_a_rule_that_is_evaluated_less_often_from_now_on_loses_one_sample():
    young, found = YoungSeries(), list[float]()
    kept(young, {"a": range(0, 900, 30)}, 0.0, 900.0)
    for until in range(960, 3000, 60):
        found += kept(young, {"a": [at for at in (1260, 1620, 1980) if until - 60 < at <= until]}, until - 60.0, until)
    assert found == [1620, 1980]


def test_after_an_outage_all_series_begin_again():
    """Although no reading has shorter distances."""
    young = YoungSeries()
    kept(young, {"a": range(0, 900, 30)}, 0.0, 900.0)
    kept(young, {}, 900.0, 1800.0)
    assert kept(young, {"a": [1900]}, 1800.0, 1900.0) == []
    assert kept(young, {"a": [1930, 2200]}, 1900.0, 2200.0) == [2200]


def test_a_series_that_has_ended_is_not_kept_in_memory():
    """The pod of a new exporter has another name. A series that comes back begins again."""
    young = YoungSeries()
    for k in range(20):
        begin = 1000.0 * k
        kept(young, {f"exporter-{k}": np.arange(begin, begin + 1000.0, 30.0).tolist()}, begin, begin + 1000.0)
    assert len(young.times) <= 3
    assert kept(young, {"exporter-0": [20010, 20300, 20310]}, 20000.0, 21000.0) == [20310]


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([300, 600, 900, 1200], [300, 600, 900, 1200]),  # may be older than the range
        ([600, 900, 1200], [1200]),
        ([300, 900, 1200, 1500], [300, 1500]),
    ],
    ids=str,
)
def test_the_first_maxima_of_a_series_are_dropped(ends: Sequence[float], expected: Sequence[float]):
    """Those of two slots of five minutes have samples of its first five minutes. Times are the ends of the slots."""
    read = reading({"old": [300, 600, 900, 1200, 1500], "a": ends, "b": []})
    keep = mature_maxima(read, 0.0, 1500.0, full_s=FULL_S, step=300.0)
    assert read.time[keep & (read.series == 0)].tolist() == [300, 600, 900, 1200, 1500]
    assert read.time[keep & (read.series == 1)].tolist() == list(expected)


def test_the_first_slots_of_a_column_are_unknown():
    """Those of the first slot may be older."""
    nan = np.nan
    values = np.array([[1.0, nan], [1.0, nan], [1.0, 5.0], [nan, 6.0], [2.0, 7.0]])
    expected = [[1.0, nan], [1.0, nan], [1.0, nan], [nan, nan], [nan, 7.0]]
    np.testing.assert_equal(without_beginnings(values, 2), np.array(expected))


def test_maxima_of_a_new_node_begin_after_its_first_minutes():
    """Also where the series has begun shortly before the range."""
    until = 300.0 * (NOW // 300.0)
    since = until - 1200.0
    born = {"old": since - 9000.0, "before": since - 100.0, "within": since + 400.0}

    def answer(asked: Asked) -> bytes:
        if "instance:node_cpu_utilisation:rate5m" not in asked.query:
            return vector()
        if "start" in asked.parameters:
            times = np.arange(float(asked.parameters["start"]), float(asked.parameters["end"]) + 1.0, 300.0).tolist()
            return matrix(
                *(({"node": node}, [(at, "0.5") for at in times if at > begin]) for node, begin in born.items())
            )
        if asked.query.endswith("]"):
            return matrix(*(({"node": node}, [(NOW, "0.5")]) for node in born))
        return vector(*({"node": node} for node in born))

    async def work(provider: PrometheusProvider) -> Fetch:
        await provider.fetch(NOW - 60.0, NOW)
        return await provider.fetch_maxima(since, until, metric=METRIC_BY_KEY["CPU"].name)

    with FakePrometheus(answer) as server:
        (batch,) = run(server, work).batches
    slots = {node: (batch.time[batch.series == i] - since - 150.0).tolist() for i, node in enumerate(batch.nodes)}
    assert slots == {"old": [0.0, 300.0, 600.0, 900.0], "before": [300.0, 600.0, 900.0], "within": [900.0]}
