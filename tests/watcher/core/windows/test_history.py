"""Windows over the ring of samples equal those of a plain computation over a list of the samples."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watcher.core.windows.history import History, name_order
from watcher.core.windows.records import CARRIED
from watcher.core.windows.statistics import cadences, quantile, window_statistics
from watcher.model import METRIC_BY_KEY, Cells, MetricWindows, Operator, Provenance, Window

CPU = METRIC_BY_KEY["CPU"]
MEMORY = METRIC_BY_KEY["Memory"]
WINDOWS = (Window("5m", 300), Window("10m", 600), Window("15m", 900))
T0 = 1_700_000_010  # a slot border for 15 s
SOURCE = Provenance("Test", "test", "percent", 0.0)

Sample = tuple[str, float, float]  # node, unix seconds, value


def cells(samples: Sequence[Sample], *, resolution: int = 15) -> Cells:
    """Samples as the review returns them: one per node and slot, the last of a slot."""
    last = {(node, int(time // resolution)): (time, value) for node, time, value in sorted(samples, key=lambda s: s[1])}
    names = tuple(dict.fromkeys(node for node, _ in last))
    return Cells(
        names,
        np.array([names.index(node) for node, _ in last], dtype=np.int64),
        np.array([slot for _, slot in last], dtype=np.int64),
        np.array([time for time, _ in last.values()], dtype=np.float64),
        np.array([value for _, value in last.values()], dtype=np.float64),
    )


def history_of(*batches: Sequence[Sample], resolution: int = 15) -> History:
    history = History(resolution=resolution, windows=WINDOWS)
    for batch in batches:
        history.append(CPU, cells(batch, resolution=resolution))
    return history


def windows_of(history: History) -> tuple[tuple[str, ...], MetricWindows]:
    order = name_order(history.names)
    windows = history.windows_of(CPU, recent=history.recent(CPU), provenance=SOURCE, order=order)
    return tuple(history.names[column] for column in order.tolist()), windows


def every(cadence: float, count: int, *, node: str = "a", value: float = 10.0, until: float = T0) -> list[Sample]:
    return [(node, until - cadence * back, value) for back in range(count)]


nodes = st.sampled_from(["a", "b", "c", "node-with-a-longer-name"])
times = st.integers(min_value=0, max_value=1_100_000).map(lambda ms: T0 + ms / 1000.0)
values = st.floats(min_value=0.0, max_value=1e9, allow_nan=False)
batches_of_samples = st.lists(st.lists(st.tuples(nodes, times, values), max_size=40), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(batches=batches_of_samples)
def test_windows_equal_a_plain_computation_over_the_samples(batches: list[list[Sample]]) -> None:
    """AVG, population STD and count of each window are those of the newest samples of its slots, within 1e-9."""
    history = history_of(*batches)
    newest: dict[tuple[str, int], tuple[float, float]] = {}
    for batch in batches:
        for node, time, value in batch:
            kept = cells([(node, time, value)])
            slot = int(kept.slot[0])
            if (node, slot) not in newest or time >= newest[node, slot][0]:
                newest[node, slot] = (time, value)
    if not newest:
        assert history.names == ()
        return
    names, windows = windows_of(history)
    end_slot = int(history.end // 15)
    assert math.isclose(history.end, max(time for time, _ in newest.values()), abs_tol=1e-9)
    for row, name in enumerate(names):
        for index, window in enumerate(WINDOWS):
            inside = [
                v for (node, slot), (_, v) in newest.items() if node == name and slot > end_slot - window.seconds // 15
            ]
            assert windows.count[index, row] == len(inside)
            if not np.isnan(windows.average[index, row]):
                scale = max(1.0, max(abs(value) for value in inside))
                assert abs(windows.average[index, row] - statistics.fmean(inside)) <= 1e-9 * scale
                assert abs(windows.deviation[index, row] - statistics.pstdev(inside)) <= 1e-9 * scale


@settings(max_examples=40, deadline=None)
@given(batches=batches_of_samples)
def test_the_newest_sample_of_a_node_is_the_latest_of_its_windows(batches: list[list[Sample]]) -> None:
    """By name, in any order, while the longest window has it; an unknown node has none."""
    history = history_of(*batches)
    if not history.names:
        return
    names, windows = windows_of(history)
    time, value = history.newest(CPU, [*reversed(names), "unknown"])
    inside = ~np.isnan(windows.sampled)
    assert time[-2::-1][inside].tolist() == windows.sampled[inside].tolist()
    assert value[-2::-1][inside].tolist() == windows.latest[inside].tolist()
    assert np.isnan(time[-1])
    assert np.isnan(value[-1])
    assert np.isnan(history.newest(MEMORY, names)[0]).all()


def test_a_carried_value_is_not_a_newest_sample() -> None:
    """It replaces a dropped sample."""
    history = history_of([("a", T0 + 1.0, 4.0), ("b", T0 + 2.0, 5.0), ("b", T0 + 17.0, 6.0)])
    history.carry(CPU, cells([("a", T0 + 16.0, np.nan)]), slots=2)
    time, value = history.newest(CPU, ["a", "b"])
    assert time.tolist() == [T0 + 1.0, T0 + 17.0]
    assert value.tolist() == [4.0, 6.0]


@settings(max_examples=40, deadline=None)
@given(batches=batches_of_samples, again=st.integers(min_value=0, max_value=5))
def test_writing_the_same_samples_again_changes_nothing(batches: list[list[Sample]], again: int) -> None:
    """Fetches overlap, so writing is idempotent, also for an older batch after a newer one."""
    reported: dict[tuple[str, float], float] = {}  # a source has one value per time
    batches = [[(node, at, reported.setdefault((node, at), value)) for node, at, value in batch] for batch in batches]
    history = history_of(*batches)
    before = history.blocks()
    history.append(CPU, cells(batches[again % len(batches)]))
    after = history.blocks()
    assert [block.values.tobytes() for block in before] == [block.values.tobytes() for block in after]


@settings(max_examples=40, deadline=None)
@given(batches=batches_of_samples)
def test_a_history_that_is_loaded_from_its_blocks_continues_exactly(batches: list[list[Sample]]) -> None:
    """After a restart, samples, times and windows are bit for bit the same."""
    history = history_of(*batches)
    again = History(resolution=15, windows=WINDOWS)
    again.load(history.take_changed())
    if not history.names:
        assert again.names == ()
        return
    assert again.end == history.end
    names, windows = windows_of(history)
    names_again, windows_again = windows_of(again)
    alive = [row for row, name in enumerate(names) if name in names_again]
    np.testing.assert_array_equal(windows.average[:, alive], windows_again.average)
    np.testing.assert_array_equal(windows.deviation[:, alive], windows_again.deviation)
    np.testing.assert_array_equal(windows.sampled[alive], windows_again.sampled)


@pytest.mark.parametrize("changed", [False, True])
def test_loaded_blocks_are_handed_to_the_store_only_if_it_has_others(changed: bool) -> None:
    history = History(resolution=15, windows=WINDOWS)
    history.load(history_of(every(15.0, 60)).blocks(), changed=changed)
    assert bool(history.take_changed()) == changed


def test_only_changed_blocks_are_stored() -> None:
    """Blocks without a change since the last time are not written again."""
    history = history_of(every(15.0, 60))
    assert len(history.take_changed()) >= 15
    assert history.take_changed() == ()
    history.append(CPU, cells(every(15.0, 9)))
    assert history.take_changed() == ()
    history.append(CPU, cells([("a", T0 + 15.0, 1.0)]))
    assert [block.first_slot * 15 <= T0 + 15 for block in history.take_changed()] == [True]


@pytest.mark.parametrize(
    ("cadence", "count", "covered"),
    [
        (15.0, 1, []),  # one sample is never a window
        (15.0, 9, []),  # 5 minutes at 15 s need 10 samples
        (15.0, 10, ["5m"]),
        (15.0, 19, ["5m"]),
        (15.0, 20, ["5m", "10m"]),
        (15.0, 30, ["5m", "10m", "15m"]),
        (60.0, 2, []),  # 5 minutes at 60 s need 2.5 samples
        (60.0, 3, ["5m"]),
        (60.0, 5, ["5m", "10m"]),
        (60.0, 8, ["5m", "10m", "15m"]),
        (120.0, 2, ["5m"]),  # 1.25 would be half, but at least two are needed
        (150.0, 2, ["5m"]),  # a cadence counts as 120 s at most
    ],
)
def test_a_window_counts_with_half_of_its_samples(cadence: float, count: int, covered: list[str]) -> None:
    """At least half of window / cadence samples, and at least two."""
    _, windows = windows_of(history_of(every(cadence, count)))
    assert covered == [w.label for i, w in enumerate(WINDOWS) if not np.isnan(windows.average[i, 0])]


def test_the_cadence_is_the_median_distance_of_the_real_times() -> None:
    """20 s for a source with a sample every 20 s, although slots are 15 s wide, also with gaps."""
    _, windows = windows_of(history_of([s for i, s in enumerate(every(20.0, 40)) if i not in (5, 6, 20)]))
    assert windows.cadence[0] == pytest.approx(20.0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.none() | st.integers(0, 14_999), min_size=1, max_size=30), min_size=1, max_size=5))
def test_cadences_equal_a_plain_median(columns: list[list[int | None]]) -> None:
    """The fast path for regular columns and the sorting one agree with the definition."""
    rows = max(len(column) for column in columns)
    time = np.full((rows, len(columns)), np.nan)
    for c, column in enumerate(columns):
        for r, offset in enumerate(column):
            if offset is not None:
                time[r, c] = (1000 - r) * 15 + offset / 1000.0
    for c, cadence in enumerate(cadences(time, resolution=15).tolist()):
        known = sorted(t for t in time[:, c].tolist() if t == t)
        distances = [b - a for a, b in itertools.pairwise(known)]
        wanted = min(120.0, max(15.0, statistics.median(distances))) if distances else 15.0
        assert cadence == pytest.approx(wanted, abs=0.006)


def test_a_slot_keeps_its_newest_sample() -> None:
    """A late response with an older sample of the slot does not replace the newer one."""
    history = history_of([("a", T0 + 9.0, 90.0)], [("a", T0 + 2.0, 20.0)])
    assert [90.0] == windows_of(history)[1].latest.tolist()
    assert [T0 + 9.0] == windows_of(history)[1].sampled.tolist()


def test_samples_that_are_too_old_for_the_ring_are_counted_and_dropped() -> None:
    """The slot of a sample from an hour ago does not exist any more; it must not be written to another one."""
    history = history_of(every(15.0, 60, value=50.0))
    assert history.append(CPU, cells([("a", T0 - 3600.0, 1.0)])) == 1
    assert windows_of(history)[1].average[2, 0] == pytest.approx(50.0)


def test_a_gap_leaves_no_old_samples() -> None:
    """Skipped slots are empty, and do not keep the values of the previous round."""
    history = history_of(every(15.0, 60, value=50.0), [("a", T0 + 600.0, 1.0)])
    _, windows = windows_of(history)
    assert windows.count[:, 0].tolist() == [1, 1, 1 + 20]


def test_columns_of_nodes_without_samples_are_reused() -> None:
    """A thousand names over time need a ring for the few that exist."""
    history = History(resolution=15, windows=WINDOWS)
    for step in range(300):
        history.append(CPU, cells([(f"node-{step}", T0 + 15.0 * step, 1.0), ("stays", T0 + 15.0 * step, 2.0)]))
        history.drop_empty_nodes()
    assert len(history.names) < 120
    assert "stays" in history.names
    names, windows = windows_of(history)
    assert windows.average[2, names.index("stays")] == pytest.approx(2.0)
    assert np.nanmax(np.delete(windows.latest, names.index("stays"))) == 1.0


def test_drop_empty_nodes_returns_the_removed_names() -> None:
    """Sorted."""
    history = history_of([("b", T0, 1.0), ("a", T0, 1.0)], [("c", T0 + 7200.0, 1.0)])
    assert history.drop_empty_nodes() == ("a", "b")
    assert history.drop_empty_nodes() == ()


def test_a_carried_value_fills_its_slot_but_is_not_a_sample() -> None:
    """It counts in the average, but not in the coverage or Latest, and a real sample replaces it."""
    history = history_of([("a", T0, 40.0)])
    bad = cells([("a", T0 + 15.0, 900.0), ("a", T0 + 30.0, 900.0), ("a", T0 + 45.0, 900.0)])
    history.append(CPU, cells([("b", T0 + 45.0, 1.0)]))
    filled = history.carry(CPU, bad, slots=2)
    assert filled.slot.tolist() == [(T0 + 15) // 15, (T0 + 30) // 15]
    assert filled.value.tolist() == [40.0, 40.0]
    names, windows = windows_of(history)
    row = names.index("a")
    assert (windows.count[0, row], windows.latest[row], windows.sampled[row]) == (1, 40.0, T0)
    recent = history.recent(CPU)
    assert np.nanmean(recent.values[:, history.names.index("a")]) == 40.0
    history.append(CPU, cells([("a", T0 + 15.0, 60.0)]))
    assert windows_of(history)[1].count[0, row] == 2


def test_a_metric_without_samples_has_no_values() -> None:
    """Although its nodes are known from another metric."""
    history = history_of([("a", T0, 40.0)])
    median, mad, count = history.spread(MEMORY, ["a"])
    assert (np.isnan(median).all(), np.isnan(mad).all(), count.tolist()) == (True, True, [0])
    history.drop_newest(MEMORY, ["a"], value=40.0)
    assert not len(history.carry(MEMORY, cells([("a", T0 + 15.0, np.nan)]), slots=2).slot)
    assert windows_of(history)[1].latest.tolist() == [40.0]


def test_samples_up_to_three_minutes_older_than_the_longest_window_are_stored() -> None:
    history = history_of([("a", T0, 1.0)])
    assert history.seconds == 900 + 180 + 15
    assert history.append(CPU, cells([("a", T0 - 1080.0, 1.0)])) == 0
    assert history.append(CPU, cells([("a", T0 - 1095.0, 1.0)])) == 1


def test_the_newest_wrong_samples_of_a_node_are_removed_up_to_the_first_other_value() -> None:
    """A slot without a sample does not end them. Other nodes keep their samples, and the store gets the change."""
    samples = [("a", T0, 0.0), ("a", T0 + 15.0, 7.0), ("a", T0 + 30.0, 0.0), ("a", T0 + 60.0, 0.0)]
    history = history_of([*samples, ("b", T0, 0.0), ("c", T0 + 15.0, 0.0), ("d", T0 + 60.0, 5.0)])
    history.take_changed()
    history.drop_newest(CPU, ["a", "b", "unknown", "d"], value=0.0)
    kept = {
        name: column[~np.isnan(column)].tolist()
        for name, column in zip(history.names, history.recent(CPU).values.T, strict=True)
    }
    assert kept == {"a": [7.0, 0.0], "b": [], "c": [0.0], "d": [5.0]}
    assert {(T0 + 30) // 15, (T0 + 60) // 15} & {
        block.first_slot + row for block in history.take_changed() for row in range(len(block.values))
    }


def test_the_spread_of_a_node_is_that_of_its_samples() -> None:
    history = history_of([("a", T0 + 15.0 * at, value) for at, value in enumerate((1.0, 2.0, 9.0, 4.0))])
    median, mad, count = history.spread(CPU, ["unknown", "a"])
    assert (median[1], mad[1], count.tolist()) == (3.0, 1.5, [0, 4])
    assert np.isnan([median[0], mad[0]]).all()


def test_carried_values_stay_carried_after_a_restart() -> None:
    """The mark is stored."""
    history = history_of([("a", T0, 40.0), ("b", T0 + 15.0, 1.0)])
    history.carry(CPU, cells([("a", T0 + 15.0, np.nan)]), slots=2)
    blocks = history.take_changed()
    assert any((block.offset_ms == CARRIED).any() for block in blocks)
    again = History(resolution=15, windows=WINDOWS)
    again.load(blocks)
    assert windows_of(again)[1].count.tolist() == windows_of(history)[1].count.tolist()


def test_a_carried_value_is_stored() -> None:
    history = history_of([("a", T0, 40.0), ("b", T0 + 15.0, 1.0)])
    history.take_changed()
    history.carry(CPU, cells([("a", T0 + 15.0, np.nan)]), slots=2)
    assert any((block.offset_ms == CARRIED).any() for block in history.take_changed())


def test_each_metric_has_its_own_ring() -> None:
    """A ring is created for the first sample, and dropped when the source of the metric changes."""
    history = history_of([("a", T0, 1.0)])
    assert list(history.metrics) == [CPU]
    history.append(MEMORY, cells([("a", T0, 2.0)]))
    assert list(history.metrics) == [CPU, MEMORY]
    history.drop(CPU.name)
    assert list(history.metrics) == [MEMORY]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.none() | st.floats(-1e6, 1e6), min_size=1, max_size=12), min_size=1, max_size=4),
    st.sampled_from([0.0, 0.5, 0.9, 0.95, 0.99, 1.0]),
)
def test_quantiles_are_those_of_numpy(columns: list[list[float | None]], q: float) -> None:
    """Linear interpolation over the existing samples."""
    rows = max(len(column) for column in columns)
    grid = np.array([[*column, *[None] * (rows - len(column))] for column in columns], dtype=np.float64).T
    for column, value in enumerate(quantile(grid, q).tolist()):
        known = grid[:, column][~np.isnan(grid[:, column])]
        if len(known):
            assert value == pytest.approx(float(np.quantile(known, q)), rel=1e-12, abs=1e-9)
        else:
            assert math.isnan(value)


def test_percentiles_on_request_are_those_of_the_window() -> None:
    """MAX and percentiles of a window that ended before newer samples arrived do not contain these."""
    samples = [("a", T0 - 15.0 * i, float(i)) for i in range(60)]
    history = history_of(samples)
    end = history.end
    history.append(CPU, cells([("a", T0 + 15.0, 1000.0)]))
    maxima = history.statistic(CPU.name, Operator.MAX, end=end, nodes=("a", "unknown"))
    assert maxima[:, 0].tolist() == [19.0, 39.0, 59.0]
    assert np.isnan(maxima[:, 1]).all()


def test_the_deviation_of_a_part_is_exact() -> None:
    """Ten minutes at 0 and five at 100: the five alone have a deviation of exactly 0."""
    values = np.concatenate([np.full((20, 1), 100.0), np.zeros((40, 1))])
    result = window_statistics(values, np.ones(values.shape, dtype=bool), lengths=(20, 40, 60))
    assert result.deviation[0, 0] == 0.0
    assert result.deviation[1, 0] == pytest.approx(50.0, abs=1e-12)
    assert result.deviation[2, 0] == pytest.approx(statistics.pstdev([100.0] * 20 + [0.0] * 40), abs=1e-12)


# --- renamed nodes ---------------------------------------------------------------------------------------------------


def cells_of(history: History) -> dict[str, dict[int, tuple[float, bool]]]:
    """By node and number of the slot after T0: the value, and whether it is carried."""
    found: dict[str, dict[int, tuple[float, bool]]] = {}
    for block in history.blocks():
        for row, column in np.argwhere(~np.isnan(block.values)).tolist():
            cell = (float(block.values[row, column]), bool(block.offset_ms[row, column] == CARRIED))
            found.setdefault(block.nodes[column], {})[block.first_slot + row - T0 // 15] = cell
    return found


def test_several_nodes_are_renamed_at_once() -> None:
    """Two exchange names, one gets a new name, one is removed; other nodes and metrics do not change."""
    history = history_of([(name, T0 + 15.0 * k, 10.0 * i + k) for i, name in enumerate("abcde") for k in range(4)])
    before = cells_of(history)
    history.append(MEMORY, cells([("c", T0, 1.0)]))
    names = {"a": "b", "b": "a", "c": "x", "d": None, "nobody": "y"}
    assert ("a", "b", "c", "d") == history.rename(CPU.name, names)
    assert () == history.rename(METRIC_BY_KEY["GPU"].name, names)
    assert ("d",) == history.drop_empty_nodes()
    history.drop(MEMORY.name)
    assert {"a": before["b"], "b": before["a"], "x": before["c"], "e": before["e"]} == cells_of(history)


def test_under_one_name_the_newer_sample_of_a_slot_counts() -> None:
    """Samples of the new name stay beside those that move to it, and a carried value never replaces a sample."""
    old = [("old", T0 + 1.0, 1.0), ("old", T0 + 20.0, 2.0), ("old", T0 + 61.0, 6.0)]
    new = [("new", T0 + 2.0, 10.0), ("new", T0 + 16.0, 20.0), ("new", T0 + 31.0, 30.0)]
    history = history_of(old, new, [("other", T0 + 75.0, 0.0)])
    history.carry(CPU, cells([("old", T0 + 30.0, 0.0), ("old", T0 + 75.0, 0.0)]), slots=1)
    history.carry(CPU, cells([("new", T0 + 45.0, 0.0)]), slots=1)
    assert ("old",) == history.rename(CPU.name, {"old": "new"})
    expected = {0: (10.0, False), 1: (2.0, False), 2: (30.0, False), 3: (30.0, True), 4: (6.0, False), 5: (6.0, True)}
    assert expected == cells_of(history)["new"]
    assert {"new", "other"} == cells_of(history).keys()


def test_renamed_blocks_are_stored() -> None:
    """Otherwise a restart would restore the old name."""
    history = history_of([("a", T0 + 15.0 * k, float(k)) for k in range(40)])
    history.take_changed()
    history.rename(CPU.name, {"a": "b"})
    history.drop_empty_nodes()
    again = History(resolution=15, windows=WINDOWS)
    again.load(history.take_changed())
    assert {"b": {k: (float(k), False) for k in range(40)}} == cells_of(again)
