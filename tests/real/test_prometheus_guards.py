"""Ticks that query only new values give the same samples as fetches of the whole span."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pytest

from tests.fetches import sections
from tests.real.fleet import Fleet, make_fleet, node_exporter_series
from tests.real.parts import Prometheus
from tests.real.remote_write import Series
from watcher.model import METRIC_BY_KEY
from watcher.sources.base import Fetch
from watcher.sources.prometheus.provider import PrometheusProvider

STEP = 15.0
TICKS = 6
INTERVAL = 60.0
OVERLAP = 120.0

Found = dict[tuple[str, str, float], float]


def samples_of(fetches: Iterable[Fetch]) -> Found:
    """(metric, node, time) -> value."""
    return {
        (batch.metric.key, batch.nodes[series], float(at)): float(value)
        for fetch in fetches
        for batch in fetch.batches
        for series, at, value in zip(batch.series, batch.time, batch.value, strict=True)
    }


def ticks(server: Prometheus, end: float, *, between: Callable[[int], None] = lambda _: None) -> tuple[Found, Found]:
    """The samples of one provider over several ticks, and of a new provider in each tick. `between` is called before
    each tick with its number."""

    async def run() -> tuple[Found, Found]:
        config = sections(address=server.url, backoff=())
        ours, afresh = [], []
        provider = PrometheusProvider(*config)
        for number in range(TICKS):
            between(number)
            until = end - INTERVAL * (TICKS - 1 - number)
            ours.append(await provider.fetch(until - INTERVAL - OVERLAP, until))
            other = PrometheusProvider(*config)
            afresh.append(await other.fetch(until - INTERVAL - OVERLAP, until))
            await other.close()
        await provider.close()
        return samples_of(ours), samples_of(afresh)

    return asyncio.run(run())


def fleet_until(end: float) -> Fleet:
    return make_fleet(3, start=end - 1500, end=end, step=STEP, seed=5)


def cut(series: Sequence[Series], matches: Callable[[Series], bool], keep: Callable[[float], bool]) -> list[Series]:
    """The series, with only some of the samples of those that match."""
    return [_cut(each, keep) if matches(each) else each for each in series]


def _cut(series: Series, keep: Callable[[float], bool]) -> Series:
    times, values = np.asarray(series.times, dtype=float), np.asarray(series.values, dtype=float)
    kept = np.array([keep(at) for at in times], dtype=bool)
    return Series(series.labels, times[kept], values[kept])


def of_node(fleet: Fleet, index: int) -> Callable[[Series], bool]:
    return lambda series: series.labels.get("instance", "").startswith(fleet.nodes[index])


@pytest.mark.parametrize("change", ["nothing", "dies", "appears", "pauses"])
def test_ticks_find_the_samples_of_a_new_provider(prometheus: Prometheus, change: str):
    """For any nodes that appear and disappear."""
    end = time.time() - 10.0
    fleet = fleet_until(end)
    kept: dict[str, Callable[[float], bool]] = {
        "nothing": lambda at: True,
        "dies": lambda at: at < end - 200,
        "appears": lambda at: at > end - 200,
        "pauses": lambda at: not end - 230 < at < end - 100,
    }
    prometheus.write(cut(node_exporter_series(fleet), of_node(fleet, 1), kept[change]))
    ours, afresh = ticks(prometheus, end)
    assert ours == pytest.approx(afresh)
    assert {"CPU", "Memory", "Storage"} <= {metric for metric, *_ in ours}


def test_late_samples_are_found(prometheus: Prometheus):
    """A node whose samples arrive two minutes late has all of them in the end."""
    end = time.time() - 10.0
    fleet = fleet_until(end)
    series = node_exporter_series(fleet)
    late = of_node(fleet, 1)
    prometheus.write(cut(series, late, lambda at: at < end - 170))

    def between(number: int) -> None:
        if number == TICKS - 2:
            prometheus.write(cut([each for each in series if late(each)], late, lambda at: at >= end - 170))

    ours, _ = ticks(prometheus, end, between=between)
    times = {node: {at for metric, name, at in ours if (metric, name) == ("CPU", node)} for node in fleet.nodes}
    assert times[fleet.nodes[0]] == times[fleet.nodes[1]]


@pytest.mark.parametrize(
    ("metric", "name", "most"), [("CPU", "node_cpu_", 0.0), ("Storage", "node_disk_", 3 * INTERVAL)]
)
def test_a_failed_collector_of_a_running_exporter_is_detected(
    prometheus: Prometheus, metric: str, name: str, most: float
):
    """The guard of the first metric at once, those of other collectors at the third fetch at the latest."""
    end = time.time() - 10.0
    fleet = fleet_until(end)
    died = end - 250
    dead = of_node(fleet, 1)
    series = cut(
        node_exporter_series(fleet),
        lambda each: dead(each) and each.labels["__name__"].startswith(name),
        lambda at: at <= died,
    )
    prometheus.write(series)
    ours, _ = ticks(prometheus, end)
    newest = max(at for key, node, at in ours if (key, node) == (metric, fleet.nodes[1]))
    assert newest <= died + 2 * STEP + most
    assert METRIC_BY_KEY[metric].key in {key for key, node, _ in ours if node == fleet.nodes[0]}
