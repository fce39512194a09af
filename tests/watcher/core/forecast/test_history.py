"""The maxima of a fleet: what is kept of samples, of changes of names, sources and clocks, and of stored hours."""

import numpy as np
import pytest

from watcher.core.forecast.history import CHUNK_COLUMNS, MaximaHistory
from watcher.core.forecast.maxima import HOUR_SLOTS, SLOT_S, decode, encode
from watcher.core.windows.records import MaximaHour

CPU, MEMORY = "instance:node_cpu:ratio", "instance:node_memory_utilisation:ratio"
DAY = 288
SLOT = 6_000_000  # a whole number of hours


def history(slots: int = DAY) -> MaximaHistory:
    return MaximaHistory(slots)


def add(maxima: MaximaHistory, node: str, slot: int, *percents: float, metric: str = CPU) -> None:
    """Add samples of one node, spread over a slot."""
    time = slot * SLOT_S + np.linspace(0.0, SLOT_S - 1.0, len(percents))
    maxima.add(metric, (node,), np.zeros(len(percents), dtype=np.int64), time, np.array(percents))


def maximum(maxima: MaximaHistory, node: str, slot: int, metric: str = CPU) -> float:
    (column,) = maxima.columns_of([node]).tolist()
    codes = maxima.rows(column // CHUNK_COLUMNS, metric, first=slot, stop=slot + 1)
    return float(decode(codes)[0, column % CHUNK_COLUMNS])


def test_a_slot_has_the_highest_sample_rounded_up():
    maxima = history()
    add(maxima, "a", SLOT, 10.0, 50.0, 30.0)
    assert 50.0 <= maximum(maxima, "a", SLOT) < 50.4


def test_repeated_and_late_samples_change_nothing_or_raise_their_slot():
    maxima = history()
    add(maxima, "a", SLOT, 50.0)
    add(maxima, "a", SLOT + 2, 20.0)
    maxima.take_changed(most=10, before=SLOT + HOUR_SLOTS)
    add(maxima, "a", SLOT, 50.0)  # an overlapping fetch
    assert [] == maxima.take_changed(most=10, before=SLOT + HOUR_SLOTS)
    add(maxima, "a", SLOT, 60.0)  # a late sample
    assert maximum(maxima, "a", SLOT) >= 60.0
    assert [SLOT // HOUR_SLOTS] == [each.hour for each in maxima.take_changed(most=10, before=SLOT + HOUR_SLOTS)]


def test_slots_older_than_the_history_are_reused():
    maxima = history()
    add(maxima, "a", SLOT, 50.0)
    add(maxima, "a", SLOT + DAY + 2 * HOUR_SLOTS, 20.0)
    assert np.isnan(maximum(maxima, "a", SLOT))
    add(maxima, "a", SLOT, 90.0)  # too old to have a row
    assert maximum(maxima, "a", SLOT + DAY + 2 * HOUR_SLOTS) < 21


def test_a_growing_fleet_adds_chunks_and_copies_nothing():
    maxima = history()
    add(maxima, "a", SLOT, 50.0)
    ring = maxima.chunks[0].ring(CPU)
    names = tuple(f"n{i}" for i in range(3 * CHUNK_COLUMNS))
    node = np.arange(len(names))
    maxima.add(CPU, names, node, np.full(len(names), float(SLOT * SLOT_S)), np.full(len(names), 30.0))
    assert maxima.chunks[0].ring(CPU) is ring
    assert 4 == len(maxima.chunks)
    assert maximum(maxima, "a", SLOT) >= 50 > maximum(maxima, names[-1], SLOT) >= 30


def test_five_thousand_nodes_take_less_than_25_mb():
    maxima = history(7 * DAY)
    names = tuple(f"n{i}" for i in range(5000))
    for metric in (CPU, MEMORY):
        maxima.add(metric, names, np.arange(5000), np.full(5000, float(SLOT * SLOT_S)), np.full(5000, 30.0))
    assert maxima.nbytes <= 25e6


def test_renames_swap_and_merge_and_remove():
    maxima = history()
    for node, percent in (("a", 10.0), ("b", 20.0), ("c", 30.0), ("d", 40.0), ("e", 50.0)):
        add(maxima, node, SLOT, percent)
    maxima.rename(CPU, {"a": "b", "b": "a", "c": "d", "e": None})
    found = {node: maximum(maxima, node, SLOT) for node in "abcde"}
    assert 20 <= found["a"] < 21
    assert 10 <= found["b"] < 11
    assert 40 <= found["d"] < 41
    assert np.isnan(found["c"])
    assert np.isnan(found["e"])


def test_nodes_without_a_maximum_free_their_columns():
    maxima = history()
    add(maxima, "a", SLOT, 10.0)
    add(maxima, "b", SLOT, 10.0)
    maxima.rename(CPU, {"a": None})
    assert [0] == maxima.drop_empty_nodes()
    add(maxima, "c", SLOT, 30.0)
    assert ["c", "b"] == list(maxima.nodes)  # in the free column
    assert 30 <= maximum(maxima, "c", SLOT) < 31


def test_a_clock_that_steps_back_removes_only_the_future():
    maxima = history()
    for slot in (SLOT, SLOT + 5, SLOT + 20):
        add(maxima, "a", slot, 50.0)
    maxima.step_back(SLOT + 5)
    assert maximum(maxima, "a", SLOT + 5) >= 50
    assert np.isnan(maximum(maxima, "a", SLOT + 20))
    assert SLOT + 5 == maxima.head


def test_another_source_removes_one_metric():
    maxima = history()
    add(maxima, "a", SLOT, 50.0)
    add(maxima, "a", SLOT, 60.0, metric=MEMORY)
    maxima.drop(CPU)
    assert np.isnan(maximum(maxima, "a", SLOT))
    assert maximum(maxima, "a", SLOT, MEMORY) >= 60


def test_stored_hours_are_loaded_and_newer_samples_are_kept():
    maxima = history()
    for slot in range(SLOT, SLOT + 2 * HOUR_SLOTS):
        add(maxima, "a", slot, 50.0)
        add(maxima, "b", slot, 20.0, metric=MEMORY)
    hours = maxima.take_changed(most=99, before=SLOT + 99)
    other = history()
    add(other, "b", SLOT + HOUR_SLOTS, 70.0, metric=MEMORY)
    other.load(hours, newest=SLOT + HOUR_SLOTS + 3)
    assert maximum(other, "a", SLOT) >= 50
    assert maximum(other, "b", SLOT + HOUR_SLOTS, MEMORY) >= 70
    assert maximum(other, "b", SLOT + HOUR_SLOTS + 1, MEMORY) < 21
    assert np.isnan(maximum(other, "a", SLOT + HOUR_SLOTS + 4)), "a slot in the future was loaded"
    assert [(MEMORY, SLOT // HOUR_SLOTS + 1)] == [
        (each.metric, each.hour) for each in other.take_changed(most=99, before=SLOT + 99)
    ]


def test_the_newest_hour_is_stored_only_on_request_and_the_newest_hours_first():
    maxima = history()
    for hour in range(5):
        add(maxima, "a", SLOT + hour * HOUR_SLOTS, 50.0)
    start = SLOT // HOUR_SLOTS
    assert [start + 3, start + 2] == [each.hour for each in maxima.take_changed(most=2, before=SLOT + 4 * HOUR_SLOTS)]
    rest = maxima.take_changed(most=9, before=SLOT + 4 * HOUR_SLOTS + 1)
    assert [start + 4, start + 1, start] == [each.hour for each in rest]
    assert isinstance(rest[0], MaximaHour)
    assert encode(np.array([50.0])) == rest[0].codes[0]


@pytest.mark.slow
def test_fifty_thousand_nodes_take_a_tenth_of_a_gigabyte_per_metric():
    maxima = history(7 * DAY)
    names = tuple(f"n{i}" for i in range(50_000))
    maxima.add(CPU, names, np.arange(50_000), np.full(50_000, float(SLOT * SLOT_S)), np.full(50_000, 30.0))
    assert maxima.nbytes <= 105e6
