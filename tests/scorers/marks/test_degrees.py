"""Which nodes have soft taints."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.marks.degrees import KEYS, DegreeRules, degree_of, next_degrees, taints_of
from scorers.marks.excess import FleetLoad, excess
from tests.scorers.marks.fleets import NEVER, NOW, fleet, fleets, none, zeros
from watcher.core.kubernetes.objects import Taint

RULES = DegreeRules(begins=(10.0, 20.0, 30.0), release=5.0, share=0.5, pause_s=600.0)


def degrees(load, before=None, changed_at=None, *, rules=RULES, now=NOW):
    earlier = zeros(load) if before is None else np.array(before)
    times = none(load) if changed_at is None else np.array(changed_at)
    return next_degrees(load, earlier, times, rules, now).tolist()


def test_the_degree_grows_with_the_distance_from_the_mean_of_the_fleet():
    """The mean is 50 %."""
    assert degrees(fleet([10, 40, 45, 59, 61, 70, 65])) == [0, 0, 0, 0, 1, 2, 1]
    assert degrees(fleet([20, 80])) == [0, 3]


@pytest.mark.parametrize("percent", [5.0, 50.0, 99.0])
def test_a_fleet_with_the_same_load_everywhere_has_no_taints(percent):
    assert degrees(fleet([percent] * 10)) == [0] * 10


def test_a_node_with_room_is_not_hot_however_idle_the_others_are():
    assert degrees(fleet([0, 0, 0, 39])) == [0, 0, 0, 0]
    assert degrees(fleet([0, 0, 0, 41])) == [0, 0, 0, 3]


def test_memory_alone_makes_a_node_hot():
    assert degrees(fleet([50] * 4, [30, 30, 30, 90])) == [0, 0, 0, 3]


def test_a_bound_makes_a_node_hot_before_its_window_is():
    assert degrees(fleet([50] * 4, bounds=[50, 50, 50, 90])) == [0, 0, 0, 3]


def test_a_bound_is_compared_with_bounds_so_that_a_node_without_one_does_not_look_cool():
    assert degrees(fleet([50, 50, 50, 70], bounds=[95, 95, 95, np.nan])) == [0, 0, 0, 1]


def test_a_degree_ends_below_its_begin():
    load = fleet([50] * 9 + [58])  # 7.2 points above the mean
    assert degrees(load, [0] * 9 + [1]) == [0] * 9 + [1]
    assert degrees(load, [0] * 9 + [3]) == [0] * 9 + [1]
    assert degrees(load) == [0] * 10


def test_a_node_is_changed_once_in_ten_minutes():
    load = fleet([50] * 9 + [70])
    times = [NEVER] * 9 + [NOW - 599]
    assert degrees(load, changed_at=times)[-1] == 0
    assert degrees(load, changed_at=times, now=NOW + 1)[-1] == 1
    assert degrees(load, [0] * 9 + [3], times)[-1] == 3


def test_a_change_in_the_future_does_not_delay_the_next_one():
    assert degrees(fleet([50] * 9 + [70]), changed_at=[NOW + 1e6] * 10)[-1] == 1


def test_the_hottest_nodes_are_tainted_when_too_many_are_hot():
    rules = DegreeRules(share=0.2)
    assert degrees(fleet([30] * 7 + [71, 73, 72]), rules=rules) == [0] * 7 + [0, 3, 2]


def test_equal_nodes_are_chosen_by_name():
    load = fleet([30] * 7 + [70, 70, 70], names=[*"ghijklm", "c", "a", "b"])
    assert degrees(load, rules=DegreeRules(share=0.2)) == [0] * 7 + [0, 2, 2]


def test_a_tainted_node_stays_among_equally_hot_ones():
    load = fleet([30] * 7 + [70, 73, 71])
    assert degrees(load, [0] * 7 + [3, 0, 0], rules=DegreeRules(share=0.1)) == [0] * 7 + [3, 0, 0]


def test_an_unknown_node_loses_its_taints_at_once():
    load = fleet([30, 30, 70, np.nan])
    assert degrees(load, [0, 0, 3, 3], [NOW - 1] * 4) == [0, 0, 3, 0]


def test_nothing_is_tainted_if_most_nodes_are_unknown():
    assert degrees(fleet([30, 70, np.nan, np.nan, np.nan]), [0, 3, 3, 0, 0]) == [0] * 5
    assert degrees(fleet([]), []) == []


@given(fleets(), st.data())
def test_rules_hold_for_any_fleet(load: FleetLoad, data):
    n = len(load.names)
    before = np.array(data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)), dtype=np.int64)
    ages = data.draw(st.lists(st.sampled_from([0.0, 599.0, 600.0, np.inf]), min_size=n, max_size=n))
    changed_at = NOW - np.array(ages, dtype=np.float64)
    after = next_degrees(load, before, changed_at, RULES, NOW)
    known, held = load.known, NOW - changed_at < RULES.pause_s
    assert ((after >= 0) & (after <= len(KEYS))).all()
    assert (after[~known] == 0).all()
    assert (after[known & held] == before[known & held]).all()
    kept = int(np.count_nonzero(known & held & (before > 0)))
    assert np.count_nonzero(after) <= max(kept, 1, int(RULES.share * n))
    free = known & ~held
    assert (after[free & (excess(load) < RULES.begins[0] - RULES.release)] == 0).all()
    order = np.random.default_rng(n).permutation(n)
    shuffled = FleetLoad([load.names[i] for i in order], load.windows[:, order], load.bounds[:, order], load.lowest)
    again = next_degrees(shuffled, before[order], changed_at[order], RULES, NOW)
    means_differ = not np.array_equal(excess(load)[order], excess(shuffled), equal_nan=True)  # sums in another order
    assert means_differ or again.tolist() == after[order].tolist()


@given(fleets())
def test_the_same_load_changes_nothing_a_second_time(load: FleetLoad):
    first = next_degrees(load, zeros(load), none(load), RULES, NOW)
    assert next_degrees(load, first, none(load), RULES, NOW + 1e4).tolist() == first.tolist()


@pytest.mark.parametrize("degree", range(4))
def test_a_degree_has_as_many_taints(degree):
    taints = [Taint("other", "NoSchedule"), *taints_of(degree), Taint(KEYS[0], "NoSchedule")]
    assert degree_of(taints) == degree
    assert {each.effect for each in taints_of(degree)} <= {"PreferNoSchedule"}
