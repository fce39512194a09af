"""The signal with which a balancer without memory comes to rest."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.marks.pressure import (
    COLD,
    HOT,
    MIDDLE,
    RANGES,
    Moves,
    PressureRules,
    PressureState,
    next_pressures,
    quiet_until,
)
from tests.scorers.marks.fleets import NEVER, NOW, fleet, fleets, zeros

RULES = PressureRules(hot=15.0, cooled=8.0, cooldown_s=900.0)


def state(ranges):
    start = PressureState.start(len(ranges))
    hot = np.array(ranges) == HOT
    return PressureState(np.array(ranges), np.where(hot, NOW, start.hot_since), start.answered)


def pressures(load, ranges=None, *, before=None, last=None, count=None, now=NOW):
    n = len(load.names)
    moves = Moves.none(n) if last is None else Moves(np.array(last), np.array(count or [1] * n))
    if before is None:
        before = state(zeros(load) if ranges is None else ranges)
    return next_pressures(load, before, moves, RULES, now)


def test_hot_and_cold_nodes_are_separated_by_gaps():
    """The mean of the CPU loads is 50 %; memory is the same everywhere, so it counts half for the cold nodes."""
    found = pressures(fleet([90, 40, 50, 52, 18]))
    assert found.values.tolist() == pytest.approx([0.9, 0.3, 0.5, 0.52, 0.3])
    assert found.state.ranges.tolist() == [HOT, COLD, MIDDLE, MIDDLE, COLD]


@pytest.mark.parametrize("percent", [1.0, 50.0, 99.0])
def test_a_fleet_with_the_same_load_everywhere_is_left_alone(percent):
    assert pressures(fleet([percent] * 5)).values.tolist() == [0.5] * 5


def test_a_node_stays_hot_until_its_load_is_clearly_lower():
    load = fleet([60, 50, 50, 40])  # 10 points above the mean: between 8 and 15
    assert pressures(load).values[0] == pytest.approx(0.6)
    assert pressures(load, [HOT, 0, 0, 0]).values[0] == pytest.approx(0.7)
    assert pressures(fleet([57, 50, 50, 43]), [HOT, 0, 0, 0]).values[0] == pytest.approx(0.57)


def test_a_node_stays_cold_until_its_load_is_above_the_mean():
    load = fleet([44, 50, 50, 56])
    assert pressures(load).state.ranges[0] == MIDDLE
    assert pressures(load, [COLD, 0, 0, 0]).values[0] == pytest.approx(0.3)
    assert pressures(fleet([51, 50, 50, 49]), [COLD, 0, 0, 0]).values[0] == pytest.approx(0.51)


def test_a_node_with_room_in_one_resource_only_is_not_cold():
    memory = [61, 61, 61, 61, 61]
    assert pressures(fleet([10, 60, 60, 60, 60], memory)).state.ranges[0] == COLD
    assert pressures(fleet([10, 60, 60, 60, 60], [75, *memory[1:]])).state.ranges[0] == MIDDLE


def test_a_node_with_a_high_bound_does_not_receive_pods():
    load = fleet([20, 50, 60, 70], bounds=[90, 50, 50, 50])
    assert pressures(load).values[0] == pytest.approx(0.8)


def test_a_node_is_left_alone_after_a_move():
    load = fleet([90, 10, 50, 50])
    last = [NOW - 899, NOW - 899, NEVER, NEVER]
    assert pressures(load, last=last).values.tolist() == pytest.approx([0.6, 0.4, 0.5, 0.5])
    assert pressures(load, last=last).cooling.tolist() == [True, True, False, False]
    assert pressures(load, last=last, now=NOW + 1).values.tolist() == pytest.approx([0.9, 0.3, 0.5, 0.5])


def test_a_node_that_a_move_did_not_cool_is_hot_again_only_if_its_load_rises():
    load = fleet([90, 10, 50, 50])
    moved = [NOW, NEVER, NEVER, NEVER]
    cooling = pressures(load, [HOT, 0, 0, 0], last=moved)
    rested = pressures(load, before=cooling.state, last=moved, now=NOW + 900)
    assert rested.values[0] == pytest.approx(0.6)
    assert not rested.cooling[0]
    assert pressures(fleet([98, 10, 50, 50]), before=rested.state, now=NOW + 960).state.ranges[0] == HOT
    cooled = pressures(fleet([50, 50, 50, 50]), before=rested.state, now=NOW + 960)
    assert pressures(load, before=cooled.state, now=NOW + 1020).state.ranges[0] == HOT


def test_a_node_is_hot_for_ten_minutes_without_a_move():
    load = fleet([90, 10, 50, 50])
    found = pressures(load)
    for seconds in range(60, 600, 60):
        found = pressures(load, before=found.state, now=NOW + seconds)
        assert found.state.ranges[0] == HOT
    for seconds in range(600, 3600, 60):
        found = pressures(load, before=found.state, now=NOW + seconds)
        assert found.values[0] == pytest.approx(0.6)


def test_each_further_move_doubles_the_time_of_rest():
    moves = Moves(np.full(5, NOW), np.array([1, 2, 3, 4, 1000]))
    assert (quiet_until(moves, RULES) - NOW).tolist() == [900.0, 1800.0, 3600.0, 7200.0, 7200.0]
    assert quiet_until(Moves.none(1), RULES).tolist() == [-np.inf]


def test_an_unknown_node_has_no_pressure():
    found = pressures(fleet([90, np.nan, 10]), [HOT, HOT, COLD])
    assert np.isnan(found.values).tolist() == [False, True, False]
    assert found.state.ranges[1] == MIDDLE
    assert np.isnan(pressures(fleet([90, np.nan, np.nan])).values).all()


@given(fleets(), st.data())
def test_a_pressure_is_in_the_range_of_its_node(load, data):
    n = len(load.names)
    ranges = np.array(data.draw(st.lists(st.integers(-1, 1), min_size=n, max_size=n)), dtype=np.int64)
    last = NOW - np.array(data.draw(st.lists(st.sampled_from([0.0, 900.0, np.inf]), min_size=n, max_size=n)))
    found = next_pressures(load, state(ranges), Moves(last, np.ones(n, dtype=np.int64)), RULES, NOW)
    for value, code, cooling, known in zip(found.values, found.state.ranges, found.cooling, load.known, strict=True):
        assert np.isnan(value) == (not known)
        if known:
            low, high = RANGES[(MIDDLE if cooling else code) - COLD]
            assert low <= value <= high
    again = next_pressures(load, found.state, Moves(last, np.ones(n, dtype=np.int64)), RULES, NOW)
    assert again.state.ranges.tolist() == found.state.ranges.tolist()
