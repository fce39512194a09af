"""The resolution of the history, and samples that move from one to another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watcher.core.windows.history import History
from watcher.core.windows.records import CARRIED, SampleBlock
from watcher.core.windows.resolution import (
    choose_resolution,
    history_bytes,
    resample,
    source_cadence,
)
from watcher.core.windows.slot_widths import CANDIDATES, usable_widths
from watcher.model import METRIC_BY_KEY, Cells, SeriesBatch, Window

CPU = METRIC_BY_KEY["CPU"]
MEMORY = METRIC_BY_KEY["Memory"]
WINDOWS = (Window("5m", 300), Window("15m", 900))
T0 = 1_700_000_100.0


def batch(*times: Sequence[float], metric=CPU) -> SeriesBatch:
    series = np.repeat(np.arange(len(times)), [len(each) for each in times])
    time = np.concatenate([np.array(each, dtype=np.float64) for each in times])
    return SeriesBatch(metric, tuple(f"node-{i}" for i in range(len(times))), series, time, time % 7.0)


def every(cadence: float, *, phase: float = 0.0, jitter: float = 0.0, seconds: float = 600.0) -> list[float]:
    noise = np.random.default_rng(1).uniform(-jitter, jitter, size=int(seconds / cadence))
    return [T0 + phase + cadence * i + noise[i] for i in range(len(noise))]


def chosen(*batches: SeriesBatch, most: int = len(CANDIDATES)) -> int:
    cadence = source_cadence(batches, CANDIDATES)
    assert cadence is not None
    return choose_resolution(cadence, widths=CANDIDATES, most=most)


@pytest.mark.parametrize(
    ("cadence", "expected"), [(1, 5), (5, 5), (6, 6), (7, 6), (9, 6), (10, 10), (12, 12), (14, 12), (15, 15), (30, 15)]
)
def test_the_widest_slot_that_drops_no_sample(cadence: float, expected: int) -> None:
    assert chosen(batch(every(cadence, phase=0.4))) == expected


def test_jitter_of_a_few_milliseconds_does_not_need_finer_slots() -> None:
    """Prometheus scrapes each target at its own phase; only few are close to the boundary of a slot."""
    assert chosen(batch(*(every(10.0, phase=p / 10, jitter=0.002) for p in range(1, 100)))) == 10


def test_large_jitter_needs_finer_slots() -> None:
    """Telegraf's collection_jitter moves samples by seconds."""
    assert chosen(batch(*(every(10.0, phase=p, jitter=4.0) for p in range(10)))) == 5


def test_the_metric_with_the_most_samples_determines_the_resolution() -> None:
    assert chosen(batch(every(30.0, seconds=600)), batch(every(10.0), metric=MEMORY)) == 10


def test_the_order_of_the_samples_does_not_matter() -> None:
    """Some sources return all series of one time after another."""
    given = batch(every(10.0), every(10.0, phase=3.0))
    order = np.argsort(given.time)
    mixed = SeriesBatch(CPU, given.nodes, given.series[order], given.time[order], given.value[order])
    assert source_cadence([mixed], CANDIDATES) == source_cadence([given], CANDIDATES)


def test_too_few_samples_have_no_cadence() -> None:
    assert source_cadence([], CANDIDATES) is None
    assert source_cadence([batch(every(10.0, seconds=60.0))], CANDIDATES) is None


def test_the_share_of_dropped_samples() -> None:
    """One of two at 10 s in slots of 20 s, a third in slots of 15 s."""
    cadence = source_cadence([batch(every(10.0, seconds=600.0))], (15, 5))
    assert cadence is not None
    assert (cadence.seconds, cadence.dropped) == (10.0, {15: pytest.approx(1 / 3), 5: 0.0})


def test_the_memory_bound_allows_only_the_widest() -> None:
    assert [chosen(batch(every(5.0)), most=most) for most in (0, 1, 3, 5)] == [15, 15, 10, 5]
    assert history_bytes(5, nodes=5000, metrics=8, seconds=1065.0) == pytest.approx(2.95 * 32.4e6, rel=0.02)


@pytest.mark.parametrize(
    ("lengths", "expected"), [((300, 600, 900), CANDIDATES), ((50, 100), (10, 5)), ((301,), ()), ((10,), (5,))]
)
def test_every_window_is_a_multiple(lengths: Sequence[int], expected: tuple[int, ...]) -> None:
    assert usable_widths([Window(f"{each}s", each) for each in lengths]) == expected


# --- moving samples to other slots -----------------------------------------------------------------------------------


@given(
    times=st.lists(st.integers(0, 899_999), min_size=1, max_size=60, unique=True),
    before=st.sampled_from([5, 6, 10, 12, 15, 30]),
    after=st.sampled_from([1, 5, 6, 10, 12, 15, 30]),
)
def test_samples_keep_time_and_value(times: list[int], before: int, after: int) -> None:
    """Of several samples in one slot, the last stays; no other sample changes or appears."""
    history = History(resolution=before, windows=WINDOWS)
    begin = T0 // 900 * 900
    time = begin + np.array(sorted(times)) / 1000.0
    cells = Cells(("a",), np.zeros(len(time), dtype=np.int64), (time // before).astype(np.int64), time, time % 97.0)
    history.append(CPU, cells)
    moved = History(resolution=after, windows=WINDOWS)
    moved.load(resample(history.blocks(), before=before, after=after))

    def samples(of: History) -> dict[int, float]:
        values, times = of.samples(CPU.name, end=of.end, nodes=["a"])
        known = ~np.isnan(times)
        return {round(1000 * t): v for t, v in zip(times[known], values[known], strict=True)}

    last = {ms // (after * 1000): ms for ms in sorted(samples(history))}
    assert samples(moved) == {ms: samples(history)[ms] for ms in last.values()}


def test_carried_values_are_not_moved() -> None:
    """They have no time."""
    block = SampleBlock(CPU.name, 100, ("a",), np.array([[1.0], [2.0]]), np.array([[500], [CARRIED]], dtype=np.uint16))
    moved = resample([block], before=15, after=5)
    assert [each.values[np.isfinite(each.values)].tolist() for each in moved] == [[1.0]]
    assert resample([block], before=15, after=15) == (block,)
    carried = SampleBlock(CPU.name, 100, ("a",), np.array([[2.0]]), np.array([[CARRIED]], dtype=np.uint16))
    assert resample([carried], before=15, after=5) == ()
