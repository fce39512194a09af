"""The score that NodeMetadata reads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.marks.annotation import ABSENT, ScoreRules, next_scores, read_score, score_text
from tests.scorers.marks.fleets import NEVER, NOW, fleet, fleets, none, zeros

RULES = ScoreRules()


def scores(load, before=None, changed_at=None, *, now=NOW):
    earlier = zeros(load) + ABSENT if before is None else np.array(before)
    times = none(load) if changed_at is None else np.array(changed_at)
    return next_scores(load, earlier, times, RULES, now).tolist()


def test_the_score_is_the_free_share_of_the_scarcer_resource():
    assert scores(fleet([20, 50, 96, 10], [50, 10, 50, 89])) == [50, 50, 0, 10]


def test_a_bound_above_the_window_counts():
    assert scores(fleet([20, 20], [0, 0], bounds=[90, 10])) == [10, 80]


def test_nodes_with_about_the_same_load_have_the_same_score():
    """The plug-in stretches a difference of one to the whole range."""
    assert scores(fleet([56, 64, 60], [0, 0, 0])) == [40, 40, 40]


def test_a_score_changes_only_with_a_clear_change_of_the_load():
    assert scores(fleet([67], [0]), [40]) == [40]
    assert scores(fleet([68], [0]), [40]) == [30]


def test_a_score_changes_once_in_ten_minutes():
    load = fleet([90], [0])
    assert scores(load, [40], [NOW - 599]) == [40]
    assert scores(load, [40], [NOW - 600]) == [10]
    assert scores(load, changed_at=[NOW - 599]) == [ABSENT]


def test_an_unknown_node_has_no_score():
    """Zero would be a full node; without a value, the plug-in prefers all others."""
    assert scores(fleet([50, 50, np.nan, 50], [0, 0, 0, np.nan]), [50] * 4, [NOW - 1] * 4) == [50, 50, ABSENT, ABSENT]


def test_no_node_has_a_score_if_most_are_unknown():
    """Otherwise, all pods would go to the few known nodes."""
    assert scores(fleet([10, np.nan, np.nan], [0, 0, 0]), [90, 90, 90]) == [ABSENT] * 3


@given(fleets(), st.data())
def test_rules_hold_for_any_fleet(load, data):
    n = len(load.names)
    before = np.array(data.draw(st.lists(st.integers(-1, 100), min_size=n, max_size=n)), dtype=np.int64)
    ages = data.draw(st.lists(st.sampled_from([0.0, 599.0, 600.0, np.inf]), min_size=n, max_size=n))
    changed_at = NOW - np.array(ages, dtype=np.float64)
    after = next_scores(load, before, changed_at, RULES, NOW)
    known, held = load.known, NOW - changed_at < RULES.pause_s
    assert (after[~known] == ABSENT).all()
    assert (after[known & held] == before[known & held]).all()
    free = known & ~held
    assert (np.abs(after[free] - (100.0 - load.worst[free])) <= 0.75 * RULES.step).all()
    assert next_scores(load, after, none(load), RULES, NOW)[free].tolist() == after[free].tolist()


@pytest.mark.parametrize("text", [None, "", "-1", "full", "4.5", "1e2", "nan", "٤"])
def test_a_text_without_a_score_is_absent(text):
    assert read_score(text) == ABSENT


@given(st.integers(0, 100))
def test_a_written_score_is_read_again(score):
    assert read_score(score_text(score)) == score


def test_a_node_without_an_earlier_score_gets_one():
    assert scores(fleet([50, 10], [0, 0]), [ABSENT, 90], [NEVER, NEVER]) == [50, 90]
