import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watcher.core.forecast.bound import LOWEST, RATE, Calibration, quantile_codes, track_record
from watcher.core.forecast.maxima import DAY_SLOTS, HOUR_SLOTS, decode, encode, span_maxima

HOUR = 500_000
WEEK_SLOTS = 7 * DAY_SLOTS


def noise(slots: int, *, seed: int, nodes: int = 1, level: float = 30.0, spread: float = 6.0) -> np.ndarray:
    """Utilisation in percent [slots, nodes] without a trend."""
    rng = np.random.default_rng(seed)
    return np.clip(level + spread * rng.standard_normal((slots, nodes)), 0.5, 100.0)


def counts_of(codes: list[int]) -> np.ndarray:
    return np.bincount(codes, minlength=256)[None, :]


@given(st.lists(st.integers(0, 255), min_size=1, max_size=80), st.floats(0, 1))
def test_the_quantile_is_the_smallest_code_that_covers_the_level(codes: list[int], level: float):
    valid = sorted(code for code in codes if code > 0)
    found = int(quantile_codes(counts_of(codes), np.array([level]), least=1)[0])
    if not valid:
        assert found == 0
        return
    assert found == valid[max(1, math.ceil(level * len(valid) - 1e-9)) - 1]


def test_fewer_spans_than_a_day_have_no_bound():
    assert [0, 9] == [int(quantile_codes(counts_of([9] * n), np.array([0.9]), least=5)[0]) for n in (4, 5)]


