"""The start of a high load: kept from snapshot to snapshot, and continued from stored windows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.fakes.service import stored
from tests.fakes.snapshots import END, RESOLUTION, snapshot_of, steady
from watcher.core.windows.hot_loads import HotLoads, LoadStart, hot_loads, stored_start
from watcher.model import METRIC_BY_KEY

CPU = METRIC_BY_KEY["CPU"].name
KEY = ("a", CPU)
BEGAN = END - 12 * 60 + RESOLUTION  # the first of 48 slots with a high load


def ticks(*loads: Sequence[float], every_s: float = 60.0, before: HotLoads | None = None) -> list[HotLoads]:
    """The starts after each tick; the first one is at END, and each sees the samples of its 15 minutes."""
    seen = [before or HotLoads()]
    for number, load in enumerate(loads):
        snapshot = snapshot_of({"a": {"CPU": load}}, end=END + number * every_s)
        seen.append(hot_loads(snapshot, seen[-1]))
    return seen[1:]


def test_a_load_keeps_its_start_while_it_stays_high():
    """For an hour: the samples in memory are those of 15 minutes."""
    rise = [*steady(20, slots=12), *steady(95, slots=48)]
    seen = ticks(rise, *[steady(95)] * 60)
    assert [LoadStart(BEGAN, False)] * 61 == [each.starts[KEY] for each in seen]


def test_a_load_that_was_high_in_the_first_sample_has_at_least_that_duration():
    """The duration grows with each tick, and is marked as a minimum."""
    first = END - 59 * RESOLUTION
    assert [LoadStart(first, True)] * 30 == [each.starts[KEY] for each in ticks(*[steady(90)] * 30)]


def test_a_short_dip_does_not_restart_the_time():
    """One sample of 60 % leaves the mean of 5 minutes above 85 %."""
    dip = steady(95)
    dip[-3] = 60.0
    before, after = ticks(steady(95), dip)
    assert before.starts == after.starts


def test_a_load_that_falls_below_the_threshold_restarts_the_time():
    """When it is high again, the time begins with the samples after the fall."""
    risen = [*steady(20, slots=40), *steady(99, slots=20)]
    seen = ticks(steady(95), steady(20), risen)
    assert {} == seen[1].starts
    assert LoadStart(END + 120 - 19 * RESOLUTION, False) == seen[2].starts[KEY]


def test_late_samples_move_the_start_back():
    """The first tick after a start has two minutes of samples, and the backfill brings the rest."""
    few, many = ticks(steady(95, slots=8), [*steady(20, slots=12), *steady(95, slots=48)], every_s=0.0)
    assert LoadStart(END - 7 * RESOLUTION, True) == few.starts[KEY]
    assert LoadStart(BEGAN, False) == many.starts[KEY]


@pytest.mark.parametrize(("gap_s", "kept"), [(900.0, True), (901.0, False)])
def test_a_gap_in_the_samples_restarts_the_time(gap_s, kept):
    """A gap longer than the samples in memory: the load in between is unknown."""
    before, after = ticks(steady(95), steady(95), every_s=gap_s)
    assert kept == (before.starts == after.starts)
    assert kept or after.starts[KEY] == LoadStart(END + gap_s - 59 * RESOLUTION, True)


def test_a_metric_from_another_source_and_another_node_have_their_own_starts():
    """Only the changed metric loses its starts."""
    known = hot_loads(snapshot_of({"a": {"CPU": steady(95), "Memory": steady(95)}}), HotLoads())
    assert [("a", METRIC_BY_KEY["Memory"].name)] == [*known.without(CPU).starts]
    assert [("b", CPU)] == [*hot_loads(snapshot_of({"b": {"CPU": steady(95)}}), known).starts]


# --- stored windows --------------------------------------------------------------------------------------------------


def means(*values: float) -> dict[int, float]:
    """One mean per minute, the last one at END."""
    return {int(END) - 60 * back: value for back, value in enumerate(reversed(values))}


@pytest.mark.parametrize(
    ("values", "start"),
    [
        (means(40, 90, 91, 92), LoadStart(END - 120, False)),
        (means(90, 91, 92), LoadStart(END - 120, True)),
        (means(90, 84.9), None),
        (means(90, float("nan"), 91), LoadStart(END - 120, True)),
        ({int(END) - 901: 90.0}, None),
        ({}, None),
    ],
)
def test_stored_means_continue_a_load(values, start):
    """Back to the first low mean, to a gap, or to the first mean of all."""
    series = stored(dict(sorted(values.items())))
    assert start == stored_start(series, LoadStart(END + 1, True), gap_s=900)


def test_only_loads_that_may_have_begun_earlier_are_continued():
    """Loads that are not high any more are not."""
    hot = HotLoads(END, {KEY: LoadStart(END - 60, True), ("b", CPU): LoadStart(END - 60, False)})
    older = LoadStart(END - 3600, False)
    continued = hot.continued({KEY: older, ("b", CPU): older, ("c", CPU): older})
    assert {KEY: older, ("b", CPU): LoadStart(END - 60, False)} == continued.starts