def advanced(maxima: np.ndarray, *, horizon: int = 6, level: float = 0.95, history: int = WEEK_SLOTS) -> Calibration:
    """A calibration after [slots, n] maxima at whole hours, with the last 7 days visible."""
    calibration = Calibration(maxima.shape[1], horizon=horizon, level=level, history=history)
    for end in range(HOUR_SLOTS, len(maxima) + 1, HOUR_SLOTS):
        spans = span_maxima(maxima[max(0, end - WEEK_SLOTS) : end], horizon * HOUR_SLOTS)
        calibration.advance(spans, HOUR + end // HOUR_SLOTS)
    return calibration


@pytest.mark.parametrize(("horizon", "days"), [(1, 1), (6, 1), (8, 1), (24, 3)])
def test_there_is_no_bound_before_a_day_or_three_times_the_horizon(horizon: int, days: int):
    maxima = encode(noise(days * DAY_SLOTS, seed=1))
    assert 0 == advanced(maxima[:-HOUR_SLOTS], horizon=horizon).bound()[0]
    assert advanced(maxima, horizon=horizon).bound()[0] > 0


def test_a_constant_load_is_its_own_bound():
    maxima = encode(np.full((WEEK_SLOTS, 1), 40.0))
    calibration = advanced(maxima)
    assert maxima[0, 0] == calibration.bound()[0]
    record = calibration.record(span_maxima(maxima, 6 * HOUR_SLOTS))
    assert (1.0, 0.0) == (record.coverage[0], record.severity[0])


def test_an_exceeded_bound_raises_the_quantile_by_the_rate_and_a_kept_one_lowers_it():
    calibration = Calibration(1, horizon=1, level=0.9)
    slots = np.full((4 * DAY_SLOTS, 1), 20.0)
    calibration.advance(span_maxima(encode(slots[:-HOUR_SLOTS]), HOUR_SLOTS), HOUR)
    before = float(calibration.alpha[0])
    slots[-1] = 90.0
    calibration.advance(span_maxima(encode(slots), HOUR_SLOTS), HOUR + 1)
    assert calibration.alpha[0] == pytest.approx(before - RATE * 0.9)
    calm = np.concatenate([slots, np.full((HOUR_SLOTS, 1), 20.0)])
    calibration.advance(span_maxima(encode(calm), HOUR_SLOTS), HOUR + 2)
    assert calibration.alpha[0] == pytest.approx(before - RATE * 0.9 + RATE * 0.1)


@pytest.mark.parametrize(("days", "first", "last"), [(7, 20.0, 60.0), (2, 20.0, 90.0)])
def test_a_load_that_always_grows_has_a_bound_above_its_highest_maximum(days: int, first: float, last: float):
    """By one step for each 0.01 of a negative alpha, and at most 20 steps; with slow growth, that is enough."""
    growing = encode(np.linspace(first, last, days * DAY_SLOTS)[:, None])
    calibration = advanced(growing, history=days * DAY_SLOTS)
    steps = math.ceil(-100.0 * calibration.alpha[0] - 1e-9)
    assert int(calibration.bound()[0]) == int(growing[-1, 0]) + steps
    coverage = calibration.record(span_maxima(growing, 6 * HOUR_SLOTS)).coverage[0]
    if days == 7:
        assert 0 < steps < 20
        assert coverage > 0.9
    else:
        assert (steps, coverage) == (20, 0.0)
        assert calibration.alpha[0] == LOWEST


def test_no_bound_is_above_the_whole_node():
    growing = encode(np.linspace(60.0, 100.0, WEEK_SLOTS)[:, None])
    assert 255 == advanced(growing).bound()[0]


def test_missed_hours_are_computed_later():
    maxima = encode(noise(4 * DAY_SLOTS, seed=3, nodes=3))
    steady, late = (Calibration(3, horizon=6, level=0.95) for _ in range(2))
    for slots in (3 * DAY_SLOTS, *range(3 * DAY_SLOTS + HOUR_SLOTS, 3 * DAY_SLOTS + 9 * HOUR_SLOTS, HOUR_SLOTS)):
        steady.advance(span_maxima(maxima[:slots], 6 * HOUR_SLOTS), HOUR + slots // HOUR_SLOTS)
    for slots in (3 * DAY_SLOTS, 3 * DAY_SLOTS + 8 * HOUR_SLOTS):
        late.advance(span_maxima(maxima[:slots], 6 * HOUR_SLOTS), HOUR + slots // HOUR_SLOTS)
    assert steady.hour == late.hour
    assert np.array_equal(steady.alpha, late.alpha)
    assert np.array_equal(steady.issued, late.issued)


def test_bounds_of_an_earlier_week_are_not_judged_after_a_long_gap():
    maxima = encode(noise(2 * DAY_SLOTS, seed=4))
    calibration = advanced(maxima)
    alpha = calibration.alpha.copy()
    spans = span_maxima(encode(np.full((2 * DAY_SLOTS, 1), 90.0)), 6 * HOUR_SLOTS)
    calibration.advance(spans, HOUR + 5000)
    known = calibration.record(spans).count[0]
    assert known <= len(spans) // HOUR_SLOTS
    assert calibration.alpha[0] >= alpha[0]


def test_hours_without_samples_are_not_judged():
    maxima = encode(noise(5 * DAY_SLOTS, seed=5))
    maxima[4 * DAY_SLOTS :] = 0
    calibration = advanced(maxima)
    spans = span_maxima(maxima, 6 * HOUR_SLOTS)
    judged = 24 - 3 + 1  # the bounds of the fourth day whose span has samples in at least half of its slots
    assert judged == calibration.record(spans).count[0]


def test_a_restarted_process_states_the_coverage_of_one_that_kept_running():
    """Each fourth day has the highest peak, so bounds from a single day are exceeded on the days that follow it: with
    these, the restarted process stated 86 %, the other one 97 %."""
    shape = np.maximum(0.0, np.sin(np.arange(DAY_SLOTS) / DAY_SLOTS * 2 * np.pi))[:, None]
    daily = [5.0 + shape * (20.0, 30.0, 40.0, 60.0)[day % 4] for day in range(23)]
    load = np.concatenate(daily) + np.random.default_rng(1).standard_normal((23 * DAY_SLOTS, 40))
    maxima = encode(load)
    ran_on = advanced(maxima)
    spans = span_maxima(maxima[-WEEK_SLOTS:], 6 * HOUR_SLOTS)
    restarted = Calibration(40, horizon=6, level=0.95)
    restarted.advance(spans, HOUR + len(maxima) // HOUR_SLOTS)
    stated = [float(each.record(spans).coverage.mean()) for each in (ran_on, restarted)]
    assert stated[0] == pytest.approx(stated[1], abs=0.05)
    assert 168 - 6 - 72 + 1 == restarted.record(spans).count[0]


def test_half_of_a_short_history_is_enough_for_a_judgement():
    maxima = encode(noise(4 * DAY_SLOTS, seed=6))
    spans = span_maxima(maxima, 6 * HOUR_SLOTS)
    judged = []
    for history in (4, 7):
        calibration = Calibration(1, horizon=6, level=0.95, history=history * DAY_SLOTS)
        calibration.advance(spans, HOUR)
        judged.append(int(calibration.record(spans).count[0]))
    assert [96 - 6 - 48 + 1, 96 - 6 - 72 + 1] == judged


@settings(max_examples=5)
@given(st.integers(0, 10_000), st.sampled_from([0.8, 0.9, 0.95]))
def test_the_coverage_approaches_the_level(seed: int, level: float):
    """Under a load that grows by a fifth within three weeks, too; without the correction, 0.8 becomes 0.66."""
    slots = 21 * DAY_SLOTS
    drift = np.linspace(1.0, 1.2, slots)[:, None]
    load = noise(slots, seed=seed, nodes=4) * drift
    maxima = encode(load)
    calibration = Calibration(4, horizon=6, level=level)
    held = []
    for end in range(DAY_SLOTS, slots - 6 * HOUR_SLOTS + 1, HOUR_SLOTS):
        calibration.advance(span_maxima(maxima[max(0, end - WEEK_SLOTS) : end], 6 * HOUR_SLOTS), end // HOUR_SLOTS)
        if end >= WEEK_SLOTS:
            held.append(load[end : end + 6 * HOUR_SLOTS].max(axis=0) <= decode(calibration.bound()))
    assert abs(float(np.mean(held)) - level) < 0.08


def test_only_the_past_is_visible():
    maxima = encode(noise(3 * DAY_SLOTS, seed=7, nodes=2))
    other = maxima.copy()
    other[2 * DAY_SLOTS :] = 255
    cut = 2 * DAY_SLOTS
    assert np.array_equal(advanced(maxima[:cut]).issued, advanced(other[:cut]).issued)


def test_a_record_counts_pairs_with_both_codes():
    bounds = np.array([[0, 10], [10, 10], [10, 10]], dtype=np.uint8)
    outcomes = np.array([[9, 11], [11, 10], [0, 21]], dtype=np.uint8)
    record = track_record(bounds, outcomes)
    assert [1, 3] == record.count.tolist()
    assert [0.0, 1 / 3] == pytest.approx(record.coverage.tolist())
    assert [0.1, (0.1 + 0.55) / 3] == pytest.approx(record.severity.tolist())


def test_a_record_without_pairs_is_not_a_number():
    record = track_record(np.zeros((2, 1), dtype=np.uint8), np.ones((2, 1), dtype=np.uint8))
    assert np.isnan(record.coverage[0])
